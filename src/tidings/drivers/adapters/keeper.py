"""Keeps a service connected: one session after another.

    connecting -> ready -> lost -> connecting ...      until it is closed, or the broker refuses us for good

The client libraries' own reconnection is not used: they send what they had buffered before they resend what was lost,
which breaks the order of a source.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from random import Random
from typing import Any

from tidings.core.errors import ConnectionFailed
from tidings.drivers.adapters.session import AdapterSession, ConnectionRefused, Loss, SessionLost
from tidings.drivers.sockets.dialling import Backoff

LAST_DELAY_S = 2.0
"""The longest delay between attempts to connect, which go on for ever."""

log = logging.getLogger("tidings")


class Reconnector:
    """Holds the current session and replaces it when it is lost."""

    def __init__(
        self,
        server: str,
        timeout_s: float,
        *,
        start: Callable[[], Awaitable[AdapterSession]],
        restore: Callable[[AdapterSession], Awaitable[None]],
        use: Callable[[AdapterSession], Coroutine[Any, Any, None]],
        give_up: Callable[[str], None],
    ) -> None:
        """`start` connects; `restore` brings a new session to the state of the lost one; `use` runs while a session
        lasts; `give_up` is called with the reason when there will be no other session."""
        self.session: AdapterSession | None = None
        self.ready = asyncio.Event()
        """Set while there is a usable session, and once there will never be one again."""
        self.reconnections = 0
        self._server = server
        self._timeout_s = timeout_s
        self._start = start
        self._restore = restore
        self._use = use
        self._give_up = give_up
        self._task: asyncio.Task[None] | None = None

    @property
    def live(self) -> AdapterSession | None:
        """The session, unless it is lost or not ready."""
        session = self.session
        return None if session is None or session.ended.done() or not self.ready.is_set() else session

    async def open(self) -> None:
        self.session = await self._connect()
        self.ready.set()
        self._task = asyncio.get_running_loop().create_task(self._run(self.session))

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None
            self.ready.set()
            await self._drop(forget=True)

    async def _run(self, session: AdapterSession) -> None:
        try:
            reason = await self._keep(session)
        except Exception as error:  # a bug of ours: nobody must wait for ever
            log.exception("%s: giving up the connection", self._server)
            reason = f"{type(error).__name__}: {error}"
        self.ready.set()
        self._give_up(reason)

    async def _keep(self, session: AdapterSession) -> str:
        """Replace lost sessions; return why there will be no other."""
        clock = asyncio.get_running_loop().time
        backoff = Backoff(Random(), LAST_DELAY_S)
        while True:
            began_at = clock()
            loss = await self._last(session)
            then = "" if loss.final else "; reconnecting"
            log.info("lost the connection to %s: %s%s", self._server, loss.reason, then)
            self.ready.clear()
            await self._drop()
            if loss.final:
                return loss.reason
            backoff.failed(after_seconds=clock() - began_at)
            try:
                session = await self._reconnect(backoff)
            except ConnectionRefused as refused:
                return str(refused)

    async def _last(self, session: AdapterSession) -> Loss:
        """Use the session until it is lost."""
        using = asyncio.get_running_loop().create_task(self._use(session))
        try:
            return await asyncio.shield(session.ended)
        finally:
            using.cancel()
            await asyncio.gather(using, return_exceptions=True)

    async def _reconnect(self, backoff: Backoff) -> AdapterSession:
        while True:
            await backoff.wait()
            try:
                session = self.session = await self._connect()
                await self._restore(session)
            except ConnectionRefused:
                raise
            except (ConnectionFailed, SessionLost) as error:
                log.debug("%s: no connection yet: %s", self._server, error)
                backoff.failed()
                await self._drop()
            else:
                log.info("reconnected to %s", self._server)
                self.reconnections += 1
                self.ready.set()
                return session

    async def _connect(self) -> AdapterSession:
        try:
            async with asyncio.timeout(self._timeout_s):
                return await self._start()
        except TimeoutError:
            raise ConnectionFailed(f"{self._server} did not answer within {self._timeout_s:g} s") from None

    async def _drop(self, *, forget: bool = False) -> None:
        """Close the session. `forget`: the broker need not keep anything for us."""
        session, self.session = self.session, None
        if session is not None:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._timeout_s):
                    await session.close(forget=forget)
