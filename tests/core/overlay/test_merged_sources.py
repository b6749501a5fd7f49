"""What a share that has moved gets by two ways: each event once, each source in order, however the two interleave."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st

from tidings.core.client.arrivals import Arrivals
from tidings.core.events.event import make_publication
from tidings.core.events.run import Stretch
from tidings.core.overlay.guaranteed.merged_sources import MergedSources, SourceId

EVENTS = 12


class Taken:
    """A sink that is full now and then."""

    def __init__(self) -> None:
        self.sequences: dict[SourceId, list[int]] = {}
        self.is_full = False

    def highest(self, source: SourceId) -> int:
        return self.sequences.get(source, [0])[-1]

    def take(self, stretch: Stretch, done: Callable[[], None]) -> bool:
        if self.is_full:
            return False
        source = (stretch.source, stretch.incarnation)
        fresh = [each for each in range(stretch.first, stretch.last + 1) if each > self.highest(source)]
        self.sequences.setdefault(source, []).extend(fresh)
        done()
        return True


class Merging:
    """One source, and what is taken of it."""

    def __init__(self, *, may_conclude: bool = True) -> None:
        self.sink = Taken()
        self.noted: list[SourceId] = []
        self.arrivals = Arrivals(lambda: None)
        self.merged = MergedSources(
            self.sink,
            (),
            lambda: may_conclude,
            lambda source, forgotten: self.noted.append(source) is None,
        )

    def own(self, sequence: int) -> None:
        event = make_publication("p", 0, sequence, "/t", {}, b"", 1)
        notice = self.arrivals.arrive(sequence, 1)
        self.merged.arrived(event, notice)
        notice.close()

    def forward(self, sequence: int, done: Callable[[], None] = lambda: None) -> None:
        self.merged.forwarded(make_publication("p", 0, sequence, "/t", {}, b"", 1), done)

    @property
    def taken(self) -> list[int]:
        return self.sink.sequences.get(("p", 0), [])

    @property
    def undone(self) -> int:
        """How many notifications are not done."""
        _, done = self.arrivals.news() or (0, ())
        self.done = getattr(self, "done", 0) + sum(last - first + 1 for first, last in done)
        return self.arrivals.count - self.done


@given(st.integers(2, EVENTS), st.lists(st.sampled_from("ofF"), max_size=60))
def test_each_event_is_taken_once_and_in_order(own_from: int, script: list[str]) -> None:
    merging = Merging()
    own, forwarded = iter(range(own_from, EVENTS + 1)), iter(range(1, EVENTS + 1))
    for step in [*script, "f", *"o" * EVENTS, *"f" * EVENTS]:
        merging.sink.is_full = step == "F"
        if step == "o" and (sequence := next(own, None)) is not None:
            merging.own(sequence)
        elif step == "f" and (sequence := next(forwarded, None)) is not None:
            merging.forward(sequence)
        assert merging.taken == list(range(1, len(merging.taken) + 1))
    merging.merged.go_on()
    assert merging.taken == list(range(1, EVENTS + 1))
    assert merging.undone == 0 and merging.merged.held_count == 0


def test_once_complete_a_source_needs_its_former_home_no_more() -> None:
    merging = Merging()
    merging.own(4)
    assert merging.taken == []
    merging.forward(3)
    merging.forward(4)
    assert merging.taken == [3, 4]
    merging.own(5)
    assert merging.taken == [3, 4, 5] and merging.noted == [("p", 0)]


def test_a_source_is_not_complete_before_everybody_knows_the_subscription() -> None:
    merging = Merging(may_conclude=False)
    merging.forward(1)
    merging.own(1)
    merging.own(2)
    assert merging.taken == [1] and not merging.noted
    merging.forward(2)
    assert merging.taken == [1, 2] and merging.undone == 0


def test_a_source_that_begins_is_complete_at_once() -> None:
    merging = Merging()
    merging.own(1)
    assert merging.taken == [1]


def test_nothing_forwarded_is_answered_before_there_is_room() -> None:
    merging = Merging()
    answered: list[int] = []
    merging.sink.is_full = True
    merging.forward(1, lambda: answered.append(1))
    assert not answered
    merging.sink.is_full = False
    merging.merged.go_on()
    assert answered == [1]


def test_without_a_former_home_everything_is_taken() -> None:
    merging = Merging()
    merging.own(7)
    merging.merged.go_alone()
    assert merging.taken == [7] and merging.merged.is_over
