"""Publishers and subscribers of a live scenario with an order: what the simulator's do, over real sockets.

Between them and the service is their ordering module (simulator/ordered_clients.py says what is done with it). A
subscriber has one subscription in the service for each entry of the layout that it needs, or two, and one key in the
module whatever the changes of its topics. One that crashes comes back as somebody else to the servers.
"""

from __future__ import annotations

import logging
from collections import deque

from tidings.cli import scenario_facts as words
from tidings.cli.scenario_client import Arrival, LivePublisher, LiveSubscriber, Window
from tidings.cli.scenario_facts import PublisherWork, SubscriberWork
from tidings.cli.scenario_link import LiveLink, Sequencers, report
from tidings.model.errors import OrderError
from tidings.model.event import ORDER_ATTRIBUTE, Publication
from tidings.model.predicates import Scalar
from tidings.net.guaranteed import GUARANTEED
from tidings.protocol.facts import (
    Delivered,
    PublicationConfirmed,
    PublicationFailed,
    SubscriptionAccepted,
    SubscriptionFailed,
)
from tidings.protocol.sequencing.client import Joined, OrderBroken, PublishNow, Shown
from tidings.protocol.sequencing.stamps import encode_stamp
from tidings.protocol.sequencing.topic_changes import Notified, TopicChanges
from tidings.simulator.faults import nanoseconds

log = logging.getLogger("tidings.cli")


class _Call:
    """An event that the application published and the service does not have."""

    __slots__ = ("attributes", "called_ns", "handle", "ready", "topic")

    def __init__(self, arrival: Arrival, called_ns: int, *, ready: bool) -> None:
        self.topic = arrival.topic
        self.attributes: dict[str, Scalar] = arrival.attributes
        self.called_ns = called_ns
        self.ready = ready
        """It has its stamp, or needs none."""
        self.handle: int | None = None


class OrderedLivePublisher(LivePublisher):
    def __init__(
        self, work: PublisherWork, link: LiveLink, seed: int, end_ns: int, sequencers: Sequencers
    ) -> None:
        super().__init__(work, link, seed, end_ns)
        self._sequencers = sequencers
        self._calls: deque[_Call] = deque()
        self._handles: dict[int, int] = {}
        """Sequence of an event that the service has not confirmed -> its handle in the module."""

    def _publish(self, arrival: Arrival) -> None:
        now, rank = self.go.now, self._sequencers.layout.rank_of(arrival.topic)
        call = _Call(arrival, now, ready=rank is None)
        if rank is not None and not self._sequencers.module.publish(rank, call):
            return  # too many wait: the application is told so
        # What goes to the service goes in the order of the calls: so its sequence is known already. The request for
        # a number leaves at the end of this turn of the loop, after the report.
        self._report(arrival, self.link.connection.client.session.next_sequence + len(self._calls), now)
        self._calls.append(call)
        self._hand_over_ready()

    def _hand_over_ready(self) -> None:
        while self._calls and self._calls[0].ready:
            call = self._calls.popleft()
            sequence = self._hand_over(call.topic, call.attributes, call.called_ns)
            if call.handle is not None:
                self._handles[sequence] = call.handle

    def on_fact(self, fact: object) -> None:
        match fact:
            case PublishNow(event=_Call() as call, stamp=stamp, handle=handle):
                carried = encode_stamp(self._sequencers.layout.fingerprint, stamp)
                call.attributes = {**call.attributes, ORDER_ATTRIBUTE: carried}
                call.handle, call.ready = handle, True
                report(words.Stamped(1 + len(stamp.index)))
                self._hand_over_ready()
            case PublicationConfirmed(first=first, last=last):
                super().on_fact(fact)
                for sequence in range(first, last + 1):
                    confirmed = self._handles.pop(sequence, None)
                    if confirmed is not None:
                        self._sequencers.module.published(confirmed)
            case PublicationFailed(sequence=sequence):
                self._fail(sequence)

    def on_connection_lost(self) -> None:
        """Best effort: of what was under way nobody will say more, and nobody is to wait for it."""
        if self.link.connection.mode != GUARANTEED:
            for sequence in list(self._handles):
                self._fail(sequence)

    def _fail(self, sequence: int) -> None:
        failed = self._handles.pop(sequence, None)
        if failed is not None:
            self._sequencers.module.failed(failed)


