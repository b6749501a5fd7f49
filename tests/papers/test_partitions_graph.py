"""Figures 9 to 12 of the partitions paper at graph level: what any protocol on the primary tree can reach.

The counting in `tidings.studies.partitions.connectivity` is compared with the definitions, written out with labels, on
small trees; then the claims of the paper's section IX are read off the large ones.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections.abc import Sequence
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from breadth import examples
from tidings.core.overlay.labels import Label, distance, path
from tidings.studies.partitions import connectivity

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "overlay_graph.py"
_spec = importlib.util.spec_from_file_location("overlay_graph", SCRIPT)
assert _spec is not None and _spec.loader is not None
graph = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(graph)


def labels_of(parents: Sequence[int]) -> list[Label]:
    labels: list[Label] = [(0,)]
    for broker, parent in enumerate(parents[1:], start=1):
        labels.append((*labels[parent], broker))
    return labels


def failed_between(a: Label, b: Label, dead: set[Label]) -> list[int]:
    """The lengths of the runs of failed brokers on the path."""
    signs = "".join("x" if label in dead else " " for label in path(a, b))
    return [len(run) for run in signs.split()]


def reach_each_other(labels: list[Label], dead: set[Label], delta: int) -> int:
    live = [label for label in labels if label not in dead]
    return 2 * sum(max(failed_between(a, b, dead), default=0) <= delta for a, b in combinations(live, 2))


def sessions_of(at: Label, labels: list[Label], dead: set[Label], reach: int) -> int:
    others = [other for other in labels if other != at and other not in dead and distance(at, other) <= reach]
    return sum(dead.issuperset(path(at, other)[1:-1]) for other in others)


parents = st.lists(st.integers(0, 10**6), min_size=1, max_size=14).map(
    lambda draws: [0, *(draw % (number + 1) for number, draw in enumerate(draws))]
)


@given(parents, st.data(), st.integers(0, 4))
@settings(max_examples=examples(100))
def test_the_counts_follow_the_definitions(parents: list[int], data: st.DataObject, delta: int) -> None:
    dead_sets = data.draw(st.lists(st.sets(st.integers(0, len(parents) - 1)), min_size=1, max_size=4))
    labels, around = labels_of(parents), connectivity.neighbours_of(parents)
    failed = np.array([[broker in dead for dead in dead_sets] for broker in range(len(parents))])
    pairs = connectivity.connected_pairs(parents, failed, delta)
    for dead, found in zip(dead_sets, pairs.tolist(), strict=True):
        dead_labels = {labels[broker] for broker in dead}
        assert found == reach_each_other(labels, dead_labels, delta)
        flags = [broker in dead for broker in range(len(parents))]
        for broker in set(range(len(parents))) - dead:
            sessions = connectivity.active_sessions(around, flags, broker, delta + 1)
            assert sessions == sessions_of(labels[broker], labels, dead_labels, delta + 1)
    assert [list(map(int, row)) for row in connectivity.distances(parents)] == [
        [distance(a, b) for b in labels] for a in labels
    ]


@given(parents, st.data(), st.integers(0, 3))
@settings(max_examples=examples(60))
def test_the_true_mean_is_that_of_all_sets_of_failures(
    parents: list[int], data: st.DataObject, delta: int
) -> None:
    brokers = len(parents)
    failures = data.draw(st.integers(0, min(3, brokers - 2)))
    sets = list(combinations(range(brokers), failures))
    failed = np.array([[broker in dead for dead in sets] for broker in range(brokers)])
    mean = float(connectivity.connectivity(parents, failed, delta).mean())
    assert connectivity.mean_connectivity(parents, failures, delta) == pytest.approx(mean)


def test_a_detour_does_not_make_a_path() -> None:
    """1 - 0 - 2 - 3 - 4, with 5 beside 2, and 0, 2, 3 failed: with delta 2 both ends reach 5, not each other."""
    parents = [0, 0, 0, 2, 3, 2]
    failed = np.array([[broker in (0, 2, 3)] for broker in range(6)])
    assert connectivity.connected_pairs(parents, failed, 2).tolist() == [4]
    assert connectivity.connected_pairs(parents, failed, 3).tolist() == [6]


@pytest.mark.parametrize("fanout", [3, 7])
def test_the_tree_is_complete_and_fanout_is_its_degree(fanout: int) -> None:
    around = connectivity.neighbours_of(connectivity.tree(1000, fanout))
    degrees = [len(peers) for peers in around]
    assert len(degrees) == 1000
    assert sum(degrees) == 2 * 999
    assert max(degrees) == fanout
    assert sum(1 < degree < fanout for degree in degrees) <= 1
    depths = [len(label) for label in labels_of(connectivity.tree(1000, fanout))]
    assert depths == sorted(depths)


@pytest.mark.parametrize("seed", range(3))
def test_so_many_brokers_fail(seed: int) -> None:
    failed = connectivity.random_failures(np.random.default_rng(seed), 50, 7, 400)
    assert failed.sum(axis=0).tolist() == [7] * 400
    assert 20 < failed.sum(axis=1).min() <= failed.sum(axis=1).max() < 100  # 56 expected for each broker


def test_figure_9_larger_delta_and_larger_fanout_leave_fewer_pairs_disconnected() -> None:
    points = list(graph.figure_9(np.random.default_rng(1), 40))
    assert len(points) == 40
    true_means = {(p.fanout, p.failures, p.delta): p.true_mean for p in points}
    for (fanout, failures, delta), mean in true_means.items():
        assert delta == 0 or mean < true_means[fanout, failures, delta - 1]
        assert mean < true_means[3, failures, delta] or fanout == 3
    for point in points:
        # Heavy tails: a rare failure beside the root decides the small means, so only their size is looked at.
        assert point.measured == pytest.approx(point.true_mean, rel=0.25, abs=3.0), point
        assert point.expected == pytest.approx(point.true_mean, rel=0.25, abs=0.3), point


def test_figure_10_delta_3_leaves_room_for_the_97_percent_that_the_paper_delivers() -> None:
    for point in graph.figure_10(np.random.default_rng(2), 60):
        assert point.measured == pytest.approx(point.true_mean, abs=10.0), point
        assert point.expected == pytest.approx(point.true_mean, abs=1.5), point
        if point.delta == 3:
            assert point.true_mean > 99.0


def test_figure_11_sizes_of_neighbourhoods_are_exact() -> None:
    points = list(graph.figure_11())
    assert len(points) == 18
    for point in points:
        if point.quantity == "mean":
            assert point.measured == pytest.approx(point.expected, abs=0.05), point
        else:
            assert point.measured == point.expected, point


def test_figure_11_by_labels() -> None:
    labels = labels_of(connectivity.tree(1000, 7))
    assert max(sum(distance(at, other) <= 4 for other in labels) - 1 for at in labels[:8]) == 999
    inner, leaf = labels[1], labels[-1]
    assert sum(distance(inner, other) <= 2 for other in labels) - 1 == 49
    assert sum(distance(leaf, other) <= 1 for other in labels) - 1 == 1


def test_figure_12_the_number_of_active_sessions_stays_low() -> None:
    for point in graph.figure_12(np.random.default_rng(3), 10):
        if point.quantity == "mean":
            assert point.measured == pytest.approx(point.expected, abs=0.15), point
        elif point.quantity == "p99":
            assert point.measured == pytest.approx(point.expected, abs=1.0), point
        else:
            assert point.measured < 100, point


@pytest.mark.parametrize("output", [[], ["--json"]])
def test_the_command(output: list[str]) -> None:
    command = [sys.executable, str(SCRIPT), "--quick", "--runs", "20", "--seed", "4", *output]
    shown = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout
    if output:
        result = json.loads(shown)
        assert (result["runs"], result["seed"], len(result["points"])) == (2, 4, 78)
    else:
        assert "figure 12" in shown
