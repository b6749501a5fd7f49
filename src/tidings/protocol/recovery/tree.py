"""Routing of events and blocks along the interests in epidemic mode, and notification of local clients.

The origin numbers an event for every pattern that it matches and cuts a large payload into blocks. Events and blocks
follow the interests, each for itself; what is lost on the way, gossip recovers (protocol/recovery/gossip.py). Whether
something was forwarded and whether it was received are two questions: an event that gossip brought first must still go
down the tree when it comes by the tree, and a recovered one must not (recovery, epidemic 13).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

from msgspec import Raw
from msgspec.structs import replace

from tidings.model.errors import WireError
from tidings.model.event import Publication
from tidings.model.messages import Confirm, Notify, PublishFailed
from tidings.model.recovery_messages import MAX_ROUTE, Carried, Fragment
from tidings.model.run import Run
from tidings.protocol.facts import Misbehaviour
from tidings.protocol.kernel import Part, Port
from tidings.protocol.matching import Matcher
from tidings.protocol.recovery.blocks import MAX_INLINE_ATTRIBUTES_BYTES, Assembly, Header, cut, header_of
from tidings.protocol.recovery.circle import Circle
from tidings.protocol.recovery.gossip import Gossip
from tidings.protocol.recovery.high_water import HighWaters
from tidings.protocol.recovery.holdings import Holdings
from tidings.protocol.recovery.link_loss import LinkLoss
from tidings.protocol.recovery.patterns import Patterns
from tidings.protocol.recovery.settings import RecoverySettings
from tidings.protocol.routing import Route, RoutingTable
from tidings.structures.recent_ids import RecentIds

MAX_PASSING = 4_096
"""Events in blocks that are remembered as passing; of an older one, blocks may be forwarded twice."""
_NO_PAYLOAD = Raw(b"\xc4\x00")


class Passing:
    """An event of which blocks pass: what they must be like, what routes them, and what of it went on."""

    __slots__ = ("check", "gone", "header", "sent", "topped_up")

    def __init__(self, fragment: Fragment) -> None:
        self.check = Assembly(Header._make(header_of(fragment)), 0).check
        self.header = Publication(
            fragment.source,
            fragment.incarnation,
            fragment.sequence,
            fragment.topic,
            fragment.published_at,
            Raw(fragment.attributes),
            _NO_PAYLOAD,
        )
        self.gone: dict[int, int] = {}
        """generation -> mask of the plain blocks that were forwarded"""
        self.sent: dict[int, int] = {}
        """generation -> how many blocks went on, where there is coding"""
        self.topped_up: dict[int, None] = {}
        """generations of which as many blocks went on as can be of use"""

    def first_time(self, generation: int, index: int) -> bool:
        gone, bit = self.gone.get(generation, 0), 1 << index
        self.gone[generation] = gone | bit
        return not gone & bit

    def recodes(self, message: Fragment, redundancy: int) -> bool:
        """Must the block be put to others of its event, if only to combine them?"""
        return redundancy > 0 and message.generation not in self.topped_up


class EpidemicTree(Part):
    name = "tree"
    handles = {Publication: "on_publication", Run: "on_run", Carried: "on_carried", Fragment: "on_fragment"}

    def __init__(
        self,
        port: Port,
        neighbours: Sequence[str],
        table: RoutingTable,
        matcher: Matcher,
        settings: RecoverySettings,
        patterns: Patterns,
        holdings: Holdings,
        link_loss: LinkLoss,
        high_waters: HighWaters,
        circle: Circle,
        gossip: Gossip,
    ) -> None:
        super().__init__(port)
        self.duplicates = 0
        self.unwanted = 0
        """Recovered events that nobody here subscribes to."""
        self._neighbours = frozenset(neighbours)
        self._table = table
        self._matcher = matcher
        self._settings = settings
        self._patterns = patterns
        self._holdings = holdings
        self._link_loss = link_loss
        self._high_waters = high_waters
        self._circle = circle
        self._gossip = gossip
        self._published = RecentIds()
        self._forwarded = RecentIds()
        self._passing: OrderedDict[tuple[Any, ...], Passing] = OrderedDict()

    # --- What our clients publish

    def on_run(self, client: str, run: Run) -> None:
        """Events are numbered, cached and repaired one by one."""
        for publication in run.publications():
            self.on_publication(client, publication)

    def on_publication(self, client: str, publication: Publication) -> None:
        sequence = publication.sequence
        if publication.source != client or client in self._neighbours:
            reason = f"client {client!r} may not publish as {publication.source!r}"
            self.port.emit(Misbehaviour(client, reason))
            self.port.send(client, PublishFailed(sequence, reason))
            return
        inline_bytes = len(memoryview(publication.packed_attributes)) + len(publication.packed_header)
        if inline_bytes > MAX_INLINE_ATTRIBUTES_BYTES:
            reason = f"in this mode an event has at most {MAX_INLINE_ATTRIBUTES_BYTES} bytes of attributes"
            self.port.send(client, PublishFailed(sequence, reason))
            return
        self.port.send(client, Confirm(publication.incarnation, sequence, sequence))
        if not self._published.first_time(publication.source, publication.incarnation, sequence):
            self.duplicates += 1
            return
        route = self._route(client, publication)
        if route is None:
            return
        numbers = self._patterns.number(publication, self._matcher.select(publication))
        self._high_waters.passed(self.port.node, numbers, client)
        origin = self.port.node
        carried = Carried(
            origin, numbers, (origin,) if self._settings.records_routes else (), "", publication
        )
        self._holdings.received.first_time(publication.source, publication.incarnation, sequence)
        if route.hops:
            self._send_whole(carried, route, "")
        self._gain(carried, route, client, "")

    def _send_whole(self, carried: Carried, route: Route, sender: str) -> None:
        settings = self._settings
        whole = cut(carried, settings.block_bytes, settings.datagram_bytes)
        blocks: Sequence[Carried | Fragment] = (carried,)
        if whole is not None:
            blocks = whole.fragments(
                self.port.random, redundancy=settings.redundancy, route=carried.route, by=""
            )
        for hop, send in route.hops:
            if hop != sender:
                for block in blocks:
                    send(block)
                self._link_loss.sent(hop, len(blocks))

    # --- What comes by the tree or by gossip

    def on_carried(self, sender: str, message: Carried) -> None:
        publication = message.publication
        if not self._may_send(sender, message.by):
            return
        if not message.by:
            self._link_loss.received(sender)
            self._high_waters.passed(message.origin, message.numbers, sender)
        route = self._route(sender, publication)
        if route is None:
            return
        identity = publication.source, publication.incarnation, publication.sequence
        if not message.by and self._forwarded.first_time(*identity):
            self._forward(sender, message, route)
        self._receive(sender, message, route)

    def _receive(self, sender: str, message: Carried, route: Route) -> None:
        """The event for ourselves, whichever way it came."""
        publication, by = message.publication, message.by
        if by and not route.notices:
            self.unwanted += 1
            return
        useful = self._holdings.received.first_time(
            publication.source, publication.incarnation, publication.sequence
        )
        if by == "push":
            self._gossip.on_pushed(useful)
        if useful:
            self._gain(message, route, sender, by)
        else:
            self.duplicates += 1
            self._holdings.again(message.origin, message.numbers)

    def _gain(self, carried: Carried, route: Route, sender: str, by: str) -> None:
        publication = carried.publication
        wanted = bool(route.notices) or carried.origin == self.port.node
        entry = self._holdings.take(carried, wanted=wanted, cached=wanted or self._settings.records_routes)
        for send, subscriptions in route.notices:
            send(Notify(subscriptions, publication, by))
        if wanted:
            self._gossip.on_gained(entry, sender, by)

    def _forward(self, sender: str, message: Carried | Fragment, route: Route) -> None:
        onward = message
        if self._settings.records_routes and len(message.route) < MAX_ROUTE:
            onward = replace(message, route=(*message.route, self.port.node))
        for hop, send in route.hops:
            if hop != sender:
                send(onward)
                self._link_loss.sent(hop)

    def on_fragment(self, sender: str, message: Fragment) -> None:
        by = message.by
        if not self._may_send(sender, by):
            return
        try:
            passing = self._pass(message)
        except WireError as error:
            self.port.emit(Misbehaviour(sender, str(error)))
            return
        route = self._route(sender, passing.header)
        if route is None:
            return
        if not by:
            self._link_loss.received(sender)
            self._high_waters.passed(message.origin, message.numbers, sender)
        had = self._holdings.has(message.source, message.incarnation, message.sequence)
        if had and by:
            self._holdings.again(message.origin, message.numbers)
        wanted = bool(route.notices) and not had
        recoding = not by and not had and passing.recodes(message, self._settings.redundancy)
        try:
            assembly = self._assemble(sender, message) if wanted or recoding else None
            if by == "push":
                self._gossip.on_pushed(assembly is not None)
            elif had:
                self.duplicates += 1
            if not by:
                self._forward_block(sender, message, route, passing, assembly)
            if wanted and assembly is not None:
                self._gain_block(sender, message, route, assembly)
        except WireError as error:
            self.port.emit(Misbehaviour(sender, str(error)))

    def _assemble(self, sender: str, message: Fragment) -> Assembly | None:
        """Puts the block to the others of its event; None if it was of no use."""
        return self._holdings.assemblies.add(sender, message, self.port.now)

    def _gain_block(self, sender: str, message: Fragment, route: Route, assembly: Assembly) -> None:
        self._gossip.on_block(assembly, message, sender)
        if assembly.complete:
            carried = assembly.carried(message.by, message.route)
            self._holdings.received.first_time(*assembly.id)
            self._gain(carried, route, sender, message.by)

    def _forward_block(
        self, sender: str, message: Fragment, route: Route, passing: Passing, assembly: Assembly | None
    ) -> None:
        """Plain blocks go as they are, each once. With coding, for every other block a fresh combination goes, and
        once the generation is complete here as many more as the origin sent: losses do not add up along a path.
        """
        generation = message.generation
        if generation in passing.topped_up:
            return
        if not message.coefficients:
            if not passing.first_time(generation, message.index):
                return
            self._forward(sender, message, route)
        else:
            fresh = self._recoded(assembly, message)
            self._forward(sender, fresh or message, route)
        if self._settings.redundancy and assembly is not None:
            passing.sent[generation] = passing.sent.get(generation, 0) + 1
            if assembly.holds(generation) and assembly.size(generation) > 1:
                self._top_up(sender, message, route, passing, assembly)

    def _recoded(self, assembly: Assembly | None, message: Fragment) -> Fragment | None:
        if assembly is None:
            return None
        return assembly.recoded(message.generation, self.port.random, route=message.route, by="")

    def _top_up(
        self, sender: str, message: Fragment, route: Route, passing: Passing, assembly: Assembly
    ) -> None:
        generation = message.generation
        target = assembly.size(generation) + self._settings.redundancy
        if any(hop != sender for hop, _ in route.hops):
            for _ in range(target - passing.sent[generation]):
                self._forward(sender, self._recoded(assembly, message) or message, route)
        passing.topped_up[generation] = None

    def _pass(self, message: Fragment) -> Passing:
        """The event of a block that is what it says; WireError if it is not. A forged header is another event."""
        header = header_of(message)
        passing = self._passing.get(header)
        if passing is not None:
            passing.check(message)
            return passing
        passing = Passing(message)
        passing.check(message)
        self._passing[header] = passing
        if len(self._passing) > MAX_PASSING:
            self._passing.popitem(last=False)
        return passing

    # --- Shared

    def _may_send(self, sender: str, by: str) -> bool:
        if sender in self._neighbours or (by and self._circle.known(sender)):
            return True
        self.port.emit(Misbehaviour(sender, "it is no neighbour and sent an event by the tree"))
        return False

    def _route(self, sender: str, publication: Publication) -> Route | None:
        try:
            selection = self._matcher.select(publication)
        except WireError as error:
            self.port.emit(Misbehaviour(sender, str(error)))
            return None
        return self._table.routes.get(selection) or self._table.route(selection)
