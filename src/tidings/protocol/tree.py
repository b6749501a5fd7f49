"""Best-effort routing of publications along the interests, and notification of local clients.

This is the hottest code of a broker and of a simulation: one call per publication and hop.
"""

from __future__ import annotations

from collections.abc import Sequence

from tidings.model.errors import WireError
from tidings.model.event import Publication
from tidings.model.messages import Confirm, Notify, PublishFailed
from tidings.protocol.facts import Misbehaviour
from tidings.protocol.kernel import Part, Port
from tidings.protocol.matching import Matcher
from tidings.protocol.routing import RoutingTable
from tidings.structures.recent_ids import RecentIds


class TreeRouting(Part):
    name = "tree"
    handles = {Publication: "on_publication"}  # noqa: RUF012

    def __init__(
        self, port: Port, neighbours: Sequence[str], table: RoutingTable, matcher: Matcher
    ) -> None:
        super().__init__(port)
        self.recent = RecentIds()
        self.duplicates = 0
        self._neighbours = frozenset(neighbours)
        self._first_time = self.recent.first_time
        self._select = matcher.select
        self._route = table.route
        self._send = port.send

    def on_publication(self, sender: str, publication: Publication) -> None:
        if sender not in self._neighbours:
            self._on_own_publication(sender, publication)
        elif self._first_time(publication.source, publication.incarnation, publication.sequence):
            self._forward(sender, publication)
        else:
            self.duplicates += 1

    def _on_own_publication(self, client: str, publication: Publication) -> None:
        """One of our clients publishes; it is confirmed, also when it is repeated."""
        if publication.source != client:
            reason = f"client {client!r} may not publish as {publication.source!r}"
            self.port.emit(Misbehaviour(client, reason))
            self._send(client, PublishFailed(publication.sequence, reason))
            return
        if self._first_time(publication.source, publication.incarnation, publication.sequence):
            self._forward(client, publication)
        else:
            self.duplicates += 1
        sequence = publication.sequence
        self._send(client, Confirm(publication.incarnation, sequence, sequence))

    def _forward(self, sender: str, publication: Publication) -> None:
        try:
            route = self._route(self._select(publication))
        except WireError as error:
            self.port.emit(Misbehaviour(sender, str(error)))
            return
        send = self._send
        for hop in route.hops:
            if hop != sender:
                send(hop, publication)
        for client, subscriptions in route.notices:
            send(client, Notify(subscriptions, publication))
