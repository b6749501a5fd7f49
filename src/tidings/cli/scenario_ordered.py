"""Publishers and subscribers of a live scenario with an order: what the simulator's do, over real sockets.

Both use the client that applications use (simulator/ordered_clients.py says what goes into the trace). A subscriber has
one subscription whatever the changes of its topics. One that crashes comes back as somebody else to the servers.
"""

from __future__ import annotations

import logging

from tidings.cli import scenario_facts as words
from tidings.cli.scenario_client import Arrival, LivePublisher, LiveSubscriber, Window
from tidings.cli.scenario_facts import PublisherWork, SubscriberWork
from tidings.cli.scenario_link import LiveLink, Sequencers, report
from tidings.model.errors import OrderError
from tidings.model.event import Publication
from tidings.model.subscription import Order, Subscription
from tidings.model.topics import TopicPattern
from tidings.net.guaranteed import GUARANTEED
from tidings.protocol.facts import (
    Delivered,
    Misbehaviour,
    PublicationConfirmed,
    PublicationNumbered,
    SubscriptionAccepted,
    SubscriptionBroken,
    SubscriptionChanged,
    SubscriptionFailed,
)
from tidings.simulator.faults import nanoseconds

log = logging.getLogger("tidings.cli")


class OrderedLivePublisher(LivePublisher):
    def __init__(
        self, work: PublisherWork, link: LiveLink, seed: int, end_ns: int, sequencers: Sequencers
    ) -> None:
        super().__init__(work, link, seed, end_ns)
        self._sequencers = sequencers
        self._published = self._confirmed = 0

    def _publish(self, arrival: Arrival) -> None:
        """What has no order leaves at once, so it is reported before; what has one at the end of this turn of the loop,
        if there is room for it."""
        now = self.go.now
        sequence = self.link.connection.client.session.next_sequence
        ordered = self._sequencers.layout.rank_of(arrival.topic) is not None
        if not ordered:
            self._report(arrival, sequence, now)
        wall_ns = self.go.wall_ns + now
        try:
            self.link.application.publish(arrival.topic, arrival.attributes, self._payload, wall_ns)
        except OrderError:
            return  # too many wait: the application is told so
        self._published = sequence
        if ordered:
            self._report(arrival, sequence, now)

    def on_fact(self, fact: object) -> None:
        match fact:
            case PublicationNumbered(entries=entries):
                report(words.Stamped(entries))
            case PublicationConfirmed(last=last):
                self._confirmed = max(self._confirmed, last)
                super().on_fact(fact)

    def on_connection_lost(self) -> None:
        """Best effort: of what was under way nobody will say more, and nobody is to wait for it."""
        if self.link.connection.mode != GUARANTEED:
            for sequence in range(self._confirmed + 1, self._published + 1):
                self.link.application.fail_if_sent(sequence, "the connection was lost")


class OrderedLiveSubscriber(LiveSubscriber):
    def __init__(self, work: SubscriberWork, link: LiveLink, sequencers: Sequencers) -> None:
        super().__init__(work, link)
        self._layout = sequencers.layout
        self._id = ""
        """Of the subscription of this life; empty: none was made yet."""
        self._since: dict[int, int] = {}
        """Entry of the layout -> since when the application wants it."""
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
        for name in self._work.entries:
            self.link.connection.client.session.end_earlier(name)

    def _close_current(self) -> None:
        if self._current is not None:
            self._cancel(self._current)
            self._current = None

    def _unsubscribe(self, subscription_id: str) -> None:
        """A subscription of the trace is none in the service."""

    def _follow(self, topics: tuple[str, ...] | None) -> None:
        """Leave at once what is not wanted any more; join what is once the service has accepted it."""
        application, now = self.link.application, self.go.now
        ranks = self._layout.ranks_for([TopicPattern(topic) for topic in topics or ()])
        self._since = {rank: self._since.get(rank, now) for rank in ranks}
        if topics is None:
            if self._id:
                application.rest(self._id)
            return
        self._current = self._open_window(topics)
        self._since = {rank: min(since, self._current.requested_ns) for rank, since in self._since.items()}
        self._eligible.append(self._current)
        if self._id:
            application.change(self._id, topics, self._work.filter)
        else:
            self._id = self._current.subscription.id
            application.start(Subscription(self._id, topics, self._work.filter, Order(self._work.order)))

    def on_subscribing(self, name: str) -> None:
        """The network must not hear of what nobody would end after a crash."""
        report(words.Entries(self.name, (*self.link.application.beneath, name)))

    def on_fact(self, fact: object) -> None:
        match fact:
            case Delivered():
                super().on_fact(fact)
            case SubscriptionAccepted() | SubscriptionChanged():
                if self._current is not None:
                    self._accept(self._current)
            case SubscriptionFailed(reason=reason):
                report(words.Failed(f"subscriber {self.name!r}: {reason}"))
            case SubscriptionBroken(reason=reason):
                self._on_broken(reason)
            case Misbehaviour(peer=peer, what=what):
                log.warning("%s: %s: %s", self.name, peer, what)

    # --- Events

    def _on_delivered(self, fact: Delivered) -> None:
        publication = fact.publication
        published_ns = self._published_ns(publication)
        if published_ns >= self._since.get(fact.stamp.topic, published_ns + 1):
            self._show_in_window(publication, published_ns, late=fact.out_of_order, by=fact.recovered_by)

    def _show_in_window(self, publication: Publication, published_ns: int, *, late: bool, by: str) -> None:
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
        self._since.clear()
