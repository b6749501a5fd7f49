"""Where a sequencer node keeps its state: in a file of its own, or nowhere."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote

from tidings.core.store import MemoryStore, Store
from tidings.storage.disk_store import DiskStore, store_kind

SEQUENCER_RECOVERY = (
    "move it away: a replica gets its state from the other one; "
    "without another the numbers are lost, and subscribers must subscribe again"
)
SEQUENCER_KIND = store_kind("process", SEQUENCER_RECOVERY)


def sequencer_store_path(data: Path, name: str) -> Path:
    """Not .db, as the stores of brokers; a name may hold what a file's name may not."""
    return data / f"{quote(name, safe=' ')}.order"


def open_sequencer_store(data: Path | None, name: str, on_pending: Callable[[], None]) -> Store:
    """StoreError says what is wrong with the directory or the file. `on_pending`: see DiskStore."""
    if data is None:
        return MemoryStore()
    with SEQUENCER_KIND.troubles.told(data):
        data.mkdir(parents=True, exist_ok=True)
    return DiskStore(sequencer_store_path(data, name), kind=SEQUENCER_KIND, on_pending=on_pending)
