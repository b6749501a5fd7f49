"""What a live broker in mode epidemic needs besides its sockets: settings, and datagrams without a session.

Neighbours have sessions, as in any mode. Gossip goes to any broker of the directory: the protocol says where each one
listens (BrokerKnown), and from then on a message for it is one datagram to that address. Gossip from that address is
accepted as that broker's; anything else from a stranger is ignored.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from ipaddress import IPv6Address, ip_address

from msgspec.structs import replace

from tidings.core.errors import ConnectionFailed, WireError
from tidings.core.events.event import decode_publication
from tidings.core.events.run import Run, Stretch
from tidings.core.messages import Hello, Message
from tidings.core.overlay.epidemic.messages import Ask, Carried, Fragment, Offer, Solicit
from tidings.core.overlay.epidemic.settings import RecoverySettings
from tidings.core.overlay.labels import Label
from tidings.core.overlay.modes import EPIDEMIC
from tidings.core.wire.codec import decode, encode
from tidings.drivers.address import parse_address
from tidings.drivers.sockets.handshake import BROKER, CLIENT
from tidings.drivers.sockets.outbox import DATAGRAM_MAX_BYTES
from tidings.drivers.sockets.udp import DatagramEndpoint, Peer
from tidings.scenarios.file.schema import Loss

MAX_KNOWN = 100_000
PACKET_BYTES = 1_400

DIGESTS = (Offer, Ask, Solicit)
DATA = (Carried, Fragment)


def within_datagrams(recovery: RecoverySettings) -> RecoverySettings:
    """Return the settings with, by default, blocks that fit into one packet of any usual network."""
    return replace(recovery, datagram_bytes=recovery.datagram_bytes or PACKET_BYTES)


@dataclass(frozen=True, slots=True)
class EpidemicSettings:
    """The settings of one broker in mode epidemic."""

    recovery: RecoverySettings = RecoverySettings()  # noqa: RUF009 - immutable
    label: Label | None = None
    """None: the broker asks its neighbours for one."""
    loss: Loss | None = None
    """How messages to brokers are lost on purpose."""
    seed: int | None = None
    """The seed of the loss."""


class DatagramRouter:
    """Sends and receives datagrams of brokers that are not neighbours; `receive(broker, message)` gets theirs."""

    def __init__(
        self, endpoint: DatagramEndpoint, without: Collection[str], receive: Callable[[str, Message], None]
    ) -> None:
        self.sinks: dict[str, BrokerSink] = {}
        """Broker -> where to send its messages."""
        self.cut: Collection[str] = ()
        """A fault, for tests: nothing passes to and from these brokers."""
        self.received = self.sent = self.dropped = self.oversize = self.ignored = 0
        self._endpoint = endpoint
        self._without = without
        self._receive = receive
        self._brokers: dict[Peer, str] = {}
        endpoint.take_sessionless = self._take

    def learn(self, broker: str, text: str) -> None:
        """Note that the broker listens there now. An invalid or non-loopback address makes it unreachable."""
        if broker in self._without:
            return
        self._forget(broker)
        peer = loopback_peer(text, ipv6=self._endpoint.is_ipv6)
        if peer is None or len(self.sinks) >= MAX_KNOWN:
            return
        self.sinks[broker] = BrokerSink(self, broker, peer)
        self._brokers[peer] = broker

    def send(self, broker: str, peer: Peer, message: Message) -> None:
        if broker in self.cut:
            return
        datagram = encode(message)
        if len(datagram) > DATAGRAM_MAX_BYTES:
            self.oversize += 1
        elif self._endpoint.paused:  # best effort: other rounds of gossip follow
            self.dropped += 1
        else:
            self.sent += 1
            self._endpoint.write(datagram, peer)

    def _forget(self, broker: str) -> None:
        sink = self.sinks.pop(broker, None)
        if sink is not None and self._brokers.get(sink.peer) == broker:
            del self._brokers[sink.peer]

    def _take(self, peer: Peer, datagram: bytes) -> bool:
        """Handle a datagram from an address without a session; return False to leave it to others."""
        broker = self._brokers.get(peer)
        if broker is None:
            return False
        try:
            messages = decode(datagram)
        except WireError:
            self.ignored += 1
            return True
        if isinstance(messages[0], Hello):
            return False
        for message in messages:
            if broker not in self.cut and is_gossip(message):
                self.received += 1
                self._receive(broker, message)
            else:
                self.ignored += 1
        return True

    def refusal(self, hello: Hello, *, by_datagram: bool) -> str | None:
        """Return why that Hello is refused, or None. Clients use streams, brokers datagrams, and no client may have
        the name of a broker."""
        if (hello.role == BROKER) != by_datagram:
            return f"in mode {EPIDEMIC!r} clients use TCP and brokers use UDP"
        if hello.role == CLIENT and hello.node in self.sinks:
            return f"the name {hello.node!r} belongs to a broker"
        return None

    def status(self) -> dict[str, object]:
        return {
            "addresses": len(self.sinks),
            "sent": self.sent,
            "received": self.received,
            "dropped": self.dropped,
            "oversize": self.oversize,
            "ignored": self.ignored,
            "strangers": self._endpoint.strangers,
        }


class BrokerSink:
    """Sends the messages for one broker: a port's sink, as a session is."""

    __slots__ = ("_broker", "_router", "peer")

    def __init__(self, router: DatagramRouter, broker: str, peer: Peer) -> None:
        self.peer = peer
        self._router = router
        self._broker = broker

    def send(self, message: Message) -> None:
        self._router.send(self._broker, self.peer, message)


def is_gossip(message: Message) -> bool:
    """Return True for digests, and for events and blocks that a recovery algorithm sent. Others come down the tree,
    from neighbours only."""
    return isinstance(message, DIGESTS) or (isinstance(message, DATA) and bool(message.by))


def unpinned(stretch: Stretch) -> Stretch:
    """Return a copy of a checked publication that can be kept for long: it does not pin the buffer that it was read
    from."""
    if isinstance(stretch, Run):
        return stretch.kept()
    kept = decode_publication(stretch.raw.copy())
    kept.decoded = stretch.decoded
    return kept


def loopback_peer(text: str, *, ipv6: bool) -> Peer | None:
    """Return the socket address as the kernel reports it; None if it is invalid or not loopback.

    Brokers announce IP addresses, so names are never looked up, whatever others announce.
    """
    try:
        host, port = parse_address(text, default_port=0)
        ip = ip_address(host)
    except (ConnectionFailed, ValueError):
        return None
    if not port or not ip.is_loopback or isinstance(ip, IPv6Address) != ipv6:
        return None
    return (str(ip), port, 0, 0) if ipv6 else (str(ip), port)
