"""The work of reading and comparing filters, counted in steps of about half a microsecond.

Whoever loops over pairs, lists or patterns spends what the loop costs, before or while it runs. So the time that a
filter takes is bounded, whatever its shape; and by a count, not by a clock, as brokers must agree on what they refuse.
"""

from __future__ import annotations


class OutOfSteps(Exception):  # noqa: N818 - whoever set the limit decides whether this is an error
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
