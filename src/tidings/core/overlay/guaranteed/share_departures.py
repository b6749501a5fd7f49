"""The former home's side of a move (share_moves.py): sends a share to the next home, then what still comes for it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Protocol

import msgspec
from msgspec import structs

from tidings.core.errors import StoreError
from tidings.core.facts import ShareFailed
from tidings.core.kernel import Port
from tidings.core.overlay.guaranteed.far_links import FarLinks
from tidings.core.overlay.guaranteed.former_home import FormerHome, Place
from tidings.core.overlay.guaranteed.held_share import Client, HeldShare, Holder
from tidings.core.overlay.guaranteed.share_messages import (
    MAX_ROWS,
    NEW_START,
    MoveMessage,
    ShareAttach,
    ShareForwarded,
    ShareInterrupted,
    ShareMessage,
    ShareMoveAsked,
    ShareMoved,
    ShareMoveEnded,
    ShareMoveRows,
    ShareMoveTaken,
    ShareRefused,
)
from tidings.core.overlay.guaranteed.share_move_rows import FORMER, At, Former, row
from tidings.core.store import Store

PATIENCE_NS = 60_000_000_000
"""A move that takes longer is given up."""
FORMER_KEEP_NS = 7 * 24 * 3_600 * 1_000_000_000
"""For how long a former home sends on what comes, or longer, for as long as the share is kept. A short lease says
nothing about how long events are on their way. If the share ends, so does the former home."""
PART_BYTES = 32 * 1024
PARTS_AHEAD = 16
MAX_DEFERRED = 1_024
Part = tuple[tuple[tuple[bytes, bytes], ...], bool]
"""Rows, and whether they are the last."""

_encode = msgspec.msgpack.Encoder().encode


class MoveHost(Protocol):
    """The shares of this broker."""

    shares: dict[str, HeldShare]

    def enter(self, share: HeldShare | FormerHome) -> None:
        """Let the share, or what is left of it, subscribe as a client of this broker."""

    def read_as(self, share: FormerHome) -> None:
        """Let a former home read what arrives for a share that was a home."""

    def exit(self, share: HeldShare | FormerHome) -> None:
        """End the client, and its subscriptions."""

    def interrupt(self, share: HeldShare, home: str) -> None:
        """Detach everybody, who will attach again."""

    def attach(self, client: Client, message: ShareAttach) -> None: ...
    def tell(self, client: Client, message: ShareMessage) -> None: ...
    def go_on(self, share: HeldShare) -> None:
        """Read what arrived, and give out what is due."""

    def report(self, share: HeldShare | FormerHome) -> None:
        """Tell the broker what the share is done with."""


class Predecessors(Protocol):
    """The homes before this one."""

    def count(self, at: At) -> int:
        """Return how many former homes the share at that epoch has."""

    def forget(self, share: HeldShare | FormerHome, *, tell: bool) -> None:
        """Nothing more is wanted of them."""


class _Leaving:
    """A share on its way to another broker."""

    __slots__ = ("began_at", "deferred", "epoch", "last", "parts", "sent", "taken", "to")

    def __init__(self, to: Place, epoch: int, parts: Iterator[Part], now: int) -> None:
        self.to = to
        self.epoch = epoch
        """Of the share at the next home."""
        self.parts = parts
        self.sent = 0
        self.taken = -1
        self.last: int | None = None
        """The number of the last part, once it was sent."""
        self.began_at = now
        self.deferred: dict[Holder, ShareAttach] = {}
        """Who wants to attach meanwhile."""


class ShareDepartures:
    """Shares that leave this broker, and those that have left. `formers` is shared with the next home's side."""

    def __init__(
        self,
        port: Port,
        store: Store,
        links: FarLinks,
        host: MoveHost,
        formers: dict[At, FormerHome],
        predecessors: Predecessors,
    ) -> None:
        self._port = port
        self._store = store
        self._links = links
        self._host = host
        self._formers = formers
        self._predecessors = predecessors
        self._leaving: dict[str, _Leaving] = {}

    def start(self, stored: Mapping[At, Former]) -> None:
        for at, former in stored.items():
            send = partial(self._to, former.successor.broker)
            self._formers[at] = FormerHome(former.definition, former.successor, self._port.now, send)
            self._host.enter(self._formers[at])

    def _to(self, broker: str, message: MoveMessage) -> None:
        self._links.send(broker, "", message)

    @property
    def peers(self) -> set[str]:
        """The brokers that a link is needed to."""
        leaving = {leaving.to.broker for leaving in self._leaving.values()}
        return leaving | {former.successor.broker for former in self._formers.values()}

    def check(self) -> None:
        now = self._port.now
        for name, leaving in list(self._leaving.items()):
            if now - leaving.began_at > PATIENCE_NS:
                self.give_up(self._host.shares[name])
        for former in list(self._formers.values()):
            self._links.open(*former.successor)
            if now - former.since > max(former.definition.keep_for_ns, FORMER_KEEP_NS):
                self.end(former, tell=True)

    # --- Leaving

    def begin(self, share: HeldShare, to: Place) -> None:
        """Stop, and send what is kept to the next home."""
        share.frozen = True
        epoch = share.definition.epoch + 1
        self._leaving[share.definition.name] = _Leaving(to, epoch, _parts(share.kept.rows()), self._port.now)
        self._host.interrupt(share, self._port.node)
        self._send_parts(share)

    def _send_parts(self, share: HeldShare) -> None:
        definition = share.definition
        leaving = self._leaving[definition.name]
        while leaving.last is None and leaving.sent - leaving.taken <= PARTS_AHEAD:
            rows, last = next(leaving.parts)
            number, leaving.sent = leaving.sent, leaving.sent + 1
            if last:
                leaving.last = number
            moved = (
                b"" if number else _encode(structs.replace(definition, epoch=leaving.epoch, start=NEW_START))
            )
            formers = 1 + self._predecessors.count((definition.name, definition.epoch))
            message = ShareMoveRows(definition.name, leaving.epoch, number, rows, moved, formers, last)
            self._to(leaving.to.broker, message)

    def on_taken(self, broker: str, message: ShareMoveTaken) -> None:
        leaving, share = self._leaving.get(message.name), self._host.shares.get(message.name)
        if leaving is None or share is None or leaving.to.broker != broker:
            return
        if message.epoch != leaving.epoch or message.part >= leaving.sent:
            return
        leaving.taken = max(leaving.taken, message.part)
        if leaving.last is None or leaving.taken < leaving.last:
            self._send_parts(share)
            return
        try:
            self._commit(share, leaving)
        except StoreError as error:
            self._port.emit(ShareFailed(message.name, f"it cannot move: {error}"))
            self.give_up(share)

    def _commit(self, share: HeldShare, leaving: _Leaving) -> None:
        """The share is the next home's from now on."""
        definition = share.definition
        at = (definition.name, definition.epoch)
        self._store.write([row(FORMER, at, Former(definition, leaving.to))])
        del self._leaving[definition.name]
        former = self._formers[at] = FormerHome(
            definition,
            leaving.to,
            self._port.now,
            partial(self._to, leaving.to.broker),
            share.inbox,
            share.arrivals,
        )
        former.covered_at = share.covered_at
        former.start_with(share.kept.marks)
        if share.merged is not None:
            former.merged, former.merged.sink = share.merged, former
        share.kept.erase()
        del self._host.shares[definition.name]
        self._to(leaving.to.broker, ShareMoved(definition.name, leaving.epoch))
        self._host.read_as(former)
        for client, subscription in leaving.deferred:
            self._host.tell(client, ShareInterrupted(subscription, leaving.to.broker))

    def give_up(self, share: HeldShare) -> None:
        """The share stays here."""
        leaving = self._leaving.pop(share.definition.name)
        share.frozen = False
        share.attached_at = self._port.now
        share.renew_lease(self._port.now)
        self._to(leaving.to.broker, ShareMoveEnded(share.definition.name, leaving.epoch))
        for (client, _), message in leaving.deferred.items():
            self._host.attach(client, message)
        self._host.go_on(share)

    def defer(self, client: Client, message: ShareAttach) -> None:
        """Let a client wait until the move is over. Refuse it if too many do."""
        deferred, holder = self._leaving[message.name].deferred, (client, message.subscription)
        if holder not in deferred and len(deferred) >= MAX_DEFERRED:
            reason = f"{message.name!r} is moving to another broker: try again"
            self._host.tell(client, ShareRefused(message.subscription, reason))
            return
        deferred[holder] = message

    def left(self, client: Client, subscription: str | None) -> None:
        """A client, or one that waits for this subscription, no longer wants to attach."""
        for leaving in self._leaving.values():
            leaving.deferred = {
                holder: message
                for holder, message in leaving.deferred.items()
                if holder[0] != client or subscription not in (None, holder[1])
            }

    # --- Having left

    def successor(self, name: str) -> tuple[int, Place] | None:
        """Return the latest epoch and place of a share that was here; None if it never was."""
        gone = [
            (epoch + 1, former.successor) for (each, epoch), former in self._formers.items() if each == name
        ]
        return max(gone, default=None)

    def on_asked(self, broker: str, message: ShareMoveAsked) -> None:
        name, epoch = message.name, message.epoch
        if self._former_of(broker, name, epoch) is not None:
            self._to(broker, ShareMoved(name, epoch))
        elif name not in self._leaving:
            self._to(broker, ShareMoveEnded(name, epoch))

    def _former_of(self, broker: str, name: str, epoch: int) -> FormerHome | None:
        """Return the former home from which the share went to that broker with that epoch."""
        former = self._formers.get((name, epoch - 1))
        return former if former is not None and former.successor.broker == broker else None

    def on_forwarded(self, broker: str, message: ShareForwarded) -> None:
        former = self._former_of(broker, message.name, message.epoch)
        if former is not None:
            former.answered(message.number, message.complete)
            self._host.report(former)

    def on_ended(self, broker: str, message: ShareMoveEnded) -> None:
        """The next home gives up the move, or needs us no more."""
        leaving = self._leaving.get(message.name)
        former = self._former_of(broker, message.name, message.epoch)
        if leaving is not None and (leaving.to.broker, leaving.epoch) == (broker, message.epoch):
            self.give_up(self._host.shares[message.name])
        elif former is not None:
            self.end(former, tell=False)

    def end(self, former: FormerHome, *, tell: bool) -> None:
        """Send nothing on any more."""
        definition = former.definition
        at = (definition.name, definition.epoch)
        del self._formers[at]
        self._store.write([row(FORMER, at, None)])
        if tell:
            self._to(former.successor.broker, ShareMoveEnded(definition.name, definition.epoch + 1))
        self._predecessors.forget(former, tell=True)
        self._host.exit(former)

    def end_all(self) -> list[str]:
        """Send nothing on any more, because this broker leaves. Return the names of shares for which that cannot be,
        because something is on its way or the next home cannot be reached; then nothing has changed."""
        stuck = [
            former.definition.name
            for former in self._formers.values()
            if not self._links.is_up(former.successor.broker) or not former.is_idle
        ]
        for former in [] if stuck else list(self._formers.values()):
            self.end(former, tell=True)
        return sorted(stuck)

    # --- Links

    def far_up(self, broker: str) -> None:
        for former in list(self._formers.values()):
            if former.successor.broker == broker:
                self._to(broker, ShareMoved(former.definition.name, former.definition.epoch + 1))
                former.repeat()

    def far_down(self, broker: str) -> None:
        for name, leaving in list(self._leaving.items()):
            if leaving.to.broker == broker:
                self.give_up(self._host.shares[name])


def _parts(rows: Iterator[tuple[bytes, bytes]]) -> Iterator[Part]:
    """Yield rows in parts, and whether a part is the last; there is at least one."""
    part: list[tuple[bytes, bytes]] = []
    size_bytes = 0
    for key, value in rows:
        if part and (size_bytes > PART_BYTES or len(part) >= MAX_ROWS):
            yield tuple(part), False
            part, size_bytes = [], 0
        part.append((key, value))
        size_bytes += len(key) + len(value)
    yield tuple(part), True
