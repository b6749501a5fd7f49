"""What a live broker of the guaranteed overlay needs beside its sockets: settings, a store, and kept connections.

The protocol says with whom it wants a connection (SessionWanted, SessionUnwanted); `Keeper` dials, again and again
where need be. Either side of a link may dial, so two dials may cross. Exactly one connection survives, that of the
broker whose name sorts lower: it refuses the other's Hello, and the other gives up its own dial when that arrives.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

from tidings.model.errors import ConnectionFailed, StoreCorrupt, StoreError
from tidings.net.address import Address, parse_address
from tidings.net.dialling import backoff_seconds, explain
from tidings.net.disk_store import BROKER_KIND, DiskStore, set_aside
from tidings.net.handshake import Identity
from tidings.net.joining import ask_to_join
from tidings.net.session import Session
from tidings.protocol.guaranteed import GuaranteedBroker, read_identity
from tidings.protocol.guaranteed import Identity as StoredIdentity
from tidings.protocol.kernel import Port, RandomSource
from tidings.protocol.labels import Label
from tidings.protocol.spill import SpillLimits
from tidings.protocol.store import MemoryStore, Store

GUARANTEED = "guaranteed"
DEFAULT_DELTA = 2
DEFAULT_WINDOW = 1024
LAST_DELAY_SECONDS = 2.0
STABLE_SECONDS = 5.0
"""A session that stood for this long makes up for all earlier failures: the next dial comes at once."""
CROSSING_SECONDS = 1.0
"""A Hello that crossed our own dial may arrive so long after the Welcome that answered ours."""

log = logging.getLogger("tidings.net")


class GuaranteedSettings(NamedTuple):
    """Of one broker. `labels` has every broker within delta + 1 links, and `neighbours` their addresses."""

    label: Label | None
    """None: the broker joins, or goes on as the one that its disk knows."""
    labels: Mapping[str, Label]
    delta: int = DEFAULT_DELTA
    window: int = DEFAULT_WINDOW
    """Publications on their way over one session. What waits to be sent there is bounded by it, too."""
    data: Path | None = None
    """A directory; the broker's store in it is NAME.db. None: nothing outlives the broker."""
    new: bool = False
    """The network is new: a broker without a store is not one that lost it."""
    limits: SpillLimits | None = None
    join: Address | None = None
    """The broker below which this one gets its place when it starts for the first time."""
    recover: bool = False
    """A damaged store is set aside, and its content fetched from the neighbours."""


def store_path(data: Path, name: str) -> Path:
    """A name may hold what a file's name may not."""
    return data / f"{quote(name, safe=' ')}.db"


def open_store(
    name: str, settings: GuaranteedSettings, on_pending: Callable[[], None] | None = None
) -> Store:
    if settings.data is None:
        return MemoryStore()
    with BROKER_KIND.troubles.told(settings.data):
        settings.data.mkdir(parents=True, exist_ok=True)
    return DiskStore(store_path(settings.data, name), on_pending=on_pending)


async def settled_settings(
    us: Identity,
    settings: GuaranteedSettings,
    neighbours: Mapping[str, Address],
    listen: Address,
    context: ssl.SSLContext | None,
) -> tuple[GuaranteedSettings, dict[str, Address]]:
    """The settings with a place in the tree: as given, as on disk, or as the broker that is asked says."""
    if settings.label is not None:
        return settings, dict(neighbours)
    identity = _identity_on_disk(us.node, settings)
    if identity is not None:
        return settings._replace(delta=identity.delta), {}
    if settings.join is None:
        raise StoreError(f"{us.node} has no place in the tree: give it a label, or a broker to join")
    place = await ask_to_join(us, listen, settings.join, context)
    labels = {told.name: tuple(told.label) for told in place.neighbours}
    addresses = {told.name: parse_address(told.address) for told in place.neighbours}
    return settings._replace(label=tuple(place.label), labels=labels, delta=place.delta), addresses


def _identity_on_disk(name: str, settings: GuaranteedSettings) -> StoredIdentity | None:
    """None if there is none, or if it is damaged and to be fetched again: the same place is given once more."""
    try:
        store = open_store(name, settings)
    except StoreCorrupt as error:
        if not settings.recover or settings.data is None:
            raise
        log.warning("%s: %s; it is kept as %s", name, error, set_aside(store_path(settings.data, name)))
        return None
    try:
        return read_identity(store)
    finally:
        store.close()


def make_broker(
    port: Port,
    settings: GuaranteedSettings,
    neighbours: Mapping[str, Address],
    on_pending: Callable[[], None],
    *,
    incarnation: int,
    address: str,
    damage: StoreCorrupt | None = None,
) -> tuple[GuaranteedBroker, Store]:
    """The protocol's broker over its store; a damaged one is set aside if the settings say so.

    `on_pending`: see DiskStore. `damage` is what is known of that already: it may show only when the broker starts.
    """
    if damage is None:
        try:
            return _make_broker(port, settings, neighbours, on_pending, incarnation, address)
        except StoreCorrupt as error:
            damage = error
    if not settings.recover or settings.data is None:
        raise damage
    aside = set_aside(store_path(settings.data, port.node))
    log.warning("%s: %s; it is kept as %s", port.node, damage, aside)
    return _make_broker(port, settings._replace(new=False), neighbours, on_pending, incarnation, address)


