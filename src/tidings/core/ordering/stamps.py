"""The chain of servers that makes timestamps (core/events/timestamp.py), and a check that it could have made one.

Topics have ranks 0 to n - 1; 0 is the highest precedence. A server hosts the topic managers of a contiguous range of
ranks. Servers form a chain in which each sends only to the next higher one (paper ordering, section 3.4): two servers
that both see two messages see them in the same order.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import pairwise

from tidings.core.errors import OrderError
from tidings.core.events.timestamp import Timestamp


class Chain:
    """Maps ranks to servers: server i hosts those from `starts[i]` up to the next start, the last up to `topics`."""

    def __init__(self, servers: Sequence[str], starts: Sequence[int], topics: int) -> None:
        bounds = [*starts, topics]
        if len(servers) != len(starts) or len(set(servers)) != len(servers) or not servers:
            raise ValueError(f"{len(starts)} ranges for the servers {list(servers)}")
        if bounds[0] != 0 or any(low >= high for low, high in pairwise(bounds)):
            raise ValueError(f"the ranges {bounds} do not begin at 0, or one of them is empty")
        self.servers = tuple(servers)
        self.topics = topics
        self._starts = tuple(starts)
        self._position = {server: position for position, server in enumerate(servers)}

    def position_of(self, server: str) -> int:
        """Return the server's position; 0 is the highest. Raises KeyError if it is unknown."""
        return self._position[server]

    def server_of(self, rank: int) -> str:
        return self.servers[bisect_right(self._starts, rank) - 1]

    def ranks(self, server: str) -> range:
        position = self._position[server]
        stops = (*self._starts[1:], self.topics)
        return range(self._starts[position], stops[position])

    def above(self, server: str) -> str | None:
        """The only server to which this one sends on the chain; None for the highest."""
        position = self._position[server]
        return self.servers[position - 1] if position else None

    def below(self, server: str) -> str | None:
        """The only server that sends to this one on the chain; None for the lowest."""
        position = self._position[server] + 1
        return self.servers[position] if position < len(self.servers) else None

    def knows(self, ranks: Sequence[int]) -> bool:
        """Return whether these are ranks of topics, strictly ascending."""
        ascending = all(low < high for low, high in pairwise(ranks))
        return ascending and (not ranks or (ranks[0] >= 0 and ranks[-1] < self.topics))


def check_stamp(stamp: Timestamp, layout: int, numbers: int, *, of: int, chain: Chain) -> None:
    """Raise OrderError unless a server of the layout with the fingerprint `of` could have made the stamp."""
    if layout != of:
        raise OrderError("a timestamp of another layout of topics")
    if not 0 <= stamp.topic < chain.topics:
        raise OrderError(f"a timestamp for topic {stamp.topic}; there are {chain.topics}")
    problem = stamp.problem(numbers)
    if problem:
        raise OrderError(problem)
    if stamp.index and stamp.index[-1] >= chain.topics:
        raise OrderError("a timestamp with entries for unknown topics")
