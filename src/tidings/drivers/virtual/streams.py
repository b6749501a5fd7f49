"""Connections between simulated nodes, as over TCP: what one carries arrives in order and without gaps.

A connection is two streams, one per direction. Each node has its own end of it: it may have closed it, or lost
it in a crash, while the peer still believes in its own. A stream that lost anything (to a cut, or to a target
that was down) carries nothing more, and nobody is told: finding out is the business of the protocols.

            wanted, or the peer dials                   closed here, FIN, RST, or replaced
    (none) ---------------------------> both have an end --------------------------------> (none)
                                          told `link_up`                told `link_down`

Nodes ask for connections with the facts SessionWanted and SessionUnwanted. They are emitted from within protocol
code, so nothing is told to any node before the handler at work has ended. Connections between clients and their
brokers come and go with what happens to the network, not with wishes.
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
"""How long a sender waits, besides the round trip, before it sends again what was lost."""
MAX_LOSSES = 8
"""A message is lost so many times at most."""


class _Always(Handlers):
    """Every class of message has the same handler."""

    def __init__(self, handler: Callable[[str, Message], None]) -> None:
        super().__init__()
        self._handler = handler

    def __missing__(self, kind: type) -> Callable[[str, Message], None]:
        self[kind] = self._handler
        return self._handler


class StreamLink(VirtualLink):
    """One direction between two nodes: counts like a Link, and carries for the connection of the moment.

    Lost messages are sent again and come later, and what is behind them waits. Copies and messages that overtake
    others do not leave the transport.
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
        """Where the source's messages go: its end of the connection, if it has one and knows of it."""
        self._due_at = 0
        """Nothing may arrive before; what is sent in haste (`_plain`) is not noted here."""
        lossless = self._draw_loss is None and not self._bandwidth_mbps
        self._delays_only = lossless and self._constant_ns is not None
        self._plain = False

    def begin(self, stream: VirtualStream) -> None:
        """The source knows of its end of a new connection, and sends on it."""
        self.stream = stream
        self.handlers = _Always(stream.arrive)
        self._due_at = 0
        self._plain = False
        self.refresh()

    def end(self) -> None:
        """The source's end is gone: it sends no more."""
        self._note_due()
        self.stream = None
        self._plain = False

    def refresh(self) -> None:
        self._note_due()
        super().refresh()
        self._plain = self._plain and self.stream is not None and self._is_level()

    def delay_ns(self) -> int:
        """Of one message on its way, without what queues or losses add."""
        delay_ns = self._draw_delay_ns()
        return delay_ns if self.slowness == 1.0 else round(delay_ns * self.slowness)

    def after_the_rest(self) -> int:
        """When something sent now arrives that follows everything sent before."""
        return max(self._due_at, self._schedule.now + self.delay_ns())

    def _note_due(self) -> None:
        if self._plain and self._constant_ns is not None:
            self._due_at = max(self._due_at, self._schedule.now + self._constant_ns)

    def _is_level(self) -> bool:
        """True if a message that takes the usual time overtakes none that was delayed before."""
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
        """How much later the message comes because it was lost again and again."""
        late_ns = timeout_ns = 0
        for _ in range(MAX_LOSSES):
            if not self._is_lost():
                break
            timeout_ns = 2 * timeout_ns or RETRANSMISSION_NS + self.delay_ns() + stream.back.link.delay_ns()
            late_ns += timeout_ns
        return late_ns


class VirtualStream:
    """One direction of one connection. What is on its way belongs to it, whatever happens to the connection."""

    __slots__ = ("_reset", "_target", "_target_handlers", "back", "is_open", "link", "whole")

    def __init__(
        self, link: StreamLink, target: SimulatedNode, reset: Callable[[VirtualStream], None]
    ) -> None:
        self.link = link
        self.back: VirtualStream
        self.is_open = True
        """The source has its end."""
        self.whole = True
        """The target has its end and nothing was lost so far. Once False, it stays so."""
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


class Wish:
    """A node wants a connection. One that was taken back is another than one said later."""

    __slots__ = ("node", "peer", "pending", "retry_ns")

    def __init__(self, node: str, peer: str) -> None:
        self.node = node
        self.peer = peer
        self.pending = True
        """An attempt is under way or will be made."""
        self.retry_ns = FIRST_RETRY_NS


