"""Streams that change while they are open: nothing that stays selected is missed or repeated."""

from __future__ import annotations

import asyncio
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tidings
from breadth import examples
from ordered_clients import MODES, TIMEOUT_S, numbers, quiet, run, take
from tidings.bus.embedded import Embedded
from tidings.core.client import plain
from tidings.core.client.ordered import SLOW_READER_EVENTS
from tidings.core.client.reliable_session import ReliableSession
from tidings.drivers.sockets.guaranteed import DEFAULT_WINDOW
from tidings.testing import TestNetwork, simulate
from troubled_service import troubled_client

TOPICS = ("/a", "/b", "/c")
ORDERS = ("none", "total")


async def tell(bus: tidings.EventService, first: int, count: int, *topics: str) -> None:
    await bus.publish_many(
        (topic, {"n": n}, b"") for n in range(first, first + count) for topic in topics or TOPICS
    )


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("order", ORDERS)
def test_topics_come_and_go_while_the_stream_is_open(mode: str, order: str) -> None:
    async def scenario(bus: Embedded) -> None:
        async with bus.connect() as reader, reader.subscribe("/a", order=order) as stream:
            await tell(bus, 0, 1)
            await stream.add("/b")
            assert stream.subscription.topics == ("/a", "/b")
            await tell(bus, 1, 1)
            events = await take(stream, 3)
            assert [(event.topic, event.attributes["n"]) for event in events] == [
                ("/a", 0),
                ("/a", 1),
                ("/b", 1),
            ]
            await stream.remove("/a")
            await tell(bus, 2, 1)
            [event] = await take(stream, 1)  # what is on its way when its topic is removed need not come
            assert (event.topic, event.attributes["n"]) == ("/b", 2)
            await stream.change("/c")
            await tell(bus, 3, 1)
            [event] = await take(stream, 1)
            assert (event.topic, event.attributes["n"]) == ("/c", 3)
            assert await quiet(stream)

    run(scenario, mode=mode)


@pytest.mark.parametrize("order", ORDERS)
def test_changes_of_several_tasks_follow_one_another(order: str) -> None:
    async def scenario(bus: Embedded) -> None:
        async with bus.connect() as reader, reader.subscribe("/a", order=order) as stream:
            await asyncio.gather(stream.add("/b"), stream.add("/c"), stream.remove("/a"))
            assert stream.subscription.topics == ("/b", "/c")
            await tell(bus, 0, 1)
            assert [event.topic for event in await take(stream, 2)] == ["/b", "/c"]

    run(scenario)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("order", ORDERS)
def test_a_filter_changes_while_the_stream_is_open(mode: str, order: str) -> None:
    async def scenario(bus: Embedded) -> None:
        async with bus.connect() as reader, reader.subscribe("/a", where="n < 5", order=order) as stream:
            await tell(bus, 0, 10, "/a")
            assert numbers(await take(stream, 5)) == list(range(5))
            await stream.change(where="n >= 5")
            await tell(bus, 0, 10, "/a")
            assert numbers(await take(stream, 5)) == list(range(5, 10))
            await stream.change(where=None)
            await tell(bus, 0, 10, "/a")
            assert numbers(await take(stream, 10)) == list(range(10))
            assert await quiet(stream)

    run(scenario, mode=mode)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("order", ORDERS)
def test_under_load_what_stays_selected_comes_once(mode: str, order: str) -> None:
    """/a is wanted all the time; /b and /c come and go."""

    async def scenario(bus: Embedded) -> None:
        going = True

        async def load() -> int:
            n = 0
            while going:
                await tell(bus, n, 5)
                n += 5
            return n

        async with bus.connect() as reader, reader.subscribe("/a", order=order) as stream:
            loading = asyncio.create_task(load())
            for _ in range(5):
                await stream.add("/b", "/c")
                await stream.remove("/b")
                await stream.change("/a")
            going = False
            count = await loading
            seen: list[object] = []
            while len(seen) < count:
                event = await stream.get(TIMEOUT_S)
                if event.topic == "/a":
                    seen.append(event.attributes["n"])
            assert seen == list(range(count))

    run(scenario, mode=mode)


