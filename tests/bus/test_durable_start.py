"""Durable subscriptions and groups that begin in the past, over sockets, with the archive of a real broker."""

from __future__ import annotations

import asyncio
import logging
import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import tidings
from archived_broker import archived
from recording_network import guaranteed_broker, play, running
from tidings.core.errors import StoreError, SubscriptionRefused
from tidings.core.events.event import Event
from tidings.core.overlay.guaranteed.attachments import Attachments
from tidings.core.overlay.guaranteed.share_history import HISTORY, LOW_EVENTS, ShareHistories
from tidings.storage.archive import Archive, ArchiveSettings

pytestmark = pytest.mark.timeout(100)


def many(count: int, first: int = 0, topic: str = "/t") -> list[tuple[str, dict[str, Any], bytes]]:
    return [(topic, {"n": number, "odd": number % 2}, b"x") for number in range(first, first + count)]


async def take(stream: tidings.Stream, count: int) -> list[Any]:
    return [(await stream.get(20)).attributes["n"] for _ in range(count)]


async def nothing_more(stream: tidings.Stream) -> None:
    with pytest.raises(TimeoutError):
        await stream.get(0.2)


async def archived_all(bus: tidings.EventService) -> None:
    """Wait until the archive has what was published."""
    async with bus.subscribe("/t", start="earliest"):
        pass


async def status(bus: tidings.EventService, name: str) -> dict[str, Any]:
    return next(row for row in await bus.durable_subscriptions() if row["name"] == name)


def publish(bus: tidings.EventService, name: str) -> asyncio.Task[int]:
    return asyncio.create_task(bus.publish_many(many(2_000, 3_000, f"/{name}")))


def test_history_then_live_without_a_gap_or_a_repetition(tmp_path: Path) -> None:
    async def main() -> None:
        async with archived(tmp_path) as url, tidings.connect(url) as bus, tidings.connect(url) as reader:
            await bus.publish_many(many(3_000))
            await archived_all(bus)
            for name, start, first in (("a", "earliest", 0), ("b", 1_234, 1_234), ("c", "last", 2_999)):
                publishing = None if name == "c" else publish(bus, name)
                topics = ("/t", f"/{name}")
                async with reader.subscribe(*topics, start=start, durable=name, order="fifo") as stream:  # type: ignore[arg-type]
                    publishing = publishing or publish(bus, name)
                    assert await take(stream, 5_000 - first) == list(range(first, 5_000))
                    await nothing_more(stream)
                await publishing
                assert (await status(bus, name)).get("waits_for", "") == ""

    play(main)


def test_members_of_a_group_share_history_and_live_events(tmp_path: Path) -> None:
    async def work(url: str, seen: list[Any]) -> None:
        async with tidings.connect(url) as bus:
            async with bus.subscribe("/t", where="odd = 0", start="earliest", group="g") as stream:
                async for event in stream:
                    seen.append(event.attributes["n"])

    async def main() -> None:
        async with archived(tmp_path) as url, tidings.connect(url) as bus:
            await bus.publish_many(many(4_000))
            seen: list[list[Any]] = [[], [], []]
            working = [asyncio.create_task(work(url, each)) for each in seen]
            await bus.publish_many(many(4_000, 4_000))
            while sum(map(len, seen)) < 4_000:  # noqa: ASYNC110 - a test
                await asyncio.sleep(0.01)
            for task in working:
                task.cancel()
            await asyncio.gather(*working, return_exceptions=True)
            assert sorted(number for each in seen for number in each) == list(range(0, 8_000, 2))
            assert all(seen)

    play(main)


def test_whoever_attaches_later_goes_on_whatever_start_says(tmp_path: Path) -> None:
    async def main() -> None:
        async with archived(tmp_path) as url, tidings.connect(url) as bus:
            await bus.publish_many(many(10))
            await archived_all(bus)
            async with bus.subscribe("/t", durable="d", start=5) as stream:
                assert await take(stream, 3) == [5, 6, 7]
            for start in ("earliest", 0, "new", 10**9, datetime(1990, 1, 1, tzinfo=UTC)):
                async with bus.subscribe("/t", durable="d", start=start) as stream:  # type: ignore[arg-type]
                    assert len(await take(stream, 1)) == 1
                    await bus.publish_many(many(1, 100))
            async with bus.subscribe("/t", durable="d") as stream:
                assert await take(stream, 2) == [100, 100]
            await bus.cancel_durable("d")
            async with bus.subscribe("/t", durable="d", start=9) as stream:
                assert await take(stream, 1) == [9]

    play(main)


