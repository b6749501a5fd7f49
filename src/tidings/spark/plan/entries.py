"""Turns the topics of a table of subscriptions into the entries of a layout.

Every topic and pattern that somebody subscribes to becomes an entry. An event belongs to the first entry that selects
its topic (core/ordering/layout.py), so a pattern's entry gets what no entry before it selects: it must come after every
other entry that it overlaps with. Then the entries of a subscription do not depend on the rest of the precedence. They
are those that `Layout.ranks_for` finds: for topics alone, these topics; if there is a pattern among them, every entry
that one of them overlaps with.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from tidings.core.errors import PipelineError
from tidings.core.events.topics import TopicPattern
from tidings.core.ordering.layout import EVERYTHING, overlap
from tidings.core.ordering.messages import MAX_TOPICS
from tidings.scenarios.file.ordering import natural

Flags = np.ndarray[Any, np.dtype[np.bool_]]


class PlanEntries:
    """The entries, sorted by identifier (/t2 before /t10); an entry is its index in `texts`."""

    def __init__(self, texts: Iterable[str], *, rest: bool = False) -> None:
        """Check the topics and patterns (TopicError). With `rest`, `/**` is always among the entries."""
        named = {*texts, EVERYTHING} if rest else {*texts}
        if len(named) > MAX_TOPICS:
            raise PipelineError(
                f"{len(named):,} topics, but an order has at most {MAX_TOPICS:,}: subscribe to patterns instead"
            )
        self.texts = tuple(sorted(named, key=natural))
        self.patterns = tuple(TopicPattern(text) for text in self.texts)
        self.number_of: Mapping[str, int] = {text: number for number, text in enumerate(self.texts)}
        self.wild: Flags = np.array([not pattern.exact for pattern in self.patterns], dtype=np.bool_)

    def __len__(self) -> int:
        return len(self.texts)

    @cached_property
    def overlaps(self) -> Flags:
        """[entry, entry]: whether some topic is selected by both."""
        found = np.eye(len(self), dtype=np.bool_)
        for wild in np.flatnonzero(self.wild).tolist():
            mine = self.patterns[wild]
            found[wild] = [overlap(mine, other) for other in self.patterns]
            found[:, wild] = found[wild]
        return found

    def behind(self) -> list[int]:
        """Return the patterns that overlap with other entries, narrow ones first: none comes before what it covers."""
        several = self.overlaps.sum(axis=1) > 1
        return sorted(np.flatnonzero(self.wild & several).tolist(), key=self._breadth)

    def _breadth(self, number: int) -> tuple[int, bool, int, int]:
        pattern = self.patterns[number]
        return -len(pattern.levels), pattern.subtree, pattern.levels.count("*"), number

    def with_patterns_behind(self, order: Sequence[int]) -> list[int]:
        """Return the precedence with the patterns that must come after others moved to the end."""
        last = self.behind()
        moved = {*last}
        return [*(number for number in order if number not in moved), *last]

    def entry_of(self, topic: str) -> int | None:
        """Return the entry of a topic's events; None: they have no order."""
        exact = self.number_of.get(topic)
        if exact is not None:
            return exact
        lone = [number for number in np.flatnonzero(self.wild).tolist() if number not in self._behind]
        for number in (*lone, *self._behind):
            if self.patterns[number].matches(topic):
                return int(number)
        return None

    @cached_property
    def _behind(self) -> tuple[int, ...]:
        return tuple(self.behind())
