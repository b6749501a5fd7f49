"""Connections between simulated nodes, as over TCP: messages arrive in order and without gaps.

A connection is two streams, one per direction. Each node has its own end: it may have closed it, or lost it in a crash,
while the peer still has the other end. A stream that has lost anything (to a cut, or to a target that was down) carries
nothing more, and nobody is told: the protocols must find out themselves.

            wanted, or the peer dials                   closed here, FIN, RST, or replaced
    (none) ---------------------------> both have an end --------------------------------> (none)
                                          told `link_up`                told `link_down`

Nodes ask for connections with the facts SessionWanted and SessionUnwanted. Protocol code emits them, so no node is told
anything before the running handler has returned. Connections between clients and their brokers come and go with the
network's faults, not on request.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from random import Random

from tidings.core.facts import SessionUnwanted, SessionWanted
from tidings.core.messages import Message
from tidings.drivers.virtual.link import Handlers, VirtualLink
from tidings.drivers.virtual.node import Emit, SimulatedNode
from tidings.drivers.virtual.schedule import Schedule
from tidings.scenarios.file.links import LinkSpec
from tidings.scenarios.file.times import NS_PER_MS

FIRST_RETRY_NS = 100 * NS_PER_MS
LAST_RETRY_NS = 2_000 * NS_PER_MS
RETRY_JITTER = 0.25

RETRANSMISSION_NS = 200 * NS_PER_MS
"""How long a sender waits, besides the round trip, before it retransmits."""
MAX_LOSSES = 8
"""How often a message can be lost at most."""


class _Always(Handlers):
    """Has the same handler for every class of message."""

    def __init__(self, handler: Callable[[str, Message], None]) -> None:
        super().__init__()
        self._handler = handler

    def __missing__(self, kind: type) -> Callable[[str, Message], None]:
        self[kind] = self._handler
        return self._handler


class StreamLink(VirtualLink):
    """One direction between two nodes: it counts as a VirtualLink does, and carries the current connection.

    Lost messages are retransmitted and arrive later, and those behind them wait. There are no duplicates and no
    reordering.
    """

    __slots__ = ("_due_at", "stream", "target_handlers")

    def __init__(
        self,
        schedule: Schedule,
        source: str,
        target: str,
        handlers: Handlers,
        spec: LinkSpec,
        random: Random,
    ) -> None:
        super().__init__(schedule, source, target, handlers, spec, random)
        self.target_handlers = handlers
        self.stream: VirtualStream | None = None
        """The source's end of the connection, on which it sends; None if it has none or does not know it yet."""
        self._due_at = 0
        """Nothing may arrive earlier than this. The fast path (`_plain`) does not update it."""
        lossless = self._draw_loss is None and not self._bandwidth_mbps
        self._delays_only = lossless and self._constant_ns is not None
        self._plain = False

    def begin(self, stream: VirtualStream) -> None:
        """Let the source send on its end of a new connection."""
        self.stream = stream
        self.handlers = _Always(stream.arrive)
        self._due_at = 0
        self._plain = False
        self.refresh()

    def end(self) -> None:
        """Let the source send no more: its end is gone."""
        self._note_due()
        self.stream = None
        self._plain = False

    def refresh(self) -> None:
        self._note_due()
        super().refresh()
        self._plain = self._plain and self.stream is not None and self._is_level()

    def delay_ns(self) -> int:
        """Draw the delay of one message, without queueing and losses."""
        delay_ns = self._draw_delay_ns()
        return delay_ns if self.slowness == 1.0 else round(delay_ns * self.slowness)

    def after_the_rest(self) -> int:
        """Return when something sent now arrives, if it follows everything sent before."""
        return max(self._due_at, self._schedule.now + self.delay_ns())

    def _note_due(self) -> None:
        if self._plain and self._constant_ns is not None:
            self._due_at = max(self._due_at, self._schedule.now + self._constant_ns)

    def _is_level(self) -> bool:
        """Return True if a message with the usual delay would not overtake an earlier, delayed one."""
        return self._constant_ns is not None and self._due_at <= self._schedule.now + self._constant_ns

    def _transmit_disturbed(self, message: Message, size_bytes: int) -> None:
        stream = self.stream
        if stream is None or self.cuts:
            self.drop(message)
            if stream is not None:
                stream.whole = False
            return
        schedule = self._schedule
        leaves_at = self._departs_at(size_bytes) if self._bandwidth_mbps else schedule.now
        delay_ns = self._draw_delay_ns() if self.slowness == 1.0 else self.delay_ns()
        arrives_at = leaves_at + delay_ns
        if self._draw_loss is not None or self.extra_loss:
            arrives_at += self._retransmissions_ns(stream)
        if arrives_at > self._due_at:
            self._due_at = arrives_at
        schedule.at(self._due_at, stream.arrive, self.source, message)
        if self._delays_only:
            self.refresh()

    def _retransmissions_ns(self, stream: VirtualStream) -> int:
        """Draw how much later the message arrives because of losses."""
        late_ns = timeout_ns = 0
        for _ in range(MAX_LOSSES):
            if not self._is_lost():
                break
            timeout_ns = 2 * timeout_ns or RETRANSMISSION_NS + self.delay_ns() + stream.back.link.delay_ns()
            late_ns += timeout_ns
        return late_ns