def test_historical_events_are_acknowledged_and_given_back_like_others(tmp_path: Path) -> None:
    async def main() -> None:
        async with archived(tmp_path) as url, tidings.connect(url) as bus:
            await bus.publish_many(many(50))
            options: dict[str, Any] = {"start": "earliest", "ack": "manual", "max_unacked": 4}
            async with bus.subscribe("/t", durable="d", order="fifo", **options) as stream:
                first = await stream.get(5)
                await first.nack()
                again = await stream.get(5)
                assert (again.id, again.attempt, again.redelivered) == (first.id, 2, True)
                await again.ack()
                assert await take(stream, 4) == [1, 2, 3, 4]
                with pytest.raises(TimeoutError):
                    await stream.get(0.1)
            async with bus.subscribe("/t", durable="d", order="fifo", ack="manual") as stream:
                event = await stream.get(5)
                assert (event.attributes["n"], event.redelivered) == (1, True)
            async with bus.subscribe("/dead") as letters:
                dead: dict[str, Any] = {"max_deliveries": 1, "dead_letter": "/dead"}
                async with bus.subscribe("/t", durable="e", start="earliest", ack="manual", **dead) as stream:
                    await (await stream.get(5)).nack()
                    assert await take(stream, 49) == list(range(1, 50))
                    await nothing_more(stream)
                    assert (await letters.get(5)).attributes["dead_deliveries"] == 1

    play(main)


def test_a_long_history_waits_in_the_archive(tmp_path: Path) -> None:
    count = 5 * LOW_EVENTS

    async def main() -> None:
        async with archived(tmp_path) as url, tidings.connect(url) as bus:
            await bus.publish_many(many(count))
            async with bus.subscribe("/t", durable="d", start="earliest", max_unacked=10) as stream:
                assert await take(stream, 1) == [0]
            while (row := await status(bus, "d"))["waiting"] < LOW_EVENTS:  # noqa: ASYNC110 - a test
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.2)
            assert row["waiting"] == (await status(bus, "d"))["waiting"] < 2 * LOW_EVENTS
            assert str(row["waits_for"]).startswith("its history from offset ")
            async with bus.subscribe("/t", durable="d") as stream:
                assert await take(stream, count - 1) == list(range(1, count))
                await bus.publish_many(many(3, count))
                assert await take(stream, 3) == [count, count + 1, count + 2]
                await nothing_more(stream)

    play(main)


@pytest.mark.parametrize("low", [1, 100, LOW_EVENTS])
def test_the_broker_restarts_at_any_moment(tmp_path: Path, low: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ShareHistories, "low_events", low)
    monkeypatch.setattr(ShareHistories, "near_events", low)

    async def main() -> None:
        numbers: list[Any] = []
        for life in range(6):
            async with archived(tmp_path, incarnation=life + 1) as url:
                async with tidings.connect(url, name=f"p{life}") as bus:
                    await bus.publish_many(many(1_000, 1_000 * life))
                    async with bus.subscribe("/t", durable="d", start="earliest", order="fifo") as stream:
                        numbers += await take(stream, 300 if life < 5 else 6_000 - len(numbers))
                        if life == 5:
                            await nothing_more(stream)
        assert numbers == list(range(6_000))

    play(main)


def test_it_starts_at_a_time(tmp_path: Path) -> None:
    async def main() -> None:
        async with archived(tmp_path) as url, tidings.connect(url) as bus:
            await bus.publish_many(many(3))
            await asyncio.sleep(0.05)
            middle = datetime.now(UTC)
            await bus.publish_many(many(3, 10))
            async with bus.subscribe("/t", durable="d", start=middle) as stream:
                assert await take(stream, 3) == [10, 11, 12]
            async with bus.subscribe("/t", durable="e", start=middle + timedelta(days=1)) as stream:
                await bus.publish_many(many(1, 20))
                assert await take(stream, 1) == [20]

    play(main)


