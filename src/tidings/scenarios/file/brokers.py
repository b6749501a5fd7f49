"""Turns a tree, `[overlay]` and `[recovery]` into each broker's spec."""

from __future__ import annotations

from collections.abc import Mapping

from tidings.core.overlay.brokers import BrokerSpec
from tidings.core.overlay.epidemic.settings import RecoverySettings
from tidings.core.overlay.labels import parse_label
from tidings.core.overlay.modes import BEST_EFFORT, EPIDEMIC, GUARANTEED
from tidings.scenarios.file.schema import Overlay, Recovery
from tidings.scenarios.file.topology import Topology, labels, neighbourhoods, neighbours


def broker_specs(
    topology: Topology,
    overlay: Overlay,
    recovery: RecoverySettings = RecoverySettings(),  # noqa: B008 - immutable
    addresses: Mapping[str, str] | None = None,
) -> dict[str, BrokerSpec]:
    """Return the specs by name, in the topology's order. Without `addresses`, peers have none (virtual networks)."""
    where = dict.fromkeys(topology.brokers, "") if addresses is None else addresses
    if overlay.mode == GUARANTEED:
        return {
            name: BrokerSpec(
                GUARANTEED,
                {peer: where[peer] for peer in within if peer != name},
                within[name],
                within,
                delta=overlay.delta,
                window=overlay.window,
            )
            for name, within in neighbourhoods(topology, overlay.delta + 1).items()
        }
    around = {name: {peer: where[peer] for peer in beside} for name, beside in neighbours(topology).items()}
    if overlay.mode != EPIDEMIC:
        return {name: BrokerSpec(BEST_EFFORT, around[name]) for name in around}
    label_of = labels(topology)
    return {
        name: BrokerSpec(EPIDEMIC, around[name], parse_label(label_of[name]), recovery=recovery)
        for name in around
    }


def recovery_settings(table: Recovery) -> RecoverySettings:
    """Return [recovery] as the protocol's settings."""
    keys = {name: getattr(table, name) for name in table.__struct_fields__ if name != "interval_ms"}
    return RecoverySettings(interval_ns=round(table.interval_ms * 1_000_000), **keys)
