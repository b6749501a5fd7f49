"""How recorders end, half way or in the middle of something: nothing is lost by it, and what is missing is noted."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

import tidings
from live_network import until
from recording_network import guaranteed_broker, numbers, play, recording, running
from tidings.bus.bus import Bus
from tidings.bus.gaps import EventsMissed, Gap
from tidings.core.errors import ArchiveFull, ConnectionFailed
from tidings.core.events.event import Event
from tidings.core.facts import EventsGivenUp
from tidings.core.ordering.layout import single
from tidings.drivers.address import Address, url
from tidings.drivers.sockets.broker import BrokerServer
from tidings.drivers.sockets.client import ClientConnection
from tidings.drivers.sockets.sequencer import SequencerHost
from tidings.recording import recorder as recorder_module
from tidings.recording.gaps import MAX_PENDING, PendingGaps
from tidings.recording.recorder import Recorder
from tidings.storage.archive import Archive, ArchiveReader
from tidings.storage.archive.facts import ArchiveGap

pytestmark = pytest.mark.timeout(100)


async def publish(url: str, first: int, last: int) -> None:
    async with tidings.connect(url, name=f"p{first}") as bus:
        await bus.publish_many(("/a", {"number": number}, b"x") for number in range(first, last))


def gaps(archive: Path) -> list[ArchiveGap]:
    with ArchiveReader(archive) as reader:
        return reader.gaps()


class Gate:
    """Writing stops here until it is opened; then it fails so many times."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, failures: int = 0) -> None:
        self.reached = threading.Event()
        self.open = threading.Event()
        self.failures = failures
        append = Archive.append

        def gated(archive: Archive, events: list[Event], *rest: object, **options: object) -> int:
            if events:
                self.reached.set()
                assert self.open.wait(30)
                if self.failures:
                    self.failures -= 1
                    raise ArchiveFull("no room")
            return append(archive, events, *rest, **options)  # type: ignore[arg-type]

        monkeypatch.setattr(Archive, "append", gated)


def test_one_that_is_cancelled_while_it_starts_leaves_its_events_at_the_broker(tmp_path: Path) -> None:
    archive = tmp_path / "archive"

    async def main() -> None:
        async with running(guaranteed_broker(tmp_path)) as url:
            async with recording(Recorder(url, archive)) as recorder:
                await publish(url, 0, 50)
                await until(lambda: recorder.recorded == 50)
            await publish(url, 50, 60)
            cut_short = Recorder(url, archive)
            starting = asyncio.ensure_future(cut_short.start())
            while cut_short._intake is None:  # noqa: ASYNC110 - not a turn later
                await asyncio.sleep(0)
            starting.cancel()  # it has asked, and has no answer yet
            with pytest.raises(asyncio.CancelledError):
                await starting
            await publish(url, 60, 70)
            async with recording(Recorder(url, archive)):
                await until(lambda: len(numbers(archive)) == 70)

    play(main)
    assert numbers(archive) == list(range(70))
    assert gaps(archive) == []


