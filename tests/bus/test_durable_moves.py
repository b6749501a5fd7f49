"""Durable subscriptions follow their holders to other brokers, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tidings.bus.bus import Bus
from tidings.bus.stream import Stream
from tidings.core.overlay.guaranteed import share_departures
from tidings.testing import TestNetwork, simulate

Scenario = Callable[[TestNetwork], Awaitable[None]]


def run(scenario: Callable[[TestNetwork], Any]) -> None:
    simulate(scenario, brokers=3, mode="guaranteed")


async def publish(bus: Bus, *numbers: int) -> None:
    for number in numbers:
        await bus.publish("/jobs", {"n": number})


async def read(stream: Stream, count: int) -> list[tuple[int, int]]:
    events = [await stream.get(60) for _ in range(count)]
    return [(event.attributes["n"], event.attempt) for event in events]


async def home(net: TestNetwork, broker: str = "b0") -> str:
    """Return where the durable subscription is, as that broker knows it."""
    async with net.connect(broker) as bus:
        [found] = await bus.durable_subscriptions()
    return str(found["broker"])


def test_it_follows_its_holder_with_all_that_waits() -> None:
    async def scenario(net: TestNetwork) -> None:
        async with net.connect("b1", name="p") as p:
            async with net.connect("b0", name="one") as bus:
                async with bus.subscribe("/jobs", durable="billing", ack="manual") as stream:
                    await publish(p, 1, 2, 3, 4)
                    first = await stream.get(30)
                    await (await stream.get(30)).ack()
                    assert first.attributes["n"] == 1
            async with net.connect("b2", name="two") as bus:
                async with bus.subscribe("/jobs", durable="billing") as stream:
                    assert await read(stream, 2) == [(1, 2), (3, 1)]
                    await asyncio.sleep(15)
                    assert {await home(net, broker) for broker in ("b0", "b1", "b2")} == {"b2"}
                    await publish(p, 5)
                    assert await read(stream, 2) == [(4, 1), (5, 1)]
            await publish(p, 6)
            async with net.connect("b0", name="three") as bus:
                async with bus.subscribe("/jobs", durable="billing") as stream:
                    assert await read(stream, 1) == [(6, 1)]

    run(scenario)


def test_after_the_move_the_former_home_is_not_needed() -> None:
    async def scenario(net: TestNetwork) -> None:
        async with net.connect("b2", name="p") as p:
            async with net.connect("b0", name="one") as bus:
                async with bus.subscribe("/jobs", durable="billing"):
                    await publish(p, 1)
            async with net.connect("b2", name="two") as bus:
                async with bus.subscribe("/jobs", durable="billing") as stream:
                    assert await read(stream, 1) == [(1, 1)]
                    await asyncio.sleep(30)
                    await publish(p, 2)
                    assert await read(stream, 1) == [(2, 1)]
                    net.crash("b0")
                    await publish(p, 3)
                    assert await read(stream, 1) == [(3, 1)]
                    assert stream.uncovered == ()
                    await asyncio.sleep(10)
                    assert stream.uncovered == ("b0",)
                    async with net.connect("b2", name="new") as new:
                        await publish(new, 4)
                        assert await read(stream, 1) == [(4, 1)]
                    net.restart("b0")
                    await asyncio.sleep(20)
                    assert stream.uncovered == ()

    run(scenario)


def test_it_moves_back_and_forth() -> None:
    async def scenario(net: TestNetwork) -> None:
        number = 0
        async with net.connect("b1", name="p") as p:
            for broker in ("b0", "b2", "b0", "b1", "b2", "b0"):
                async with net.connect(broker) as bus:
                    async with bus.subscribe("/jobs", durable="billing") as stream:
                        for _ in range(2):
                            await publish(p, number)
                            assert await read(stream, 1) == [(number, 1)]
                            await asyncio.sleep(15)
                            number += 1
                        assert await home(net, "b1") == broker
                    await publish(p, number)
                    number += 1
                async with net.connect(broker) as bus:
                    async with bus.subscribe("/jobs", durable="billing") as stream:
                        assert await read(stream, 1) == [(number - 1, 1)]

    run(scenario)


def test_what_is_published_while_it_moves_comes_once() -> None:
    async def scenario(net: TestNetwork) -> None:
        async def publish_all(bus: Bus) -> None:
            for number in range(200):
                await bus.publish("/jobs", {"n": number})
                await asyncio.sleep(0.05)

        async with net.connect("b1", name="p") as p, net.connect("b2", name="q") as q:
            async with net.connect("b0") as bus, bus.subscribe("/jobs", durable="billing"):
                pass
            async with net.connect("b2") as bus, bus.subscribe("/jobs", durable="billing") as stream:
                publishing = asyncio.gather(publish_all(p), publish_all(q))
                found = [await stream.get(60) for _ in range(400)]
                await publishing
            assert await home(net) == "b2"
        for source in ("p", "q"):
            events = [event for event in found if event.source == source]
            assert [event.attributes["n"] for event in events] == list(range(200))
        assert {event.attempt for event in found} == {1}

    run(scenario)


def test_a_cancelled_subscription_leaves_nothing_at_its_former_homes() -> None:
    async def scenario(net: TestNetwork) -> None:
        for broker in ("b0", "b1", "b2"):
            async with net.connect(broker) as bus, bus.subscribe("/jobs", durable="billing"):
                await asyncio.sleep(15)
        async with net.connect("b0") as bus:
            await bus.cancel_durable("billing")
            await asyncio.sleep(5)
            for broker in ("b0", "b1", "b2"):
                async with net.connect(broker) as other:
                    status = await other.status()
                    assert status["durable"] == status["moved_away"] == []
                    assert await other.durable_subscriptions() == []
                    assert status["records"] == 0

    run(scenario)


def test_a_former_home_ends_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(share_departures, "FORMER_KEEP_NS", 60_000_000_000)

    async def scenario(net: TestNetwork) -> None:
        async with net.connect("b0") as bus, bus.subscribe("/jobs", durable="billing", keep_for=1):
            pass
        async with net.connect("b1", name="p") as p, net.connect("b2") as bus:
            async with bus.subscribe("/jobs", durable="billing", keep_for=1) as stream:
                await asyncio.sleep(15)
                async with net.connect("b0") as former:
                    assert (await former.status())["moved_away"] == [{"name": "billing", "broker": "b2"}]
                    await asyncio.sleep(60)
                    assert (await former.status())["moved_away"] == []
                await publish(p, 1)
                assert await read(stream, 1) == [(1, 1)]
                net.crash("b0")
                await asyncio.sleep(10)
                assert stream.uncovered == ()

    run(scenario)


def test_a_former_home_that_loses_its_disk_is_no_longer_waited_for() -> None:
    async def scenario(net: TestNetwork) -> None:
        async with net.connect("b0") as bus, bus.subscribe("/jobs", durable="billing"):
            pass
        async with net.connect("b2") as bus, bus.subscribe("/jobs", durable="billing") as stream:
            await asyncio.sleep(15)
            net.crash("b0", keep_state=False)
            await asyncio.sleep(10)
            assert stream.uncovered == ("b0",)
            net.restart("b0")
            await asyncio.sleep(20)
            assert stream.uncovered == ()
            async with net.connect("b0", name="p") as p:
                await publish(p, 1)
                assert await read(stream, 1) == [(1, 1)]

    run(scenario)


def test_a_broken_link_ends_the_move_and_the_next_one_succeeds() -> None:
    async def scenario(net: TestNetwork) -> None:
        async with net.connect("b0", name="p") as p:
            async with net.connect("b0") as bus, bus.subscribe("/jobs", durable="billing"):
                await publish(p, *range(50))
            async with net.connect("b2") as bus, bus.subscribe("/jobs", durable="billing") as stream:
                await asyncio.sleep(5.5)
                net.crash("b1")
                net.crash("b2")
                await asyncio.sleep(3)
                net.restart("b1")
                net.restart("b2")
                numbers = sorted({number for number, _ in await read(stream, 50)})
                assert numbers == list(range(50))
                await asyncio.sleep(30)
                assert await home(net) == "b2"

    run(scenario)
