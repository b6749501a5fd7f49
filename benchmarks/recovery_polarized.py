"""Finds the fanout that each scheme of the polarized paper needs for 99.9 %, its overhead, and that of `auto`.

The paper's setting at 10 % loss per link: a complete ternary tree of 40 brokers, a publisher at its root, a subscriber
at each other broker, one event of 16 blocks per second, links of 50 ms, losses in bursts of 2. Blocks are short here,
since messages are counted. For benchmarks/recovery.py.

A fanout is first tried with a few events; if these already miss far too many, it is not tried with all. Success is
assumed to grow with the fanout. With 60 events (2,340 deliveries) the smallest fanout is known to within one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from output import progress

from tidings.scenarios.file.schema import GilbertLoss, Recovery
from tidings.studies.polarized.runs import SCHEMES as PAPER_SCHEMES
from tidings.studies.polarized.runs import SUBSCRIBERS, polarized_scenario
from tidings.studies.recovery_runs import play

BLOCK_BYTES = 64
LOSS = GilbertLoss(rate=0.1, burst=2)
SETTLE_S = 30.0
GOAL = 0.999
FEW_EVENTS = 10
HOPELESS = 0.985
"""For a few events; a scheme that reaches `GOAL` does not get this low."""
FANOUTS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 14, 16, 20)

SCHEMES: Mapping[str, Mapping[str, Any]] = {
    name: keys for name, keys in PAPER_SCHEMES.items() if name != "push WDPG"
}
"""WDPG needs a larger fanout than these even where links lose 2 %."""
REDUNDANCIES = (0, 2)
AUTO = "auto"
AUTO_FANOUTS = (1, 2, 3)


class Scheme(NamedTuple):
    """Overhead: messages with blocks and of gossip, per published block. `reaches`: 99.9 % delivered."""

    scheme: str
    redundant_blocks: int
    fanout: int
    reaches: bool
    events: int
    delivered_percent: float
    overhead: float
    mean_ms: float
    p99_ms: float


def polarized(quick: bool) -> Iterator[Scheme]:
    """Yield a row per scheme; if none of the fanouts reaches the goal, the row with the highest."""
    events = 10 if quick else 60
    fanouts = (4, 8, 14) if quick else FANOUTS
    for redundancy in REDUNDANCIES:
        for name in SCHEMES:
            if not quick or name in ("push random", "3PG .25"):
                yield smallest_fanout(name, redundancy, fanouts, events)
    for fanout in AUTO_FANOUTS:
        yield scheme_row(AUTO, {"algorithm": AUTO, "fanout": fanout}, events)


def smallest_fanout(name: str, redundancy: int, fanouts: Sequence[int], events: int) -> Scheme:
    """Find the smallest fanout by bisection."""
    low, high = 0, len(fanouts)
    rows: dict[int, Scheme] = {}
    while low < high:
        middle = (low + high) // 2
        row = rows[middle] = tried(name, redundancy, fanouts[middle], events)
        low, high = (low, middle) if row.reaches else (middle + 1, high)
    return rows[min(low, len(fanouts) - 1)]


def tried(name: str, redundancy: int, fanout: int, events: int) -> Scheme:
    keys = {**SCHEMES[name], "redundancy": redundancy, "fanout": fanout}
    row = scheme_row(name, keys, min(FEW_EVENTS, events))
    if events <= FEW_EVENTS or row.delivered_percent < 100 * HOPELESS:
        return row
    return scheme_row(name, keys, events)


def scheme_row(name: str, keys: Mapping[str, Any], events: int) -> Scheme:
    recovery = Recovery(block_bytes=BLOCK_BYTES, **keys)
    progress(f"polarized: {name}, {recovery.redundancy} redundant, fanout {recovery.fanout}, {events} events")
    played = play(polarized_scenario(recovery, events, loss=LOSS, settle_s=SETTLE_S))
    summary = played.summary
    if summary["expected"] != events * SUBSCRIBERS:
        raise SystemExit("polarized: some subscribers had not subscribed in time")
    return Scheme(
        scheme=name,
        redundant_blocks=played.simulation.epidemic_brokers[0].settings.redundancy,
        fanout=recovery.fanout,
        reaches=summary["delivery_ratio"] >= GOAL,
        events=events,
        delivered_percent=100 * summary["delivery_ratio"],
        overhead=summary["overhead"],
        mean_ms=summary["latency_ms"]["mean"],
        p99_ms=summary["latency_ms"]["p99"],
    )


def verdict(rows: Sequence[Scheme]) -> str:
    """Say whether the goal is met: 99.9 % delivered, with less overhead than the paper's best scheme needs for that."""
    paper = [row for row in rows if row.scheme != AUTO and row.reaches]
    ours = [row for row in rows if row.scheme == AUTO]
    if not paper:
        return "goal: no scheme of the paper delivers 99.9 % with these fanouts, so there is nothing to compare with"
    best = min(paper, key=lambda row: row.overhead)
    against = (
        f"{best.scheme} with {best.redundant_blocks} redundant blocks and fanout {best.fanout}, "
        f"the least overhead of the paper's schemes for 99.9 %: {best.overhead:.1f}, {best.mean_ms:.0f} ms"
    )
    parts = [
        f"fanout {row.fanout} {'met' if row.reaches and row.overhead < best.overhead else 'NOT met'} "
        f"({row.delivered_percent:.2f} % at {row.overhead:.1f}, {row.mean_ms:.0f} ms)"
        for row in ours
    ]
    hint = " (indication only: too few events and fanouts)" if best.events <= FEW_EVENTS else ""
    return f"goal{hint}, auto: {', '.join(parts)}; against {against}"
