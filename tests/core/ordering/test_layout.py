"""Layouts against a dumb twin that tries all topics, and what they say of themselves."""

from __future__ import annotations

from itertools import product
from random import Random

import pytest

from tidings.core.errors import OrderError
from tidings.core.events.topics import TopicPattern
from tidings.core.ordering.layout import (
    EVERYTHING,
    MAX_SERVERS,
    SHOWN,
    Layout,
    ServerPlacement,
    overlap,
    parse_layout,
    single,
    spread,
)

TOPICS = ["/" + "/".join(levels) for depth in (1, 2, 3, 4) for levels in product("abc", repeat=depth)]
"""One letter and one level more than the patterns have."""
PATTERNS = [
    TopicPattern("/" + "/".join((*levels, *end)))
    for depth in (0, 1, 2, 3)
    for levels in product("ab*", repeat=depth)
    for end in ((), ("**",))
    if levels or end
]
SELECTED = {pattern: frozenset(filter(pattern.matches, TOPICS)) for pattern in PATTERNS}


def random_layout(random: Random, *, causal: bool = True) -> Layout:
    entries = [pattern.text for pattern in random.sample(PATTERNS, random.randrange(1, 9))]
    cut = random.randrange(len(entries))
    places = [ServerPlacement("low", tuple(entries[cut:]))]
    if cut:
        places.insert(0, ServerPlacement("high", tuple(entries[:cut])))
    return Layout(places, causal=causal)


def test_overlap_and_covers_as_by_trying_all_topics() -> None:
    for left, right in product(PATTERNS, repeat=2):
        assert overlap(left, right) == bool(SELECTED[left] & SELECTED[right]), (left, right)
        # Every topic has a level, so these are the same; `covers` may say no.
        if (left.text, right.text) != ("/*/**", "/**"):
            assert left.covers(right) == (SELECTED[left] >= SELECTED[right]), (left, right)


def test_an_event_belongs_to_the_first_entry_that_selects_its_topic() -> None:
    random = Random(1)
    for _ in range(150):
        layout = random_layout(random)
        entries = [SELECTED[TopicPattern(layout.entry(rank))] for rank in range(len(layout.topics))]
        for topic in random.sample(TOPICS, 40):
            first = next((rank for rank, entry in enumerate(entries) if topic in entry), None)
            assert layout.rank_of(topic) == first, (layout.text, topic)


def test_a_subscription_has_all_entries_that_its_events_may_belong_to() -> None:
    random = Random(2)
    for _ in range(300):
        layout = random_layout(random)
        wanted = random.sample(PATTERNS, random.randrange(1, 4))
        topics = frozenset().union(*(SELECTED[pattern] for pattern in wanted))
        found = layout.ranks_for(wanted)
        needed = {rank for topic in topics if (rank := layout.rank_of(topic)) is not None}
        assert needed <= set(found) and list(found) == sorted(set(found)), (layout.text, wanted)
        if all(pattern.exact for pattern in wanted):
            assert needed == set(found)
        for rank in found:
            assert SELECTED[TopicPattern(layout.entry(rank))] & topics
        covered = {pattern.text for pattern in wanted} - set(layout.uncovered(wanted))
        for pattern in covered:
            assert all(layout.rank_of(topic) is not None for topic in SELECTED[TopicPattern(pattern)])


def test_an_entry_selects_the_topic_of_its_no_ops() -> None:
    layout = Layout([ServerPlacement("one", tuple(pattern.text for pattern in PATTERNS))])
    for rank, pattern in enumerate(PATTERNS):
        assert pattern.matches(layout.no_op_topic(rank)), pattern


def test_ranks_count_through_the_servers() -> None:
    layout = Layout([ServerPlacement("high", ("/a", "/b")), ServerPlacement("low", ("/c",))])
    assert [layout.chain.server_of(rank) for rank in range(3)] == ["high", "high", "low"]
    assert layout.rank_of("/c") == 2
    assert layout.rank_of("/d") is None
    assert single("one").rank_of("/any/thing") == 0
    assert single("one").topics == (EVERYTHING,)


