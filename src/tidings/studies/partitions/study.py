"""The guaranteed overlay when many brokers fail: figures 9 to 12 of the partitions paper.

Figures 9, 11 and 12 depend only on the graph (`connectivity.py`), as in the paper. Figure 10 runs the protocol itself
in the simulator (`runs.py`), and shows beside it what the graph allows at the paper's size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pyarrow as pa

from tidings.studies.estimates import StudyRows
from tidings.studies.partitions.claims import claims
from tidings.studies.partitions.connectivity import (
    Counts,
    connectivity,
    mean_connectivity,
    neighbourhood_sizes,
    neighbours_of,
    random_failures,
    session_counts,
    tree,
)
from tidings.studies.partitions.expected import (
    BROKERS,
    DELIVERY_BROKERS,
    DELIVERY_FAILURES,
    DELTAS,
    FANOUTS,
    SESSIONS,
    SESSIONS_DELTA,
)
from tidings.studies.partitions.panels import panels
from tidings.studies.partitions.runs import play_figure_10
from tidings.studies.study import Panel, PaperClaim, Point, Row, Study

EXACT = "exact"
QUICK_SEEDS, QUICK_RUNS = 5, 40
FULL_SEEDS, FULL_RUNS = 20, 100
"""Sets of failures: 200 and 2,000; the paper has 100."""
QUICK_FAILURES, FULL_FAILURES = (20, 60, 100, 200), (10, 20, 40, 60, 80, 100, 125, 150, 200)
DELIVERY_SWEEP = (25, 50, DELIVERY_FAILURES)
SIMULATED_DELTAS = (0, 1, 2, 3)
QUICK_BROKERS, QUICK_FAILED, QUICK_SIMULATIONS = 60, (10, 20), 3
FULL_SIMULATIONS = 5


class Partitions(Study):
    name = "partitions"
    title = "Partition-tolerant overlay: connectivity, delivery, neighbourhoods and sessions under failures"
    schema = pa.schema(
        [
            ("kind", pa.string()),
            ("brokers", pa.int64()),
            ("fanout", pa.int64()),
            ("failures", pa.int64()),
            ("delta", pa.int64()),
            ("seed", pa.int64()),
            ("quantity", pa.string()),
            ("x", pa.float64()),
            ("value", pa.float64()),
        ]
    )

    def points(self, quick: bool) -> list[Point]:
        return [*graph_points(quick), *simulation_points(quick)]

    def run(self, point: Point) -> list[Row]:
        known = {
            name: point.get(name, 0) for name in ("kind", "brokers", "fanout", "failures", "delta", "seed")
        }
        return [{**known, "x": None, **row} for row in KINDS[point["kind"]](point)]

    def panels(self, table: pa.Table, quick: bool) -> list[Panel]:
        return panels(StudyRows(table))

    def claims(self, table: pa.Table, quick: bool) -> list[PaperClaim]:
        return claims(StudyRows(table))

    def cost(self, point: Point) -> float:
        if point["kind"] == "simulation":
            return float(1.3 * (point["brokers"] / 60) ** 1.7 * point["rounds"])
        return 0.2


STUDY = Partitions()


def graph_points(quick: bool) -> Iterator[Point]:
    seeds, runs = (QUICK_SEEDS, QUICK_RUNS) if quick else (FULL_SEEDS, FULL_RUNS)
    sweep = [(BROKERS, failures) for failures in (QUICK_FAILURES if quick else FULL_FAILURES)]
    sweep += [(DELIVERY_BROKERS, failures) for failures in DELIVERY_SWEEP]
    for fanout in FANOUTS:
        yield {"kind": "neighbours", "brokers": BROKERS, "fanout": fanout}
        for brokers, failures in sweep:
            graph = {"brokers": brokers, "fanout": fanout, "failures": failures}
            yield {"kind": EXACT, **graph}
            for seed in range(1, seeds + 1):
                yield {"kind": "graph", **graph, "seed": seed, "runs": runs}
    for fanout, failures in SESSIONS:
        for seed in range(1, seeds + 1):
            yield {
                "kind": "sessions",
                "brokers": BROKERS,
                "fanout": fanout,
                "failures": failures,
                "delta": SESSIONS_DELTA,
                "seed": seed,
                "runs": runs,
            }


def simulation_points(quick: bool) -> Iterator[Point]:
    brokers, seeds = (QUICK_BROKERS, QUICK_SIMULATIONS) if quick else (DELIVERY_BROKERS, FULL_SIMULATIONS)
    for fanout in FANOUTS[:1] if quick else FANOUTS:
        for failures in QUICK_FAILED if quick else DELIVERY_SWEEP:
            for delta in SIMULATED_DELTAS:
                for seed in range(1, seeds + 1):
                    yield {
                        "kind": "simulation",
                        "brokers": brokers,
                        "fanout": fanout,
                        "failures": failures,
                        "delta": delta,
                        "seed": seed,
                        "rounds": 1,
                    }


def run_graph(point: Point) -> Iterator[Row]:
    """Yield the % of live pairs that reach each other, for every delta with the same failures."""
    random = np.random.default_rng([point["seed"], point["brokers"], point["fanout"], point["failures"]])
    parents = tree(point["brokers"], point["fanout"])
    failed = random_failures(random, point["brokers"], point["failures"], point["runs"])
    for delta in DELTAS:
        mean = float(connectivity(parents, failed, delta).mean())
        yield {"delta": delta, "quantity": "connected", "value": mean}


def run_exact(point: Point) -> Iterator[Row]:
    """Yield the mean over all sets of failures, by counting."""
    parents = tree(point["brokers"], point["fanout"])
    for delta in DELTAS:
        mean = mean_connectivity(parents, point["failures"], delta)
        yield {"delta": delta, "quantity": "connected", "value": mean}


def run_neighbours(point: Point) -> Iterator[Row]:
    edges = [len(around) == 1 for around in neighbours_of(tree(point["brokers"], point["fanout"]))]
    yield {"quantity": "edge", "value": 100.0 * float(np.mean(edges))}
    for delta in DELTAS[:4]:
        sizes = neighbourhood_sizes(point["brokers"], point["fanout"], delta)
        measured = {"median": sizes[len(sizes) // 2], "mean": sizes.mean(), "max": sizes[-1]}
        for quantity, value in measured.items():
            yield {"delta": delta, "quantity": quantity, "value": float(value)}
        yield from ({"delta": delta, **row} for row in cumulated(sizes))


def run_sessions(point: Point) -> Iterator[Row]:
    random = np.random.default_rng([point["seed"], point["brokers"], point["fanout"], point["failures"]])
    counts = session_counts(
        random, point["brokers"], point["fanout"], point["failures"], point["delta"], point["runs"]
    )
    measured = {"mean": counts.mean(), "p99": np.percentile(counts, 99), "max": counts.max()}
    for quantity, value in measured.items():
        yield {"quantity": quantity, "value": float(value)}
    yield from cumulated(counts)


def cumulated(counts: Counts) -> Iterator[Row]:
    """Yield the share of brokers with at most each count."""
    values, times = np.unique(counts, return_counts=True)
    shares = np.cumsum(times) / len(counts)
    for value, share in zip(values.tolist(), shares.tolist(), strict=True):
        yield {"quantity": "cdf", "x": float(value), "value": share}


def run_simulation(point: Point) -> Iterator[Row]:
    found = play_figure_10(
        point["brokers"],
        point["fanout"],
        point["delta"],
        failed=point["failures"],
        rounds=point["rounds"],
        seed=point["seed"],
    )
    for quantity in ("delivered", "bound", "certified", "guarantees_hold"):
        yield {"quantity": quantity, "value": float(getattr(found, quantity))}


KINDS: dict[str, Callable[[Point], Iterator[Row]]] = {
    "graph": run_graph,
    EXACT: run_exact,
    "neighbours": run_neighbours,
    "sessions": run_sessions,
    "simulation": run_simulation,
}
