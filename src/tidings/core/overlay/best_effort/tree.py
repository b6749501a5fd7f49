"""Best-effort routing of publications along the interests, and notification of local clients.

This is the hottest code of brokers and simulations: one call per publication and hop.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tidings.core.errors import WireError
from tidings.core.events.event import Publication
from tidings.core.events.run import Run, Stretch
from tidings.core.facts import Misbehaviour
from tidings.core.kernel import Part, Port
from tidings.core.messages import Confirm, Notify, PublishFailed
from tidings.core.overlay.groups import Groups
from tidings.core.overlay.matching import Matcher
from tidings.core.overlay.routing import Route, RoutingTable
from tidings.core.structures.recent_ids import RecentIds


class TreeRouting(Part):
    name = "tree"
    handles = {Publication: "on_publication", Run: "on_run"}

    def __init__(
        self, port: Port, neighbours: Sequence[str], table: RoutingTable, matcher: Matcher, groups: Groups
    ) -> None:
        super().__init__(port)
        self.recent = RecentIds()
        self.duplicates = 0
        self._neighbours = frozenset(neighbours)
        self._matcher = matcher
        self._table = table
        self._groups = groups
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
        if route.shared is not None:
            self._groups.notify(route, publication)
            return
        for send, subscriptions in route.notices:
            send(Notify(subscriptions, publication))

    def on_run(self, sender: str, run: Run) -> None:
        if sender not in self._neighbours and not self._take_run(sender, run):
            return

        def complain(error: WireError) -> None:
            self.port.emit(Misbehaviour(sender, str(error)))

        for fresh in self._fresh(run, complain):
            stretches = self._matcher.cut(fresh, complain) if isinstance(fresh, Run) else [fresh]
            for stretch in stretches:
                if isinstance(stretch, Publication):
                    self._matcher.select(stretch)
                selection = stretch.selection
                self._send_on(sender, stretch, self._routes.get(selection) or self._table.route(selection))

    def _fresh(self, run: Run, complain: Callable[[WireError], None]) -> list[Stretch]:
        """Return the parts of the run that are not duplicates."""
        ranges = self.recent.fresh(run.source, run.incarnation, run.first, run.last)
        self.duplicates += run.count - sum(last - first + 1 for first, last in ranges)
        try:
            return [run.cut(first, last) for first, last in ranges]
        except WireError as error:
            complain(error)
            return []

    def _send_on(self, sender: str, stretch: Stretch, route: Route) -> None:
        for hop, send in route.hops:
            if hop != sender:
                send(stretch)
        self._groups.notify(route, stretch)

    def _take_from_client(self, client: str, publication: Publication) -> bool:
        """Confirm a client's publication, even a duplicate. Return False if it is rejected."""
        sequence = publication.sequence
        if publication.source != client:
            self._reject(client, publication.source, sequence, sequence)
            return False
        self._send(client, Confirm(publication.incarnation, sequence, sequence))
        return True

    def _take_run(self, client: str, run: Run) -> bool:
        if run.source != client:
            self._reject(client, run.source, run.first, run.last)
            return False
        self._send(client, Confirm(run.incarnation, run.first, run.last))
        return True

    def _reject(self, client: str, source: str, first: int, last: int) -> None:
        reason = f"client {client!r} may not publish as {source!r}"
        self.port.emit(Misbehaviour(client, reason))
        for sequence in range(first, last + 1):
            self._send(client, PublishFailed(sequence, reason))
