"""The subscriber's heads and registrations show what a literal scan of the whole buffer shows; no-ops and holes."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recording_port import RecordingPort
from tidings.core.events.timestamp import Timestamp
from tidings.core.facts import Misbehaviour
from tidings.core.ordering.messages import ChangeSubscription, WalkDone
from tidings.core.ordering.stamps import Chain
from tidings.core.ordering.subscriber import OrderedEvent, OrderedSubscriber, Patience, TopicsJoined

TOPICS = 4


def recording(name: str) -> Any:
    return RecordingPort(name)


class Lone:
    """One subscriber whose walks are answered by the test."""

    def __init__(self, *topics: int, patience: Patience | None = None) -> None:
        self.port = recording("s")
        chain = Chain(["m"], [0], TOPICS)
        threshold = 2 if patience is None else 1
        self.part = OrderedSubscriber(self.port, chain, threshold=threshold, patience=patience)
        if topics:
            self.part.subscribe(*topics)
            self.answer()

    def answer(self, **clocks: int) -> None:
        """The walk under way is done; clocks by topic, as `t1=5`, are 0 where not given."""
        request: Any = self.port.sent[-1][1]
        index = tuple(sorted((*request.topics, *request.ghosts)))
        values = tuple(clocks.get(f"t{topic}", 0) for topic in index)
        self.part.on_walk_done("m", WalkDone(("s", 0), request.version, index, values))

    def receive(self, topic: int, number: int, **entries: int) -> None:
        index = tuple(sorted(int(name[1:]) for name in entries))
        values = tuple(entries[f"t{rank}"] for rank in index)
        self.part.receive(Timestamp(topic, number, index, values), f"{topic}/{number}")

    @property
    def shown(self) -> list[str]:
        """Late ones with an exclamation mark."""
        facts = [fact for fact in self.port.facts if isinstance(fact, OrderedEvent)]
        return [f"{fact.event}{'!' * fact.out_of_order}" for fact in facts]


def literal(clock: dict[int, int], buffer: list[Timestamp]) -> None:
    """The paper's loop, with >=: show any event that is next until none is."""
    while True:
        for stamp in buffer:
            entries = zip(stamp.index, stamp.values, strict=True)
            met = all(clock.get(rank, value) >= value for rank, value in entries)
            if met and stamp.number == clock[stamp.topic] + 1:
                clock[stamp.topic] += 1
                buffer.remove(stamp)
                break
        else:
            return


@given(st.data())
def test_it_shows_what_a_literal_scan_shows(data: st.DataObject) -> None:
    """Stamps of one sequence of events, each naming some of the others' clocks, in any order and some twice."""
    subscribed = data.draw(st.sets(st.integers(0, TOPICS - 1), min_size=1))
    clocks = [0] * TOPICS
    stamps = []
    for topic in data.draw(st.lists(st.integers(0, TOPICS - 1), max_size=14)):
        clocks[topic] += 1
        index = tuple(sorted(data.draw(st.sets(st.integers(0, TOPICS - 1))) - {topic}))
        stamps.append(Timestamp(topic, clocks[topic], index, tuple(clocks[rank] for rank in index)))
    arriving = data.draw(st.permutations(stamps + stamps[:2]))
    lone = Lone(*subscribed)
    clock, buffer, come = dict.fromkeys(subscribed, 0), [], set()
    for stamp in arriving:
        lone.part.receive(stamp, "event")
        if stamp.topic in subscribed and stamp not in come:
            come.add(stamp)
            buffer.append(stamp)
            literal(clock, buffer)
        assert {topic: lone.part.clock[topic] for topic in subscribed} == clock
    assert lone.part.buffered == 0
    assert len(lone.shown) == sum(stamp.topic in subscribed for stamp in stamps)


def test_a_blocked_head_is_not_scanned_again_for_every_event_that_comes() -> None:
    lone = Lone(0, 1)
    scans = 0
    is_next = lone.part._is_next

    def counting(queue: Any) -> bool:
        nonlocal scans
        scans += 1
        return is_next(queue)

    lone.part._is_next = counting  # type: ignore[method-assign]
    lone.receive(0, 1, t1=500)
    for number in range(2, 500):
        lone.receive(0, number)
    for number in range(500, 0, -1):
        lone.receive(1, number)
    assert len(lone.shown) == 999
    assert scans == 1 + 500 + 499, "once when it came, and once for each event when it was its turn"


