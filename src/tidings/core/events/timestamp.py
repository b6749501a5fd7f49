"""Timestamps: positions in an order, carried in the headers of events and runs. core/ordering defines their meaning."""

from __future__ import annotations

from msgspec import Struct

MAX_ENTRIES = 4096
"""The limit for one timestamp."""
MAX_NUMBER = 2**62


class Timestamp(Struct, frozen=True, array_like=True, gc=False):
    """Stamps event `number` of `topic`, which comes after event `values[i]` of topic `index[i]`, for every i.

    `index` is ascending and does not contain `topic`. All stamps that a server makes for one version of a topic's
    group share one `index` object.
    """

    topic: int
    number: int
    index: tuple[int, ...] = ()
    values: tuple[int, ...] = ()

    def at(self, number: int) -> Timestamp:
        """Return the timestamp of another event of the same run: only the number differs."""
        return self if number == self.number else Timestamp(self.topic, number, self.index, self.values)

    def problem(self, numbers: int) -> str:
        """Describe why no server can have made this stamp for this many events in a row; empty if one can."""
        index, values = self.index, self.values
        if self.topic < 0 or not 0 < self.number <= MAX_NUMBER - numbers:
            return f"a timestamp for topic {self.topic} with numbers from {self.number} on, which are out of range"
        if len(index) != len(values) or len(index) > MAX_ENTRIES or self.topic in index:
            return "a timestamp whose entries make no sense"
        if index and (index[0] < 0 or (len(index) > 1 and [*index] != sorted({*index}))):
            return "a timestamp whose entries are not ascending"
        if values and not (min(values) >= 0 and max(values) < MAX_NUMBER):
            return "a timestamp with impossible clocks"
        return ""