def test_what_was_kept_does_not_come_before_it_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long it takes from the connection to the subscription."""
    archive = tmp_path / "archive"
    open_ = ClientConnection.open

    async def slow_open(self: ClientConnection) -> None:
        await open_(self)
        if self.name.startswith("archive"):
            await asyncio.sleep(0.3)

    monkeypatch.setattr(ClientConnection, "open", slow_open)

    async def main() -> None:
        async with running(guaranteed_broker(tmp_path)) as url:
            async with recording(Recorder(url, archive)):
                pass
            await publish(url, 0, 50)
            async with recording(Recorder(url, archive)):
                await publish(url, 50, 60)
                await until(lambda: len(numbers(archive)) >= 60)

    play(main)
    assert numbers(archive) == list(range(60))
    assert gaps(archive) == []


@pytest.mark.parametrize("failures", [0, 1])
def test_what_is_being_written_when_it_is_cancelled_is_not_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failures: int
) -> None:
    """The next batch must not be written, and acknowledged, without the one before it."""
    archive = tmp_path / "archive"
    gate = Gate(monkeypatch, failures)

    async def main() -> None:
        async with running(guaranteed_broker(tmp_path)) as url:
            recorder = Recorder(url, archive)
            await recorder.start()
            task = asyncio.ensure_future(recorder.run())
            await publish(url, 0, 20)
            await until(gate.reached.is_set)
            await publish(url, 20, 40)
            assert recorder._intake is not None
            await until(lambda: recorder._received == 40)
            task.cancel()
            asyncio.get_running_loop().call_later(0.05, gate.open.set)
            await asyncio.gather(task, return_exceptions=True)
            await recorder.stop()
            async with recording(Recorder(url, archive)):
                await publish(url, 40, 50)
                await until(lambda: len(numbers(archive)) >= 50)

    play(main)
    assert numbers(archive) == list(range(50))
    assert gaps(archive) == []


def test_stopping_ends_however_much_comes_meanwhile(tmp_path: Path) -> None:
    archive = tmp_path / "archive"

    async def main() -> None:
        async with running(guaranteed_broker(tmp_path)) as url:
            recorder = Recorder(url, archive)
            await recorder.start()
            intake = recorder._intake
            assert intake is not None

            def come() -> None:
                number = recorder.recorded
                intake.push(Event("p", 0, number + 1, "/a", 1, {"number": number}, b""))

            recorder.on_recorded = come
            come()
            await asyncio.wait_for(recorder.stop(), 20)

    play(main)
    assert numbers(archive) == [0]


def test_a_gap_is_noted_between_the_events_that_it_was_between(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = tmp_path / "archive"
    gate = Gate(monkeypatch)

    async def main() -> None:
        async with running(guaranteed_broker(tmp_path)) as url, recording(Recorder(url, archive)) as recorder:
            await publish(url, 0, 5)
            await until(gate.reached.is_set)
            await publish(url, 5, 10)
            await until(lambda: recorder._received == 10)
            assert isinstance(recorder._service, Bus)
            recorder._service.on_fact(EventsGivenUp("archive", "q", 0, 3, 6))
            await publish(url, 10, 15)
            await until(lambda: recorder._received == 15)
            gate.open.set()
            await until(lambda: recorder.recorded == 15)
            recorder._service.on_fact(EventsGivenUp("archive", "q", 0, 8, 8))  # and it is stopped at once

    play(main)
    assert numbers(archive) == list(range(15))
    assert [(gap.offset, gap.missing) for gap in gaps(archive)] == [(10, 4), (15, 1)]
    assert gaps(archive)[0].reason == "q~0 3 to 6 could not be kept by the network"


def test_what_the_network_could_not_keep_is_acknowledged_when_it_is_noted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a recorder that is killed in between would have lost it without a word."""
    archive = tmp_path / "archive"
    gate = Gate(monkeypatch)
    noted: list[list[int | None]] = []

    class Watched:
        def grant(self) -> None:
            pass

        def done(self) -> None:
            noted.append([gap.missing for gap in gaps(archive)])

    async def main() -> None:
        async with running(guaranteed_broker(tmp_path)) as url, recording(Recorder(url, archive)) as recorder:
            await publish(url, 0, 5)
            await until(gate.reached.is_set)
            assert isinstance(recorder._service, Bus)
            recorder._service.on_fact(EventsGivenUp("archive", "q", 0, 3, 6, ticket=Watched()))
            await publish(url, 5, 10)
            await until(lambda: recorder._received == 10)
            assert noted == []
            gate.open.set()
            await until(lambda: recorder.recorded == 10)
            assert noted == [[4]]

    play(main)
    assert numbers(archive) == list(range(10))


@pytest.mark.parametrize("changed", [{"name": "another"}, {"where": "number > 0"}])
def test_for_another_name_or_selection_nothing_was_kept(tmp_path: Path, changed: dict[str, str]) -> None:
    archive = tmp_path / "archive"

    async def main() -> None:
        async with running(guaranteed_broker(tmp_path)) as url:
            async with recording(Recorder(url, archive)) as recorder:
                await publish(url, 0, 5)
                await until(lambda: recorder.recorded == 5)
            async with recording(Recorder(url, archive, **changed)):  # type: ignore[arg-type]
                pass
            async with recording(Recorder(url, archive, **changed)):  # type: ignore[arg-type]
                pass

    play(main)
    (gap,) = gaps(archive)
    assert (gap.offset, gap.reason) == (5, "the earlier recorder had another name or recorded other events")


def test_one_that_is_stopped_while_the_broker_is_away_goes_on_later(tmp_path: Path) -> None:
    archive = tmp_path / "archive"

    async def main() -> None:
        server = guaranteed_broker(tmp_path)
        async with running(server) as url:
            async with recording(Recorder(url, archive)) as recorder:
                await publish(url, 0, 20)
                await until(lambda: recorder.recorded == 20)
                await server.stop()
        async with running(guaranteed_broker(tmp_path, server.address.port)) as url:
            await publish(url, 20, 30)
            async with recording(Recorder(url, archive)) as recorder:
                await until(lambda: recorder.recorded == 10)

    play(main)
    assert numbers(archive) == list(range(30))
    assert gaps(archive) == []


