"""The spill: parked publications on disk (core/overlay/guaranteed/parking.py)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import msgspec

from tidings.core.errors import StoreCorrupt, StoreError, StoreFull, WireError
from tidings.core.events.run import Run, Stretch, decode_stretch
from tidings.core.overlay.guaranteed.messages import Forward, ForwardGap
from tidings.core.overlay.guaranteed.queued import Queued, Row
from tidings.core.store import Change, Store


class SpillLimits:
    """Limits what may wait for unreachable subscribers: entries in memory, each of consecutive publications, and bytes
    on disk."""

    __slots__ = ("entries", "size_bytes")

    def __init__(self, entries: int = 100_000, size_bytes: int = 1024 * 1024 * 1024) -> None:
        self.entries = entries
        self.size_bytes = size_bytes


class Spilled(msgspec.Struct, array_like=True, frozen=True):
    """A row on disk: some consecutive publications."""

    serial: int
    origin: str
    label: tuple[int, ...]
    generation: int
    stamp: int
    log_position: int
    excluded: tuple[str, ...]
    own: bool
    """They are from one of this broker's own clients, which was told that they are safe."""
    raw: bytes

    def stretch(self) -> Stretch:
        return decode_stretch(msgspec.Raw(self.raw))


_encode = msgspec.msgpack.Encoder().encode
_decode_spilled = msgspec.msgpack.Decoder(Spilled).decode


class Spill:
    """Writes and reads spilled publications. Calls `complain` once when the disk fills up, and whenever a removal
    fails."""

    def __init__(self, broker: str, store: Store, complain: Callable[[str], None]) -> None:
        self._broker = broker
        self._store = store
        self._complain = complain
        self._full = False
        self._outdated: dict[bytes, Row] = {}
        """Rows that are delivered, at least in part."""

    @property
    def size_bytes(self) -> int:
        return self._store.size_bytes("spill")

    @property
    def is_outdated(self) -> bool:
        return bool(self._outdated)

    def keep(self, batch: Sequence[Queued]) -> bool:
        """Write these and drop them from memory. Return False, with nothing changed, if the disk is full."""
        try:
            self._store.write([("spill", _key(queued.serial), self._value(queued)) for queued in batch])
        except StoreFull as error:
            if not self._full:
                self._full = True
                self._complain(str(error))
            return False
        self._full = False
        for queued in batch:
            queued.keep_in(Row(_key(queued.serial)))
            queued.message = None
        return True

    def _value(self, queued: Queued) -> bytes:
        message = self.body(queued)
        assert isinstance(message, Forward)
        return _encode(
            Spilled(
                queued.serial,
                message.origin,
                message.label,
                message.generation,
                message.stamp,
                queued.log_position,
                queued.excluded,
                queued.flow[0] == self._broker,
                bytes(message.stretch.raw),
            )
        )

    def body(self, queued: Queued) -> Forward | ForwardGap:
        """Return the publications, from memory or from disk."""
        message = queued.message
        if message is None:
            return self._read(queued)
        if isinstance(message, Forward) and isinstance(message.stretch, Run):
            message = queued.message = _narrowed(message, queued)
        return message

    def _read(self, queued: Queued) -> Forward:
        value = None if queued.row is None else self._store.get("spill", queued.row.key)
        if value is None:
            raise StoreError(f"publication {queued.flow[1]}:{queued.first} is missing from the spill on disk")
        spilled = _decode_spilled(value)
        shared = (spilled.origin, spilled.label, spilled.generation, spilled.stamp)
        return _narrowed(Forward(*shared, queued.excluded, spilled.stretch()), queued)

    def forget(self, queued: Queued) -> None:
        """Let the next `sweep` remove a delivered entry. After a crash before that, it is only sent again."""
        row, queued.row = queued.row, None
        if row is not None:
            del row.pieces[queued.serial]
            self._outdated[row.key] = row

    def sweep(self) -> None:
        """Remove what is delivered. The rest of a row is rewritten as rows of its own."""
        if not self._outdated:
            return
        outdated, self._outdated = self._outdated, {}
        try:
            left = [queued for row in outdated.values() for queued in row.pieces.values()]
            changes: list[Change] = [("spill", key, None) for key in outdated]
            changes += [("spill", _key(queued.serial), self._value(queued)) for queued in left]
            self._store.write(changes)
        except StoreError as error:
            self._outdated = outdated | self._outdated
            self._complain(str(error))
            return
        for queued in left:
            queued.keep_in(Row(_key(queued.serial)))

    def reload(self) -> Iterator[tuple[Row, Spilled, Stretch]]:
        """After a restart, yield what our own clients were told is safe. Other clients' brokers still have theirs."""
        for key, value in self._store.read("spill"):
            try:
                spilled = _decode_spilled(value)
                stretch = spilled.stretch()
            except (msgspec.MsgspecError, WireError) as error:
                raise StoreCorrupt(f"row {key!r} of the spill does not decode: {error}") from None
            row = Row(key)
            if spilled.own:
                yield row, spilled, stretch
            if not row.pieces:
                self._outdated[key] = row


def _narrowed(message: Forward, queued: Queued) -> Forward:
    """Return the message with only the entry's publications."""
    stretch = message.stretch
    if not isinstance(stretch, Run) or (stretch.first, stretch.last) == (queued.first, queued.last):
        return message
    shared = (message.origin, message.label, message.generation, message.stamp, message.excluded)
    return Forward(*shared, stretch.cut(queued.first, queued.last))


def _key(serial: int) -> bytes:
    return serial.to_bytes(8, "big")
