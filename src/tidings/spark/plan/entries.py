"""From the topics that a table of subscriptions names to the entries of a layout.

Every topic and every pattern that somebody subscribes to becomes an entry. An event belongs to the first entry that
selects its topic (core/ordering/layout.py), so a pattern's entry counts what no entry before it selects: it has
to stand behind every other entry that it overlaps with. Where it does, the entries of a subscription do not depend on
the rest of the precedence. They are those that `Layout.ranks_for` finds: of topics alone, these topics; if there is a
pattern among them, every entry that one of them overlaps with.
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
    """The entries, sorted by identifier (/t2 before /t10); an entry is its position in `texts`."""

    def __init__(self, texts: Iterable[str], *, rest: bool = False) -> None:
        """TopicError: one of them is no topic and no pattern. With `rest`, `/**` is among them in any case."""
        named = {*texts, EVERYTHING} if rest else {*texts}
        if len(named) > MAX_TOPICS:
            raise PipelineError(
                f"{len(named):,} topics; an order has at most {MAX_TOPICS:,}: subscribe to patterns of several topics"
            )
        self.texts = tuple(sorted(named, key=natural))
        self.patterns = tuple(TopicPattern(text) for text in self.texts)
        self.number_of: Mapping[str, int] = {text: number for number, text in enumerate(self.texts)}
        self.wild: Flags = np.array([not pattern.exact for pattern in self.patterns], dtype=np.bool_)

    def __len__(self) -> int:
        return len(self.texts)

    @cached_property
    def overlaps(self) -> Flags:
        """Entry and entry: whether a topic exists that both select."""
        found = np.eye(len(self), dtype=np.bool_)
        for wild in np.flatnonzero(self.wild).tolist():
            mine = self.patterns[wild]
            found[wild] = [overlap(mine, other) for other in self.patterns]
            found[:, wild] = found[wild]
        return found

    def behind(self) -> list[int]:
        """The patterns that overlap with other entries, the narrower ones first: none stands before what it covers."""
        several = self.overlaps.sum(axis=1) > 1
        return sorted(np.flatnonzero(self.wild & several).tolist(), key=self._breadth)

    def _breadth(self, number: int) -> tuple[int, bool, int, int]:
        pattern = self.patterns[number]
        return -len(pattern.levels), pattern.subtree, pattern.levels.count("*"), number

    def with_patterns_behind(self, order: Sequence[int]) -> list[int]:
        """The same precedence, but for the patterns that have to stand behind others: these come last."""
        last = self.behind()
        moved = {*last}
        return [*(number for number in order if number not in moved), *last]

    def entry_of(self, topic: str) -> int | None:
        """Where the events of a topic belong; None: they have no order."""
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
