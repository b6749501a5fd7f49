"""Publishers and subscribers of a scenario with an order, on the client that applications use.

The trace has an event from when the service has it, with the time of the call; what never got a stamp is written when
its publisher crashes or the run ends, with its sequence.

A subscriber whose topics change keeps its one subscription, whatever the changes. On a guaranteed network so does one
that crashes: it keeps what it was shown, and its next life resumes. Where that cannot be, and on other networks, it
comes back as somebody else to the servers: its subscription in the trace ends with the crash, and another begins.
"""

from __future__ import annotations

from collections.abc import Iterator

from tidings.model.errors import OrderError
from tidings.model.event import Publication, source_text
from tidings.model.predicates import Scalar
from tidings.model.subscription import Order, Subscription
from tidings.model.topics import TopicPattern
from tidings.protocol.application.bookmark import Reached
from tidings.protocol.facts import (
    Delivered,
    Misbehaviour,
    PublicationConfirmed,
    PublicationNumbered,
    PublicationSent,
    SubscriptionAccepted,
    SubscriptionBroken,
    SubscriptionChanged,
    SubscriptionFailed,
)
from tidings.scenario.expand import PlannedSubscriber
from tidings.scenario.schema import Publisher
from tidings.simulator.client_node import SimulatedClient
from tidings.simulator.clients import NEVER, SimulatedPublisher, SimulatedSubscriber, Window
from tidings.simulator.network import SimulatedNetwork
from tidings.simulator.sequencers import RunOrdering
from tidings.simulator.tally import Tally
from tidings.trace.writer import TraceWriter

REACHED = "reached"
"""Where on its disk a subscriber has how far it has come."""
Call = tuple[str, dict[str, Scalar], int]
"""What the application published, and when."""


class OrderedPublisher(SimulatedPublisher):
    def __init__(
        self,
        network: SimulatedNetwork,
        plan: Publisher,
        end_ns: int,
        writer: TraceWriter,
        tally: Tally,
        ordering: RunOrdering,
        *,
        reliable: bool,
        blocks: int = 1,
        client: SimulatedClient | None = None,
    ) -> None:
        self._ordering = ordering
        self._waiting: dict[int, Call] = {}
        """By sequence: what the service does not have."""
        self._calling: Call
        """What is being published."""
        self._sent = 0
        """The last sequence of this life that the service has."""
        client = client or SimulatedClient(
            network,
            plan.name,
            plan.at,
            self.on_fact,
            reliable=reliable,
            publishes=True,
            layout=ordering.layout,
            patience=ordering.patience,
        )
        client.on_crash.append(self._on_crash)
        super().__init__(
            network, plan, end_ns, writer, tally, reliable=reliable, blocks=blocks, client=client
        )

    def _publish_event(self, topic: str, attributes: dict[str, Scalar]) -> None:
        now = self._schedule.now
        self._calling = call = (topic, attributes, now)
        try:
            sequence = self._client.application.publish(topic, attributes, self._payload, now)
        except OrderError:
            return  # too many wait: the application is told so
        if sequence > self._sent:
            self._waiting[sequence] = call
        self._tally.publish(topic, attributes, now, self._blocks)

    def on_fact(self, fact: object) -> None:
        match fact:
            case PublicationSent(sequence=sequence):
                self._on_sent(sequence)
            case PublicationNumbered(entries=entries):
                self._ordering.stamped(entries)
            case PublicationConfirmed():
                super().on_fact(fact)
            case Misbehaviour():
                self._ordering.complain(self._plan.name, fact)

    def _on_sent(self, sequence: int) -> None:
        topic, attributes, called_at = self._waiting.pop(sequence, self._calling)
        self._write_published(sequence, topic, attributes, called_at)
        self._sent = sequence

    @property
    def waiting(self) -> str:
        """In words, what the service does not have yet; empty: nothing."""
        unpublished = self._client.application.unpublished
        return (
            f"{self._plan.name} has {unpublished} events that are not with the service" if unpublished else ""
        )

    def _on_crash(self) -> None:
        for sequence, (topic, attributes, called_at) in self._waiting.items():
            self._write_published(sequence, topic, attributes, called_at)
        self._waiting.clear()
        self._sent = 0

    def _write_published(
        self, sequence: int, topic: str, attributes: dict[str, Scalar], called_at: int
    ) -> None:
        source = source_text(self._plan.name, self._client.session.incarnation)
        self._write(source, sequence, topic, attributes, called_at)

    def close(self) -> None:
        if self._node.up:
            self._on_crash()