class VirtualStream:
    """One direction of one connection. Messages under way belong to it, whatever happens to the connection."""

    __slots__ = ("_reset", "_target", "_target_handlers", "back", "is_open", "link", "whole")

    def __init__(
        self, link: StreamLink, target: SimulatedNode, reset: Callable[[VirtualStream], None]
    ) -> None:
        self.link = link
        self.back: VirtualStream
        self.is_open = True
        """True while the source has its end."""
        self.whole = True
        """True while the target has its end and nothing has been lost. Once False, it stays False."""
        self._target = target
        self._target_handlers = link.target_handlers
        self._reset = reset

    def arrive(self, source: str, message: Message) -> None:
        if self.whole and not self.link.cuts:
            self._target_handlers[message.__class__](source, message)
        else:
            self._miss(message)

    def _miss(self, message: Message) -> None:
        self.link.drop(message)
        if self.link.cuts or not self._target.up:
            self.whole = False
        elif self.is_open and not self.back.is_open:
            self._reset(self)


class ConnectionRequest:
    """A node's request for a connection. After a withdrawal, a new request is a new object."""

    __slots__ = ("node", "peer", "pending", "retry_ns")

    def __init__(self, node: str, peer: str) -> None:
        self.node = node
        self.peer = peer
        self.pending = True
        """True while an attempt is under way or scheduled."""
        self.retry_ns = FIRST_RETRY_NS


