"""Puts the faults of a plan into the schedule, each with its end, and ends what is left when the run settles."""

from __future__ import annotations

from collections.abc import Callable

from tidings.drivers.virtual.network import SimulatedNetwork
from tidings.scenarios.file.expand import Groups, PlannedFault, RunPlan
from tidings.scenarios.file.order_nodes import order_node
from tidings.scenarios.file.schema import (
    CrashFault,
    LinkFault,
    LossFault,
    PartitionFault,
    PauseFault,
    SlowFault,
)

NS_PER_S = 1_000_000_000


def nanoseconds(seconds: float) -> int:
    return round(seconds * NS_PER_S)


class Neighbours:
    """Who sits beside a broker, and is hit by what hits it, where an order makes nodes speak with others directly."""

    def __init__(self, plan: RunPlan) -> None:
        self._order_nodes: dict[str, str] = {}
        self._clients: dict[str, list[str]] = {}
        if plan.ordering is not None:
            self._order_nodes = {broker: order_node(broker) for broker in plan.ordering.brokers}
            for client, broker in plan.seats.items():
                self._clients.setdefault(broker, []).append(client)

    def with_order_nodes(self, names: tuple[str, ...]) -> tuple[str, ...]:
        """Each broker and the node of the ordering beside it: one machine."""
        return tuple(dict.fromkeys(found for name in names for found in self._machine(name)))

    def _machine(self, name: str) -> tuple[str, ...]:
        beside = self._order_nodes.get(name)
        return (name,) if beside is None else (name, beside)

    def with_everybody(self, groups: Groups) -> Groups:
        """With each broker all that sit beside it, but for clients that a group names itself."""
        named = {name for group in groups for name in group}
        return tuple(
            (
                *self.with_order_nodes(group),
                *(client for name in group for client in self._clients.get(name, ()) if client not in named),
            )
            for group in groups
        )


def schedule_fault(network: SimulatedNetwork, planned: PlannedFault, neighbours: Neighbours) -> None:
    begin, end = _actions(network, planned, neighbours)
    network.schedule.at(nanoseconds(planned.at_s), lambda _first, _second: begin())
    network.schedule.at(nanoseconds(planned.until_s), lambda _first, _second: end())


def _actions(
    network: SimulatedNetwork, planned: PlannedFault, neighbours: Neighbours
) -> tuple[Callable[[], None], Callable[[], None]]:
    groups = neighbours.with_everybody(planned.groups)
    match planned.fault:
        case CrashFault(nodes=names, state=state):
            keep, nodes = state == "kept", neighbours.with_order_nodes(names)
            return _each(nodes, lambda name: network.crash(name, keep_state=keep)), _each(
                nodes, network.restart
            )
        case PauseFault(nodes=names):
            nodes = neighbours.with_order_nodes(names)
            return _each(nodes, network.pause), _each(nodes, network.resume)
        case SlowFault(nodes=names, factor=factor):
            nodes = neighbours.with_order_nodes(names)
            return (
                _each(nodes, lambda name: network.slow(name, factor)),
                _each(nodes, lambda name: network.stop_slowing(name, factor)),
            )
        case LossFault(rate=rate):
            return lambda: network.lose(rate), lambda: network.stop_losing(rate)
        case PartitionFault():
            severed = _between_groups(groups)
        case LinkFault(direction=direction):
            severed = _across(groups, both=direction == "both")
    return lambda: network.sever(severed), lambda: network.mend(severed)


def _each(names: tuple[str, ...], action: Callable[[str], None]) -> Callable[[], None]:
    def act() -> None:
        for name in names:
            action(name)

    return act


def _between_groups(groups: tuple[tuple[str, ...], ...]) -> Callable[[str, str], bool]:
    group_of = {name: number for number, group in enumerate(groups) for name in group}

    def severed(source: str, target: str) -> bool:
        return source in group_of and target in group_of and group_of[source] != group_of[target]

    return severed


def _across(sides: tuple[tuple[str, ...], ...], *, both: bool) -> Callable[[str, str], bool]:
    first, second = (frozenset(side) for side in sides)

    def severed(source: str, target: str) -> bool:
        forward = source in first and target in second
        return forward or (both and source in second and target in first)

    return severed
