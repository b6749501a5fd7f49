"""What a broker remembers of moves across restarts, in the table `moves`."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
from msgspec import Struct

from tidings.core.errors import StoreCorrupt
from tidings.core.overlay.guaranteed.former_home import Place
from tidings.core.overlay.guaranteed.merged_sources import SourceId
from tidings.core.overlay.guaranteed.share_definition import ShareDefinition
from tidings.core.store import Change, Store

TABLE = "moves"
FORMER, COMING, BEHIND, COMPLETE = "former", "coming", "behind", "complete"
At = tuple[str, int]
"""A share's name and epoch."""


class Former(Struct, array_like=True, frozen=True):
    """The share was here, and is at that broker now."""

    definition: ShareDefinition
    successor: Place


class Coming(Struct, array_like=True, frozen=True):
    """The share may come here."""

    definition: ShareDefinition
    origin: Place
    formers: int
    prepared: bool = False
    """All of its rows are on disk."""


class Behind(Struct, array_like=True, frozen=True):
    """The share was at that broker before."""

    origin: Place
    formers: int
    """How many former homes there are."""


class _Key(Struct, array_like=True, frozen=True):
    """What a row is, and for which share; COMPLETE also for which source."""

    what: str
    name: str
    epoch: int
    source: str = ""
    incarnation: int = 0


_encode = msgspec.msgpack.Encoder().encode
_decode_key = msgspec.msgpack.Decoder(_Key).decode
_decode_former = msgspec.msgpack.Decoder(Former).decode
_decode_coming = msgspec.msgpack.Decoder(Coming).decode
_decode_behind = msgspec.msgpack.Decoder(Behind).decode


def row(what: str, at: At, value: Former | Coming | Behind | None) -> Change:
    """Return the change that writes a row, or removes it."""
    return (TABLE, _encode(_Key(what, *at)), None if value is None else _encode(value))


def complete_row(at: At, source: SourceId, *, kept: bool = True) -> Change:
    """Return the change that notes that a source is complete, or that this is forgotten."""
    return (TABLE, _encode(_Key(COMPLETE, *at, *source)), b"" if kept else None)


def complete_rows(store: Store, at: At) -> Iterator[bytes]:
    """Yield the keys of the sources of a share that are complete."""
    for key, _ in store.read(TABLE):
        found = _decode_key(key)
        if (found.what, found.name, found.epoch) == (COMPLETE, *at):
            yield key


class StoredMoves:
    """The rows, as they were when the broker started."""

    def __init__(self, store: Store) -> None:
        self.former: dict[At, Former] = {}
        self.coming: list[Coming] = []
        self.behind: dict[At, Behind] = {}
        self.complete: dict[At, list[SourceId]] = {}
        try:
            for key, value in store.read(TABLE):
                self._add(_decode_key(key), value)
        except msgspec.MsgspecError as error:
            raise StoreCorrupt(f"a move of a durable subscription does not decode: {error}") from None

    def _add(self, key: _Key, value: bytes) -> None:
        at = (key.name, key.epoch)
        if key.what == FORMER:
            self.former[at] = _decode_former(value)
        elif key.what == COMING:
            self.coming.append(_decode_coming(value))
        elif key.what == BEHIND:
            self.behind[at] = _decode_behind(value)
        else:
            self.complete.setdefault(at, []).append((key.source, key.incarnation))
