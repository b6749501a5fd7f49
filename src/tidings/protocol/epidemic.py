"""A broker of the overlay in mode epidemic: best-effort routing on a tree, losses repaired by gossip.

Papers epidemic and polarized; the parts are in protocol/recovery. Interests are forwarded without covering: an origin
numbers an event for every pattern that anybody subscribes to, so it must know them all (epidemic, section 4.2).
"""

from __future__ import annotations

from collections.abc import Sequence

from tidings.model.messages import PatternCount
from tidings.model.recovery_messages import PatternNumbers
from tidings.model.subscription import Interest
from tidings.protocol.edge import Edge
from tidings.protocol.forwarding import Forwarding
from tidings.protocol.kernel import Node, Port
from tidings.protocol.labels import Label, label_text
from tidings.protocol.links import Numbers
from tidings.protocol.matching import Matcher
from tidings.protocol.recovery.circle import Circle
from tidings.protocol.recovery.counted import Count, Counted
from tidings.protocol.recovery.directory import Directory
from tidings.protocol.recovery.gossip import Gossip
from tidings.protocol.recovery.high_water import HighWaters
from tidings.protocol.recovery.holdings import Holdings
from tidings.protocol.recovery.link_loss import LinkLoss
from tidings.protocol.recovery.numbering import Numbering
from tidings.protocol.recovery.patterns import Patterns
from tidings.protocol.recovery.settings import RecoverySettings
from tidings.protocol.recovery.tree import EpidemicTree
from tidings.protocol.routing import RoutingTable

MAX_SETTLED_NUMBERS = 1_024
ABSENT_AFTER_NS = 15_000_000_000
LONGEST_RETRY_NS = 1_000_000_000
"""Links lose, and in bursts: a neighbour that does not answer is asked more often, and given up later."""


