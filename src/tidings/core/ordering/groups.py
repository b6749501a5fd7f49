"""Maintains sequencing groups as subscriptions change: which topics' clocks go into the stamps of a topic's events.

Topic j is in the group of t when at least `threshold` subscribers have both. Total order needs 2: a pair with a single
subscriber leaves nobody to disagree with. Causal order needs 1 (paper ordering, section 3.2). A change of one
subscription touches only the pairs that it adds or removes.

With threshold 2, changes need two rules that the paper lacks:

* Rule 1, linger: a topic that leaves a group stays for one more stamp. Otherwise the next event could overtake an
  earlier one of that topic at a subscriber that still has both.
* Rule 2, ghosts: all topics that a subscriber ever left go into the next stamp of each topic that it joins. Otherwise
  a subscriber that moves between two topics that no two subscribers share sees an order that others may not see.
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
        """The members, ascending: the same object until they change."""

    def members(self, topic: int) -> Set[int]:
        """Return the group of an own topic, without the topic itself."""
        return self._members[topic]

    def change(self, old: Set[int], new: Set[int], ghosts: Collection[int]) -> None:
        """Record that a subscriber had the topics `old` and now has `new`; `ghosts` are all others it ever had."""
        for topic in sorted(old | new):
            if topic not in self._own:
                continue
            if topic not in new:
                self._uncount(topic, old)
            elif topic not in old:
                self._count(topic, new)
                self._add_ghosts(topic, ghosts)
            else:
                self._uncount(topic, old - new)
                self._count(topic, new - old)

    def take(self, topic: int) -> tuple[int, ...]:
        """Return the topics, ascending, whose clocks go into the next stamp; a lingering topic does so once."""
        linger = self._linger[topic]
        if not linger:
            return self._index[topic]
        index = tuple(sorted(self._members[topic] | linger))
        linger.clear()
        return index

    def lingering(self) -> list[tuple[int, list[int]]]:
        """Return what rules 1 and 2 add to the next stamp of each topic."""
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
        """Apply rule 1."""
        if self._threshold > 1:
            self._linger[topic].add(other)

    def _add_ghosts(self, topic: int, ghosts: Collection[int]) -> None:
        """Apply rule 2."""
        if self._threshold > 1:
            self._linger[topic].update(ghosts)
