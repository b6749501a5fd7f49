"""The cache of events against a list of them that is searched from end to end.

Events that come together are in it as one, and are found one by one; of what is found, only what is in it counts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import groupby
from random import Random
from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from breadth import examples
from tidings.core.events.event import make_publication
from tidings.core.events.run import RunMaker, singles
from tidings.core.overlay.epidemic import cache as cache_module
from tidings.core.overlay.epidemic.cache import Cached, EventCache
from tidings.core.overlay.epidemic.messages import PatternNumbers, later
from tidings.core.overlay.epidemic.settings import CachePolicy
from tidings.core.structures.range_set import RangeSet

A, B, C = b"pattern-a", b"pattern-b", b"pattern-c"
ABSURD = 2**63 - 1
SMALL_BYTES = make_publication("s", 0, 0, "/t", {}, b"", 0).size_bytes


def entry_of(
    source: str = "s",
    incarnation: int = 0,
    sequence: int = 0,
    numbers: PatternNumbers = (),
    *,
    origin: str = "o",
    own: bool = True,
    payload_bytes: int = 0,
    count: int = 1,
) -> Cached:
    maker = RunMaker(source, incarnation)
    for each in range(sequence, sequence + count):
        maker.add(each, "/t", {}, b"x" * payload_bytes, 0)
    (stretch,) = maker.take_all()
    return Cached(stretch, origin, numbers, (), own)


Seen = tuple[tuple[str, int, int], PatternNumbers, bytes]
"""Identity, numbers and bytes of an event."""


def seen(entries: Iterable[Cached]) -> list[Seen]:
    """Their events, one by one."""
    return [
        ((one.source, one.incarnation, one.sequence), later(entry.numbers, place), bytes(one.raw))
        for entry in entries
        for place, one in enumerate(singles(entry.stretch))
    ]


class CacheTwin:
    """A list, the oldest first."""

    def __init__(self, max_events: int, max_bytes: int, policy: CachePolicy) -> None:
        self.max_events, self.max_bytes, self.policy = max_events, max_bytes, policy
        self.entries: list[Cached] = []
        self.evicted = 0

    @property
    def size_bytes(self) -> int:
        return sum(entry.stretch.size_bytes for entry in self.entries)

    @property
    def count(self) -> int:
        return sum(entry.stretch.count for entry in self.entries)

    @property
    def overfull(self) -> bool:
        return self.count > self.max_events or self.size_bytes > self.max_bytes

    def add(self, entry: Cached, cache: EventCache) -> None:
        """What leaves at random is taken from the cache, once it is clear that it may leave."""
        known = {identity for identity, _, _ in seen(self.entries)}
        absent = [identity[2] for identity, _, _ in seen([entry]) if identity not in known]
        for _, group in groupby(enumerate(absent), key=lambda item: item[1] - item[0]):
            sequences = [sequence for _, sequence in group]
            part = entry.cut(sequences[0], sequences[-1])
            fits = len(sequences) <= self.max_events and part.stretch.size_bytes <= self.max_bytes
            for piece in [part] if fits else [part.cut(sequence, sequence) for sequence in sequences]:
                self.add_piece(piece, cache)

    def add_piece(self, entry: Cached, cache: EventCache) -> None:
        if entry.stretch.size_bytes <= self.max_bytes:
            self.entries.append(entry)
        if self.policy == "random":
            self.follow(cache)
        while self.overfull:
            self.leave(self.first_to_leave())

    def first_to_leave(self) -> Cached:
        foreign = [entry for entry in self.entries if not entry.own]
        return (foreign if foreign and self.policy == "foreign-first" else self.entries)[0]

    def follow(self, cache: EventCache) -> None:
        gone = [entry for entry in self.entries if cache.get(*entry.identity) is not entry]
        while gone:
            assert self.overfull, "nothing leaves without need"
            quarter = self.entries[: max(1, len(self.entries) // 4)]
            # Who may leave still may when others have left, so the order is ours to choose: the largest last,
            # since without it the cache need not have been overfull.
            may_leave = [entry for entry in gone if any(entry is other for other in quarter)]
            assert may_leave, "only the oldest quarter leaves"
            leaving = min(may_leave, key=lambda entry: entry.stretch.size_bytes)
            gone = [entry for entry in gone if entry is not leaving]
            self.leave(leaving)
        assert not self.overfull

    def leave(self, leaving: Cached) -> None:
        self.entries = [entry for entry in self.entries if entry is not leaving]
        self.evicted += leaving.stretch.count

    def numbered(self, origin: str, pattern: bytes, epoch: int) -> dict[int, Seen]:
        return {
            number: event
            for entry in self.entries
            for event in seen([entry])
            for listed, when, number in event[1]
            if (entry.origin, listed, when) == (origin, pattern, epoch)
        }

    def ids(self, pattern: bytes | None) -> dict[tuple[str, int], RangeSet]:
        found: dict[tuple[str, int], RangeSet] = {}
        for entry in self.entries:
            if pattern is None or any(listed == pattern for listed, _, _ in entry.numbers):
                for (source, incarnation, sequence), _, _ in seen([entry]):
                    found.setdefault((source, incarnation), RangeSet()).add(sequence)
        return found


# Numbers follow from the identity, as an origin gives them: no two events have the same.
identities = st.tuples(st.sampled_from("st"), st.integers(0, 1), st.integers(0, 12))
listings = st.lists(st.tuples(st.sampled_from([A, B]), st.integers(1, 2)), max_size=3, unique=True)
additions = st.tuples(
    identities, listings, st.booleans(), st.sampled_from([0, 0, 0, 40, 300]), st.sampled_from([1, 1, 2, 5])
)
limits = st.tuples(st.integers(0, 12), st.sampled_from([SMALL_BYTES, 200, 500, 10_000]))
policies: st.SearchStrategy[CachePolicy] = st.sampled_from(["fifo", "foreign-first", "random"])
windows = st.tuples(st.integers(-2, 40), st.one_of(st.integers(-2, 40), st.just(ABSURD)))
Addition = tuple[tuple[str, int, int], list[tuple[bytes, int]], bool, int, int]


def made(addition: Addition, policy: CachePolicy) -> Cached:
    (source, incarnation, sequence), listing, own, payload_bytes, count = addition
    number = sequence + 20 * incarnation
    numbers = tuple((pattern, epoch, number) for pattern, epoch in listing)
    if policy == "random":  # what leaves in between of several that are added is not known afterwards
        count = 1
    how: dict[str, Any] = {"own": own, "payload_bytes": payload_bytes, "count": count}
    return entry_of(source, incarnation, sequence, numbers, origin=f"o{source}", **how)


def assert_like_the_twin(
    limit: tuple[int, int], policy: CachePolicy, added: list[Addition], window: tuple[int, int]
) -> None:
    cache, twin = EventCache(*limit, policy, Random(1)), CacheTwin(*limit, policy)
    for addition in added:
        entry = made(addition, policy)
        cache.add(entry)
        twin.add(entry, cache)
        assert (len(cache), cache.size_bytes, cache.evicted) == (
            twin.count,
            twin.size_bytes,
            twin.evicted,
        )
        for pattern in (None, A, B, C):
            assert cache.ids(pattern) == twin.ids(pattern)
        assert sorted(cache.patterns()) == [pattern for pattern in (A, B) if twin.ids(pattern)]
        for source in ("s", "t"):
            assert_same_lookups(cache, twin, source, window)


def assert_same_lookups(cache: EventCache, twin: CacheTwin, source: str, window: tuple[int, int]) -> None:
    first, last = window
    for incarnation in (0, 1):
        held = {event[0]: event for event in seen(twin.entries)}
        for sequence in range(18):
            assert_found(cache.get(source, incarnation, sequence), held.get((source, incarnation, sequence)))
        expected = [held[key] for key in sorted(held) if key[:2] == (source, incarnation)]
        assert seen(cache.id_range(source, incarnation, first, last)) == [
            event for event in expected if first <= event[0][2] <= last
        ]
    for pattern, epoch in ((A, 1), (A, 2), (B, 1), (C, 1)):
        numbered = twin.numbered(f"o{source}", pattern, epoch)
        for number in range(-1, 40):
            assert_found(cache.find(f"o{source}", pattern, epoch, number), numbered.get(number))
        assert seen(cache.find_range(f"o{source}", pattern, epoch, first, last)) == [
            numbered[number] for number in sorted(numbered) if first <= number <= last
        ]


def assert_found(entry: Cached | None, event: Seen | None) -> None:
    assert seen([entry] if entry is not None else []) == ([event] if event is not None else [])


@given(limits, policies, st.lists(additions, max_size=30), windows)
@settings(max_examples=examples(300))
def test_it_is_a_list_of_events(
    limit: tuple[int, int], policy: CachePolicy, added: list[Addition], window: tuple[int, int]
) -> None:
    assert_like_the_twin(limit, policy, added, window)


def forgets_no_index(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(EventCache, "_unnumber", lambda *arguments: None)


def leaves_from_anywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """At random, but of all events."""

    def next_of_all(self: Any) -> Cached:
        self._oldest.extend(self._others)
        self._others.clear()
        return self._oldest.pop(self._random.randrange(len(self._oldest)))  # type: ignore[no-any-return]

    monkeypatch.setattr(cache_module._OldestQuarter, "next", next_of_all)


def takes_own_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        cache_module._ForeignFirst, "next", lambda self: (self._own or self._foreign).popleft()
    )


def numbers_all_as_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of what is cut out of a stretch."""
    monkeypatch.setattr(cache_module, "later", lambda numbers, count: numbers)


