"""Publishers and subscribers of a live scenario, over real sockets.

What their applications do and are told is reported. A line leaves before the network hears of what it says: so even
kill -9 leaves no event that nobody has published, and none that was acknowledged and not seen.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from random import Random
from typing import NamedTuple

from tidings.cli import scenario_facts as words
from tidings.cli.scenario_facts import PublisherWork, SubscriberWork
from tidings.cli.scenario_link import LiveLink, Role, report
from tidings.model.event import Publication, is_hidden, source_text
from tidings.model.predicates import Scalar
from tidings.model.subscription import Order, Subscription
from tidings.protocol.facts import (
    Delivered,
    EventsMissed,
    PublicationConfirmed,
    SubscriptionAccepted,
    SubscriptionFailed,
)
from tidings.scenario.schema import Publisher
from tidings.scenario.timeline import Step
from tidings.simulator.clients import DRAIN_NS, NEVER, attribute_sampler
from tidings.simulator.faults import NS_PER_S, nanoseconds


class Arrival(NamedTuple):
    due_ns: int
    topic: str
    attributes: dict[str, Scalar]


def arrivals(plan: Publisher, seed: int) -> Iterator[Arrival]:
    """What the publisher publishes and when: what the simulator draws for the same scenario and seed."""
    random = Random(f"{seed}:publisher:{plan.name}")
    samplers = {
        name: attribute_sampler(attribute, random) for name, attribute in sorted(plan.attributes.items())
    }
    due_s = plan.start_s
    number = 0
    while plan.count is None or number < plan.count:
        if plan.arrival == "poisson":
            due_s += random.expovariate(plan.rate_hz)
        elif number:
            due_s += 1.0 / plan.rate_hz
        attributes = {name: sample() for name, sample in samplers.items()}
        topic = plan.topics[0] if len(plan.topics) == 1 else random.choice(plan.topics)
        yield Arrival(nanoseconds(due_s), topic, attributes)
        number += 1


class LivePublisher(Role):
    def __init__(self, work: PublisherWork, link: LiveLink, seed: int, end_ns: int) -> None:
        super().__init__(work.plan.name, link)
        self._plan = work.plan
        self._absent = work.absent
        self._again = work.lives > 0
        self._source = source_text(work.plan.name, work.lives)
        self._arrivals = arrivals(work.plan, seed)
        self._end_ns = end_ns
        self._payload = bytes(work.plan.size_bytes)

    async def run(self) -> None:
        began_ns = self.go.now if self._again else 0  # who was away does not catch up
        for arrival in self._arrivals:
            due_ns = arrival.due_ns
            if due_ns >= self._end_ns:
                return
            if due_ns < began_ns or any(first <= due_ns < end for first, end in self._absent):
                continue
            await self.until(due_ns)
            if self.go.now >= self._end_ns:
                return
            self._publish(arrival)

    def _publish(self, arrival: Arrival) -> None:
        session, now = self.link.connection.client.session, self.go.now
        self._report(arrival, session.next_sequence, now)
        self._hand_over(arrival.topic, arrival.attributes, now)

    def _report(self, arrival: Arrival, sequence: int, now: int) -> None:
        _, topic, attributes = arrival
        report(words.Published(self._source, sequence, topic, attributes, len(self._payload), now))

    def _hand_over(self, topic: str, attributes: dict[str, Scalar], called_ns: int) -> int:
        """To the service; its sequence there."""
        session = self.link.connection.client.session
        return session.publish(topic, attributes, self._payload, self.go.wall_ns + called_ns).sequence

    def on_fact(self, fact: object) -> None:
        if isinstance(fact, PublicationConfirmed):
            report(words.Confirmed(self._source, fact.first, fact.last, self.go.now))


class Window:
    """A subscription and the time in which an event must have been published to be shown for it.

    As in the simulator: a subscriber whose topics change sees each event once, for the subscription that it had
    when the event was published; what is on its way when one is cancelled still arrives, for `DRAIN_NS`.
    """

    __slots__ = ("accepted", "cancelled_ns", "requested_ns", "subscription")

    def __init__(self, subscription: Subscription, requested_ns: int) -> None:
        self.subscription = subscription
        self.requested_ns = requested_ns
        self.cancelled_ns = NEVER
        self.accepted = False

    def has(self, published_ns: int) -> bool:
        return self.requested_ns <= published_ns < self.cancelled_ns


class LiveSubscriber(Role):
    def __init__(self, work: SubscriberWork, link: LiveLink) -> None:
        super().__init__(work.name, link)
        self._work = work
        self._made = work.made
        self._marks = work.marks
        self._windows: dict[str, Window] = {}
        self._current: Window | None = None

    async def run(self) -> None:
        for step in self._work.timeline[self._work.done :]:
            await self.until(nanoseconds(step.at_s))
            self._change(step)
            report(words.StepTaken(self.name))

    def on_first_connection(self) -> None:
        """Back from a crash: ask again for what there was, before the broker shows what it has kept for it."""
        for held in self._work.held:
            window = Window(self._subscription(held.subscription, held.topics), held.requested_ns)
            window.accepted = held.accepted
            self._windows[held.subscription] = window
            self.link.subscribe(window.subscription)
            if held.cancelled_ns is None:
                self._current = window
            else:
                window.cancelled_ns = held.cancelled_ns
                self._end_later(window)

    def _subscription(self, subscription_id: str, topics: tuple[str, ...]) -> Subscription:
        return Subscription(subscription_id, topics, self._work.filter, Order(self._work.order))

    def _change(self, step: Step) -> None:
        if self._current is not None:
            self._cancel(self._current)
            self._current = None
        if step.topics is not None:
            self._current = self._open_window(step.topics)
            self.link.subscribe(self._current.subscription)

    def _open_window(self, topics: tuple[str, ...]) -> Window:
        subscription = self._subscription(f"{self.name}#{self._made}", topics)
        self._made += 1
        window = self._windows[subscription.id] = Window(subscription, self.go.now)
        report(words.Requested(self.name, subscription.id, topics, window.requested_ns))
        return window

    def _cancel(self, window: Window) -> None:
        window.cancelled_ns = self.go.now
        report(words.Cancelled(self.name, window.subscription.id, window.cancelled_ns))
        self._end_later(window)

    def _end_later(self, window: Window) -> None:
        delay_ns = max(0, window.cancelled_ns + DRAIN_NS - self.go.now)
        asyncio.get_running_loop().call_later(delay_ns / NS_PER_S, self._end, window.subscription.id)

    def _end(self, subscription_id: str) -> None:
        del self._windows[subscription_id]
        report(words.Ended(self.name, subscription_id))
        self._unsubscribe(subscription_id)

    def _unsubscribe(self, subscription_id: str) -> None:
        self.link.unsubscribe(subscription_id)

    def on_fact(self, fact: object) -> None:
        match fact:
            case Delivered():
                self._on_delivered(fact)
                if fact.ticket is not None:
                    fact.ticket.done()
            case SubscriptionAccepted(subscription=name):
                self._on_accepted(name)
            case SubscriptionFailed(reason=reason):
                report(words.Failed(f"subscriber {self.name!r}: {reason}"))
            case EventsMissed(subscription, source, incarnation, first, last):
                report(words.Missed(self.name, subscription, source_text(source, incarnation), first, last))

    def _on_delivered(self, fact: Delivered) -> None:
        publication = fact.publication
        window = self._windows.get(fact.subscription)
        if window is None or not window.has(self._published_ns(publication)) or is_hidden(publication):
            return
        source = source_text(publication.source, publication.incarnation)
        if publication.sequence > self._marks.get(fact.subscription, {}).get(source, 0):
            self._show(window, publication, late=fact.out_of_order, by=fact.recovered_by)

    def _published_ns(self, publication: Publication) -> int:
        return publication.published_at - self.go.wall_ns

    def _show(self, window: Window, publication: Publication, *, late: bool, by: str) -> None:
        """The application is notified, for the subscription of the window."""
        source = source_text(publication.source, publication.incarnation)
        published_ns = self._published_ns(publication)
        report(
            words.Delivered(
                self.name,
                window.subscription.id,
                source,
                publication.sequence,
                published_ns,
                self.go.now,
                late,
                by,
            )
        )

    def _on_accepted(self, subscription_id: str) -> None:
        window = self._windows.get(subscription_id)
        if window is not None:
            self._accept(window)

    def _accept(self, window: Window) -> None:
        if not window.accepted and window.cancelled_ns == NEVER:
            window.accepted = True
            # What was published earlier in this very instant may have been missed.
            report(words.Accepted(self.name, window.subscription.id, self.go.now + 1))
