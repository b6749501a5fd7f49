"""Builds the tree of brokers from a shape or from explicit edges, with parents, labels and degrees.

Brokers of a generated shape are `b0`, `b1`, ...; `b0` is the root, and each comes after its parent. Labels are Dewey
paths from the root, as the guaranteed overlay and polarized gossip use them. Everything takes time linear in the
number of brokers, except the labels, which are as long as the tree is deep.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass

from tidings.core.errors import ScenarioError
from tidings.scenarios.file.schema import (
    DEFAULT_SHAPE,
    ChainShape,
    Overlay,
    RandomShape,
    Shape,
    StarShape,
    TreeShape,
)

DEFAULT_DEGREE = 3
ROOT_LABEL = "0"

Edge = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Topology:
    """A tree: connected, with one edge fewer than brokers. In mode peers both are empty."""

    brokers: tuple[str, ...]
    edges: tuple[Edge, ...]

    @property
    def root(self) -> str | None:
        """`b0` if it exists, otherwise the broker named first; None in mode peers."""
        if "b0" in self.brokers:
            return "b0"
        return self.brokers[0] if self.brokers else None


def build_topology(overlay: Overlay, seed: int) -> Topology:
    """Return the tree that [overlay] describes; ScenarioError names the key and the nodes if it is not a tree."""
    if overlay.mode == "peers":
        return Topology((), ())
    if overlay.edges is not None:
        return _from_edges(overlay.edges)
    shape = DEFAULT_SHAPE if overlay.shape is None else overlay.shape
    brokers = tuple(f"b{index}" for index in range(shape.brokers))
    parent_indexes = _parent_indexes(shape, seed)
    return Topology(brokers, tuple((brokers[up], brokers[down]) for down, up in enumerate(parent_indexes, 1)))


def _parent_indexes(shape: Shape, seed: int) -> list[int]:
    """Return the parent's index of broker 1, 2, ...; always lower than its own."""
    match shape:
        case TreeShape():
            return _complete_tree(shape)
        case RandomShape():
            return _random_tree(shape, seed)
        case ChainShape():
            return list(range(shape.brokers - 1))
        case StarShape():
            return [0] * (shape.brokers - 1)


