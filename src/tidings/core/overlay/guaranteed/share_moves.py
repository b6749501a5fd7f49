"""Moves durable subscriptions to the brokers of their holders.

A share whose only holder has been at another broker for a while moves there: then the holder's broker is enough to go
on. What the share keeps is sent over while nobody is attached, and comes to life there under the same numbers, as after
a restart. The home before becomes a former home (former_home.py), and the events of both are merged
(merged_sources.py).

    former home                                            next home
    nothing is given out any more
    ShareMoveRows, in parts                    ->          writes them to disk
                                               <-          ShareMoveTaken
    writes that it has moved, forgets its rows
    ShareMoved                                 ->          is the home
    ShareForward: what still comes             ->
                                               <-          ShareForwarded

Until the former home has written that the share has moved, the share is its own, and goes on there if the link breaks.
A next home that has all rows asks what became of the move. Each move raises the share's epoch; where brokers differ on
where a share is, the highest epoch counts.

`share_departures.py` is the former home's side, `share_takeovers.py` the next home's, `share_move_rows.py` what either
has on disk.
"""

from __future__ import annotations

from typing import assert_never

from tidings.core.kernel import Port
from tidings.core.overlay.guaranteed.far_links import FarLinks
from tidings.core.overlay.guaranteed.former_home import FormerHome, Place
from tidings.core.overlay.guaranteed.held_share import Client, FarClient, HeldShare
from tidings.core.overlay.guaranteed.share_departures import MoveHost, ShareDepartures
from tidings.core.overlay.guaranteed.share_messages import (
    MoveMessage,
    ShareAttach,
    ShareForward,
    ShareForwarded,
    ShareMoveAsked,
    ShareMoved,
    ShareMoveEnded,
    ShareMoveRows,
    ShareMoveTaken,
)
from tidings.core.overlay.guaranteed.share_move_rows import At, StoredMoves
from tidings.core.overlay.guaranteed.share_takeovers import ShareTakeovers
from tidings.core.store import Store

SETTLED_NS = 5_000_000_000
"""How long a share's only holder is at another broker before the share follows."""
MAX_MOVED_BYTES = 64 * 1024 * 1024
"""A share that keeps more stays where it is until less is left."""
MAX_FORMER_HOMES = 8
"""A share with as many former homes behind it stays where it is until the oldest has ended."""


class ShareMoves:
    """Decides when a share moves, and brings both sides of every move their messages."""

    settled_ns = SETTLED_NS

    def __init__(
        self, port: Port, store: Store, links: FarLinks, host: MoveHost, *, incarnation: int
    ) -> None:
        self._port = port
        self._store = store
        self._links = links
        self._host = host
        self._formers: dict[At, FormerHome] = {}
        """By name, and epoch while the share was here."""
        self.takeovers = ShareTakeovers(port, store, links, host, self._formers, incarnation=incarnation)
        self.departures = ShareDepartures(port, store, links, host, self._formers, self.takeovers)

    def start(self) -> None:
        """Take up what was under way before a restart."""
        stored = StoredMoves(self._store)
        self.departures.start(stored.former)
        self.takeovers.start(stored.coming, stored.behind, stored.complete)

    def check(self) -> None:
        for share in list(self._host.shares.values()):
            place = self._goal(share)
            if place is not None:
                self.departures.begin(share, place)
        self.departures.check()
        self.takeovers.check()

    def _goal(self, share: HeldShare) -> Place | None:
        """Return where the share should be; None: it stays."""
        if not self._is_free_to_move(share):
            return None
        ((client, _),) = share.holders.values()
        if not isinstance(client, FarClient) or not self._links.is_up(client.broker):
            return None
        label = self._links.label_of(client.broker)
        return None if label is None else Place(client.broker, label)

    def _is_free_to_move(self, share: HeldShare) -> bool:
        definition = share.definition
        if definition.group or definition.is_ordered or share.readers or share.reads_history:
            return False
        if share.frozen or share.uncovered or share.waiting or len(share.holders) != 1:
            return False
        return (
            self._port.now - share.attached_at >= self.settled_ns
            and share.kept.size_bytes <= MAX_MOVED_BYTES
            and self.takeovers.count((definition.name, definition.epoch)) < MAX_FORMER_HOMES
        )

    # --- Questions of the host

    def defer(self, client: Client, message: ShareAttach) -> None:
        """Let a client wait until the move of the share is over."""
        self.departures.defer(client, message)

    def left(self, client: Client, subscription: str | None = None) -> None:
        """A client, or one that waits for this subscription, no longer wants to attach."""
        self.departures.left(client, subscription)

    def give_up(self, share: HeldShare) -> None:
        """The share stays here."""
        self.departures.give_up(share)

    def whereabouts(self, name: str) -> tuple[int, Place] | None:
        """Return the latest epoch and place of a share that was here, or that may come here; None if there is none."""
        found = [self.departures.successor(name), self.takeovers.origin(name)]
        return max((each for each in found if each is not None), default=None)

    def status(self) -> list[dict[str, object]]:
        """Return the names of the shares that were here, and where they went."""
        formers = sorted((name, former.successor.broker) for (name, _), former in self._formers.items())
        return [{"name": name, "broker": broker} for name, broker in formers]

    @property
    def peers(self) -> set[str]:
        """The brokers that a move needs a link to."""
        return self.departures.peers | self.takeovers.peers

    def ended(self, share: HeldShare) -> None:
        """A share of ours is over, and with it what is left of it elsewhere."""
        self.takeovers.forget(share, tell=True)

    def end_formers(self) -> list[str]:
        """Send nothing on any more, because this broker leaves; return the names of shares for which that cannot be."""
        return self.departures.end_all()

    # --- Other brokers

    def receive(self, broker: str, message: MoveMessage) -> None:
        match message:
            case ShareMoveRows():
                self.takeovers.on_rows(broker, message)
            case ShareMoveTaken():
                self.departures.on_taken(broker, message)
            case ShareMoved():
                self.takeovers.on_moved(broker, message)
            case ShareMoveAsked():
                self.departures.on_asked(broker, message)
            case ShareMoveEnded():  # at most one of the sides knows it by this epoch
                self.takeovers.on_ended(broker, message)
                self.departures.on_ended(broker, message)
            case ShareForward():
                self.takeovers.on_forward(broker, message)
            case ShareForwarded():
                self.departures.on_forwarded(broker, message)
            case _:
                assert_never(message)

    def far_up(self, broker: str) -> None:
        self.departures.far_up(broker)
        self.takeovers.far_up(broker)

    def far_down(self, broker: str) -> None:
        self.departures.far_down(broker)
        self.takeovers.far_down(broker)
