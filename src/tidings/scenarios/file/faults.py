"""Plans faults: when each begins and ends, which nodes it hits, and which nodes cannot reach each other.

With ordering, clients and sequencers beside a broker talk to others directly, so a fault of the broker also applies
to them. The simulator and the live runner only carry out this plan.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from tidings.scenarios.file.order_nodes import order_node
from tidings.scenarios.file.ordering import PlannedOrdering
from tidings.scenarios.file.schema import (
    CrashFault,
    Fault,
    LinkFault,
    LossFault,
    PartitionFault,
    PauseFault,
    Scenario,
    SlowFault,
)
from tidings.scenarios.file.times import nanoseconds

Groups = tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True)
class PlannedFault:
    """Lasts from `at_s` until `until_s`, at most until `duration_s`."""

    kind: str
    target: str
    at_s: float
    until_s: float
    nodes: tuple[str, ...]
    """The nodes of a crash, pause or slow fault. A broker's sequencer is hit with it: they are one machine."""
    groups: Groups
    """Partition: groups that cannot reach each other (nodes in no group reach all). Link: its two sides."""
    sides: Groups
    """`groups`, each with the clients and sequencers beside its brokers."""
    fault: Fault

    @property
    def at_ns(self) -> int:
        return nanoseconds(self.at_s)

    @property
    def until_ns(self) -> int:
        return nanoseconds(self.until_s)

    def unheard(self) -> dict[str, frozenset[str]]:
        """Return, for each node that is cut off, the nodes that its messages do not reach."""
        sides = [frozenset(side) for side in self.sides]
        one_way = isinstance(self.fault, LinkFault) and self.fault.direction == "forward"
        unheard: dict[str, frozenset[str]] = {}
        for side in sides[:1] if one_way else sides:
            others = frozenset[str]().union(*(other for other in sides if other is not side))
            for name in side:
                unheard[name] = unheard[name] | others if name in unheard else others
        return unheard


def plan_faults(
    scenario: Scenario, sites: Mapping[str, str], seats: Mapping[str, str], ordering: PlannedOrdering | None
) -> tuple[PlannedFault, ...]:
    """Return the plans of all faults. `seats` maps clients to their brokers."""
    beside = _Beside(seats, ordering)
    return tuple(_planned_fault(fault, scenario, sites, beside) for fault in scenario.faults)


def _planned_fault(
    fault: Fault, scenario: Scenario, sites: Mapping[str, str], beside: _Beside
) -> PlannedFault:
    groups = _groups(fault, sites)
    end_s = scenario.duration_s if fault.until_s is None else min(fault.until_s, scenario.duration_s)
    nodes = fault.nodes if isinstance(fault, CrashFault | PauseFault | SlowFault) else ()
    return PlannedFault(
        kind=str(fault.__struct_config__.tag),
        target=_target(fault),
        at_s=fault.at_s,
        until_s=end_s,
        nodes=beside.machines(nodes),
        groups=groups,
        sides=beside.everybody(groups),
        fault=fault,
    )


def _groups(fault: Fault, sites: Mapping[str, str]) -> Groups:
    if isinstance(fault, PartitionFault):
        return fault.groups
    if isinstance(fault, LinkFault):
        return tuple(_side(name, sites) for name in fault.between)
    return ()


def _side(name: str, sites: Mapping[str, str]) -> tuple[str, ...]:
    """Return the nodes of the site of that name, or the node itself."""
    return tuple(node for node, site in sites.items() if site == name) or (name,)


def _target(fault: Fault) -> str:
    """Return the fault's target as the trace names it: `b3,b4`, `b1>b2`, `b1-b2`, `b0,b1|b2,b3` or `*`."""
    match fault:
        case LossFault():
            return "*"
        case PartitionFault():
            return "|".join(",".join(group) for group in fault.groups)
        case LinkFault():
            return (">" if fault.direction == "forward" else "-").join(fault.between)
        case _:
            return ",".join(fault.nodes)


class _Beside:
    """Knows the clients and the sequencer beside each broker; without ordering, none."""

    def __init__(self, seats: Mapping[str, str], ordering: PlannedOrdering | None) -> None:
        self._order_nodes: dict[str, str] = {}
        self._clients: dict[str, list[str]] = {}
        if ordering is not None:
            self._order_nodes = {broker: order_node(broker) for broker in ordering.brokers}
            for client, broker in seats.items():
                self._clients.setdefault(broker, []).append(client)

    def machines(self, names: tuple[str, ...]) -> tuple[str, ...]:
        found = ((name, self._order_nodes[name]) if name in self._order_nodes else (name,) for name in names)
        return tuple(dict.fromkeys(node for machine in found for node in machine))

    def everybody(self, groups: Groups) -> Groups:
        """Add to each broker all nodes beside it, except clients that a group names itself."""
        named = {name for group in groups for name in group}
        return tuple(
            (
                *self.machines(group),
                *(client for name in group for client in self._clients.get(name, ()) if client not in named),
            )
            for group in groups
        )


def struck_nodes(faults: Iterable[PlannedFault]) -> frozenset[str]:
    """Return the nodes that crash or pause."""
    return frozenset(
        name
        for planned in faults
        if isinstance(planned.fault, CrashFault | PauseFault)
        for name in planned.nodes
    )


def forgetful_nodes(faults: Iterable[PlannedFault]) -> frozenset[str]:
    """Return the nodes that lose their disks."""
    return frozenset(
        name
        for planned in faults
        if isinstance(planned.fault, CrashFault) and planned.fault.state == "lost"
        for name in planned.nodes
    )
