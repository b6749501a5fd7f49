"""A broker in mode epidemic: best-effort routing on a tree, with gossip to repair losses.

Papers epidemic and polarized; each part has a file in this folder. Interests are forwarded without covering: an origin
numbers an event for every pattern that anybody subscribes to, so it must know them all (epidemic, section 4.2).
"""

from __future__ import annotations

from collections.abc import Sequence

from tidings.core.kernel import Node, Port
from tidings.core.overlay.edge import Edge
from tidings.core.overlay.epidemic.directory import Directory
from tidings.core.overlay.epidemic.gossip import Gossip
from tidings.core.overlay.epidemic.gossip_partners import GossipPartners
from tidings.core.overlay.epidemic.high_water import HighWaters
from tidings.core.overlay.epidemic.link_loss import LinkLoss
from tidings.core.overlay.epidemic.numbering import PatternNumbering
from tidings.core.overlay.epidemic.owed import Owed
from tidings.core.overlay.epidemic.pattern_counter import PatternCounter
from tidings.core.overlay.epidemic.patterns import Patterns
from tidings.core.overlay.epidemic.recovery_state import RecoveryState
from tidings.core.overlay.epidemic.settings import RecoverySettings
from tidings.core.overlay.epidemic.tree import EpidemicTree
from tidings.core.overlay.forwarding import Forwarding
from tidings.core.overlay.groups import MAX_STATUS_GROUPS, Groups
from tidings.core.overlay.labels import Label, label_text
from tidings.core.overlay.link_watch import LinkWatch
from tidings.core.overlay.matching import Matcher
from tidings.core.overlay.responders import Responders, at_once
from tidings.core.overlay.routing import RoutingTable

ABSENT_AFTER_NS = 15_000_000_000
LONGEST_RETRY_NS = 1_000_000_000
"""Links lose messages, and in bursts: so retry a silent neighbour more often, and give it up later."""


class EpidemicBroker(Node):
    """Wires the parts together. `incarnation` grows with every start; without a `label`, the broker asks for one."""

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
        self.directory = Directory(port, neighbours, incarnation=incarnation, label=label, address=address)
        self.counted = PatternCounter()
        self.patterns = Patterns(port, self.table, PatternNumbering(), self.counted, self.directory)
        self.recovery_state = RecoveryState(port, settings)
        self.gossip_partners = GossipPartners(port, self.directory, settings)
        self.gossip = Gossip(
            port, neighbours, settings, self.patterns, self.recovery_state, self.gossip_partners
        )
        self.high_waters = HighWaters(
            port,
            neighbours,
            self.patterns,
            self.counted,
            self.recovery_state.losses,
            self.gossip,
            interval_ns=settings.interval_ns,
            enabled=settings.solicits,
        )
        self.forwarding = Forwarding(
            port,
            neighbours,
            self.table,
            self.high_waters,
            incarnation=incarnation,
            covering=False,
            absent_after_ns=ABSENT_AFTER_NS,
            longest_retry_ns=LONGEST_RETRY_NS,
        )
        # Before the edge: losses must be watched before clients hear that their subscriptions are accepted.
        self.owed = Owed(
            port, self.forwarding, self.patterns, self.recovery_state.losses, enabled=settings.solicits
        )
        self.groups = Groups(port, self.table)
        self.edge = Edge(port, neighbours, self.table, self.forwarding, self.groups, self.status)
        self.link_loss = LinkLoss(
            port,
            neighbours,
            self.directory.set_link_loss,
            incarnation=incarnation,
            enabled=settings.weights == "loss",
        )
        self.tree = EpidemicTree(
            port,
            neighbours,
            self.table,
            matcher,
            settings,
            self.patterns,
            self.recovery_state,
            self.link_loss,
            self.high_waters,
            self.gossip_partners,
            self.gossip,
            self.groups,
        )
        super().__init__(
            (
                self.forwarding,
                self.edge,
                self.groups,
                LinkWatch(port, self.table, self.forwarding),
                self.directory,
                self.link_loss,
                self.high_waters,
                self.tree,
                self.gossip,
                Responders(port, matcher, at_once(self.table.leads_anywhere)),
            )
        )

    def discard(self) -> None:
        self.table.discard()

    def status(self) -> dict[str, object]:
        """Return what `tidings status` shows."""
        recovery_state, gossip = self.recovery_state, self.gossip
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
            "groups": self.groups.status()[:MAX_STATUS_GROUPS],
            "recovery": {
                "algorithm": self.settings.algorithm,
                "brokers_known": len(self.directory.others),
                "cached_events": len(recovery_state.cache),
                "cached_bytes": recovery_state.cache.size_bytes,
                "lost_now": recovery_state.losses.lost,
                "given_up": recovery_state.losses.given_up,
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