def _make_broker(
    port: Port,
    settings: GuaranteedSettings,
    neighbours: Mapping[str, Address],
    on_pending: Callable[[], None],
    incarnation: int,
    address: str,
) -> tuple[GuaranteedBroker, Store]:
    store = open_store(port.node, settings, on_pending)
    try:
        node = GuaranteedBroker(
            port,
            settings.label,
            {peer: (label, str(neighbours[peer])) for peer, label in settings.labels.items()},
            store,
            delta=settings.delta,
            incarnation=incarnation,
            new=settings.new,
            window=settings.window,
            limits=settings.limits,
            address=address,
        )
    except ValueError as error:  # the store is another broker's, or the labels make no sense
        store.close()
        raise StoreError(f"cannot start {port.node}: {error}") from None
    except BaseException:
        store.close()
        raise
    return node, store


def check_settings(name: str, settings: GuaranteedSettings, neighbours: Mapping[str, Address]) -> None:
    """ValueError unless every neighbour has a label and every label an address."""
    if settings.window < 1:
        raise ValueError("the window is at least 1")
    for peer in settings.labels:
        if peer not in neighbours:
            raise ValueError(f"{name} has no address of {peer}")
    for peer in neighbours:
        if peer not in settings.labels:
            raise ValueError(f"{name} has no label of {peer}")


class Keeper:
    """Keeps a session open with each wanted peer, whoever opens it.

    `open_session` dials; `standing` is the session with a peer that is up, if there is one. `on_failure(peer,
    reason)` hears why there is none.
    """

    def __init__(
        self,
        open_session: Callable[[str, Address], Awaitable[Session]],
        standing: Callable[[str], Session | None],
        random: RandomSource,
        on_failure: Callable[[str, str], None],
    ) -> None:
        self._open_session = open_session
        self._standing = standing
        self._random = random
        self._on_failure = on_failure
        self._keepers: dict[str, asyncio.Task[None]] = {}
        self._dials: dict[str, asyncio.Task[Session]] = {}
        self._failures: dict[str, int] = {}
        """In a row, by peer. They outlive a wish: who is refused at once is wanted again at once."""

    def want(self, peer: str, address: Address) -> None:
        """Nothing happens before the next turn of the loop, so the protocol may call this."""
        if peer not in self._keepers:
            self._keepers[peer] = asyncio.get_running_loop().create_task(self._keep(peer, address))

    def unwant(self, peer: str) -> None:
        keeper = self._keepers.pop(peer, None)
        if keeper is not None:
            keeper.cancel()
            session = self._standing(peer)
            if session is not None:
                self._note_end(peer, session)

    def dials(self, peer: str) -> bool:
        """Is a dial to that peer under way?"""
        return peer in self._dials

    def give_way(self, peer: str) -> None:
        """The peer's own connection is taken: a dial that is under way ends."""
        dial = self._dials.get(peer)
        if dial is not None:
            dial.cancel()

    def forget_all(self) -> None:
        for peer in list(self._keepers):
            self.unwant(peer)
        self._failures.clear()

    async def stop(self) -> None:
        keepers = list(self._keepers.values())
        self.forget_all()
        await asyncio.gather(*keepers, return_exceptions=True)

    async def _keep(self, peer: str, address: Address) -> None:
        while True:
            session = self._standing(peer)
            if session is None:
                await self._wait(peer)
                session = self._standing(peer) or await self._dial(peer, address)
            if session is not None:
                end = await asyncio.shield(session.ended)
                self._note_end(peer, session)
                self._on_failure(peer, end.reason)

    async def _wait(self, peer: str) -> None:
        failures = self._failures.get(peer, 0)
        if failures:
            jitter = self._random.random()
            await asyncio.sleep(backoff_seconds(failures - 1, jitter, LAST_DELAY_SECONDS))

    def _note_end(self, peer: str, session: Session) -> None:
        now = asyncio.get_running_loop().time()
        if session.up_at and now - session.up_at >= STABLE_SECONDS:
            self._failures.pop(peer, None)
        else:
            self._failures[peer] = self._failures.get(peer, 0) + 1

    async def _dial(self, peer: str, address: Address) -> Session | None:
        """A session that has settled, or None if there is no connection or another one was taken."""
        dial = asyncio.ensure_future(self._open_session(peer, address))
        self._dials[peer] = dial
        try:
            await asyncio.wait([dial])
        finally:
            dial.cancel()
            if self._dials.get(peer) is dial:
                del self._dials[peer]
        if dial.cancelled():
            return None
        error = dial.exception()
        if error is None:
            return dial.result()
        if not isinstance(error, OSError | ConnectionFailed):
            raise error
        self._failures[peer] = self._failures.get(peer, 0) + 1
        self._on_failure(peer, explain(error))
        return None


def crosses(us: str, peer: str, standing: Session | None, now: float) -> bool:
    """Did the peer's Hello cross a dial of ours that has just led to the standing session?"""
    if standing is None or standing.dial is None or us > peer:
        return False
    return now - standing.up_at < CROSSING_SECONDS
