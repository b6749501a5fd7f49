"""The applications of a scenario: publishers that publish by a clock, subscribers that follow a timeline.

What they do and are told goes into the trace and into the running count of the summary.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from tidings.model.event import Publication, is_hidden, source_text
from tidings.model.predicates import Scalar
from tidings.model.subscription import Order, Subscription
from tidings.protocol.facts import (
    Delivered,
    PublicationConfirmed,
    SubscriptionAccepted,
    SubscriptionFailed,
)
from tidings.scenario.expand import PlannedSubscriber
from tidings.scenario.schema import (
    Attribute,
    BoolAttribute,
    ChoiceAttribute,
    FloatAttribute,
    IntAttribute,
    Publisher,
)
from tidings.simulator.client_node import SimulatedClient
from tidings.simulator.faults import nanoseconds
from tidings.simulator.network import SimulatedNetwork
from tidings.simulator.tally import Tally
from tidings.structures.recent_ids import RecentIds
from tidings.trace.writer import TraceWriter

DRAIN_NS = 5_000_000_000
"""How long a cancelled subscription is kept for what was published before."""
NEVER = 2**63 - 1


def attribute_sampler(attribute: Attribute, random: Random) -> Callable[[], Scalar]:
    match attribute:
        case IntAttribute(low=low, high=high):
            return lambda: random.randint(low, high)
        case FloatAttribute(low=least, high=most):
            return lambda: random.uniform(least, most)
        case ChoiceAttribute(values=values):
            return lambda: random.choice(values)
        case BoolAttribute():
            return lambda: random.random() < 0.5


class SimulatedPublisher:
    def __init__(
        self,
        network: SimulatedNetwork,
        plan: Publisher,
        end_ns: int,
        writer: TraceWriter,
        tally: Tally,
        *,
        reliable: bool,
        blocks: int = 1,
        client: SimulatedClient | None = None,
    ) -> None:
        random = Random(f"{network.seed}:publisher:{plan.name}")
        self._blocks = blocks
        self._schedule = network.schedule
        self._plan = plan
        self._end_ns = end_ns
        self._writer = writer
        self._tally = tally
        self._random = random
        self._samplers = {
            name: attribute_sampler(attribute, random) for name, attribute in sorted(plan.attributes.items())
        }
        self._payload = bytes(plan.size_bytes)
        self._left = plan.count
        self._due_s = plan.start_s
        self._reliable = reliable
        self._client = client or SimulatedClient(
            network, plan.name, plan.at, self.on_fact, reliable=reliable, publishes=True
        )
        self._node = self._client.node
        self._schedule_next(first=True)

    def _schedule_next(self, *, first: bool) -> None:
        if self._left == 0:
            return
        rate_hz = self._plan.rate_hz
        if self._plan.arrival == "poisson":
            self._due_s += self._random.expovariate(rate_hz)
        elif not first:
            self._due_s += 1.0 / rate_hz
        at_ns = nanoseconds(self._due_s)
        if at_ns < self._end_ns:
            self._schedule.at(at_ns, self._publish)

    def _publish(self, _first: object, _second: object) -> None:
        attributes = {name: sample() for name, sample in self._samplers.items()}
        topics = self._plan.topics
        topic = topics[0] if len(topics) == 1 else self._random.choice(topics)
        if self._node.up and not self._node.paused:
            self._publish_event(topic, attributes)
        if self._left is not None:
            self._left -= 1
        self._schedule_next(first=False)

    def _publish_event(self, topic: str, attributes: dict[str, Scalar]) -> None:
        now = self._schedule.now
        self._hand_over(topic, attributes, attributes, now)
        self._tally.publish(topic, attributes, now, self._blocks)

    def _hand_over(
        self, topic: str, attributes: dict[str, Scalar], with_internal: dict[str, Scalar], called_at: int
    ) -> int:
        """Give an event to the service; the trace has it as the application made it."""
        session = self._client.session
        source = source_text(self._plan.name, session.incarnation)
        publication = session.publish(topic, with_internal, self._payload, called_at)
        sequence = publication.sequence
        publication.text_id = f"{source}:{sequence}"
        self._write(source, sequence, topic, attributes, called_at)
        return sequence

    def _write(
        self, source: str, sequence: int, topic: str, attributes: dict[str, Scalar], called_at: int
    ) -> None:
        self._writer.published(
            f"{source}:{sequence}", source, sequence, topic, attributes, len(self._payload), called_at
        )

    def on_fact(self, fact: object) -> None:
        if isinstance(fact, PublicationConfirmed):
            source = source_text(self._plan.name, self._client.session.incarnation)
            for sequence in range(fact.first, fact.last + 1):
                self._writer.confirmed(f"{source}:{sequence}", self._schedule.now)

    @property
    def waiting(self) -> str:
        """In words, what holds up the application's events here; empty: nothing."""
        return ""

    def close(self) -> None:
        """The run is over: the trace gets what is left."""


class Window:
    """A subscription of a subscriber, and the time in which an event must have been published to be shown for it.

    A subscriber whose topics change sees each event once: for the subscription it had when the event was
    published. What is on its way when a subscription is cancelled still arrives, for `DRAIN_NS`.
    """

    __slots__ = (
        "accepted_at",
        "cancelled_at",
        "expected_delivered",
        "first_time",
        "requested_at",
        "subscription",
    )

    def __init__(self, subscription: Subscription, requested_at: int) -> None:
        self.subscription = subscription
        self.requested_at = requested_at
        self.accepted_at = NEVER
        self.cancelled_at = NEVER
        self.expected_delivered = 0
        self.first_time = RecentIds().first_time


