"""Checks a run's trace for what its scenario promises, for `tidings sim`, `tidings up` and sweeps."""

from __future__ import annotations

from pathlib import Path

from tidings.scenarios.file.schema import CrashFault, NoLoss, Scenario
from tidings.scenarios.file.workload import publisher_names
from tidings.scenarios.trace.checkers import promised_checks, run_check
from tidings.scenarios.trace.reader import Trace
from tidings.scenarios.trace.verdict import Verdict


def verdicts(scenario: Scenario, out: Path, *, virtual: bool = True) -> list[Verdict]:
    """Return the checkers' verdicts on the trace in `out`: what its subscriptions ask for and its mode promises.

    `virtual`: nothing happens but what the scenario says. In wall time a busy machine may break connections.
    """
    trace = Trace.read(out)
    checks = promised_checks(
        trace.coded.subscriptions.order,
        scenario.overlay.mode,
        publisher_killed=kills_publishers(scenario),
        shares=trace.coded.subscriptions.shares,
        expiring=trace.coded.events.any_expire,
        fails=bool(scenario.faults),
        loses=loses(scenario),
        calm=virtual and only_clients_crash(scenario),
    )
    return [run_check(trace, check) for check in checks]


def loses(scenario: Scenario) -> bool:
    """Return whether links lose messages."""
    losses = [scenario.network.loss, *(link.loss for link in scenario.links)]
    return any(loss is not None and not isinstance(loss, NoLoss) for loss in losses)


def only_clients_crash(scenario: Scenario) -> bool:
    """Return whether nothing fails but clients that crash."""
    clients = {publisher.name for publisher in scenario.publishers}
    clients |= {subscriber.name for subscriber in scenario.subscribers}
    return all(isinstance(fault, CrashFault) and clients.issuperset(fault.nodes) for fault in scenario.faults)


def kills_publishers(scenario: Scenario) -> bool:
    publishers = {publisher.name for publisher in scenario.publishers}
    publishers |= {each.name for each in scenario.subscribers if each.dead_letter is not None}
    if scenario.workload is not None:
        publishers.update(publisher_names(scenario.workload))
    return any(isinstance(fault, CrashFault) and publishers & {*fault.nodes} for fault in scenario.faults)
