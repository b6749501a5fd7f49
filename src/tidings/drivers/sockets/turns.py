"""Persist before send, in a live driver (core/store.py).

What the handlers of one turn of the loop write is one transaction; what they send waits in the sessions' outboxes. No
session sends anything (`SocketSession.flush`) before `persist` has put that transaction on disk. If that fails, the
handlers' state and the disk differ for good: the node sends nothing more, and stops.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from tidings.core.errors import StoreError
from tidings.core.store import Store


class Turns:
    """Commits what the handlers write. `on_failure` is called once, when a commit fails."""

    def __init__(self, on_failure: Callable[[StoreError], None]) -> None:
        self.store: Store | None = None
        self._on_failure = on_failure
        self._failure: StoreError | None = None
        self._has_failed = asyncio.Event()

    def open(self) -> None:
        """Schedule a commit at the first write of a turn, whether anything is sent or not."""
        asyncio.get_running_loop().call_soon(self.persist)

    def after(self, act: Callable[[], None]) -> None:
        """Call `act` once everything is persisted: for what leaves in another way than over a session."""

        def persist_and_act() -> None:
            if self.persist():
                act()

        asyncio.get_running_loop().call_soon(persist_and_act)

    def persist(self) -> bool:
        """Commit what was written; return False if a commit has failed, so that nothing may be sent."""
        if self._failure is None and self.store is not None:
            try:
                self.store.commit()
            except StoreError as error:
                self._failure = error
                self._has_failed.set()
                self._on_failure(error)
        return self._failure is None

    async def failed(self) -> None:
        """Wait for a failure, and raise it."""
        await self._has_failed.wait()
        assert self._failure is not None
        raise self._failure
