"""Runs the applications of a simulated run: publishers on a clock, subscribers on a timeline.

They write the trace and update the counts of the summary. An event enters the trace when the service has it, with the
time of the call. Events that never got their number enter it when their publisher crashes or the run ends.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from tidings.core.client.application import Application
from tidings.core.client.bookmark import Reached
from tidings.core.errors import OrderError
from tidings.core.events.event import Publication, source_text
from tidings.core.events.payload import PayloadItem
from tidings.core.events.run import RunMaker
from tidings.core.events.subscription import ORDERED, Order, Subscription
from tidings.core.facts import (
    EventsGivenUp,
    Misbehaviour,
    PublicationConfirmed,
    PublicationNumbered,
    PublicationSent,
)
from tidings.core.structures.recent_ids import RecentIds
from tidings.scenarios.actor import NEVER, Actor, Window
from tidings.scenarios.file.arrivals import DueEvent, lifetime_ns, scenario_payload
from tidings.scenarios.file.expand import PlannedSubscriber
from tidings.scenarios.file.schema import Publisher
from tidings.scenarios.file.times import nanoseconds
from tidings.scenarios.history_actor import HistoryActor
from tidings.scenarios.resuming_actor import ResumingActor
from tidings.scenarios.trace.writer import TraceWriter
from tidings.scenarios.virtual.archive import HistoryReading, SimulatedArchive
from tidings.scenarios.virtual.client_node import SimulatedClient
from tidings.scenarios.virtual.sequencers import RunOrdering
from tidings.scenarios.virtual.tally import Tally


class SimulatedPublisher:
    """Publishes the due events, except those due while its node is down or paused."""

    def __init__(
        self,
        client: SimulatedClient,
        plan: Publisher,
        due: Iterator[DueEvent],
        writer: TraceWriter,
        tally: Tally,
        ordering: RunOrdering | None,
        blocks: int,
    ) -> None:
        self.together: Callable[[], int] = lambda: 1
        """Returns how many events to publish at each due time; campaigns draw longer runs."""
        self._client = client
        self._node = client.node
        self._schedule = client.schedule
        self._name = plan.name
        self._due = due
        self._payload = bytes(plan.size_bytes)
        self._lifetime_ns = lifetime_ns(plan)
        self._writer = writer
        self._tally = tally
        self._ordering = ordering
        self._blocks = blocks
        self._waiting: dict[int, DueEvent] = {}
        """Sequence -> event that the service does not have yet."""
        self._calling: DueEvent
        """The event being published."""
        self._sent = 0
        """The last sequence of this incarnation that the service has."""
        self._source = plan.name
        """The trace's name for this incarnation."""
        client.publisher = self.on_fact
        client.on_start.append(self._on_start)
        client.on_crash.append(self._on_crash)
        self._schedule_next()

    def _schedule_next(self) -> None:
        arrival = next(self._due, None)
        if arrival is not None:
            self._schedule.at(arrival.due_ns, self._publish, arrival)

    def _publish(self, arrival: DueEvent, _second: object) -> None:
        if self._node.up and not self._node.paused:
            count = self.together()
            if count > 1 and self._ordering is None:
                self._publish_run(arrival, count)
            else:
                for _ in range(count):
                    self._publish_event(arrival)
        self._schedule_next()

    def _publish_run(self, arrival: DueEvent, count: int) -> None:
        """Publish as hosts do that gather the events of a turn into a run; with an order, the module gathers."""
        now, topic, attributes = arrival
        session = self._client.session
        maker = RunMaker(*session.identity)
        for _ in range(count):
            sequence = session.reserve()
            maker.add(sequence, topic, attributes, self._payload_at(now), now)
            self._write(sequence, arrival)
            self._count(arrival)
        for stretch in maker.take_all():
            session.publish_stretch(stretch)

    def _publish_event(self, arrival: DueEvent) -> None:
        now, topic, attributes = arrival
        self._calling = arrival
        try:
            sequence = self._client.application.publish(topic, attributes, self._payload_at(now), now)
        except OrderError:
            return  # too many events wait; a real application gets this error
        if sequence > self._sent:
            self._waiting[sequence] = arrival
        self._count(arrival)

    def _payload_at(self, now: int) -> PayloadItem:
        return scenario_payload(self._payload, now, self._lifetime_ns)

    def _count(self, arrival: DueEvent) -> None:
        now, topic, attributes = arrival
        self._tally.publish(topic, attributes, now, self._blocks, expires=self._lifetime_ns > 0)

    def on_fact(self, fact: object) -> None:
        if isinstance(fact, PublicationSent):
            if not self._waiting and fact.first == fact.last:
                self._write(fact.first, self._calling)
            else:
                for sequence in range(fact.first, fact.last + 1):
                    self._write(sequence, self._waiting.pop(sequence, self._calling))
            self._sent = fact.last
            return
        if isinstance(fact, PublicationConfirmed):
            source, now = self._source, self._schedule.now
            for sequence in range(fact.first, fact.last + 1):
                self._writer.confirmed(f"{source}:{sequence}", now)
            return
        match fact:
            case PublicationNumbered(first=first, last=last, entries=entries) if self._ordering is not None:
                for _ in range(first, last + 1):
                    self._ordering.stamped(entries)
            case Misbehaviour() if self._ordering is not None:
                self._ordering.complain(self._name, fact)

    def _on_start(self) -> None:
        self._source = source_text(self._name, self._client.session.incarnation)

    def _write(self, sequence: int, arrival: DueEvent) -> None:
        called_at, topic, attributes = arrival
        source, size_bytes = self._source, len(self._payload)
        expires_ns = called_at + self._lifetime_ns if self._lifetime_ns else None
        self._writer.published(
            f"{source}:{sequence}",
            source,
            sequence,
            topic,
            attributes,
            size_bytes,
            called_at,
            None,
            expires_ns,
        )

    @property
    def waiting(self) -> str:
        """Describes what the service does not have yet; empty if nothing."""
        unpublished = self._client.application.unpublished
        return f"{self._name} has {unpublished} events that the service does not have" if unpublished else ""

    def _on_crash(self) -> None:
        for sequence, arrival in self._waiting.items():
            self._write(sequence, arrival)
        self._waiting.clear()
        self._sent = 0

    def close(self) -> None:
        """Write the remaining events to the trace at the end of the run."""
        if self._node.up:
            self._on_crash()


