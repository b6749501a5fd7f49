"""Events of which only some blocks have come, within bounds."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tidings.core.overlay.epidemic.blocks import Assembly, header_of
from tidings.core.overlay.epidemic.messages import Fragment

Identity = tuple[str, int, int]
Key = tuple[Any, ...]
"""A complete header (blocks.Header); items 2 to 4 are the identity."""


class _Entry:
    """An assembly and the sender that is charged for it."""

    __slots__ = ("assembly", "charged_bytes", "sender")

    def __init__(self, assembly: Assembly, sender: str) -> None:
        self.assembly = assembly
        self.sender = sender
        self.charged_bytes = 0


class _Account:
    """The assemblies that one sender started."""

    __slots__ = ("charged_bytes", "entries")

    def __init__(self) -> None:
        self.charged_bytes = 0
        self.entries: dict[Key, None] = {}
        """Least recently extended first."""


class Assemblies:
    """Assembles events from blocks, bounded in bytes per sender and in total, and in age.

    An assembly is charged to the sender that started it. At a sender's limit, its least recently extended assembly is
    evicted; at the total limit, one of the sender that is charged most: a sender that floods evicts what it started
    itself. A complete assembly stays until it is forgotten, expires, or is evicted.

    Blocks with the same identity but different headers are assembled separately: a forged block of an event cannot
    prevent its assembly.
    """

    def __init__(self, max_bytes: int, max_bytes_per_sender: int, max_age_ns: int) -> None:
        self._max_bytes = max_bytes
        self._max_bytes_per_sender = max_bytes_per_sender
        self._max_age_ns = max_age_ns
        self._entries: dict[Key, _Entry] = {}
        """Least recently extended first."""
        self._headers: dict[Identity, dict[Key, None]] = {}
        """The headers that claim an identity; nearly always one."""
        self._accounts: dict[str, _Account] = {}
        self.charged_bytes = 0
        self.dropped = 0
        """Assemblies evicted because of the limits on bytes."""
        self.expired = 0

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, sender: str, fragment: Fragment, now: int) -> Assembly | None:
        """Add a block; return the assembly if the block was useful and there is room. WireError as in Assembly."""
        key = header_of(fragment)
        entry = self._find(key)
        if entry is None:
            entry = _Entry(Assembly.begin(fragment, now), sender)
        elif not entry.assembly.add(fragment):
            return None
        entry.assembly.heard_at = now
        self._extend(key, entry)
        self._keep_bounds(self._accounts[entry.sender])
        return entry.assembly if key in self._entries else None

    def get(self, source: str, incarnation: int, sequence: int) -> Assembly | None:
        """Return the assembly with this identity; if there are several, the one with most blocks."""
        keys = tuple(self._headers.get((source, incarnation, sequence), ()))
        found = [entry.assembly for key in keys if (entry := self._find(key)) is not None]
        return max(found, key=lambda assembly: assembly.rank, default=None)

    def forget(self, source: str, incarnation: int, sequence: int) -> None:
        for key in tuple(self._headers.get((source, incarnation, sequence), ())):
            self._remove(key)

    def incomplete(self, quiet_since: int) -> Iterator[Assembly]:
        """Return the assemblies that lack blocks and got none after that time, the longest quiet first."""
        found = []
        for entry in self._entries.values():
            if entry.assembly.heard_at > quiet_since:
                break
            if not entry.assembly.complete:
                found.append(entry.assembly)
        return iter(found)

    def expire(self, now: int) -> int:
        """Drop assemblies that were last extended too long ago; return how many."""
        old = []
        for key, entry in self._entries.items():
            if entry.assembly.heard_at + self._max_age_ns > now:
                break
            old.append(key)
        for key in old:
            self._remove(key)
        self.expired += len(old)
        return len(old)

    def _find(self, key: Key) -> _Entry | None:
        """Return the entry, but drop a spoiled one: the event may be assembled again."""
        entry = self._entries.get(key)
        if entry is not None and entry.assembly.spoiled:
            self._remove(key)
            return None
        return entry

    def _extend(self, key: Key, entry: _Entry) -> None:
        """Charge the new bytes, and move the entry to the end of both orders."""
        account = self._accounts.get(entry.sender)
        if account is None:
            account = self._accounts[entry.sender] = _Account()
        more = entry.assembly.held_bytes - entry.charged_bytes
        entry.charged_bytes += more
        account.charged_bytes += more
        self.charged_bytes += more
        self._entries.pop(key, None)
        self._entries[key] = entry
        self._headers.setdefault(key[2:5], {})[key] = None
        account.entries.pop(key, None)
        account.entries[key] = None

    def _keep_bounds(self, account: _Account) -> None:
        while account.charged_bytes > self._max_bytes_per_sender:
            self._evict_from(account)
        while self.charged_bytes > self._max_bytes:
            self._evict_from(max(self._accounts.values(), key=lambda one: one.charged_bytes))

    def _evict_from(self, account: _Account) -> None:
        self._remove(next(iter(account.entries)))
        self.dropped += 1

    def _remove(self, key: Key) -> None:
        entry = self._entries.pop(key, None)
        if entry is None:
            return
        headers = self._headers[key[2:5]]
        del headers[key]
        if not headers:
            del self._headers[key[2:5]]
        account = self._accounts[entry.sender]
        del account.entries[key]
        account.charged_bytes -= entry.charged_bytes
        self.charged_bytes -= entry.charged_bytes
        if not account.entries:
            del self._accounts[entry.sender]
