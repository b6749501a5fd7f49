"""When brokers may have lost sight of clients: the faults of a trace.

A fault that strikes clients alone concerns these clients; any other concerns everybody. After a fault it takes a while
until everybody is connected again.
"""

from __future__ import annotations

from typing import Any

NEVER = 2**63 - 1
RECOVERY_NS = 20_000_000_000
"""A broker learns of a lost connection, and a client has a new one, within this long after a fault."""
CRASH = "crash"
CLIENTS = frozenset({"publisher", "subscriber", "client"})

Span = tuple[int, int]
"""Includes both ends."""


class Disturbances:
    def __init__(self, faults: Any = None, nodes: Any = None) -> None:
        """`faults` and `nodes` are the trace's tables."""
        self._of_all: list[Span] = []
        self._of_client: dict[str, list[Span]] = {}
        self._gone: dict[str, int] = {}
        rows = [] if nodes is None else nodes.select(["node", "kind"]).to_pylist()
        clients = {row["node"] for row in rows if row["kind"] in CLIENTS}
        for fault in [] if faults is None else faults.to_pylist():
            until = NEVER if fault["until_ns"] is None else fault["until_ns"]
            span = (fault["at_ns"], min(until, NEVER - RECOVERY_NS) + RECOVERY_NS)
            struck = fault["target"].split(",")
            if not clients.issuperset(struck):
                self._of_all.append(span)
                continue
            for name in struck:
                self._of_client.setdefault(name, []).append(span)
                if fault["kind"] == CRASH and fault["until_ns"] is None:
                    self._gone[name] = fault["at_ns"]

    def gone(self, subscriber: str) -> int:
        """Return when that subscriber crashed for good; NEVER if it did not."""
        return self._gone.get(subscriber, NEVER)

    def before(self, at: int, subscriber: str) -> int:
        """Return the last instant up to `at` at which nothing kept that subscriber from its broker."""
        spans = [*self._of_all, *self._of_client.get(subscriber, ())]
        for begin, end in sorted(spans, reverse=True, key=lambda span: span[1]):
            if begin < at <= end:
                at = begin
        return at

    def after(self, at: int, until: int) -> int:
        """Return the end of the last disturbance of brokers that began before `until`, if that is after `at`."""
        return max([at, *(end for begin, end in self._of_all if begin < until and end > at)])


UNDISTURBED = Disturbances()
