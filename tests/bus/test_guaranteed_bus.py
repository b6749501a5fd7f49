"""The bus on a guaranteed network: embedded, over sockets and in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

import tidings
from tidings.bus.embedded import Embedded
from tidings.bus.stream import MAX_GAPS
from tidings.core.client.arrivals import Ticket
from tidings.core.facts import EventsGivenUp
from tidings.drivers.processes.brokers import free_addresses
from tidings.drivers.sockets.broker import BrokerServer
from tidings.drivers.sockets.guaranteed import GuaranteedSettings
from tidings.scenarios.file.schema import ChainShape, Overlay
from tidings.scenarios.file.topology import build_topology, neighbourhoods
from tidings.testing import TestNetwork, simulate

pytestmark = pytest.mark.timeout(100)

Scenario = Callable[[Embedded], Awaitable[None]]


def embedded(scenario: Scenario, **options: Any) -> None:
    async def main() -> None:
        async with tidings.embedded(mode="guaranteed", **options) as bus:
            await asyncio.wait_for(scenario(bus), 60)

    asyncio.run(main())


def many(count: int, first: int = 0) -> list[tuple[str, dict[str, Any], bytes]]:
    return [("/t", {"n": number}, b"") for number in range(first, first + count)]


async def numbers(stream: tidings.Stream, count: int) -> list[object]:
    return [(await stream.get(30.0)).attributes["n"] for _ in range(count)]


def test_an_embedded_network_delivers_everything_in_order() -> None:
    async def scenario(bus: Embedded) -> None:
        async with bus.connect("b4") as far, far.subscribe("/t", where="n >= 10") as stream:
            assert stream.uncovered == ()
            await stream.completed()
            publishing = asyncio.create_task(bus.publish_many(many(2_000)))
            assert await numbers(stream, 1_990) == list(range(10, 2_000))
            assert await publishing == 2_000
            assert (await bus.status())["mode"] == "guaranteed"
            assert bus.network.status("b4")["mode"] == "guaranteed"

    embedded(scenario)


@pytest.mark.parametrize("shape", ["chain", "star", "random"])
@pytest.mark.parametrize("delta", [0, 1, 3])
def test_any_shape_and_delta(shape: str, delta: int) -> None:
    async def scenario(bus: Embedded) -> None:
        async with bus.connect() as far, far.subscribe("/t") as stream:
            await bus.publish_many(many(50))
            assert await numbers(stream, 50) == list(range(50))

    embedded(scenario, brokers=6, shape=shape, delta=delta)


def test_mistakes_of_the_caller_are_named() -> None:
    with pytest.raises(ValueError, match="mode 'pears' is not one of best-effort, guaranteed, epidemic"):
        tidings.embedded(mode="pears")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="delta"):
        tidings.embedded(mode="guaranteed", delta=-1)
    with pytest.raises(ValueError, match="mode 'pears'"):
        simulate(lambda net: asyncio.sleep(0), mode="pears")  # type: ignore[arg-type]


def test_a_reader_that_does_not_keep_up_loses_nothing_and_holds_up_nobody() -> None:
    async def scenario(bus: Embedded) -> None:
        async with (
            bus.connect("b4") as far,
            bus.connect("b4") as other,
            far.subscribe("/t", buffer_events=10) as slow,
            other.subscribe("/t") as fast,
        ):
            publishing = asyncio.create_task(bus.publish_many(many(3_000)))
            assert await numbers(fast, 3_000) == list(range(3_000))
            assert await publishing == 3_000
            assert 0 < len(slow) < 3_000
            assert await numbers(slow, 3_000) == list(range(3_000))
            assert (slow.dropped, slow.missed, list(slow.gaps)) == (0, 0, [])

    embedded(scenario)


def test_a_closed_stream_does_not_hold_back_those_of_the_same_client() -> None:
    async def scenario(bus: Embedded) -> None:
        async with bus.connect("b4") as far, far.subscribe("/t") as stream:
            async with far.subscribe("/t") as unread:
                await bus.publish_many(many(100))
                assert len(unread) == 100
            publishing = asyncio.create_task(bus.publish_many(many(3_000, 100)))
            assert await numbers(stream, 3_100) == list(range(3_100))
            assert await publishing == 3_000

    embedded(scenario)


def test_a_subscriber_by_callback_is_done_with_each_event_at_once() -> None:
    async def scenario(bus: Embedded) -> None:
        seen: list[object] = []
        subscription = bus.subscribe("/t").subscription
        await bus.add_subscription(subscription, lambda event: seen.append(event.attributes["n"]))
        await bus.publish_many(many(3_000))
        assert seen == list(range(3_000))
        await bus.remove_subscription(subscription.id)

    embedded(scenario, brokers=2)


def test_a_client_that_closes_leaves_nothing_behind() -> None:
    async def scenario(bus: Embedded) -> None:
        far = bus.connect("b4")
        await far.open()
        await far.subscribe("/t").__aenter__()
        assert bus.network.status("b4")["subscriptions"] == 1
        await far.close()
        assert bus.network.status("b4")["subscriptions"] == 0
        await bus.publish("/t")

    embedded(scenario)


def test_a_client_may_come_back_under_its_name() -> None:
    async def scenario(bus: Embedded) -> None:
        async with bus.subscribe("/t") as stream:
            for life in range(3):
                async with bus.connect("b4", name="again") as again:
                    await again.publish("/t", {"n": life})
            assert await numbers(stream, 3) == [0, 1, 2]

    embedded(scenario)


def test_gaps_are_reported_by_the_stream() -> None:
    async def scenario(bus: Embedded) -> None:
        async with bus.subscribe("/t") as stream:
            name = stream.subscription.id
            bus.on_fact(EventsGivenUp(name, "source", 7, 3, 5))
            (gap,) = stream.gaps
            assert gap.missed == (tidings.EventsMissed("source", 7, 3, 5),)
            assert (gap.count, gap.reason) == (3, "the network could not keep them")
            assert gap.at > 0 and gap.text.endswith("(events 3 to 5 of source)")
            assert (stream.missed, stream.dropped) == (3, 0)
            for number in range(2 * MAX_GAPS):
                bus.on_fact(EventsGivenUp(name, "source", 7, number, number))
            assert len(stream.gaps) == MAX_GAPS
            assert stream.missed == 3 + 2 * MAX_GAPS

    embedded(scenario, brokers=1)


def test_an_ordered_stream_goes_on_after_a_gap_that_it_does_not_notice() -> None:
    """None of the events was for it: its numbers are complete."""

    async def scenario(bus: Embedded) -> None:
        async with bus.subscribe("/t", order="total") as stream:
            await bus.publish("/t", {"n": 1})
            bus.on_fact(EventsGivenUp(bus._application.beneath[0], "source", 7, 3, 5))
            assert (await stream.get(5)).attributes == {"n": 1}
            await bus.publish("/t", {"n": 2})
            assert (await stream.get(5)).attributes == {"n": 2}
            assert [gap.missed for gap in stream.gaps] == [(tidings.EventsMissed("source", 7, 3, 5),)]

    embedded(scenario, brokers=1)


# --- In virtual time


def test_crashes_and_cuts_lose_nothing() -> None:
    async def scenario(net: TestNetwork) -> list[object]:
        async with net.connect("b3") as near, net.connect("b4") as far, far.subscribe("/t") as stream:
            publishing = asyncio.create_task(near.publish_many(many(50)))
            await asyncio.sleep(0.02)
            net.crash("b0")
            await near.publish_many(many(50, 50))
            net.restart("b0")
            net.cut("b0", "b1")
            await near.publish_many(many(50, 100))
            net.heal("b0", "b1")
            net.pause("b1")
            await asyncio.sleep(5)
            net.resume("b1")
            await publishing
            return await numbers(stream, 150)

    for seed in range(5):
        assert simulate(scenario, seed=seed, mode="guaranteed", delta=1, loss=0.05) == list(range(150))


def test_publishing_waits_while_the_broker_is_away() -> None:
    async def scenario(net: TestNetwork) -> float:
        async with net.connect("b1") as near, net.connect("b0") as far, far.subscribe("/t") as stream:
            net.crash("b1")
            publishing = asyncio.create_task(near.publish("/t", {"n": 1}))
            await asyncio.sleep(20)
            assert not publishing.done()
            net.restart("b1")
            await publishing
            assert await numbers(stream, 1) == [1]
            return net.now_s

    assert simulate(scenario, brokers=3, mode="guaranteed") > 20


def test_closing_ends_a_publication_that_waits() -> None:
    async def scenario(net: TestNetwork) -> None:
        near = net.connect("b1")
        await near.open()
        net.crash("b1")
        publishing = asyncio.create_task(near.publish("/t"))
        await asyncio.sleep(1)
        await near.close()
        with pytest.raises(tidings.NotConfirmed, match="closed"):
            await publishing

    simulate(scenario, brokers=2, mode="guaranteed")


def test_a_broker_that_lost_its_disk_is_given_its_subscriptions_again() -> None:
    async def scenario(net: TestNetwork) -> list[object]:
        async with net.connect("b1") as near, net.connect("b4") as far, far.subscribe("/t") as stream:
            await near.publish_many(many(10))
            net.crash("b4", keep_state=False)
            await asyncio.sleep(5)
            publishing = asyncio.create_task(near.publish_many(many(10, 10)))
            await asyncio.sleep(1)
            net.restart("b4")
            await publishing
            return await numbers(stream, 20)

    assert simulate(scenario, mode="guaranteed", delta=1) == list(range(20))


@pytest.mark.parametrize("lost", [False, True])
def test_what_waits_at_a_publishers_former_broker_comes_by_the_next_one(lost: bool) -> None:
    """Confirmed events are only on the disk of a broker that nobody reaches. Their publisher moves to another one."""

    async def scenario(net: TestNetwork) -> None:
        async with net.connect("b1") as near, net.connect("b2") as far, far.subscribe("/t") as stream:
            await stream.completed()
            net.cut("b0", "b1")
            net.cut("b1", "b2")
            await asyncio.sleep(5)
            await near.publish_many(many(3))
            net.move(near, "b0")
            net.crash("b1", keep_state=not lost)
            await near.publish_many(many(3, 3))
            assert await numbers(stream, 6) == list(range(6))
            net.heal("b0", "b1")
            net.heal("b1", "b2")
            net.restart("b1")
            await asyncio.sleep(60)
            assert not len(stream)
            assert not stream.gaps

    simulate(scenario, brokers=3, mode="guaranteed")


def test_a_subscription_says_who_does_not_know_it() -> None:
    async def scenario(net: TestNetwork) -> None:
        net.crash("b1")
        await asyncio.sleep(5)
        async with net.connect("b0") as bus, bus.subscribe("/t") as stream:
            assert any("b1" in text for text in stream.uncovered)
            completed = asyncio.create_task(stream.completed())
            await asyncio.sleep(5)
            assert not completed.done()
            net.restart("b1")
            await completed
            assert stream.uncovered == ()
            net.crash("b0")  # it was complete once: that is not taken back
            net.restart("b0")
            await asyncio.sleep(5)
            assert stream.uncovered == ()
            waiting = bus.subscribe("/u")
            net.crash("b1")
            await asyncio.sleep(5)
            await waiting.__aenter__()
            never = asyncio.create_task(waiting.completed())
            await asyncio.sleep(1)
            await waiting.__aexit__(None, None, None)
            with pytest.raises(tidings.ConnectionFailed, match="has ended"):
                await never

    simulate(scenario, brokers=2, mode="guaranteed")


def test_one_seed_is_one_guaranteed_run() -> None:
    def run(seed: int) -> list[tuple[float, object]]:
        async def scenario(net: TestNetwork) -> list[tuple[float, object]]:
            seen: list[tuple[float, object]] = []
            async with net.connect("b3") as near, net.connect("b4") as far, far.subscribe("/t") as stream:
                publishing = asyncio.create_task(near.publish_many(many(100)))
                net.crash("b0")
                for _ in range(100):
                    seen.append((net.now_s, (await stream.get(60.0)).attributes["n"]))
                await publishing
            return seen

        return simulate(scenario, seed=seed, mode="guaranteed", loss=0.1, delta=1)

    assert run(3) == run(3) != run(4)


# --- Over sockets


def test_a_bus_goes_to_another_broker_and_publishes_what_was_not_confirmed() -> None:
    async def main() -> None:
        topology = build_topology(Overlay(mode="guaranteed", shape=ChainShape(brokers=3)), 0)
        addresses = free_addresses(topology.brokers)
        servers: dict[str, BrokerServer] = {}
        for name, labels in neighbourhoods(topology, 2).items():
            around = {peer: label for peer, label in labels.items() if peer != name}
            servers[name] = BrokerServer(
                name,
                addresses[name],
                {peer: addresses[peer] for peer in around},
                mode="guaranteed",
                guaranteed=GuaranteedSettings(labels[name], around, delta=1, new=True),
            )
            await servers[name].start()
        both = f"tidings://{addresses['b0']},{addresses['b1']}"
        async with (
            tidings.connect(both, name="moving") as moving,
            tidings.connect(f"tidings://{addresses['b2']}") as reader,
            reader.subscribe("/t") as stream,
        ):
            await stream.completed()
            assert await moving.publish_many(many(10)) == 10
            async with moving.subscribe("/back") as back:
                await back.completed()
                await servers["b0"].stop()
                assert await moving.publish_many(many(10, 10)) == 10
                assert await numbers(stream, 20) == list(range(20))
                await reader.publish("/back", {"n": 1})
                assert await numbers(back, 1) == [1]
            assert (await moving.status())["broker"] == "b1"
        await servers["b1"].stop()
        await servers["b2"].stop()

    asyncio.run(asyncio.wait_for(main(), 80))


def test_the_window_of_a_bus_is_what_it_has_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: if every notification were acknowledged at once, nothing would hold the broker back."""

    async def scenario(bus: Embedded) -> None:
        async with bus.connect("b1") as far, far.subscribe("/t") as slow:
            publishing = asyncio.create_task(bus.publish_many(many(3_000)))
            await asyncio.wait([publishing], timeout=1.5)
            assert len(slow) <= 1_024
            await numbers(slow, 3_000)
            await publishing

    embedded(scenario, brokers=2)

    monkeypatch.setattr(Ticket, "keep", Ticket.done)
    with pytest.raises(AssertionError):
        embedded(scenario, brokers=2)
