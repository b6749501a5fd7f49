"""The highest number of each source, for the most recently active sources."""

from __future__ import annotations

from collections import OrderedDict
from typing import TypeVar

Source = TypeVar("Source")
Number = TypeVar("Number", int, tuple[int, int])


class Highest(OrderedDict[Source, Number]):
    """Keeps at most `most` sources and forgets the one that was silent longest. Iterates from the longest silent on.

    An OrderedDict, because finding the first entry of a dict skips all entries deleted before it.
    """

    def __init__(self, most: int) -> None:
        super().__init__()
        self.most = most

    def raise_to(self, source: Source, number: Number) -> Number | None:
        """Raise the source's number; return the previous one, or None if the source is new or was forgotten."""
        before = self.get(source)
        if before is None:
            self[source] = number
            if len(self) > self.most:
                self.popitem(last=False)
            return None
        if number > before:
            self[source] = number
        self.move_to_end(source)
        return before
