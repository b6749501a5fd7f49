"""What a client of an existing broker has published and not seen confirmed: a bounded window, in order.

A connection takes batches from here and reports each publication confirmed or failed. When a connection is lost, the
next one begins with the oldest that is unconfirmed and sends all of them again, in order: a broker that takes in order
what a connection brings then has the events of a source in order. Receivers tell repetitions by the event's id.
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
from tidings.core.filters.language.predicates import Scalar

MAX_UNCONFIRMED = 10_000
"""Publications under way at once from one client; further ones wait."""
MAX_UNCONFIRMED_BYTES = 64 * 1024 * 1024
"""At least one is under way, however long."""
BATCH_EVENTS = 512
BATCH_BYTES = 4 * 1024 * 1024
EXPIRY_CHECK_S = 0.25


class _Pending(NamedTuple):
    publication: Publication
    owner: Batch
    expires_at: float


class Outgoing:
    """Publications that are older than `retry_s` and still unconfirmed fail with NotConfirmed."""

    def __init__(self, source: str, incarnation: int, retry_s: float) -> None:
        self.source = source
        self.incarnation = incarnation
        self.published = 0
        """It numbers the publications, too: from 1, without gaps."""
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
        self, topic: str, attributes: Mapping[str, Scalar], payload: bytes, owner: Batch
    ) -> Publication:
        """Returns when the publication has its place in the window; its owner is told when it is confirmed."""
        while not self._room.is_set():
            await self._room.wait()
        publication = make_publication(
            self.source, self.incarnation, self.published + 1, topic, attributes, payload, time.time_ns()
        )
        self.published += 1
        self._add(publication, owner)
        return publication

    def reserve(self) -> int:
        """The sequence of the next publication, which somebody else makes and will `send`."""
        self.published += 1
        return self.published

    async def send(self, publications: Iterable[Publication], owner: Batch) -> None:
        """The same for what was made with sequences that were reserved."""
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
        """A new connection sends everything that is unconfirmed, from the oldest on."""
        self._unsent = deque(pending.publication for pending in self._pending.values())
        if self._unsent:
            self._work.set()

    async def next_batch(self) -> list[Publication]:
        """What is to be sent next, in order; waits until there is something."""
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
        """Once it is full, the window opens again when it is half empty: else each confirmation woke somebody."""
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
            self.fail(sequence, f"it was not confirmed within {self._retry_s:g} s")
