"""A subscriber that is given runs shows, releases and passes over what one does that is given number by number."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from recording_port import RecordingPort
from tidings.core.events.timestamp import Timestamp
from tidings.core.ordering.messages import WalkDone
from tidings.core.ordering.stamps import Chain
from tidings.core.ordering.subscriber import OrderedEvent, OrderedSubscriber, Patience
from tidings.core.structures.range_map import RangeMap

TOPICS = 3
SECOND = 1_000_000_000
Piece = tuple[Timestamp, int, bool]
"""A stamp, how many numbers from it on, and whether they are no-ops."""


class Watched:
    """One subscriber, and what becomes of each number, in order."""

    def __init__(self, patience: Patience | None) -> None:
        self.seen: list[tuple[str, int, int]] = []
        self.port: Any = RecordingPort("s")
        self.port.emit = self._on_fact
        self.part = OrderedSubscriber(
            self.port,
            Chain(["m"], [0], TOPICS),
            threshold=2 if patience is None else 1,
            patience=patience,
            releases=self,
        )

    def _on_fact(self, fact: object) -> None:
        if isinstance(fact, OrderedEvent):
            assert fact.event == fact.stamp.topic
            self._note(
                "late" if fact.out_of_order else "shown", fact.stamp.topic, fact.stamp.number, fact.count
            )

    def pass_over(self, stamp: Timestamp, token: object, count: int) -> None:
        self._note("passed", stamp.topic, stamp.number, count)

    def drop(self, event: object, number: int, count: int) -> None:
        assert isinstance(event, int)
        self._note("dropped", event, number, count)

    def _note(self, what: str, topic: int, number: int, count: int) -> None:
        assert count > 0
        self.seen += [(what, topic, number + offset) for offset in range(count)]

    def receive(self, stamp: Timestamp, count: int, is_no_op: bool) -> None:
        if is_no_op:
            self.part.receive_no_op(stamp, stamp.topic, count)
        else:
            self.part.receive(stamp, stamp.topic, count)

    def answer(self, clocks: list[int]) -> None:
        """The walk under way, if there is one, is done."""
        if self.part._current is not None:
            request = self.part._current[1]
            index = tuple(sorted((*request.topics, *request.ghosts)))
            values = tuple(clocks[rank] for rank in index)
            self.part.on_walk_done("m", WalkDone(("s", 0), request.version, index, values))

    def pass_time(self) -> None:
        self.port.now += SECOND
        for name in [name for name, at in self.port.timers.items() if at <= self.port.now]:
            del self.port.timers[name]
            self.part.on_timer(name)


def in_order(seen: list[tuple[str, int, int]]) -> list[tuple[str, int, int]]:
    return [one for one in seen if one[0] != "dropped"]


def pieces_of(data: st.DataObject) -> list[Piece]:
    """Runs of one sequence of events, each naming some of the others' clocks; cut somewhere, shuffled, some twice."""
    clocks = [0] * TOPICS
    made: list[Piece] = []
    for topic in data.draw(st.lists(st.integers(0, TOPICS - 1), min_size=1, max_size=8)):
        index = tuple(sorted(data.draw(st.sets(st.integers(0, TOPICS - 1))) - {topic}))
        stamp = Timestamp(topic, clocks[topic] + 1, index, tuple(clocks[rank] for rank in index))
        count = data.draw(st.integers(1, 5))
        clocks[topic] += count
        cut = data.draw(st.integers(0, count - 1))
        parts = [(stamp, cut), (stamp.at(stamp.number + cut), count - cut)] if cut else [(stamp, count)]
        made += [(first, length, data.draw(st.integers(0, 5)) == 0) for first, length in parts]
        if data.draw(st.booleans()):  # all of it again, as a whole, or as what it is not
            made.append((stamp, count, data.draw(st.booleans())))
    return data.draw(st.permutations(made))


def compare(data: st.DataObject, patience: Patience | None) -> None:
    ranges, singles = Watched(patience), Watched(patience)
    both = (ranges, singles)
    for watched in both:
        watched.part.subscribe(0, 1)
        watched.answer([0] * TOPICS)
    clocks = [data.draw(st.integers(0, 4)) for _ in range(TOPICS)]
    for stamp, count, is_no_op in pieces_of(data):
        step = data.draw(st.integers(0, 9))
        for watched in both:
            if step == 0 and watched.part.settled:
                joined = 2 in watched.part.wanted
                watched.part.change(() if joined else (2,), (2,) if joined else ())
            elif step == 1:
                watched.answer(clocks)
            elif step == 2 and patience is not None:
                watched.pass_time()
        ranges.receive(stamp, count, is_no_op)
        for offset in range(count):
            singles.receive(stamp.at(stamp.number + offset), 1, is_no_op)
        assert in_order(ranges.seen) == in_order(singles.seen)
        assert sorted(ranges.seen) == sorted(singles.seen)
        assert ranges.part.clock == singles.part.clock
        assert ranges.part.buffered == singles.part.buffered
        assert ranges.part.waits_for() == singles.part.waits_for()
    for watched in both:
        watched.part.drop_all()
    assert sorted(ranges.seen) == sorted(singles.seen)


@settings(max_examples=120, deadline=None)
@given(st.data())
def test_runs_are_shown_as_their_numbers_would_be(data: st.DataObject) -> None:
    compare(data, None)


@settings(max_examples=120, deadline=None)
@given(st.data())
def test_so_they_are_where_the_service_loses_events(data: st.DataObject) -> None:
    compare(data, Patience(events=1_000, limit_ns=2 * SECOND))


@pytest.mark.parametrize("room", [1, 3])
def test_where_there_is_no_room_the_oldest_do_not_wait_any_longer(room: int) -> None:
    """A whole run is here before anything is forced: nothing of it is skipped."""
    watched = Watched(Patience(events=room, limit_ns=SECOND))
    watched.part.subscribe(0, 1)
    watched.answer([0] * TOPICS)
    watched.receive(Timestamp(0, 3, (1,), (2,)), 5, False)
    watched.receive(Timestamp(1, 2), 1, False)
    watched.receive(Timestamp(0, 1), 2, False)
    watched.receive(Timestamp(1, 1), 1, False)
    assert [one for one in watched.seen if one[0] == "shown"][-1][2] >= 2
    assert sorted(number for what, topic, number in watched.seen if topic == 0) == list(range(1, 8))
    assert watched.part.buffered <= room


def forgets_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    show = OrderedSubscriber._show

    def shows(self: Any, topic: int, queue: Any, first: int, last: int, waiting: Any) -> None:
        show(self, topic, queue, first, first, waiting)
        queue.events.take(first, last)

    monkeypatch.setattr(OrderedSubscriber, "_show", shows)


def keeps_what_is_here_already(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RangeMap, "free", lambda self, first, last: [(first, last)])


@pytest.mark.parametrize("plant", [forgets_the_rest, keeps_what_is_here_already])
def test_a_subscriber_that_cuts_wrongly_is_found_out(plant: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)

    @settings(max_examples=1000, deadline=None, database=None, derandomize=True, phases=[Phase.generate])
    @given(st.data())
    def hunt(data: st.DataObject) -> None:  # the first find will do: no time goes into a smaller one
        compare(data, None)

    with pytest.raises((AssertionError, ExceptionGroup)):
        hunt()
