"""The seam between history and live events, against a twin that remembers every event it has shown."""

from __future__ import annotations

import random
from typing import NamedTuple

import pytest

from tidings.core.client.seam import Seam


class Taken(NamedTuple):
    """An event, in the order in which the broker took it."""

    source: str
    incarnation: int
    sequence: int
    selected: bool


class World:
    """A broker that takes events of a few sources, an archive of all of them, and one subscription."""

    def __init__(self, seed: int) -> None:
        draw = random.Random(seed)
        self.events = self._take(draw, draw.randint(0, 200))
        end = len(self.events)
        self.subscribed = draw.randint(0, end)
        self.fence = draw.randint(self.subscribed, end)
        self.stop = draw.randint(self.fence, end)
        """The archive may be ahead of the fence, and is never behind it."""
        self.start = draw.randint(0, self.subscribed)
        """The archive had it before the subscription was made."""
        self.again = draw.random() < 0.3

    @staticmethod
    def _take(draw: random.Random, count: int) -> list[Taken]:
        """Runs of a few sources, which skip sequences of other topics and sometimes restart."""
        last: dict[str, tuple[int, int]] = {}
        events: list[Taken] = []
        while len(events) < count:
            source = f"p{draw.randint(0, 4)}"
            incarnation, sequence = last.get(source, (0, 0))
            if draw.random() < 0.05:
                incarnation, sequence = incarnation + 1, 0
            for _ in range(draw.randint(1, 6)):
                sequence += draw.choice((1, 1, 1, 2, 5))
                events.append(Taken(source, incarnation, sequence, draw.random() < 0.7))
            last[source] = (incarnation, sequence)
        return events

    def live(self) -> list[Taken]:
        """What comes live: after a restart of the broker, some that the archive has come again."""
        after = [event for event in self.events[self.subscribed :] if event.selected]
        before = [event for event in self.events[: self.subscribed] if event.selected]
        again = [event for event in before[-5:] if event in self.events[self.start :]]
        return (again if self.again else []) + after

    def shown(self) -> list[Taken]:
        seam, shown = Seam(), []
        for event in self.events[self.start : self.stop]:
            seam.pass_by(*event[:3])
            if event.selected:
                shown.append(event)
        return shown + [event for event in self.live() if seam.admits(*event[:3])]

    def shown_by_twin(self) -> list[Taken]:
        shown = [event for event in self.events[self.start : self.stop] if event.selected]
        passed = set(self.events[self.start : self.stop])
        return shown + [event for event in self.live() if event not in passed]


@pytest.mark.parametrize("block", range(10))
def test_history_and_live_events_are_contiguous_per_source(block: int) -> None:
    for seed in range(block * 300, (block + 1) * 300):
        world = World(seed)
        shown = world.shown()
        assert shown == world.shown_by_twin(), seed
        assert len(set(shown)) == len(shown), f"seed {seed}: repeated"
        for source in {event[:2] for event in world.events}:
            of_source = [event for event in shown if event[:2] == source]
            expected = [
                event
                for place, event in enumerate(world.events)
                if event[:2] == source and event.selected and place >= world.start
            ]
            assert of_source == expected, f"seed {seed}: a gap"


def test_the_overlap_of_a_source_ends_with_its_first_new_event() -> None:
    seam = Seam()
    for sequence in range(1, 6):
        seam.pass_by("p", 0, sequence)
        seam.pass_by("q", 7, sequence)
    assert not seam.admits("p", 0, 5)
    assert seam.admits("p", 1, 1)
    assert len(seam) == 2
    assert seam.admits("p", 0, 6)
    assert len(seam) == 1
    assert not seam.admits("q", 7, 1)


def test_it_keeps_the_sources_that_came_last() -> None:
    seam = Seam(most_sources=2)
    for source in "abca":
        seam.pass_by(source, 0, 1)
    assert [seam.admits(source, 0, 1) for source in "abc"] == [False, True, False]
