"""What a live broker of the guaranteed overlay needs besides its sockets: settings and a store."""

from __future__ import annotations

import logging
import ssl
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

from tidings.core.errors import StoreCorrupt, StoreError
from tidings.core.kernel import Port
from tidings.core.overlay.brokers import AnyBroker, BrokerSpec, make_broker
from tidings.core.overlay.guaranteed.broker import BrokerRecord as StoredIdentity
from tidings.core.overlay.guaranteed.broker import read_identity
from tidings.core.overlay.guaranteed.spill import SpillLimits
from tidings.core.overlay.labels import Label
from tidings.core.overlay.modes import GUARANTEED
from tidings.core.store import MemoryStore, Store
from tidings.drivers.address import Address, parse_address
from tidings.drivers.sockets.handshake import HandshakeRules
from tidings.drivers.sockets.joining import ask_to_join
from tidings.storage.disk_store import BROKER_KIND, DiskStore, set_aside

DEFAULT_DELTA = 2
DEFAULT_WINDOW = 1024

log = logging.getLogger("tidings.net")


class GuaranteedSettings(NamedTuple):
    """The settings of one guaranteed broker. `labels` has every broker within delta + 1 links; `neighbours`, given
    separately, has their addresses."""

    label: Label | None
    """None: the broker joins, or takes the label in its store."""
    labels: Mapping[str, Label]
    delta: int = DEFAULT_DELTA
    window: int = DEFAULT_WINDOW
    """How many publications may be under way over one session. It also bounds what waits to be sent there."""
    data: Path | None = None
    """The directory for the broker's store, NAME.db. None: nothing outlives the broker."""
    new: bool = False
    """True if the network is new: a broker without a store has then not lost it."""
    limits: SpillLimits | None = None
    join: Address | None = None
    """The broker that gives this one its place in the tree when it starts for the first time."""
    recover: bool = False
    """True: set a damaged store aside and fetch its content from the neighbours."""

    def spec(self, neighbours: Mapping[str, Address]) -> BrokerSpec:
        return BrokerSpec(
            GUARANTEED,
            {peer: str(neighbours[peer]) for peer in self.labels},
            self.label,
            self.labels,
            delta=self.delta,
            window=self.window,
            limits=self.limits,
        )


def store_path(data: Path, name: str) -> Path:
    """Return the path of a broker's store."""
    return data / f"{file_name(name)}.db"


def file_name(name: str) -> str:
    """Return a broker's name with the characters quoted that a file name may not have."""
    return quote(name, safe=" ")


def open_store(
    name: str, settings: GuaranteedSettings, on_pending: Callable[[], None] | None = None
) -> Store:
    if settings.data is None:
        return MemoryStore()
    with BROKER_KIND.troubles.told(settings.data):
        settings.data.mkdir(parents=True, exist_ok=True)
    return DiskStore(store_path(settings.data, name), on_pending=on_pending)


async def settled_settings(
    us: HandshakeRules,
    settings: GuaranteedSettings,
    neighbours: Mapping[str, Address],
    listen: Address,
    context: ssl.SSLContext | None,
) -> tuple[GuaranteedSettings, dict[str, Address]]:
    """Return the settings with a place in the tree: as given, as on disk, or from the broker that we join at."""
    if settings.label is not None:
        return settings, dict(neighbours)
    identity = _identity_on_disk(us.node, settings)
    if identity is not None:
        return settings._replace(delta=identity.delta), {}
    if settings.join is None:
        raise StoreError(f"{us.node} has no place in the tree: give it a label or a broker to join")
    place = await ask_to_join(us, listen, settings.join, context)
    labels = {told.name: tuple(told.label) for told in place.neighbours}
    addresses = {told.name: parse_address(told.address) for told in place.neighbours}
    return settings._replace(label=tuple(place.label), labels=labels, delta=place.delta), addresses


def _identity_on_disk(name: str, settings: GuaranteedSettings) -> StoredIdentity | None:
    """Return the identity in the store; None if there is none, or if it is damaged and may be recovered: joining again
    gives the same place."""
    try:
        store = open_store(name, settings)
    except StoreCorrupt as error:
        if not settings.recover or settings.data is None:
            raise
        log.warning("%s: %s; moved it to %s", name, error, set_aside(store_path(settings.data, name)))
        return None
    try:
        return read_identity(store)
    finally:
        store.close()


def make_stored_broker(
    port: Port,
    settings: GuaranteedSettings,
    neighbours: Mapping[str, Address],
    on_pending: Callable[[], None],
    *,
    incarnation: int,
    address: str,
    damage: StoreCorrupt | None = None,
) -> tuple[AnyBroker, Store]:
    """Make the protocol's broker over its store; a damaged store is set aside if the settings say so.

    `on_pending`: see DiskStore. `damage` is given if the damage showed only when the broker started.
    """
    if damage is None:
        try:
            return _make_over_store(port, settings, neighbours, on_pending, incarnation, address)
        except StoreCorrupt as error:
            damage = error
    if not settings.recover or settings.data is None:
        raise damage
    aside = set_aside(store_path(settings.data, port.node))
    log.warning("%s: %s; moved it to %s", port.node, damage, aside)
    return _make_over_store(port, settings._replace(new=False), neighbours, on_pending, incarnation, address)


def _make_over_store(
    port: Port,
    settings: GuaranteedSettings,
    neighbours: Mapping[str, Address],
    on_pending: Callable[[], None],
    incarnation: int,
    address: str,
) -> tuple[AnyBroker, Store]:
    store = open_store(port.node, settings, on_pending)
    try:
        node = make_broker(
            settings.spec(neighbours),
            port,
            incarnation=incarnation,
            open_store=lambda: store,
            new=settings.new,
            address=address,
        )
    except ValueError as error:  # the store is another broker's, or the labels are invalid
        store.close()
        raise StoreError(f"cannot start {port.node}: {error}") from None
    except BaseException:
        store.close()
        raise
    return node, store


def check_settings(name: str, settings: GuaranteedSettings, neighbours: Mapping[str, Address]) -> None:
    """Raise ValueError unless every neighbour has a label and every label an address."""
    if settings.window < 1:
        raise ValueError(f"window must be at least 1, not {settings.window}")
    for peer in settings.labels:
        if peer not in neighbours:
            raise ValueError(f"{name} has no address for {peer}")
    for peer in neighbours:
        if peer not in settings.labels:
            raise ValueError(f"{name} has no label for {peer}")
