"""How far origins have counted, as seen passing: against a dictionary of maxima."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidings.core.overlay.epidemic import pattern_counter
from tidings.core.overlay.epidemic.pattern_counter import PatternCounter

A, B = b"pattern-a", b"pattern-b"
COUNTS = st.tuples(st.integers(0, 3), st.integers(0, 5))
STEPS = st.one_of(
    st.tuples(st.just("open"), st.sampled_from([A, B])),
    st.tuples(st.just("close"), st.sampled_from([A, B])),
    st.tuples(st.sampled_from("xyz"), st.sampled_from([A, B]), COUNTS),
)


@given(st.lists(STEPS, max_size=40))
def test_it_keeps_the_greatest_epoch_and_number_of_open_patterns(steps: list[tuple[object, ...]]) -> None:
    known, twin = PatternCounter(), dict[bytes, dict[str, tuple[int, int]]]()
    for step in steps:
        match step:
            case ("open", bytes(pattern)):
                known.open(pattern)
                twin.setdefault(pattern, {})
            case ("close", bytes(pattern)):
                known.close(pattern)
                twin.pop(pattern, None)
            case (str(origin), bytes(pattern), (int(epoch), int(number))):
                known.saw(origin, ((pattern, epoch, number),))
                if pattern in twin:
                    twin[pattern][origin] = max(twin[pattern].get(origin, (0, 0)), (epoch, number))
    for pattern in (A, B):
        expected = sorted((origin, *count) for origin, count in twin.get(pattern, {}).items())
        assert sorted(known.counts(pattern)) == expected


def test_the_origin_that_was_silent_longest_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pattern_counter, "MAX_ORIGINS", 3)
    known = PatternCounter()
    known.open(A)
    for origin in ("x", "y", "z"):
        known.saw(origin, ((A, 1, 1),))
    known.saw("x", ((A, 1, 0),))
    known.saw("new", ((A, 1, 1),))
    assert [origin for origin, _, _ in known.counts(A)] == ["z", "x", "new"]


def test_patterns_that_are_not_in_the_table_cost_nothing() -> None:
    known = PatternCounter()
    for number in range(1_000):
        known.saw("x", ((number.to_bytes(8, "big"), 1, number),))
    assert known._by_pattern == {}
