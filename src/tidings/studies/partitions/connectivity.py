"""How much of a tree of brokers stays connected when some fail: figures 9 to 12 of the partitions paper, as a graph.

No protocol runs here: these are bounds that no protocol on the primary tree can exceed. The tree is complete, filled
level by level, and 'fanout' is the degree of its nodes: the root has that many children, the others one less (only that
agrees with the text of figure 11). Random brokers fail; two live brokers reach each other if no run of more than delta
consecutive brokers on the tree path between them failed.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import comb

import numpy as np
from numpy.typing import NDArray

Counts = NDArray[np.int64]
Flags = NDArray[np.bool_]


def tree(brokers: int, fanout: int) -> list[int]:
    """Return the parent of every broker, in the order of levels. The root is broker 0 and its own parent."""
    parents = [0]
    for parent in range(brokers):
        children = fanout if parent == 0 else fanout - 1
        parents += [parent] * min(children, brokers - len(parents))
    return parents


def random_failures(random: np.random.Generator, brokers: int, failures: int, runs: int) -> Flags:
    """Return which brokers failed, [broker, run]: in each run `failures` of them, all equally likely."""
    return (random.random((brokers, runs)).argsort(axis=0) < failures).astype(np.bool_)


def connected_pairs(parents: Sequence[int], failed: Flags, delta: int) -> Counts:
    """Count the ordered pairs of live brokers that reach each other, for each run.

    From the leaves to the root, `reaching[b, k]` counts the live brokers below `b` that reach `b` although the last k
    brokers before it failed. Two of them from different children are a pair if the failed brokers on both sides, and
    `b` itself if it failed, form a run that is short enough.
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
        within = others.cumsum(axis=0)  # [k]: others with at most k failed brokers before the parent
        through_failed = (passing[:delta] * within[:delta][::-1]).sum(axis=0)
        pairs += np.where(failed[parent], through_failed, through_live)
        others += passing
    return 2 * pairs


def connectivity(parents: Sequence[int], failed: Flags, delta: int) -> NDArray[np.float64]:
    """Return the % of ordered pairs of live brokers that reach each other, for each run."""
    live = (~failed).sum(axis=0)
    share: NDArray[np.float64] = connected_pairs(parents, failed, delta) / (live * (live - 1))
    return 100.0 * share


def distances(parents: Sequence[int]) -> Counts:
    """Return how many links apart any two brokers are."""
    apart = np.zeros((len(parents), len(parents)), np.int64)
    for broker, parent in enumerate(parents[1:], start=1):
        apart[broker, :broker] = apart[:broker, broker] = apart[parent, :broker] + 1
    return apart


def mean_connectivity(parents: Sequence[int], failures: int, delta: int) -> float:
    """Return the mean of `connectivity` over all possible sets of failed brokers.

    By linearity it is the mean over all pairs of the probability that the path between two live brokers is good, which
    depends only on how many brokers are between them.
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
    """Return the probability that no run of more than delta of `between` brokers failed, if `failures` of `others`
    failed."""
    good = sum(
        arrangements(between, failed, delta) * comb(others - between, failures - failed)
        for failed in range(min(between, failures) + 1)
    )
    return good / comb(others, failures)


def arrangements(places: int, failed: int, delta: int) -> int:
    """Count the ways in which `failed` of `places` in a row can fail without a run of more than delta.

    The live brokers make gaps, including one before the first and one after the last; each gap takes 0 to delta failed
    brokers. Inclusion-exclusion over the gaps that take too many.
    """
    gaps = places - failed + 1
    return sum(
        (-1) ** over * comb(gaps, over) * comb(failed - over * (delta + 1) + gaps - 1, gaps - 1)
        for over in range(failed // (delta + 1) + 1)
    )


def active_sessions(around: Sequence[Sequence[int]], failed: Sequence[bool], broker: int, reach: int) -> int:
    """Count the live brokers within reach that have no live broker between them and this one."""
    sessions = 0
    edge = [(broker, broker)]  # the broker to expand, and where it was reached from
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


def neighbourhood_sizes(brokers: int, fanout: int, delta: int) -> Counts:
    """Return how many other brokers are within delta + 1 links of each broker, sorted."""
    return np.sort((distances(tree(brokers, fanout)) <= delta + 1).sum(axis=0) - 1)


def session_counts(
    random: np.random.Generator, brokers: int, fanout: int, failures: int, delta: int, runs: int
) -> Counts:
    """Return the active sessions of every live broker in every run."""
    around = neighbours_of(tree(brokers, fanout))
    counts = []
    for failed in random_failures(random, brokers, failures, runs).T.tolist():
        live = (broker for broker in range(brokers) if not failed[broker])
        counts += [active_sessions(around, failed, broker, delta + 1) for broker in live]
    return np.array(counts, np.int64)
