"""Checks a run's trace for what its scenario promises, for `tidings sim`, `tidings up` and sweeps."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from tidings.scenarios.file.schema import CrashFault, NoLoss, Scenario
from tidings.scenarios.file.workload import publisher_names
from tidings.scenarios.trace.checkers import GUARANTEED, promised_checks, run_check
from tidings.scenarios.trace.reader import Trace
from tidings.scenarios.trace.verdict import Verdict


def verdicts(scenario: Scenario, out: Path, *, virtual: bool = True) -> list[Verdict]:
    """Return the checkers' verdicts on the trace in `out`: what its subscriptions ask for and its mode promises.

    `virtual`: nothing happens but what the scenario says. In wall time a busy machine may break connections. Durable
    subscriptions and groups whose broker loses its disk promise nothing, and are left out.
    """
    left_out = lost_with_disks(scenario)
    trace = Trace.read(out).without(left_out)
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
    found = [run_check(trace, check) for check in checks]
    if left_out:
        note = f"not judged: {', '.join(sorted(left_out))}, whose broker loses its disk"
        found[0] = replace(found[0], note=note)
    return found


def lost_with_disks(scenario: Scenario) -> frozenset[str]:
    """Return the subscribers of durable subscriptions and groups that may end because a broker loses its disk."""
    if scenario.overlay.mode != GUARANTEED:
        return frozenset()
    faults = (fault for fault in scenario.faults if isinstance(fault, CrashFault) and fault.state == "lost")
    forgetful = {node for fault in faults for node in fault.nodes}
    members = [each for each in scenario.subscribers if each.durable is not None or each.group is not None]
    lost = {(each.durable, each.group) for each in members if each.at in forgetful}
    return frozenset(each.name for each in members if (each.durable, each.group) in lost)


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
