"""A broker of the guaranteed overlay, composed of sessions, subscriptions, delivery and clients."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec

from tidings.core.errors import StoreCorrupt
from tidings.core.kernel import Node, Port
from tidings.core.overlay.guaranteed.attachments import Attachments
from tidings.core.overlay.guaranteed.bookmarks import KeptBookmarks
from tidings.core.overlay.guaranteed.delivery import Delivery
from tidings.core.overlay.guaranteed.far_links import FarLinks
from tidings.core.overlay.guaranteed.local_subscriptions import LocalSubscriptions
from tidings.core.overlay.guaranteed.membership import Membership, read_news
from tidings.core.overlay.guaranteed.messages import Neighbour
from tidings.core.overlay.guaranteed.neighbourhood import Neighbourhood
from tidings.core.overlay.guaranteed.ordered_shares import OrderedShares
from tidings.core.overlay.guaranteed.queued import LocalClient, name_of
from tidings.core.overlay.guaranteed.relays import RelayingPort, Relays
from tidings.core.overlay.guaranteed.sessions import Sessions
from tidings.core.overlay.guaranteed.share_history import ShareHistories
from tidings.core.overlay.guaranteed.share_listing import ShareListing
from tidings.core.overlay.guaranteed.shares import Shares
from tidings.core.overlay.guaranteed.spill import SpillLimits
from tidings.core.overlay.guaranteed.subscription_log import SubscriptionLog
from tidings.core.overlay.guaranteed.subscriptions import PublisherStamps, SubscriptionListener, Subscriptions
from tidings.core.overlay.labels import Label, label_text
from tidings.core.overlay.matching import Matcher, Selection
from tidings.core.overlay.responders import Responders
from tidings.core.store import Change, Store

DEFAULT_WINDOW = 64
MAX_STATUS_ROWS = 100


class BrokerRecord(msgspec.Struct, array_like=True, frozen=True):
    """A broker's identity, as kept on its disk."""

    name: str
    label: tuple[int, ...]
    delta: int
    generation: int
    """The generation of its log, which changes when the disk is lost."""
    around: tuple[tuple[str, tuple[int, ...], str], ...] = ()
    """Its neighbourhood at its first start."""


MAX_NAMES = 10
"""How many names an error lists."""


def _listed(names: list[str]) -> str:
    more = len(names) - MAX_NAMES
    return ", ".join(names[:MAX_NAMES]) + (f" and {more} more" if more > 0 else "")


_encode = msgspec.msgpack.Encoder().encode
_decode_identity = msgspec.msgpack.Decoder(BrokerRecord).decode


def read_identity(store: Store) -> BrokerRecord | None:
    """Return the identity of the store's broker; None if the store is new."""
    row = store.get("identity", b"broker")
    if row is None:
        return None
    try:
        return _decode_identity(row)
    except msgspec.MsgspecError as error:
        raise StoreCorrupt(f"the broker's identity does not decode: {error}") from None


