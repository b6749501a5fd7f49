"""Mode epidemic as applications use it: embedded, in virtual time, and without `async`."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

import tidings
import tidings.sync
from tidings.bus.bus import Bus
from tidings.bus.embedded import ALGORITHMS, Embedded
from tidings.core.events.event import Event
from tidings.core.overlay.epidemic.settings import RecoverySettings
from tidings.testing import TestNetwork, simulate

PATIENCE_S = 30.0
QUICK = RecoverySettings(interval_ns=100_000_000, max_attempts=10_000)
"""Rounds that come often, so that tests do not wait long."""


def run(scenario: Callable[[Embedded], Awaitable[None]], **options: Any) -> None:
    async def main() -> None:
        async with asyncio.timeout(60), tidings.embedded(mode="epidemic", **options) as bus:
            await scenario(bus)

    asyncio.run(main())


async def events(stream: tidings.Stream, count: int) -> list[Event]:
    return [await stream.get(timeout_s=PATIENCE_S) for _ in range(count)]


async def publish(bus: Bus, count: int, size_bytes: int = 10) -> None:
    for number in range(count):
        await bus.publish("/t", {"number": number}, bytes(size_bytes))


def numbers(found: list[Event]) -> list[Any]:
    return sorted(event.attributes["number"] for event in found)


# --- Embedded


@pytest.mark.parametrize("shape", ["tree", "random", "chain", "star"])
def test_without_loss_nothing_needs_to_be_recovered_by_a_pull(shape: str) -> None:
    async def scenario(bus: Embedded) -> None:
        async with bus.connect() as far, far.subscribe("/t") as stream:
            await publish(bus, 20)
            found = await events(stream, 20)
            assert numbers(found) == list(range(20))
            assert {event.recovered_by for event in found} <= {None, "push"}
            status = await far.status()
            assert (status["mode"], status["recovery"]["algorithm"]) == ("epidemic", "push+pull")

    run(scenario, brokers=6, shape=shape)


@pytest.mark.parametrize(("count", "size_bytes"), [(100, 10), (10, 50_000)], ids=["small", "large"])
def test_what_is_lost_between_brokers_comes_all_the_same_and_once(count: int, size_bytes: int) -> None:
    async def scenario(bus: Embedded) -> None:
        async with (
            bus.connect("b8") as far,
            bus.connect("b5") as other,
            far.subscribe("/t") as first,
            other.subscribe("/t") as second,
            bus.subscribe("/t") as near,
        ):
            await publish(bus, count, size_bytes)
            recovered = 0
            for stream in (first, second, near):
                found = await events(stream, count)
                assert numbers(found) == list(range(count))
                assert all(event.payload == bytes(size_bytes) for event in found)
                recovered += sum(event.recovered_by is not None for event in found)
                assert not len(stream)
            assert recovered > 0

    run(scenario, brokers=9, recovery=QUICK, loss=0.1)


def test_without_recovery_it_is_missing() -> None:
    async def scenario(bus: Embedded) -> None:
        async with bus.connect("b8") as far, far.subscribe("/t") as stream:
            await publish(bus, 200)
            await bus.network.settled()
            await asyncio.sleep(0.05)
            found = await events(stream, len(stream))
            assert 0 < len(found) < 200
            assert all(event.recovered_by is None for event in found)

    run(scenario, brokers=9, recovery="none", loss=0.1)


def test_a_new_event_says_nothing_of_recovery() -> None:
    event = Event("p", 0, 1, "/t", 0, {}, b"")
    assert event.recovered_by is None


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"mode": "epidemic", "recovery": "telepathy"}, ["'telepathy'", *ALGORITHMS]),
        ({"mode": "epidemic", "recovery": 7}, ["7", *ALGORITHMS]),
        ({"mode": "epidemic", "loss": 1.0}, ["loss", "below 1"]),
        ({"mode": "epidemic", "loss": -0.1}, ["loss", "from 0"]),
        ({"mode": "epidemic", "loss": float("nan")}, ["loss"]),
        ({"mode": "best-effort", "loss": 0.1}, ["loss", "'epidemic'", "'best-effort'"]),
        ({"mode": "guaranteed", "loss": 0.1}, ["loss", "'epidemic'", "'guaranteed'"]),
        ({"mode": "guaranteed", "recovery": "push"}, ["recovery", "'epidemic'", "'guaranteed'"]),
        ({"mode": "best-effort", "recovery": RecoverySettings()}, ["recovery", "'best-effort'"]),
    ],
)
def test_mistakes_of_the_caller_are_named(options: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(ValueError) as caught:
        tidings.embedded(**options)
    assert all(word in str(caught.value) for word in words), str(caught.value)


def test_without_async() -> None:
    with (
        tidings.sync.embedded(5, mode="epidemic", recovery=QUICK, loss=0.1) as bus,
        bus.connect("b4") as far,
        far.subscribe("/t") as stream,
    ):
        for number in range(30):
            bus.publish("/t", {"number": number})
        assert numbers([stream.get(PATIENCE_S) for _ in range(30)]) == list(range(30))
    with tidings.sync.embedded(3, mode="guaranteed", delta=1) as bus:
        assert bus.status()["mode"] == "guaranteed"


# --- In virtual time


def lossy_run(seed: int, recovery: str | RecoverySettings = "auto") -> list[tuple[int, str | None]]:
    """What a subscriber of b4 is shown of 100 events within ten minutes, and how each came."""

    async def scenario(net: TestNetwork) -> list[tuple[int, str | None]]:
        async with net.connect("b2") as publisher, net.connect("b4") as subscriber:
            async with subscriber.subscribe("/t") as stream:
                for number in range(100):
                    await publisher.publish("/t", {"number": number})
                    await asyncio.sleep(0.05)
                await asyncio.sleep(600)
                found = await events(stream, len(stream))
                return [(event.attributes["number"], event.recovered_by) for event in found]

    return simulate(scenario, seed=seed, brokers=5, loss=0.1, mode="epidemic", recovery=recovery)


def test_a_test_of_an_application_may_ask_for_losses_and_their_repair() -> None:
    found = lossy_run(3)
    assert sorted(number for number, _ in found) == list(range(100))
    assert any(by is not None for _, by in found)
    assert lossy_run(3) == found != lossy_run(4)
    assert len(lossy_run(3, "none")) < 100


def test_a_broker_that_was_cut_off_gets_what_it_missed() -> None:
    async def scenario(net: TestNetwork) -> list[Any]:
        async with net.connect("b0") as publisher, net.connect("b4") as subscriber:
            async with subscriber.subscribe("/t") as stream:
                await publish(publisher, 5)
                await asyncio.sleep(5)
                for broker in net.brokers[:4]:
                    net.cut(broker, "b4")
                await publish(publisher, 5)
                await asyncio.sleep(5)
                assert len(stream) == 5
                for broker in net.brokers[:4]:
                    net.heal(broker, "b4")
                await asyncio.sleep(60)
                return numbers(await events(stream, len(stream)))

    assert simulate(scenario, seed=1, mode="epidemic") == sorted([*range(5), *range(5)])


def test_mistakes_of_a_test_are_named() -> None:
    async def scenario(net: TestNetwork) -> None:
        pass

    with pytest.raises(ValueError, match="'telepathy'"):
        simulate(scenario, mode="epidemic", recovery="telepathy")
    with pytest.raises(ValueError, match="recovery requires mode 'epidemic'"):
        simulate(scenario, recovery="push")
    with pytest.raises(ValueError, match="below 1"):
        simulate(scenario, loss=1.5)
