"""Keeps a broker's archive in a simulated run, and reads the history of subscribers from it.

The recorder is a client of its broker, as in a real one, and crashes with it; the archive outlives both. What the
archive must have is decided as everywhere (core/overlay/guaranteed/archive_fence.py).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial

from tidings.core.client.bookmark import Reached
from tidings.core.client.session import MAX_TRACKED_SOURCES
from tidings.core.errors import SubscriptionRefused
from tidings.core.events.event import Publication
from tidings.core.events.run import singles
from tidings.core.events.subscription import Interest, Order, Subscription
from tidings.core.facts import Delivered, EventsGivenUp, OrderGap, SubscriptionAccepted
from tidings.core.kernel import Node
from tidings.core.overlay.guaranteed.archive_fence import ArchiveFence
from tidings.core.overlay.guaranteed.broker import GuaranteedBroker
from tidings.core.overlay.guaranteed.share_history import HistoryPosition, HistoryRows
from tidings.core.overlay.guaranteed.share_messages import StartItem
from tidings.core.structures.highest import Highest
from tidings.drivers.virtual.network import SimulatedNetwork
from tidings.scenarios.file.archives import PlannedArchive
from tidings.scenarios.file.faults import PlannedFault
from tidings.scenarios.file.times import NS_PER_MS
from tidings.scenarios.history_actor import HistoryActor, place_of
from tidings.scenarios.virtual.client_node import SimulatedClient
from tidings.scenarios.virtual.sequencers import RunOrdering

SUBSCRIPTION = "archive"
POLL_NS = 2 * NS_PER_MS
RESTART_NS = 200 * NS_PER_MS
RETRY_NS = 100 * NS_PER_MS
BATCH_EVENTS = 20
"""Few, so that faults strike between two of them."""
BATCH_NS = 5 * NS_PER_MS


class SimulatedArchive:
    """Records what its plan says, from the beginning of the run. `write_ns` returns how long the next write takes."""

    def __init__(
        self, network: SimulatedNetwork, plan: PlannedArchive, ordering: RunOrdering | None = None
    ) -> None:
        self.rows: list[tuple[Publication, tuple[str, int, int]]] = []
        """The events, and what the seam compares of each."""
        self.write_ns: Callable[[], int] = lambda: 0
        """Campaigns let the archive lag."""
        self.began_ns: int | None = None
        """Since when it has everything; None: not yet."""
        self._network = network
        self._broker = network.nodes[plan.broker]
        self._schedule = network.schedule
        self._subscription = Subscription(SUBSCRIPTION, plan.topics, None, Order(plan.order))
        self._unwritten: deque[Delivered] = deque()
        self.client = SimulatedClient(
            network,
            plan.node,
            plan.broker,
            reliable=True,
            publishes=False,
            layout=None if ordering is None else ordering.layout,
            patience=None if ordering is None else ordering.patience,
        )
        self._written: Highest[tuple[str, int], int] = Highest(MAX_TRACKED_SOURCES)
        """Source and incarnation -> the last sequence written. A recorder that restarts gets again what it had not
        acknowledged."""
        self._reached: Reached | None = None
        """The same with an order."""
        self.client.subscriber = self._on_fact
        self.client.on_start.append(self._on_start)
        self.client.on_crash.append(self._on_crash)
        self._schedule.at(0, self._start, None)

    def _start(self, _first: object, _second: object) -> None:
        self.client.application.start(self._subscription, self._reached)

    def _on_start(self) -> None:
        if self.client.lives > 1:
            self.client.application.start(self._subscription, self._reached)

    def _on_crash(self) -> None:
        """Lose what was not written, with its broker's process."""
        self._unwritten.clear()
        self.client.node.disk.clear()

    def crash_with(self, fault: PlannedFault) -> None:
        """Crash together with the broker, and be back a while after it."""
        network, name = self._network, self.client.node.node
        until_ns = fault.until_ns + RESTART_NS
        self._schedule.at(fault.at_ns, lambda _first, _second: network.crash(name, keep_state=True))
        self._schedule.at(until_ns, lambda _first, _second: network.restart(name))

    def watch(self, broker: Node) -> None:
        """Tell the broker, which has started, who records its archive."""
        if isinstance(broker, GuaranteedBroker):
            broker.attachments.archive = (self.client.node.node, SUBSCRIPTION)
            broker.share_histories.archive = SimulatedShareArchive(self, broker)

    def _on_fact(self, fact: object) -> None:
        if isinstance(fact, Delivered):
            self._unwritten.append(fact)
            if len(self._unwritten) == 1:
                self._write_later()
        elif isinstance(fact, SubscriptionAccepted):
            self.began_ns = self._schedule.now
        elif isinstance(fact, EventsGivenUp | OrderGap) and fact.ticket is not None:
            fact.ticket.done()

    def _write_later(self) -> None:
        self._schedule.at(self._schedule.now + self.write_ns(), self._write, self.client.lives)

    def _write(self, life: int, _second: object) -> None:
        """Write, then acknowledge."""
        if life != self.client.lives or not self.client.node.up:
            return
        fact = self._unwritten.popleft()
        for publication in singles(fact.stretch):
            source = (publication.source, publication.incarnation)
            if fact.stamp is not None or publication.sequence > (self._written.get(source) or 0):
                self.rows.append((publication, place_of(publication, fact)))
                self._written.raise_to(source, publication.sequence)
        if fact.ticket is not None:
            fact.ticket.done()
        if fact.stamp is not None:
            self._reached = self.client.application.reached(SUBSCRIPTION, 0)
        if self._unwritten:
            self._write_later()

    # --- What it has

    def in_broker(self, broker: GuaranteedBroker, delay_ns: int, act: Callable[[], None]) -> None:
        """Do it later, unless the broker has crashed by then."""

        def maybe(_first: object, _second: object) -> None:
            if self._broker.up and self._broker.protocol is broker:
                act()

        self._schedule.at(self._schedule.now + delay_ns, maybe)

    def fence(self) -> ArchiveFence:
        """Return the fence of the present broker; SubscriptionRefused while it is down."""
        broker = self._broker.protocol if self._broker.up else None
        if not isinstance(broker, GuaranteedBroker):
            raise SubscriptionRefused(f"{self._broker.node} is down")
        return ArchiveFence(broker.name, broker.attachments, broker.delivery)

    def has_reached(self, wanted: Reached) -> bool:
        """Return True if an archive with an order has everything up to these numbers."""
        done = self.client.application.reached(SUBSCRIPTION, 0).done
        return all(done.get(rank, -1) >= number for rank, number in wanted.done.items())


