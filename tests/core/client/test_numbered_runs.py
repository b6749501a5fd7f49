"""Publications in runs that wait for their numbers, and ordered runs as they are shown and done with."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recording_port import RecordingPort
from tidings.core.client import ordered
from tidings.core.client.application import Application
from tidings.core.errors import AttributeValueError, OrderError
from tidings.core.events.event import Publication, bare_publication, make_no_ops
from tidings.core.events.run import Run, RunMaker, Stretch, singles, stamped
from tidings.core.events.subscription import Order, Subscription
from tidings.core.events.timestamp import Timestamp
from tidings.core.facts import (
    Delivered,
    Misbehaviour,
    PublicationConfirmed,
    PublicationFailed,
    SubscriptionAccepted,
)
from tidings.core.ordering.layout import Layout, ServerPlacement
from tidings.core.ordering.messages import ChangeSubscription, Create, EventStamps, WalkDone
from tidings.core.ordering.module import OrderingModule

LAYOUT = Layout([ServerPlacement("m", ("/a/**", "/b"))], causal=False)


class Beneath:
    """A service that takes everything and says nothing."""

    identity = ("p", 7)

    bookmarks = None
    is_connected = True
    """Nobody resumes."""

    def __init__(self) -> None:
        self.next_sequence = 1
        self.taken: list[Stretch] = []
        self.subscribed: list[Subscription] = []

    def reserve(self) -> int:
        self.next_sequence += 1
        return self.next_sequence - 1

    def publish_stretch(self, stretch: Stretch) -> None:
        self.taken.append(stretch)

    def publish_as(
        self, sequence: int, topic: str, attributes: Any, payload: bytes, published_at: int
    ) -> None:
        maker = RunMaker(*self.identity)
        maker.add(sequence, topic, attributes, payload, published_at)
        self.taken += maker.take_all()

    def subscribe(self, *subscriptions: Subscription) -> None:
        self.subscribed += subscriptions

    def unsubscribe(self, subscription_id: str) -> None:
        pass


class User:
    def __init__(self) -> None:
        self.port: Any = RecordingPort("p")
        self.facts: list[Any] = []
        self.beneath = Beneath()
        self.module = OrderingModule(self.port, LAYOUT, incarnation=1)
        self.application = Application(self.beneath, self.facts.append)
        self.port.emit = self.application.on_fact
        self.application.add_order(self.module)
        self.numbers = {0: 0, 1: 0}

    def publish(self, topic: str, **attributes: Any) -> int:
        return self.application.publish(topic, attributes, b"", 5)

    def end_of_turn(self) -> None:
        if self.port.timers.pop(("ordering", "gather"), None) is not None:
            self.module.on_timer(("ordering", "gather"))

    def requests(self) -> list[Create]:
        asked = [message for _, message in self.port.sent if isinstance(message, Create)]
        self.port.sent.clear()
        return asked

    def answer(self, create: Create) -> None:
        base = self.numbers[create.topic]
        self.numbers[create.topic] += create.count
        entries = ((1 - create.topic,), (self.numbers[1 - create.topic],))
        stamps = EventStamps(
            create.publisher, "m", create.request, create.topic, base, create.count, *entries
        )
        self.module.on_event_stamps("m", stamps)


TOPICS = ("/a/x", "/a/y", "/b", "/free")


@settings(max_examples=80, deadline=None)
@given(st.lists(st.sampled_from((*TOPICS, "", "!")), max_size=40), st.integers(0, 99))
def test_events_leave_in_the_order_of_the_calls_each_with_the_next_number_of_its_entry(
    calls: list[str], seed: int
) -> None:
    """'' ends a turn of the loop, '!' answers one request, any of those that wait."""
    user, random, asked, topics = User(), Random(seed), [], []
    for call in [*calls, ""]:
        if call == "":
            user.end_of_turn()
        elif call == "!" and asked:
            user.answer(asked.pop(random.randrange(len(asked))))
        elif call != "!":
            assert user.publish(call, n=len(topics)) == len(topics) + 1
            topics.append(call)
        asked += user.requests()
    while asked:
        user.answer(asked.pop())
        asked += user.requests()
    found = [single for stretch in user.beneath.taken for single in singles(stretch)]
    assert [single.sequence for single in found] == list(range(1, len(topics) + 1))
    assert [single.topic for single in found] == topics
    assert [single.attributes()["n"] for single in found] == list(range(len(topics)))
    numbers: dict[int, list[int]] = {0: [], 1: []}
    for single in found:
        assert (single.stamp is None) == (single.topic == "/free")
        if single.stamp is not None:
            assert LAYOUT.rank_of(single.topic) == single.stamp.topic
            assert single.layout == LAYOUT.fingerprint
            numbers[single.stamp.topic].append(single.stamp.number)
    for rank, given_out in numbers.items():
        assert sorted(given_out) == list(range(1, user.numbers[rank] + 1)), "each once"
    check_confirmations(user, random)


def check_confirmations(user: User, random: Random) -> None:
    """In pieces, in any order: in the end nothing is open."""
    left = list(range(1, user.beneath.next_sequence))
    random.shuffle(left)
    for sequence in left:
        user.application.on_fact(PublicationConfirmed(sequence, sequence))
    assert user.module.unpublished == 0


def test_calls_of_one_turn_on_topics_of_one_entry_are_one_run_and_one_request() -> None:
    user = User()
    for topic in ("/a/x", "/a/y", "/a/x"):
        user.publish(topic)
    assert user.requests() == [] == user.beneath.taken
    user.end_of_turn()
    (create,) = user.requests()
    assert (create.topic, create.count) == (0, 3)
    user.answer(create)
    (run,) = user.beneath.taken
    assert isinstance(run, Run) and (run.first, run.last, run.topic) == (1, 3, "")
    assert run.stamp == Timestamp(0, 1, (1,), (0,))
    user.application.on_fact(PublicationConfirmed(1, 2))
    assert user.module.unpublished == 1
    user.application.on_fact(PublicationFailed(3, "no"))
    assert user.module.unpublished == 0


def test_mistakes_take_no_sequence_and_what_waits_fails_when_there_are_no_numbers_any_more() -> None:
    user = User()
    user.publish("/a/x")
    with pytest.raises(AttributeValueError):
        user.publish("/a/x", bad=object())
    assert user.publish("/b") == 2
    user.application.refuse_numbers("gone")
    failed = [fact for fact in user.facts if isinstance(fact, PublicationFailed)]
    assert [(fact.sequence, fact.unordered) for fact in failed] == [(1, True), (2, True)]
    with pytest.raises(OrderError, match="gone"):
        user.publish("/a/x")
    assert user.publish("/free") == 3


# --- Ordered subscriptions


class Ticket:
    def __init__(self) -> None:
        self.granted = False
        self.done_with: list[int] = []

    def grant(self, first: int = 0, last: int = 2**63) -> None:
        self.granted = True

    def done(self, first: int = 0, last: int = 2**63) -> None:
        self.done_with += range(first, min(last, 10_000) + 1)


class Reader(User):
    def __init__(self, *topics: str, where: str | None = None) -> None:
        super().__init__()
        self.application.start(Subscription("s", topics, where, Order.TOTAL))
        for subscription in self.beneath.subscribed:
            self.application.on_fact(SubscriptionAccepted(subscription.id))
        (asked,) = [message for _, message in self.port.sent if isinstance(message, ChangeSubscription)]
        self.module.on_walk_done(
            "m", WalkDone(asked.subscriber, asked.version, asked.topics, (0,) * len(asked.topics))
        )
        self.names = [subscription.id for subscription in self.beneath.subscribed]
        self.facts.clear()

    def notify(self, stretch: Stretch, name: str = "s@0") -> Ticket:
        ticket = Ticket()
        self.application.on_fact(Delivered(name, stretch, ticket=ticket))
        return ticket

    def shown(self) -> list[tuple[int, int]]:
        """(sequence, number)"""
        found = []
        for fact in self.facts:
            if isinstance(fact, Delivered):
                assert fact.stamp is not None
                places = enumerate(range(fact.stretch.first, fact.stretch.last + 1), fact.stamp.number)
                found += [(sequence, number) for number, sequence in places]
        return found


def run_of(count: int, *, first: int = 1, number: int = 1, topic: str = "/a/x") -> Run:
    maker = RunMaker("q", 1)
    for sequence in range(first, first + count):
        maker.add(sequence, topic, {"n": sequence}, b"", 0)
    (run,) = maker.take_all()
    assert isinstance(run, Run)
    stamped(run, LAYOUT.fingerprint, Timestamp(0, number))
    return run


@settings(max_examples=80, deadline=None)
@given(st.integers(2, 12), st.data())
def test_a_run_is_done_with_in_the_order_in_which_it_was_shown(count: int, data: st.DataObject) -> None:
    """Whatever comes first, and however the application says it: the service hears of a prefix, growing."""
    reader = Reader("/a/**", where="n <> 3")
    run = run_of(count)
    cut = data.draw(st.integers(1, count))
    parts = [run.cut(1, cut), *([run.cut(cut + 1, count)] if cut < count else [])]
    tickets = {part.first: (part, reader.notify(part)) for part in data.draw(st.permutations(parts))}
    wanted = [sequence for sequence in range(1, count + 1) if sequence != 3]
    assert reader.shown() == [(sequence, sequence) for sequence in wanted]
    told: list[tuple[Any, int]] = []
    for fact in reader.facts:
        stretch = fact.stretch
        told += [(fact.ticket, sequence) for sequence in range(stretch.first, stretch.last + 1)]
    finished: set[int] = {3}
    for ticket, sequence in data.draw(st.permutations(told)):
        ticket.done(sequence, sequence)
        finished.add(sequence)
        prefix = next(n for n in range(1, count + 2) if n not in finished or n > count) - 1
        done = sorted(n for _, ticket in tickets.values() for n in ticket.done_with)
        assert done == list(range(1, prefix + 1))


def test_headers_and_no_ops_make_room_and_are_done_with_in_their_turn() -> None:
    reader = Reader("/a/**", where="n > 2")
    late = reader.notify(run_of(2, first=3, number=3).bare())
    no_ops = reader.notify(make_no_ops("z", 0, 1, "/a/-", LAYOUT.fingerprint, Timestamp(0, 5), 3))
    assert reader.shown() == [] and late.granted and late.done_with == []
    whole = reader.notify(run_of(2))
    assert reader.shown() == [], "both are rejected"
    assert (whole.done_with, late.done_with) == ([1, 2], [3, 4])
    assert no_ops.done_with[:3] == [0, 1, 2], "all of it"
    reader.notify(run_of(2, first=8, number=8))
    assert reader.shown() == [(8, 8), (9, 9)]


def forged(**fields: Any) -> Run:
    run = run_of(3)
    for name, value in fields.items():
        setattr(run, name, value)
    return run


@pytest.mark.parametrize(
    ("made", "reason"),
    [
        (lambda: forged(layout=1), "another layout"),
        (lambda: forged(stamp=Timestamp(9, 1)), "topic 9; there are 2"),
        (lambda: forged(stamp=Timestamp(1, 1)), "a timestamp of /b for /a/x"),
        (lambda: forged(stamp=Timestamp(0, 2**62 - 2)), "numbers from"),
        (lambda: forged(topic="", stamp=Timestamp(1, 1)), "a timestamp of /b for /a/x"),
        (lambda: forged(topic="", count=4), "has 3 events, not 4"),
        (lambda: bare_publication(forged(stamp=Timestamp(1, 1)).publications()[0]), "of /b for /a/x"),
    ],
)
def test_a_stamp_that_does_not_fit_its_run_leaves_it_out_and_is_told(made: Any, reason: str) -> None:
    reader = Reader("/a/**", "/b")
    ticket = reader.notify(made())
    assert reader.shown() == [] and ticket.done_with, "the broker is not to keep it"
    (fact,) = [fact for fact in reader.facts if isinstance(fact, Misbehaviour)]
    assert fact.peer == "q" and "was dropped" in fact.what and reason in fact.what
    reader.notify(run_of(3))
    assert reader.shown() == [(1, 1), (2, 2), (3, 3)], "and nothing else suffers"


def test_a_slow_reader_is_granted_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ordered, "SLOW_READER_EVENTS", 4)
    reader = Reader("/a/**")
    tickets = [reader.notify(run_of(3, first=first, number=first)) for first in (1, 4, 7)]
    assert [ticket.granted for ticket in tickets] == [True, True, False]
    shown = [fact for fact in reader.facts if isinstance(fact, Delivered)]
    shown[0].ticket.done(1, 2)  # type: ignore[union-attr]
    assert not tickets[2].granted
    shown[0].ticket.done(3, 3)  # type: ignore[union-attr]
    shown[1].ticket.done()  # type: ignore[union-attr]
    assert tickets[2].granted


def test_a_single_event_is_a_run_of_one() -> None:
    reader = Reader("/a/**")
    single = run_of(3).cut(1, 1)
    assert isinstance(single, Publication)
    reader.notify(single)
    assert reader.shown() == [(1, 1)]
