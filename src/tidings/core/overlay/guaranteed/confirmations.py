"""Telling those who sent publications to a guaranteed broker what became of them."""

from __future__ import annotations

from tidings.core.kernel import Port
from tidings.core.messages import Confirm
from tidings.core.overlay.guaranteed.hops import Hops
from tidings.core.overlay.guaranteed.messages import Parked, Passed
from tidings.core.overlay.guaranteed.queued import Flow, Hop, LocalClient, Queued


class Confirmations:
    def __init__(self, port: Port, hops: Hops) -> None:
        self._port = port
        self._hops = hops

    def finished(self, queued: Queued) -> None:
        """Everybody has it."""
        for sender, number in queued.senders:
            self.passed(sender, queued.flow, number, queued.count)

    def passed(self, sender: Hop, flow: Flow, number: int, count: int) -> None:
        """Everybody has those from that number on, so many."""
        last = number + count - 1
        if not isinstance(sender, LocalClient):
            self._port.send(sender, Passed(((number, last),)))
        elif sender in self._hops:  # else it is away, and asks again
            self._port.send(sender.name, Confirm(flow[2], number, last))

    def parked(self, queued: Queued, senders: list[tuple[Hop, int]]) -> None:
        """It waits only for somebody who cannot be reached; of our own clients it is on disk."""
        for sender, number in senders:
            last = number + queued.count - 1
            if not isinstance(sender, LocalClient):
                self._port.send(sender, Parked(((number, last),)))
            elif sender in self._hops:
                self._port.send(sender.name, Confirm(queued.flow[2], number, last, kept=True))
