"""A broker of the guaranteed overlay: sessions, subscriptions, delivery and clients composed (overlay.md)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from tidings.model.errors import StoreCorrupt
from tidings.protocol.attachments import Attachments
from tidings.protocol.delivery import Delivery, SpillLimits
from tidings.protocol.kernel import Node, Port
from tidings.protocol.labels import Label, label_text
from tidings.protocol.matching import Matcher
from tidings.protocol.neighbourhood import Neighbourhood
from tidings.protocol.relays import RelayingPort, Relays
from tidings.protocol.sessions import Sessions
from tidings.protocol.store import Store
from tidings.protocol.subscription_log import Entry, SubscriptionLog
from tidings.protocol.subscriptions import Subscriptions

DEFAULT_WINDOW = 64


class Identity(msgspec.Struct, array_like=True, frozen=True):
    """Who a broker is, on its disk."""

    name: str
    label: tuple[int, ...]
    delta: int
    generation: int
    """Of its log: another one after the disk was lost."""


_encode = msgspec.msgpack.Encoder().encode
_decode_identity = msgspec.msgpack.Decoder(Identity).decode


class GuaranteedBroker(Node):
    """`neighbours` has the label of every broker within delta + 1 links, and where it listens.

    `incarnation` grows with every start. `new` says that the network is new: a broker without anything on its
    disk is otherwise one that lost it, and asks its neighbours for the log before it serves anybody.
    """

    def __init__(
        self,
        port: Port,
        label: Label,
        neighbours: Mapping[str, tuple[Label, str]],
        store: Store,
        *,
        delta: int,
        incarnation: int,
        new: bool = False,
        window: int = DEFAULT_WINDOW,
        limits: SpillLimits | None = None,
        matcher: Matcher | None = None,
        address: str = "",
    ) -> None:
        self.name = port.node
        self.delta = delta
        self.store = store
        port = RelayingPort(port)
        identity, recovering = self._identify(label, incarnation, new)
        self.generation = identity.generation
        self.neighbourhood = Neighbourhood(self.name, label, delta + 1)
        for peer, (peer_label, peer_address) in neighbours.items():
            self.neighbourhood.add(peer, peer_label, peer_address)
        self.log = SubscriptionLog(label, store, Matcher() if matcher is None else matcher)
        self.sessions = Sessions(
            port, self.neighbourhood, delta=delta, incarnation=incarnation, window=window, address=address
        )
        self.subscriptions = Subscriptions(
            port, self.sessions, self.log, incarnation=incarnation, recovering=recovering
        )
        self.delivery = Delivery(
            port,
            self.sessions,
            self.subscriptions,
            store,
            generation=identity.generation,
            window=window,
            limits=SpillLimits() if limits is None else limits,
        )
        self.attachments = Attachments(port, self.sessions, self.subscriptions, self.delivery, store)
        self.relays = Relays(port, self.sessions, incarnation=incarnation)
        self._connect_parts()
        # Relays first: a direct connection ends a circuit before the sessions hear of it.
        super().__init__((self.relays, self.sessions, self.subscriptions, self.delivery, self.attachments))

    def _identify(self, label: Label, incarnation: int, new: bool) -> tuple[Identity, bool]:
        """Who this is, and whether its disk was lost."""
        rows = self.store.read("identity")
        if not rows:
            identity = Identity(self.name, label, self.delta, incarnation)
            self.store.write([("identity", b"broker", _encode(identity))])
            if not new:
                self.store.write([("identity", b"recovering", b"")])
            return identity, not new
        try:
            identity = _decode_identity(dict(rows)[b"broker"])
        except (msgspec.MsgspecError, KeyError) as error:
            raise StoreCorrupt(f"the identity of the broker does not decode: {error}") from None
        for what, kept, given in (
            ("name", identity.name, self.name),
            ("label", label_text(identity.label), label_text(label)),
            ("delta", identity.delta, self.delta),
        ):
            if kept != given:
                raise ValueError(
                    f"the data of this broker belong to a broker with {what} {kept}, not {given}"
                )
        return identity, b"recovering" in dict(rows)

    def _connect_parts(self) -> None:
        sessions, subscriptions = self.sessions, self.subscriptions
        delivery, attachments = self.delivery, self.attachments
        sessions.on_activated = subscriptions.activated
        sessions.on_deactivated = self._deactivated
        sessions.on_lost = self._lost
        sessions.on_changed = subscriptions.changed
        sessions.on_beat = self.relays.consider
        sessions.on_ended = self.relays.session_ended
        self.relays.receive = self.receive
        self.relays.is_needed = self._is_needed
        subscriptions.on_ready = delivery.ready
        subscriptions.on_progress = attachments.progressed
        subscriptions.on_records_changed = self._records_changed
        subscriptions.on_recovered = self._recovered
        subscriptions.stamped = attachments.stamped
        delivery.local_targets = attachments.local_targets
        delivery.gap_targets = attachments.gap_targets
        delivery.confirm_client = attachments.confirm
        attachments.describe = self.status

    def _is_needed(self, peer: str) -> bool:
        """Is that unreachable peer worth a circuit: does anything wait for it, or is nobody reached behind it?"""
        around = self.neighbourhood
        if not any(self.sessions.established(other) for other in around.behind(peer)):
            return True
        return self.delivery.waits_behind(peer)

    def _deactivated(self, peer: str) -> None:
        self.subscriptions.deactivated(peer)
        self.delivery.deactivated(peer)

    def _lost(self, peer: str) -> None:
        self.subscriptions.lost(peer)
        self.delivery.lost(peer)

    def _records_changed(self, entries: Sequence[Entry]) -> None:
        self.delivery.records_changed(entries)
        self.attachments.records_changed()

    def _recovered(self) -> None:
        self.store.write([("identity", b"recovering", None)])
        self.attachments.recovered()

    def discard(self) -> None:
        self.log.discard()

    def status(self) -> dict[str, object]:
        """What `tidings status` shows."""
        return {"broker": self.name, "mode": "guaranteed"}
