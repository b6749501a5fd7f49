"""Computes how much of a tree stays connected when brokers fail: figures 9 to 12 of the partitions paper, as a graph.

    python benchmarks/overlay_graph.py [--runs 100] [--seed 1] [--quick] [--json]

No protocol runs here: these are bounds that no protocol on the primary tree can exceed. The tree is complete, filled
level by level, and 'fanout' is the degree of its nodes: the root has that many children, the others one less (only
that agrees with the text of figure 11). Random brokers fail; two live brokers reach each other if no run of more than
delta consecutive brokers on the tree path between them failed.

Expected values are means over 400 runs of an independent model. Failures near the root make single runs differ widely,
and so do means over few runs; for figures 9 and 10 the true mean is also computed, by counting. The median of figure 11
is the upper of the two in the middle; the maximum number of sessions in figure 12 grows with the number of runs.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from time import perf_counter
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from tidings.studies.partitions.connectivity import (
    connectivity,
    mean_connectivity,
    neighbourhood_sizes,
    random_failures,
    session_counts,
    tree,
)
from tidings.studies.partitions.expected import (
    BROKERS,
    CONNECTED,
    DELIVERY_BROKERS,
    DISCONNECTED,
    NEIGHBOURS,
    SESSIONS,
    SESSIONS_DELTA,
)


class Point(NamedTuple):
    """One number of a figure."""

    figure: int
    fanout: int
    failures: int
    delta: int
    quantity: str
    measured: float
    expected: float
    standard_error: float | None = None
    true_mean: float | None = None


def mean_with_error(values: NDArray[np.float64]) -> tuple[float, float]:
    return float(values.mean()), float(values.std(ddof=min(1, len(values) - 1)) / np.sqrt(len(values)))


def figure_9(random: np.random.Generator, runs: int) -> Iterator[Point]:
    for (fanout, failures), by_delta in DISCONNECTED.items():
        parents = tree(BROKERS, fanout)
        failed = random_failures(random, BROKERS, failures, runs)
        for delta, expected in enumerate(by_delta):
            mean, error = mean_with_error(100.0 - connectivity(parents, failed, delta))
            true_mean = 100.0 - mean_connectivity(parents, failures, delta)
            yield Point(9, fanout, failures, delta, "percent", mean, expected, error, true_mean)


def figure_10(random: np.random.Generator, runs: int) -> Iterator[Point]:
    for (fanout, failures), by_delta in CONNECTED.items():
        parents = tree(DELIVERY_BROKERS, fanout)
        failed = random_failures(random, DELIVERY_BROKERS, failures, runs)
        for delta, expected in enumerate(by_delta):
            mean, error = mean_with_error(connectivity(parents, failed, delta))
            true_mean = mean_connectivity(parents, failures, delta)
            yield Point(10, fanout, failures, delta, "percent", mean, expected, error, true_mean)


def figure_11() -> Iterator[Point]:
    for (fanout, delta), expected in NEIGHBOURS.items():
        sizes = neighbourhood_sizes(BROKERS, fanout, delta)
        measured = (float(sizes[len(sizes) // 2]), float(sizes.mean()), float(sizes[-1]))
        for quantity, value, wanted in zip(("median", "mean", "max"), measured, expected, strict=True):
            yield Point(11, fanout, 0, delta, quantity, value, wanted)


def figure_12(random: np.random.Generator, runs: int) -> Iterator[Point]:
    for (fanout, failures), expected in SESSIONS.items():
        sessions = session_counts(random, BROKERS, fanout, failures, SESSIONS_DELTA, runs)
        measured = (float(sessions.mean()), float(np.percentile(sessions, 99)), float(sessions.max()))
        for quantity, value, wanted in zip(("mean", "p99", "max"), measured, expected, strict=True):
            yield Point(12, fanout, failures, SESSIONS_DELTA, quantity, value, wanted)


def table_of(title: str, points: Sequence[Point]) -> Table:
    table = Table(title=title)
    for column in ("fanout", "failures", "delta", "", "measured", "true mean", "expected"):
        table.add_column(column, justify="left" if not column else "right", no_wrap=True)
    for point, after in zip(points, [*points[1:], None], strict=True):
        error, mean = point.standard_error, point.true_mean
        table.add_row(
            str(point.fanout),
            str(point.failures),
            str(point.delta),
            point.quantity,
            f"{point.measured:,.2f}" + ("" if error is None else f" ± {error:.2f}"),
            "" if mean is None else f"{mean:,.2f}",
            f"{point.expected:,.2f}",
            end_section=after is None or point[1:3] != after[1:3],
        )
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--runs", type=int, default=100, help="random sets of failures per point")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--quick", action="store_true", help="a tenth of the runs")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    if arguments.runs < 1:
        parser.error("--runs must be positive")
    runs = max(1, arguments.runs // 10) if arguments.quick else arguments.runs
    random = np.random.default_rng(arguments.seed)
    began = perf_counter()
    figures = {
        "figure 9: % of live pairs that cannot reach each other": list(figure_9(random, runs)),
        "figure 10: % of live pairs that reach each other": list(figure_10(random, runs)),
        "figure 11: sizes of neighbourhoods": list(figure_11()),
        "figure 12: active sessions": list(figure_12(random, runs)),
    }
    took_s = perf_counter() - began
    if arguments.json:
        points = [point._asdict() for found in figures.values() for point in found]
        print(
            json.dumps({"runs": runs, "seed": arguments.seed, "wall_s": took_s, "points": points}, indent=2)
        )
        return
    console = Console()
    for title, found in figures.items():
        console.print(table_of(title, found))
    console.print(f"{runs} runs per point, seed {arguments.seed}, {took_s:.1f} s")


if __name__ == "__main__":
    main()
