"""Counts the work of reading and comparing filters, in steps of about half a microsecond.

Code that loops over pairs, lists or patterns spends the cost of the loop before or while it runs. So the time that a
filter takes is bounded, whatever its shape. Steps are counted, not timed, because brokers must reject the same filters.
"""

from __future__ import annotations


class OutOfSteps(Exception):  # noqa: N818 - the code that set the limit decides whether this is an error
    """The work takes more steps than the limit."""


class Steps:
    __slots__ = ("limit", "taken")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.taken = 0

    def spend(self, count: int) -> None:
        self.taken += count
        if self.taken > self.limit:
            raise OutOfSteps
