"""Durable subscriptions with the orders total and causal, in virtual time, on guaranteed networks."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

import tidings
from tidings.bus.bus import Bus
from tidings.bus.stream import Stream
from tidings.core.errors import SubscriptionRefused
from tidings.core.facts import ShareFailed
from tidings.core.ordering.replication.node import SequencerNode
from tidings.core.ordering.replication.replica import Times
from tidings.core.overlay.guaranteed.broker import GuaranteedBroker
from tidings.scenarios.file.order_nodes import order_node
from tidings.testing import TestNetwork, simulate

Scenario = Callable[[TestNetwork], Awaitable[None]]
TOPICS = ("/a/**", "/b")


def run(scenario: Callable[[TestNetwork], Any], brokers: int = 5, **options: Any) -> None:
    simulate(scenario, brokers=brokers, mode="guaranteed", **options)


async def publish(bus: Bus, *numbers: int) -> None:
    for number in numbers:
        await bus.publish(("/a/x", "/a/y", "/b")[number % 3], {"n": number})


def publish_without_waiting(bus: Bus, *numbers: int) -> list[asyncio.Task[None]]:
    return [asyncio.create_task(publish(bus, number)) for number in numbers]


async def read(stream: Stream, count: int) -> list[tuple[int, int]]:
    """Return the number and the attempt of the next events."""
    events = [await stream.get(120) for _ in range(count)]
    return [(event.attributes["n"], event.attempt) for event in events]


def share(net: TestNetwork, broker: str) -> dict[str, Any]:
    node = net._network.nodes[broker].protocol
    assert isinstance(node, GuaranteedBroker)
    (status,) = node.shares.status()
    return status


@pytest.mark.parametrize("order", ["total", "causal"])
def test_it_goes_on_in_the_one_order_whoever_attaches_next(order: Any) -> None:
    async def scenario(net: TestNetwork) -> None:
        async with net.connect("b1") as one, net.connect("b2") as other, net.connect("b4") as bus:
            async with bus.subscribe(*TOPICS, order=order) as plain:
                async with bus.subscribe(*TOPICS, order=order, durable="billing") as stream:
                    for number in range(0, 20, 2):
                        await publish(one, number)
                        await publish(other, number + 1)
                    event = await stream.get(60)
                    assert event.order is not None and event.order.number == 1
                    first = [(event.attributes["n"], event.attempt), *await read(stream, 7)]
                await publish(one, 20, 21, 22)
                async with net.connect("b0") as far:
                    async with far.subscribe(*TOPICS, order=order, durable="billing") as stream:
                        second = await read(stream, 15)
                seen = [event[0] for event in await read(plain, 23)]
        assert [number for number, _ in first + second] == seen
        assert {attempt for _, attempt in first + second} == {1}

    run(scenario)


def test_what_waits_while_nobody_is_attached_is_in_the_order_of_those_who_are() -> None:
    """Two publishers at once, from both ends of the network; the sequencers know the subscription all the time."""

    async def scenario(net: TestNetwork) -> None:
        async with net.connect("b1") as one, net.connect("b2") as other, net.connect("b4") as bus:
            async with bus.subscribe(*TOPICS, order="total", durable="billing"):
                pass
            async with bus.subscribe(*TOPICS, order="total") as plain:
                waiting = publish_without_waiting(one, *range(30)) + publish_without_waiting(
                    other, *range(30, 60)
                )
                for receipt in waiting:
                    await receipt
                seen = [number for number, _ in await read(plain, 60)]
            async with net.connect("b3") as bus2:
                async with bus2.subscribe(*TOPICS, order="total", durable="billing") as stream:
                    assert [number for number, _ in await read(stream, 60)] == seen

    run(scenario)


def test_an_event_given_back_comes_again_before_everything_newer() -> None:
    async def scenario(net: TestNetwork) -> None:
        async with net.connect("b1") as one, net.connect("b4") as bus:
            async with bus.subscribe(*TOPICS, order="total", durable="billing", ack="manual") as stream:
                await publish(one, 0, 1, 2, 3)
                events = [await stream.get(60) for _ in range(3)]
                await events[0].ack()
                await events[1].nack(after=2)
                again = [await stream.get(60) for _ in range(3)]
                assert [(event.attributes["n"], event.attempt) for event in again] == [(1, 2), (2, 2), (3, 2)]

    run(scenario)


def test_without_a_dead_letter_the_order_ends_with_an_error() -> None:
    async def scenario(net: TestNetwork) -> None:
        async with net.connect("b4") as bus:
            options: Any = {"order": "causal", "durable": "billing", "ack": "manual", "max_deliveries": 1}
            async with bus.subscribe(*TOPICS, **options) as stream:
                await publish(bus, 0, 1)
                await (await stream.get(60)).nack()
                with pytest.raises(tidings.DeliveriesExhausted):
                    await stream.get(60)

    run(scenario)


def test_its_broker_crashes_again_and_again_and_nothing_is_lost_or_repeated() -> None:
    async def scenario(net: TestNetwork) -> None:
        async with net.connect("b1") as one, net.connect("b2") as other, net.connect("b4") as bus:
            async with bus.subscribe(*TOPICS, order="total") as plain:
                async with bus.subscribe(*TOPICS, order="total", durable="billing"):
                    pass
                receipts = []
                for number in range(0, 80, 4):
                    receipts += publish_without_waiting(one, number, number + 1)
                    receipts += publish_without_waiting(other, number + 2, number + 3)
                    await asyncio.sleep(0.07)
                    if number % 8 == 0:
                        net.crash("b4")
                        await asyncio.sleep(0.3)
                        net.restart("b4")
                for receipt in receipts:
                    await receipt
                async with bus.subscribe(*TOPICS, order="total", durable="billing") as stream:
                    kept = await read(stream, 80)
                    seen = await read(plain, 80)
        assert kept == seen

    run(scenario)


def test_the_holder_is_cut_off_and_its_successor_goes_on_with_what_it_had() -> None:
    async def scenario(net: TestNetwork) -> None:
        async with net.connect("b1") as one, net.connect("b3") as far, net.connect("b4") as near:
            async with near.subscribe(*TOPICS, order="total", durable="billing"):
                pass
            async with far.subscribe(*TOPICS, order="total", durable="billing", ack="manual") as stream:
                await publish(one, 0, 1, 2)
                events = [await stream.get(60) for _ in range(3)]
                await events[0].ack()
                net.crash("b3")
                await publish(one, 3)
                async with near.subscribe(
                    *TOPICS, order="total", durable="billing", takeover=True
                ) as successor:
                    assert [n for n, _ in await read(successor, 3)] == [1, 2, 3]
                net.restart("b3")

    run(scenario)


def test_a_partition_delays_it_and_loses_nothing() -> None:
    """The home, b4, is cut off from the sequencers and from one publisher, and restarts there."""

    async def scenario(net: TestNetwork) -> None:
        async with net.connect("b1") as one, net.connect("b4") as bus:
            async with bus.subscribe(*TOPICS, order="causal", durable="billing") as stream:
                await publish(one, 0)
                for other in ("b0", "b1", "b2", "b3"):
                    net.cut("b4", other)
                waiting = publish_without_waiting(one, 1, 2)
                inside = publish_without_waiting(bus, 3)
                net.crash("b4")
                net.restart("b4")
                with pytest.raises(TimeoutError):
                    await stream.get(20) and await stream.get(20)
                for other in ("b0", "b1", "b2", "b3"):
                    net.heal("b4", other)
                for receipt in (*waiting, *inside):
                    await receipt
                assert sorted(await read(stream, 3)) == [(1, 1), (2, 1), (3, 1)]

    run(scenario)


def test_sequencers_that_crash_delay_it() -> None:
    async def scenario(net: TestNetwork) -> None:
        async with net.connect("b3") as one, net.connect("b4") as bus:
            async with bus.subscribe(*TOPICS, order="total", durable="billing") as stream:
                await publish(one, 0, 1)
                net.crash("b0")
                receipts = publish_without_waiting(one, 2, 3)
                assert [n for n, _ in await read(stream, 2)] == [0, 1]
                net.restart("b0")
                for receipt in receipts:
                    await receipt
                assert [n for n, _ in await read(stream, 2)] == [2, 3]

    run(scenario)


def reports(net: TestNetwork, broker: str) -> list[str]:
    """Collect what the broker reports about durable subscriptions from now on."""
    found: list[str] = []
    home = net._network.nodes[broker].protocol
    assert isinstance(home, GuaranteedBroker)
    emit = home.ordered_shares.port.emit

    def listen(fact: object) -> None:
        if isinstance(fact, ShareFailed):
            found.append(fact.reason)
        emit(fact)

    home.ordered_shares.port.emit = listen
    return found


def test_sequencers_that_are_lost_are_found_again_and_nothing_is_missing() -> None:
    async def scenario(net: TestNetwork) -> None:
        async with net.connect("b1") as bus:
            async with bus.subscribe(*TOPICS, order="total", durable="billing") as stream:
                await publish(bus, 0, 1)
                assert await read(stream, 2) == [(0, 1), (1, 1)]
                told = reports(net, "b1")
                home = net._network.nodes["b1"].protocol
                assert isinstance(home, GuaranteedBroker)
                home.ordered_shares.lost("another client took this broker's name")
                assert (
                    share(net, "b1")["waits_for"] == told[0][-38:] == "another client took this broker's name"
                )
                await publish(bus, 2)
                assert await read(stream, 1) == [(2, 1)]
                assert (share(net, "b1")["waits_for"], len(told)) == ("", 1)

    run(scenario)


def test_a_home_that_was_away_for_too_long_joins_the_order_anew_and_says_so() -> None:
    """The sequencers forget a subscriber that is silent for a day; here for ten seconds."""

    async def scenario(net: TestNetwork) -> None:
        async with net.connect("b1") as one, net.connect("b4") as bus:
            async with bus.subscribe(*TOPICS, order="total", durable="billing") as stream:
                await publish(one, 0)
                assert await read(stream, 1) == [(0, 1)]
                for broker in ("b0", "b1", "b2"):
                    sequencer = net._network.nodes[order_node(broker)].protocol
                    assert isinstance(sequencer, SequencerNode)
                    for replica in sequencer.sequencer.replicas.values():
                        replica._times = Times(subscriber_ns=10_000_000_000)
                net.crash("b4")
                await asyncio.sleep(60)
                net.restart("b4")
                told = reports(net, "b4")
                await asyncio.sleep(30)
                await publish(one, 1)
                assert await read(stream, 1) == [(1, 1)]
                assert any("joined anew" in reason and "away for too long" in reason for reason in told), told

    run(scenario)


def test_a_name_that_was_cancelled_can_be_used_at_once() -> None:
    async def scenario(net: TestNetwork) -> None:
        async with net.connect("b1") as one, net.connect("b4") as bus:
            for round_ in range(3):
                async with bus.subscribe(*TOPICS, order="total", durable="billing") as stream:
                    await publish(one, 3 * round_, 3 * round_ + 1)
                    assert await read(stream, 1) == [(3 * round_, 1)]
                    await stream.cancel()  # type: ignore[attr-defined]
                await publish(one, 3 * round_ + 2)

    run(scenario)


def test_a_name_that_is_cancelled_while_its_home_knows_no_sequencers_leaves_nothing() -> None:
    async def scenario(net: TestNetwork) -> None:
        async with net.connect("b1") as one, net.connect("b4") as bus:
            async with bus.subscribe(*TOPICS, order="total", durable="billing"):
                pass
            home = net._network.nodes["b4"].protocol
            assert isinstance(home, GuaranteedBroker)
            find, home.ordered_shares.find = home.ordered_shares.find, lambda: None
            home.ordered_shares.lost("gone")
            await bus.cancel_durable("billing")
            await publish(one, 0)
            home.ordered_shares.find = find
            async with bus.subscribe("/b", order="total", durable="other") as stream:
                await publish(one, 2)
                assert await read(stream, 1) == [(2, 1)]
            (client,) = [
                c for name, c in home.attachments.clients.items() if name == home.ordered_shares.client
            ]
            assert all(name.startswith("other/") for name in client.subscriptions)

    run(scenario)


def test_two_orders_of_one_name_and_what_the_network_does_not_have_are_refused() -> None:
    async def scenario(net: TestNetwork) -> None:
        async with net.connect("b4") as bus:
            async with bus.subscribe("/a/x", order="total", durable="billing"):
                pass
            for options, told in (
                ({"order": "fifo"}, "'billing' has order total"),
                ({"order": "causal"}, "this network provides total order, not causal order"),
            ):
                with pytest.raises(SubscriptionRefused, match=told):
                    async with bus.subscribe("/a/x", durable="billing", **options):  # type: ignore[arg-type]
                        pass
            with pytest.raises(SubscriptionRefused, match="/b: events on these topics may be unordered"):
                async with bus.subscribe("/b", order="total", durable="other"):
                    pass

    run(scenario, order_topics=("/a/**",), causal=False)


def test_a_broker_without_sequencers_refuses_at_once() -> None:
    async def scenario(net: TestNetwork) -> None:
        async with net.connect("b4") as bus:
            home = net._network.nodes["b4"].protocol
            assert isinstance(home, GuaranteedBroker)
            home.ordered_shares.find = None
            with pytest.raises(SubscriptionRefused, match="requires sequencers, but broker b4 knows of none"):
                async with bus.subscribe("/a/x", order="total", durable="billing"):
                    pass

    run(scenario)


def test_sequencers_that_do_not_answer_are_told_and_joined_when_they_do() -> None:
    async def scenario(net: TestNetwork) -> None:
        async with net.connect("b4") as bus:
            async with bus.subscribe("/c", order="total"):
                pass  # so that the sequencers have started
            for broker in ("b0", "b1", "b2"):
                net.crash(broker)
            with pytest.raises(SubscriptionRefused, match=r"did not answer"):
                async with bus.subscribe(*TOPICS, order="total", durable="billing"):
                    pass
            for broker in ("b0", "b1", "b2"):
                net.restart(broker)
            async with bus.subscribe(*TOPICS, order="total", durable="billing") as stream:
                await publish(bus, 0)
                assert await read(stream, 1) == [(0, 1)]

    run(scenario)


def test_it_works_on_an_embedded_network() -> None:
    async def main() -> None:
        async with tidings.embedded(brokers=3, mode="guaranteed") as bus:
            async with bus.subscribe(*TOPICS, order="causal", durable="billing") as stream:
                await publish(bus, 0, 1, 2)
                assert await read(stream, 2) == [(0, 1), (1, 1)]
            async with bus.connect("b2") as other:
                async with other.subscribe(*TOPICS, order="causal", durable="billing") as stream:
                    assert await read(stream, 1) == [(2, 1)]

    asyncio.run(main())
