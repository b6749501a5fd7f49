"""Publishers and subscribers of a live scenario, over real sockets.

What their applications do and are told is reported. A line leaves before the network hears of what it says: so even
kill -9 leaves no event that nobody has published, and none that was acknowledged and not seen.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from tidings.core.client.application import ORDERED, Application
from tidings.core.errors import OrderError
from tidings.core.events.event import Publication, source_text
from tidings.core.events.subscription import Order, Subscription
from tidings.core.facts import EventsGivenUp, Misbehaviour, PublicationConfirmed, PublicationNumbered
from tidings.core.overlay.modes import GUARANTEED
from tidings.scenarios.actor import Actor, Window
from tidings.scenarios.file.arrivals import DueEvent, arrivals
from tidings.scenarios.file.times import NS_PER_S, nanoseconds
from tidings.scenarios.live import facts as words
from tidings.scenarios.live.facts import PublisherWork, SubscriberWork
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
        self._published = self._confirmed = 0

    async def run(self) -> None:
        began_ns = self.go.now if self._again else 0  # who was away does not catch up
        for arrival in self._arrivals:
            due_ns = arrival.due_ns
            if due_ns < began_ns or any(first <= due_ns < end for first, end in self._absent):
                continue
            await self.until(due_ns)
            if self.go.now >= self._end_ns:
                return
            self._publish(arrival)

    def _publish(self, arrival: DueEvent) -> None:
        """What has no order leaves at once, so it is reported before; what has one at the end of this turn of the loop,
        if there is room for it."""
        _, topic, attributes = arrival
        now, sequence = self.go.now, self.link.session.next_sequence
        line = words.PublishedReport(self._source, sequence, topic, attributes, len(self._payload), now)
        ordered = self.link.numbers(topic)
        if not ordered:
            report(line)
        try:
            self.link.application.publish(topic, attributes, self._payload, self.go.wall_ns + now)
        except OrderError:
            return  # too many wait: the application is told so
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
        """Best effort: of what was under way nobody will say more, and nobody is to wait for it."""
        if self.link.connection.mode != GUARANTEED:
            for sequence in range(self._confirmed + 1, self._published + 1):
                self.link.application.fail_if_sent(sequence, "the connection was lost")


class LiveSubscriber(ClientRole):
    """Hosts the actor."""

    def __init__(self, work: SubscriberWork, link: LiveLink) -> None:
        super().__init__(work.name, link)
        self._work = work
        self.reached = work.reached
        self._order = Order(work.order)
        self._begins_anew = self._order in ORDERED and not work.kept
        self.actor: Actor | None = None
        """From when the client is there."""

    async def run(self) -> None:
        """Who was away when its topics changed asks for the last of them."""
        assert self.actor is not None, "the client is there"
        timeline, taken, topics = self._work.timeline, self._work.done, self._work.topics
        while taken < len(timeline) and nanoseconds(timeline[taken].at_s) <= self.go.now:
            topics = timeline[taken].topics
            taken += 1
        if topics is not None or taken > self._work.done:
            self.actor.change(topics)
        for _ in range(self._work.done, taken):
            report(words.StepTaken(self.name))
        for step in timeline[taken:]:
            await self.until(nanoseconds(step.at_s))
            self.actor.change(step.topics)
            report(words.StepTaken(self.name))

    def on_open(self) -> None:
        """Back from a crash: it asks again for what there was. What its broker may still know and is of no use ends."""
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
        """The network must not hear of what nobody would end after a crash."""
        if self._begins_anew:
            report(words.EntriesReport(self.name, (*self.link.application.beneath, name)))

    # --- What the actor needs and says

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
                self.name, subscription.id, subscription.topics, self._since_start(window.requested_at)
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
        report(
            words.DeliveredReport(self.name, subscription, source, sequence, *times, late, by, self.reached)
        )

    def missed(self, fact: EventsGivenUp) -> None:
        source = source_text(fact.source, fact.incarnation)
        report(words.MissedReport(self.name, fact.subscription, source, fact.first, fact.last))

    def failed(self, reason: str) -> None:
        report(words.FailedReport(reason))

    def not_resumed(self) -> None:
        log.warning("%s has not resumed after its crash", self.name)

    def broken(self, reason: str) -> None:
        report(words.Broken(self.name, reason))

    def accused(self, fact: Misbehaviour) -> None:
        log.warning("%s: %s: %s", self.name, fact.peer, fact.what)
