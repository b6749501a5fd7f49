"""Puts the faults of a plan into the schedule, each with its end, and ends what is left when the run settles."""

from __future__ import annotations

from collections.abc import Callable

from tidings.scenario.expand import PlannedFault
from tidings.scenario.schema import CrashFault, LinkFault, LossFault, PartitionFault, PauseFault, SlowFault
from tidings.simulator.network import SimulatedNetwork

NS_PER_S = 1_000_000_000


def nanoseconds(seconds: float) -> int:
    return round(seconds * NS_PER_S)


def schedule_fault(network: SimulatedNetwork, planned: PlannedFault) -> None:
    begin, end = _actions(network, planned)
    network.schedule.at(nanoseconds(planned.at_s), lambda _first, _second: begin())
    network.schedule.at(nanoseconds(planned.until_s), lambda _first, _second: end())


def _actions(
    network: SimulatedNetwork, planned: PlannedFault
) -> tuple[Callable[[], None], Callable[[], None]]:
    match planned.fault:
        case CrashFault(nodes=nodes, state=state):
            keep = state == "kept"
            return _each(nodes, lambda name: network.crash(name, keep_state=keep)), _each(
                nodes, network.restart
            )
        case PauseFault(nodes=nodes):
            return _each(nodes, network.pause), _each(nodes, network.resume)
        case SlowFault(nodes=nodes, factor=factor):
            return (
                _each(nodes, lambda name: network.slow(name, factor)),
                _each(nodes, lambda name: network.stop_slowing(name, factor)),
            )
        case LossFault(rate=rate):
            return lambda: network.lose(rate), lambda: network.stop_losing(rate)
        case PartitionFault():
            severed = _between_groups(planned.groups)
        case LinkFault(direction=direction):
            severed = _across(planned.groups, both=direction == "both")
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