def test_spread_puts_the_replicas_on_the_nodes_after_each() -> None:
    layout = spread({"y": ["/a"], "z": ["/b"]}, ["x", "y", "z"], causal=False)
    assert [(place.primary, place.standby, place.witness) for place in layout.servers] == [
        ("y", "z", "x"),
        ("z", "x", "y"),
    ]
    assert layout.replicas("y") == ("y", "z")
    assert layout.nodes == ("y", "z", "x")
    assert layout.threshold == 2
    alone = spread({"x": ["/a"]}, ["x", "y"], causal=True)
    assert alone.replicas("x") == ("x",)


@pytest.mark.parametrize(
    ("here", "there", "words"),
    [
        (single("n", ["/a"]), single("n", ["/a"]), ""),
        (single("n", ["/a", "/b"]), single("n", ["/b", "/c"]), "only here: /a; only there: /c"),
        (single("n", ["/a", "/b"]), single("n", ["/b", "/a"]), "rank 0 is /a here and /b there"),
        (single("n", ["/a"]), single("n", ["/a"], causal=False), "order is causal here and total there"),
        (
            single("n", ["/a"]),
            single("m", ["/a"]),
            "the same topics are on different servers, or replicas on different nodes",
        ),
        (
            single("n", [f"/{number}" for number in range(SHOWN + 3)]),
            single("n", ["/0"]),
            "only here: /1, /2, /3, /4, /5 and 2 more",
        ),
    ],
)
def test_differences_are_said_in_words(here: Layout, there: Layout, words: str) -> None:
    assert here.difference(there) == words
    assert (here.fingerprint == there.fingerprint) == (not words)


def test_a_layout_survives_the_wire() -> None:
    random = Random(3)
    for causal in (True, False):
        layout = random_layout(random, causal=causal)
        assert parse_layout(layout.text).difference(layout) == ""
        assert parse_layout(layout.text).fingerprint == layout.fingerprint


@pytest.mark.parametrize(
    ("places", "words"),
    [
        ([], "0 sequencer servers"),
        (
            [ServerPlacement(f"n{number}", (f"/{number}",)) for number in range(MAX_SERVERS + 1)],
            "257 sequencer servers",
        ),
        (
            [ServerPlacement("n", ("/a",)), ServerPlacement("n", ("/b",))],
            "two sequencer servers are named 'n'",
        ),
        ([ServerPlacement("", ("/a",))], "has no name"),
        ([ServerPlacement("n", ())], "'n' has no topics"),
        (
            [ServerPlacement("n", ("/a",)), ServerPlacement("m", ("/a",))],
            "'/a' is listed twice: at 'n' and at 'm'",
        ),
        ([ServerPlacement("n", ("a",))], "'n': topic pattern 'a' must start with"),
        ([ServerPlacement("n", ("/a/**/b",))], "'n': topic pattern"),
        ([ServerPlacement("n", ("/a",), standby="m")], "standby and witness must be given together"),
        ([ServerPlacement("n", ("/a",), witness="m")], "standby and witness must be given together"),
        ([ServerPlacement("n", ("/a",), standby="m", witness="m")], "must be three different nodes"),
        (
            [ServerPlacement("n", ("/a",), node="m", standby="m", witness="o")],
            "must be three different nodes",
        ),
        ([ServerPlacement("n", tuple(f"/{number}" for number in range(4097)))], "4097 topics"),
    ],
)
def test_what_is_wrong_with_a_layout_is_named(places: list[ServerPlacement], words: str) -> None:
    with pytest.raises(OrderError) as caught:
        Layout(places)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        '{"servers": []}',
        '{"servers": [], "causal": true, "more": 1}',
        '{"servers": 3, "causal": true}',
    ],
)
def test_what_is_no_layout_is_refused(text: str) -> None:
    with pytest.raises(OrderError):
        parse_layout(text)
