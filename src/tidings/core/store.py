"""What a broker keeps across restarts (overlay: state on disk), as a contract and as a store in memory.

Protocol parts write through `Store` before they send what depends on it. That they do not hear when it is on disk is
the drivers' law, *persist before send*: what handlers write in one turn of the loop waits in one transaction, what they
send waits in an outbox, and the driver commits before it lets anything out. If it cannot, the node stops. The live
broker's store is storage/disk_store.py; the simulator's is `MemoryStore`, whose tables outlive a simulated crash.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from tidings.core.errors import StoreError

TABLES = ("identity", "log", "clients", "bookmarks", "spill")
Change = tuple[str, bytes, bytes | None]
"""Table, key, value. None deletes the key; a key that is not there is ignored."""


class Store(Protocol):
    """A few named tables (`TABLES`) of key -> value, in order of first insertion.

    An unknown table is a KeyError; any use after `close` is a StoreError.
    """

    def read(self, table: str) -> list[tuple[bytes, bytes]]:
        """All entries. Replacing a value keeps its place; deleting and inserting again goes to the end."""

    def get(self, table: str, key: bytes) -> bytes | None: ...

    def write(self, changes: Sequence[Change]) -> None:
        """Apply the changes in order, all or nothing; they are on disk before anything that is sent now leaves.

        After StoreFull or any other StoreError the state is as before.
        """

    def commit(self) -> None:
        """For the driver: all that was written is on disk when this returns. After StoreError the node must stop."""

    def size_bytes(self, table: str) -> int:
        """The lengths of all keys and values together; takes constant time."""

    def count(self, table: str) -> int:
        """The number of entries; takes constant time."""

    def close(self) -> None:
        """Closing again does nothing."""


def check_tables(changes: Iterable[Change]) -> None:
    """KeyError unless every change names one of `TABLES`."""
    for table, _, _ in changes:
        if table not in TABLES:
            raise KeyError(table)


class MemoryStore:
    """A `Store` over a dict of dicts, for simulation.

    Whoever passes `tables` keeps it across a crash: another store over the same dict finds what was committed. Each
    write is, unless somebody wants to hear `on_pending` that something waits for `commit`.
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
        check_tables(changes)  # nothing fails after this, so the batch is all or nothing
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
        """Something waits for `commit`."""
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
        """A node that crashed must not write into the tables of the one that took its place."""
        if self._closed:
            raise StoreError("the store is closed")
