"""A broker of mode best-effort, composed of forwarding, routing and the edge."""

from __future__ import annotations

from collections.abc import Sequence

from tidings.core.kernel import Node, Port
from tidings.core.overlay.best_effort.tree import TreeRouting
from tidings.core.overlay.edge import Edge
from tidings.core.overlay.forwarding import Forwarding, SettledNumbers
from tidings.core.overlay.groups import MAX_STATUS_GROUPS, Groups
from tidings.core.overlay.link_watch import LinkWatch
from tidings.core.overlay.matching import Matcher
from tidings.core.overlay.responders import Responders, at_once
from tidings.core.overlay.routing import RoutingTable


class Broker(Node):
    """A best-effort broker. `incarnation` grows with every start; brokers of one process share a `matcher`."""

    def __init__(
        self, port: Port, neighbours: Sequence[str], *, incarnation: int, matcher: Matcher | None = None
    ) -> None:
        if matcher is None:
            matcher = Matcher()
        self.name = port.node
        self.table = RoutingTable(matcher, port)
        self.forwarding = Forwarding(port, neighbours, self.table, SettledNumbers(), incarnation=incarnation)
        self.groups = Groups(port, self.table)
        self.edge = Edge(port, neighbours, self.table, self.forwarding, self.groups, self.status)
        self.tree = TreeRouting(port, neighbours, self.table, matcher, self.groups)
        watch = LinkWatch(port, self.table, self.forwarding)
        responders = Responders(port, matcher, at_once(self.table.leads_anywhere))
        super().__init__((self.forwarding, self.edge, self.groups, watch, self.tree, responders))

    def discard(self) -> None:
        self.table.discard()

    def status(self) -> dict[str, object]:
        """Return what `tidings status` shows."""
        return {
            "broker": self.name,
            "mode": "best-effort",
            "incarnation": self.forwarding.incarnation,
            "interests": len(self.table),
            "clients": len(self.edge.clients),
            "subscriptions": sum(len(held) for held in self.edge.clients.values()),
            "subscriptions_not_yet_accepted": self.edge.unaccepted,
            "duplicates_dropped": self.tree.duplicates,
            "groups": self.groups.status()[:MAX_STATUS_GROUPS],
            "neighbours": {
                link.peer: {
                    "present": link.present and link.heard > 0,
                    "interests_sent": len(link.sent),
                    "interests_covered": len(link.covered),
                    "interests_received": len(link.received),
                    "changes_waiting": len(link.stream),
                }
                for link in self.forwarding.links.values()
            },
        }
