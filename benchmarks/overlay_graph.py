"""How much of a tree stays connected when brokers fail: figures 9 to 12 of the partitions paper, as a graph.

    python benchmarks/overlay_graph.py [--runs 100] [--seed 1] [--quick] [--json]

No protocol runs here: these are the bounds that no protocol on the primary tree can exceed. The tree is complete,
filled level by level, and 'fanout' is the degree of its nodes: the root has that many children, the others one
less (only that agrees with figure 11's text). Random brokers fail; two live brokers reach each other if no run of
more than delta consecutive brokers on the tree path between them failed.

Expected figures are means over 400 runs of an independent model. Failures near the root make single runs differ
widely, and so do means over few of them; for figures 9 and 10 the true mean is computed as well, by counting. The
median of figure 11 is the upper one of the two in the middle; the greatest number of sessions in figure 12 grows
with the number of runs.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from math import comb
from time import perf_counter
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

Counts = NDArray[np.int64]
Flags = NDArray[np.bool_]

BROKERS = 1000
FANOUTS = (3, 7)

DISCONNECTED = {  # figure 9: (fanout, failures) -> % of live pairs that cannot reach each other, by delta
    (3, 20): (21.9, 0.30, 0, 0, 0),
    (3, 60): (53.1, 3.66, 0.18, 0, 0),
    (3, 100): (72.3, 10.6, 1.19, 0.18, 0.02),
    (3, 200): (91.5, 33.2, 6.53, 1.20, 0.20),
    (7, 20): (9.3, 0.20, 0.01, 0, 0),
    (7, 60): (30.0, 1.49, 0.09, 0.01, 0),
    (7, 100): (45.9, 4.53, 0.41, 0.05, 0.01),
    (7, 200): (72.4, 17.6, 3.17, 0.54, 0.08),
}
DELIVERY_BROKERS = 500
CONNECTED = {  # figure 10: (fanout, failures) -> % of live pairs that reach each other, by delta
    (3, 85): (15.6, 77.7, 96.5, 99.4),
    (7, 85): (39.5, 89.0, 98.4, 99.8),
}
NEIGHBOURS = {  # figure 11: (fanout, delta) -> median, mean and greatest size of a neighbourhood without self
    (3, 1): (3, 5.0, 9),
    (3, 2): (7, 9.0, 21),
    (3, 3): (11, 14.9, 45),
    (7, 1): (7, 9.0, 49),
    (7, 2): (13, 20.9, 301),
    (7, 3): (49, 62.0, 999),
}
SESSIONS_DELTA = 3
SESSIONS = {  # figure 12: (fanout, failures) -> mean, 99th percentile and greatest number of active sessions
    (3, 16): (2.01, 4, 6),
    (3, 60): (2.06, 4, 8),
    (7, 16): (2.08, 7, 17),
    (7, 60): (2.32, 12, 27),
}


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


def tree(brokers: int, fanout: int) -> list[int]:
    """The parent of every broker but the root, which is broker 0 and its own parent; levels in order."""
    parents = [0]
    for parent in range(brokers):
        children = fanout if parent == 0 else fanout - 1
        parents += [parent] * min(children, brokers - len(parents))
    return parents


def random_failures(random: np.random.Generator, brokers: int, failures: int, runs: int) -> Flags:
    """Which brokers failed, [broker, run]: in each run `failures` of them, any with equal probability."""
    return (random.random((brokers, runs)).argsort(axis=0) < failures).astype(np.bool_)


def connected_pairs(parents: Sequence[int], failed: Flags, delta: int) -> Counts:
    """How many ordered pairs of live brokers reach each other, for each run.

    From the leaves to the root, `reaching[b, k]` counts the live brokers below `b` that reach `b` with the last k
    brokers before it failed, and two of them from different children are a pair if the failed ones on both sides
    and `b` itself are a short enough run.
    """
    brokers, runs = failed.shape
    reaching = np.zeros((brokers, delta + 1, runs), np.int64)
    pairs = np.zeros(runs, np.int64)
    for broker in range(brokers - 1, -1, -1):
        live = ~failed[broker]
        below = reaching[broker].sum(axis=0)
        pairs += below * live
        passing = np.zeros((delta + 1, runs), np.int64)
        passing[0] = (below + 1) * live
        passing[1:] = reaching[broker, :-1] * failed[broker]
        if broker == 0:
            break
        parent = parents[broker]
        others = reaching[parent]
        through_live = passing.sum(axis=0) * others.sum(axis=0)
        within = others.cumsum(axis=0)  # [k]: the others with at most k failed before the parent
        through_failed = (passing[:delta] * within[:delta][::-1]).sum(axis=0)
        pairs += np.where(failed[parent], through_failed, through_live)
        others += passing
    return 2 * pairs


def connectivity(parents: Sequence[int], failed: Flags, delta: int) -> NDArray[np.float64]:
    """% of ordered pairs of live brokers that reach each other, for each run."""
    live = (~failed).sum(axis=0)
    share: NDArray[np.float64] = connected_pairs(parents, failed, delta) / (live * (live - 1))
    return 100.0 * share


def distances(parents: Sequence[int]) -> Counts:
    """How many links apart any two brokers are."""
    apart = np.zeros((len(parents), len(parents)), np.int64)
    for broker, parent in enumerate(parents[1:], start=1):
        apart[broker, :broker] = apart[:broker, broker] = apart[parent, :broker] + 1
    return apart


def mean_connectivity(parents: Sequence[int], failures: int, delta: int) -> float:
    """The mean of `connectivity` over all possible sets of failed brokers.

    By linearity it is the mean over all pairs of the probability that the path between two live brokers is good,
    which depends only on how many brokers are between them.
    """
    brokers = len(parents)
    pairs_apart: list[int] = np.bincount(distances(parents).ravel()).tolist()
    good = sum(
        pairs * good_path_probability(brokers - 2, failures, apart - 1, delta)
        for apart, pairs in enumerate(pairs_apart)
        if apart > 0
    )
    return 100.0 * good / (brokers * (brokers - 1))


def good_path_probability(others: int, failures: int, between: int, delta: int) -> float:
    """That no run of more than delta among `between` brokers failed, if `failures` of `others` brokers failed."""
    good = sum(
        arrangements(between, failed, delta) * comb(others - between, failures - failed)
        for failed in range(min(between, failures) + 1)
    )
    return good / comb(others, failures)


def arrangements(places: int, failed: int, delta: int) -> int:
    """In how many ways `failed` of so many places in a row can fail without a run of more than delta.

    The live ones make gaps, with one before the first and one after the last; each takes 0 to delta failed ones.
    Inclusion and exclusion over the gaps that take too many.
    """
    gaps = places - failed + 1
    return sum(
        (-1) ** over * comb(gaps, over) * comb(failed - over * (delta + 1) + gaps - 1, gaps - 1)
        for over in range(failed // (delta + 1) + 1)
    )


def active_sessions(around: Sequence[Sequence[int]], failed: Sequence[bool], broker: int, reach: int) -> int:
    """How many live brokers within reach have nobody live between them and this one."""
    sessions = 0
    edge = [(broker, broker)]  # whose neighbours to look at, and from where it was reached
    for _ in range(reach):
        bypassed = []
        for at, came_from in edge:
            for peer in around[at]:
                if peer == came_from:
                    continue
                if failed[peer]:
                    bypassed.append((peer, at))
                else:
                    sessions += 1
        edge = bypassed
    return sessions


def neighbours_of(parents: Sequence[int]) -> list[list[int]]:
    around: list[list[int]] = [[] for _ in parents]
    for broker, parent in enumerate(parents[1:], start=1):
        around[broker].append(parent)
        around[parent].append(broker)
    return around


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
    apart = {fanout: distances(tree(BROKERS, fanout)) for fanout in FANOUTS}
    for (fanout, delta), expected in NEIGHBOURS.items():
        sizes = np.sort((apart[fanout] <= delta + 1).sum(axis=0) - 1)
        measured = (float(sizes[len(sizes) // 2]), float(sizes.mean()), float(sizes[-1]))
        for quantity, value, wanted in zip(("median", "mean", "max"), measured, expected, strict=True):
            yield Point(11, fanout, 0, delta, quantity, value, wanted)


def figure_12(random: np.random.Generator, runs: int) -> Iterator[Point]:
    for (fanout, failures), expected in SESSIONS.items():
        sessions = session_counts(random, fanout, failures, runs)
        measured = (float(sessions.mean()), float(np.percentile(sessions, 99)), float(sessions.max()))
        for quantity, value, wanted in zip(("mean", "p99", "max"), measured, expected, strict=True):
            yield Point(12, fanout, failures, SESSIONS_DELTA, quantity, value, wanted)


def session_counts(random: np.random.Generator, fanout: int, failures: int, runs: int) -> Counts:
    """The active sessions of every live broker in every run."""
    around = neighbours_of(tree(BROKERS, fanout))
    counts = []
    for failed in random_failures(random, BROKERS, failures, runs).T.tolist():
        live = (broker for broker in range(BROKERS) if not failed[broker])
        counts += [active_sessions(around, failed, broker, SESSIONS_DELTA + 1) for broker in live]
    return np.array(counts, np.int64)


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