class OrderedLiveSubscriber(LiveSubscriber):
    def __init__(self, work: SubscriberWork, link: LiveLink, sequencers: Sequencers) -> None:
        super().__init__(work, link)
        self._sequencers = sequencers
        self._changes = TopicChanges(
            sequencers.layout,
            work.filter,
            sequencers.patience,
            module=lambda: self._sequencers.module,
            subscribe=lambda subscription: self.link.connection.client.subscribe(subscription),
            unsubscribe=lambda name: self.link.connection.client.unsubscribe(name),
            on_complete=self._on_complete,
        )
        self._eligible: list[Window] = []
        """For which events may be shown."""

    # --- What the application wants

    async def run(self) -> None:
        timeline, taken, topics = self._work.timeline, self._work.done, self._work.topics
        # Who was away when its topics changed asks for the last of them.
        while taken < len(timeline) and nanoseconds(timeline[taken].at_s) <= self.go.now:
            topics = timeline[taken].topics
            taken += 1
            report(words.StepTaken(self.name))
        if topics is not None:
            self._follow(topics)
        for step in timeline[taken:]:
            await self.until(nanoseconds(step.at_s))
            self._close_current()
            self._follow(step.topics)
            report(words.StepTaken(self.name))

    def on_first_connection(self) -> None:
        """Back from a crash: what its broker may still know of the life before is of no use."""
        session = self.link.connection.client.session
        for name in self._work.entries:
            for subscription in self._changes.subscriptions(int(name.rpartition("@")[2]), name):
                session.subscribe(subscription)
                session.unsubscribe(subscription.id)

    def _close_current(self) -> None:
        if self._current is not None:
            self._cancel(self._current)
            self._current = None

    def _unsubscribe(self, subscription_id: str) -> None:
        """A subscription of the trace is none in the service."""

    def _follow(self, topics: tuple[str, ...] | None) -> None:
        """Leave at once what is not wanted any more; join what is once the service has accepted it."""
        if topics is not None:
            self._current = self._open_window(topics)
            self._eligible.append(self._current)
        since = 0 if self._current is None else self._current.requested_ns
        self._changes.follow(topics or (), since, self._name_of, self._report_entries)

    def _name_of(self, rank: int) -> str:
        """Never used before: no window joins an entry twice."""
        assert self._current is not None
        return f"{self._current.subscription.id}@{rank}"

    def _report_entries(self, names: tuple[str, ...]) -> None:
        report(words.Entries(self.name, names))

    def _on_complete(self) -> None:
        if self._current is not None:
            self._accept(self._current)

    def on_fact(self, fact: object) -> None:
        match fact:
            case Delivered():
                self._on_notified(fact)
            case Shown(key=self._changes.key, stamp=stamp, event=Notified() as notified, out_of_order=late):
                self._on_shown(stamp.topic, notified.publication, late=late, by=notified.by)
            case Joined(key=self._changes.key):
                self._changes.on_joined()
            case SubscriptionAccepted(subscription=name):
                self._changes.on_accepted(name)
            case SubscriptionFailed(reason=reason):
                report(words.Failed(f"subscriber {self.name!r}: {reason}"))
            case OrderBroken(key=self._changes.key, reason=reason):
                self._on_broken(reason)

    # --- Events

    def _on_notified(self, fact: Delivered) -> None:
        try:
            self._changes.on_notified(fact)
        except OrderError as error:
            log.warning("%s: an event of %s was left out: %s", self.name, fact.publication.source, error)

    def _on_shown(self, rank: int, publication: Publication, *, late: bool, by: str) -> None:
        published_ns = self._published_ns(publication)
        if not self._changes.shows(rank, published_ns):
            return
        for window in reversed(self._eligible):
            if window.has(published_ns):
                if window.subscription.interest().matches(publication):
                    self._show(window, publication, late=late, by=by)
                return

    # --- When it cannot go on

    def _on_broken(self, reason: str) -> None:
        """Nothing more is shown until the topics change."""
        report(words.Broken(self.name, reason))
        self._close_current()
        self._eligible.clear()
        self._changes.forget()
        self._changes.leave_all()
