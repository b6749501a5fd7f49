"""Computes the demo's results from its trace: per subscriber, per fault, and the checkers' verdicts."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from tidings.demo.archives import ArchivesResult
from tidings.demo.scene import NS_PER_S, Happening, asks_for, fault_text, short_text
from tidings.scenarios.checking import verdicts
from tidings.scenarios.file.expand import RunPlan
from tidings.scenarios.file.order_nodes import host_of
from tidings.scenarios.trace.checkers.gaps import GAP_FREE
from tidings.scenarios.trace.checkers.once import EXACTLY_ONCE, repeated_rows
from tidings.scenarios.trace.checkers.per_source import FIFO
from tidings.scenarios.trace.checkers.total import TOTAL_ORDER
from tidings.scenarios.trace.coded import Coded
from tidings.scenarios.trace.demand import demand
from tidings.scenarios.trace.reader import Trace
from tidings.scenarios.trace.verdict import Verdict
from tidings.spark.audit.archive import INTACT

NS_PER_MS = 1e6
IN_WORDS = {
    EXACTLY_ONCE: "nothing twice, nothing unrequested",
    GAP_FREE: "no event missing",
    FIFO: "each source's events in order",
    TOTAL_ORDER: "one order for all",
    INTACT: "files undamaged",
}
"""The guarantees that the demo shows, in plain words."""


class SubscriberResult(msgspec.Struct, frozen=True):
    name: str
    at: str
    site: str
    order: str
    asks_for: str
    expected: int
    received: int
    missing: int
    repeated: int
    latency_p50_ms: float | None
    """None if nothing arrived."""
    latency_max_ms: float | None


class FaultResult(msgspec.Struct, frozen=True):
    text: str
    short: str
    kind: str
    target: str
    at_s: float
    until_s: float
    published: int
    """Events published during the fault."""
    waited: int
    """Deliveries of these events that arrived only after the repair."""
    caught_up_s: float
    """From the repair to the last of them."""


class SiteMembers(msgspec.Struct, frozen=True):
    brokers: list[str]
    sequencers: list[str]
    """The brokers beside them."""
    publishers: list[str]
    subscribers: list[str]


class DemoResult(msgspec.Struct, frozen=True):
    published: int
    subscribers: list[SubscriberResult]
    faults: list[FaultResult]
    verdicts: list[Verdict]
    archives: ArchivesResult
    order_given_by: dict[str, str]
    """Server -> broker beside the sequencer that is active at the end."""
    sites: dict[str, SiteMembers]
    timeline: list[Happening]
    out: str
    report: str

    @property
    def holds(self) -> bool:
        """True if every promise held; never for a run in which nothing happened, as it would show nothing."""
        happened = self.published > 0 and bool(self.faults) and all(one.expected for one in self.subscribers)
        delivered = not any(one.missing or one.repeated for one in self.subscribers)
        return happened and delivered and all(one.holds for one in self.verdicts) and self.archives.holds

    def checks(self) -> list[tuple[str, str, str]]:
        """Return each promise in words, with the verdict on the trace and on the archives."""
        trace, archives = (
            {verdict.guarantee: _said(verdict) for verdict in found}
            for found in (self.verdicts, self.archives.verdicts)
        )
        kept = " and ".join(f"{events:,}" for events in self.archives.events.values())
        archives[GAP_FREE] = f"{kept} of {self.archives.published:,}"  # a count: no checker covers this
        return [(words, trace.get(name, "-"), archives.get(name, "-")) for name, words in IN_WORDS.items()]

    def witnesses(self) -> list[str]:
        """Return the first violation of each guarantee that does not hold."""
        found = [*self.verdicts, *self.archives.verdicts]
        return [f"{one.guarantee}: {one.witnesses[0]}" for one in found if one.witnesses]

    def fields(self) -> dict[str, Any]:
        found: dict[str, Any] = msgspec.to_builtins(self)
        found["archives"]["holds"] = self.archives.holds
        return {"holds": self.holds, **found}


def _said(verdict: Verdict) -> str:
    return "holds" if verdict.holds else f"VIOLATED {verdict.violations:,} times"


class Findings(msgspec.Struct, frozen=True):
    """Holds the results from the trace alone."""

    published: int
    subscribers: list[SubscriberResult]
    faults: list[FaultResult]
    verdicts: list[Verdict]


def findings(plan: RunPlan, directory: Path) -> Findings:
    trace = Trace.read(directory)
    return Findings(
        len(trace.coded.events),
        subscriber_results(plan, trace.coded),
        fault_results(plan, trace),
        verdicts(plan.scenario, directory, virtual=False),
    )


def subscriber_results(plan: RunPlan, coded: Coded) -> list[SubscriberResult]:
    owed = demand(coded, strict_end=True)
    owner = coded.subscriptions.subscriber
    names = coded.subscriptions.subscriber_names
    size = len(names)
    expected = np.bincount(owner, owed.expected_of, size).astype(np.int64)
    missing = np.bincount(owner[owed.missing // max(len(coded.events), 1)], minlength=size)
    repeated = np.bincount(coded.subscriber[repeated_rows(coded)], minlength=size)
    results = []
    for one in plan.subscribers:
        number = names.index(one.name)
        latency_ms = _latencies_ms(coded, number)
        results.append(
            SubscriberResult(
                name=one.name,
                at=one.at,
                site=plan.sites.get(one.name, ""),
                order=one.order,
                asks_for=asks_for(one),
                expected=int(expected[number]),
                received=int(expected[number] - missing[number]),
                missing=int(missing[number]),
                repeated=int(repeated[number]),
                latency_p50_ms=float(np.median(latency_ms)) if len(latency_ms) else None,
                latency_max_ms=float(latency_ms.max()) if len(latency_ms) else None,
            )
        )
    return results


def _latencies_ms(coded: Coded, subscriber: int) -> np.ndarray[Any, np.dtype[np.float64]]:
    rows = np.flatnonzero((coded.subscriber == subscriber) & (coded.event >= 0))
    latency_ms: np.ndarray[Any, np.dtype[np.float64]]
    latency_ms = (coded.at[rows] - coded.events.at[coded.event[rows]]) / NS_PER_MS
    return latency_ms


def fault_results(plan: RunPlan, trace: Trace) -> list[FaultResult]:
    coded = trace.coded
    known = np.flatnonzero(coded.event >= 0)
    published_at, delivered_at = coded.events.at[coded.event[known]], coded.at[known]
    faults = {(planned.kind, planned.target): planned for planned in plan.faults}
    results = []
    for row in sorted(trace.faults.to_pylist(), key=lambda row: int(row["at_ns"])):
        at, until = row["at_ns"], row["until_ns"]
        planned = faults[row["kind"], row["target"]]
        late = (published_at >= at) & (published_at < until) & (delivered_at >= until)
        events_at = coded.events.at
        results.append(
            FaultResult(
                text=fault_text(planned, plan),
                short=short_text(planned, plan),
                kind=row["kind"],
                target=row["target"],
                at_s=at / NS_PER_S,
                until_s=until / NS_PER_S,
                published=int(np.count_nonzero((events_at >= at) & (events_at < until))),
                waited=int(np.count_nonzero(late)),
                caught_up_s=float((delivered_at[late].max() - until) / NS_PER_S) if late.any() else 0.0,
            )
        )
    return results


def order_given_by(summary: Mapping[str, Any]) -> dict[str, str]:
    """Return the broker beside each server's active sequencer, as the sequencers reported at the end."""
    servers = summary.get("ordering", {}).get("servers", {})
    return {
        name: ", ".join(host_of(node) for node, role in server["roles"].items() if role == "active")
        for name, server in servers.items()
    }


def site_members(plan: RunPlan) -> dict[str, SiteMembers]:
    ordering = () if plan.ordering is None else plan.ordering.brokers
    return {
        site.name: SiteMembers(
            brokers=[name for name in plan.topology.brokers if name in site.nodes],
            sequencers=[name for name in ordering if name in site.nodes],
            publishers=[one.name for one in plan.publishers if plan.sites[one.name] == site.name],
            subscribers=[one.name for one in plan.subscribers if plan.sites[one.name] == site.name],
        )
        for site in plan.scenario.sites
    }
