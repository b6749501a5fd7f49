"""Publications on disk: those that wait for somebody who cannot be reached (protocol/delivery.py)."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import msgspec

from tidings.model.errors import StoreCorrupt, StoreError, StoreFull, WireError
from tidings.model.event import Publication, decode_publication
from tidings.model.messages import Forward, ForwardGap
from tidings.protocol.queued import Queued
from tidings.protocol.store import Change, Store


class SpillLimits:
    """How much may wait for those who cannot be reached."""

    __slots__ = ("entries", "size_bytes")

    def __init__(self, entries: int = 100_000, size_bytes: int = 1024 * 1024 * 1024) -> None:
        self.entries = entries
        self.size_bytes = size_bytes


class Spilled(msgspec.Struct, array_like=True, frozen=True):
    """A publication on disk."""

    serial: int
    origin: str
    label: tuple[int, ...]
    generation: int
    stamp: int
    mark: int
    excluded: tuple[str, ...]
    own: bool
    """Of one of this broker's own clients, who has been told that it is safe."""
    raw: bytes


_encode = msgspec.msgpack.Encoder().encode
_decode_spilled = msgspec.msgpack.Decoder(Spilled).decode


class Spill:
    """`complain` is told once when the disk is full, and whenever something cannot be removed."""

    def __init__(self, broker: str, store: Store, complain: Callable[[str], None]) -> None:
        self._broker = broker
        self._store = store
        self._complain = complain
        self._full = False
        self._doomed: list[Change] = []

    @property
    def size_bytes(self) -> int:
        return self._store.size_bytes("spill")

    @property
    def has_doomed(self) -> bool:
        return bool(self._doomed)

    def keep(self, batch: list[Queued]) -> bool:
        """Write them, and let go of them in memory; False if the disk is full: then nothing has changed."""
        try:
            self._store.write([("spill", _key(queued.serial), self._row(queued)) for queued in batch])
        except StoreFull as error:
            if not self._full:
                self._full = True
                self._complain(str(error))
            return False
        self._full = False
        for queued in batch:
            queued.on_disk = True
            queued.message = None
        return True

    def _row(self, queued: Queued) -> bytes:
        message = queued.message
        assert isinstance(message, Forward)
        return _encode(
            Spilled(
                queued.serial,
                message.origin,
                message.label,
                message.generation,
                message.stamp,
                queued.mark,
                queued.excluded,
                queued.flow[0] == self._broker,
                bytes(message.publication.raw),
            )
        )

    def body(self, queued: Queued) -> Forward | ForwardGap:
        """The publication, from memory or from disk."""
        if queued.message is not None:
            return queued.message
        row = self._store.get("spill", _key(queued.serial))
        if row is None:
            raise StoreError(
                f"publication {queued.flow[1]}:{queued.sequence} is missing from the spill on disk"
            )
        spilled = _decode_spilled(row)
        publication = decode_publication(msgspec.Raw(spilled.raw))
        return Forward(
            spilled.origin, spilled.label, spilled.generation, spilled.stamp, queued.excluded, publication
        )

    def forget(self, queued: Queued) -> None:
        """It is delivered: its row goes with the next `sweep`. A crash before only sends it again."""
        if queued.on_disk:
            queued.on_disk = False
            self._doomed.append(("spill", _key(queued.serial), None))

    def sweep(self) -> None:
        if not self._doomed:
            return
        doomed, self._doomed = self._doomed, []
        try:
            self._store.write(doomed)
        except StoreError as error:
            self._doomed = doomed + self._doomed
            self._complain(str(error))

    def reload(self) -> Iterator[tuple[Spilled, Publication]]:
        """After a restart: what our own clients were told is safe. Of others, their brokers have it still."""
        for key, value in self._store.read("spill"):
            try:
                spilled = _decode_spilled(value)
                publication = decode_publication(msgspec.Raw(spilled.raw))
            except (msgspec.MsgspecError, WireError) as error:
                raise StoreCorrupt(f"a publication in the spill does not decode: {error}") from None
            if spilled.own:
                yield spilled, publication
            else:
                self._doomed.append(("spill", key, None))


def _key(serial: int) -> bytes:
    return serial.to_bytes(8, "big")