class SimulatedShareArchive:
    """The archive for durable subscriptions and groups of its broker."""

    def __init__(self, archive: SimulatedArchive, broker: GuaranteedBroker) -> None:
        self._archive = archive
        self._broker = broker
        self._id = archive.client.node.node

    def begin(self, start: StartItem, answer: Callable[[HistoryPosition | str], None]) -> None:
        self._archive.in_broker(self._broker, BATCH_NS, lambda: answer(HistoryPosition(self._id, 0)))

    def read(
        self, interest: Interest, position: HistoryPosition, answer: Callable[[HistoryRows | str], None]
    ) -> None:
        self._archive.in_broker(
            self._broker, BATCH_NS, lambda: answer(self._rows(interest.matches, position))
        )

    def _rows(self, selects: Callable[[Publication], bool], position: HistoryPosition) -> HistoryRows:
        rows, end = self._archive.rows, len(self._archive.rows)
        stop = min(position.next + BATCH_EVENTS, end if position.stop < 0 else position.stop)
        found = tuple(event for event, _ in rows[position.next : stop] if selects(event))
        return HistoryRows(self._id, 0, stop, end, found)


class HistoryReading:
    """Reads the history of one subscriber for one attempt to start."""

    def __init__(
        self,
        archive: SimulatedArchive,
        client: SimulatedClient,
        actor: HistoryActor,
        subscription: Subscription,
    ) -> None:
        self._archive = archive
        self._client = client
        self._actor = actor
        self._subscription = subscription
        self._selects = subscription.interest().matches
        self._attempt = actor.reading
        self._life = client.lives
        self._connections = client.connections
        self._generation = client.session.generation
        self._next = self._stop = 0
        self._is_complete: Callable[[], bool]

    def start(self) -> None:
        self._later(0, self._settle)

    def _later(self, delay_ns: int, step: Callable[[], None]) -> None:
        self._client.schedule.at(self._client.schedule.now + delay_ns, self._take, step)

    def _take(self, step: Callable[[], None], _second: object) -> None:
        node = self._client.node
        if not node.up or self._client.lives != self._life or self._actor.reading != self._attempt:
            return
        if not node.holds(self._take, step):
            step()

    def _settle(self) -> None:
        """Find what the archive must have."""
        try:
            self._is_complete = self._condition()
        except SubscriptionRefused:
            self._later(RETRY_NS, self._start_again)
        else:
            self._wait()

    def _condition(self) -> Callable[[], bool]:
        name = self._subscription.id
        if self._subscription.order in (Order.TOTAL, Order.CAUSAL):
            wanted = self._client.application.reached(name, 0)
            return partial(self._archive.has_reached, wanted)
        fence = self._archive.fence()
        return partial(fence.is_passed, fence.raise_for(self._client.node.node, name))

    def _wait(self) -> None:
        if self._client.connections != self._connections or not self._client.session.is_connected:
            # What waited for the archive may arrive there again, after its end as we know it.
            self._start_again()
        elif self._is_complete():
            self._stop = len(self._archive.rows)
            self._actor.settled()
            self._read()
        else:
            self._later(POLL_NS, self._wait)

    def _start_again(self) -> None:
        if self._client.session.is_connected:
            self._actor.start_again()
        else:
            self._later(RETRY_NS, self._start_again)

    def _read(self) -> None:
        if self._client.session.generation != self._generation:
            self._actor.start_again()  # what waited for it at its broker is gone
            return
        rows = self._archive.rows[self._next : min(self._next + BATCH_EVENTS, self._stop)]
        for _, place in rows:
            self._actor.seam.pass_by(*place)
        self._actor.show_history([event for event, _ in rows if self._selects(event)])
        self._next += len(rows)
        if self._next < self._stop:
            self._later(BATCH_NS, self._read)
        else:
            self._actor.go_live()
