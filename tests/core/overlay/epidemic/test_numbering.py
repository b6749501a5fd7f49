"""Numbers, epochs and names of patterns at the origin, against a twin that keeps every event it ever numbered."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from breadth import examples
from tidings.core.events.subscription import Interest, make_interest
from tidings.core.overlay.epidemic import numbering as numbering_module
from tidings.core.overlay.epidemic.messages import MAX_NUMBERS
from tidings.core.overlay.epidemic.numbering import PatternNumbering


def interest_with_key(key: bytes) -> Interest:
    """An interest whose hash came out as wished."""
    made = make_interest((f"/{key.hex()}",), None)
    interest = Interest(made.topics, made.pattern)
    interest.__dict__["key"] = key
    return interest


INTERESTS = [interest_with_key(b"shared--" + end) for end in (b"first---", b"second--", b"third---")] + [
    interest_with_key(start + b"another-") for start in (b"alone---", b"lonely--")
]


class NumberingTwin:
    """Knows what is installed, and every epoch and (name, epoch, number) that there ever was."""

    def __init__(self) -> None:
        self.installed: dict[Interest, int] = {}
        """Interest -> events since its name changed."""
        self.epochs: list[int] = []
        self.given: set[tuple[bytes, int, int]] = set()

    def name(self, interest: Interest) -> bytes | None:
        if interest not in self.installed:
            return None
        short = interest.key[:8]
        return short if sum(other.key[:8] == short for other in self.installed) == 1 else interest.key

    def change(self, interest: Interest, *, install: bool) -> list[Interest]:
        """Returns those that count from 0 again: their names are new."""
        names = {each: self.name(each) for each in self.installed}
        if install:
            self.installed.setdefault(interest, 0)
        else:
            self.installed.pop(interest, None)
        renamed = [each for each in self.installed if names.get(each) != self.name(each)]
        self.installed |= dict.fromkeys(renamed, 0)
        return renamed


steps = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["install", "remove"]), st.sampled_from(INTERESTS), st.integers(0, 3)),
        st.tuples(st.just("count"), st.lists(st.sampled_from(INTERESTS), max_size=6), st.integers(0, 3)),
    ),
    max_size=40,
)


@given(steps)
@settings(max_examples=examples(300))
def test_numbers_are_the_events_since_the_name_began(history: list[tuple[str, object, int]]) -> None:
    numbering, twin, now = PatternNumbering(), NumberingTwin(), 0
    for step, what, passed in history:
        now += passed
        if isinstance(what, Interest):
            before = {each: numbering.current(each) for each in INTERESTS}
            names = {each: numbering.pattern_id(each) for each in INTERESTS}
            told = numbering.installed(what, now) if step == "install" else numbering.removed(what)
            renamed = twin.change(what, install=step == "install")
            assert told == [(each, names[each]) for each in renamed if names[each] is not None]
            for each in twin.installed:
                epoch, _ = current = current_of(numbering, each)
                if each in renamed:
                    assert all(epoch > earlier for earlier in twin.epochs)
                    assert step == "remove" or epoch >= now
                else:
                    assert current == before[each]
            twin.epochs += [current_of(numbering, each)[0] for each in renamed]
        elif isinstance(what, list):
            numbers = numbering.count(what)
            counted = [each for each in INTERESTS if each in what and each in twin.installed]
            for each in counted:
                twin.installed[each] += 1
            assert sorted(numbers) == sorted(
                (twin.name(each), current_of(numbering, each)[0], twin.installed[each]) for each in counted
            )
            assert not twin.given & set(numbers), "a number is given out once"
            twin.given |= set(numbers)
        assert_state(numbering, twin)


def current_of(numbering: PatternNumbering, interest: Interest) -> tuple[int, int]:
    current = numbering.current(interest)
    assert current is not None
    return current


def assert_state(numbering: PatternNumbering, twin: NumberingTwin) -> None:
    for each in INTERESTS:
        name, current = twin.name(each), numbering.current(each)
        assert numbering.pattern_id(each) == name
        assert (None if current is None else current[1]) == twin.installed.get(each)
        assert numbering.interest(each.key) == (each if each in twin.installed else None)
        sharing = [other for other in twin.installed if other.key[:8] == each.key[:8]]
        assert numbering.interest(each.key[:8]) == (sharing[0] if len(sharing) == 1 else None)
    assert len({current_of(numbering, each)[0] for each in twin.installed}) == len(twin.installed)


def test_a_pattern_that_comes_back_has_a_later_epoch_though_the_clock_stands_still() -> None:
    numbering, interest = PatternNumbering(), make_interest(("/a",), None)
    numbering.installed(interest, 100)
    assert numbering.count([interest]) == ((interest.key[:8], 100, 1),)
    numbering.removed(interest)
    assert numbering.current(interest) is None
    assert numbering.count([interest]) == ()
    numbering.installed(interest, 100)
    assert numbering.count([interest]) == ((interest.key[:8], 101, 1),)


def test_a_clash_widens_both_names_and_neither_goes_on_with_its_old_numbers() -> None:
    first, second = INTERESTS[:2]
    numbering = PatternNumbering()
    numbering.installed(first, 10)
    numbering.count([first])
    numbering.installed(second, 20)
    numbers = numbering.count([second, first])
    assert sorted((pattern, number) for pattern, _, number in numbers) == [(first.key, 1), (second.key, 1)]
    assert all(epoch >= 20 for _, epoch, _ in numbers)
    numbering.removed(second)
    ((pattern, epoch, number),) = numbering.count([first])
    assert (pattern, number) == (first.key[:8], 1)
    assert epoch > max(earlier for _, earlier, _ in numbers)


MANY = [make_interest((f"/many/{number}",), None) for number in range(MAX_NUMBERS + 10)]


def assert_the_listed_stay_listed(order: list[int]) -> None:
    """Events match everything that is installed so far; `order` says who is installed when."""
    numbering, followed = PatternNumbering(), dict[bytes, int]()
    for now, place in enumerate(order):
        numbering.installed(MANY[place], now)
        numbers = {pattern: number for pattern, _, number in numbering.count(MANY)}
        assert len(numbers) == min(now + 1, MAX_NUMBERS)
        assert set(followed) <= set(numbers), "a pattern that was listed is listed"
        assert all(numbers[pattern] == number + 1 for pattern, number in followed.items()), "without a gap"
        followed = numbers
    assert numbering.unlisted == sum(range(1, len(order) - MAX_NUMBERS + 1))
    for interest in MANY:
        _, number = current_of(numbering, interest)
        assert number == followed.get(interest.key[:8], 0), "what is not listed is not counted"


@given(st.permutations(range(len(MANY))))
@settings(max_examples=examples(20))
def test_of_too_many_patterns_those_once_listed_stay_listed(order: list[int]) -> None:
    assert_the_listed_stay_listed(order)


def test_listing_the_lowest_ids_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(numbering_module, "_precedence", lambda count: count.pattern)
    with pytest.raises(AssertionError, match="is listed"):
        assert_the_listed_stay_listed(list(range(len(MANY))))


def test_a_pattern_listed_before_older_ones_keeps_its_place() -> None:
    numbering = PatternNumbering()
    for now, interest in enumerate(MANY):
        numbering.installed(interest, now)
    last = MANY[-1]
    assert numbering.count([last])[0][2] == 1
    assert (last.key[:8], len(MANY) - 1, 2) in numbering.count(MANY)


def test_the_numbers_do_not_depend_on_the_order_of_the_interests() -> None:
    forwards, backwards = PatternNumbering(), PatternNumbering()
    for now, interest in enumerate(MANY):
        forwards.installed(interest, now)
        backwards.installed(interest, now)
    assert forwards.count(MANY) == backwards.count(MANY[::-1])
    assert forwards.count(MANY[5:]) == backwards.count(MANY[:4:-1] * 2)
