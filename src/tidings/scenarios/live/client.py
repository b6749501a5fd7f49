"""Runs the publishers and subscribers of a live scenario over real sockets.

They report what their applications do and receive. A report leaves before the network learns of its fact. So even
after kill -9, no event arrives whose publication was not reported, and none is acknowledged without its delivery.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from tidings.core.client.application import Application
from tidings.core.errors import OrderError
from tidings.core.events.event import Publication, source_text
from tidings.core.events.subscription import ORDERED, Order, Subscription
from tidings.core.facts import EventsGivenUp, Misbehaviour, PublicationConfirmed, PublicationNumbered
from tidings.core.overlay.modes import GUARANTEED
from tidings.scenarios.actor import Actor, Window
from tidings.scenarios.file.arrivals import DueEvent, arrivals, lifetime_ns, scenario_payload
from tidings.scenarios.file.times import NS_PER_S, nanoseconds
from tidings.scenarios.history_actor import HistoryActor
from tidings.scenarios.live import facts as words
from tidings.scenarios.live.facts import PublisherWork, SubscriberWork
from tidings.scenarios.live.history import read_history
from tidings.scenarios.live.link import ClientRole, LiveLink, report
from tidings.scenarios.resuming_actor import ResumingActor

log = logging.getLogger("tidings.cli")


class LivePublisher(ClientRole):
    def __init__(self, work: PublisherWork, link: LiveLink, seed: int, end_ns: int) -> None:
        super().__init__(work.plan.name, link)
        self._absent = work.absent
        self._again = work.lives > 0
        self._source = source_text(work.plan.name, work.lives)
        self._arrivals = arrivals(work.plan, seed, end_ns)
        self._end_ns = end_ns
        self._payload = bytes(work.plan.size_bytes)
        self._lifetime_ns = lifetime_ns(work.plan)
        self._published = self._confirmed = 0

    async def run(self) -> None:
        began_ns = self.go.now if self._again else 0  # a restarted publisher does not catch up
        for arrival in self._arrivals:
            due_ns = arrival.due_ns
            if due_ns < began_ns or any(first <= due_ns < end for first, end in self._absent):
                continue
            await self.until(due_ns)
            if self.go.now >= self._end_ns:
                return
            self._publish(arrival)

    def _publish(self, arrival: DueEvent) -> None:
        """Publish and report. An unordered event leaves at once, so it is reported before the call. An ordered one
        leaves at the end of this turn of the loop, if there is room for it."""
        _, topic, attributes = arrival
        now, sequence = self.go.now, self.link.session.next_sequence
        expires_ns = now + self._lifetime_ns if self._lifetime_ns else None
        line = words.PublishedReport(
            self._source, sequence, topic, attributes, len(self._payload), now, expires_ns
        )
        ordered = self.link.numbers(topic)
        if not ordered:
            report(line)
        published_at = self.go.wall_ns + now
        payload = scenario_payload(self._payload, published_at, self._lifetime_ns)
        try:
            self.link.application.publish(topic, attributes, payload, published_at)
        except OrderError:
            return  # too many events wait; a real application gets this error
        self._published = sequence
        if ordered:
            report(line)

    def on_fact(self, fact: object) -> None:
        match fact:
            case PublicationNumbered(first=first, last=last, entries=entries):
                for _ in range(first, last + 1):
                    report(words.StampedReport(entries))
            case PublicationConfirmed(first=first, last=last):
                self._confirmed = max(self._confirmed, last)
                report(words.Confirmed(self._source, first, last, self.go.now))

    def on_connection_lost(self) -> None:
        """Without a guarantee, fail what is under way: nobody will confirm it, and nobody should wait for it."""
        if self.link.connection.mode != GUARANTEED:
            for sequence in range(self._confirmed + 1, self._published + 1):
                self.link.application.fail_if_sent(sequence, "the connection was lost")


async def follow(
    role: ClientRole, work: SubscriberWork, change: Callable[[tuple[str, ...] | None], None]
) -> None:
    """Follow a subscriber's timeline; after a restart, skip to the last step that is due."""
    timeline, taken, topics = work.timeline, work.done, work.topics
    while taken < len(timeline) and nanoseconds(timeline[taken].at_s) <= role.go.now:
        topics = timeline[taken].topics
        taken += 1
    if topics is not None or taken > work.done:
        change(topics)
    for _ in range(work.done, taken):
        report(words.StepTaken(role.name))
    for step in timeline[taken:]:
        await role.until(nanoseconds(step.at_s))
        change(step.topics)
        report(words.StepTaken(role.name))