class EpidemicBroker(Node):
    """`incarnation` grows with every start. Without a `label` the broker asks its neighbours for one."""

    def __init__(
        self,
        port: Port,
        neighbours: Sequence[str],
        settings: RecoverySettings,
        *,
        incarnation: int,
        label: Label | None = None,
        address: str = "",
        matcher: Matcher | None = None,
    ) -> None:
        if matcher is None:
            matcher = Matcher()
        settings = settings.resolved()
        self.name = port.node
        self.settings = settings
        self.table = RoutingTable(matcher, port)
        self.numbering = Numbering()
        self.patterns = Patterns(port, self.table, self.numbering)
        self.counted = Counted()
        self.holdings = Holdings(port, settings)
        self.forwarding = Forwarding(
            port,
            neighbours,
            self.table,
            incarnation=incarnation,
            covering=False,
            absent_after_ns=ABSENT_AFTER_NS,
            longest_retry_ns=LONGEST_RETRY_NS,
        )
        self.edge = Edge(port, neighbours, self.table, self.forwarding)
        self.directory = Directory(port, neighbours, incarnation=incarnation, label=label, address=address)
        self.link_loss = LinkLoss(
            port, neighbours, incarnation=incarnation, enabled=settings.weights == "loss"
        )
        self.circle = Circle(port, self.directory, settings)
        self.high_waters = HighWaters(
            port,
            neighbours,
            self.patterns,
            interval_ns=settings.interval_ns,
            enabled=settings.solicits,
        )
        self.tree = EpidemicTree(
            port,
            neighbours,
            self.table,
            matcher,
            settings,
            self.patterns,
            self.holdings,
            self.link_loss,
        )
        self.gossip = Gossip(port, neighbours, settings, self.patterns, self.holdings, self.circle)
        self._port = port
        self._connect()
        super().__init__(
            (
                self.forwarding,
                self.edge,
                self.directory,
                self.link_loss,
                self.high_waters,
                self.tree,
                self.gossip,
            )
        )

    def _connect(self) -> None:
        self.edge.describe = self.status
        self.edge.on_accepted = self._on_accepted
        self.patterns.on_installed = self.counted.open
        self.patterns.on_removed = self.counted.close
        self.patterns.on_unsubscribed = self._on_unsubscribed
        self.patterns.on_local = self._on_local_patterns
        self.patterns.on_renamed = self._on_renamed
        self.forwarding.numbers_of = self._numbers_of
        self.forwarding.on_numbers = self._on_numbers
        self.directory.on_entry = lambda entry: self.circle.changed()
        self.directory.on_label = self.circle.changed
        self.link_loss.on_change = self._on_loss_rate
        self.high_waters.on_told = self._on_high_water
        self.tree.on_gained = self.gossip.on_gained
        self.tree.on_block = self.gossip.on_block
        self.tree.on_pushed = self.gossip.on_pushed
        self.tree.on_numbers = self._on_event_numbers
        self.tree.is_known = self.circle.known

    def discard(self) -> None:
        self.table.discard()

    # --- Interests come and go

    def _on_unsubscribed(self, pattern: bytes) -> None:
        self.holdings.losses.unwatch(pattern)

    def _on_local_patterns(self) -> None:
        self.directory.set_patterns(self.patterns.local_ids())

    def _on_accepted(self, interest: Interest) -> None:
        """From here on our clients are owed what matches: what is counted above these numbers.

        Where a pattern is watched already, others are owed what is below them, too.
        """
        losses = self.holdings.losses
        for pattern in self.patterns.ids(interest) if self.settings.solicits else ():
            if not losses.watches(pattern):
                losses.watch(pattern, self._counts(pattern))
                continue
            for origin, epoch, number in self._counts(pattern):
                if origin != self.name:
                    losses.high_water(origin, ((pattern, epoch, number),), self._port.now)

    def _on_renamed(self, before: bytes, after: bytes) -> None:
        """A new name is a new epoch at every origin: what is counted by it starts at nothing."""
        if self.holdings.losses.watches(before):
            self.holdings.losses.unwatch(before)
            self.holdings.losses.watch(after, self._counts(after))

    # --- How far origins have counted

    def _numbers_of(self, interest: Interest) -> Numbers:
        if not self.settings.solicits:
            return ()
        numbers: list[PatternCount] = []
        for pattern in self.patterns.ids(interest):
            numbers += [(pattern, *count) for count in self._counts(pattern)]
        return tuple(numbers[:MAX_SETTLED_NUMBERS])

    def _counts(self, pattern: bytes) -> tuple[Count, ...]:
        """By all origins, ourselves among them."""
        mine = self.patterns.current(pattern)
        counted = self.counted.counts(pattern)
        return counted if mine is None or mine[1] == 0 else ((self.name, *mine), *counted)

    def _on_numbers(self, peer: str, numbers: Numbers) -> None:
        """News for those behind us, too: we, or the one who told us, may have forgotten it in a crash."""
        for pattern, origin, epoch, number in numbers:
            self.high_waters.hear(origin, pattern, epoch, number, peer)

    def _on_event_numbers(self, origin: str, numbers: PatternNumbers, via: str) -> None:
        if origin != self.name:
            self.counted.saw(origin, numbers)
        self.high_waters.raised(origin, numbers, via)

    def _on_high_water(self, origin: str, numbers: PatternNumbers) -> None:
        self.counted.saw(origin, numbers)
        self.holdings.losses.high_water(origin, numbers, self._port.now)
        if self.holdings.losses.lost:
            self.gossip.hasten()

    def _on_loss_rate(self, peer: str, rate: float) -> None:
        """Ours is the link from our parent; every broker tells of its own."""
        if peer == self.directory.parent:
            self.directory.set_loss_ppm(round(rate * 1_000_000))
            self.circle.changed()

    # --- Status

    def status(self) -> dict[str, object]:
        """What `tidings status` shows."""
        holdings, gossip = self.holdings, self.gossip
        label = self.directory.label
        return {
            "broker": self.name,
            "mode": "epidemic",
            "incarnation": self.forwarding.incarnation,
            "label": None if label is None else label_text(label),
            "interests": len(self.table),
            "clients": len(self.edge.clients),
            "subscriptions": sum(len(held) for held in self.edge.clients.values()),
            "subscriptions_not_yet_accepted": self.edge.unaccepted,
            "duplicates_dropped": self.tree.duplicates,
            "recovery": {
                "algorithm": self.settings.algorithm,
                "brokers_known": len(self.directory.others),
                "cached_events": len(holdings.cache),
                "cached_bytes": holdings.cache.size_bytes,
                "lost_now": holdings.losses.lost,
                "given_up": holdings.losses.given_up,
                "answered": gossip.answers.answered,
                "answers_refused": gossip.answers.refused,
                "throttled": gossip.budget.throttled,
                "pushes_received": gossip.pushes,
                "pushes_useful": gossip.useful_pushes,
                "pulls_received": gossip.pulls,
                "pulls_useful": gossip.useful_pulls,
            },
            "neighbours": {
                link.peer: {
                    "present": link.present and link.heard > 0,
                    "interests_sent": len(link.sent),
                    "interests_received": len(link.received),
                    "changes_waiting": len(link.stream),
                    "loss": self.link_loss.rates.get(link.peer, 0.0),
                }
                for link in self.forwarding.links.values()
            },
        }
