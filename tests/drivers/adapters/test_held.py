"""What a holder of events keeps track of, without a broker."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from tidings.bus.durable_stream import Durability
from tidings.core.errors import SubscriptionRefused
from tidings.core.events.event import Publication, make_publication
from tidings.core.events.subscription import Order, Subscription
from tidings.drivers.adapters import held
from tidings.drivers.adapters.held import HeldIncoming, Settlement
from tidings.drivers.adapters.held_options import HeldSupport, check_held


class Shown:
    """A stream that records what it is given."""

    def __init__(self) -> None:
        self.events: list[tuple[int, int, int]] = []
        """Sequence, number, attempt."""
        self.dropped: list[int] = []
        self.answers: list[tuple[Any, Any]] = []
        self.reason = ""

    def __len__(self) -> int:
        return len(self.events)

    def push_held(self, publication: Publication, first: int, attempt: int) -> None:
        self.events.append((publication.sequence, first, attempt))

    def drop_held(self, numbers: list[tuple[int, int]]) -> None:
        self.dropped += [first for first, _ in numbers]

    def finished(self, done: Any, refused: Any) -> None:
        self.answers.append((done, refused))

    def detached(self, reason: str) -> None:
        self.reason = reason


def event(sequence: int, topic: str = "/jobs") -> Publication:
    return make_publication("source", 0, sequence, topic, {"n": sequence}, b"", 0)


def run(test: Callable[[HeldIncoming, Shown], Any], max_unacked: int = 1_024) -> None:
    async def start() -> None:
        shown: Any = Shown()
        subscription = Subscription("s", ("/jobs",), "n < 100")
        result = test(
            HeldIncoming(subscription, shown, Durability("g", True, max_unacked=max_unacked)), shown
        )
        if result is not None:
            await result

    asyncio.run(start())


def test_an_event_is_settled_when_it_is_done() -> None:
    def test(incoming: HeldIncoming, shown: Shown) -> None:
        incoming.arrive([event(1)], "h1", 1)
        incoming.arrive([event(2)], "h2", 3)
        assert shown.events == [(1, 1, 1), (2, 2, 3)] and not incoming.outbox
        assert incoming.held_handles() == ["h1", "h2"]
        incoming.finish(2)
        incoming.give_back(1, 5)
        assert incoming.outbox == [Settlement("h2", True, 0, 3, (2,)), Settlement("h1", False, 5, 1)]
        assert not shown.answers
        incoming.confirm(2)
        assert shown.answers == [(((2, 2),), ())]
        assert not incoming.outbox and not incoming.held_handles()

    run(test)


def test_what_does_not_match_is_done_at_once() -> None:
    def test(incoming: HeldIncoming, shown: Shown) -> None:
        incoming.arrive([event(1, "/other")], "h1", 1)
        incoming.arrive([event(100)], "h2", 1)
        assert not shown.events
        assert [(each.handle, each.done) for each in incoming.outbox] == [("h1", True), ("h2", True)]

    run(test)


def test_an_event_that_is_held_is_not_shown_again() -> None:
    def test(incoming: HeldIncoming, shown: Shown) -> None:
        incoming.arrive([event(1)], "h1", 1)
        incoming.arrive([event(1)], "h2", 2)
        assert len(shown.events) == 1 and not incoming.outbox
        incoming.finish(1)
        assert [each.handle for each in incoming.outbox] == ["h1", "h2"]

    run(test)


def test_an_event_that_is_done_is_not_shown_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(held, "MAX_DONE_IDS", 2)

    def test(incoming: HeldIncoming, shown: Shown) -> None:
        for sequence in (1, 2, 3):
            incoming.arrive([event(sequence)], f"h{sequence}", 1)
            incoming.finish(sequence)
        incoming.confirm(3)
        incoming.arrive([event(3)], "again", 2)
        assert incoming.outbox == [Settlement("again", True)]
        incoming.arrive([event(1)], "forgotten", 2)
        assert shown.events[-1] == (1, 4, 2)

    run(test)


def test_an_event_that_was_given_back_is_shown_again() -> None:
    def test(incoming: HeldIncoming, shown: Shown) -> None:
        incoming.arrive([event(1)], "h1", 1)
        incoming.give_back(1, 0)
        incoming.arrive([event(1)], "h2", 2)
        assert shown.events == [(1, 1, 1), (1, 2, 2)]

    run(test)


def test_a_message_with_two_events_is_settled_once() -> None:
    def test(incoming: HeldIncoming, shown: Shown) -> None:
        incoming.arrive([event(1), event(2), event(100)], "h", 1)
        incoming.give_back(1, 7)
        assert not incoming.outbox
        incoming.finish(2)
        assert incoming.outbox == [Settlement("h", False, 7, 1, (2,))]

    run(test)


def test_leaving_gives_back_what_was_not_seen_as_not_delivered() -> None:
    def test(incoming: HeldIncoming, shown: Shown) -> None:
        for sequence in (1, 2, 3):
            incoming.arrive([event(sequence)], f"h{sequence}", 1)
        incoming.leave(((2, 3),))
        incoming.arrive([event(4)], "h4", 1)
        assert not incoming.outbox, "a request is still under way"
        incoming.release()
        assert [(each.handle, each.done, each.attempts) for each in incoming.outbox] == [
            ("h1", False, 1),
            ("h2", False, 0),
            ("h3", False, 0),
            ("h4", False, 0),
        ]

    run(test)


def test_what_another_has_is_taken_back() -> None:
    def test(incoming: HeldIncoming, shown: Shown) -> None:
        incoming.arrive([event(1)], "h1", 1)
        incoming.arrive([event(2)], "h2", 1)
        incoming.lose(["h1"])
        incoming.finish(1)
        assert shown.answers == [((), ((1, 1),))], "the acknowledgement does not count"
        assert shown.dropped == [1] and not incoming.outbox and incoming.held_handles() == ["h2"]

    run(test)


def test_room_is_what_the_application_has_not_taken() -> None:
    async def test(incoming: HeldIncoming, shown: Shown) -> None:
        assert await incoming.room() == 3
        for sequence in (1, 2, 3):
            incoming.arrive([event(sequence)], f"h{sequence}", 1)
        waiting = asyncio.create_task(incoming.room())
        await asyncio.sleep(0)
        assert not waiting.done()
        incoming.finish(1)
        assert await waiting == 1

    run(test, max_unacked=3)


def test_settling_waits_for_the_answer() -> None:
    async def test(incoming: HeldIncoming, shown: Shown) -> None:
        await incoming.settled()
        incoming.discard("garbage")
        waiting = asyncio.create_task(incoming.settled())
        assert await incoming.next_settlements() == [Settlement("garbage", True)]
        await asyncio.sleep(0)
        assert not waiting.done() and incoming.outbox
        incoming.confirm(1)
        await waiting
        incoming.detached("cancelled")
        assert shown.reason == "cancelled"

    run(test)


@pytest.mark.parametrize(
    ("support", "durability", "problem"),
    [
        (HeldSupport(False, instead="x does"), Durability("d"), "durable= is not available at S: .*; x does"),
        (HeldSupport(True), Durability("d", takeover=True), "takeover= is not available at S; a guaranteed"),
        (HeldSupport(True), Durability("d", keep_for_ns=1), "keep_for= is not available at S$"),
        (HeldSupport(True, True), Durability("d", max_deliveries=1), "without dead_letter= is not available"),
    ],
)
def test_one_line_for_what_is_missing(support: HeldSupport, durability: Durability, problem: str) -> None:
    with pytest.raises(SubscriptionRefused, match=problem):
        check_held("S", support, Subscription("s", ("/a",)), durability)


def test_no_order() -> None:
    with pytest.raises(SubscriptionRefused, match='order="fifo" with durable= is not available at S'):
        check_held(
            "S", HeldSupport(True, True), Subscription("s", ("/a",), order=Order.FIFO), Durability("d")
        )
