"""Expiry: no stream shows an event later than its publisher allowed; it is counted, and nothing else changes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import pytest

import tidings
from tidings.testing import TestNetwork, simulate

Modes = pytest.mark.parametrize("mode", ["best-effort", "guaranteed", "epidemic"])
Scenario = Callable[[TestNetwork], Awaitable[None]]


def play(scenario: Scenario, mode: str = "guaranteed", **options: Any) -> None:
    simulate(scenario, seed=3, brokers=3, mode=mode, delay_ms=5, **options)


async def take(stream: tidings.Stream, count: int) -> list[int]:
    return [(await stream.get(30)).json() for _ in range(count)]


@Modes
@pytest.mark.parametrize("order", ["none", "fifo", "total", "causal"])
def test_what_is_taken_too_late_is_skipped_and_counted(mode: str, order: Any) -> None:
    async def scenario(net: TestNetwork) -> None:
        async with (
            net.connect("b0") as publisher,
            net.connect("b2") as subscriber,
            subscriber.subscribe("/t", order=order) as stream,
        ):
            for number in range(6):
                await publisher.publish(
                    "/t", {}, number, expires=timedelta(seconds=2) if number % 2 else None
                )
            await asyncio.sleep(10)
            await publisher.publish("/t", {}, 6, expires=60)
            await asyncio.sleep(1)
            shown = [await stream.get(30) for _ in range(4)]
            assert [event.json() for event in shown] == [0, 2, 4, 6]
            assert stream.expired == 3
            if order in ("total", "causal"):
                numbers = [event.order.number for event in shown if event.order is not None]
                assert [number - numbers[0] for number in numbers] == [0, 2, 4, 6], (
                    "order numbers still advance"
                )

    play(scenario, mode)


@Modes
def test_what_is_taken_in_time_is_shown_with_its_limit(mode: str) -> None:
    async def scenario(net: TestNetwork) -> None:
        async with (
            net.connect("b0") as publisher,
            net.connect("b2") as subscriber,
            subscriber.subscribe("/t") as stream,
        ):
            await publisher.publish("/t", {"x": 1}, "text", expires=5.0)
            event = await stream.get(30)
            assert (event.text, event.content_type) == ("text", "text/plain; charset=utf-8")
            assert event.expires_at is not None
            assert 0 <= event.published_at + 5_000_000_000 - event.expires_at < 1_000_000
            await publisher.publish("/t", {"x": 1}, b"plain", expires=5.0)
            event = await stream.get(30)
            assert (event.payload, event.content_type, stream.expired) == (b"plain", "", 0)

    play(scenario, mode)


def test_the_last_moment_still_counts() -> None:
    async def scenario(net: TestNetwork) -> None:
        async with (
            net.connect("b0") as publisher,
            net.connect("b0") as subscriber,
            subscriber.subscribe("/t") as stream,
        ):
            for _ in range(2):
                await publisher.publish("/t", {}, b"", expires=3, wait=False)
            expires_at = publisher.now + 3_000_000_000
            await asyncio.sleep(3)
            assert subscriber.now == expires_at
            assert (await stream.get(1)).expires_at == expires_at
            await asyncio.sleep(0.001)
            with pytest.raises(TimeoutError):
                await stream.get(1)
            assert stream.expired == 1

    play(scenario)


def test_a_reader_that_waits_is_done_with_what_expired() -> None:
    """Otherwise the broker would keep it, and send it again to the client's next process."""

    async def scenario(net: TestNetwork) -> None:
        async with net.connect("b0") as publisher, net.connect("b2", name="reader") as subscriber:
            async with subscriber.subscribe("/t") as stream:
                await publisher.publish_many([("/t", {}, b"")] * 3)
                for _ in range(3):
                    await publisher.publish("/t", {}, b"", expires=1, wait=False)
                await asyncio.sleep(5)
                assert len([await stream.get(1) for _ in range(3)]) == 3
                with pytest.raises(TimeoutError):
                    await stream.get(1)
                await asyncio.sleep(1)
                assert (stream.expired, len(stream), stream._taken, stream._finished) == (3, 0, 0, 0)
                assert not subscriber._shown[stream.subscription.id].tickets

    play(scenario)


def test_batches_leave_out_what_expired() -> None:
    async def scenario(net: TestNetwork) -> None:
        async with (
            net.connect("b0") as publisher,
            net.connect("b2") as subscriber,
            subscriber.subscribe("/t") as stream,
        ):
            for number in range(10):
                await publisher.publish(
                    "/t", {}, number, expires=1 if number in (0, 4, 9) else None, wait=False
                )
            await asyncio.sleep(5)
            async for batch in stream.batches(5):
                assert [event.json() for event in batch] == [1, 2, 3, 5, 6]
                break
            assert stream.expired == 2

    play(scenario)