def test_starts_that_cannot_be(tmp_path: Path) -> None:
    with Archive.open(tmp_path / "archive", ArchiveSettings(segment_rows=100, retain_bytes=1)) as archive:
        for first in range(0, 400, 50):
            events = [Event("p", 0, n + 1, "/t", n, {"n": n}, b"") for n in range(first, first + 50)]
            archive.append(events, 1_000)
        archive.append([Event("p", 0, 401, "/t", 10**18, {"n": 400}, b"")], 1_000)
        archive.maintain()
        assert archive.bounds() == (400, 401)

    async def main() -> None:
        async with archived(tmp_path, "/t") as url, tidings.connect(url) as bus:
            for topic, start, why in (
                ("/t", 17, r"offset 17 is no longer in the archive; .* offset 400, published"),
                ("/t", datetime(1990, 1, 1, tzinfo=UTC), r"does not reach back to 1990-01-01T00:00.* 400"),
                ("/t", 402, "offset 402 does not exist yet; the archive ends at 401"),
                ("/**", "earliest", "the archive of b0 has only /t: subscribe to no more"),
            ):
                for kind in ("durable", "group"):
                    with pytest.raises(SubscriptionRefused, match=why) as raised:
                        async with bus.subscribe(topic, start=start, **{kind: "x"}):  # type: ignore[arg-type]
                            pass
                    assert "\n" not in str(raised.value)
            assert await bus.durable_subscriptions() == []
            async with bus.subscribe("/t", start="earliest", durable="x") as stream:
                assert await take(stream, 1) == [400]

    play(main)


def test_gaps_of_the_archive_are_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with Archive.open(tmp_path / "archive") as archive:
        archive.append([Event("p", 0, n, "/t", n, {"n": n}, b"") for n in (1, 2)], 1_000)
        archive.note_gap("the disk was full", 3)
        archive.append([Event("p", 0, n, "/t", n, {"n": n}, b"") for n in (6, 7)], 1_000)

    async def main() -> None:
        async with archived(tmp_path) as url, tidings.connect(url) as bus:
            for name, start, missed in (("a", "earliest", 3), ("b", 1, 3), ("c", 2, 0)):
                async with bus.subscribe("/t", durable=name, start=start) as stream:  # type: ignore[arg-type]
                    await take(stream, 4 - (start if isinstance(start, int) else 0))
                    await nothing_more(stream)
                assert (await status(bus, name))["missed"] == missed
            told = "its archive may miss 3 events before offset 2: the disk was full"
            assert caplog.text.count(told) == 2

    play(main)


