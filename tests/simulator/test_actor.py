"""The subscriber of a scenario, alone: what it asks its client for, and for which subscription an event is shown."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tidings.model.event import Publication, make_publication
from tidings.model.subscription import Order, Subscription
from tidings.protocol.facts import Delivered, EventsMissed, SubscriptionAccepted
from tidings.simulator.actor import DRAIN_NS, PlainActor, Window


class Client:
    """In place of the application's client."""

    def __init__(self) -> None:
        self.has: list[str] = []

    def start(self, subscription: Subscription) -> None:
        self.has.append(subscription.id)

    def end(self, name: str) -> None:
        self.has.remove(name)


class Ticket:
    is_done = False

    def done(self) -> None:
        self.is_done = True


class Place:
    """A host whose time goes on when it is told."""

    def __init__(self) -> None:
        self.now = 0
        self.application: Any = Client()
        self.accepted_at: dict[str, int] = {}
        self.events: list[tuple[str, int]] = []
        self._due: list[tuple[int, Callable[[Window], None], Window]] = []

    def pass_to(self, now: int) -> None:
        self.now = now
        due = [entry for entry in self._due if entry[0] <= now]
        self._due = [entry for entry in self._due if entry[0] > now]
        for _, action, window in due:
            action(window)

    def later(self, at: int, action: Callable[[Window], None], window: Window) -> None:
        self._due.append((at, action, window))

    def accepted(self, window: Window) -> None:
        self.accepted_at[window.subscription.id] = window.accepted_at

    def shown(self, window: Window, publication: Publication, late: bool, by: str) -> None:
        self.events.append((window.subscription.id, publication.sequence))

    def said(self, what: object) -> None:
        """Nothing that is looked at here."""

    requested = cancelled = ended = missed = failed = broken = accused = said


def event(sequence: int, published_at: int) -> Publication:
    return make_publication("p", 0, sequence, "/t", {}, b"", published_at)


@given(st.lists(st.sampled_from(["/a", "/b", None]), max_size=6), st.lists(st.integers(0, 70), max_size=20))
def test_an_event_is_shown_for_the_subscription_of_its_time(
    steps: list[str | None], published: list[int]
) -> None:
    place = Place()
    actor = PlainActor(place, "s", None, Order.NONE)
    had: list[str | None] = []
    """At each time, in steps of ten."""
    for number, topic in enumerate([*steps, None]):
        place.pass_to(10 * number)
        actor.change(None if topic is None else (topic,))
        made = sum(1 for name in had if name is not None)
        had.append(None if topic is None else f"s#{made}")
    asked = [name for name in had if name is not None]
    assert place.application.has == asked, "those that are cancelled are kept for a while"
    for sequence, at in enumerate(published):
        for name in asked:
            actor.on_fact(Delivered(name, event(sequence, at)))
    expected = [
        (had[at // 10], sequence)
        for sequence, at in enumerate(published)
        if at // 10 < len(had) and had[at // 10] is not None
    ]
    assert place.events == expected
    place.pass_to(place.now + DRAIN_NS)
    assert place.application.has == []


def test_who_comes_back_asks_for_what_it_had_and_what_it_had_left_is_drained() -> None:
    place = Place()
    actor = PlainActor(place, "s", None, Order.NONE)
    actor.change(("/a",))
    actor.on_fact(SubscriptionAccepted("s#0"))
    place.pass_to(5)
    place.application = None  # it is down when its topics change
    actor.change(("/b",))
    place.application = Client()
    actor.back()
    assert place.application.has == ["s#0", "s#1"]
    actor.on_fact(SubscriptionAccepted("s#0"))
    place.pass_to(7)
    actor.on_fact(SubscriptionAccepted("s#1"))
    assert place.accepted_at == {"s#0": 1, "s#1": 8}, "accepted once, and from the next instant on"
    place.pass_to(5 + DRAIN_NS)
    assert place.application.has == ["s#1"]


def test_whatever_comes_is_done_with() -> None:
    actor = PlainActor(Place(), "s", None, Order.NONE)
    tickets: list[Any] = [Ticket(), Ticket()]
    actor.on_fact(Delivered("s#0", event(1, 1), ticket=tickets[0]))
    actor.on_fact(EventsMissed("s#0", "p", 0, 1, 2, ticket=tickets[1]))
    assert all(ticket.is_done for ticket in tickets)
