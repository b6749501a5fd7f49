"""The subscriber of a scenario over the users' client: what it asks the network for, and for which subscription of the
trace an event is shown."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tidings.core.client.application import Application
from tidings.core.client.session import DRAIN_NS
from tidings.core.events.event import Publication, make_publication
from tidings.core.events.subscription import Order, Subscription
from tidings.core.facts import Delivered, EventsGivenUp, SubscriptionAccepted, SubscriptionCancelled
from tidings.scenarios.actor import Actor, Window


class Network:
    """In place of the event service: it accepts what it is told to, and drains until it is told."""

    bookmarks = None
    is_connected = True

    def __init__(self) -> None:
        self.held: dict[str, Subscription] = {}
        self.draining: list[str] = []

    def subscribe(self, *subscriptions: Subscription) -> None:
        self.held |= {subscription.id: subscription for subscription in subscriptions}

    def shown(self, name: str) -> None:
        """Nothing is kept in order."""

    def unsubscribe(self, name: str, *, drain: bool = False) -> None:
        if drain:
            self.draining.append(name)
        else:
            self.held.pop(name)


class Ticket:
    is_done = False

    def done(self, first: int = 0, last: int = 0) -> None:
        self.is_done = True


class Place:
    """A host whose time goes on when it is told."""

    def __init__(self, *, kept: bool = False) -> None:
        self.now = 0
        self.network: Any = Network()
        self.actor = Actor(self, "s", None, Order.NONE, kept=kept)
        self.application: Application | None = None
        self.rows: dict[str, list[int]] = {}
        self.events: list[tuple[str, int]] = []
        self._due: list[tuple[int, Callable[[Window], None], Window]] = []
        self.start()

    def start(self) -> None:
        """Its client, in a new life if it had one."""
        self.network = Network()
        self.application = Application(self.network, self.actor.on_fact, lingers=True)
        self.actor.back()

    def crash(self) -> None:
        self.application = None
        self.actor.crashed()

    def tell(self, fact: object) -> None:
        assert self.application is not None
        self.application.on_fact(fact)

    def accept(self) -> None:
        """All that the network was asked for."""
        for name in list(self.network.held):
            self.tell(SubscriptionAccepted(name))

    def drain(self) -> None:
        for name in self.network.draining:
            self.network.held.pop(name)
            self.tell(SubscriptionCancelled(name))
        self.network.draining = []

    def deliver(self, publication: Publication) -> None:
        """To all that the network has for it."""
        for name, subscription in list(self.network.held.items()):
            if subscription.interest().matches(publication):
                self.tell(Delivered(name, publication))

    def pass_to(self, now: int) -> None:
        self.now = now
        due = [entry for entry in self._due if entry[0] <= now]
        self._due = [entry for entry in self._due if entry[0] > now]
        for _, action, window in due:
            action(window)

    def later(self, at: int, action: Callable[[Window], None], window: Window) -> None:
        self._due.append((at, action, window))

    def requested(self, window: Window) -> None:
        self.rows[window.subscription.id] = [window.requested_at]

    def accepted(self, window: Window) -> None:
        self.rows[window.subscription.id].append(window.accepted_at)

    def shown(self, window: Window, publication: Publication, late: bool, by: str) -> None:
        self.events.append((window.subscription.id, publication.sequence))

    def said(self, what: object) -> None:
        """Nothing that is looked at here."""

    cancelled = ended = missed = failed = gap = broken = accused = said


def event(sequence: int, published_at: int, topic: str = "/a") -> Publication:
    return make_publication("p", 0, sequence, topic, {}, b"", published_at)


steps = st.lists(st.tuples(st.sampled_from(["/a", "/b", None]), st.booleans()), max_size=6)
published = st.lists(st.tuples(st.integers(0, 70), st.sampled_from(["/a", "/b"])), max_size=20)


@given(steps, published)
def test_an_event_is_shown_once_for_the_subscription_of_its_time(
    steps: list[tuple[str | None, bool]], published: list[tuple[int, str]]
) -> None:
    """Whether or not the network had accepted a change when the next one came; late events, too."""
    place = Place()
    had: list[tuple[str, str] | None] = []
    """At each time, in steps of ten: the name in the trace, and the topic."""
    for number, (topic, accepts) in enumerate([*steps, (None, False)]):
        place.pass_to(10 * number)
        place.actor.change(None if topic is None else (topic,))
        made = sum(1 for window in had if window is not None)
        had.append(None if topic is None else (f"s#{made}", topic))
        if accepts:
            place.accept()
    held = {subscription.topics[0] for subscription in place.network.held.values()}
    for sequence, (at, topic) in enumerate(published):
        place.deliver(event(sequence, at, topic))
    expected = []
    for sequence, (at, topic) in enumerate(published):
        window = had[at // 10] if at // 10 < len(had) else None
        if window is not None and window[1] == topic and topic in held:
            expected.append((window[0], sequence))
    assert place.events == expected
    place.drain()
    assert place.network.held == {}, "it has left"


def test_a_window_is_accepted_with_its_own_change_and_closed_when_its_drain_is_over() -> None:
    place = Place()
    place.actor.change(("/a",))
    place.accept()
    place.pass_to(10)
    place.actor.change(("/a", "/b"))
    assert place.rows == {"s#0": [0, 1], "s#1": [10]}
    place.deliver(event(1, 15))  # the one before still brings what both select
    place.accept()
    place.pass_to(20)
    assert place.rows["s#1"] == [10, 11]
    place.deliver(event(2, 5))
    assert place.events == [("s#1", 1), ("s#0", 2)]
    place.pass_to(10 + DRAIN_NS)
    place.deliver(event(3, 6))
    assert place.events == [("s#1", 1), ("s#0", 2)], "that of its time is closed"


def test_a_change_that_another_overtakes_is_never_accepted() -> None:
    place = Place()
    place.actor.change(("/a",))
    for number, topics in enumerate([("/b",), ("/c",)], 1):
        place.pass_to(10 * number)
        place.actor.change(topics)
    assert [subscription.topics[0] for subscription in place.network.held.values()] == ["/a", "/b", "/c"]
    assert place.network.draining == ["s#0.2"]
    place.pass_to(30)
    place.accept()
    assert place.rows == {"s#0": [0], "s#1": [10], "s#2": [20, 31]}


def test_who_is_forgotten_while_it_is_down_asks_for_what_it_wants_now() -> None:
    place = Place()
    place.actor.change(("/a",))
    place.accept()
    place.crash()
    place.pass_to(5)
    place.start()
    assert list(place.network.held) == ["s#0"], "by the same name: its broker may not have heard of the crash"
    place.crash()
    place.actor.change(("/b",))
    place.pass_to(7)
    place.start()
    assert [subscription.topics for subscription in place.network.held.values()] == [("/b",)]
    place.accept()
    assert place.rows == {"s#0": [0, 1], "s#1": [7, 8]}


def test_who_is_kept_takes_up_what_it_had_and_changes_it() -> None:
    """What came meanwhile is for the subscription that it had."""
    place = Place(kept=True)
    place.actor.change(("/a",))
    place.accept()
    place.crash()
    place.pass_to(5)
    place.actor.change(("/b",))
    place.start()
    assert [subscription.topics for subscription in place.network.held.values()] == [("/a",), ("/b",)]
    place.deliver(event(1, 3))
    place.pass_to(7)
    place.accept()
    assert place.events == [("s#0", 1)]
    assert place.network.draining == ["s#0"]
    assert place.rows == {"s#0": [0, 1], "s#1": [5, 8]}, "accepted once, and from the next instant on"
    place.crash()
    place.actor.change(None)
    place.start()
    assert list(place.network.held) == place.network.draining == ["s#0"], "it is left"


def test_whatever_comes_is_done_with() -> None:
    place = Place()
    place.actor.change(("/a",))
    tickets: list[Any] = [Ticket(), Ticket()]
    place.tell(Delivered("s#0", event(1, 1), ticket=tickets[0]))
    place.tell(EventsGivenUp("s#0", "p", 0, 1, 2, ticket=tickets[1]))
    assert all(ticket.is_done for ticket in tickets)
