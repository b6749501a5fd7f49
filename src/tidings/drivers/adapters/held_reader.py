"""Reads a durable subscription, or for a member of a group, over one connection: three loops of a `HeldIncoming`.

One requests messages while there is room, one settles what the application is done with or gives back, and one shows
the broker that this holder is alive, so that it does not give its messages to another one.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from tidings.core.errors import SubscriptionRefused
from tidings.drivers.adapters.held import HeldIncoming, Settlement
from tidings.drivers.adapters.held_options import RENEWALS
from tidings.drivers.adapters.session import AdapterSession, SessionLost

CANCEL_AGAIN_S = 0.05

log = logging.getLogger("tidings")


class HeldReader(ABC):
    """The loops. If one fails, the session ends, and the next one has a new reader."""

    def __init__(self, session: AdapterSession, incoming: HeldIncoming, hold_s: float) -> None:
        self.incoming = incoming
        self._session_of_reader = session
        self._hold_s = hold_s
        self._reading: asyncio.Task[None] | None = None
        self._others: list[asyncio.Task[None]] = []

    @abstractmethod
    async def attach(self) -> None:
        """Create what the broker needs; raises SubscriptionRefused, or SessionLost."""

    @abstractmethod
    async def read(self) -> None:
        """Request messages, for ever, and pass them to the service."""

    @abstractmethod
    async def stop_reading(self) -> None:
        """After the reading loop has ended: no message may arrive once this returns."""

    @abstractmethod
    async def settle(self, settlements: Sequence[Settlement]) -> None:
        """Tell the broker, and return when it has answered."""

    @abstractmethod
    async def renew(self, handles: Sequence[Any]) -> None:
        """Show the broker that these messages are still being worked on, or just that we are alive."""

    @abstractmethod
    async def detach(self) -> None:
        """After everything is settled: the broker should forget this holder."""

    async def start(self) -> None:
        await self.attach()
        self._reading = self._start(self.read)
        self._others = [self._start(self._settle_all), self._start(self._renew_all)]

    async def leave(self) -> None:
        """End in order: everything is settled, the rest is given back."""
        await self._cancel(self._reading)
        await self.stop_reading()
        self.incoming.release()
        settled = asyncio.get_running_loop().create_task(self.incoming.settled())
        ended = self._session_of_reader.ended
        await asyncio.wait((settled, ended), return_when=asyncio.FIRST_COMPLETED)
        await self._cancel(settled)
        if ended.done():
            raise SessionLost(ended.result().reason)
        await self._cancel(*self._others)
        await self.detach()

    async def stop(self) -> None:
        """End at once, as when the connection is lost."""
        await self._cancel(self._reading, *self._others)

    async def _settle_all(self) -> None:
        while True:
            settlements = await self.incoming.next_settlements()
            await self.settle(settlements)
            self.incoming.confirm(len(settlements))

    async def _renew_all(self) -> None:
        while not self.incoming.ended:
            await asyncio.sleep(self._hold_s / RENEWALS)
            await self.renew(self.incoming.held_handles())

    def _start(self, work: Callable[[], Coroutine[Any, Any, None]]) -> asyncio.Task[None]:
        return asyncio.get_running_loop().create_task(self._guard(work))

    async def _guard(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        try:
            await work()
        except (SessionLost, SubscriptionRefused) as error:
            self._session_of_reader.end(str(error))
        except Exception as error:
            log.exception("subscription %s: its reader failed", self.incoming.subscription.id)
            self._session_of_reader.end(f"{type(error).__name__}: {error}")

    async def _cancel(self, *tasks: asyncio.Task[None] | None) -> None:
        """Cancel them until they have ended: a client library may swallow a cancellation."""
        running: set[asyncio.Task[None]] = {task for task in tasks if task is not None and not task.done()}
        while running:
            for task in running:
                task.cancel()
            _, running = await asyncio.wait(running, timeout=CANCEL_AGAIN_S)