class Connections:
    """Keeps the ends of all connections and the requests for them, and makes the attempts to open them."""

    def __init__(
        self,
        seed: int,
        schedule: Schedule,
        nodes: Mapping[str, SimulatedNode],
        find_link: Callable[[str, str], VirtualLink],
    ) -> None:
        self._seed = seed
        self._schedule = schedule
        self._nodes = nodes
        self._find_link = find_link
        self._requests: dict[str, dict[str, ConnectionRequest]] = {}
        self._ends: dict[str, dict[str, VirtualStream]] = {}
        """Node -> peer -> the stream on which the node sends to the peer."""
        self._jitter: dict[tuple[str, str], Random] = {}
        self._attached: set[tuple[str, str]] = set()

    def listening(self, node: str, emit: Emit) -> Emit:
        """Return the `emit` of a node: it handles requests for connections here and passes other facts on."""

        def listen(fact: object) -> None:
            if type(fact) is SessionWanted:
                self.want(node, fact.peer)
            elif type(fact) is SessionUnwanted:
                self.unwant(node, fact.peer)
            else:
                emit(fact)

        return listen

    def attach(self, client: str, broker: str) -> None:
        """Ignore requests of these two: the network opens and ends the connection of a client and its broker."""
        self._attached |= {(client, broker), (broker, client)}

    def connected(self, node: str, peer: str) -> bool:
        """Return True if both have their end of one connection, whether or not anything still passes."""
        stream = self._end(node, peer)
        return stream is not None and stream.back.is_open

    # --- Requests

    def want(self, node: str, peer: str) -> None:
        if (node, peer) in self._attached:
            return
        requests = self._requests.setdefault(node, {})
        if peer not in requests:
            request = requests[peer] = ConnectionRequest(node, peer)
            self._schedule.at(self._schedule.now, self._dial, request)

    def unwant(self, node: str, peer: str) -> None:
        self._requests.get(node, {}).pop(peer, None)
        stream = self._end(node, peer)
        if stream is not None and (node, peer) not in self._attached:
            self._schedule.at(self._schedule.now, self._close, stream)

    def crash(self, node: str) -> None:
        """Drop the node's requests and ends, without telling its peers."""
        self._requests.pop(node, None)
        for peer in list(self._ends.get(node, ())):
            self._take_end(node, peer)

    # --- Opening

    def _is_current(self, request: ConnectionRequest) -> bool:
        return self._requests.get(request.node, {}).get(request.peer) is request

    def _dial(self, request: ConnectionRequest, _second: object) -> None:
        if not self._is_current(request):
            return
        if self._end(request.node, request.peer) is not None:
            request.pending = False
        elif self._is_passable(request) and not self._nodes[request.node].paused:
            there, back = self._link(request.node, request.peer), self._link(request.peer, request.node)
            round_trip_ns = there.delay_ns() + back.delay_ns()
            self._schedule.at(self._schedule.now + round_trip_ns, self._complete, request)
        else:
            self._retry(request)

    def _complete(self, request: ConnectionRequest, _second: object) -> None:
        if not self._is_current(request):
            return
        if not self._is_passable(request) or self._nodes[request.peer].paused:
            self._retry(request)
            return
        request.pending = False
        if not self._is_sound(request.node, request.peer):
            self.open(request.peer, request.node)

    def _is_passable(self, request: ConnectionRequest) -> bool:
        """Return True if both are up and messages pass in both directions."""
        node, peer = self._nodes[request.node], self._nodes.get(request.peer)
        if peer is None or not node.up or not peer.up:
            return False
        return (
            not self._link(request.node, request.peer).cuts
            and not self._link(request.peer, request.node).cuts
        )

    def _is_sound(self, node: str, peer: str) -> bool:
        """Return True if they have a connection, with both ends, that has lost nothing."""
        stream = self._end(node, peer)
        return stream is not None and stream.whole and stream.back.whole

    def _retry(self, request: ConnectionRequest) -> None:
        pair = (request.node, request.peer)
        random = self._jitter.get(pair)
        if random is None:
            random = self._jitter[pair] = Random(f"{self._seed}:dial:{request.node}>{request.peer}")
        delay_ns = round(request.retry_ns * random.uniform(1 - RETRY_JITTER, 1 + RETRY_JITTER))
        request.retry_ns = min(2 * request.retry_ns, LAST_RETRY_NS)
        request.pending = True
        self._schedule.at(self._schedule.now + delay_ns, self._dial, request)

    def open(self, acceptor: str, initiator: str) -> None:
        """Open a new connection and end what is left of an older one between the two."""
        sides = ((acceptor, initiator), (initiator, acceptor))
        had_end = [self._take_end(node, peer) for node, peer in sides]
        back, there = (self._make_stream(node, peer) for node, peer in sides)
        back.back, there.back = there, back
        for (node, peer), stream in zip(sides, (back, there), strict=True):
            self._ends.setdefault(node, {})[peer] = stream
            request = self._requests.get(node, {}).get(peer)
            if request is not None:
                request.retry_ns = FIRST_RETRY_NS
        for (node, peer), had, stream in zip(sides, had_end, (back, there), strict=True):
            if had:
                self._nodes[node].connection(peer, False)
            self._tell_open(stream, None)

    def _tell_open(self, stream: VirtualStream, _second: object) -> None:
        """Tell the source of its end; only what it sends from then on travels over it."""
        link = stream.link
        node = self._nodes[link.source]
        if node.holds(self._tell_open, stream):
            return
        if stream.is_open:
            link.begin(stream)
        node.connection(link.target, True)

    def _make_stream(self, source: str, target: str) -> VirtualStream:
        return VirtualStream(self._link(source, target), self._nodes[target], self._reset)

    # --- Closing

    def _close(self, stream: VirtualStream, _second: object) -> None:
        """Close the source's end. Unless the link is cut, the peer learns it after everything sent before."""
        self._nodes[stream.link.source].end_turn()
        if not stream.is_open:
            return
        link = stream.link
        if not link.cuts:
            self._schedule.at(link.after_the_rest(), self._on_finished, stream)
        self._end_source(stream)

    def _on_finished(self, stream: VirtualStream, _second: object) -> None:
        if stream.whole and not stream.link.cuts:
            self._end_source(stream.back)

    def _reset(self, stream: VirtualStream) -> None:
        """Answer a message for a connection that the target does not know."""
        link = stream.back.link
        if not link.cuts:
            self._schedule.at(link.after_the_rest(), self._on_reset, stream)

    def _on_reset(self, stream: VirtualStream, _second: object) -> None:
        if stream.is_open and not stream.back.link.cuts:
            self._end_source(stream)

    def _end_source(self, stream: VirtualStream) -> None:
        """Take the source's end away and tell it. If it still wants a connection, retry."""
        node, peer = stream.link.source, stream.link.target
        self._take_end(node, peer)
        self._nodes[node].connection(peer, False)
        request = self._requests.get(node, {}).get(peer)
        if request is not None and not request.pending:
            self._retry(request)

    def disconnect(self, first: str, second: str) -> None:
        """Take both ends away at once, with everything under way, and tell both nodes."""
        sides = ((first, second), (second, first))
        had_end = [self._take_end(node, peer) for node, peer in sides]
        for (node, peer), had in zip(sides, had_end, strict=True):
            if had:
                self._nodes[node].connection(peer, False)

    # --- Ends

    def _end(self, node: str, peer: str) -> VirtualStream | None:
        return self._ends.get(node, {}).get(peer)

    def _take_end(self, node: str, peer: str) -> bool:
        """Take the node's end away without telling it; return False if it had none."""
        stream = self._ends.get(node, {}).pop(peer, None)
        if stream is None:
            return False
        stream.is_open = False
        stream.link.end()
        stream.back.whole = False  # nobody reads it any more
        return True

    def _link(self, source: str, target: str) -> StreamLink:
        link = self._find_link(source, target)
        assert isinstance(link, StreamLink)
        return link