def test_without_the_old_one_until_the_new_one_holds_events_are_missed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Planted: the old subscription ends when the new one is asked for, not when it holds."""
    change = plain.PlainSubscription.change

    def hasty(self: plain.PlainSubscription, topics: tuple[str, ...], condition: str | None) -> None:
        assert self._current is not None
        self._owner.unsubscribe(self._name(self._current))
        change(self, topics, condition)

    monkeypatch.setattr(plain.PlainSubscription, "change", hasty)
    with pytest.raises((AssertionError, TimeoutError)):
        simulate(random_course(3, order="none"), seed=3, brokers=4, delay_ms=20)


def random_course(seed: int, *, order: str):  # type: ignore[no-untyped-def]
    """Changes at random times while events flow: what was wanted from before an event was published until after it was
    shown must come, once, in the order of its source."""

    async def scenario(net: TestNetwork) -> None:
        random = Random(seed)
        async with net.connect("b0") as publisher, net.connect("b3") as reader:
            async with reader.subscribe("/a", order=order) as stream:
                going = True

                async def load() -> int:
                    n = 0
                    while going:
                        await publisher.publish("/a", {"n": n})
                        n += 1
                        await asyncio.sleep(random.random() * 0.02)
                    return n

                loading = asyncio.create_task(load())
                for _ in range(6):
                    await asyncio.sleep(random.random() * 0.1)
                    topics = random.sample(("/b", "/c", "/d"), random.randrange(3))
                    await stream.change("/a", *topics)
                going = False
                count = await loading
                seen = [await stream.get(5.0) for _ in range(count)]
                assert numbers(seen) == list(range(count))
                await asyncio.sleep(1)
                assert not len(stream)

    return scenario


@given(st.integers(0, 10_000), st.sampled_from(("best-effort", "guaranteed")), st.sampled_from(ORDERS))
@settings(max_examples=examples(40))
def test_random_changes_neither_miss_nor_repeat(seed: int, mode: str, order: str) -> None:
    simulate(random_course(seed, order=order), seed=seed, brokers=4, delay_ms=20, mode=mode)  # type: ignore[arg-type]


def test_over_another_service_streams_change_too() -> None:
    async def scenario(bus: Embedded) -> None:
        client, _ = troubled_client(bus, "b1", "c", lossless=True)
        async with client, client.subscribe("/a") as stream, client.subscribe("/a", order="total") as ordered:
            for changing in (stream, ordered):
                await changing.add("/b")
                await tell(bus, 0, 3, "/a", "/b", "/c")
                assert len(await take(changing, 6)) == 6
                await changing.change("/c", where="n > 0")
                await tell(bus, 0, 3, "/a", "/b", "/c")
                assert numbers(await take(changing, 2)) == [1, 2]
            assert await quiet(stream) is False  # it was told of the second round, too

    run(scenario)


def test_mistakes_are_told_and_the_stream_stays() -> None:
    async def scenario(bus: Embedded) -> None:
        async with bus.connect() as reader, reader.subscribe("/a", "/b") as stream:
            with pytest.raises(ValueError, match="cannot remove /x: the stream's topics are /a, /b"):
                await stream.remove("/x")
            with pytest.raises(ValueError, match="needs at least one topic"):
                await stream.remove("/a", "/b")
            with pytest.raises(tidings.TopicError):
                await stream.add("nowhere")
            with pytest.raises(tidings.FilterError):
                await stream.change(where="size >")
            assert stream.subscription.topics == ("/a", "/b")
            await tell(bus, 0, 1)
            assert len(await take(stream, 2)) == 2
        with pytest.raises(ValueError, match="only inside its"):
            await stream.add("/c")

    run(scenario)


@pytest.mark.parametrize("order", ORDERS)
def test_a_change_that_the_network_does_not_take_is_given_up(order: str) -> None:
    """A broker is away: what is published there would be missed."""

    async def scenario(net: TestNetwork) -> None:
        async with net.connect("b0") as publisher, net.connect("b1") as reader:
            async with reader.subscribe("/a", order=order) as stream:
                net.crash("b3")
                with pytest.raises(
                    tidings.SubscriptionRefused, match="did not accept the change within 30 s"
                ):
                    await stream.add("/b")
                assert stream.subscription.topics == ("/a",)
                net.restart("b3")
                await asyncio.sleep(60)
                await tell(publisher, 0, 3)
                events = await take(stream, 3)
                assert [(event.topic, event.attributes["n"]) for event in events] == [
                    ("/a", n) for n in range(3)
                ]
                await stream.add("/b")
                await tell(publisher, 3, 1)
                assert {event.topic for event in await take(stream, 2)} == {"/a", "/b"}
                await asyncio.sleep(5)
                assert not len(stream)

    simulate(scenario, brokers=4, mode="guaranteed", order_topics=TOPICS)


def test_an_order_that_does_not_cover_a_topic_refuses_it() -> None:
    async def scenario(bus: Embedded) -> None:
        async with bus.connect() as reader, reader.subscribe("/a", order="total") as stream:
            with pytest.raises(
                tidings.SubscriptionRefused, match="/z: events on these topics may be unordered"
            ):
                await stream.add("/z")
            await tell(bus, 0, 1, "/a")
            assert numbers(await take(stream, 1)) == [0]

    run(scenario, order_topics=("/a", "/b"))


def test_without_async() -> None:
    with tidings.sync.embedded(brokers=2) as bus, bus.subscribe("/a") as stream:
        stream.add("/b")
        bus.publish("/b", {"n": 1})
        assert stream.get(TIMEOUT_S).attributes["n"] == 1
        stream.remove("/b")
        stream.change(where="n > 1")
        bus.publish("/a", {"n": 1})
        bus.publish("/a", {"n": 2})
        assert stream.get(TIMEOUT_S).attributes["n"] == 2


@pytest.mark.parametrize("change", ["add", "filter"])
@pytest.mark.parametrize("order", ORDERS)
def test_what_waits_for_a_slow_reader_survives_a_change(change: str, order: str) -> None:
    """More waits at the broker than a window, and than an order buffers: it was published for the subscription as it
    was before."""
    count = 3 * DEFAULT_WINDOW + (0 if order == "none" else SLOW_READER_EVENTS)

    async def scenario(net: TestNetwork) -> None:
        async with net.connect("b0") as publisher, net.connect("b1") as reader:
            async with reader.subscribe("/a", where="n >= 0", order=order) as stream:
                await tell(publisher, 0, count, "/a")
                if change == "add":
                    await stream.add("/b")
                else:
                    await stream.change(where="n >= 0 OR m = 1")
                await asyncio.sleep(10)
                await tell(publisher, count, 5, "/a")
                assert numbers(await take(stream, count + 5)) == list(range(count + 5))
                await asyncio.sleep(10)
                assert not len(stream)

    simulate(scenario, mode="guaranteed", order_topics=("/a", "/b"))


@pytest.mark.parametrize("order", ORDERS)
def test_striking_out_what_waits_for_the_old_one_is_noticed(
    order: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The planted bug to the test above."""
    unsubscribe = ReliableSession.unsubscribe
    monkeypatch.setattr(
        ReliableSession, "unsubscribe", lambda self, name, drain=False: unsubscribe(self, name)
    )
    with pytest.raises((AssertionError, TimeoutError)):
        test_what_waits_for_a_slow_reader_survives_a_change("filter", order)


@pytest.mark.parametrize("mode", MODES)
def test_after_a_change_the_broker_keeps_the_new_subscription_alone(mode: str) -> None:
    async def scenario(network: TestNetwork) -> None:
        async with network.connect() as bus, bus.subscribe("/a") as stream:
            await stream.add("/b")
            await stream.remove("/a")
            await asyncio.sleep(20)
            status = await bus.status()
            assert status["subscriptions"] == 1

    simulate(scenario, mode=mode)  # type: ignore[arg-type]
