"""Where a sequencer node keeps its state: in a file of its own, or nowhere."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import quote

from tidings.model.errors import StoreCorrupt, StoreError
from tidings.net.disk_store import RECOVERY, DiskStore
from tidings.protocol.store import MemoryStore, Store

SEQUENCER_RECOVERY = (
    "move it away: a replica gets its state from the other one; "
    "without another the numbers are lost, and subscribers must subscribe again"
)


def sequencer_store_path(data: Path, name: str) -> Path:
    """Not .db, as the stores of brokers; a name may hold what a file's name may not."""
    return data / f"{quote(name, safe=' ')}.order"


def open_sequencer_store(data: Path | None, name: str) -> Store:
    """StoreError says what is wrong with the directory or the file."""
    if data is None:
        return MemoryStore()
    try:
        data.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreError(f"cannot use {data}: {error.strerror or error}") from None
    try:
        return DiskStore(sequencer_store_path(data, name))
    except StoreCorrupt as error:
        raise StoreCorrupt(str(error).replace(RECOVERY, SEQUENCER_RECOVERY)) from None
    except StoreError as error:
        raise type(error)(str(error).replace("another broker", "another process")) from None
