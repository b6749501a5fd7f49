"""The description of a broker, and the one factory for the brokers of all modes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from tidings.core.kernel import Port
from tidings.core.overlay.best_effort.broker import Broker
from tidings.core.overlay.epidemic.broker import EpidemicBroker
from tidings.core.overlay.epidemic.settings import RecoverySettings
from tidings.core.overlay.guaranteed.broker import DEFAULT_WINDOW, GuaranteedBroker
from tidings.core.overlay.guaranteed.spill import SpillLimits
from tidings.core.overlay.labels import Label
from tidings.core.overlay.matching import Matcher
from tidings.core.overlay.modes import BEST_EFFORT, EPIDEMIC, GUARANTEED, BrokerMode
from tidings.core.store import MemoryStore, Store

AnyBroker = Broker | GuaranteedBroker | EpidemicBroker


@dataclass(frozen=True, slots=True)
class BrokerSpec:
    """Describes one broker of a network. Fields that its mode does not use are ignored."""

    mode: BrokerMode = BEST_EFFORT
    neighbours: Mapping[str, str] = field(default_factory=dict)
    """Name -> address (may be empty) of the adjacent brokers; in mode guaranteed, of all within delta + 1 links."""
    label: Label | None = None
    """None: the broker uses the label on its disk, or asks its neighbours for one."""
    labels: Mapping[str, Label] = field(default_factory=dict)
    """Guaranteed: the label of each neighbour."""
    delta: int = 0
    window: int = DEFAULT_WINDOW
    limits: SpillLimits | None = None
    recovery: RecoverySettings = RecoverySettings()  # noqa: RUF009 - immutable


def make_broker(
    spec: BrokerSpec,
    port: Port,
    *,
    incarnation: int,
    open_store: Callable[[], Store] = MemoryStore,
    new: bool = False,
    matcher: Matcher | None = None,
    address: str = "",
) -> AnyBroker:
    """Make one incarnation of the broker. Only mode guaranteed calls `open_store`; `address` is where it listens."""
    if spec.mode == GUARANTEED:
        return GuaranteedBroker(
            port,
            spec.label,
            {peer: (spec.labels[peer], where) for peer, where in spec.neighbours.items()},
            open_store(),
            delta=spec.delta,
            incarnation=incarnation,
            new=new,
            window=spec.window,
            limits=spec.limits,
            matcher=matcher,
            address=address,
        )
    neighbours = tuple(spec.neighbours)
    if spec.mode == EPIDEMIC:
        return EpidemicBroker(
            port,
            neighbours,
            spec.recovery,
            incarnation=incarnation,
            label=spec.label,
            address=address,
            matcher=matcher,
        )
    return Broker(port, neighbours, incarnation=incarnation, matcher=matcher)
