"""Runs every recovery algorithm on one workload, at several loss rates; for benchmarks/recovery.py.

The defaults are those of the epidemic paper's sweeps: 100 brokers of degree 4 at most, 70 patterns, 2 per broker, a
buffer of 1,500 events, a round every 30 ms, 5 publishers with 50 events/s each. `auto` also runs with its own interval
of a second, and then has longer to settle.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
from output import progress

from tidings.scenarios.file.schema import GilbertLoss, Scenario
from tidings.scenarios.simulate import GOSSIP
from tidings.studies.epidemic.runs import ALGORITHMS as PAPER_ALGORITHMS
from tidings.studies.epidemic.runs import INTERVAL_MS, SETTLE_S, epidemic_scenario
from tidings.studies.recovery_runs import play

BROKERS, QUICK_BROKERS = 100, 40
START_S = 120.0
"""By then everybody has subscribed: on a link without events, a burst takes as many retries as it is long."""
SLOW_INTERVAL_MS = 1_000.0
SLOW_SETTLE_S = 45.0

ALGORITHMS: Mapping[str, Mapping[str, Any]] = {
    "none": PAPER_ALGORITHMS["none"],
    "push digest, tree": PAPER_ALGORITHMS["push"],
    "subscriber-pull, tree": PAPER_ALGORITHMS["subscriber pull"],
    "publisher-pull": PAPER_ALGORITHMS["publisher pull"],
    "combined, tree": PAPER_ALGORITHMS["combined pull"],
    "push random": {"algorithm": "push"},
    "push+pull .25": {"algorithm": "push+pull", "window": 0.25},
    "push+pull 1": {"algorithm": "push+pull", "window": 1.0},
    "auto, 30 ms": {"algorithm": "auto"},
    "auto": {"algorithm": "auto", "interval_ms": SLOW_INTERVAL_MS},
}


class Algorithm(NamedTuple):
    """Overhead: messages with events and of gossip, per event, to the end. Gossip: during publication.

    `by_gossip`: deliveries that came by gossip, lost or merely slower on the tree; the latencies below are theirs.
    """

    loss_percent: float
    burst: int
    algorithm: str
    expected: int
    delivered_percent: float
    overhead: float
    gossip_per_broker_s: float
    mean_ms: float
    p99_ms: float
    by_gossip: int
    gossip_mean_ms: float | None
    gossip_p99_ms: float | None


def algorithms(quick: bool) -> Iterator[Algorithm]:
    brokers, publish_s = (QUICK_BROKERS, 1.0) if quick else (BROKERS, 2.0)
    for burst in (1,) if quick else (1, 10):
        for rate in (0.1,) if quick else (0.01, 0.05, 0.1, 0.2):
            for name in ALGORITHMS:
                progress(f"algorithms: {rate:.0%} lost, bursts of {burst}, {name}")
                yield algorithm_row(name, rate, burst, brokers, publish_s)


def algorithm_row(name: str, rate: float, burst: int, brokers: int, publish_s: float) -> Algorithm:
    scenario = algorithms_scenario(ALGORITHMS[name], rate, burst, brokers, publish_s)
    played = play(scenario, (START_S, START_S + publish_s))
    if not played.all_subscribed_by(START_S):
        raise SystemExit("algorithms: some subscribers had not subscribed in time")
    started, ended = played.counts
    publishing = ended.since(started)
    gossip = publishing.messages_of(GOSSIP) + publishing.brought
    summary, late_ms = played.summary, played.gossip_latency_ms()
    return Algorithm(
        loss_percent=100 * rate,
        burst=burst,
        algorithm=name,
        expected=summary["expected"],
        delivered_percent=100 * summary["delivery_ratio"],
        overhead=summary["overhead"],
        gossip_per_broker_s=gossip / brokers / publish_s,
        mean_ms=summary["latency_ms"]["mean"],
        p99_ms=summary["latency_ms"]["p99"],
        by_gossip=len(late_ms),
        gossip_mean_ms=float(late_ms.mean()) if len(late_ms) else None,
        gossip_p99_ms=float(np.percentile(late_ms, 99)) if len(late_ms) else None,
    )


def algorithms_scenario(
    keys: Mapping[str, Any], rate: float, burst: int, brokers: int, publish_s: float
) -> Scenario:
    slow = keys.get("interval_ms", INTERVAL_MS) >= SLOW_INTERVAL_MS
    return epidemic_scenario(
        keys,
        GilbertLoss(rate=rate, burst=burst),
        brokers=brokers,
        start_s=START_S,
        publish_s=publish_s,
        settle_s=SLOW_SETTLE_S if slow else SETTLE_S,
    )
