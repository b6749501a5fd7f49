"""What a broker keeps across restarts: the contract of a store, and a store in memory.

Parts write to a `Store` before they send what depends on the write. They need not wait for the disk, because drivers
*persist before they send*: the writes of one turn of the loop are one transaction, messages wait in an outbox, and the
driver commits before it flushes the outbox. If the commit fails, the node stops. Live brokers use
storage/disk_store.py. The simulator uses `MemoryStore`, whose tables outlive a simulated crash.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from tidings.core.errors import StoreError

TABLES = ("identity", "log", "clients", "bookmarks", "spill", "shares", "moves")
Change = tuple[str, bytes, bytes | None]
"""Table, key, value. None deletes the key; deleting an unknown key does nothing."""


class Store(Protocol):
    """Holds the named tables (`TABLES`) of key -> value, in order of first insertion.

    An unknown table raises KeyError; any use after `close` raises StoreError.
    """

    def read(self, table: str) -> list[tuple[bytes, bytes]]:
        """Return all entries. Replacing a value keeps its place; deleting and inserting again moves it to the end."""

    def get(self, table: str, key: bytes) -> bytes | None: ...

    def write(self, changes: Sequence[Change]) -> None:
        """Apply the changes in order, all or nothing. They are on disk before anything sent from now on leaves.

        StoreFull and every other StoreError leave the state unchanged.
        """

    def commit(self) -> None:
        """Put everything written on disk. For the driver; after a StoreError the node must stop."""

    def size_bytes(self, table: str) -> int:
        """Return the total length of all keys and values, in constant time."""

    def count(self, table: str) -> int:
        """Return the number of entries, in constant time."""

    def close(self) -> None:
        """Close the store. Closing it again does nothing."""


def check_tables(changes: Iterable[Change]) -> None:
    """Raise KeyError unless every change names one of `TABLES`."""
    for table, _, _ in changes:
        if table not in TABLES:
            raise KeyError(table)


class MemoryStore:
    """Implements `Store` over a dict of dicts, for simulation.

    The owner of `tables` keeps them across a crash: another store over the same dict finds what was committed. Without
    `on_pending` each write is committed at once. With it, writes wait for `commit`, and each one calls `on_pending`.
    """

    def __init__(
        self,
        tables: dict[str, dict[bytes, bytes]] | None = None,
        on_pending: Callable[[], None] | None = None,
    ) -> None:
        self._durable = {} if tables is None else tables
        for table in TABLES:
            self._durable.setdefault(table, {})
        self._tables = self._durable
        if on_pending is not None:
            self._tables = {table: dict(entries) for table, entries in self._durable.items()}
        self._on_pending = on_pending
        self._pending: list[Change] = []
        self._size_bytes = {
            table: sum(len(key) + len(value) for key, value in self._tables[table].items())
            for table in TABLES
        }
        self._closed = False

    def read(self, table: str) -> list[tuple[bytes, bytes]]:
        self._check_open()
        return list(self._tables[table].items())

    def get(self, table: str, key: bytes) -> bytes | None:
        self._check_open()
        return self._tables[table].get(key)

    def write(self, changes: Sequence[Change]) -> None:
        self._check_open()
        check_tables(changes)  # nothing can fail after this, so the batch is all or nothing
        for table, key, value in changes:
            entries = self._tables[table]
            old = entries.get(key)
            grown_bytes = 0 if old is None else -len(key) - len(old)
            if value is not None:
                grown_bytes += len(key) + len(value)
                entries[key] = value
            elif old is not None:
                del entries[key]
            self._size_bytes[table] += grown_bytes
        if self._on_pending is not None and changes:
            self._pending += changes
            self._on_pending()

    @property
    def pending(self) -> bool:
        """True if something waits for `commit`."""
        return bool(self._pending)

    def commit(self) -> None:
        self._check_open()
        pending, self._pending = self._pending, []
        for table, key, value in pending:
            if value is not None:
                self._durable[table][key] = value
            else:
                self._durable[table].pop(key, None)

    def size_bytes(self, table: str) -> int:
        self._check_open()
        return self._size_bytes[table]

    def count(self, table: str) -> int:
        self._check_open()
        return len(self._tables[table])

    def close(self) -> None:
        self._closed = True

    def _check_open(self) -> None:
        """Keep a crashed node from writing into the tables of its successor."""
        if self._closed:
            raise StoreError("the store is closed")
