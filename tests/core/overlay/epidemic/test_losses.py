"""What a subscriber's broker misses: against a twin made of sets, and against what was really published."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from breadth import examples
from tidings.core.events.subscription import Interest, make_interest
from tidings.core.overlay.epidemic import losses
from tidings.core.overlay.epidemic.losses import LossDetector, StreamKey, baseline_before
from tidings.core.overlay.epidemic.messages import PatternNumbers
from tidings.core.overlay.epidemic.numbering import PatternNumbering
from tidings.core.structures.range_set import RangeSet

GRACE, MAX_AGE = 3, 12
A, B = b"pattern-a", b"pattern-b"


def detector_of(
    max_lost: int = 1000,
    max_streams: int = 100,
    max_attempts: int = 3,
    blind: int = 64,
    max_age_ns: int = MAX_AGE,
) -> LossDetector:
    return LossDetector(
        grace_ns=GRACE,
        max_lost=max_lost,
        max_streams=max_streams,
        max_age_ns=max_age_ns,
        max_attempts=max_attempts,
        blind=blind,
    )


def numbers_of(due: Iterable[tuple[StreamKey, RangeSet]]) -> dict[StreamKey, list[int]]:
    return {key: [n for start, stop in ranges for n in range(start, stop)] for key, ranges in due}


def due_at(detector: LossDetector, now: int) -> dict[StreamKey, list[int]]:
    return numbers_of(detector.due(now).items())


class LossTwin:
    """The rules of `LossDetector` over sets of all numbers, and lists that are searched from end to end."""

    def __init__(self, max_lost: int, max_streams: int, max_attempts: int, blind: int) -> None:
        self.max_lost, self.max_streams = max_lost, max_streams
        self.max_attempts, self.blind = max_attempts, blind
        self.watched: set[bytes] = set()
        self.accounted: dict[StreamKey, set[int]] = {}
        """Of the streams that are followed, least recently heard of first."""
        self.heard: set[StreamKey] = set()
        self.lost: list[tuple[StreamKey, int, int]] = []
        """(stream, number, noticed at)"""
        self.attempts: Counter[tuple[StreamKey, int]] = Counter()
        self.given_up = self.unlisted = 0

    def newest(self, origin: str, pattern: bytes) -> StreamKey | None:
        followed = [key for key in self.accounted if key[:2] == (origin, pattern)]
        return max(followed, key=lambda key: key[2], default=None)

    def follow(self, key: StreamKey, baseline: int) -> None:
        if len(self.accounted) == self.max_streams:
            forgotten = next(iter(self.accounted))
            del self.accounted[forgotten]
            self.heard.discard(forgotten)
        self.accounted[key] = set(range(1, baseline + 1))

    def watch(self, pattern: bytes, baselines: Iterable[tuple[str, int, int]]) -> None:
        self.watched.add(pattern)
        for origin, epoch, number in baselines:
            key, newest = (origin, pattern, epoch), self.newest(origin, pattern)
            if newest is None or (newest not in self.heard and epoch > newest[2]):
                self.follow(key, number)
            elif newest == key and key not in self.heard:
                self.accounted[key] |= set(range(1, number + 1))

    def unwatch(self, pattern: bytes) -> None:
        self.watched.discard(pattern)
        self.accounted = {key: seen for key, seen in self.accounted.items() if key[1] != pattern}
        self.heard = {key for key in self.heard if key[1] != pattern}
        self.lost = [loss for loss in self.lost if loss[0][1] != pattern]

    def arrived(self, origin: str, numbers: PatternNumbers, now: int, count: int) -> None:
        """Events that come together, one by one."""
        for pattern, epoch, first in numbers:
            for number in range(first, first + count) if pattern in self.watched else ():
                key = (origin, pattern, epoch)
                self.lost = [loss for loss in self.lost if loss[:2] != (key, number)]
                self.attempts.pop((key, number), None)
                self.reached(key, number, range(1, number), now)

    def high_water(self, origin: str, numbers: PatternNumbers, now: int) -> None:
        for pattern, epoch, number in numbers:
            if pattern in self.watched:
                self.reached((origin, pattern, epoch), number, range(1, number + 1), now)

    def reached(self, key: StreamKey, number: int, expected: Iterable[int], now: int) -> None:
        newest = self.newest(*key[:2])
        if key not in self.accounted:
            if newest is not None and newest[2] > key[2]:
                return
            self.follow(key, 0 if number <= self.blind else number - 1)
        self.heard.add(key)
        seen = self.accounted[key] = self.accounted.pop(key)
        missing = sorted(set(expected) - seen)
        seen |= set(range(1, number + 1))
        self.unlisted += len(missing[: -self.max_lost])
        for each in missing[-self.max_lost :]:
            if all(loss[:2] != (key, each) for loss in self.lost):
                self.lost.append((key, each, now))
                self.attempts[key, each] = 0
        self.given_up += len(self.lost[: -self.max_lost])
        self.lost = self.lost[-self.max_lost :]

    def due(self, now: int) -> dict[StreamKey, list[int]]:
        due = [(key, number) for key, number, noticed_at in self.lost if now - noticed_at >= GRACE]
        return {key: sorted(n for other, n in due if other == key) for key, _ in due}

    def attempted(self, key: StreamKey, numbers: Iterable[int]) -> None:
        for number in numbers:
            self.attempts[key, number] += 1
        before = len(self.lost)
        self.lost = [loss for loss in self.lost if self.attempts[loss[:2]] <= self.max_attempts]
        self.given_up += before - len(self.lost)

    def expire(self, now: int) -> int:
        before = len(self.lost)
        self.lost = [loss for loss in self.lost if now - loss[2] <= MAX_AGE]
        self.given_up += before - len(self.lost)
        return before - len(self.lost)


patterns = st.sampled_from([A, B])
origins = st.sampled_from(["x", "y", "z"])
epochs = st.integers(1, 3)
counts = st.one_of(st.integers(0, 12), st.integers(0, 60))
numbered = st.lists(st.tuples(patterns, epochs, counts), max_size=2, unique_by=lambda entry: entry[0]).map(
    tuple
)
calls = st.one_of(
    st.tuples(st.just("watch"), patterns, st.lists(st.tuples(origins, epochs, counts), max_size=3)),
    st.tuples(st.just("arrived"), origins, st.tuples(numbered, st.just(1))),
    st.tuples(st.just("arrived"), origins, st.tuples(numbered, st.just(1))),
    st.tuples(st.just("arrived"), origins, st.tuples(numbered, st.integers(2, 9))),
    st.tuples(st.just("high_water"), origins, numbered),
    st.tuples(st.just("unwatch"), patterns, st.none()),
    st.tuples(st.just("attempted"), st.integers(0, 5), st.none()),
    st.tuples(st.just("expire"), st.none(), st.none()),
)
bounds = st.tuples(
    st.sampled_from([1, 5, 1000]),
    st.sampled_from([1, 3, 100]),
    st.integers(0, 2),
    st.sampled_from([0, 10, 64]),
)
Step = tuple[tuple[str, Any, Any], int]


def assert_like_the_twin(limits: tuple[int, int, int, int], history: list[Step]) -> None:
    detector, twin, now = detector_of(*limits), LossTwin(*limits), 0
    for (call, first, second), passed in [(("watch", A, []), 0), *history]:
        now += passed
        if call in ("watch", "unwatch"):
            arguments = (first,) if call == "unwatch" else (first, second)
            getattr(detector, call)(*arguments)
            getattr(twin, call)(*arguments)
        elif call == "arrived":
            numbers, count = second
            detector.arrived(first, numbers, now, count)
            twin.arrived(first, numbers, now, count)
        elif call == "high_water":
            detector.high_water(first, second, now)
            twin.high_water(first, second, now)
        elif call == "expire":
            assert detector.expire(now) == twin.expire(now)
        else:
            for key, ranges in list(detector.due(now).items())[:first]:
                detector.attempted(key, [(start, stop - 1) for start, stop in ranges], now)
                twin.attempted(key, [n for start, stop in ranges for n in range(start, stop)])
        assert list(due_at(detector, now).items()) == list(twin.due(now).items())
        assert due_at(detector, now + GRACE) == twin.due(now + GRACE)
        assert detector.lost == len(twin.lost)
        assert (detector.given_up, detector.unlisted) == (twin.given_up, twin.unlisted)


histories = st.lists(st.tuples(calls, st.integers(0, 4)), max_size=40)


@given(bounds, histories)
@settings(max_examples=examples(500))
def test_it_is_the_twin_with_sets(limits: tuple[int, int, int, int], history: list[Step]) -> None:
    assert_like_the_twin(limits, history)


# --- The truth: an origin numbers, a channel loses, a subscriber's broker knows what it misses.

INTERESTS = [make_interest((f"/{name}",), None) for name in "ab"]
FOREVER = 10**9


class Truth:
    """Two origins, a broker that subscribes, and all that was published since it did."""

    def __init__(self) -> None:
        self.detector = detector_of(max_attempts=FOREVER, blind=FOREVER, max_age_ns=FOREVER)
        self.origins = {"x": PatternNumbering(), "y": PatternNumbering()}
        self.late: list[tuple[str, PatternNumbers, int]] = []
        self.missing: dict[StreamKey, set[int]] = {}
        self.watched: set[bytes] = set()
        self.ended: list[tuple[StreamKey, int]] = []
        """Epochs that are over, and how far they were counted."""
        self.followed: set[StreamKey] = set()
        """Where the detector had a baseline, or heard of them before a later one."""
        self.now = 0
        for numbering in self.origins.values():
            for interest in INTERESTS:
                numbering.installed(interest, 0)

    def subscribe(self, interest: Interest) -> None:
        pattern = interest.key[:8]
        if pattern not in self.watched:
            current = [(name, numbering.current(interest)) for name, numbering in self.origins.items()]
            self.detector.watch(pattern, [(name, *count) for name, count in current if count is not None])
            self.watched.add(pattern)
            self.followed |= {(name, pattern, count[0]) for name, count in current if count is not None}

    def unsubscribe(self, interest: Interest) -> None:
        pattern = interest.key[:8]
        self.detector.unwatch(pattern)
        self.watched.discard(pattern)
        self.missing = {key: numbers for key, numbers in self.missing.items() if key[1] != pattern}
        self.followed = {key for key in self.followed if key[1] != pattern}

    def reinstall(self, origin: str, interest: Interest) -> None:
        """The tree to the origin was changed; what it counts from now on is a new stream."""
        numbering = self.origins[origin]
        count = numbering.current(interest)
        assert count is not None
        self.ended.append(((origin, interest.key[:8], count[0]), count[1]))
        numbering.removed(interest)
        numbering.installed(interest, self.now)

    def publish(self, origin: str, interests: list[Interest], fate: str, count: int) -> None:
        numbers = self.origins[origin].count(interests, count)
        for pattern, epoch, first in numbers:
            if pattern in self.watched:
                missing = self.missing.setdefault((origin, pattern, epoch), set())
                missing |= set(range(first, first + count))
        if fate in ("arrives", "twice"):
            self.arrive(origin, numbers, count)
        if fate in ("late", "twice"):
            self.late.append((origin, numbers, count))

    def arrive(self, origin: str, numbers: PatternNumbers, count: int) -> None:
        self.detector.arrived(origin, numbers, self.now, count)
        for pattern, epoch, first in numbers:
            self.hear((origin, pattern, epoch))
            missing = self.missing.get((origin, pattern, epoch), set())
            missing -= set(range(first, first + count))

    def hear(self, key: StreamKey) -> None:
        origin, pattern, epoch = key
        if pattern in self.watched and all(
            epoch >= other[2] for other in self.followed if other[:2] == (origin, pattern)
        ):
            self.followed.add(key)

    def tell(self, key: StreamKey, number: int) -> None:
        origin, pattern, epoch = key
        self.detector.high_water(origin, ((pattern, epoch, number),), self.now)
        self.hear(key)

    def check(self) -> None:
        """After the high-water messages all that is missing is known, and nothing else."""
        for origin, numbering in self.origins.items():
            for interest in INTERESTS:
                pattern, count = numbering.pattern_id(interest), numbering.current(interest)
                assert pattern is not None and count is not None
                self.tell((origin, pattern, count[0]), count[1])
        for key, number in self.ended:
            self.tell(key, number)
        due = due_at(self.detector, self.now + GRACE)
        assert due == {
            key: sorted(numbers) for key, numbers in self.missing.items() if numbers and key in self.followed
        }


interests = st.sampled_from(INTERESTS)
publications = st.tuples(
    st.just("publish"),
    st.sampled_from("xy"),
    st.lists(interests, min_size=1, unique=True),
    st.sampled_from(["arrives", "arrives", "twice", "late", "lost"]),
    st.sampled_from([1, 1, 1, 2, 7]),
)
truth_steps = st.one_of(
    publications,
    publications,
    st.tuples(st.just("late"), st.integers(0, 3)),
    st.tuples(st.just("subscribe"), interests),
    st.tuples(st.just("unsubscribe"), interests),
    st.tuples(st.just("reinstall"), st.sampled_from("xy"), interests),
    st.tuples(st.just("check")),
)
Story = list[tuple[str, *tuple[Any, ...]]]
stories = st.lists(truth_steps, max_size=40)


def assert_the_truth_is_known(story: Story) -> None:
    truth = Truth()
    for step, *arguments in [("subscribe", INTERESTS[0]), *story, ("check",)]:
        truth.now += 1
        if step != "late":
            getattr(truth, step)(*arguments)
        elif truth.late:
            truth.arrive(*truth.late.pop(arguments[0] % len(truth.late)))


@given(stories)
@settings(max_examples=examples(300))
def test_exactly_what_was_published_and_did_not_come_is_missed(story: Story) -> None:
    assert_the_truth_is_known(story)


# --- Planted bugs: each of the paper's gaps, opened again.


def keeps_what_nobody_wants(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gap 6: losses of a pattern outlive its last subscription."""
    unwatch = LossDetector.unwatch

    def leave(self: LossDetector, pattern: bytes) -> None:
        kept = self._lost.copy()
        unwatch(self, pattern)
        self._lost = kept

    monkeypatch.setattr(LossDetector, "unwatch", leave)


