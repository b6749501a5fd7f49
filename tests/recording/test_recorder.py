"""Recorders: what is acknowledged is in the archive, once and in order, whatever ends in between."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest

import tidings
from live_network import until
from recording_network import guaranteed_broker, numbers, play, recording, running
from tidings.core.errors import ArchiveError, ArchiveFull, ConnectionFailed
from tidings.drivers.address import Address
from tidings.drivers.sockets.broker import BrokerServer
from tidings.recording import marks
from tidings.recording import recorder as recorder_module
from tidings.recording.marks import Marks
from tidings.recording.recorder import Recorder
from tidings.storage.archive import Archive, ArchiveReader, ArchiveSettings

pytestmark = pytest.mark.timeout(100)


async def publish(url: str, first: int, last: int, topic: str = "/a", name: str | None = None) -> None:
    async with tidings.connect(url, name=name) as bus:
        await bus.publish_many((topic, {"number": number}, b"x") for number in range(first, last))


def test_a_recorder_that_was_away_has_missed_nothing_and_has_nothing_twice(tmp_path: Path) -> None:
    archive = tmp_path / "archive"

    async def main() -> None:
        async with running(guaranteed_broker(tmp_path)) as url:
            async with recording(Recorder(url, archive, "/a")) as recorder:
                await publish(url, 0, 500)
                await publish(url, 0, 500, topic="/other")
                await until(lambda: recorder.recorded == 500)
            await publish(url, 500, 700)
            async with recording(Recorder(url, archive, "/a")) as recorder:
                await publish(url, 700, 800)
                await until(lambda: recorder.recorded == 300)

    play(main)
    assert numbers(archive) == list(range(800))
    with ArchiveReader(archive) as reader:
        assert reader.gaps() == []


def test_a_recorder_that_dies_before_it_acknowledges_records_nothing_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed between the disk and the acknowledgement: the broker sends again, the archive knows better."""
    archive = tmp_path / "archive"

    async def main() -> None:
        async with running(guaranteed_broker(tmp_path)) as url:
            with monkeypatch.context() as patch:
                patch.setattr(recorder_module.Intake, "settle", lambda self, count: None)
                async with recording(Recorder(url, archive)) as recorder:
                    await publish(url, 0, 60, name="p")
                    await until(lambda: recorder.recorded == 60)
            async with recording(Recorder(url, archive)) as recorder:
                await publish(url, 60, 80)
                await until(lambda: recorder.recorded >= 20)

    play(main)
    assert numbers(archive) == list(range(80))