class Connections:
    """Who has an end of which connection, who wants one, and the attempts to open them."""

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
        self._wishes: dict[str, dict[str, Wish]] = {}
        self._ends: dict[str, dict[str, VirtualStream]] = {}
        """Node -> peer -> the stream on which the node sends to the peer."""
        self._jitter: dict[tuple[str, str], Random] = {}
        self._attached: set[tuple[str, str]] = set()

    def listening(self, node: str, emit: Emit) -> Emit:
        """`emit` for that node: its wishes are for us, everything else passes on."""

        def listen(fact: object) -> None:
            if type(fact) is SessionWanted:
                self.want(node, fact.peer)
            elif type(fact) is SessionUnwanted:
                self.unwant(node, fact.peer)
            else:
                emit(fact)

        return listen

    def attach(self, client: str, broker: str) -> None:
        """The two wish in vain: whoever attached them opens and ends their connections."""
        self._attached |= {(client, broker), (broker, client)}

    def connected(self, node: str, peer: str) -> bool:
        """Both have their end of one connection. Whether anything still passes is another matter."""
        stream = self._end(node, peer)
        return stream is not None and stream.back.is_open

    # --- Wishes

    def want(self, node: str, peer: str) -> None:
        if (node, peer) in self._attached:
            return
        wishes = self._wishes.setdefault(node, {})
        if peer not in wishes:
            wish = wishes[peer] = Wish(node, peer)
            self._schedule.at(self._schedule.now, self._dial, wish)

    def unwant(self, node: str, peer: str) -> None:
        self._wishes.get(node, {}).pop(peer, None)
        stream = self._end(node, peer)
        if stream is not None and (node, peer) not in self._attached:
            self._schedule.at(self._schedule.now, self._close, stream)

    def crash(self, node: str) -> None:
        """The node forgets its wishes and its ends; its peers are not told."""
        self._wishes.pop(node, None)
        for peer in list(self._ends.get(node, ())):
            self._take_end(node, peer)

    # --- Opening

    def _is_current(self, wish: Wish) -> bool:
        return self._wishes.get(wish.node, {}).get(wish.peer) is wish

    def _dial(self, wish: Wish, _second: object) -> None:
        if not self._is_current(wish):
            return
        if self._end(wish.node, wish.peer) is not None:
            wish.pending = False
        elif self._is_passable(wish) and not self._nodes[wish.node].paused:
            there, back = self._link(wish.node, wish.peer), self._link(wish.peer, wish.node)
            round_trip_ns = there.delay_ns() + back.delay_ns()
            self._schedule.at(self._schedule.now + round_trip_ns, self._complete, wish)
        else:
            self._retry(wish)

    def _complete(self, wish: Wish, _second: object) -> None:
        if not self._is_current(wish):
            return
        if not self._is_passable(wish) or self._nodes[wish.peer].paused:
            self._retry(wish)
            return
        wish.pending = False
        if not self._is_sound(wish.node, wish.peer):
            self.open(wish.peer, wish.node)

    def _is_passable(self, wish: Wish) -> bool:
        """Both are up and a message passes either way."""
        node, peer = self._nodes[wish.node], self._nodes.get(wish.peer)
        if peer is None or not node.up or not peer.up:
            return False
        return not self._link(wish.node, wish.peer).cuts and not self._link(wish.peer, wish.node).cuts

    def _is_sound(self, node: str, peer: str) -> bool:
        """There is a connection, both have their ends, and it lost nothing."""
        stream = self._end(node, peer)
        return stream is not None and stream.whole and stream.back.whole

    def _retry(self, wish: Wish) -> None:
        pair = (wish.node, wish.peer)
        random = self._jitter.get(pair)
        if random is None:
            random = self._jitter[pair] = Random(f"{self._seed}:dial:{wish.node}>{wish.peer}")
        delay_ns = round(wish.retry_ns * random.uniform(1 - RETRY_JITTER, 1 + RETRY_JITTER))
        wish.retry_ns = min(2 * wish.retry_ns, LAST_RETRY_NS)
        wish.pending = True
        self._schedule.at(self._schedule.now + delay_ns, self._dial, wish)

    def open(self, acceptor: str, initiator: str) -> None:
        """A new connection; what is left of an older one between the two ends here."""
        sides = ((acceptor, initiator), (initiator, acceptor))
        had_end = [self._take_end(node, peer) for node, peer in sides]
        back, there = (self._make_stream(node, peer) for node, peer in sides)
        back.back, there.back = there, back
        for (node, peer), stream in zip(sides, (back, there), strict=True):
            self._ends.setdefault(node, {})[peer] = stream
            wish = self._wishes.get(node, {}).get(peer)
            if wish is not None:
                wish.retry_ns = FIRST_RETRY_NS
        for (node, peer), had, stream in zip(sides, had_end, (back, there), strict=True):
            if had:
                self._nodes[node].connection(peer, False)
            self._tell_open(stream, None)

    def _tell_open(self, stream: VirtualStream, _second: object) -> None:
        """The source learns of its end; what it sent before it knew of it was not meant for it."""
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
        """The source closes: its peer hears of it after all that was sent before, unless a cut is in between."""
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
        """The target got something for a connection that it does not know, and says so."""
        link = stream.back.link
        if not link.cuts:
            self._schedule.at(link.after_the_rest(), self._on_reset, stream)

    def _on_reset(self, stream: VirtualStream, _second: object) -> None:
        if stream.is_open and not stream.back.link.cuts:
            self._end_source(stream)

    def _end_source(self, stream: VirtualStream) -> None:
        """The source's end is gone, and it learns so. If it wants another, attempts begin."""
        node, peer = stream.link.source, stream.link.target
        self._take_end(node, peer)
        self._nodes[node].connection(peer, False)
        wish = self._wishes.get(node, {}).get(peer)
        if wish is not None and not wish.pending:
            self._retry(wish)

    def disconnect(self, first: str, second: str) -> None:
        """Both ends are gone at once, with all that was on its way, and both nodes learn so."""
        sides = ((first, second), (second, first))
        had_end = [self._take_end(node, peer) for node, peer in sides]
        for (node, peer), had in zip(sides, had_end, strict=True):
            if had:
                self._nodes[node].connection(peer, False)

    # --- Ends

    def _end(self, node: str, peer: str) -> VirtualStream | None:
        return self._ends.get(node, {}).get(peer)

    def _take_end(self, node: str, peer: str) -> bool:
        """Take the node's end away, silently; False if it had none."""
        stream = self._ends.get(node, {}).pop(peer, None)
        if stream is None:
            return False
        stream.is_open = False
        stream.link.end()
        stream.back.whole = False  # nobody is there to read it
        return True

    def _link(self, source: str, target: str) -> StreamLink:
        link = self._find_link(source, target)
        assert isinstance(link, StreamLink)
        return link
