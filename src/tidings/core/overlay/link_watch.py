"""Notices that a neighbour is gone while members of groups are behind it, also where links report nothing.

A broker that has announced members to a neighbour shows it every half second that it is still here. One that is silent
for six seconds is gone with everybody behind it, until it is heard again. Without members nothing is sent.
"""

from __future__ import annotations

from tidings.core.events.subscription import Interest
from tidings.core.kernel import Part, Port, TimerName
from tidings.core.overlay.forwarding import Forwarding
from tidings.core.overlay.members import is_member
from tidings.core.overlay.messages import StillHere
from tidings.core.overlay.routing import RoutingListener, RoutingTable

STILL_HERE_NS = 500_000_000
SILENT_AFTER_NS = 6_000_000_000


class LinkWatch(Part, RoutingListener):
    name = "link-watch"
    handles = {StillHere: "on_still_here"}

    def __init__(self, port: Port, table: RoutingTable, forwarding: Forwarding) -> None:
        super().__init__(port)
        self._forwarding = forwarding
        self._heard_at: dict[str, int] = {}
        """Of neighbours with members behind them."""
        self._watching = False
        table.listeners.append(self)

    def held_here(self, interest: Interest, held: bool) -> None:
        if held and is_member(interest) and not self._watching:
            self._watching = True
            self.port.set_timer((self.name,), self.port.now)

    def on_timer(self, name: TimerName) -> None:
        links, now = self._forwarding.links.values(), self.port.now
        for link in links:
            if link.members_sent and link.present:
                self.port.send(link.peer, StillHere(self._forwarding.incarnation))
            if link.silent or not link.members_received:
                self._heard_at.pop(link.peer, None)
            elif now - self._heard_at.setdefault(link.peer, now) > SILENT_AFTER_NS:
                self._forwarding.fell_silent(link.peer)
        self._watching = any(link.members_sent or link.members_received for link in links)
        if self._watching:
            self.port.set_timer((self.name,), now + STILL_HERE_NS)

    def on_still_here(self, sender: str, message: StillHere) -> None:
        link = self._forwarding.links.get(sender)
        if link is not None and message.incarnation == link.heard and link.members_received:
            self._heard_at[sender] = self.port.now
            self._forwarding.heard_of(sender)