@pytest.mark.parametrize("stays", [False, True])
def test_a_broker_that_lost_its_disk_has_kept_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stays: bool
) -> None:
    archive = tmp_path / "archive"
    monkeypatch.setattr(recorder_module, "MAINTAIN_S", 0.1)

    async def main() -> None:
        server = guaranteed_broker(tmp_path / "first")
        async with running(server) as url:
            first = Recorder(url, archive)
            async with recording(first):
                await publish(url, 0, 5)
                await until(lambda: first.recorded == 5)
                if stays:
                    await server.stop()
                    async with running(guaranteed_broker(tmp_path / "second", server.address.port)):
                        await until(lambda: len(gaps(archive)) == 1)
        if not stays:
            async with running(guaranteed_broker(tmp_path / "second", server.address.port)) as url:
                await publish(url, 5, 10)
                async with recording(Recorder(url, archive)) as recorder:
                    await publish(url, 10, 15)
                    await until(lambda: recorder.recorded == 5)

    play(main)
    (gap,) = gaps(archive)
    assert (gap.offset, gap.reason) == (5, "the broker lost what it kept")


def test_one_whose_name_another_takes_ends(tmp_path: Path) -> None:
    async def main() -> None:
        async with running(guaranteed_broker(tmp_path)) as url:
            first = Recorder(url, tmp_path / "first", name="r")
            await first.start()
            running_first = asyncio.ensure_future(first.run())
            async with recording(Recorder(url, tmp_path / "second", name="r")):
                with pytest.raises(ConnectionFailed, match="name"):
                    await asyncio.wait_for(running_first, 20)
            await first.stop()

    play(main)
    Archive.open(tmp_path / "first").close()


def test_a_start_that_fails_or_is_cancelled_gives_the_archive_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = tmp_path / "archive"
    reached, go_on = threading.Event(), threading.Event()
    marks = Archive.marks

    def slow_marks(self: Archive) -> dict[str, int]:
        reached.set()
        assert go_on.wait(30)
        return marks(self)

    async def main() -> None:
        with pytest.raises(ConnectionFailed):
            await Recorder("tidings://127.0.0.1:1", archive).start()
        Archive.open(archive).close()
        monkeypatch.setattr(Archive, "marks", slow_marks)
        starting = asyncio.ensure_future(Recorder("tidings://127.0.0.1:1", archive).start())
        await until(reached.is_set)
        starting.cancel()
        asyncio.get_running_loop().call_later(0.05, go_on.set)
        with pytest.raises(asyncio.CancelledError):
            await starting
        Archive.open(archive).close()

    play(main)


def test_a_connection_that_breaks_is_a_gap_with_an_order_too(tmp_path: Path) -> None:
    archive = tmp_path / "archive"

    async def main() -> None:
        sequencer = SequencerHost("s", Address(port=0), single("s"), {})
        await sequencer.start()
        server = BrokerServer("b0", Address(port=0), sequencers=[sequencer.address])
        await server.start()
        async with recording(Recorder(url(server.address), archive, "/a", order="total")) as recorder:
            assert recorder.recorded == 0
            await server.stop()
            await until(lambda: len(gaps(archive)) == 1)
        await sequencer.stop()

    play(main)
    (gap,) = gaps(archive)
    assert gap.offset == 0 and gap.reason.startswith("the connection was lost")


def test_gaps_that_cannot_be_written_are_bounded() -> None:
    pending = PendingGaps()
    for number in range(MAX_PENDING + 10):
        pending.add(f"gap {number}", 1, after=number)
    assert len(pending) == MAX_PENDING
    assert pending.next_position(0) == 1
    assert len(pending.take(0)) == 1
    pending.make_all_due()
    assert sum(gap.missing or 0 for gap in pending.take(0)) == MAX_PENDING + 9


def test_a_gap_of_an_order_is_noted_in_its_words(tmp_path: Path) -> None:
    """Also where nobody knows of which source events are missing."""
    recorder = Recorder("tidings://127.0.0.1:1", tmp_path, "/a", order="total")
    noted: list[str] = []
    recorder._on_miss(Gap("the client moved", 1, 7), True, lambda: noted.append("a"))
    recorder._on_miss(Gap("kept", 1, 2, (EventsMissed("p", 3, 4, 5),)), True, lambda: noted.append("b"))
    gaps = recorder._gaps.take(0)
    assert [(gap.reason, gap.missing) for gap in gaps] == [("the client moved", 7), ("kept (p~3 4 to 5)", 2)]
    for gap in gaps:
        gap.noted()
    assert noted == ["a", "b"]