def test_a_no_op_is_passed_over_and_its_event_is_late() -> None:
    lone = Lone(0)
    lone.part.receive_no_op(Timestamp(0, 1))
    lone.receive(0, 2)
    assert lone.shown == ["0/2"]
    lone.receive(0, 1)
    lone.receive(0, 1)
    assert lone.shown == ["0/2", "0/1!"]


def test_an_event_that_comes_while_its_no_op_waits_takes_its_place() -> None:
    lone = Lone(0)
    lone.part.receive_no_op(Timestamp(0, 2))
    lone.receive(0, 2)
    lone.part.receive_no_op(Timestamp(0, 2))
    lone.receive(0, 1)
    assert lone.shown == ["0/1", "0/2"]


def test_a_no_op_waits_for_its_turn_like_an_event() -> None:
    lone = Lone(0, 1)
    lone.part.receive_no_op(Timestamp(0, 1, (1,), (1,)))
    lone.receive(0, 2)
    assert lone.shown == []
    lone.receive(1, 1)
    assert lone.shown == ["1/1", "0/2"]


def test_what_came_before_the_walk_is_dropped_and_the_first_event_waits_at_the_fence() -> None:
    lone = Lone(0)
    lone.part.subscribe(1)
    for number in (4, 5, 6):
        lone.receive(1, number)
    lone.answer(t0=1, t1=4)
    assert lone.port.facts[-1] == TopicsJoined((1,), (4,))
    assert lone.shown == [], "event 1 of topic 0 comes first"
    lone.receive(0, 1)
    assert lone.shown == ["0/1", "1/5", "1/6"]


def test_one_change_at_a_time_and_leaving_is_at_once() -> None:
    lone = Lone(0, 1)
    lone.part.subscribe(2)
    lone.part.unsubscribe(1)
    lone.receive(1, 1)
    lone.receive(0, 1, t1=1)
    assert lone.shown == ["0/1"], "topic 1 is neither shown nor waited for"
    requests = [message for _, message in lone.port.sent]
    assert requests[-1] == ChangeSubscription(("s", 0), 2, (0, 1, 2), ())
    lone.answer()
    assert lone.port.sent[-1][1] == ChangeSubscription(("s", 0), 3, (0, 2), (1,))
    lone.part.on_timer((lone.part.name, "repeat"))
    assert lone.port.sent[-1] == lone.port.sent[-2]
    lone.answer()
    assert lone.part.settled
    assert (lone.part.name, "repeat") not in lone.port.timers


def test_changes_that_make_no_sense_are_refused() -> None:
    lone = Lone(0)
    for add, remove in [((0,), ()), ((), (1,)), ((TOPICS,), ())]:
        with pytest.raises(ValueError, match="cannot join"):
            lone.part.change(add, remove)
    lone.part.subscribe(1)
    lone.part.on_walk_done("m", WalkDone(("s", 0), 2, (0,), (0,)))
    assert isinstance(lone.port.facts[-1], Misbehaviour)
    assert not lone.part.settled


def test_a_full_buffer_forces_the_oldest_and_late_events_are_marked() -> None:
    lone = Lone(0, 1, patience=Patience(events=2, limit_ns=1000))
    lone.receive(0, 3, t1=2)
    lone.receive(1, 2)
    assert lone.shown == []
    lone.receive(0, 5)
    assert lone.shown == ["1/2", "0/3"], "what precedes it and is here goes first"
    lone.receive(0, 2)
    lone.receive(1, 1)
    lone.receive(1, 1)
    assert lone.shown[2:] == ["0/2!", "1/1!"]
    lone.port.now = 2000
    lone.part.on_timer((lone.part.name, "patience"))
    assert lone.shown[4:] == ["0/5"]
    assert lone.part.buffered == 0


def test_what_is_forced_past_a_topic_under_way_makes_its_events_late() -> None:
    lone = Lone(0, patience=Patience(events=2, limit_ns=1000))
    lone.part.subscribe(1)
    lone.receive(1, 6)
    lone.receive(1, 7)
    lone.receive(0, 1, t1=6)
    lone.port.now = 1000
    lone.part.on_timer((lone.part.name, "patience"))
    assert lone.shown == ["0/1"]
    lone.answer(t1=4)
    assert lone.shown == ["0/1", "1/6!", "1/7"]


def test_false_stamps_that_wait_for_each_other_are_forced_all_the_same() -> None:
    lone = Lone(0, 1, patience=Patience(events=2, limit_ns=1000))
    lone.receive(0, 1, t1=1)
    lone.receive(1, 1, t0=1)
    lone.port.now = 1000
    lone.part.on_timer((lone.part.name, "patience"))
    assert sorted(lone.shown) == ["0/1", "1/1"]
