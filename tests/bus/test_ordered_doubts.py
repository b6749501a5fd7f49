"""A service that loses nothing, and may have lost something after all: an order goes on, and shows the gap once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

import tidings
from ordered_clients import TIMEOUT_S, numbers, run, take
from tidings.bus.embedded import Embedded
from tidings.bus.gaps import EventsMissed
from tidings.core import facts
from tidings.core.client import ordered
from tidings.core.ordering.subscriber import OrderedEvent, OrderedSubscriber
from troubled_service import TroubledService, troubled_client

MOVED = "the client moved to another broker"
PERHAPS = EventsMissed("p", 0, 1, 9)


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ordered, "DOUBT_NS", 50_000_000)
    monkeypatch.setattr(ordered, "GIVEN_UP_NS", 50_000_000)


def move(stream: tidings.Stream) -> None:
    """As if its client had another broker now."""
    stream._service._application.on_fact(facts.BrokerChanged())  # type: ignore[attr-defined]


def miss(stream: tidings.Stream, *, certain: bool) -> None:
    """As every subscription in the service says it."""
    application = stream._service._application  # type: ignore[attr-defined]
    for name in application.beneath:
        application.on_fact(facts.EventsGivenUp(name, *PERHAPS, certain=certain))


def play(
    course: Callable[[Embedded, tidings.Stream, TroubledService], Awaitable[None]],
    *topics: str,
    max_buffered: int = 65_536,
    **options: object,
) -> None:
    """With an ordered stream over a service that seems to lose nothing."""

    async def scenario(bus: Embedded) -> None:
        client, service = troubled_client(bus, "b1", "c", lossless=True, max_buffered=max_buffered)
        async with client, client.subscribe(*(topics or ("/a",)), order="total") as stream:
            await course(bus, stream, service)

    run(scenario, **options)


def withhold(service: TroubledService, *lost: int) -> None:
    service.withholds = lambda event: event.attributes.get("n") in lost


async def gap_shown(stream: tidings.Stream, timeout_s: float = TIMEOUT_S) -> None:
    shown = asyncio.Event()
    stream.on_gap = lambda gap: shown.set()
    async with asyncio.timeout(timeout_s):
        await shown.wait()


async def publish(bus: Embedded, numbers: range, topics: tuple[str, ...] = ("/a",)) -> None:
    for n in numbers:
        await bus.publish(topics[n % len(topics)], {"n": n})


def check_later(before: list[tidings.Event], after: list[tidings.Event]) -> None:
    """Nothing is shown twice, and everything after the gap is later in the order than all before it."""
    events = before + after
    assert len({event.id for event in events}) == len(events)
    for topic in {event.order.topic for event in events if event.order is not None}:
        places = [event.order.number for event in events if event.order and event.order.topic == topic]
        assert places == sorted(places)
    for event in after:
        assert not event.out_of_order


def test_an_order_goes_on_without_what_does_not_come_after_a_move() -> None:
    """What has come behind the missing events is shown, and they are not, if they come after all."""

    async def course(bus: Embedded, stream: tidings.Stream, service: TroubledService) -> None:
        withhold(service, 1, 2, 5)
        await publish(bus, range(8))
        move(stream)
        before = await take(stream, 1)
        after = await take(stream, 4)
        assert numbers(before + after) == [0, 3, 4, 6, 7]
        (gap,) = stream.gaps
        assert gap.reason == f"{MOVED}, and events 2 to 3 of /**, event 6 of /** did not arrive"
        assert (gap.count, gap.missed, stream.missed) == (3, (), 3)
        service.release()
        await publish(bus, range(8, 10))
        after += await take(stream, 2)
        assert numbers(after[-2:]) == [8, 9]
        check_later(before, after)

    play(course)


def test_what_comes_in_time_is_not_given_up() -> None:
    async def course(bus: Embedded, stream: tidings.Stream, service: TroubledService) -> None:
        withhold(service, 1)
        await publish(bus, range(3))
        move(stream)
        service.release()
        assert numbers(await take(stream, 3)) == [0, 1, 2]
        assert not stream.gaps

    play(course)


def test_after_a_doubt_an_order_waits_as_before() -> None:
    """Only what was published until the move may be lost by it."""

    async def course(bus: Embedded, stream: tidings.Stream, service: TroubledService) -> None:
        withhold(service, 0)
        await publish(bus, range(2))
        move(stream)
        assert numbers(await take(stream, 1)) == [1]
        withhold(service, 2)
        await publish(bus, range(2, 4))
        with pytest.raises(TimeoutError):
            await stream.get(0.3)
        service.release()
        assert numbers(await take(stream, 2)) == [2, 3]
        assert len(stream.gaps) == 1

    play(course)


def test_an_order_goes_on_where_nothing_was_lost() -> None:
    """What may be missing need not have been for it: the numbers of its own topics tell. It is told once."""

    async def course(bus: Embedded, stream: tidings.Stream, service: TroubledService) -> None:
        move(stream)
        miss(stream, certain=False)
        for n in range(20):
            service.withholds = lambda event, held=n: event.attributes.get("n") == held  # type: ignore[misc]
            await bus.publish("/a", {"n": n})
            service.release()
            assert numbers(await take(stream, 1)) == [n]
        assert [gap.missed for gap in stream.gaps] == [(PERHAPS,)]

    play(course)


def test_what_the_service_gave_up_is_named_once() -> None:
    async def course(bus: Embedded, stream: tidings.Stream, service: TroubledService) -> None:
        withhold(service, 1)
        await publish(bus, range(4))
        miss(stream, certain=True)
        assert numbers(await take(stream, 3)) == [0, 2, 3]
        (gap,) = stream.gaps
        assert gap.missed == (PERHAPS,) and gap.count == 1
        assert gap.reason == "the network could not keep all events, and event 2 of /** did not arrive"

    play(course)


def test_a_slow_reader_is_not_taken_for_a_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it lacks may wait until it has read the rest."""
    monkeypatch.setattr(ordered, "SLOW_READER_EVENTS", 4)

    async def course(bus: Embedded, stream: tidings.Stream, service: TroubledService) -> None:
        withhold(service, 5)
        await publish(bus, range(8))
        move(stream)
        with pytest.raises(TimeoutError):
            await gap_shown(stream, 0.3)
        service.release()
        assert numbers(await take(stream, 8)) == list(range(8))
        assert not stream.gaps

    play(course)


