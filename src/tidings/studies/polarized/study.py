"""Polarized gossip: figures 1 and 2 of its paper, by the paper's own experiment (`runs.py`).

One point is one run of one scheme with one fanout: how many deliveries succeed, with how much overhead and how fast.
'Complete reliability' is a success rate of .999 (.99 in the quick version), interpolated between two measured fanouts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa

from tidings.core.errors import PipelineError
from tidings.scenarios.file.schema import Recovery
from tidings.studies.estimates import StudyRows
from tidings.studies.polarized.claims import claims
from tidings.studies.polarized.curves import TREE, Curves
from tidings.studies.polarized.panels import panels
from tidings.studies.polarized.runs import (
    BLOCK_BYTES,
    SCHEMES,
    SUBSCRIBERS,
    know_the_rates,
    polarized_scenario,
)
from tidings.studies.recovery_runs import play
from tidings.studies.study import Panel, PaperClaim, Point, Row, Study

KEYS = {**SCHEMES, TREE: {"algorithm": "none"}}
QUICK_SEEDS, QUICK_EVENTS = 4, 10
FULL_SEEDS, FULL_EVENTS = 30, 100
"""3,000 events in total, as in the paper's three runs of 1,000; more runs, because brokers keep their phases within a
run."""
QUICK_BLOCK_BYTES = 64
"""We count blocks: their size affects only the time that coding takes."""
QUICK_GOAL, FULL_GOAL = 0.99, 0.999
MANY_FANOUTS = (1, 2, 3, 4, 5, 6, 8, 10)
QUICK_FANOUTS = {
    "push random": (2, 3, 4, 6),
    "pull random": (2, 3, 4, 6),
    "push WDPG": (2, 6),
    "push WRPG": (2, 3, 4, 6),
    "push PGW .25": (2, 6, 12),
    "3PG .25": (2, 3, 4, 6),
    "3PG 1": (1, 2, 3),
}
QUICK_CODED_FANOUTS = {
    "push random": (2, 3, 4),
    "pull random": (2, 3, 4),
    "push WRPG": (2, 3, 4),
    "push PGW .25": (2, 6),
    "3PG .25": (2, 3, 4),
}
BY_LOSS = ("push WDPG", "push WRPG")
"""Schemes also run with weights by loss rates (eq. 6)."""


class Polarized(Study):
    name = "polarized"
    title = "Polarized gossip: utility, success, overhead and latency of its schemes, without and with coding"
    schema = pa.schema(
        [
            ("scheme", pa.string()),
            ("weights", pa.string()),
            ("redundancy", pa.int64()),
            ("fanout", pa.int64()),
            ("seed", pa.int64()),
            ("events", pa.int64()),
            ("success", pa.float64()),
            ("overhead", pa.float64()),
            ("mean_ms", pa.float64()),
            ("std_ms", pa.float64()),
            ("p99_ms", pa.float64()),
            ("push_utility", pa.float64()),
            ("pull_utility", pa.float64()),
        ]
    )

    def points(self, quick: bool) -> list[Point]:
        seeds, events, block_bytes = (
            (QUICK_SEEDS, QUICK_EVENTS, QUICK_BLOCK_BYTES)
            if quick
            else (FULL_SEEDS, FULL_EVENTS, BLOCK_BYTES)
        )
        return [
            {**combination, "seed": seed, "events": events, "block_bytes": block_bytes}
            for combination in combinations(quick)
            for seed in range(1, seeds + 1)
        ]

    def run(self, point: Point) -> list[Row]:
        return [measured(point)]

    def panels(self, table: pa.Table, quick: bool) -> list[Panel]:
        return panels(curves_of(table, quick))

    def claims(self, table: pa.Table, quick: bool) -> list[PaperClaim]:
        return claims(curves_of(table, quick))

    def cost(self, point: Point) -> float:
        """Estimate by blocks sent; coding makes each about three times as expensive."""
        gossip = 0.02 if point["scheme"].startswith("pull") else 0.0103 * point["fanout"]
        coding = 3.0 if point["redundancy"] else 1.0
        return float(0.25 + point["events"] * coding * (0.0135 + gossip))


STUDY = Polarized()


def curves_of(table: pa.Table, quick: bool) -> Curves:
    return Curves(StudyRows(table), QUICK_GOAL if quick else FULL_GOAL)


def combinations(quick: bool) -> Iterator[dict[str, Any]]:
    for redundancy in (0, 2) if quick else (0, 1, 2, 3, 4):
        yield of_scheme(TREE, 0, redundancy)
    for name in SCHEMES:
        for fanout in fanouts(name, quick):
            yield of_scheme(name, fanout)
            if name in BY_LOSS and fanout in ((2, 6) if quick else MANY_FANOUTS):
                yield of_scheme(name, fanout, weights="loss")
    for redundancy in (2,) if quick else (1, 2, 4):
        for name, few in QUICK_CODED_FANOUTS.items():
            for fanout in few if quick else (1, 2, 3, 4, 6, *((8, 12) if "PGW" in name else ())):
                yield of_scheme(name, fanout, redundancy)


def fanouts(name: str, quick: bool) -> Sequence[int]:
    if quick:
        return QUICK_FANOUTS[name]
    return (*MANY_FANOUTS, 14, 20) if name in ("push WDPG", "push PGW .25") else MANY_FANOUTS


def of_scheme(name: str, fanout: int, redundancy: int = 0, weights: str = "topology") -> dict[str, Any]:
    return {"scheme": name, "fanout": fanout, "redundancy": redundancy, "weights": weights}


def measured(point: Point) -> Row:
    recovery = Recovery(
        **KEYS[point["scheme"]],
        fanout=max(point["fanout"], 1),
        redundancy=point["redundancy"],
        weights=point["weights"],
        block_bytes=point["block_bytes"],
    )
    scenario = polarized_scenario(recovery, point["events"], seed=point["seed"])
    summary = play(scenario, prepare=know_the_rates).summary
    if summary["expected"] != point["events"] * SUBSCRIBERS:
        raise PipelineError("some subscribers had not subscribed before the first event")
    latency_ms = summary["latency_ms"]
    return {
        **{name: point[name] for name in ("scheme", "weights", "redundancy", "fanout", "seed", "events")},
        "success": summary["delivery_ratio"],
        "overhead": summary["overhead"],
        "mean_ms": latency_ms["mean"],
        "std_ms": latency_ms["std"],
        "p99_ms": latency_ms["p99"],
        "push_utility": summary["utility"]["push"],
        "pull_utility": summary["utility"]["pull"],
    }