def test_what_retention_removes_unread_is_one_gap(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(ShareHistories, "low_events", 1)
    monkeypatch.setattr("tidings.drivers.sockets.broker_history.READ_EVENTS", 10)
    caplog.set_level(logging.INFO)

    async def main() -> None:
        async with archived(tmp_path) as url, tidings.connect(url) as bus:
            await bus.publish_many(many(500))
            async with bus.subscribe("/t", durable="d", start="earliest", max_unacked=1) as stream:
                assert await take(stream, 1) == [0]
        settings = ArchiveSettings(segment_rows=100, retain_bytes=1)
        with Archive.open(tmp_path / "archive", settings) as archive:
            archive.maintain()
            first, end = archive.bounds()
            assert 10 < first <= end
        async with archived(tmp_path, incarnation=2) as url, tidings.connect(url) as bus:
            await bus.publish_many(many(10, 500))
            async with bus.subscribe("/t", durable="d") as stream:
                numbers = await take(stream, 10 + 10 + 500 - first - 1 if first < 500 else 10 - 1 + 10)
                await nothing_more(stream)
            expected = [*range(1, 10), *range(first, 510)]
            assert numbers[-10:] == list(range(500, 510)) and len(numbers) == len(set(numbers))
            assert numbers == expected[-len(numbers) :]
            assert (await status(bus, "d"))["missed"] == first - 10
            assert f"offsets 10 to {first - 1} left its archive before they were read" in caplog.text

    play(main)


def test_an_archive_that_was_replaced_is_a_gap(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    monkeypatch.setattr(ShareHistories, "low_events", 1)
    monkeypatch.setattr(ShareHistories, "near_events", 1)
    monkeypatch.setattr("tidings.drivers.sockets.broker_history.READ_EVENTS", 10)

    async def main() -> None:
        async with archived(tmp_path) as url, tidings.connect(url) as bus:
            await bus.publish_many(many(500))
            async with bus.subscribe("/t", durable="d", start="earliest", max_unacked=1) as stream:
                assert await take(stream, 1) == [0]
        shutil.rmtree(tmp_path / "archive")
        async with archived(tmp_path, incarnation=2) as url, tidings.connect(url) as bus:
            await bus.publish_many(many(10, 500))
            async with bus.subscribe("/t", durable="d") as stream:
                numbers = await take(stream, 19)
                await nothing_more(stream)
            assert numbers == [*range(1, 10), *range(500, 510)]
            assert (
                "its archive was replaced by another one: what it had from offset 10 on is missing"
                in caplog.text
            )

    play(main)


def test_a_broker_without_its_archive_lets_the_history_wait(tmp_path: Path, caplog: Any) -> None:
    async def main() -> None:
        async with archived(tmp_path) as url, tidings.connect(url) as bus:
            await bus.publish_many(many(3 * LOW_EVENTS))
            async with bus.subscribe("/t", durable="d", start="earliest", max_unacked=1) as stream:
                assert await take(stream, 1) == [0]
            await asyncio.sleep(0.2)
            kept = (await status(bus, "d"))["waiting"]
        async with (
            running(guaranteed_broker(tmp_path / "data", incarnation=2)) as url,
            tidings.connect(url) as bus,
        ):
            with pytest.raises(
                SubscriptionRefused, match="start='earliest' needs the archive of a guaranteed"
            ):
                async with bus.subscribe("/t", durable="e", start="earliest"):
                    pass
            async with bus.subscribe("/t", durable="d") as stream:
                assert await take(stream, kept) == list(range(1, kept + 1))
                await asyncio.sleep(1.5)
                assert "its history waits: this broker keeps no archive at the moment" in caplog.text
        async with archived(tmp_path, incarnation=3) as url, tidings.connect(url) as bus:
            async with bus.subscribe("/t", durable="d") as stream:
                await bus.publish_many(many(1, 3 * LOW_EVENTS))
                numbers = await take(stream, 3 * LOW_EVENTS - kept)
                assert numbers == list(range(kept + 1, 3 * LOW_EVENTS + 1))

    play(main)


def test_a_disk_that_is_full_when_the_history_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """The share cannot subscribe at first. It does not end for that, and tries again."""
    real, failed = Attachments._add, []

    def add(self: Attachments, client: str, message: Any, interest: Any) -> Any:
        if message.subscription == HISTORY and not failed:
            failed.append(client)
            raise StoreError("the disk is full")
        return real(self, client, message, interest)

    async def main() -> None:
        monkeypatch.setattr(Attachments, "_add", add)
        async with tidings.embedded(mode="guaranteed", archive=True) as bus:
            await bus.publish_many(many(100))
            async with bus.subscribe("/t", start="earliest", durable="d") as stream:
                assert await take(stream, 100) == list(range(100))
                await bus.publish_many(many(5, 100))
                assert await take(stream, 5) == list(range(100, 105))
        assert failed == ["share:d"]

    play(main)


def test_networks_inside_a_process() -> None:
    async def main() -> None:
        async with tidings.embedded(mode="guaranteed", archive=True) as bus:
            await bus.publish_many([*many(100), *many(100, topic="/u")])
            await archived_all(bus)
            for kind in ("durable", "group"):
                async with bus.subscribe("/t", start="earliest", **{kind: f"{kind}-a"}) as stream:  # type: ignore[arg-type]
                    assert await take(stream, 100) == list(range(100))
                async with bus.subscribe("/**", start="last", **{kind: f"{kind}-b"}) as stream:  # type: ignore[arg-type]
                    assert await take(stream, 2) == [99, 99]
                async with bus.subscribe("/t", "/u", start=150, **{kind: f"{kind}-c"}) as stream:  # type: ignore[arg-type]
                    assert await take(stream, 50) == list(range(50, 100))
            with pytest.raises(SubscriptionRefused, match="offset 201 does not exist yet"):
                async with bus.subscribe("/t", start=201, durable="d"):
                    pass
        async with tidings.embedded(mode="guaranteed") as bus:
            with pytest.raises(SubscriptionRefused, match="start=5 needs the archive of a guaranteed broker"):
                async with bus.subscribe("/t", start=5, durable="d"):
                    pass
        async with tidings.embedded(mode="best-effort") as bus:
            with pytest.raises(SubscriptionRefused, match="start= needs a guaranteed network"):
                async with bus.subscribe("/t", start="earliest", group="g"):
                    pass
            with pytest.raises(SubscriptionRefused, match="durable= needs a guaranteed network"):
                async with bus.subscribe("/t", start="earliest", durable="d"):
                    pass

    play(main)


def test_other_services_refuse_it() -> None:
    from tidings.bus.durable_stream import Durability
    from tidings.core.events.subscription import Subscription
    from tidings.drivers.adapters.held_options import HeldSupport, check_held

    with pytest.raises(SubscriptionRefused) as raised:
        check_held(
            "nats://x",
            HeldSupport(keeps=True),
            Subscription("s", ("/t",), None),
            Durability("d", start=("earliest", 0)),
        )
    assert str(raised.value) == (
        "start= with durable= or group= is not available at nats://x; a guaranteed network of tidings has it"
    )