class SimulatedSubscriber:
    def __init__(
        self,
        network: SimulatedNetwork,
        plan: PlannedSubscriber,
        writer: TraceWriter,
        tally: Tally,
        *,
        reliable: bool,
        client: SimulatedClient | None = None,
    ) -> None:
        self.failure: str | None = None
        self._schedule = network.schedule
        self._plan = plan
        self._writer = writer
        self._tally = tally
        self._position = 0
        self._windows: dict[str, Window] = {}
        self._current: Window | None = None
        self._count = 0
        self._name = plan.name
        self._write_delivered = writer.delivered
        self._add_latency = tally.latency_ns.add
        self._client = client or SimulatedClient(
            network, plan.name, plan.at, self.on_fact, reliable=reliable, publishes=False
        )
        self._client.on_start.append(self._on_start)
        self._node = self._client.node
        for step in plan.timeline:
            self._schedule.at(nanoseconds(step.at_s), self._change, step.topics)

    def _on_start(self) -> None:
        for window in self._windows.values():  # back from a crash: the application asks again
            self._client.subscribe(window.subscription)

    def _change(self, topics: tuple[str, ...] | None, _second: object) -> None:
        if self._node.holds(self._change, topics):
            return
        if self._current is not None:
            self._cancel(self._current)
            self._current = None
        if topics is not None:
            self._current = self._subscribe(topics)

    def _subscribe(self, topics: tuple[str, ...]) -> Window:
        window = self._open_window(topics)
        if self._node.up:
            self._client.subscribe(window.subscription)
        return window

    def _open_window(self, topics: tuple[str, ...], at: int | None = None) -> Window:
        plan, now = self._plan, self._schedule.now if at is None else at
        subscription = Subscription(f"{plan.name}#{self._count}", topics, plan.filter, Order(plan.order))
        self._count += 1
        self._writer.subscribed(plan.name, subscription.id, topics, plan.filter, plan.order, now)
        window = self._windows[subscription.id] = Window(subscription, now)
        return window

    def _cancel(self, window: Window) -> None:
        self._close_window(window)
        self._schedule.at(window.cancelled_at + DRAIN_NS, self._end, window.subscription.id)

    def _close_window(self, window: Window, at: int | None = None) -> None:
        window.cancelled_at = self._schedule.now if at is None else at
        self._writer.cancelled(self._plan.name, window.subscription.id, window.cancelled_at)
        if window.accepted_at != NEVER:
            self._tally.cancelled(window.subscription.interest(), window.accepted_at)

    def _end(self, subscription_id: str, _second: object) -> None:
        self._tally.expected_delivered += self._windows.pop(subscription_id).expected_delivered
        if self._node.up:
            self._client.unsubscribe(subscription_id)

    def on_fact(self, fact: object) -> None:
        if not isinstance(fact, Delivered):
            self._on_other_fact(fact)
            return
        self._on_delivered(fact)
        if fact.ticket is not None:
            fact.ticket.done()

    def _on_delivered(self, fact: Delivered) -> None:
        publication = fact.publication
        if publication.hidden is not False and is_hidden(publication):
            return
        window = self._windows.get(fact.subscription)
        published_at = publication.published_at
        if window is None or not window.requested_at <= published_at < window.cancelled_at:
            return
        self._show(window, publication, late=fact.out_of_order, by=fact.recovered_by or None)

    def _show(self, window: Window, publication: Publication, *, late: bool, by: str | None) -> None:
        """The application is notified, for the subscription of the window."""
        now, position, published_at = self._schedule.now, self._position, publication.published_at
        self._position = position + 1
        text_id = publication.text_id or str(publication.id)  # one that was on a broker's disk has lost it
        self._write_delivered(self._name, window.subscription.id, position, text_id, now, late, by)
        if by is not None:
            self._tally.recovered += 1
        self._add_latency(now - published_at)
        if late:
            self._tally.out_of_order += 1
        if not window.first_time(publication.source, publication.incarnation, publication.sequence):
            self._tally.duplicates += 1
        elif published_at >= window.accepted_at:
            window.expected_delivered += 1

    @property
    def waiting(self) -> str:
        """In words, what holds up the application's notifications here; empty: nothing."""
        return ""

    def count(self) -> None:
        """Add to the tally, at the end of the run, what is counted here."""
        self._tally.delivered += self._position
        for window in self._windows.values():
            self._tally.expected_delivered += window.expected_delivered

    def _on_other_fact(self, fact: object) -> None:
        if isinstance(fact, SubscriptionAccepted):
            self._on_accepted(fact.subscription)
        elif isinstance(fact, SubscriptionFailed):
            self.failure = f"subscriber {self._plan.name!r}: {fact.reason}"

    def _on_accepted(self, subscription_id: str) -> None:
        window = self._windows.get(subscription_id)
        if window is not None:
            self._accept(window)

    def _accept(self, window: Window) -> None:
        if window.accepted_at == window.cancelled_at == NEVER:
            # What was published earlier in this very instant may have been missed.
            window.accepted_at = self._schedule.now + 1
            self._writer.accepted(self._plan.name, window.subscription.id, window.accepted_at)
            self._tally.accepted(window.subscription.interest(), window.accepted_at)
