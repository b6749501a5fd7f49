"""Ordered streams that miss events, in virtual time: they go on by themselves, in the order of all others."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from random import Random
from typing import Any

import pytest

import tidings
from tidings.bus.gaps import EventsMissed
from tidings.core.overlay.guaranteed.broker import GuaranteedBroker
from tidings.core.overlay.guaranteed.spill import SpillLimits
from tidings.testing import TestNetwork, simulate

TWO = ("/a", "/b")
TIMEOUT_S = 600.0
ORDERS = [
    pytest.param(("/**",), True, id="one-entry"),
    pytest.param(TWO, True, id="causal"),
    pytest.param(TWO, False, id="total"),
]


class Reader:
    """Reads a stream to its end."""

    def __init__(self, stream: tidings.Stream) -> None:
        self.stream = stream
        self.events: list[tidings.Event] = []

    async def read(self) -> None:
        async for event in self.stream:
            self.events.append(event)

    @property
    def numbers(self) -> list[Any]:
        return [event.attributes["n"] for event in self.events]


async def publish(client: tidings.EventService, first: int, count: int) -> None:
    for n in range(first, first + count):
        await client.publish(TWO[n % 2], {"n": n})
        await asyncio.sleep(0.01)


Course = Callable[[TestNetwork, tidings.EventService, tidings.EventService, Reader], Awaitable[None]]


def play(course: Course, order_topics: tuple[str, ...], causal: bool, order: str = "total") -> Reader:
    """A publisher at b3, a reader at b4 whose order breaks, and one at b0 that misses nothing."""

    async def scenario(net: TestNetwork) -> Reader:
        async with (
            net.connect("b3", name="p") as publisher,
            net.connect("b4", name="s") as client,
            net.connect("b0", name="all") as witness,
            client.subscribe(*TWO, order=order) as stream,  # type: ignore[arg-type]
            witness.subscribe(*TWO, order=order) as everything,  # type: ignore[arg-type]
        ):
            reader, reference = Reader(stream), Reader(everything)
            async with asyncio.TaskGroup() as group:
                reading = [group.create_task(each.read()) for each in (reader, reference)]
                await course(net, publisher, client, reader)
                for task in reading:
                    task.cancel()
            assert not everything.gaps
            check(reader.events, reference.events)
        return reader

    return simulate(
        scenario, seed=5, brokers=5, delay_ms=5, mode="guaranteed", order_topics=order_topics, causal=causal
    )


def check(events: list[tidings.Event], reference: list[tidings.Event]) -> None:
    """Nothing is shown twice or late, and all that is shown is in the order of a reader that misses nothing."""
    ids = [event.id for event in events]
    assert len({*ids}) == len(ids), "shown twice"
    assert not any(event.out_of_order for event in events), "shown late"
    place = {event.id: at for at, event in enumerate(reference)}
    places = [place[each] for each in ids]
    assert places == sorted(places), "another order"


async def move_while_the_old_one_is_down(
    net: TestNetwork, publisher: tidings.EventService, client: tidings.EventService, reader: Reader
) -> None:
    await publish(publisher, 0, 20)
    await asyncio.sleep(1)
    net.crash("b4")
    await publish(publisher, 20, 7)
    net.move(client, "b2")
    await publish(publisher, 27, 200)
    await asyncio.sleep(60)
    await publish(publisher, 227, 10)
    await asyncio.sleep(5)


@pytest.mark.parametrize(
    ("order_topics", "causal", "order"),
    [
        (("/**",), True, "total"),
        (("/**",), False, "total"),
        (TWO, True, "total"),
        (TWO, True, "causal"),
        (TWO, False, "total"),
    ],
)
def test_a_client_that_moves_goes_on_after_the_gap(
    order_topics: tuple[str, ...], causal: bool, order: str
) -> None:
    reader = play(move_while_the_old_one_is_down, order_topics, causal, order)
    assert reader.numbers[:20] == list(range(20))
    assert reader.numbers[-10:] == list(range(227, 237))
    with_count = [gap for gap in reader.stream.gaps if "did not arrive" in gap.reason]
    (gap,) = with_count
    assert gap.reason.startswith("the client moved to another broker, and event")
    missing = 237 - len(reader.events)
    if causal or len(order_topics) == 1:
        assert 7 <= gap.count == missing < 20, "all that came behind the gap is shown"
    else:
        assert 7 <= gap.count <= missing, "the stream joined anew"


def bound(net: TestNetwork, entries: int) -> None:
    """Let brokers keep that many events for a subscriber that is away."""
    for name in net.brokers:
        broker = net._network.nodes[name].protocol
        assert isinstance(broker, GuaranteedBroker)
        broker.delivery._parking._limits = SpillLimits(entries=entries)


@pytest.mark.parametrize(("order_topics", "causal"), ORDERS)
def test_what_a_broker_cannot_keep_is_a_gap(order_topics: tuple[str, ...], causal: bool) -> None:
    async def course(
        net: TestNetwork, publisher: tidings.EventService, client: tidings.EventService, reader: Reader
    ) -> None:
        bound(net, 50)
        await publish(publisher, 0, 10)
        await asyncio.sleep(1)
        net.crash("b4")
        await asyncio.sleep(4)
        await publish(publisher, 10, 80)
        net.restart("b4")
        await asyncio.sleep(10)
        await publish(publisher, 90, 10)
        await asyncio.sleep(30)
        await publish(publisher, 100, 10)
        await asyncio.sleep(5)

    reader = play(course, order_topics, causal)
    assert reader.numbers[:10] == list(range(10)) and reader.numbers[-10:] == list(range(100, 110))
    (gap,) = reader.stream.gaps
    assert gap.reason.startswith("the network could not keep all events, and event")
    assert gap.missed and {each.source for each in gap.missed} == {"p"}
    assert gap.count >= 30


def test_a_plain_stream_lists_its_gaps_with_their_reason() -> None:
    async def scenario(net: TestNetwork) -> list[tidings.Gap]:
        async with (
            net.connect("b3", name="p") as publisher,
            net.connect("b4", name="s") as client,
            client.subscribe("/a") as stream,
        ):
            await publisher.publish("/a", {"n": 0})
            await stream.get(TIMEOUT_S)
            net.crash("b4")
            await publisher.publish("/a", {"n": 1})
            net.move(client, "b2")
            await asyncio.sleep(5)
            await publisher.publish("/a", {"n": 2})
            assert (await stream.get(TIMEOUT_S)).attributes == {"n": 2}
            return list(stream.gaps)

    (gap,) = simulate(scenario, seed=1, brokers=5, mode="guaranteed")
    assert gap.missed == (EventsMissed("p", gap.missed[0].incarnation, 2, 2),)
    assert "may have waited at the old one" in gap.reason and gap.at > 0


@pytest.mark.parametrize("mode", ["best-effort", "guaranteed"])
def test_only_a_client_of_a_guaranteed_network_moves(mode: Any) -> None:
    async def scenario(net: TestNetwork) -> None:
        async with net.connect("b0") as client:
            with pytest.raises(ValueError, match="no broker 'b9'"):
                net.move(client, "b9")
            if mode == "best-effort":
                with pytest.raises(ValueError, match="guaranteed network moves"):
                    net.move(client, "b1")

    simulate(scenario, seed=1, brokers=3, mode=mode)


# --- At random


def wander(seed: int, *, causal: bool, order_topics: tuple[str, ...] = TWO) -> tuple[int, int]:
    """Readers move and brokers crash while three clients publish; return how many gaps there were, and events shown."""
    random = Random(seed)

    async def publish_some(client: tidings.EventService, who: int) -> None:
        for n in range(60):
            await client.publish(TWO[random.randrange(2)], {"n": n, "who": who})
            await asyncio.sleep(random.random() / 4)

    async def disturb(net: TestNetwork, clients: list[tidings.EventService]) -> None:
        for _ in range(6):
            await asyncio.sleep(random.random() * 2)
            broker = random.choice(("b3", "b4", "b5", "b6"))
            net.crash(broker)
            await asyncio.sleep(random.random() * 2)
            for client in clients:
                if random.random() < 0.7:
                    net.move(client, random.choice(("b3", "b4", "b5", "b6")))
            await asyncio.sleep(random.random() * 2)
            net.restart(broker)

    async def scenario(net: TestNetwork) -> tuple[int, int]:
        bound(net, random.choice((5, 1_000)))
        async with AsyncExitStack() as stack:
            publishers = [await stack.enter_async_context(net.connect(f"b{at}")) for at in range(3)]
            clients = [await stack.enter_async_context(net.connect(f"b{at}")) for at in (3, 4, 5)]
            readers = [
                Reader(await stack.enter_async_context(client.subscribe(*TWO, order="total")))
                for client in (publishers[0], *clients)
            ]
            async with asyncio.TaskGroup() as group:
                reading = [group.create_task(each.read()) for each in readers]
                async with asyncio.TaskGroup() as work:
                    work.create_task(disturb(net, clients))
                    for who, publisher in enumerate(publishers):
                        work.create_task(publish_some(publisher, who))
                await asyncio.sleep(120)
                for publisher in publishers:
                    await publisher.publish("/a", {"n": 1_000, "who": 9})
                await asyncio.sleep(10)
                for task in reading:
                    task.cancel()
            reference, *others = readers
            assert len(reference.events) == 183 and not reference.stream.gaps
            for reader in others:
                check(reader.events, reference.events)
                assert reader.numbers[-3:] == [1_000] * 3, "the stream goes on"
                if len(reader.events) < len(reference.events):
                    assert reader.stream.gaps, "missed without a word"
            return sum(len(reader.stream.gaps) for reader in others), sum(len(r.events) for r in others)

    return simulate(
        scenario,
        seed=seed,
        brokers=7,
        delay_ms=5,
        mode="guaranteed",
        order_topics=order_topics,
        causal=causal,
    )


@pytest.mark.parametrize("causal", [True, False])
def test_wherever_readers_go_there_is_one_order(causal: bool) -> None:
    gaps = [wander(seed, causal=causal)[0] for seed in range(3)]
    assert sum(gaps), "some readers miss something"
