"""Routes events and blocks along the interests in mode epidemic, and notifies local clients.

The origin numbers an event for every pattern that it matches and cuts a large payload into blocks. Consecutive events
of a run that match the same patterns have consecutive numbers in each, so they stay together, as many as fit into a
datagram. Each stretch and each block follows the interests on its own. Gossip recovers what is lost (gossip.py), event
by event if part of a stretch is known.

Forwarded and received are two questions: an event that gossip brought first must still go down the tree when it comes
by the tree, and a recovered one must not.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import Any

from msgspec import Raw
from msgspec.structs import replace

from tidings.core.errors import WireError
from tidings.core.events.event import Publication
from tidings.core.events.run import Run, Stretch, singles
from tidings.core.facts import Misbehaviour
from tidings.core.kernel import Part, Port
from tidings.core.messages import Confirm, PublishFailed
from tidings.core.overlay.epidemic.blocks import (
    MAX_INLINE_ATTRIBUTES_BYTES,
    Assembly,
    Header,
    header_of,
    in_blocks,
    in_datagrams,
    inline_header_bytes,
)
from tidings.core.overlay.epidemic.gossip import Gossip
from tidings.core.overlay.epidemic.gossip_partners import GossipPartners
from tidings.core.overlay.epidemic.high_water import HighWaters
from tidings.core.overlay.epidemic.link_loss import LinkLoss
from tidings.core.overlay.epidemic.messages import MAX_ROUTE, Carried, Fragment
from tidings.core.overlay.epidemic.patterns import Patterns
from tidings.core.overlay.epidemic.recovery_state import RecoveryState
from tidings.core.overlay.epidemic.settings import RecoverySettings
from tidings.core.overlay.groups import Groups
from tidings.core.overlay.matching import Matcher
from tidings.core.overlay.routing import Route, RoutingTable
from tidings.core.structures.recent_ids import RecentIds

MAX_PASSING = 4_096
"""Events in blocks that are remembered; blocks of an older one may be forwarded twice."""
_NO_PAYLOAD = Raw(b"\xc4\x00")


class Passing:
    """An event whose blocks pass through: how to check them, what routes them, and which were forwarded."""

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
        """Generation -> mask of the plain blocks forwarded."""
        self.sent: dict[int, int] = {}
        """Generation -> how many blocks were forwarded; only with coding."""
        self.topped_up: dict[int, None] = {}
        """Generations of which as many blocks were forwarded as can be useful."""

    def first_time(self, generation: int, index: int) -> bool:
        gone, bit = self.gone.get(generation, 0), 1 << index
        self.gone[generation] = gone | bit
        return not gone & bit

    def recodes(self, message: Fragment, redundancy: int) -> bool:
        """Return True if we must keep the block to combine it with others, even if nobody here wants the event."""
        return redundancy > 0 and message.generation not in self.topped_up


class EpidemicTree(Part):
    """Handles what clients publish, and what comes by the tree or by gossip."""

    name = "tree"
    handles = {Publication: "on_stretch", Run: "on_stretch", Carried: "on_carried", Fragment: "on_fragment"}

    def __init__(
        self,
        port: Port,
        neighbours: Sequence[str],
        table: RoutingTable,
        matcher: Matcher,
        settings: RecoverySettings,
        patterns: Patterns,
        recovery_state: RecoveryState,
        link_loss: LinkLoss,
        high_waters: HighWaters,
        gossip_partners: GossipPartners,
        gossip: Gossip,
        groups: Groups,
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
        self._recovery_state = recovery_state
        self._link_loss = link_loss
        self._high_waters = high_waters
        self._gossip_partners = gossip_partners
        self._gossip = gossip
        self._groups = groups
        self._published = RecentIds()
        self._forwarded = RecentIds()
        self._passing: OrderedDict[tuple[Any, ...], Passing] = OrderedDict()

    # --- What our clients publish

    def on_stretch(self, client: str, stretch: Stretch) -> None:
        if stretch.source != client or client in self._neighbours:
            reason = f"client {client!r} may not publish as {stretch.source!r}"
            self.port.emit(Misbehaviour(client, reason))
            self._refuse(client, range(stretch.first, stretch.last + 1), reason)
            return
        for part in self._sound(client, stretch):
            self.port.send(client, Confirm(part.incarnation, part.first, part.last))
            fresh = _unseen(self._published, part)
            self.duplicates += part.count - sum([new.count for new in fresh])
            for new in fresh:
                for alike in self._parts(client, new):
                    self._publish(client, alike)

    def _sound(self, client: str, stretch: Stretch) -> list[Stretch]:
        """Reject events that cannot be sent in blocks; return the others."""
        too_long = _too_long(stretch)
        if not too_long:
            return [stretch]
        reason = f"in mode epidemic, attributes may have at most {MAX_INLINE_ATTRIBUTES_BYTES} bytes"
        self._refuse(client, too_long, reason)
        return stretch.without(too_long) if isinstance(stretch, Run) else []

    def _refuse(self, client: str, sequences: Iterable[int], reason: str) -> None:
        for sequence in sequences:
            self.port.send(client, PublishFailed(sequence, reason))

    def _publish(self, client: str, alike: Stretch) -> None:
        """Number, forward and deliver events of one selection."""
        route, origin, settings = self._route(alike), self.port.node, self._settings
        way = (origin,) if settings.records_routes else ()
        for stretch, numbers in self._patterns.number(alike):
            whole = Carried(origin, numbers, way, "", stretch)
            self._high_waters.passed(origin, whole.last_numbers, client)
            for carried in in_datagrams(whole, settings.block_bytes, settings.datagram_bytes):
                _unseen(self._recovery_state.received, carried.stretch)
                if route.hops:
                    self._send_whole(carried, route, "")
                self._gain(carried, route, client, "")

    def _send_whole(self, carried: Carried, route: Route, sender: str) -> None:
        settings = self._settings
        whole = in_blocks(carried, settings.block_bytes, settings.datagram_bytes)
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
        stretch = message.stretch
        if not self._may_send(sender, message.by):
            return
        if not message.by:
            self._link_loss.received(sender)
            self._high_waters.passed(message.origin, message.last_numbers, sender)
        for alike in self._parts(sender, stretch):  # mostly one: our table may differ from the origin's
            part = message if alike is stretch else message.part(alike)
            route = self._route(alike)
            if not message.by:
                for unsent in _unseen(self._forwarded, alike):
                    self._forward(sender, part.part(unsent), route)
            self._receive(sender, part, route)

    def _receive(self, sender: str, message: Carried, route: Route) -> None:
        """Take the events for our own clients, however they came."""
        stretch, by = message.stretch, message.by
        if by and not route.wanted:
            self.unwanted += stretch.count
            return
        fresh = _unseen(self._recovery_state.received, stretch)
        if by == "push":
            self._gossip.on_pushed(bool(fresh))
        if not fresh or fresh[0] is not stretch:
            self.duplicates += stretch.count - sum([new.count for new in fresh])
            self._recovery_state.again(message.origin, message.numbers, stretch.count)
        for new in fresh:
            self._gain(message.part(new), route, sender, by)

    def _gain(self, carried: Carried, route: Route, sender: str, by: str) -> None:
        wanted = route.wanted or carried.origin == self.port.node
        entry = self._recovery_state.take(
            carried, wanted=wanted, cached=wanted or self._settings.records_routes
        )
        self._groups.notify(route, carried.stretch, by)
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
        if not self._parts(sender, passing.header):
            return
        route = self._route(passing.header)
        if not by:
            self._link_loss.received(sender)
            self._high_waters.passed(message.origin, message.numbers, sender)
        had = self._recovery_state.has(message.source, message.incarnation, message.sequence)
        if had and by:
            self._recovery_state.again(message.origin, message.numbers)
        wanted = route.wanted and not had
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
        """Add the block to the others of its event; return None if it was not useful."""
        return self._recovery_state.assemblies.add(sender, message, self.port.now)

    def _gain_block(self, sender: str, message: Fragment, route: Route, assembly: Assembly) -> None:
        self._gossip.on_block(assembly, message, sender)
        if assembly.complete:
            carried = assembly.carried(message.by, message.route)
            self._recovery_state.received.first_time(*assembly.id)
            self._gain(carried, route, sender, message.by)

    def _forward_block(
        self, sender: str, message: Fragment, route: Route, passing: Passing, assembly: Assembly | None
    ) -> None:
        """Forward each plain block once, as it is; in place of a coded block, forward a new combination.

        Once the generation is complete here, top up to as many blocks as the origin sent: losses do not add up along a
        path.
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
        """Return the event of a valid block; raise WireError if it is invalid. A forged header is another event."""
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
        if sender in self._neighbours or (by and self._gossip_partners.known(sender)):
            return True
        self.port.emit(Misbehaviour(sender, "sent an event along the tree but is not a neighbour"))
        return False

    def _parts(self, sender: str, stretch: Stretch) -> list[Stretch]:
        """Split into stretches of one selection each; leave out events that cannot be matched."""
        if stretch.selection_token is self._matcher.token:
            return [stretch]
        return self._matcher.parts(stretch, lambda error: self.port.emit(Misbehaviour(sender, str(error))))

    def _route(self, alike: Stretch) -> Route:
        """Return the route of events of one selection."""
        return self._table.routes.get(alike.selection) or self._table.route(alike.selection)


def _unseen(recent: RecentIds, stretch: Stretch) -> list[Stretch]:
    """Mark the events as seen; return those that were not seen before."""
    if isinstance(stretch, Publication):  # the most frequent case, and faster
        seen = not recent.first_time(stretch.source, stretch.incarnation, stretch.sequence)
        return [] if seen else [stretch]
    ranges = recent.fresh(stretch.source, stretch.incarnation, stretch.first, stretch.last)
    return [stretch.cut(first, last) for first, last in ranges]


def _too_long(stretch: Stretch) -> list[int]:
    """Return the sequences of events whose attributes and header are too large for a block."""
    if stretch.size_bytes + len(stretch.packed_header) <= MAX_INLINE_ATTRIBUTES_BYTES:
        return []
    inline_bytes = [
        (event.sequence, len(memoryview(event.packed_attributes)) + inline_header_bytes(event))
        for event in singles(stretch)
    ]
    return [sequence for sequence, size_bytes in inline_bytes if size_bytes > MAX_INLINE_ATTRIBUTES_BYTES]
