"""Publishers and subscribers of a scenario with an order: between them and the service are their ordering modules.

A publisher's events go to the service in the order of its calls, each once it has its stamp. The trace has an event
from then on, with the time of the call; what never got a stamp is written when its publisher crashes or the run ends,
with the sequences that follow.

A subscriber has one subscription in the service for each entry of the layout that it needs (two where it has a
filter: one that gets a header of every event, one that says which events to bring whole), and one key in its module
whatever the changes of its topics. One that crashes comes back as somebody else to the servers: its subscription in
the trace ends with the crash, and another one begins when it is back.
"""

from __future__ import annotations

from collections import deque

from tidings.model.errors import OrderError
from tidings.model.event import ORDER_ATTRIBUTE, Publication, source_text
from tidings.model.predicates import Scalar
from tidings.protocol.facts import (
    Delivered,
    Misbehaviour,
    PublicationConfirmed,
    PublicationFailed,
    SubscriptionAccepted,
    SubscriptionFailed,
)
from tidings.protocol.sequencing.client import Joined, OrderBroken, PublishNow, Shown
from tidings.protocol.sequencing.stamps import encode_stamp
from tidings.protocol.sequencing.topic_changes import Notified, TopicChanges
from tidings.scenario.expand import PlannedSubscriber
from tidings.scenario.schema import Publisher
from tidings.simulator.client_node import SimulatedClient
from tidings.simulator.clients import SimulatedPublisher, SimulatedSubscriber, Window
from tidings.simulator.network import SimulatedNetwork
from tidings.simulator.sequencers import RunOrdering
from tidings.simulator.tally import Tally
from tidings.trace.writer import TraceWriter