def _complete_tree(shape: TreeShape) -> list[int]:
    """Fill the tree level by level; by degree, the root has one child more than the others."""
    if shape.children is not None:
        return [(index - 1) // shape.children for index in range(1, shape.brokers)]
    degree = DEFAULT_DEGREE if shape.degree is None else shape.degree
    check_degree(degree, shape.brokers)
    below = max(degree - 1, 1)
    return [0 if index <= degree else (index - 2) // below for index in range(1, shape.brokers)]


def _random_tree(shape: RandomShape, seed: int) -> list[int]:
    """Join each broker in turn to one drawn from those that have room."""
    check_degree(shape.degree, shape.brokers)
    generator = random.Random(f"{seed}:topology")
    room = [shape.degree] * shape.brokers
    open_indexes = [0]
    parent_indexes: list[int] = []
    for index in range(1, shape.brokers):
        chosen = generator.randrange(len(open_indexes))
        parent = open_indexes[chosen]
        parent_indexes.append(parent)
        room[parent] -= 1
        room[index] -= 1
        if room[parent] == 0:
            open_indexes[chosen] = open_indexes[-1]
            open_indexes.pop()
        if room[index] > 0:
            open_indexes.append(index)
    return parent_indexes


def check_degree(degree: int, brokers: int) -> None:
    if degree == 1 and brokers > 2:
        raise ScenarioError(f"overlay.shape.degree: 1 connects at most 2 brokers, not {brokers}")


def _from_edges(edges: tuple[Edge, ...]) -> Topology:
    """Return the tree of named brokers, in the order in which they first appear."""
    joined: dict[str, str] = {}
    kept: dict[frozenset[str], int] = {}
    for index, (left, right) in enumerate(edges):
        if left == right:
            raise ScenarioError(f"overlay.edges[{index}]: self-loop at '{left}'; an edge joins two brokers")
        earlier = kept.setdefault(frozenset((left, right)), index)
        if earlier != index:
            raise ScenarioError(
                f"overlay.edges[{index}]: repeated edge '{left}' - '{right}', already overlay.edges[{earlier}]"
            )
        left_root, right_root = _component(joined, left), _component(joined, right)
        if left_root == right_root:
            cycle = " - ".join(f"'{name}'" for name in [*_path(edges[:index], left, right), left])
            raise ScenarioError(f"overlay.edges[{index}]: cyclic topology: {cycle}; brokers must form a tree")
        joined[right_root] = left_root
    brokers = tuple(joined)
    for broker in brokers:
        if _component(joined, broker) != _component(joined, brokers[0]):
            raise ScenarioError(
                f"overlay.edges: disconnected topology: no path from '{brokers[0]}' to '{broker}'; "
                "brokers must form a tree"
            )
    return Topology(brokers, edges)


def _component(joined: dict[str, str], name: str) -> str:
    """Return the representative of `name`'s connected component (union-find with path halving)."""
    joined.setdefault(name, name)
    while joined[name] != name:
        joined[name] = joined[joined[name]]
        name = joined[name]
    return name


def _path(edges: Iterable[Edge], start: str, end: str) -> list[str]:
    """Return the nodes from `start` to `end`, both included, in a forest that connects them."""
    neighbours = _neighbours((), edges)
    came_from = {start: start}
    for node in (order := [start]):
        for neighbour in neighbours[node]:
            if neighbour not in came_from:
                came_from[neighbour] = node
                order.append(neighbour)
    nodes = [end]
    while nodes[-1] != start:
        nodes.append(came_from[nodes[-1]])
    return nodes[::-1]


def _neighbours(brokers: Iterable[str], edges: Iterable[Edge]) -> dict[str, list[str]]:
    result: dict[str, list[str]] = {broker: [] for broker in brokers}
    for left, right in edges:
        result.setdefault(left, []).append(right)
        result.setdefault(right, []).append(left)
    return result


def neighbours(topology: Topology) -> dict[str, tuple[str, ...]]:
    """Return the neighbours of each broker, in the order of the edges."""
    found = _neighbours(topology.brokers, topology.edges)
    return {broker: tuple(found[broker]) for broker in topology.brokers}


def parents(topology: Topology) -> dict[str, str | None]:
    """Return the parent of each broker (None for the root); parents come before their children."""
    if topology.root is None:
        return {}
    adjacent = _neighbours(topology.brokers, topology.edges)
    result: dict[str, str | None] = {topology.root: None}
    for node in (order := [topology.root]):
        for neighbour in adjacent[node]:
            if neighbour not in result:
                result[neighbour] = node
                order.append(neighbour)
    return result


def labels(topology: Topology) -> dict[str, str]:
    """Return the Dewey label of each broker, root first: `0`, its children `0.0`, `0.1`, ..."""
    result: dict[str, str] = {}
    child_count: dict[str, int] = {}
    for node, parent in parents(topology).items():
        if parent is None:
            result[node] = ROOT_LABEL
            continue
        position = child_count.get(parent, 0)
        child_count[parent] = position + 1
        result[node] = f"{result[parent]}.{position}"
    return result


def neighbourhoods(topology: Topology, reach: int) -> dict[str, dict[str, tuple[int, ...]]]:
    """Return, for each broker, the labels (as numbers) of all brokers within `reach` links, itself included."""
    around = neighbours(topology)
    label_of = {name: tuple(map(int, label.split("."))) for name, label in labels(topology).items()}
    result: dict[str, dict[str, tuple[int, ...]]] = {}
    for name in topology.brokers:
        found = edge = {name: label_of[name]}
        for _ in range(reach):
            edge = {peer: label_of[peer] for near in edge for peer in around[near] if peer not in found}
            found = found | edge
        result[name] = found
    return result


def degrees(topology: Topology) -> dict[str, int]:
    """Return how many neighbours each broker has."""
    result = dict.fromkeys(topology.brokers, 0)
    for left, right in topology.edges:
        result[left] += 1
        result[right] += 1
    return result
