"""The stream of changes for one neighbour, and what a link forwards, covers and withdraws."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from breadth import examples
from tidings.core.events.subscription import Interest, make_interest
from tidings.core.overlay.links import (
    FIRST_RETRY_NS,
    LAST_RETRY_NS,
    MAX_BATCH_BYTES,
    MAX_BATCH_CHANGES,
    ChangeStream,
    NeighbourLink,
    retry_delay_ns,
)
from tidings.core.overlay.messages import AddInterest, RemoveInterest, Settled, TableSent

A = make_interest(("/a",), None)
B = make_interest(("/b",), None)
BELOW = make_interest(("/a/b/c",), None)
MIDDLE = make_interest(("/a/b/**",), None)
ABOVE = make_interest(("/a/**",), None)


def told(stream: ChangeStream) -> list[tuple[str, bytes]]:
    """Everything that leaves the stream from now on, each batch taken at once."""
    kinds = {AddInterest: "add", RemoveInterest: "remove", Settled: "settled", TableSent: "table"}
    result = []
    while (batch := stream.next_batch()) is not None:
        result += [(kinds[type(change)], getattr(change, "key", b"")) for change in batch]
        assert stream.taken(stream.number)
    return result


@pytest.mark.parametrize(
    ("attempt", "expected_ns"),
    [
        (0, FIRST_RETRY_NS),
        (1, 2 * FIRST_RETRY_NS),
        (3, 8 * FIRST_RETRY_NS),
        (5, LAST_RETRY_NS),
        (10**9, LAST_RETRY_NS),
    ],
)
def test_repetitions_wait_longer_and_longer_up_to_a_bound(attempt: int, expected_ns: int) -> None:
    assert retry_delay_ns(attempt) == expected_ns


def test_one_batch_is_on_its_way_at_a_time() -> None:
    stream = ChangeStream()
    stream.add(A, 1)
    first = stream.next_batch()
    assert first is not None
    stream.add(B, 2)
    assert stream.next_batch() is None
    assert not stream.taken(stream.number + 1)
    assert not stream.taken(stream.number - 1)
    assert stream.in_flight == first
    assert stream.taken(stream.number)
    assert not stream.taken(stream.number)
    assert told(stream) == [("add", B.key)]
    assert stream.idle


def test_an_addition_that_has_not_left_is_cancelled_by_its_removal() -> None:
    stream = ChangeStream()
    stream.add(A, 1)
    stream.add(B, 2)
    stream.remove(A)
    assert told(stream) == [("add", B.key)]


def test_an_addition_on_its_way_is_followed_by_its_removal() -> None:
    stream = ChangeStream()
    stream.add(A, 1)
    stream.next_batch()
    stream.remove(A)
    stream.add(A, 2)
    stream.remove(A)
    assert stream.taken(1)
    assert told(stream) == [("remove", A.key)]


def test_what_was_taken_is_removed_before_it_is_added_again() -> None:
    stream = ChangeStream()
    stream.remove(A)
    stream.add(A, 1)
    assert told(stream) == [("remove", A.key), ("add", A.key)]


def test_a_batch_is_bounded_in_changes_and_in_bytes() -> None:
    stream = ChangeStream()
    for number in range(MAX_BATCH_CHANGES + 1):
        stream.add(make_interest((f"/t{number}",), None), number)
    batch = stream.next_batch()
    assert batch is not None
    assert len(batch) == MAX_BATCH_CHANGES
    stream.restart()
    long_topics = tuple(f"/{number}" + "x" * 900 for number in range(8))
    for number in range(3):
        stream.add(make_interest((*long_topics, f"/t{number}"), None), number)
    assert MAX_BATCH_BYTES < 8 * 900 * 4 * 2
    batch = stream.next_batch()
    assert batch is not None
    assert len(batch) == 1


def test_a_change_larger_than_a_batch_leaves_alone() -> None:
    stream = ChangeStream()
    stream.add(make_interest(tuple(f"/{number}" + "x" * 1000 for number in range(12)), None), 1)
    stream.add(A, 2)
    batch = stream.next_batch()
    assert batch is not None
    assert len(batch) == 1


@given(st.lists(st.tuples(st.sampled_from("ad"), st.integers(0, 3), st.booleans()), max_size=40))
@settings(max_examples=examples(200))
def test_the_peer_ends_with_what_the_link_forwards_and_the_backlog_is_bounded_by_the_table(
    steps: list[tuple[str, int, bool]],
) -> None:
    """Dumb twin: a set. The peer applies batches as they leave; some of them leave between the changes."""
    interests = [make_interest((f"/t{number}",), None) for number in range(4)]
    stream, held, peer = ChangeStream(), set[bytes](), set[bytes]()

    def apply() -> None:
        for kind, key in told(stream):
            assert (key in peer) == (kind == "remove"), "the peer is told what it knows"
            (peer.remove if kind == "remove" else peer.add)(key)

    for kind, which, leaves in steps:
        interest = interests[which]
        if kind == "a" and interest.key not in held:
            held.add(interest.key)
            stream.add(interest, 1)
        elif kind == "d" and interest.key in held:
            held.remove(interest.key)
            stream.remove(interest)
        assert len(stream) <= 2 * len(interests)
        if leaves:
            apply()
    apply()
    assert peer == held


# --- Covers


def forwarded(*interests: Interest) -> NeighbourLink:
    link = NeighbourLink("peer")
    for interest in interests:
        link.forward(interest)
    return link


def test_a_covered_interest_is_not_sent() -> None:
    link = forwarded(ABOVE, MIDDLE, BELOW)
    assert told(link.stream) == [("add", ABOVE.key)]
    assert all(link.forwards(interest) for interest in (ABOVE, MIDDLE, BELOW))


def test_a_wider_interest_leaves_the_narrower_ones_as_they_are() -> None:
    link = forwarded(BELOW, MIDDLE, ABOVE)
    assert [kind for kind, _ in told(link.stream)] == ["add", "add", "add"]


def test_what_was_covered_goes_out_before_its_cover_is_taken_back() -> None:
    link = forwarded(ABOVE, MIDDLE, BELOW)
    told(link.stream)
    assert link.withdraw(ABOVE) == (MIDDLE, BELOW)
    assert told(link.stream) == [("add", MIDDLE.key), ("remove", ABOVE.key)]
    assert link.covered == {BELOW: MIDDLE}
    link.withdraw(MIDDLE)
    assert told(link.stream) == [("add", BELOW.key), ("remove", MIDDLE.key)]
    link.withdraw(BELOW)
    assert told(link.stream) == [("remove", BELOW.key)]
    assert not (link.sent or link.covered or link.by_key or link.covering)


def test_a_covered_interest_is_withdrawn_without_a_word() -> None:
    link = forwarded(ABOVE, BELOW)
    told(link.stream)
    assert link.withdraw(BELOW) == ()
    assert told(link.stream) == []
    link.withdraw(ABOVE)
    assert told(link.stream) == [("remove", ABOVE.key)]


def test_a_covered_interest_is_settled_with_its_cover() -> None:
    link = forwarded(ABOVE, BELOW)
    assert not link.is_settled(BELOW)
    link.settled[ABOVE] = None
    assert link.is_settled(BELOW)
    link.withdraw(ABOVE)
    assert not link.is_settled(BELOW)


def test_nobody_waits_for_a_neighbour_that_is_away() -> None:
    link = forwarded(A)
    link.present = False
    assert link.is_settled(A)


INTERESTS = [
    make_interest(topics, sql)
    for topics, sql in [
        ((), None),
        (("/a/**",), None),
        (("/a/b",), None),
        (("/a/b", "/c"), None),
        (("/a/b",), "x > 1"),
        (("/a/b",), "x > 2"),
        ((), "x > 1"),
    ]
]


@given(st.lists(st.tuples(st.booleans(), st.integers(0, len(INTERESTS) - 1)), max_size=30))
@settings(max_examples=examples(200))
def test_at_every_moment_the_peer_selects_for_us_whatever_we_want(steps: list[tuple[bool, int]]) -> None:
    """After each single change that the peer applies, some interest it holds covers each that was wanted all along."""
    link, wanted = NeighbourLink("peer"), dict[Interest, None]()
    by_key = {interest.key: interest for interest in INTERESTS}
    peer = set[Interest]()
    for gained, which in steps:
        interest = INTERESTS[which]
        before = [held for held in wanted if held != interest]
        if gained and interest not in wanted:
            wanted[interest] = None
            link.forward(interest)
        elif not gained and interest in wanted:
            del wanted[interest]
            link.withdraw(interest)
        for kind, key in told(link.stream):
            (peer.remove if kind == "remove" else peer.add)(by_key[key])
            assert all(any(held.covers(other) for held in peer) for other in before)
        assert peer == set(link.sent) <= set(wanted)
        assert all(any(held.covers(other) for held in peer) for other in wanted)
