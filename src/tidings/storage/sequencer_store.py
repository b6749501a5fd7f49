"""The store of a sequencer node: a separate file, or memory."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote

from tidings.core.store import MemoryStore, Store
from tidings.storage.disk_store import DiskStore, store_kind

SEQUENCER_RECOVERY = (
    "move it away: a replica fetches its state from the other replica; "
    "without a replica the numbers are lost, and subscribers must subscribe again"
)
SEQUENCER_KIND = store_kind("process", SEQUENCER_RECOVERY)


def sequencer_store_path(data: Path, name: str) -> Path:
    """Return the path: `.order`, as brokers' stores are `.db`, and the name quoted to be a valid file name."""
    return data / f"{quote(name, safe=' ')}.order"


def open_sequencer_store(data: Path | None, name: str, on_pending: Callable[[], None]) -> Store:
    """Open the store; StoreError if the directory or the file cannot be used. `on_pending`: see DiskStore."""
    if data is None:
        return MemoryStore()
    with SEQUENCER_KIND.troubles.told(data):
        data.mkdir(parents=True, exist_ok=True)
    return DiskStore(sequencer_store_path(data, name), kind=SEQUENCER_KIND, on_pending=on_pending)
