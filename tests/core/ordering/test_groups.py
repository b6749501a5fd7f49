"""Groups kept by differences are those counted from scratch; what leaves one stays for one more stamp."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidings.core.ordering.groups import SequencingGroups
from tidings.core.ordering.stamps import Chain

TOPICS = 6
topic_sets = st.frozensets(st.integers(0, TOPICS - 1))
changes = st.lists(st.tuples(st.sampled_from("abcd"), topic_sets), max_size=12)


def counted(subscriptions: dict[str, frozenset[int]], threshold: int) -> dict[int, set[int]]:
    """The groups by their definition."""
    groups: dict[int, set[int]] = {topic: set() for topic in range(TOPICS)}
    for one, other in combinations(range(TOPICS), 2):
        if sum({one, other} <= topics for topics in subscriptions.values()) >= threshold:
            groups[one].add(other)
            groups[other].add(one)
    return groups


@given(changes, st.sampled_from([1, 2]), st.integers(1, TOPICS - 1))
def test_groups_are_those_counted_from_scratch(
    steps: list[tuple[str, frozenset[int]]], threshold: int, cut: int
) -> None:
    servers = [SequencingGroups(range(cut), threshold), SequencingGroups(range(cut, TOPICS), threshold)]
    subscriptions: dict[str, frozenset[int]] = {}
    ever: dict[str, frozenset[int]] = {}
    linger: dict[int, set[int]] = {topic: set() for topic in range(TOPICS)}
    before = counted({}, threshold)
    for name, new in steps:
        old = subscriptions.get(name, frozenset())
        ghosts = ever.get(name, frozenset()) - new
        for groups in servers:
            groups.change(old, new, sorted(ghosts))
        subscriptions[name] = new
        ever[name] = ever.get(name, frozenset()) | new
        after = counted(subscriptions, threshold)
        if threshold == 2:
            for topic in range(TOPICS):
                linger[topic] |= before[topic] - after[topic]
                linger[topic] |= ghosts if topic in new - old else set()
        before = after
    for topic in range(TOPICS):
        groups = servers[topic >= cut]
        assert groups.members(topic) == before[topic]
        assert groups.take(topic) == tuple(sorted(before[topic] | linger[topic]))
        assert groups.take(topic) == tuple(sorted(before[topic])), "it lingers for one stamp"


def test_one_version_of_a_group_is_one_object() -> None:
    groups = SequencingGroups(range(3), 1)
    groups.change(frozenset(), frozenset((0, 2)), ())
    index = groups.take(0)
    groups.change(frozenset(), frozenset((0, 2)), ())
    assert groups.take(0) is index == (2,)


def test_other_thresholds_are_refused() -> None:
    with pytest.raises(ValueError, match="threshold 3"):
        SequencingGroups(range(3), 3)


def test_a_chain_knows_who_hosts_what() -> None:
    chain = Chain(["a", "b", "c"], [0, 2, 3], 7)
    assert [chain.server_of(rank) for rank in range(7)] == ["a", "a", "b", "c", "c", "c", "c"]
    assert [chain.ranks(server) for server in chain.servers] == [range(2), range(2, 3), range(3, 7)]
    assert [(chain.above(server), chain.below(server)) for server in chain.servers] == [
        (None, "b"),
        ("a", "c"),
        ("b", None),
    ]
    assert chain.knows((0, 6)) and not chain.knows((0, 7)) and not chain.knows((1, 1))


@pytest.mark.parametrize("starts", [[1, 2], [0, 0], [0, 3], [0]])
def test_ranges_that_leave_gaps_are_refused(starts: list[int]) -> None:
    with pytest.raises(ValueError, match="range"):
        Chain(["a", "b"], starts, 3)