class LiveSubscriber(ClientRole):
    """Hosts the actor of a live subscriber."""

    def __init__(self, work: SubscriberWork, link: LiveLink) -> None:
        super().__init__(work.name, link)
        self._work = work
        self.reached = work.reached
        self._order = Order(work.order)
        self._begins_anew = not work.kept and (self._order in ORDERED or work.start != "new")
        self.actor: Actor | None = None
        """None until the client is open."""
        self._reading: asyncio.Task[None] | None = None
        """Reads its history."""

    async def run(self) -> None:
        assert self.actor is not None, "the client is open"
        await follow(self, self._work, self.actor.change)

    def on_open(self) -> None:
        """Make the actor. After a crash, restore its windows and end subscriptions that its broker may still know and
        nobody will use."""
        work, actor = self._work, self._make_actor()
        self.actor = actor
        for name in work.entries:
            self.link.session.end_earlier(name)
        for held in work.held:
            subscription = Subscription(held.subscription, held.topics, work.filter, self._order)
            window = Window(subscription, self.go.wall_ns + held.requested_ns)
            if held.accepted:
                window.accepted_at = window.requested_at
            if held.cancelled_ns is not None:
                window.cancelled_at = self.go.wall_ns + held.cancelled_ns
            actor.restore(window)
        actor.back()

    def _make_actor(self) -> Actor:
        work, order = self._work, self._order
        made, begun = work.made, work.begun
        if work.start != "new":
            return HistoryActor(self, work.name, work.filter, order, made=made)
        if order not in ORDERED or not work.kept:
            return Actor(self, work.name, work.filter, order, kept=work.kept, made=made, begun=begun)
        crashed_at = None if work.crashed_ns is None else self.go.wall_ns + work.crashed_ns
        return ResumingActor(
            self, work.name, work.filter, order, made=made, begun=begun, crashed_at=crashed_at
        )

    def on_fact(self, fact: object) -> None:
        if self.actor is not None:
            self.actor.on_fact(fact)

    def on_subscribing(self, name: str) -> None:
        """Report the subscription first: after a crash, somebody must be able to end it."""
        if self._begins_anew:
            report(words.EntriesReport(self.name, (*self.link.application.beneath, name)))

    # --- The actor's host

    @property
    def now(self) -> int:
        return self.go.wall_ns + self.go.now

    def _since_start(self, at: int) -> int:
        return at - self.go.wall_ns

    @property
    def application(self) -> Application:
        return self.link.application

    def later(self, at: int, action: Callable[[Window], None], window: Window) -> None:
        delay_ns = max(0, at - self.now)
        asyncio.get_running_loop().call_later(delay_ns / NS_PER_S, action, window)

    def requested(self, window: Window) -> None:
        subscription = window.subscription
        report(
            words.Requested(
                self.name,
                subscription.id,
                subscription.topics,
                self._since_start(window.requested_at),
                window.start,
            )
        )

    def accepted(self, window: Window) -> None:
        subscription, at_ns = window.subscription.id, self._since_start(window.accepted_at)
        report(words.Accepted(self.name, subscription, at_ns, self.reached))

    def cancelled(self, window: Window) -> None:
        report(words.Cancelled(self.name, window.subscription.id, self._since_start(window.cancelled_at)))

    def ended(self, window: Window) -> None:
        report(words.Ended(self.name, window.subscription.id))

    def shown(self, window: Window, publication: Publication, late: bool, by: str) -> None:
        source = source_text(publication.source, publication.incarnation)
        subscription, sequence = window.subscription.id, publication.sequence
        if sequence <= self._work.resume_points.get(subscription, {}).get(source, 0):
            return
        published_ns = self._since_start(publication.published_at)
        times = (published_ns, self.go.now)
        expires_at = publication.expires_at
        if expires_at is not None and times[1] > self._since_start(expires_at):
            report(words.ExpiredReport(self.name, subscription, source, sequence, published_ns))
            return
        report(
            words.DeliveredReport(self.name, subscription, source, sequence, *times, late, by, self.reached)
        )

    def missed(self, fact: EventsGivenUp) -> None:
        source = source_text(fact.source, fact.incarnation)
        report(words.MissedReport(self.name, fact.subscription, source, fact.first, fact.last))

    def failed(self, reason: str) -> None:
        report(words.FailedReport(reason))

    def not_resumed(self) -> None:
        log.warning("%s did not resume after its crash", self.name)

    def read_history(self, subscription: Subscription, reading: int) -> None:
        assert isinstance(self.actor, HistoryActor)
        self._reading = asyncio.create_task(read_history(self.link, self.actor, subscription))

    def gap(self, reason: str) -> None:
        log.warning("%s goes on after a gap: %s", self.name, reason)

    def broken(self, reason: str) -> None:
        report(words.Broken(self.name, reason))

    def accused(self, fact: Misbehaviour) -> None:
        log.warning("%s: %s: %s", self.name, fact.peer, fact.what)
