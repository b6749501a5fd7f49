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
from collections.abc import Iterator
from typing import NamedTuple

from tidings.model.errors import OrderError
from tidings.model.event import ORDER_ATTRIBUTE, Publication, is_hidden, source_text
from tidings.model.predicates import Scalar
from tidings.model.subscription import Subscription
from tidings.model.topics import TopicPattern
from tidings.protocol.facts import (
    Delivered,
    Misbehaviour,
    PublicationConfirmed,
    PublicationFailed,
    SubscriptionAccepted,
    SubscriptionFailed,
)
from tidings.protocol.sequencing.client import Joined, OrderBroken, PublishNow, Shown
from tidings.protocol.sequencing.stamps import decode_stamp, encode_stamp
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


class _Notified(NamedTuple):
    """What the service notified of; `by` says which gossip recovered it."""

    publication: Publication
    by: str | None


class _Entry:
    """The subscriptions in the service to one entry of the layout."""

    __slots__ = ("since", "subscriptions", "unaccepted")

    def __init__(self, subscriptions: tuple[Subscription, ...], since: int) -> None:
        self.subscriptions = subscriptions
        self.since = since
        """When the application asked for it. What was published before is not shown, whenever it got its number."""
        self.unaccepted: set[str] = set()


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
        self._ranks: frozenset[int] = frozenset()
        """What the application wants now."""
        self._asked: frozenset[int] = frozenset()
        """What the module was asked for."""
        self._joining = 0
        """Changes that the module has not completed."""
        self._key: int | None = None
        self._entries: dict[int, _Entry] = {}
        self._rank_of: dict[str, int] = {}
        self._made = 0
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
        layout = self._ordering.layout
        if self._topics is not None:
            self._current = self._open_window(self._topics)
            self._eligible.append(self._current)
        patterns = tuple(TopicPattern(topic) for topic in self._topics or ())
        self._ranks = frozenset(layout.ranks_for(patterns))
        left = self._asked - self._ranks
        if left and self._key is not None:
            self._asked -= left
            self._client.module.change(self._key, (), left)
        for rank in sorted(self._entries.keys() - self._ranks):
            self._leave_entry(rank)
        for rank in sorted(self._ranks - self._entries.keys()):
            self._join_entry(rank)
        self._maybe_join()

    def _join_entry(self, rank: int) -> None:
        entry = self._entries[rank] = _Entry(tuple(self._subscriptions_to(rank)), self._schedule.now)
        for subscription in entry.subscriptions:
            entry.unaccepted.add(subscription.id)
            self._rank_of[subscription.id] = rank
            self._client.session.subscribe(subscription)

    def _subscriptions_to(self, rank: int) -> Iterator[Subscription]:
        topics, condition = (self._ordering.layout.entry(rank),), self._plan.filter
        self._made += 1
        name = f"{self._name}@{self._made}"
        yield Subscription(name, topics, headers=condition is not None)
        if condition is not None:
            yield Subscription(f"{name}?", topics, condition)

    def _leave_entry(self, rank: int) -> None:
        for subscription in self._entries.pop(rank).subscriptions:
            del self._rank_of[subscription.id]
            self._client.session.unsubscribe(subscription.id)

    # --- How far the change of topics is

    def _maybe_join(self) -> None:
        missing = self._ranks - self._asked
        if any(self._entries[rank].unaccepted for rank in missing):
            return
        if missing:
            if self._key is None:
                self._key = self._client.module.add_subscriber(self._ordering.patience)
            self._asked |= missing
            self._joining += 1
            self._client.module.change(self._key, missing)
        self._maybe_accept()

    def _maybe_accept(self) -> None:
        if self._current is not None and self._asked == self._ranks and not self._joining:
            self._accept(self._current)

    def on_fact(self, fact: object) -> None:
        match fact:
            case Delivered():
                self._on_notified(fact)
            case Shown(key=self._key, stamp=stamp, event=_Notified() as notified, out_of_order=late):
                self._on_shown(stamp.topic, notified.publication, late=late, by=notified.by)
            case Joined(key=self._key):
                self._joining -= 1
                self._maybe_accept()
            case SubscriptionAccepted(subscription=name):
                if name in self._rank_of:
                    self._entries[self._rank_of[name]].unaccepted.discard(name)
                    self._maybe_join()
            case SubscriptionFailed(reason=reason):
                self.failure = f"subscriber {self._name!r}: {reason}"
            case OrderBroken(key=self._key, reason=reason):
                self._on_broken(reason)
            case Misbehaviour():
                self._ordering.complain(self._name, fact)

    # --- Events

    def _on_notified(self, fact: Delivered) -> None:
        rank = self._rank_of.get(fact.subscription)
        if rank is None or self._key is None:
            return
        publication, layout = fact.publication, self._ordering.layout
        carried = publication.attributes().get(ORDER_ATTRIBUTE)
        if carried is None:
            return  # it has no order
        try:
            stamp = decode_stamp(carried, layout.fingerprint, layout.chain)
        except OrderError as error:
            self._ordering.complain(self._name, Misbehaviour(publication.source, str(error)))
            return
        if publication.hidden is not False and is_hidden(publication) and not stamp.count:
            self._client.module.receive_header(self._key, stamp)
            return
        self._client.module.receive(self._key, stamp, _Notified(publication, fact.recovered_by or None))

    def _on_shown(self, rank: int, publication: Publication, *, late: bool, by: str | None) -> None:
        published_at = publication.published_at
        if rank not in self._entries or published_at < self._entries[rank].since:
            return
        for window in reversed(self._eligible):
            if window.requested_at <= published_at < window.cancelled_at:
                if window.subscription.interest().matches(publication):
                    self._show(window, publication, late=late, by=by)
                return

    @property
    def waiting(self) -> str:
        """In words, what is held back and for want of what; empty: nothing."""
        if self._key is None or not (held_back := self._client.module.buffered(self._key)):
            return ""
        return f"{self._name} holds back {held_back} events and waits for {self._client.module.waits_for(self._key)}"

    # --- When it cannot go on

    def _on_crash(self) -> None:
        self._forget()

    def _forget(self) -> None:
        """The module's subscriber is no more: what was on its way for it is lost."""
        self._close_current()
        self._eligible.clear()
        self._key = None
        self._asked = frozenset()
        self._joining = 0

    def _on_start(self) -> None:
        """Back from a crash: the application asks again. What it left meanwhile, its broker may still know."""
        left_over = list(self._entries.values())
        self._entries.clear()
        self._rank_of.clear()
        for entry in left_over:
            for subscription in entry.subscriptions:
                self._client.session.subscribe(subscription)
                self._client.session.unsubscribe(subscription.id)
        if self._topics is not None:
            self._follow()

    def _on_broken(self, reason: str) -> None:
        """Nothing more is shown until the topics change."""
        self._ordering.broken.append(f"{self._name}: {reason}")
        self._forget()
        for rank in sorted(self._entries):
            self._leave_entry(rank)
        self._topics, self._ranks = None, frozenset()
