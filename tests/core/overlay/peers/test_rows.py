"""Who can be reached, and who carries a topic, against plain definitions."""

from __future__ import annotations

from itertools import combinations

from hypothesis import given, settings
from hypothesis import strategies as st

from breadth import examples
from tidings.core.overlay.peers.messages import ProcessRow
from tidings.core.overlay.peers.rows import ProcessRows

NAMES = ["a", "b", "c", "d", "e", "f"]
PAIRS = list(combinations(NAMES, 2))


def row(name: str, clock: int, near: list[str], topics: tuple[str, ...] = ()) -> ProcessRow:
    return ProcessRow(name, 1, clock, "", tuple(sorted(near)), ((topics, None),) if topics else ())


@settings(max_examples=examples(300), deadline=None)
@given(st.sets(st.sampled_from(PAIRS)), st.sets(st.sampled_from(PAIRS)), st.sets(st.sampled_from(NAMES)))
def test_who_is_reached_and_who_carries(
    forward: set[tuple[str, str]], backward: set[tuple[str, str]], members: set[str]
) -> None:
    """`forward` and `backward` say of which pairs the first, and the second, says that it talks to the other."""
    rows = ProcessRows(row("a", 0, []))
    for name in NAMES:
        near = [b for a, b in forward if a == name] + [a for a, b in backward if b == name]
        rows.take(row(name, 1, near, ("/t",) if name in members else ()))
    links = forward & backward
    reached = {"a"}
    while near := {b for pair in links for a, b in (pair, pair[::-1]) if a in reached} - reached:
        reached |= near
    assert rows.reached == tuple(sorted(reached))
    assert rows.members("/t") == sorted(members)
    assert rows.members("/t", rows.reached) == sorted(members & reached)
    around = (members & reached) | {"a"}
    inside = {"a"}
    while (
        near := {b for pair in links for a, b in (pair, pair[::-1]) if a in inside and b in around} - inside
    ):
        inside |= near
    assert rows.carriers("/t") == (members & reached if inside == around else reached)
    for left, right in PAIRS:
        assert rows.linked(left, right) is rows.linked(right, left) is ((left, right) in links)


def test_the_latest_row_counts_and_an_earlier_life_does_not() -> None:
    rows = ProcessRows(row("a", 0, []))
    assert rows.take(row("b", 2, ["a"]))
    assert not rows.take(row("b", 1, [])) and not rows.take(row("b", 2, []))
    assert rows.take(ProcessRow("b", 2, 0, "", (), ())), "a new life"
    assert not rows.take(row("b", 9, ["a"]))


def test_whoever_has_left_is_no_member_and_reaches_nobody() -> None:
    rows = ProcessRows(row("a", 1, ["b"], ("/t",)))
    rows.take(row("b", 1, ["a"], ("/t",)))
    assert rows.members("/t") == ["a", "b"] and rows.reached == ("a", "b")
    rows.take(ProcessRow("b", 1, 2, "", ("a",), ((("/t",), None),), left=True))
    assert rows.members("/t") == ["a"] and rows.reached == ("a",)


def test_topic_patterns_take_part_in_topics_that_come_later() -> None:
    rows = ProcessRows(row("a", 1, [], ("/a/**",)))
    assert rows.members("/a/b/c") == ["a"] and rows.members("/b") == []
