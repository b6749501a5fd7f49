"""The unconfirmed publications of a client of an existing broker: a bounded window, in order.

A connection takes batches from here and reports each publication as confirmed or failed. After a loss, the next
connection resends all unconfirmed publications, oldest first. So a broker that processes a connection in order gets the
events of a source in order. Receivers recognise duplicates by the event's id.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from tidings.bus.receipts import Batch
from tidings.core.errors import NotConfirmed
from tidings.core.events.event import Publication, make_publication
from tidings.core.events.payload import Payload
from tidings.core.filters.language.predicates import Scalar

MAX_UNCONFIRMED = 10_000
"""How many publications of a client may be unconfirmed at once; further ones wait."""
MAX_UNCONFIRMED_BYTES = 64 * 1024 * 1024
"""One publication is always allowed, whatever its size."""
BATCH_EVENTS = 512
BATCH_BYTES = 4 * 1024 * 1024
EXPIRY_CHECK_S = 0.25


class _Pending(NamedTuple):
    publication: Publication
    owner: Batch
    expires_at: float


class Outgoing:
    """The window. Publications that are not confirmed within `retry_s` fail with NotConfirmed."""

    def __init__(self, source: str, incarnation: int, retry_s: float) -> None:
        self.source = source
        self.incarnation = incarnation
        self.published = 0
        """Also the last sequence given: publications are numbered from 1, without gaps."""
        self.confirmed = 0
        self.failed = 0
        self._retry_s = retry_s
        self._pending: dict[int, _Pending] = {}
        self._pending_bytes = 0
        self._unsent: deque[Publication] = deque()
        self._work = asyncio.Event()
        self._room = asyncio.Event()
        self._room.set()
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._pending)

    # --- The application's side

    async def publish(
        self, topic: str, attributes: Mapping[str, Scalar], payload: Payload, owner: Batch
    ) -> Publication:
        """Add a publication, and return once it is in the window; `owner` is told when it is confirmed."""
        while not self._room.is_set():
            await self._room.wait()
        publication = make_publication(
            self.source, self.incarnation, self.published + 1, topic, attributes, payload, time.time_ns()
        )
        self.published += 1
        self._add(publication, owner)
        return publication

    def reserve(self) -> int:
        """Reserve the sequence of the next publication, which the caller makes and passes to `send`."""
        self.published += 1
        return self.published

    async def send(self, publications: Iterable[Publication], owner: Batch) -> None:
        """Add publications with reserved sequences; otherwise as `publish`."""
        for publication in publications:
            while not self._room.is_set():
                await self._room.wait()
            self._add(publication, owner)

    def _add(self, publication: Publication, owner: Batch) -> None:
        expires_at = asyncio.get_running_loop().time() + self._retry_s
        self._pending[publication.sequence] = _Pending(publication, owner, expires_at)
        self._pending_bytes += publication.size_bytes
        self._unsent.append(publication)
        self._work.set()
        self._update_room()
        self._set_timer()

    # --- The connection's side

    def rewind(self) -> None:
        """Let a new connection send everything that is unconfirmed, oldest first."""
        self._unsent = deque(pending.publication for pending in self._pending.values())
        if self._unsent:
            self._work.set()

    async def next_batch(self) -> list[Publication]:
        """Wait for publications to send, and return the next ones in order."""
        while True:
            batch = self._take_unsent()
            if batch:
                return batch
            self._work.clear()
            await self._work.wait()

    def _take_unsent(self) -> list[Publication]:
        batch: list[Publication] = []
        size_bytes = 0
        while self._unsent and len(batch) < BATCH_EVENTS and size_bytes < BATCH_BYTES:
            publication = self._unsent.popleft()
            if publication.sequence in self._pending:  # else it has expired
                batch.append(publication)
                size_bytes += publication.size_bytes
        return batch

    def confirm(self, sequence: int) -> None:
        if self._settle(sequence, None):
            self.confirmed += 1

    def confirm_up_to(self, sequence: int) -> None:
        while self._pending and (first := next(iter(self._pending))) <= sequence:
            self.confirm(first)

    def fail(self, sequence: int, reason: str) -> None:
        if self._settle(sequence, NotConfirmed(f"publication {sequence}: {reason}")):
            self.failed += 1

    def fail_all(self, reason: str) -> None:
        for sequence in list(self._pending):
            self.fail(sequence, reason)
        self._unsent.clear()

    def unconfirmed(self) -> list[Publication]:
        return [pending.publication for pending in self._pending.values()]

    def _settle(self, sequence: int, error: Exception | None) -> bool:
        pending = self._pending.pop(sequence, None)
        if pending is None:
            return False
        self._pending_bytes -= pending.publication.size_bytes
        pending.owner.settle(1, error)
        self._update_room()
        return True

    def _update_room(self) -> None:
        """Close the window when full and open it when half empty; otherwise each confirmation would wake somebody."""
        used = max(len(self._pending) / MAX_UNCONFIRMED, self._pending_bytes / MAX_UNCONFIRMED_BYTES)
        if used >= 1:
            self._room.clear()
        elif used <= 0.5:
            self._room.set()

    # --- Time

    def _set_timer(self) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(EXPIRY_CHECK_S, self._expire)

    def _expire(self) -> None:
        self._timer = None
        now = asyncio.get_running_loop().time()
        while self._pending:
            sequence, pending = next(iter(self._pending.items()))
            if pending.expires_at > now:
                self._set_timer()
                return
            self.fail(sequence, f"not confirmed within {self._retry_s:g} s")
