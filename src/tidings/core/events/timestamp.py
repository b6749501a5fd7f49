"""Places in an order, as the headers of events and runs carry them (core/ordering says what they mean)."""

from __future__ import annotations

from msgspec import Struct

MAX_ENTRIES = 4096
"""Of one timestamp."""
MAX_NUMBER = 2**62


class Timestamp(Struct, frozen=True, array_like=True, gc=False):
    """Event `number` of `topic`; it comes after event `values[i]` of topic `index[i]`, for every i.

    `index` is ascending and without `topic`. All stamps that a server makes for one version of a topic's group share
    one `index` object.
    """

    topic: int
    number: int
    index: tuple[int, ...] = ()
    values: tuple[int, ...] = ()

    def at(self, number: int) -> Timestamp:
        """That of another event of its run: only the number differs."""
        return self if number == self.number else Timestamp(self.topic, number, self.index, self.values)

    def problem(self, numbers: int) -> str:
        """What no server could have said of so many events in a row; empty: nothing."""
        index, values = self.index, self.values
        if self.topic < 0 or not 0 < self.number <= MAX_NUMBER - numbers:
            return f"a timestamp for topic {self.topic} with the numbers from {self.number} on"
        if len(index) != len(values) or len(index) > MAX_ENTRIES or self.topic in index:
            return "a timestamp whose entries make no sense"
        if index and (index[0] < 0 or (len(index) > 1 and [*index] != sorted({*index}))):
            return "a timestamp whose entries are not ascending"
        if values and not (min(values) >= 0 and max(values) < MAX_NUMBER):
            return "a timestamp with impossible clocks"
        return ""
