"""The range map against a dictionary of single numbers."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tidings.core.structures.range_map import RangeMap

NUMBERS = st.integers(1, 40)
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["add", "add_all", "take", "pop", "cut", "overlapping", "free", "from_on", "get"]),
        NUMBERS,
        st.integers(-1, 12),
    ),
    max_size=60,
)


def spread(pieces: list[tuple[int, int, str]]) -> dict[int, str]:
    """Number by number; ascending and apart, or this fails."""
    found: dict[int, str] = {}
    for first, last, value in pieces:
        assert first <= last
        assert not found or first > max(found)
        found |= dict.fromkeys(range(first, last + 1), value)
    return found


@given(STEPS)
def test_like_a_dictionary_of_numbers(steps: list[tuple[str, int, int]]) -> None:
    ranges: RangeMap[str] = RangeMap()
    twin: dict[int, str] = {}
    for serial, (what, first, length) in enumerate(steps):
        last = first + length
        within = {number: value for number, value in sorted(twin.items()) if first <= number <= last}
        match what:
            case "add" if not within and length >= 0:
                ranges.add(first, last, f"v{serial}")
                twin |= dict.fromkeys(range(first, last + 1), f"v{serial}")
            case "add_all":
                pieces = [
                    (number, number, f"v{serial}")
                    for number in range(first, last + 1)
                    if number not in within
                ]
                ranges.add_all(pieces)
                twin |= spread(pieces)
            case "take":
                assert spread(ranges.take(first, last)) == within
                for number in within:
                    del twin[number]
            case "pop":
                whole = [value for begin, end, value in ranges if (begin, end) == (first, last)]
                assert ranges.pop(first, last) == (whole[0] if whole else None)
                for number in within if whole else ():
                    del twin[number]
            case "overlapping":
                assert spread(ranges.overlapping(first, last)) == within
            case "free":
                free = spread([(begin, end, "") for begin, end in ranges.free(first, last)])
                assert list(free) == [number for number in range(first, last + 1) if number not in within]
            case "from_on":
                found = ranges.from_on(first)
                assert (None if found is None else found[0]) == min(
                    (n for n in twin if n >= first), default=None
                )
                assert found is None or ranges.from_on(found[1]) == (found[1], found[1])
            case "cut":
                ranges.cut(first)
                assert all(not start < first <= end for start, end, _ in ranges)
            case "get":
                assert ranges.get(first) == twin.get(first)
        assert spread(list(ranges)) == dict(sorted(twin.items()))
        assert (ranges.first is None) == (not twin)
        assert ranges.first is None or ranges.first[0] == min(twin)


def test_what_is_taken_from_the_front_takes_no_room() -> None:
    ranges: RangeMap[int] = RangeMap()
    for number in range(10_000):
        ranges.add(number, number, number)
        if number >= 10:
            assert ranges.take(number - 10, number - 10) == [(number - 10, number - 10, number - 10)]
    assert len(ranges) == 10
    assert len(ranges._starts) < 1_000