def hands_out_what_came_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where some of it is looked for."""

    def all_of_it(
        self: EventCache, origin: str, pattern: bytes, epoch: int, first: int, last: int
    ) -> Iterator[Cached]:
        numbered = self._numbered.get((origin, pattern, epoch))
        return iter([] if numbered is None else [each[0] for _, _, each in numbered.overlapping(first, last)])

    monkeypatch.setattr(EventCache, "find_range", all_of_it)


PLANTED = [
    forgets_no_index,
    leaves_from_anywhere,
    takes_own_first,
    numbers_all_as_the_first,
    hands_out_what_came_together,
]


@pytest.mark.parametrize("plant", PLANTED)
def test_the_twin_finds_planted_bugs(plant: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    hunt = settings(
        max_examples=1000, deadline=None, database=None, derandomize=True, phases=[Phase.generate]
    )
    with pytest.raises(AssertionError):
        hunt(given(limits, policies, st.lists(additions, max_size=30), windows)(assert_like_the_twin))()


def test_a_foreign_event_does_not_displace_an_own_one() -> None:
    cache = EventCache(2, 10_000, "foreign-first", Random(1))
    for sequence, own in enumerate((True, False, True, False)):
        cache.add(entry_of(sequence=sequence, own=own))
    assert cache.ids() == {("s", 0): RangeSet([(0, 1), (2, 3)])}
    cache.add(entry_of(sequence=4))
    assert cache.ids() == {("s", 0): RangeSet([(2, 3), (4, 5)])}
    assert cache.evicted == 3


def test_of_the_oldest_quarter_all_are_as_likely_to_leave() -> None:
    """Two caches that saw the same keep different events; here, 4,000 of them."""
    entries = [entry_of(sequence=sequence) for sequence in range(17)]
    gone: Counter[int] = Counter()
    random = Random(7)
    for _ in range(4_000):
        cache = EventCache(16, 10_000, "random", random)
        for entry in entries:
            cache.add(entry)
        gone.update(sequence for sequence in range(17) if cache.get("s", 0, sequence) is None)
    assert sorted(gone) == [0, 1, 2, 3]
    assert all(850 < times < 1150 for times in gone.values())


def test_an_event_larger_than_the_cache_is_not_kept_and_displaces_nothing() -> None:
    cache = EventCache(10, 100, "fifo", Random(1))
    cache.add(entry_of(sequence=1))
    cache.add(entry_of(sequence=2, payload_bytes=100))
    assert (len(cache), cache.evicted, cache.size_bytes) == (1, 0, SMALL_BYTES)


def test_the_first_of_two_events_that_claim_one_number_is_found() -> None:
    """Only a broken origin numbers so; both can be found by their identities and leave without a trace."""
    first = entry_of("s", 0, 1, ((A, 1, 5), (A, 1, 5), (A, 2, 5)))
    second = entry_of("t", 0, 1, ((A, 1, 5),))
    cache = EventCache(2, 10_000, "fifo", Random(1))
    cache.add(first)
    cache.add(second)
    assert list(cache.find_range("o", A, 1, 0, ABSURD)) == [first]
    assert cache.ids(A) == {("s", 0): RangeSet([(1, 2)]), ("t", 0): RangeSet([(1, 2)])}
    for sequence in (2, 3):
        cache.add(entry_of("s", 0, sequence))
    assert (cache.find("o", A, 1, 5), cache.ids(A), list(cache.patterns())) == (None, {}, [])


def test_an_unknown_policy_is_refused() -> None:
    with pytest.raises(ValueError, match="unknown cache policy 'newest'"):
        EventCache(1, 1, "newest", Random(1))  # type: ignore[arg-type]
