"""The highest number of each source, of the sources that were heard of last."""

from __future__ import annotations

from collections import OrderedDict
from typing import TypeVar

Source = TypeVar("Source")
Number = TypeVar("Number", int, tuple[int, int])


class Highest(OrderedDict[Source, Number]):
    """Beyond `most` sources the one that was silent longest is forgotten. The order is from the longest silent on.

    An ordered dict, for the first entry of a dict is found behind all that were deleted before it.
    """

    def __init__(self, most: int) -> None:
        super().__init__()
        self.most = most

    def raise_to(self, source: Source, number: Number) -> Number | None:
        """What it was before; None: the source is new, or was forgotten."""
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