class _Call:
    """An event that the application published and the service does not have."""

    __slots__ = ("at", "attributes", "handle", "ready", "topic", "with_internal")

    def __init__(self, topic: str, attributes: dict[str, Scalar], at: int, *, ready: bool) -> None:
        self.topic = topic
        self.attributes = attributes
        self.at = at
        self.ready = ready
        """It has its stamp, or needs none."""
        self.with_internal = attributes
        self.handle: int | None = None


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
        self._calls: deque[_Call] = deque()
        self._handles: dict[int, int] = {}
        """Sequence of an event that the service has not confirmed -> its handle in the module."""
        client = client or SimulatedClient(
            network,
            plan.name,
            plan.at,
            self.on_fact,
            reliable=reliable,
            publishes=True,
            layout=ordering.layout,
        )
        client.on_crash.append(self._on_crash)
        super().__init__(
            network, plan, end_ns, writer, tally, reliable=reliable, blocks=blocks, client=client
        )

    def _publish_event(self, topic: str, attributes: dict[str, Scalar]) -> None:
        now = self._schedule.now
        rank = self._ordering.layout.rank_of(topic)
        call = _Call(topic, attributes, now, ready=rank is None)
        if rank is not None and not self._client.module.publish(rank, call):
            return  # too many wait: the application is told so
        self._tally.publish(topic, attributes, now, self._blocks)
        self._calls.append(call)
        self._hand_over_ready()

    def _hand_over_ready(self) -> None:
        calls, module = self._calls, self._client.module
        while calls and calls[0].ready:
            call = calls.popleft()
            sequence = self._hand_over(call.topic, call.attributes, call.with_internal, call.at)
            if call.handle is None:
                continue
            if self._reliable:
                self._handles[sequence] = call.handle
            else:  # nobody will say more about it
                module.published(call.handle)

    def on_fact(self, fact: object) -> None:
        match fact:
            case PublishNow(event=call, stamp=stamp, handle=handle):
                assert isinstance(call, _Call)
                carried = encode_stamp(self._ordering.layout.fingerprint, stamp)
                call.with_internal = {**call.attributes, ORDER_ATTRIBUTE: carried}
                call.handle, call.ready = handle, True
                self._ordering.stamped(stamp)
                self._hand_over_ready()
            case PublicationConfirmed(first=first, last=last):
                super().on_fact(fact)
                for sequence in range(first, last + 1):
                    confirmed = self._handles.pop(sequence, None)
                    if confirmed is not None:
                        self._client.module.published(confirmed)
            case PublicationFailed(sequence=sequence):
                failed = self._handles.pop(sequence, None)
                if failed is not None:
                    self._client.module.failed(failed)
            case Misbehaviour():
                self._ordering.complain(self._plan.name, fact)

    @property
    def waiting(self) -> str:
        """In words, what the service does not have yet; empty: nothing."""
        unpublished = self._client.module.unpublished
        return (
            f"{self._plan.name} has {unpublished} events that are not with the service" if unpublished else ""
        )

    def _on_crash(self) -> None:
        session = self._client.session
        source = source_text(self._plan.name, session.incarnation)
        for sequence, call in enumerate(self._calls, start=session.next_sequence):
            self._write(source, sequence, call.topic, call.attributes, call.at)
        self._calls.clear()
        self._handles.clear()

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
        self._made = 0
        self._changes = TopicChanges(
            ordering.layout,
            plan.filter,
            ordering.patience,
            module=lambda: self._client.module,
            subscribe=lambda subscription: self._client.session.subscribe(subscription),
            unsubscribe=lambda name: self._client.session.unsubscribe(name),
            on_complete=self._on_complete,
        )
        self._eligible: list[Window] = []
        """For which events may be shown: those of this life."""
        client = client or SimulatedClient(
            network,
            plan.name,
            plan.at,
            self.on_fact,
            reliable=reliable,
            publishes=False,
            layout=ordering.layout,
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
        if self._topics is not None:
            self._current = self._open_window(self._topics)
            self._eligible.append(self._current)
        self._changes.follow(self._topics or (), self._schedule.now, self._name_of)

    def _name_of(self, rank: int) -> str:
        self._made += 1
        return f"{self._name}@{self._made}"

    def _on_complete(self) -> None:
        if self._current is not None:
            self._accept(self._current)

    def on_fact(self, fact: object) -> None:
        match fact:
            case Delivered():
                self._on_notified(fact)
            case Shown(key=self._changes.key, stamp=stamp, event=Notified() as notified, out_of_order=late):
                self._on_shown(stamp.topic, notified.publication, late=late, by=notified.by or None)
            case Joined(key=self._changes.key):
                self._changes.on_joined()
            case SubscriptionAccepted(subscription=name):
                self._changes.on_accepted(name)
            case SubscriptionFailed(reason=reason):
                self.failure = f"subscriber {self._name!r}: {reason}"
            case OrderBroken(key=self._changes.key, reason=reason):
                self._on_broken(reason)
            case Misbehaviour():
                self._ordering.complain(self._name, fact)

    # --- Events

    def _on_notified(self, fact: Delivered) -> None:
        try:
            self._changes.on_notified(fact)
        except OrderError as error:
            self._ordering.complain(self._name, Misbehaviour(fact.publication.source, str(error)))

    def _on_shown(self, rank: int, publication: Publication, *, late: bool, by: str | None) -> None:
        published_at = publication.published_at
        if not self._changes.shows(rank, published_at):
            return
        for window in reversed(self._eligible):
            if window.requested_at <= published_at < window.cancelled_at:
                if window.subscription.interest().matches(publication):
                    self._show(window, publication, late=late, by=by)
                return

    @property
    def waiting(self) -> str:
        """In words, what is held back and for want of what; empty: nothing."""
        key, module = self._changes.key, self._client.module
        if key is None or not (held_back := module.buffered(key)):
            return ""
        return f"{self._name} holds back {held_back} events and waits for {module.waits_for(key)}"

    # --- When it cannot go on

    def _on_crash(self) -> None:
        self._forget()

    def _forget(self) -> None:
        """The module's subscriber is no more: what was on its way for it is lost."""
        self._close_current()
        self._eligible.clear()
        self._changes.forget()

    def _on_start(self) -> None:
        """Back from a crash: the application asks again. What it left meanwhile, its broker may still know."""
        for subscription in self._changes.lose_all():
            self._client.session.subscribe(subscription)
            self._client.session.unsubscribe(subscription.id)
        if self._topics is not None:
            self._follow()

    def _on_broken(self, reason: str) -> None:
        """Nothing more is shown until the topics change."""
        self._ordering.broken.append(f"{self._name}: {reason}")
        self._forget()
        self._changes.leave_all()
        self._topics = None