def misses_what_was_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gap 7: the first event seen is a loss of all before it, and baselines are not heeded."""
    monkeypatch.setattr(losses, "baseline_before", lambda number, blind: 0)
    watch = LossDetector.watch
    monkeypatch.setattr(LossDetector, "watch", lambda self, pattern, baselines: watch(self, pattern, ()))


def knows_no_epochs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gap 8: numbers that begin anew are taken for old ones."""
    account = LossDetector._account

    def account_in_one_epoch(self: LossDetector, key: StreamKey, high: int, last: int, now: int) -> None:
        stream = self._newest(*key[:2])
        account(self, key if stream is None else stream.key, high, last, now)

    monkeypatch.setattr(LossDetector, "_account", account_in_one_epoch)


def returns_to_old_epochs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gap 8, the other way: a late event of an ended epoch begins it again."""
    heard = LossDetector._heard

    def hear(self: LossDetector, key: StreamKey, number: int) -> object:
        origin, pattern, epoch = key
        newest = self._newest(origin, pattern)
        if newest is not None and newest.epoch > epoch and epoch not in self._watched[pattern][origin]:
            return self._follow(key, baseline_before(number, self._blind), heard=True)
        return heard(self, key, number)

    monkeypatch.setattr(LossDetector, "_heard", hear)


def leaves_ended_epochs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gap 8, once more: what was lost last before an origin crashed is missed by nobody."""
    heard = LossDetector._heard

    def hear(self: LossDetector, key: StreamKey, number: int) -> object:
        newest = self._newest(*key[:2])
        return None if newest is not None and newest.epoch > key[2] else heard(self, key, number)

    monkeypatch.setattr(LossDetector, "_heard", hear)


