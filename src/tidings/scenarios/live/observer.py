"""Who watches a live scenario: what happens is told while it happens, and more can run beside the network."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager

from tidings.scenarios.file.faults import PlannedFault
from tidings.scenarios.live.ledger import RunLedger


class Observer:
    """Times are nanoseconds since the common start. This one does nothing; others override what they need."""

    @asynccontextmanager
    async def beside(self, brokers: Mapping[str, str], sequencers: Sequence[str]) -> AsyncIterator[None]:
        """Around the run, from when the network stands until all has arrived.

        `brokers` has their URLs, `sequencers` the addresses of those who give the order.
        """
        yield

    def on_start(self, ledger: RunLedger) -> None:
        """All clients are connected; the clock runs. The ledger fills from now on."""

    def on_tick(self, now_ns: int) -> None:
        """Ten times a second."""

    def on_fault(self, planned: PlannedFault, at_ns: int) -> None:
        """The fault has struck."""

    def on_repair(self, planned: PlannedFault, at_ns: int) -> None:
        """The fault is over: processes listen again, links carry again."""

    def on_published(self, at_ns: int) -> None:
        """Publishers have finished and no fault is left; what is under way still arrives."""

    def on_settled(self, at_ns: int) -> None:
        """Nothing is under way any more, or the time for that is over."""
