"""Subscriptions that start in the past, over sockets, with the archive of a real broker."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import tidings
from archived_broker import archived
from recording_network import guaranteed_broker, play, running
from tidings.bus.history import LOW_EVENTS, HistoryStream
from tidings.core.errors import ArchiveAhead, ArchiveTrimmed, ConnectionFailed, SubscriptionRefused
from tidings.core.events.event import Event
from tidings.drivers.address import Address
from tidings.drivers.sockets.broker import BrokerServer
from tidings.storage.archive import Archive, ArchiveSettings

pytestmark = pytest.mark.timeout(100)


def many(count: int, first: int = 0, topic: str = "/t") -> list[tuple[str, dict[str, Any], bytes]]:
    return [(topic, {"n": number}, b"x") for number in range(first, first + count)]


async def take(stream: tidings.Stream, count: int) -> list[Any]:
    return [(await stream.get(20)).attributes["n"] for _ in range(count)]


async def publish_slowly(bus: tidings.EventService, numbers: range, topic: str = "/t") -> None:
    for number in numbers:
        await bus.publish(topic, {"n": number}, wait=False)
        if number % 20 == 0:
            await asyncio.sleep(0.001)
    await bus.publish(topic + "/end")


async def nothing_more(stream: tidings.Stream) -> None:
    with pytest.raises(TimeoutError):
        await stream.get(0.2)


def test_history_then_live_without_a_gap_or_a_repetition(tmp_path: Path) -> None:
    async def main() -> None:
        async with archived(tmp_path) as url, tidings.connect(url) as bus, tidings.connect(url) as other:
            await bus.publish_many(many(3_000))
            publishing = asyncio.create_task(publish_slowly(bus, range(3_000, 6_000)))
            also = asyncio.create_task(publish_slowly(other, range(3_000), "/u"))
            for start in ("earliest", 0, 1_234):
                async with tidings.connect(url) as reader:
                    async with reader.subscribe("/t", "/u", start=start, order="fifo") as stream:  # type: ignore[arg-type]
                        assert isinstance(stream, HistoryStream)
                        seen: dict[str, list[Any]] = {"/t": [], "/u": []}
                        begin = start if isinstance(start, int) else 0
                        while [numbers[-1:] for numbers in seen.values()] != [[5_999], [2_999]]:
                            event = await stream.get(20)
                            seen[event.topic].append(event.attributes["n"])
                        assert stream.history_gaps == []
                    assert seen["/t"] == list(range(begin, 6_000))
                    assert seen["/u"] == list(range(3_000))
            await asyncio.gather(publishing, also)

    play(main)


def test_many_subscriptions_begin_while_events_flow(tmp_path: Path) -> None:
    async def read(url: str, start: Any, results: list[list[Any]]) -> None:
        async with tidings.connect(url) as bus, bus.subscribe("/t", start=start) as stream:
            numbers: list[Any] = []
            while numbers[-1:] != [3_999]:
                numbers.append((await stream.get(20)).attributes["n"])
            results.append(numbers)

    async def main() -> None:
        async with archived(tmp_path) as url, tidings.connect(url) as bus:
            results: list[list[Any]] = []
            publishing = asyncio.create_task(publish_slowly(bus, range(4_000)))
            readers = []
            for _ in range(12):
                readers.append(asyncio.create_task(read(url, "earliest", results)))
                await asyncio.sleep(0.01)
            await asyncio.gather(publishing, *readers)
            assert results == [list(range(4_000))] * 12

    play(main)


def test_an_archive_that_lags_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    append = Archive.append

    def slowly(self: Archive, *arguments: Any, **options: Any) -> int:
        time.sleep(0.3)
        return append(self, *arguments, **options)

    async def main() -> None:
        async with archived(tmp_path) as url, tidings.connect(url) as bus:
            monkeypatch.setattr(Archive, "append", slowly)
            publishing = asyncio.create_task(bus.publish_many(many(4_000)))
            await asyncio.sleep(0.1)
            async with tidings.connect(url) as other, other.subscribe("/t", start="earliest") as stream:
                assert await take(stream, 4_000) == list(range(4_000))
                await nothing_more(stream)
            await publishing

    play(main)


def test_an_archive_that_is_stuck_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    append = Archive.append
    stuck = True

    def waits(self: Archive, *arguments: Any, **options: Any) -> int:
        while stuck:
            time.sleep(0.01)
        return append(self, *arguments, **options)

    async def main() -> None:
        nonlocal stuck
        monkeypatch.setattr("tidings.bus.history_reader.SETTLE_TIMEOUT_S", 0.5)
        async with archived(tmp_path) as url, tidings.connect(url) as bus:
            monkeypatch.setattr(Archive, "append", waits)
            await bus.publish("/t", {"n": 1}, wait=False)
            await asyncio.sleep(0.1)
            with pytest.raises(SubscriptionRefused, match="did not catch up within"):
                async with bus.subscribe("/t", start="earliest"):
                    pass
            stuck = False
            async with bus.subscribe("/t", start="earliest") as stream:
                assert await take(stream, 1) == [1]

    play(main)


def test_a_filter_selects_from_both(tmp_path: Path) -> None:
    async def main() -> None:
        async with archived(tmp_path) as url, tidings.connect(url) as bus:
            await bus.publish_many([*many(50), *many(50, topic="/u")])
            async with bus.subscribe(
                "/t", where="n IN (3, 49, 50, 51) AND topic = '/t'", start="earliest"
            ) as stream:
                await bus.publish_many([*many(50, 50), *many(50, 50, topic="/u")])
                assert await take(stream, 4) == [3, 49, 50, 51]
                await nothing_more(stream)

    play(main)


def test_it_starts_at_a_time(tmp_path: Path) -> None:
    async def main() -> None:
        async with archived(tmp_path) as url, tidings.connect(url) as bus:
            before = datetime.now(UTC) - timedelta(hours=2)
            async with bus.subscribe("/t", start=before) as empty:  # nothing was kept, so nothing is missing
                await bus.publish_many(many(10))
                assert await take(empty, 10) == list(range(10))
            await asyncio.sleep(0.01)
            middle = datetime.now(UTC)
            await bus.publish_many(many(10, 10))
            async with bus.subscribe("/t", start=middle) as stream:
                assert await take(stream, 10) == list(range(10, 20))
                await bus.publish_many(many(1, 20))
                assert await take(stream, 1) == [20]
            async with bus.subscribe("/t", start=datetime.now(UTC) + timedelta(days=1)) as later:
                await bus.publish_many(many(1, 21))
                assert await take(later, 1) == [21]
            async with bus.subscribe("/t", start=before) as everything:  # nothing was dropped
                assert await take(everything, 22) == list(range(22))

    play(main)


def test_a_start_before_the_oldest_kept_event_is_refused(tmp_path: Path) -> None:
    with Archive.open(tmp_path / "archive", ArchiveSettings(segment_rows=100, retain_bytes=1)) as archive:
        for first in range(0, 400, 50):
            events = [Event("p", 0, n + 1, "/t", n, {"n": n}, b"") for n in range(first, first + 50)]
            archive.append(events, 1_000)
        archive.append([Event("p", 0, 401, "/t", 10**18, {"n": 400}, b"")], 1_000)
        archive.maintain()
        assert archive.bounds() == (400, 401)

    async def main() -> None:
        async with archived(tmp_path) as url, tidings.connect(url) as bus:
            with pytest.raises(
                ArchiveTrimmed, match=r"offset 17 is no longer in the archive; .* offset 400, published"
            ):
                async with bus.subscribe("/t", start=17):
                    pass
            with pytest.raises(
                ArchiveTrimmed, match=r"does not reach back to 1990-01-01T00:00:00.* offset 400"
            ):
                async with bus.subscribe("/t", start=datetime(1990, 1, 1, tzinfo=UTC)):
                    pass
            with pytest.raises(ArchiveAhead, match="offset 402 does not exist yet; the archive ends at 401"):
                async with bus.subscribe("/t", start=402):
                    pass
            async with bus.subscribe("/t", start="earliest") as stream:
                assert isinstance(stream, HistoryStream)
                assert await take(stream, 1) == [400]
                # The archive was there before its recorder: it says so, and so do we.
                assert [gap.reason for gap in stream.history_gaps] == ["no recorder before, or another one"]
            async with bus.subscribe("/t", start=401) as stream:
                await bus.publish_many(many(1, 500))
                assert await take(stream, 1) == [500]

    play(main)


def test_gaps_of_the_archive_are_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    long_ago, third = datetime(1970, 1, 1, tzinfo=UTC), datetime(1970, 1, 1, microsecond=5, tzinfo=UTC)
    with Archive.open(tmp_path / "archive") as archive:
        archive.append([Event("p", 0, n, "/t", n, {"n": n}, b"") for n in (1, 2)], 1_000)
        archive.note_gap("the disk was full", 3)
        archive.append([Event("p", 0, n, "/t", n * 1_000, {"n": n}, b"") for n in (6, 7)], 1_000)

    async def main() -> None:
        async with archived(tmp_path) as url, tidings.connect(url) as bus:
            by_offset = (("earliest", [2, 4]), (1, [2, 4]), (2, [4]), (4, []))
            by_time = (
                (long_ago, [2, 4]),
                (third, [2, 4]),
            )  # what is missing before the first one may be as new
            for start, offsets in (*by_offset, *by_time):
                async with bus.subscribe("/t", start=start) as stream:  # type: ignore[arg-type]
                    assert isinstance(stream, HistoryStream)
                    assert [gap.offset for gap in stream.history_gaps] == offsets
            assert "the archive may miss 3 events before offset 2: the disk was full" in caplog.text

    play(main)


def test_an_archive_of_less_is_refused(tmp_path: Path) -> None:
    async def main() -> None:
        async with archived(tmp_path, "/a/**", "/b") as url, tidings.connect(url) as bus:
            with pytest.raises(
                SubscriptionRefused, match=r"the archive of b0 has only /a/\*\*, /b: subscribe to no more"
            ):
                async with bus.subscribe("/**", start="earliest"):
                    pass
            await bus.publish_many([*many(3, topic="/a/x"), *many(3, topic="/c")])
            async with bus.subscribe("/a/*", "/b", where="n > 0", start="earliest") as stream:
                assert await take(stream, 2) == [1, 2]
                await nothing_more(stream)

    play(main)


def test_an_equal_subscription_that_is_older_than_the_archive(tmp_path: Path) -> None:
    """Its record is another than the archive's. Ours must use the archive's: what is on its way for one need not be for
    the other."""

    async def main() -> None:
        async with running(guaranteed_broker(tmp_path / "data")) as url:
            async with tidings.connect(url, name="old") as old:
                old.keeps_subscriptions = True
                await old.subscribe("/t").__aenter__()
        async with archived(tmp_path) as url, tidings.connect(url) as bus:
            await bus.publish_many(many(5))
            async with bus.subscribe("/t", start="earliest") as stream:
                await bus.publish_many(many(5, 5))
                assert await take(stream, 10) == list(range(10))

    play(main)


def test_a_named_client_that_comes_back_starts_again(tmp_path: Path) -> None:
    async def main() -> None:
        async with archived(tmp_path) as url, tidings.connect(url) as bus:
            for round_ in range(2):
                async with tidings.connect(url, name="reader") as reader:
                    reader.keeps_subscriptions = True  # as after kill -9: what waits for it stays
                    stream = await reader.subscribe("/t", start="earliest").__aenter__()
                    await bus.publish_many(many(10, round_ * 10))
                    assert await take(stream, round_ * 10 + 10) == list(range(round_ * 10 + 10))

    play(main)


def test_a_slow_reader_costs_little_memory(tmp_path: Path) -> None:
    async def main() -> None:
        async with archived(tmp_path) as url, tidings.connect(url) as bus:
            await bus.publish_many(many(30_000))
            async with tidings.connect(url) as other, other.subscribe("/t", start="earliest") as stream:
                publishing = asyncio.create_task(bus.publish_many(many(5_000, 30_000)))
                most, numbers = 0, []
                while len(numbers) < 35_000:
                    numbers.append((await stream.get(20)).attributes["n"])
                    most = max(most, len(stream))
                    if len(numbers) % 10_000 == 0:
                        await asyncio.sleep(0.1)
                assert numbers == list(range(35_000))
                assert most < 16_384 + LOW_EVENTS
                await publishing

    play(main)


def test_batches_and_iteration_cross_the_seam(tmp_path: Path) -> None:
    async def main() -> None:
        async with archived(tmp_path) as url, tidings.connect(url) as bus:
            await bus.publish_many(many(2_500))
            async with tidings.connect(url) as other, other.subscribe("/t", start="earliest") as stream:
                publishing = asyncio.create_task(publish_slowly(bus, range(2_500, 5_000)))
                numbers: list[Any] = []
                async for batch in stream.batches(max_events=700, max_wait_s=0.01):
                    numbers += [event.attributes["n"] for event in batch]
                    if numbers[-1] == 4_999:
                        break
                assert numbers == list(range(5_000))
                await publishing

    play(main)


def test_a_stream_changes_once_it_is_live(tmp_path: Path) -> None:
    async def main() -> None:
        async with archived(tmp_path) as url, tidings.connect(url) as bus:
            await bus.publish_many(many(10_000))
            async with bus.subscribe("/t", start="earliest") as stream:
                with pytest.raises(ValueError, match="once its history has been read"):
                    await stream.add("/u")
                await take(stream, 10_000)
                await nothing_more(stream)
                await stream.add("/u")
                await bus.publish_many([*many(1, 1, "/u"), *many(1, 2)])
                assert await take(stream, 2) == [1, 2]

    play(main)


def test_closing_in_the_middle_ends_it(tmp_path: Path) -> None:
    async def main() -> None:
        async with archived(tmp_path) as url:
            async with tidings.connect(url) as bus:
                await bus.publish_many(many(20_000))
                async with bus.subscribe("/t", start="earliest") as stream:
                    assert await take(stream, 10) == list(range(10))
                left = bus.subscribe("/t", start="earliest")
                assert isinstance(left, HistoryStream)
                await left.__aenter__()
                with pytest.raises(ValueError, match="only once"):
                    await left.__aenter__()
            await asyncio.sleep(0)
            left._history.clear()
            with pytest.raises(ConnectionFailed):
                await left.get(5)

    play(main)


# --- The newest event of each topic


def test_the_newest_of_each_topic_then_live(tmp_path: Path) -> None:
    async def main() -> None:
        async with archived(tmp_path) as url, tidings.connect(url) as bus:
            events = [(f"/s/{n % 2_000}", {"n": n}, b"") for n in range(10_000)]
            await bus.publish_many(events)
            publishing = asyncio.create_task(publish_slowly(bus, range(10_000, 11_000), "/s/7"))
            async with tidings.connect(url) as other, other.subscribe("/s/*", start="last") as stream:
                seen: dict[str, list[Any]] = {}
                while seen.get("/s/7", [])[-1:] != [10_999] or len(seen) < 2_000:
                    event = await stream.get(20)
                    seen.setdefault(event.topic, []).append(event.attributes["n"])
                live = seen.pop("/s/7")
                assert live == list(range(live[0], 11_000))
                assert seen == {f"/s/{n}": [8_000 + n] for n in range(2_000) if n != 7}
            await publishing
            async with bus.subscribe("/s/3", "/s/4", where="n < 5000", start="last") as stream:
                assert await take(stream, 2) == [4_003, 4_004]
                await bus.publish("/s/3", {"n": 1})
                assert await take(stream, 1) == [1]

    play(main)


# --- Refusals


def test_where_there_is_no_archive(tmp_path: Path) -> None:
    async def refused(bus: tidings.EventService, why: str) -> None:
        with pytest.raises(SubscriptionRefused, match=why):
            async with bus.subscribe("/t", start="earliest"):
                pass

    async def main() -> None:
        needs = "start='earliest' needs the archive of a guaranteed broker: tidings broker --mode guaranteed --archive"
        async with running(guaranteed_broker(tmp_path / "data")) as url, tidings.connect(url) as bus:
            with pytest.raises(
                tidings.ArchiveError, match="this broker keeps no archive; start it with --archive DIR"
            ):
                async with bus.subscribe("/t", start="earliest"):
                    pass
        async with running(BrokerServer("b0", Address(port=0))) as url, tidings.connect(url) as bus:
            await refused(bus, needs)
        for mode in ("guaranteed", "best-effort", "epidemic"):
            async with tidings.embedded(brokers=2, mode=mode) as bus:  # type: ignore[arg-type]
                await refused(bus, needs)

    play(main)


@asynccontextmanager
async def embedded() -> AsyncIterator[tidings.EventService]:
    async with tidings.embedded(brokers=1, mode="guaranteed") as bus:
        yield bus


def test_starts_that_are_none() -> None:
    async def main() -> None:
        async with embedded() as bus:
            for start, why in (
                (
                    "erliest",
                    "start must be 'new', 'earliest', 'last', an offset or a datetime, not 'erliest'",
                ),
                (True, "not True"),
                (1.5, "not 1.5"),
                (None, "not None"),
                (-1, "offset -1 is not one of an archive: they start at 0"),
                (datetime(2026, 1, 1), "a datetime needs a time zone"),  # noqa: DTZ001 - that is the point
            ):
                with pytest.raises(ValueError, match=why):
                    bus.subscribe("/t", start=start)  # type: ignore[arg-type]
            for options in (
                {"start": "earliest"},
                {"order": "total"},
                {"start": "earliest", "order": "fifo"},
            ):
                with pytest.raises(
                    ValueError, match="archive= is for subscriptions with start= and order 'total'"
                ):
                    bus.subscribe("/t", archive="tidings://127.0.0.1:1", **options)  # type: ignore[arg-type]
            with pytest.raises(
                ValueError, match="not available for durable subscriptions with order 'total'"
            ):
                bus.subscribe("/t", start="earliest", durable="d", order="total")
            bus.subscribe("/t", start="new", order="total")

    play(main)


def test_an_archive_does_not_answer_requests(tmp_path: Path) -> None:
    """Its recorder gets them, but `NoResponder` comes at once, also after a restart."""

    async def main() -> None:
        for _ in range(2):
            async with archived(tmp_path) as url, tidings.connect(url) as bus:
                with pytest.raises(tidings.NoResponder):
                    await bus.request("/price", timeout=60)
                async with bus.serve("/price", lambda event: b"12"):
                    assert (await bus.request("/price", timeout=60)).payload == b"12"
                async with bus.subscribe("/price", start="earliest") as stream:
                    assert (await stream.get(10)).topic == "/price"

    asyncio.run(asyncio.wait_for(main(), 120))