class GuaranteedBroker(Node, SubscriptionListener):
    """A guaranteed broker. `neighbours` has the label and address of every broker within delta + 1 links.

    `incarnation` grows with every start. `new` says that the network is new. Otherwise a broker with an empty disk has
    lost its data, and asks its neighbours for the log before it serves anybody. Without `label` it uses the label on
    its disk.
    """

    def __init__(
        self,
        port: Port,
        label: Label | None,
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
        identity, recovering = self._identify(label, neighbours, incarnation, new)
        label = identity.label
        self.generation = identity.generation
        news = read_news(store)
        self.neighbourhood = self._make_neighbourhood(identity, neighbours, news)
        matcher = Matcher() if matcher is None else matcher
        self.log = SubscriptionLog(label, store, matcher)
        self.sessions = Sessions(
            port,
            self.neighbourhood,
            news,
            delta=delta,
            incarnation=incarnation,
            window=window,
            address=address,
        )
        stamps = PublisherStamps()
        self.subscriptions = Subscriptions(
            port, self.sessions, self.log, stamps, incarnation=incarnation, recovering=recovering
        )
        self.subscriptions.listeners.append(self)
        local = LocalSubscriptions()
        self.delivery = Delivery(
            port,
            self.sessions,
            self.subscriptions,
            local,
            store,
            generation=identity.generation,
            window=window,
            limits=SpillLimits() if limits is None else limits,
        )
        self.bookmarks = KeptBookmarks(port, store)
        self.attachments = Attachments(
            port,
            self.sessions,
            self.subscriptions,
            local,
            stamps,
            self.delivery,
            self.bookmarks,
            store,
            describe=self.status,
        )
        links = FarLinks(port, self.sessions, incarnation=incarnation)
        self.ordered_shares = OrderedShares(port, self.receive, self.attachments.on_link_down)
        self.share_histories = ShareHistories(port, self.attachments, self.delivery, self.receive)
        self.shares = Shares(
            port,
            self.subscriptions,
            store,
            links,
            self.ordered_shares,
            self.share_histories,
            self.receive,
            self.attachments.on_link_down,
            incarnation=incarnation,
        )
        self.membership = Membership(port, self.sessions, self.delivery, self.attachments, links, store, news)
        self.relays = Relays(port, self.sessions, self.delivery, self.receive, incarnation=incarnation)
        # Relays first: a direct connection must end a circuit before the sessions see it.
        parts = (
            self.relays,
            self.sessions,
            self.subscriptions,
            self.delivery,
            self.bookmarks,
            self.attachments,
            links,
            self.ordered_shares,
            self.share_histories,
            self.shares,
            ShareListing(port, self.shares),
            self.membership,
            Responders(port, matcher, self._look_for_responders),
        )
        super().__init__(parts)

    def _look_for_responders(self, selection: Selection, nobody: Callable[[], None]) -> None:
        if not self.subscriptions.recovering:  # a broker that lost its log cannot tell
            self.shares.unless_attended(self.log.answering(selection), nobody)

    def _identify(
        self, label: Label | None, neighbours: Mapping[str, tuple[Label, str]], incarnation: int, new: bool
    ) -> tuple[BrokerRecord, bool]:
        """Return this broker's identity, and whether its disk was lost."""
        identity = read_identity(self.store)
        if identity is None:
            if label is None:
                raise ValueError(f"broker {self.name} needs a label: there is none on its disk")
            around = tuple((peer, at, address) for peer, (at, address) in neighbours.items())
            identity = BrokerRecord(self.name, label, self.delta, incarnation, around)
            changes: list[Change] = [("identity", b"broker", _encode(identity))]
            if not new:
                changes.append(("identity", b"recovering", b""))
            self.store.write(changes)
            return identity, not new
        for what, kept, given in (
            ("name", identity.name, self.name),
            ("label", label_text(identity.label), label_text(label or identity.label)),
            ("delta", identity.delta, self.delta),
        ):
            if kept != given:
                raise ValueError(f"the data on disk belong to a broker with {what} {kept}, not {given}")
        return identity, self.store.get("identity", b"recovering") is not None

    def _make_neighbourhood(
        self,
        identity: BrokerRecord,
        neighbours: Mapping[str, tuple[Label, str]],
        news: Mapping[str, Neighbour],
    ) -> Neighbourhood:
        """Combine the given neighbours (or, if there are none, those of the first start) with later news."""
        around = Neighbourhood(self.name, identity.label, self.delta + 1)
        known = {peer: (at, address) for peer, at, address in identity.around}
        for peer, (label, address) in (neighbours or known).items():
            if peer not in news or not news[peer].gone:
                around.add(peer, label, address)
        for neighbour in news.values():
            if not neighbour.gone:
                around.add(neighbour.name, tuple(neighbour.label), neighbour.address)
        return around

    def recovered(self) -> None:
        """The log is complete again: note it on disk."""
        self.store.write([("identity", b"recovering", None)])

    def leave(self) -> None:
        """Leave the network for good. LeftNetwork is emitted when nothing waits for this broker any more.

        Raise ValueError if it cannot leave.
        """
        kept = [str(row["name"]) for row in self.shares.status()]
        if kept:
            raise ValueError(
                f"{self.name} cannot leave: it keeps {_listed(kept)}, and what waits there would be lost; "
                "attach to these elsewhere for a while, so that they move there, or end them (tidings cancel)"
            )
        stuck = self.shares.end_former_homes()
        if stuck:
            raise ValueError(
                f"{self.name} cannot leave yet: it passes on events of {_listed(stuck)}, which moved to other brokers; "
                "try again when these can be reached"
            )
        self.membership.leave()

    def discard(self) -> None:
        self.log.discard()

    def status(self) -> dict[str, object]:
        """Return what `tidings status` shows: who is reachable, what is incomplete and why, and what waits."""
        sessions, delivery = self.sessions, self.delivery
        clients = self.attachments.clients.values()
        waiting_for = [
            ("client" if isinstance(hop, LocalClient) else "broker", name_of(hop), count)
            for hop, count in delivery.waiting_for().items()
        ]
        return {
            "broker": self.name,
            "mode": "guaranteed",
            "label": label_text(self.neighbourhood.label),
            "delta": self.delta,
            "incarnation": sessions.incarnation,
            "recovering": self.subscriptions.recovering,
            "records": len(self.log),
            "clients": sum(client.attached for client in clients),
            "subscriptions": sum(len(client.subscriptions) for client in clients),
            "queued": delivery.queued_count,
            "parked": delivery.parked_count,
            "spilled_bytes": delivery.spilled_bytes,
            "given_up": delivery.gaps,
            "duplicates_dropped": delivery.duplicates,
            "suspicions": sessions.suspicions,
            "suspicions_refuted": sessions.refutations,
            "partitions": [
                {
                    "partition": number,
                    "kind": "island" if reached else "barrier",
                    "brokers": " ".join(inside),
                    "bypassed_to": " ".join(reached),
                }
                for number, inside, reached in sessions.partitions()
            ],
            "incomplete_subscriptions": [
                {"client": client, "subscription": subscription, "uncovered": ", ".join(uncovered)}
                for client, subscription, uncovered in self.attachments.incomplete()[:MAX_STATUS_ROWS]
            ],
            "waiting_for": [
                {"name": name, "kind": kind, "publications": count}
                for kind, name, count in sorted(waiting_for)[:MAX_STATUS_ROWS]
            ],
            "durable": self.shares.status()[:MAX_STATUS_ROWS],
            "durable_count": self.shares.count,
            "moved_away": self.shares.moved_away()[:MAX_STATUS_ROWS],
            "neighbours": {peer: self._peer_status(peer) for peer in self._shown_peers()},
        }

    def _shown_peers(self) -> list[str]:
        wanted = [*self.neighbourhood.primary, *self.sessions.active, *self.sessions.unreachable()]
        return list(dict.fromkeys(wanted))

    def _peer_status(self, peer: str) -> dict[str, object]:
        established = self.sessions.established(peer)
        circuit = self.relays.circuit(peer)
        sent, waiting = self.delivery.hops.counts(peer)
        return {
            "label": label_text(self.neighbourhood.label_of(peer)),
            "present": established,
            "active": peer in self.sessions.active,
            "ready": self.subscriptions.ready(peer),
            "through": circuit or "",
            "unconfirmed": sent,
            "waiting": waiting,
        }