class SimulatedSubscriber:
    """Hosts the actor of a simulated subscriber."""

    def __init__(
        self,
        client: SimulatedClient,
        plan: PlannedSubscriber,
        writer: TraceWriter,
        tally: Tally,
        ordering: RunOrdering | None,
        archive: SimulatedArchive | None = None,
    ) -> None:
        """`archive`: what the subscriber starts with."""
        self.failure: str | None = None
        self.client = self._client = client
        self._archive = archive
        self._node = client.node
        self._schedule = client.schedule
        self._plan = plan
        self._name = plan.name
        self._writer = writer
        self._write_delivered = writer.delivered
        self._tally = tally
        self._add_latency = tally.latency_ns.add
        self._ordering = ordering
        self._position = 0
        self._first_time: dict[Window, Callable[[str, int, int], bool]] = {}
        self._actor = self._make_actor(Order(plan.order))
        self._lost: tuple[str, ...] = ()
        """Subscriptions of the crashed incarnation that the service may still know and nobody will use."""
        client.subscriber = self._actor.on_fact
        client.on_start.append(self._on_start)
        client.on_crash.append(self._on_crash)
        for step in plan.timeline:
            self._schedule.at(nanoseconds(step.at_s), self._change, step.topics)

    def _make_actor(self, order: Order) -> Actor:
        plan = self._plan
        if self._archive is not None:
            return HistoryActor(self, plan.name, plan.filter, order)
        if order in ORDERED and self._client.resumes:
            return ResumingActor(self, plan.name, plan.filter, order)
        return Actor(self, plan.name, plan.filter, order, kept=self._client.reliable and order not in ORDERED)

    def _change(self, topics: tuple[str, ...] | None, _second: object) -> None:
        if not self._node.holds(self._change, topics):
            self._actor.change(topics)

    def take_runs(self) -> None:
        """Let its client deliver runs of events whole from now on."""
        self._client.session.takes_runs = True

    def _on_start(self) -> None:
        self._actor.back()
        for name in self._lost:
            if name not in self._client.application.beneath:
                self._client.session.end_earlier(name)
        self._lost = ()

    def _on_crash(self) -> None:
        if not self._actor.kept:
            self._lost = self._client.application.beneath
        self._actor.crashed()
        resume_points = self._node.disk.get("resume_points", {})
        for name in [name for name in resume_points if name.startswith(f"{self._name}@")]:
            # An order keeps its own position: events that were only buffered were not shown.
            del resume_points[name]

    @property
    def waiting(self) -> str:
        """Describes what is held back and what it waits for; empty if nothing."""
        status = self._client.application.order_status().get(self._actor.id)
        if status is None or not status["buffered"]:
            return ""
        return f"{self._name} holds back {status['buffered']} events and waits for {status['waits_for']}"

    # --- The actor's host

    @property
    def now(self) -> int:
        return self._schedule.now

    @property
    def reached(self) -> Reached | None:
        kept: Reached | None = self._node.disk.get("reached")
        return kept

    @reached.setter
    def reached(self, reached: Reached | None) -> None:
        self._node.disk["reached"] = reached

    def not_resumed(self) -> None:
        assert self._ordering is not None
        self._ordering.not_resumed.append(f"{self._name} did not resume after its crash")

    @property
    def application(self) -> Application | None:
        return self._client.application if self._node.up else None

    def later(self, at: int, action: Callable[[Window], None], window: Window) -> None:
        self._schedule.at(at, lambda window, _: action(window), window)

    def requested(self, window: Window) -> None:
        subscription, plan = window.subscription, self._plan
        self._first_time[window] = RecentIds().first_time
        self._writer.subscribed(
            plan.name,
            subscription.id,
            subscription.topics,
            plan.filter,
            plan.order,
            window.requested_at,
            start=window.start,
        )

    def accepted(self, window: Window) -> None:
        self._writer.accepted(self._name, window.subscription.id, window.accepted_at)
        self._tally.accepted(window.subscription.interest(), window.accepted_at)

    def cancelled(self, window: Window) -> None:
        self._writer.cancelled(self._name, window.subscription.id, window.cancelled_at)
        if window.accepted_at != NEVER:
            self._tally.cancelled(window.subscription.interest(), window.accepted_at)

    def ended(self, window: Window) -> None:
        """Do nothing: the trace has no such row."""

    def shown(self, window: Window, publication: Publication, late: bool, by: str) -> None:
        now, position, tally = self._schedule.now, self._position, self._tally
        expires_at = publication.expires_at
        if expires_at is not None and now > expires_at:
            return  # the trace shows that it did not come, and that it expired
        self._position = position + 1
        text_id = publication.text_id
        if not text_id:  # computed once for all subscribers
            source = source_text(publication.source, publication.incarnation)
            text_id = publication.text_id = f"{source}:{publication.sequence}"
        self._write_delivered(self._name, window.subscription.id, position, text_id, now, late, by or None)
        tally.delivered += 1
        self._add_latency(now - publication.published_at)
        if by:
            tally.recovered += 1
        if late:
            tally.out_of_order += 1
        if not self._first_time[window](publication.source, publication.incarnation, publication.sequence):
            tally.duplicates += 1
        elif publication.published_at >= window.accepted_at:
            tally.expected_delivered += 1
            if expires_at is not None:
                tally.expiring_delivered += 1

    def missed(self, fact: EventsGivenUp) -> None:
        """Do nothing: checkers see it in the trace."""

    def failed(self, reason: str) -> None:
        self.failure = reason

    def read_history(self, subscription: Subscription, reading: int) -> None:
        assert self._archive is not None and isinstance(self._actor, HistoryActor)
        HistoryReading(self._archive, self._client, self._actor, subscription).start()

    def gap(self, reason: str) -> None:
        """Do nothing: the trace has another subscription from now on."""

    def broken(self, reason: str) -> None:
        assert self._ordering is not None
        self._ordering.broken.append(f"{self._name}: {reason}")

    def accused(self, fact: Misbehaviour) -> None:
        if self._ordering is not None:
            self._ordering.complain(self._name, fact)
