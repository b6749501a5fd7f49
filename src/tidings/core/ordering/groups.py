"""Sequencing groups, kept as subscriptions change: which topics' clocks go into the stamps of a topic's events.

Topic j is in the group of t when at least `threshold` subscribers have both: 2 is enough for total order (who is alone
with a pair has nobody to disagree with), causal order needs 1 (paper ordering, section 3.2). A change of one
subscription touches only the pairs that it adds or removes.

Two rules that the paper lacks close the gaps at changes with threshold 2; with 1 they are not needed:

* linger: a topic that leaves a group stays for one more stamp. Else the next event could overtake an earlier one of
  that topic at somebody who still has both.
* ghosts: the topics that a subscriber ever left go into the next stamp of a topic that it joins. Else a subscriber
  that moves from one topic to another, which no two subscribers share, sees an order that nobody keeps for the rest.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Set


class SequencingGroups:
    """The groups of the topics `own` of one server."""

    def __init__(self, own: range, threshold: int) -> None:
        if threshold not in (1, 2):
            raise ValueError(f"threshold {threshold} is neither 1 (causal order) nor 2 (total order)")
        self._own = own
        self._threshold = threshold
        self._counts: dict[int, dict[int, int]] = {topic: {} for topic in own}
        self._members: dict[int, set[int]] = {topic: set() for topic in own}
        self._linger: dict[int, set[int]] = {topic: set() for topic in own}
        self._index: dict[int, tuple[int, ...]] = dict.fromkeys(own, ())
        """The members, ascending: one object until they change."""

    def members(self, topic: int) -> Set[int]:
        """The group of an own topic without the topic itself."""
        return self._members[topic]

    def change(self, old: Set[int], new: Set[int], ghosts: Collection[int]) -> None:
        """A subscriber had the topics `old` and now has `new`; `ghosts` are the others that it ever had."""
        for topic in sorted(old | new):
            if topic not in self._own:
                continue
            if topic not in new:
                self._uncount(topic, old)
            elif topic not in old:
                self._count(topic, new)
                self._haunt(topic, ghosts)
            else:
                self._uncount(topic, old - new)
                self._count(topic, new - old)

    def take(self, topic: int) -> tuple[int, ...]:
        """The topics, ascending, whose clocks go into the stamp that is made now."""
        linger = self._linger[topic]
        if not linger:
            return self._index[topic]
        index = tuple(sorted(self._members[topic] | linger))
        linger.clear()
        return index

    def lingering(self) -> list[tuple[int, list[int]]]:
        """What rules 1 and 2 have put into the next stamp of each topic."""
        return [(topic, sorted(others)) for topic, others in self._linger.items() if others]

    def restore_lingering(self, lingering: Iterable[tuple[int, Iterable[int]]]) -> None:
        for held in self._linger.values():
            held.clear()
        for topic, others in lingering:
            self._linger[topic].update(others)

    def _count(self, topic: int, others: Set[int]) -> None:
        counts, joined = self._counts[topic], False
        for other in others:
            if other != topic:
                counts[other] = counts.get(other, 0) + 1
                if counts[other] == self._threshold:
                    self._members[topic].add(other)
                    joined = True
        if joined:
            self._index[topic] = tuple(sorted(self._members[topic]))

    def _uncount(self, topic: int, others: Set[int]) -> None:
        counts, left = self._counts[topic], False
        for other in others:
            if other != topic:
                counts[other] -= 1
                if counts[other] == self._threshold - 1:
                    self._members[topic].remove(other)
                    self._leave(topic, other)
                    left = True
                if not counts[other]:
                    del counts[other]
        if left:
            self._index[topic] = tuple(sorted(self._members[topic]))

    def _leave(self, topic: int, other: int) -> None:
        """Rule 1."""
        if self._threshold > 1:
            self._linger[topic].add(other)

    def _haunt(self, topic: int, ghosts: Collection[int]) -> None:
        """Rule 2."""
        if self._threshold > 1:
            self._linger[topic].update(ghosts)