def test_a_full_buffer_ends_the_wait_for_what_may_be_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ordered, "DOUBT_NS", 10**15)

    async def course(bus: Embedded, stream: tidings.Stream, service: TroubledService) -> None:
        withhold(service, 0, 600)
        await publish(bus, range(1))
        move(stream)
        await asyncio.sleep(0.05)
        await publish(bus, range(1, 600))
        assert numbers(await take(stream, 599)) == list(range(1, 600))
        assert [gap.count for gap in stream.gaps] == [1]
        await publish(bus, range(600, 1200))  # not lost by the move: an error is better than another order
        with pytest.raises(tidings.OrderError, match="the buffer is full"):
            await stream.get(TIMEOUT_S)

    play(course, max_buffered=300)


TWO = ("/a", "/b")


def test_where_an_order_may_follow_from_what_is_missing_the_stream_joins_anew() -> None:
    """Without causal order, two topics of one reader have no entries for each other."""

    async def course(bus: Embedded, stream: tidings.Stream, service: TroubledService) -> None:
        withhold(service, 2)
        await publish(bus, range(6), TWO)
        move(stream)
        before = await take(stream, 4)  # all of /b, and /a up to what is missing
        assert set(numbers(before)) == {0, 1, 3, 5}
        await gap_shown(stream)
        (gap,) = stream.gaps
        assert gap.count == 1 and "event 2 of /a did not arrive" in gap.reason
        await asyncio.sleep(0.1)  # until the sequencers have answered
        await publish(bus, range(6, 10), TWO)
        after = await take(stream, 4)
        assert set(numbers(after)) == {6, 7, 8, 9}
        service.release()
        await publish(bus, range(10, 12), TWO)
        after += await take(stream, 2)
        assert set(numbers(after[-2:])) == {10, 11}
        check_later(before, after)

    play(course, *TWO, order_topics=TWO, causal=False)


def test_a_stream_that_shows_late_what_it_gave_up_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """As it is where losses are usual: marked, but late."""

    def remember(self: OrderedSubscriber, topic: int, number: int) -> None:
        first = self.clock[topic] + 1
        if number >= first:
            self.clock[topic] = number
            self._queues[topic].skip(first, number)

    monkeypatch.setattr(OrderedSubscriber, "_skip_to", remember)
    with pytest.raises(AssertionError):
        test_an_order_goes_on_without_what_does_not_come_after_a_move()


def test_a_stream_that_goes_on_in_another_order_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def reverse(self: OrderedSubscriber, lacking: list[tuple[int, int, int]]) -> None:
        for topic, queue in self._queues.items():
            for first, _, waiting in reversed(queue.events.take(0, 2**60)):
                self.clock[topic] = max(self.clock[topic], first)
                self.port.emit(OrderedEvent(waiting.stamp.at(first), waiting.event))

    monkeypatch.setattr(OrderedSubscriber, "skip", reverse)
    with pytest.raises(AssertionError):
        test_an_order_goes_on_without_what_does_not_come_after_a_move()
