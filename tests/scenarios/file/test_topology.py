"""The generated shapes are the trees that they say, for every size; explicit edges are taken as they are."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from breadth import examples
from tidings.core.errors import ScenarioError
from tidings.scenarios.file.schema import ChainShape, Overlay, RandomShape, Shape, StarShape, TreeShape
from tidings.scenarios.file.topology import Topology, build_topology, degrees, labels, neighbours, parents

SIZES = st.integers(min_value=1, max_value=400)
DEGREES = st.integers(min_value=2, max_value=9)
SHAPES: st.SearchStrategy[Shape] = st.one_of(
    st.builds(TreeShape, brokers=SIZES, degree=DEGREES),
    st.builds(TreeShape, brokers=SIZES, children=st.integers(min_value=1, max_value=9)),
    st.builds(RandomShape, brokers=SIZES, degree=DEGREES),
    st.builds(ChainShape, brokers=SIZES),
    st.builds(StarShape, brokers=SIZES),
)


def build(shape: Shape, seed: int = 7) -> Topology:
    return build_topology(Overlay(shape=shape), seed)


def depths(topology: Topology) -> dict[str, int]:
    return {node: label.count(".") for node, label in labels(topology).items()}


@settings(max_examples=examples(150))
@given(shape=SHAPES, seed=st.integers(min_value=-5, max_value=5))
def test_every_shape_is_a_tree_with_b0_as_root(shape: Shape, seed: int) -> None:
    topology = build(shape, seed)
    assert topology.brokers == tuple(f"b{index}" for index in range(shape.brokers))
    assert len(topology.edges) == shape.brokers - 1
    assert len({frozenset(edge) for edge in topology.edges}) == len(topology.edges)
    up = parents(topology)
    assert set(up) == set(topology.brokers), "every broker is reached from the root"
    assert [node for node, parent in up.items() if parent is None] == ["b0"]
    around = neighbours(topology)
    for node, parent in up.items():
        assert parent is None or parent in around[node]
        assert parent is None or int(parent[1:]) < int(node[1:])


@settings(max_examples=examples(100))
@given(brokers=SIZES, degree=DEGREES)
def test_tree_by_degree(brokers: int, degree: int) -> None:
    """All but the last inner broker have exactly `degree` neighbours, and the levels are full."""
    topology = build(TreeShape(brokers=brokers, degree=degree))
    inner = [count for node, count in degrees(topology).items() if count > 1 or node == "b0"]
    assert all(count == degree for count in inner[:-1])
    assert all(count <= degree for count in inner)
    per_level = Counter(depths(topology).values())
    deepest = max(per_level)
    for level in range(1, deepest):
        assert per_level[level] == degree * (degree - 1) ** (level - 1)


@settings(max_examples=examples(100))
@given(brokers=SIZES, children=st.integers(min_value=1, max_value=9))
def test_tree_by_children(brokers: int, children: int) -> None:
    topology = build(TreeShape(brokers=brokers, children=children))
    counts = Counter(parent for parent in parents(topology).values() if parent is not None)
    assert all(count == children for count in list(counts.values())[:-1])
    per_level = Counter(depths(topology).values())
    for level in range(max(per_level)):
        assert per_level[level] == children**level


@settings(max_examples=examples(100))
@given(brokers=SIZES, degree=DEGREES, seed=st.integers())
def test_random_tree_keeps_its_degree_and_its_seed(brokers: int, degree: int, seed: int) -> None:
    shape = RandomShape(brokers=brokers, degree=degree)
    topology = build(shape, seed)
    assert max(degrees(topology).values()) <= degree
    assert topology == build(shape, seed)


def test_random_trees_differ_by_seed() -> None:
    shape = RandomShape(brokers=50, degree=4)
    assert len({build(shape, seed).edges for seed in range(20)}) == 20


def test_chain_and_star() -> None:
    assert build(ChainShape(brokers=3)).edges == (("b0", "b1"), ("b1", "b2"))
    assert build(StarShape(brokers=3)).edges == (("b0", "b1"), ("b0", "b2"))


@pytest.mark.parametrize("shape", [TreeShape(brokers=2, degree=1), RandomShape(brokers=2, degree=1)])
def test_degree_one_joins_two_brokers_and_no_more(shape: TreeShape | RandomShape) -> None:
    assert build(shape).edges == (("b0", "b1"),)
    with pytest.raises(ScenarioError, match="at most 2 brokers"):
        build(type(shape)(brokers=3, degree=1))


def test_labels_are_paths_from_the_root() -> None:
    found = labels(build(TreeShape(brokers=8, degree=3)))
    assert found == {
        "b0": "0",
        "b1": "0.0",
        "b2": "0.1",
        "b3": "0.2",
        "b4": "0.0.0",
        "b5": "0.0.1",
        "b6": "0.1.0",
        "b7": "0.1.1",
    }


def test_labels_of_siblings_beyond_nine_are_told_apart() -> None:
    found = labels(build(StarShape(brokers=13)))
    assert found["b12"] == "0.11"
    assert len(set(found.values())) == 13


def test_edges_name_their_brokers() -> None:
    topology = build_topology(Overlay(edges=(("y", "x"), ("z", "x"), ("b0", "z"))), 7)
    assert topology.brokers == ("y", "x", "z", "b0")
    assert topology.root == "b0"
    assert parents(topology) == {"b0": None, "z": "b0", "x": "z", "y": "x"}
    assert build_topology(Overlay(edges=(("y", "x"),)), 7).root == "y"


@settings(max_examples=examples(100))
@given(data=st.data(), size=st.integers(min_value=2, max_value=40))
def test_edges_of_a_tree_are_taken_in_any_order_and_one_more_is_a_cycle(
    data: st.DataObject, size: int
) -> None:
    edges = [(f"n{data.draw(st.integers(0, down - 1))}", f"n{down}") for down in range(1, size)]
    shuffled = data.draw(st.permutations(edges))
    turned = tuple(edge[::-1] if data.draw(st.booleans()) else edge for edge in shuffled)
    topology = build_topology(Overlay(edges=turned), 7)
    assert set(topology.brokers) == {f"n{index}" for index in range(size)}
    assert len(parents(topology)) == size
    left = data.draw(st.sampled_from(topology.brokers))
    right = data.draw(st.sampled_from(topology.brokers))
    with pytest.raises(ScenarioError, match=r"self-loop|repeated edge|cyclic topology"):
        build_topology(Overlay(edges=(*turned, (left, right))), 7)
    if size > 2:
        with pytest.raises(ScenarioError, match="disconnected topology"):
            build_topology(Overlay(edges=(*turned, ("m0", "m1"))), 7)


def test_no_brokers_among_peers() -> None:
    topology = build_topology(Overlay(mode="peers"), 7)
    assert topology == Topology((), ())
    assert (topology.root, parents(topology), labels(topology), degrees(topology)) == (None, {}, {}, {})


def test_a_hundred_thousand_brokers() -> None:
    topology = build(RandomShape(brokers=100_000, degree=4))
    assert len(parents(topology)) == 100_000
