"""Persist before send, the law of a live driver (core/store.py).

What the handlers of one turn of the loop write is one transaction; what they send waits in the sessions' outboxes. No
session lets anything out (`Session.flush`) before `persist` has put that transaction on disk. If that fails, what the
handlers believe and what is on disk differ for good: the node says nothing more, and stops.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from tidings.core.errors import StoreError
from tidings.core.store import Store


class Turns:
    """`on_failure` is told once, when a commit fails."""

    def __init__(self, on_failure: Callable[[StoreError], None]) -> None:
        self.store: Store | None = None
        self._on_failure = on_failure
        self._failure: StoreError | None = None
        self._has_failed = asyncio.Event()

    def open(self) -> None:
        """The first write of a turn: it is on disk soon, whether anything is sent or not."""
        asyncio.get_running_loop().call_soon(self.persist)

    def after(self, act: Callable[[], None]) -> None:
        """For what leaves by another way than a session."""

        def persist_and_act() -> None:
            if self.persist():
                act()

        asyncio.get_running_loop().call_soon(persist_and_act)

    def persist(self) -> bool:
        """What was written is on disk; False: it cannot be, and nothing may leave."""
        if self._failure is None and self.store is not None:
            try:
                self.store.commit()
            except StoreError as error:
                self._failure = error
                self._has_failed.set()
                self._on_failure(error)
        return self._failure is None

    async def failed(self) -> None:
        """Waits for the failure, and raises it."""
        await self._has_failed.wait()
        assert self._failure is not None
        raise self._failure
