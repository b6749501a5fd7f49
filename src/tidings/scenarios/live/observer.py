"""Lets code watch a live scenario while it runs, and run more beside its network."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager

from tidings.scenarios.file.faults import PlannedFault
from tidings.scenarios.live.ledger import RunLedger


class Observer:
    """Does nothing; subclasses override what they need. Times are nanoseconds since the common start."""

    @asynccontextmanager
    async def beside(self, brokers: Mapping[str, str], sequencers: Sequence[str]) -> AsyncIterator[None]:
        """Surround the run, from when the network is up until everything has arrived.

        `brokers` maps brokers to their URLs; `sequencers` lists the sequencers' addresses.
        """
        yield

    def on_start(self, ledger: RunLedger) -> None:
        """All clients are connected, and the clock runs. The ledger fills from now on."""

    def on_tick(self, now_ns: int) -> None:
        """Called ten times a second."""

    def on_fault(self, planned: PlannedFault, at_ns: int) -> None:
        """The fault has begun."""

    def on_repair(self, planned: PlannedFault, at_ns: int) -> None:
        """The fault is over: processes listen and links carry messages again."""

    def on_published(self, at_ns: int) -> None:
        """Publishers have finished and all faults are over; events under way still arrive."""

    def on_settled(self, at_ns: int) -> None:
        """Nothing is under way any more, or `settle_s` is over."""
