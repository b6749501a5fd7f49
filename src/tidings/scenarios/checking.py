"""What a scenario promises, checked on the trace of a run of it: for `tidings sim`, `tidings up` and sweeps."""

from __future__ import annotations

from pathlib import Path

from tidings.scenarios.file.schema import CrashFault, Scenario
from tidings.scenarios.file.workload import publisher_names
from tidings.scenarios.trace.checkers import check_all, fifo, gap_free
from tidings.scenarios.trace.reader import Trace
from tidings.scenarios.trace.verdict import Verdict


def verdicts(scenario: Scenario, out: Path) -> list[Verdict]:
    """What the checkers say of the trace in `out`, for what its subscriptions asked for and the mode promises."""
    trace = Trace.read(out)
    if scenario.overlay.mode != "guaranteed":
        return check_all(trace)
    # Total order alone keeps the order of a source on each topic, not among topics.
    in_order = fifo(trace, orders=frozenset({"none", "fifo", "causal"}))
    once, *others = check_all(trace)
    found = [once, in_order, *(verdict for verdict in others if verdict.guarantee != in_order.guarantee)]
    # What a publisher had not got confirmed when it was killed went with it.
    return [*found, gap_free(trace, confirmed_only=kills_publishers(scenario))]


def kills_publishers(scenario: Scenario) -> bool:
    publishers = {publisher.name for publisher in scenario.publishers}
    if scenario.workload is not None:
        publishers.update(publisher_names(scenario.workload))
    return any(isinstance(fault, CrashFault) and publishers & {*fault.nodes} for fault in scenario.faults)
