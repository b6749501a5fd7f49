"""Schedules the beginning and the end of a plan's faults."""

from __future__ import annotations

from collections.abc import Callable

from tidings.drivers.virtual.network import SimulatedNetwork
from tidings.scenarios.file.faults import PlannedFault
from tidings.scenarios.file.schema import (
    CrashFault,
    LinkFault,
    LossFault,
    PartitionFault,
    PauseFault,
    SlowFault,
)

Action = Callable[[], None]


def schedule_fault(network: SimulatedNetwork, planned: PlannedFault) -> None:
    begin, end = _actions(network, planned)
    network.schedule.at(planned.at_ns, lambda _first, _second: begin())
    network.schedule.at(planned.until_ns, lambda _first, _second: end())


def _actions(network: SimulatedNetwork, planned: PlannedFault) -> tuple[Action, Action]:
    def each(action: Callable[[str], None]) -> Action:
        def act() -> None:
            for name in planned.nodes:
                action(name)

        return act

    match planned.fault:
        case CrashFault(state=state):
            return each(lambda name: network.crash(name, keep_state=state == "kept")), each(network.restart)
        case PauseFault():
            return each(network.pause), each(network.resume)
        case SlowFault(factor=factor):
            return each(lambda name: network.slow(name, factor)), each(
                lambda name: network.stop_slowing(name, factor)
            )
        case LossFault(rate=rate):
            return lambda: network.lose(rate), lambda: network.stop_losing(rate)
        case PartitionFault() | LinkFault():
            unheard = planned.unheard()

    def severed(source: str, target: str) -> bool:
        return source in unheard and target in unheard[source]

    return lambda: network.sever(severed), lambda: network.mend(severed)
