"""The next home's side of a move (share_moves.py): takes a share over, then what its former home still sends."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec
from msgspec import Raw, structs

from tidings.core.errors import StoreError, WireError
from tidings.core.events.run import decode_stretch
from tidings.core.facts import Misbehaviour, ShareFailed
from tidings.core.kernel import Port
from tidings.core.overlay.guaranteed.far_links import FarLinks
from tidings.core.overlay.guaranteed.former_home import FormerHome, Place
from tidings.core.overlay.guaranteed.held_share import HeldShare
from tidings.core.overlay.guaranteed.kept_share import KeptShare
from tidings.core.overlay.guaranteed.merged_sources import MergedSources, SourceId
from tidings.core.overlay.guaranteed.share_definition import TABLE as SHARES
from tidings.core.overlay.guaranteed.share_definition import ShareDefinition, belongs
from tidings.core.overlay.guaranteed.share_departures import MoveHost
from tidings.core.overlay.guaranteed.share_messages import (
    MoveMessage,
    ShareForward,
    ShareForwarded,
    ShareMoveAsked,
    ShareMoved,
    ShareMoveEnded,
    ShareMoveRows,
    ShareMoveTaken,
)
from tidings.core.overlay.guaranteed.share_move_rows import (
    BEHIND,
    COMING,
    At,
    Behind,
    Coming,
    complete_row,
    complete_rows,
    row,
)
from tidings.core.overlay.guaranteed.share_move_rows import TABLE as MOVES
from tidings.core.store import Change, Store

QUIET_NS = 10_000_000_000
"""For how long everybody has known a subscription before a source counts as complete."""

_decode_definition = msgspec.msgpack.Decoder(ShareDefinition).decode


class _Arriving:
    """A share that may come here."""

    __slots__ = ("held", "row", "taken")

    def __init__(self, coming: Coming, held: HeldShare) -> None:
        self.row = coming
        self.held = held
        self.taken = -1
        """The last part that is on disk."""


class ShareTakeovers:
    """Shares that come to this broker, and those that have come. `formers` is shared with the former home's side."""

    quiet_ns = QUIET_NS

    def __init__(
        self,
        port: Port,
        store: Store,
        links: FarLinks,
        host: MoveHost,
        formers: Mapping[At, FormerHome],
        *,
        incarnation: int,
    ) -> None:
        self._port = port
        self._store = store
        self._links = links
        self._host = host
        self._formers = formers
        self._incarnation = incarnation
        self._arriving: dict[str, _Arriving] = {}
        self._behind: dict[At, Behind] = {}
        """By name, and epoch of the share (or what is left of it) here."""

    def start(
        self,
        coming: Iterable[Coming],
        behind: Mapping[At, Behind],
        complete: Mapping[At, Iterable[SourceId]],
    ) -> None:
        self._behind.update(behind)
        for at in behind:
            share = self._at(at)
            if share is not None:
                share.merged = self._merge(share, complete.get(at, ()))
        for each in coming:
            arriving = self._arriving[each.definition.name] = _Arriving(each, self._make(each.definition))
            self._host.enter(arriving.held)
            if not each.prepared:
                self._discard(arriving)

    def _make(self, definition: ShareDefinition) -> HeldShare:
        return HeldShare(definition, KeptShare(definition, self._store), self._host.tell, self._port.now)

    def _at(self, at: At) -> HeldShare | FormerHome | None:
        share = self._host.shares.get(at[0])
        if share is not None and share.definition.epoch == at[1]:
            return share
        return self._formers.get(at)

    def _to(self, broker: str, message: MoveMessage) -> None:
        self._links.send(broker, "", message)

    @property
    def peers(self) -> set[str]:
        """The brokers that a link is needed to."""
        arriving = {arriving.row.origin.broker for arriving in self._arriving.values()}
        return arriving | {behind.origin.broker for behind in self._behind.values()}

    def check(self) -> None:
        for arriving in self._arriving.values():
            self._ask(arriving.row)
        for at, behind in list(self._behind.items()):
            self._links.open(*behind.origin)
            share = self._at(at)
            if isinstance(share, HeldShare):
                unreached = "" if self._links.is_up(behind.origin.broker) else behind.origin.broker
                if unreached != share.behind:
                    share.behind = unreached
                    share.tell_coverage()
        everything: list[HeldShare | FormerHome] = [*self._host.shares.values(), *self._formers.values()]
        for each in everything:
            if each.merged is not None:
                self._go_on(each)

    # --- Coming

    def origin(self, name: str) -> tuple[int, Place] | None:
        """Return the epoch and place of a share that may come here; None if there is none."""
        arriving = self._arriving.get(name)
        return None if arriving is None else (arriving.row.definition.epoch - 1, arriving.row.origin)

    def on_rows(self, broker: str, message: ShareMoveRows) -> None:
        name = message.name
        if message.part == 0 and not self._expect(broker, message):
            self._to(broker, ShareMoveEnded(name, message.epoch))
        arriving = self._arriving.get(name)
        if arriving is None or not self._is_next(arriving, broker, message):
            return
        if not all(belongs(key, name) for key, _ in message.rows):
            self._port.emit(Misbehaviour(broker, f"sends rows that are not of {name!r}"))
            return
        changes: list[Change] = [(SHARES, key, value) for key, value in message.rows]
        if message.last:
            arriving.row = structs.replace(arriving.row, prepared=True)
            changes.append(row(COMING, (name, message.epoch), arriving.row))
        try:
            self._store.write(changes)
        except StoreError as error:
            self._port.emit(ShareFailed(name, f"it cannot move here: {error}"))
            self._discard(arriving)
            self._to(broker, ShareMoveEnded(name, message.epoch))
            return
        arriving.taken = message.part
        self._to(broker, ShareMoveTaken(name, message.epoch, message.part))

    def _is_next(self, arriving: _Arriving, broker: str, message: ShareMoveRows) -> bool:
        coming = arriving.row
        expected = (coming.origin.broker, coming.definition.epoch, arriving.taken + 1)
        return not coming.prepared and expected == (broker, message.epoch, message.part)

    def _expect(self, broker: str, message: ShareMoveRows) -> bool:
        """Begin to take a share over; return False if it cannot come."""
        name, label = message.name, self._links.label_of(broker)
        try:
            definition = _decode_definition(message.definition)
        except msgspec.MsgspecError as error:
            what = f"sends a durable subscription that does not decode: {error}"
            self._port.emit(Misbehaviour(broker, what))
            return False
        is_that = (definition.name, definition.epoch) == (name, message.epoch)
        if label is None or name in self._host.shares or not is_that:
            return False
        if name in self._arriving:
            self._discard(self._arriving[name])
        definition = structs.replace(definition, came_in=self._incarnation)
        coming = Coming(definition, Place(broker, label), message.formers)
        try:
            self._store.write([row(COMING, (name, definition.epoch), coming)])
        except StoreError as error:
            self._port.emit(ShareFailed(name, f"it cannot move here: {error}"))
            return False
        arriving = self._arriving[name] = _Arriving(coming, self._make(definition))
        self._host.enter(arriving.held)
        return True

    def _discard(self, arriving: _Arriving) -> None:
        """The share does not come here."""
        definition = arriving.row.definition
        del self._arriving[definition.name]
        changes: list[Change] = [(SHARES, key, None) for key, _ in self._rows_of(definition.name)]
        self._store.write([*changes, row(COMING, (definition.name, definition.epoch), None)])
        self._host.exit(arriving.held)

    def _rows_of(self, name: str) -> list[tuple[bytes, bytes]]:
        return [(key, value) for key, value in self._store.read(SHARES) if belongs(key, name)]

    def _ask(self, coming: Coming) -> None:
        """Ask what became of a move that we are prepared for."""
        if coming.prepared:
            self._links.open(*coming.origin)
            self._to(coming.origin.broker, ShareMoveAsked(coming.definition.name, coming.definition.epoch))

    def on_moved(self, broker: str, message: ShareMoved) -> None:
        arriving, at = self._arriving.get(message.name), (message.name, message.epoch)
        if arriving is None or not arriving.row.prepared or arriving.row.definition.epoch != message.epoch:
            if at not in self._behind:
                self._to(broker, ShareMoveEnded(*at))
            return
        try:
            self.take_over(arriving)
        except StoreError as error:  # we ask again
            self._port.emit(ShareFailed(message.name, f"it cannot move here: {error}"))

    def take_over(self, arriving: _Arriving) -> None:
        """The share is ours."""
        coming, held = arriving.row, arriving.held
        name = coming.definition.name
        at = (name, coming.definition.epoch)
        behind = Behind(coming.origin, coming.formers)
        self._store.write([row(COMING, at, None), row(BEHIND, at, behind), *held.kept.created()])
        del self._arriving[name]
        self._behind[at] = behind
        prefix = len(name.encode()) + 1
        held.kept.load([(key[prefix:], value) for key, value in self._rows_of(name)], self._port.now)
        held.merged = self._merge(held, ())
        held.renew_lease(self._port.now)
        self._host.shares[name] = held
        self._host.go_on(held)

    # --- Having come

    def count(self, at: At) -> int:
        behind = self._behind.get(at)
        return 0 if behind is None else behind.formers

    def _merge(self, share: HeldShare | FormerHome, complete: Iterable[SourceId]) -> MergedSources:
        at = (share.definition.name, share.definition.epoch)

        def may_conclude() -> bool:
            return share.covered_at is not None and self._port.now - share.covered_at >= self.quiet_ns

        def note(source: SourceId, forgotten: SourceId | None) -> bool:
            changes = [complete_row(at, source)]
            if forgotten is not None:
                changes.append(complete_row(at, forgotten, kept=False))
            try:
                self._store.write(changes)
            except StoreError:
                return False
            return True

        return MergedSources(share, complete, may_conclude, note)

    def on_forward(self, broker: str, message: ShareForward) -> None:
        at = (message.name, message.epoch)
        share, behind = self._at(at), self._behind.get(at)
        if share is None or behind is None or behind.origin.broker != broker or share.merged is None:
            self._to(broker, ShareMoveEnded(*at))
            return
        try:
            stretch = decode_stretch(Raw(message.events))
        except WireError as error:
            self._port.emit(Misbehaviour(broker, str(error)))
            return
        merged, source = share.merged, (stretch.source, stretch.incarnation)

        def done() -> None:
            complete = (source,) if merged.is_complete(source) else ()
            self._to(broker, ShareForwarded(*at, message.number, complete))

        merged.forwarded(stretch, done)
        self._go_on(share)

    def _go_on(self, share: HeldShare | FormerHome) -> None:
        """Take what was held up, if there is room now."""
        if share.merged is not None:
            share.merged.go_on()
            if share.merged.is_over:
                share.merged = None
        if isinstance(share, HeldShare):
            self._host.go_on(share)
        else:
            self._host.report(share)

    def forget(self, share: HeldShare | FormerHome, *, tell: bool) -> None:
        """Nothing more comes from the former home, or is wanted of it."""
        at = (share.definition.name, share.definition.epoch)
        behind = self._behind.pop(at, None)
        if behind is None:
            return
        if tell:
            self._to(behind.origin.broker, ShareMoveEnded(*at))
        changes: list[Change] = [(MOVES, key, None) for key in complete_rows(self._store, at)]
        self._store.write([row(BEHIND, at, None), *changes])

    def on_ended(self, broker: str, message: ShareMoveEnded) -> None:
        """The former home gives up the move, or sends nothing more."""
        at = (message.name, message.epoch)
        arriving, behind, share = self._arriving.get(message.name), self._behind.get(at), self._at(at)
        if arriving is not None and (arriving.row.origin.broker, arriving.row.definition.epoch) == (
            broker,
            message.epoch,
        ):
            self._discard(arriving)
        elif behind is not None and behind.origin.broker == broker and share is not None:
            self._go_alone(share)

    def _go_alone(self, share: HeldShare | FormerHome) -> None:
        """The former home has ended: what is held is all there is."""
        self.forget(share, tell=False)
        if share.merged is not None:
            share.merged.go_alone()
        if isinstance(share, HeldShare):
            share.behind = ""
            share.tell_coverage()
        self._go_on(share)

    # --- Links

    def far_up(self, broker: str) -> None:
        for arriving in self._arriving.values():
            if arriving.row.origin.broker == broker:
                self._ask(arriving.row)
        for at, behind in self._behind.items():
            if behind.origin.broker == broker:
                self._to(broker, ShareMoveAsked(*at))

    def far_down(self, broker: str) -> None:
        for arriving in list(self._arriving.values()):
            if arriving.row.origin.broker == broker and not arriving.row.prepared:
                self._discard(arriving)