def test_without_marks_it_would(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The planted bug to the test above."""
    archive = tmp_path / "archive"
    monkeypatch.setattr(Marks, "of_sources", lambda marks: {})

    async def main() -> None:
        async with running(guaranteed_broker(tmp_path)) as url:
            with monkeypatch.context() as patch:
                patch.setattr(recorder_module.Intake, "settle", lambda self, count: None)
                async with recording(Recorder(url, archive)) as recorder:
                    await publish(url, 0, 60, name="p")
                    await until(lambda: recorder.recorded == 60)
            async with recording(Recorder(url, archive)) as recorder:
                await until(lambda: recorder.recorded >= 60)

    play(main)
    assert numbers(archive) == [*range(60), *range(60)]


def test_a_full_disk_stops_acknowledging_and_nothing_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    archive = tmp_path / "archive"
    full = True
    append = Archive.append

    def append_if_room(self: Archive, events: object, *rest: object, **options: object) -> int:
        if full and events:
            raise ArchiveFull("no room")
        return append(self, events, *rest, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(Archive, "append", append_if_room)
    monkeypatch.setattr(recorder_module, "RETRY_S", 0.02)

    async def main() -> None:
        nonlocal full
        async with running(guaranteed_broker(tmp_path)) as url:
            async with recording(Recorder(url, archive)) as recorder:
                await publish(url, 0, 3000)
                await until(lambda: recorder.problem != "")
                await publish(url, 3000, 3100)
                assert recorder.recorded == 0
                assert recorder.status()["archive_problem"] == "no room"
                full = False
                await until(lambda: recorder.recorded == 3100)
                assert recorder.problem == ""

    play(main)
    assert numbers(archive) == list(range(3100))
    assert [record.message for record in caplog.records].count("recording paused: no room") == 1


def test_upkeep_that_fails_does_not_repeat_what_was_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = tmp_path / "archive"

    def maintain(self: Archive) -> None:
        self.trouble = "no room for a file"
        raise ArchiveFull(self.trouble)

    monkeypatch.setattr(Archive, "maintain", maintain)
    monkeypatch.setattr(recorder_module, "RETRY_S", 0.01)

    async def main() -> None:
        async with running(guaranteed_broker(tmp_path)) as url, recording(Recorder(url, archive)) as recorder:
            await publish(url, 0, 50)
            await until(lambda: recorder.recorded >= 50)
            assert recorder.status()["archive_problem"] == "no room for a file"

    play(main)
    assert numbers(archive) == list(range(50))


def test_a_recorder_of_a_network_that_does_not_wait_says_what_may_be_missing(tmp_path: Path) -> None:
    archive = tmp_path / "archive"

    async def main() -> None:
        server = BrokerServer("b0", Address(port=0))
        async with running(server) as url:
            async with recording(Recorder(url, archive)) as recorder:
                await publish(url, 0, 10)
                await until(lambda: recorder.recorded == 10)
            await publish(url, 10, 20)
            async with recording(Recorder(url, archive)) as recorder:
                await publish(url, 20, 30)
                await until(lambda: recorder.recorded == 10)

    play(main)
    assert numbers(archive) == [*range(10), *range(20, 30)]
    with ArchiveReader(archive) as reader:
        (gap,) = reader.gaps()
    assert (gap.offset, gap.missing) == (10, None)
    assert gap.reason.startswith("no recorder for")


def test_a_connection_that_breaks_is_a_gap_where_the_network_does_not_wait(tmp_path: Path) -> None:
    archive = tmp_path / "archive"

    async def main() -> None:
        server = BrokerServer("b0", Address(port=0))
        await server.start()
        async with recording(Recorder(f"tidings://{server.address}", archive)) as recorder:
            await server.stop()
            again = BrokerServer("b0", server.address)
            async with running(again) as url:
                await until(lambda: bool(again.status()["clients"]))
                await until(lambda: recorder.recorded == 0 and not recorder._gaps, 20)
                for number in range(200):  # until the subscription is made again
                    await publish(url, number, number + 1)
                    if recorder.recorded:
                        break

    play(main)
    with ArchiveReader(archive) as reader:
        gap = reader.gaps()[0]  # another one follows where the broker stops before the recorder
    assert gap.offset == 0
    assert gap.reason.startswith("the connection was lost")


def test_order_and_filter_are_recorded_with_their_places(tmp_path: Path) -> None:
    archive = tmp_path / "archive"

    async def main() -> None:
        async with tidings.embedded(brokers=2, mode="guaranteed") as bus:
            recorder = Recorder("tidings://nowhere", archive, "/a", where="number > 2", order="total")
            recorder._make_service = lambda: bus.connect(name="rec")  # type: ignore[method-assign]
            async with recording(recorder):
                for number in range(6):
                    await bus.publish("/a", {"number": number})
                await until(lambda: recorder.recorded == 3)

    play(main)
    assert numbers(archive) == [3, 4, 5]
    with ArchiveReader(archive) as reader:
        (batch,) = reader.read(0, 3)
    places = batch.column("order").to_pylist()
    assert [place["number"] for place in places] == [4, 5, 6]


def test_many_sources_are_remembered_up_to_a_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = tmp_path / "archive"
    monkeypatch.setattr(marks, "MAX_TRACKED_SOURCES", 3)

    async def main() -> None:
        async with running(guaranteed_broker(tmp_path)) as url, recording(Recorder(url, archive)) as recorder:
            for source in range(6):
                await publish(url, source, source + 1, name=f"p{source}")
            await until(lambda: recorder.recorded == 6)

    play(main)
    with Archive.open(archive) as opened:
        sources = [name.partition(":")[2] for name in opened.marks() if not name.startswith("~")]
    assert sorted(sources) == ["p3", "p4", "p5"]


def test_mistakes_are_told_at_once(tmp_path: Path) -> None:
    with pytest.raises(tidings.FilterError):
        Recorder("tidings://127.0.0.1:1", tmp_path / "a", where="x >")
    with pytest.raises(ValueError, match="order"):
        Recorder("tidings://127.0.0.1:1", tmp_path / "a", order="odd")

    async def unreachable() -> None:
        with pytest.raises(ConnectionFailed):
            await Recorder("tidings://127.0.0.1:1", tmp_path / "a").start()

    play(unreachable)

    async def no_archive() -> None:
        (tmp_path / "file").write_text("x")
        with pytest.raises(ArchiveError):
            await Recorder("tidings://127.0.0.1:1", tmp_path / "file").start()

    play(no_archive)


def test_random_lives_of_recorder_and_broker(tmp_path: Path) -> None:
    """Both end and start again at random while a publisher goes on: everything is there once and in order."""
    archive = tmp_path / "archive"
    randomness = random.Random(7)
    settings = ArchiveSettings(segment_rows=100)

    async def main() -> None:
        server = guaranteed_broker(tmp_path)
        await server.start()
        port = server.address.port
        url = f"tidings://{server.address}"
        published = 0

        async def publish_on() -> None:
            nonlocal published
            async with tidings.connect(url, name="p") as bus:
                while True:
                    await bus.publish_many(
                        ("/a", {"number": number}, b"") for number in range(published, published + 20)
                    )
                    published += 20

        first = Recorder(url, archive, settings=settings)
        await first.start()
        await first.stop()
        publisher = asyncio.ensure_future(publish_on())
        for _ in range(6):
            async with recording(Recorder(url, archive, settings=settings)):
                await asyncio.sleep(randomness.random() * 0.3)
                if randomness.random() < 0.5:
                    await server.stop()
                    await asyncio.sleep(randomness.random() * 0.1)
                    server = guaranteed_broker(tmp_path, port)
                    await server.start()
            await asyncio.sleep(randomness.random() * 0.1)
        publisher.cancel()
        await asyncio.gather(publisher, return_exceptions=True)
        async with recording(Recorder(url, archive, settings=settings)):
            await until(lambda: len(numbers(archive)) >= published, 30)
        await server.stop()

    play(main)
    found = numbers(archive)
    assert found == list(range(len(found))) and len(found) > 100
