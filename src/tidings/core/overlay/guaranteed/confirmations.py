"""Confirms publications of a guaranteed broker to their senders."""

from __future__ import annotations

from tidings.core.kernel import Port
from tidings.core.messages import Confirm
from tidings.core.overlay.guaranteed.hops import Hops
from tidings.core.overlay.guaranteed.messages import Parked, Passed
from tidings.core.overlay.guaranteed.queued import Flow, Hop, LocalClient, Queued


class Confirmations:
    """Sends confirmations to other brokers and to our own clients."""

    def __init__(self, port: Port, hops: Hops) -> None:
        self._port = port
        self._hops = hops

    def finished(self, queued: Queued) -> None:
        """Everybody has the entry."""
        for sender, number in queued.senders:
            self.passed(sender, queued.flow, number, queued.count)

    def passed(self, sender: Hop, flow: Flow, number: int, count: int) -> None:
        """Everybody has the `count` publications from `number` on."""
        last = number + count - 1
        if not isinstance(sender, LocalClient):
            self._port.send(sender, Passed(((number, last),)))
        elif sender in self._hops.outgoing:  # an absent client asks again when it returns
            self._port.send(sender.name, Confirm(flow[2], number, last))

    def parked(self, queued: Queued, senders: list[tuple[Hop, int]]) -> None:
        """The entry waits only for somebody unreachable. If our own client published it, it is on disk."""
        for sender, number in senders:
            last = number + queued.count - 1
            if not isinstance(sender, LocalClient):
                self._port.send(sender, Parked(((number, last),)))
            elif sender in self._hops.outgoing:
                self._port.send(sender.name, Confirm(queued.flow[2], number, last, kept=True))
