"""Tree geometry from labels, against breadth-first search in an explicit tree."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise, product

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidings.core.overlay import labels
from tidings.core.overlay.labels import (
    MAX_LABEL_ITEM,
    MAX_LABEL_ITEMS,
    Label,
    beyond,
    distance,
    label_text,
    on_path,
    parse_label,
    path,
    step,
)

TREE = [(0, *rest) for depth in range(4) for rest in product(range(3), repeat=depth)]
"""Every broker of a tree with 4 levels and 3 children each."""

some_label = st.sampled_from(TREE)
any_number = st.integers(0, 1) | st.integers(0, MAX_LABEL_ITEM)
any_label = st.lists(any_number, max_size=20).map(lambda rest: (0, *rest))


class Walker:
    """The dumb twin: the tree as a graph, paths by search."""

    def __init__(self) -> None:
        self.around: dict[Label, list[Label]] = {label: [] for label in TREE}
        for label in TREE[1:]:
            self.around[label].append(label[:-1])
            self.around[label[:-1]].append(label)
        self.paths = {start: self._paths_from(start) for start in TREE}

    def _paths_from(self, start: Label) -> dict[Label, tuple[Label, ...]]:
        found: dict[Label, tuple[Label, ...]] = {start: (start,)}
        waiting = [start]
        for here in waiting:
            for peer in self.around[here]:
                if peer not in found:
                    found[peer] = (*found[here], peer)
                    waiting.append(peer)
        return found


WALKER = Walker()


def check_distance() -> None:
    for a, found in WALKER.paths.items():
        assert all(labels.distance(a, b) == len(way) - 1 for b, way in found.items())


def check_path() -> None:
    for a, found in WALKER.paths.items():
        assert all(labels.path(a, b) == way for b, way in found.items())


def check_step() -> None:
    for a, found in WALKER.paths.items():
        assert all(labels.step(a, b) == way[1] for b, way in found.items() if a != b)


def check_on_path() -> None:
    for a, found in WALKER.paths.items():
        for b, way in found.items():
            assert [x for x in TREE if labels.on_path(x, a, b)] == sorted(way, key=TREE.index)


CHECKS = {
    "distance": check_distance,
    "path": check_path,
    "step": check_step,
    "on_path": check_on_path,
}


@pytest.mark.parametrize("function", CHECKS)
def test_every_pair_of_a_small_tree(function: str) -> None:
    CHECKS[function]()


@given(some_label, some_label, some_label)
def test_beyond_is_at_or_behind(x: Label, b: Label, a: Label) -> None:
    assert beyond(x, b, a) == (x in WALKER.paths[a][b])


@given(any_label, any_label, any_label)
def test_the_functions_agree_on_labels_of_any_size(a: Label, b: Label, x: Label) -> None:
    way = path(a, b)
    assert (way[0], way[-1], len(way)) == (a, b, distance(a, b) + 1)
    assert way[::-1] == path(b, a)
    assert all(distance(left, right) == 1 for left, right in pairwise(way))
    assert all(step(here, b) == after for here, after in pairwise(way))
    assert all(on_path(here, a, b) for here in way)
    assert on_path(x, a, b) == (distance(a, x) + distance(x, b) == distance(a, b))


def test_no_step_to_itself() -> None:
    with pytest.raises(ValueError, match=r"no step from 0\.1 to itself"):
        step((0, 1), (0, 1))


def test_deep_chains_are_fine() -> None:
    deep = (0,) * MAX_LABEL_ITEMS
    assert distance((0,), deep) == MAX_LABEL_ITEMS - 1
    assert step((0, 1), deep) == (0,)
    assert on_path((0, 0, 0), (0, 1), deep)
    assert parse_label(label_text(deep)) == deep


@given(any_label)
def test_texts_come_back(label: Label) -> None:
    assert parse_label(label_text(label)) == label


@given(st.text("012.-+ _x٣", max_size=8))
def test_only_canonical_texts_are_labels(text: str) -> None:
    try:
        label = parse_label(text)
    except ValueError:
        return
    assert label_text(label) == text
    assert label[0] == 0


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "is not a label"),
        ("1", "is not a label"),
        ("1.0", "is not a label"),
        ("0.", "is not a label"),
        (".0", "is not a label"),
        ("0..1", "is not a label"),
        ("0.01", "is not a label"),
        ("0.-1", "is not a label"),
        ("0.+1", "is not a label"),
        ("0.1\n", "is not a label"),
        ("0. 1", "is not a label"),
        ("0.1_0", "is not a label"),
        ("0.٣", "is not a label"),
        ("0.x", "is not a label"),
        ("0." + "9" * 5000, "is not a label"),
        (f"0.{MAX_LABEL_ITEM + 1}", "greater than 2147483647"),
        ("0" + ".0" * MAX_LABEL_ITEMS, "at most 4096"),
        ("0" * 100_000, "at most 4096"),
    ],
)
def test_anything_else_is_refused_with_a_clear_text(text: str, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint) as caught:
        parse_label(text)
    assert len(str(caught.value)) < 200


def test_labels_are_plain_msgpack() -> None:
    label = parse_label("0.1.2147483647")
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(label), type=Label) == label


def above_either(x: Label, a: Label, b: Label) -> bool:
    """The bug: common ancestors above the place where the paths part count as on the path."""
    return a[: len(x)] == x or b[: len(x)] == x


def below_the_fork(x: Label, a: Label, b: Label) -> bool:
    """The bug: the place where the paths part is forgotten."""
    return (a[: len(x)] == x) != (b[: len(x)] == x)


def depth_difference(a: Label, b: Label) -> int:
    """The bug: counts levels, as if one were above the other."""
    return abs(len(a) - len(b))


def always_down(a: Label, b: Label) -> Label:
    """The bug: goes down into a branch of the right depth that is not its own."""
    return b[: len(a) + 1] if len(b) > len(a) else a[:-1]


def fork_twice(a: Label, b: Label) -> tuple[Label, ...]:
    """The bug: the way up and the way down both contain the fork."""
    common = (len(a) + len(b) - distance(a, b)) // 2
    up = [a[:size] for size in range(len(a), common - 1, -1)]
    return (*up, *(b[:size] for size in range(common, len(b) + 1)))


@pytest.mark.parametrize(
    ("function", "bug"),
    [
        ("on_path", above_either),
        ("on_path", below_the_fork),
        ("distance", depth_difference),
        ("step", always_down),
        ("path", fork_twice),
    ],
)
def test_planted_bugs_are_caught(
    function: str, bug: Callable[..., object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(labels, function, bug)
    with pytest.raises(AssertionError):
        CHECKS[function]()