def ignores_the_tail(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gap 11."""
    monkeypatch.setattr(LossDetector, "high_water", lambda self, origin, numbers, now: None)


Plant = Callable[[pytest.MonkeyPatch], None]
planted = pytest.mark.parametrize(
    "plant",
    [
        keeps_what_nobody_wants,
        misses_what_was_before,
        knows_no_epochs,
        returns_to_old_epochs,
        leaves_ended_epochs,
        ignores_the_tail,
    ],
)
hunt = settings(max_examples=2000, deadline=None, database=None, derandomize=True, phases=[Phase.generate])


@pytest.mark.slow
@planted
def test_the_twin_finds_planted_bugs(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    with pytest.raises(AssertionError):
        hunt(given(bounds, histories)(assert_like_the_twin))()


@pytest.mark.slow
@planted
def test_the_truth_finds_planted_bugs(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    with pytest.raises(AssertionError):
        hunt(given(stories)(assert_the_truth_is_known))()


# --- Single rules


@pytest.mark.parametrize(
    ("number", "blind", "baseline"), [(0, 64, 0), (1, 0, 0), (1, 64, 0), (64, 64, 0), (65, 64, 64), (9, 0, 8)]
)
def test_where_an_unknown_stream_begins(number: int, blind: int, baseline: int) -> None:
    assert baseline_before(number, blind) == baseline


def test_a_gap_is_due_after_the_grace_and_settled_by_the_late_event() -> None:
    detector = detector_of()
    detector.watch(A, [("x", 1, 10)])
    detector.arrived("x", ((A, 1, 13),), 100)
    assert detector.due(100 + GRACE - 1) == {}
    assert due_at(detector, 100 + GRACE) == {("x", A, 1): [11, 12]}
    detector.arrived("x", ((A, 1, 11), (B, 1, 40)), 101)
    assert due_at(detector, 100 + GRACE) == {("x", A, 1): [12]}
    assert detector.lost == 1


def test_a_loss_of_an_ended_epoch_can_still_be_recovered() -> None:
    detector = detector_of()
    detector.watch(A, [("x", 1, 0)])
    detector.arrived("x", ((A, 1, 3),), 0)
    detector.arrived("x", ((A, 2, 2),), 1)
    assert due_at(detector, 10) == {("x", A, 1): [1, 2], ("x", A, 2): [1]}
    detector.arrived("x", ((A, 1, 2),), 2)
    assert due_at(detector, 10) == {("x", A, 1): [1], ("x", A, 2): [1]}


def test_what_was_lost_last_of_an_ended_epoch_is_missed() -> None:
    detector = detector_of()
    detector.watch(A, [("x", 1, 0)])
    detector.arrived("x", ((A, 3, 1),), 0)
    detector.high_water("x", ((A, 1, 2),), 1)
    assert due_at(detector, 10) == {("x", A, 1): [1, 2]}
    detector.high_water("x", ((A, 2, 4),), 2)
    assert due_at(detector, 10) == {("x", A, 1): [1, 2]}, "that one was over when it was first heard of"


def test_a_high_number_at_first_is_no_loss_but_a_high_water_is_itself_missing() -> None:
    detector = detector_of(blind=64)
    detector.watch(A, [])
    detector.arrived("x", ((A, 1, 1000),), 0)
    assert detector.lost == 0
    detector.high_water("y", ((A, 1, 1000),), 0)
    assert due_at(detector, GRACE) == {("y", A, 1): [1000]}


def test_asking_too_often_gives_up() -> None:
    detector = detector_of(max_attempts=2)
    detector.watch(A, [("x", 1, 0)])
    detector.high_water("x", ((A, 1, 3),), 0)
    for _ in range(2):
        detector.attempted(("x", A, 1), [(1, 1), (3, 3)], 5)
    assert due_at(detector, 5) == {("x", A, 1): [1, 2, 3]}
    detector.attempted(("x", A, 1), [(1, 2)], 5)
    assert due_at(detector, 5) == {("x", A, 1): [2, 3]}
    assert (detector.lost, detector.given_up) == (2, 1)


@pytest.mark.parametrize("hear", ["arrived", "high_water"])
def test_an_absurd_jump_costs_what_can_be_listed(hear: str) -> None:
    detector, end = detector_of(max_lost=5), 2**63 - 1
    detector.watch(A, [("x", 1, 0), ("y", 1, 0)])
    detector.high_water("y", ((A, 1, 2),), 0)
    getattr(detector, hear)("x", ((A, 1, end),), 0)
    last = end if hear == "high_water" else end - 1
    assert due_at(detector, GRACE) == {("x", A, 1): list(range(last - 4, last + 1))}
    assert (detector.lost, detector.given_up, detector.unlisted) == (5, 2, last - 5)


def test_the_stream_that_is_silent_longest_is_forgotten() -> None:
    detector = detector_of(max_streams=2, blind=0)
    detector.watch(A, [("x", 1, 5), ("y", 1, 5)])
    detector.arrived("x", ((A, 1, 6),), 0)
    detector.arrived("z", ((A, 1, 6),), 0)
    detector.arrived("y", ((A, 1, 9),), 0)
    assert detector.lost == 0, "y was forgotten, so that its number is the first that is heard"
    detector.arrived("z", ((A, 1, 8),), 0)
    assert due_at(detector, GRACE) == {("z", A, 1): [7]}


@pytest.mark.parametrize("bad", [{"max_lost": 0}, {"max_streams": 0}])
def test_bounds_must_be_positive(bad: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="must be positive"):
        detector_of(**bad)