class OrderedSubscriber(SimulatedSubscriber):
    def __init__(
        self,
        network: SimulatedNetwork,
        plan: PlannedSubscriber,
        writer: TraceWriter,
        tally: Tally,
        ordering: RunOrdering,
        *,
        reliable: bool,
        client: SimulatedClient | None = None,
    ) -> None:
        self._ordering = ordering
        self._topics: tuple[str, ...] | None = None
        self._asked_for: tuple[str, ...] | None = None
        """The topics that the network was last asked for."""
        self._started_at = 0
        self._id = ""
        """Of the subscription of this life; empty: none was made yet."""
        self._lost: tuple[str, ...] = ()
        """What the service may still know of the life before."""
        self._since: dict[str, int] = {}
        """Topic -> since when the application wants it."""
        self._eligible: list[Window] = []
        """For which events may be shown."""
        self._resumes = reliable and ordering.patience is None
        self._crashed_at: int | None = None
        """Of the life before, until it is known whether this one has resumed."""
        client = client or SimulatedClient(
            network,
            plan.name,
            plan.at,
            self.on_fact,
            reliable=reliable,
            publishes=False,
            layout=ordering.layout,
            patience=ordering.patience,
        )
        client.on_crash.append(self._on_crash)
        super().__init__(network, plan, writer, tally, reliable=reliable, client=client)

    # --- What the application wants

    def _change(self, topics: tuple[str, ...] | None, _second: object) -> None:
        if self._node.holds(self._change, topics):
            return
        self._close_current()
        self._topics = topics
        if self._node.up:
            self._follow()

    def _close_current(self) -> None:
        if self._current is not None:
            self._close_window(self._current)
            self._current = None

    def _follow(self) -> None:
        """Leave at once what is not wanted any more; join what is once the service has accepted it."""
        application, topics, now = self._client.application, self._topics, self._schedule.now
        self._since = {topic: self._since.get(topic, now) for topic in topics or ()}
        if topics is None:
            if not self._id and self._asked_for is not None:  # what the life before wanted is not any more
                self._start(self._asked_for)
            if self._id:
                application.rest(self._id)
            return
        if self._current is None:
            self._current = self._open_window(topics)
            self._eligible.append(self._current)
        if self._id:
            application.change(self._id, topics, self._plan.filter)
        else:
            self._start(topics)
        self._asked_for = topics

    def _start(self, topics: tuple[str, ...]) -> None:
        self._id = self._name if self._resumes else f"{self._name}~{self._client.lives}"
        subscription = Subscription(self._id, topics, self._plan.filter, Order(self._plan.order))
        self._client.application.start(subscription, self._node.disk.get(REACHED))

    def on_fact(self, fact: object) -> None:
        match fact:
            case Delivered():
                super().on_fact(fact)
            case SubscriptionAccepted() | SubscriptionChanged():
                self._look_at_life()
                self._keep_reached(0)
                if self._current is not None:
                    self._accept(self._current)
            case SubscriptionFailed(reason=reason):
                self.failure = f"subscriber {self._name!r}: {reason}"
            case SubscriptionBroken(reason=reason):
                self._on_broken(reason)
            case Misbehaviour():
                self._ordering.complain(self._name, fact)

    # --- Events

    def _on_delivered(self, fact: Delivered) -> None:
        """What is shown is kept, with how far that is, before anybody hears that it is done with."""
        self._look_at_life()
        self._keep_reached(1)
        publication = fact.publication
        if any(publication.published_at >= at for at in self._wanted_since(publication.topic)):
            self._show_in_window(publication, late=fact.out_of_order, by=fact.recovered_by or None)

    def _wanted_since(self, topic: str) -> Iterator[int]:
        """What was left is not shown any more, though it is wanted again and its entry was never left."""
        return (at for wanted, at in self._since.items() if TopicPattern(wanted).matches(topic))

    def _show_in_window(self, publication: Publication, *, late: bool, by: str | None) -> None:
        published_at = publication.published_at
        for window in reversed(self._eligible):
            if window.requested_at <= published_at < window.cancelled_at:
                if window.subscription.interest().matches(publication):
                    self._show(window, publication, late=late, by=by)
                return

    def _keep_reached(self, count: int) -> None:
        if self._resumes:
            self._node.disk[REACHED] = self._client.application.reached(self._id, count)

    @property
    def waiting(self) -> str:
        """In words, what is held back and for want of what; empty: nothing."""
        status = self._client.application.order_status().get(self._id)
        if status is None or not status["buffered"]:
            return ""
        return f"{self._name} holds back {status['buffered']} events and waits for {status['waits_for']}"

    # --- When it cannot go on

    def _on_crash(self) -> None:
        marks = self._node.disk.get("marks", {})
        for name in [name for name in marks if name.startswith(f"{self._id}@")]:
            del marks[name]  # an order has its own: what came and was only buffered was not shown
        self._id = ""
        if self._resumes:
            self._crashed_at = self._schedule.now
        else:
            self._lost = self._client.application.beneath
            self._since.clear()
            self._forget()

    def _look_at_life(self) -> None:
        """Once it is known who this life is: not the one before, if its subscriber is another."""
        crashed_at, self._crashed_at = self._crashed_at, None
        if crashed_at is None:
            return
        kept: Reached | None = self._node.disk.get(REACHED)
        now = self._client.application.reached(self._id, 0)
        if kept is None or kept.incarnation != now.incarnation:
            had = any(window.accepted_at < crashed_at <= window.cancelled_at for window in self._eligible)
            if had and kept is not None and kept.done:
                self._ordering.not_resumed.append(f"{self._name} has not resumed after its crash")
            self._begin_anew(crashed_at)

    def _begin_anew(self, crashed_at: int) -> None:
        """What was on its way for the subscription of the life before is lost."""
        topics, self._current = self._topics, None
        for window in self._eligible:
            if window.cancelled_at == NEVER:
                self._close_window(window, crashed_at)
        self._eligible.clear()
        self._since = dict.fromkeys(self._since, self._started_at)
        if topics is not None:
            self._current = self._open_window(topics, self._started_at)
            self._eligible.append(self._current)

    def _forget(self) -> None:
        """What was on its way for the subscription is lost."""
        self._close_current()
        self._eligible.clear()

    def _on_start(self) -> None:
        """Back from a crash: the application asks again. What it left meanwhile, its broker may still know."""
        self._started_at = self._schedule.now
        for name in self._lost:
            self._client.session.end_earlier(name)
        self._lost = ()
        if self._topics is not None or self._resumes:
            self._follow()

    def _on_broken(self, reason: str) -> None:
        """Nothing more is shown until the topics change."""
        self._ordering.broken.append(f"{self._name}: {reason}")
        self._forget()
        self._since.clear()
        self._node.disk.pop(REACHED, None)
        self._topics = self._crashed_at = None
