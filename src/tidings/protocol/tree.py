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
    handles = {Publication: "on_publication"}

    def __init__(self, port: Port, neighbours: Sequence[str], table: RoutingTable, matcher: Matcher) -> None:
        super().__init__(port)
        self.recent = RecentIds()
        self.duplicates = 0
        self._neighbours = frozenset(neighbours)
        self._matcher = matcher
        self._table = table
        self._routes = table.routes
        self._first_time = self.recent.first_time
        self._send = port.send

    def on_publication(self, sender: str, publication: Publication) -> None:
        if sender not in self._neighbours and not self._take_from_client(sender, publication):
            return
        if not self._first_time(publication.source, publication.incarnation, publication.sequence):
            self.duplicates += 1
            return
        known = publication.selection_token is self._matcher.token
        route = self._routes.get(publication.selection) if known else None
        if route is None:
            try:
                selection = self._matcher.select(publication)
                route = self._routes.get(selection) or self._table.route(selection)
            except WireError as error:
                self.port.emit(Misbehaviour(sender, str(error)))
                return
        for hop, send in route.hops:
            if hop != sender:
                send(publication)
        for send, subscriptions in route.notices:
            send(Notify(subscriptions, publication))

    def _take_from_client(self, client: str, publication: Publication) -> bool:
        """One of our clients publishes: it is confirmed, also when it repeats itself."""
        sequence = publication.sequence
        if publication.source != client:
            reason = f"client {client!r} may not publish as {publication.source!r}"
            self.port.emit(Misbehaviour(client, reason))
            self._send(client, PublishFailed(sequence, reason))
            return False
        self._send(client, Confirm(publication.incarnation, sequence, sequence))
        return True