@pytest.mark.parametrize("kind", ["durable", "group"])
def test_a_durable_subscription_is_done_with_what_expired(kind: str) -> None:
    async def scenario(net: TestNetwork) -> None:
        async with net.connect("b0") as publisher:
            name: Any = {kind: "kept"}
            async with net.connect("b0") as subscriber, subscriber.subscribe("/t", **name):
                pass
            for number in range(4):
                await publisher.publish("/t", {}, number, expires=1 if number < 2 else None)
            await asyncio.sleep(5)
            for expired, shown in ((2, [2, 3]), (0, [])):
                async with net.connect("b0") as subscriber, subscriber.subscribe("/t", **name) as stream:
                    assert await take(stream, len(shown)) == shown
                    with pytest.raises(TimeoutError):
                        await stream.get(2)
                    assert stream.expired == expired, "it is done: nobody is shown it again"

    play(scenario)


async def counted(bus: tidings.Bus) -> int:
    [row] = await bus.durable_subscriptions()
    return int(row["expired"])


@pytest.mark.parametrize("at", ["b0", "b2"])
@pytest.mark.parametrize(
    "options", [{"durable": "kept"}, {"group": "kept", "ack": "manual"}], ids=["durable", "group"]
)
def test_the_home_counts_what_expired(at: str, options: dict[str, Any]) -> None:
    async def scenario(net: TestNetwork) -> None:
        async with net.connect("b0") as publisher, net.connect(at, name="reader") as subscriber:
            async with publisher.subscribe("/t", **options):
                pass
            for number in range(7):
                await publisher.publish("/t", {}, number, expires=1 if number % 2 else None)
            assert await counted(subscriber) == 0
            await asyncio.sleep(3)
            async with subscriber.subscribe("/t", **options) as stream:
                for _ in range(4):
                    event = await stream.get(30)
                    if "ack" in options:
                        await event.ack()
                await asyncio.sleep(1)
                assert (stream.expired, await counted(publisher), await counted(subscriber)) == (3, 3, 3)
                await publisher.publish("/t", {}, 8, expires=1, wait=False)
                assert (await stream.get(30)).json() == 8, "not all that can expire does"
            assert await counted(publisher) == 3

    play(scenario)


def test_the_count_outlives_a_restart_and_moves_with_the_subscription() -> None:
    async def scenario(net: TestNetwork) -> None:
        async with net.connect("b1") as publisher:
            async with net.connect("b0") as first, first.subscribe("/t", durable="kept") as stream:
                await publisher.publish("/t", {}, 0, expires=1)
                await asyncio.sleep(3)
                with pytest.raises(TimeoutError):
                    await stream.get(1)
            assert await counted(publisher) == 1
            net.crash("b0")
            await asyncio.sleep(1)
            net.restart("b0")
            await asyncio.sleep(10)
            assert await counted(publisher) == 1
            async with net.connect("b2") as other, other.subscribe("/t", durable="kept") as stream:
                await asyncio.sleep(30)
                [row] = await other.durable_subscriptions()
                assert (row["broker"], row["expired"]) == ("b2", 1)
                await publisher.publish("/t", {}, 0, expires=1)
                await asyncio.sleep(3)
                with pytest.raises(TimeoutError):
                    await stream.get(1)
                assert await counted(publisher) == 2
                await stream.cancel()
            async with net.connect("b2") as other, other.subscribe("/t", durable="kept"):
                assert await counted(publisher) == 0, "it began anew"

    play(scenario)


@pytest.mark.parametrize(
    "expires", [0, -1, 0.0, float("nan"), float("inf"), timedelta(0), timedelta(-1), "2s", True]
)
def test_what_is_no_duration_is_refused(expires: Any) -> None:
    async def scenario(net: TestNetwork) -> None:
        async with net.connect("b0") as bus:
            with pytest.raises(ValueError, match="expires must be a positive duration"):
                await bus.publish("/t", {}, b"", expires=expires)
            assert (await bus.publish("/t")).sequence == 1, "it took no sequence"

    play(scenario)


def test_the_synchronous_bus_expires_events_in_wall_time() -> None:
    with tidings.sync.embedded(brokers=1) as bus, bus.subscribe("/t") as stream:
        bus.publish("/t", {}, {"a": 1}, expires=1e-9)
        bus.publish("/t", {}, {"a": 2}, expires=timedelta(hours=1))
        assert stream.get(10).json() == {"a": 2}
        assert stream.expired == 1
