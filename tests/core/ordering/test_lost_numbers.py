"""Numbers that a reliable service has lost: a subscriber finds out which, skips them, and shows the rest in order."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recording_port import RecordingPort
from tidings.core.events.timestamp import Timestamp
from tidings.core.ordering.doubts import Doubt
from tidings.core.ordering.messages import ChangeSubscription, WalkDone
from tidings.core.ordering.stamps import Chain
from tidings.core.ordering.subscriber import ClocksSurveyed, OrderedEvent, OrderedSubscriber

TOPICS = 3
EVENTS = st.lists(st.integers(0, TOPICS - 1), max_size=16)


class Skips:
    """Learns what is skipped."""

    def __init__(self) -> None:
        self.skipped: list[tuple[int, int]] = []

    def pass_over(self, stamp: Timestamp, token: object, count: int) -> None:
        """There are no no-ops here."""

    def drop(self, event: object, number: int, count: int) -> None:
        """What comes after it was given up."""

    def skip(self, topic: int, number: int, count: int) -> None:
        self.skipped.extend((topic, each) for each in range(number, number + count))


class Reader:
    def __init__(self, *topics: int, threshold: int = 1) -> None:
        self.port: Any = RecordingPort("s")
        self.skips = Skips()
        self.part = OrderedSubscriber(
            self.port, Chain(["m"], [0], TOPICS), threshold=threshold, releases=self.skips
        )
        self.part.subscribe(*topics)
        self.answer([0] * TOPICS)

    def answer(self, clocks: list[int]) -> None:
        request = self.port.sent[-1][1]
        assert isinstance(request, ChangeSubscription)
        values = tuple(clocks[topic] for topic in request.topics)
        self.part.on_walk_done("m", WalkDone(("s", 0), request.version, request.topics, values))

    def survey(self, clocks: list[int]) -> tuple[tuple[int, int], ...]:
        self.part.survey()
        self.answer(clocks)
        fact = self.port.facts[-1]
        assert isinstance(fact, ClocksSurveyed)
        return fact.clocks

    @property
    def shown(self) -> list[object]:
        return [fact.event for fact in self.port.facts if isinstance(fact, OrderedEvent)]


def stamps_of(topics: list[int]) -> tuple[list[Timestamp], list[int]]:
    """Stamps that name everything before, and the clocks after all."""
    clocks, stamps = [0] * TOPICS, list[Timestamp]()
    for topic in topics:
        clocks[topic] += 1
        index = tuple(rank for rank in range(TOPICS) if rank != topic)
        stamps.append(Timestamp(topic, clocks[topic], index, tuple(clocks[rank] for rank in index)))
    return stamps, clocks


@given(EVENTS, EVENTS, st.data())
def test_without_what_is_lost_the_rest_is_in_order(
    early: list[int], late: list[int], data: st.DataObject
) -> None:
    """Of the early events some are lost, and some of those come after all; none of the late ones is given up."""
    stamps, _ = stamps_of(early + late)
    _, clocks = stamps_of(early)
    lost = data.draw(st.sets(st.integers(0, len(early) - 1))) if early else set()
    reader = Reader(*range(TOPICS))
    for at in data.draw(st.permutations([at for at in range(len(stamps)) if at not in lost])):
        reader.part.receive(stamps[at], at)
    lacking = reader.part.lacking(reader.survey(clocks))
    missing = {(topic, number) for topic, first, last in lacking for number in range(first, last + 1)}
    assert missing == {(stamps[at].topic, stamps[at].number) for at in lost}
    reader.part.skip(lacking)
    assert {*reader.skips.skipped} == missing
    for at in lost:
        reader.part.receive(stamps[at], at)
    assert reader.shown == [at for at in range(len(stamps)) if at not in lost]
    assert reader.part.buffered == 0


def test_what_a_subscriber_may_skip() -> None:
    assert Reader(0, 1, 2).part.can_skip
    assert Reader(0, threshold=2).part.can_skip
    assert not Reader(0, 1, threshold=2).part.can_skip


def test_a_survey_changes_nothing_and_follows_pending_changes() -> None:
    reader = Reader(0)
    reader.part.subscribe(1)
    reader.part.survey()
    reader.answer([4, 5, 6])
    assert not reader.part.settled
    reader.answer([7, 8, 9])
    assert reader.port.facts[-1] == ClocksSurveyed(((0, 7), (1, 8)))
    assert reader.part.clock[:2] == [0, 5] and reader.part.settled


def test_without_topics_there_is_nothing_to_survey() -> None:
    reader = Reader(0)
    reader.part.unsubscribe(0)
    sent = len(reader.port.sent)
    reader.part.survey()
    assert len(reader.port.sent) == sent


LACKING = [(0, 3, 5)]


@pytest.mark.parametrize(
    ("checks", "certain"),
    [
        ([LACKING, LACKING], True),
        ([LACKING], False),  # nothing is lost at first sight
        ([[(0, 3, 6)], LACKING], False),  # something came
        ([[(0, 3, 6)], LACKING, LACKING], True),
    ],
)
def test_numbers_are_lost_when_nothing_more_of_them_comes(checks: list[Any], certain: bool) -> None:
    doubt = Doubt("why", 5, lambda: False)
    found = [doubt.is_certain(lacking, settled=True) for lacking in checks]
    assert found == [False] * (len(checks) - 1) + [certain]


def test_nothing_is_lost_while_nothing_can_come() -> None:
    held_up = True
    doubt = Doubt("why", 5, lambda: held_up)
    assert not any(doubt.is_certain(LACKING, settled=True) for _ in range(3))
    held_up = False
    assert [doubt.is_certain(LACKING, settled=True) for _ in range(2)] == [False, True]
    doubt = Doubt("why", 5, lambda: False)
    assert [doubt.is_certain(LACKING, settled=settled) for settled in (True, False, True)] == [False] * 3
