"""Opens and reopens sessions: dialling, back-off, and texts for connection errors."""

from __future__ import annotations

import asyncio
import errno
import socket
import ssl
from collections.abc import Awaitable, Callable
from typing import TypeVar

from tidings.core.kernel import RandomSource
from tidings.drivers.address import Address
from tidings.drivers.sockets.outbox import Policy
from tidings.drivers.sockets.session import Dial, End, SessionHost, SocketSession
from tidings.drivers.sockets.stream import StreamSession

FIRST_DELAY_SECONDS = 0.1
LAST_DELAY_SECONDS = 5.0
CONNECT_SECONDS = 5.0
STABLE_SECONDS = 5.0
"""A session that was up for so long resets the back-off."""

SessionType = TypeVar("SessionType", bound=SocketSession)


def backoff_seconds(attempt: int, jitter: float, last_seconds: float = LAST_DELAY_SECONDS) -> float:
    """Return the wait before attempt `attempt` (from 0): doubling, bounded, spread by `jitter` in [0, 1)."""
    longest = min(FIRST_DELAY_SECONDS * 2 ** min(attempt, 16), last_seconds)
    return float(longest * (0.5 + jitter / 2))


class Backoff:
    """The waits between attempts to reach a peer."""

    def __init__(self, random: RandomSource, last_seconds: float = LAST_DELAY_SECONDS) -> None:
        self._random = random
        self._last_seconds = last_seconds
        self._failures = 0

    def failed(self, *, after_seconds: float = 0.0) -> None:
        """Count a failed attempt, or a session that lasted `after_seconds`: a peer that accepts us and drops us again
        must not be flooded with attempts."""
        self._failures = 1 if after_seconds >= STABLE_SECONDS else self._failures + 1

    def ended(self, session: SocketSession) -> None:
        """Count a session that has ended."""
        now = asyncio.get_running_loop().time()
        self.failed(after_seconds=now - session.up_at if session.up_at else 0.0)

    async def wait(self) -> None:
        """Wait before the next attempt; the first one is immediate."""
        if self._failures:
            seconds = backoff_seconds(self._failures - 1, self._random.random(), self._last_seconds)
            await asyncio.sleep(seconds)


def explain(error: BaseException) -> str:
    """Return a short phrase for a connection error, if possible without numbers and class names."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted: {getattr(error, 'verify_message', error)}"
    if isinstance(error, ssl.SSLError):
        return f"TLS failed: {getattr(error, 'reason', error)}"
    if isinstance(error, socket.gaierror):
        return "unknown host"
    if isinstance(error, TimeoutError):
        return "no answer in time"
    if isinstance(error, ConnectionRefusedError):
        return "connection refused"
    if isinstance(error, OSError):
        if error.errno is None and isinstance(error.__cause__, OSError):  # uvloop wraps what bind said
            return explain(error.__cause__)
        if error.errno == errno.EADDRINUSE:
            return "the port is in use"
        if error.errno == errno.EADDRNOTAVAIL:
            return "not an address of this machine"
        if error.errno == errno.EACCES:
            return "permission denied"
        return error.strerror or str(error)
    return str(error)


async def open_stream(
    host: SessionHost, address: Address, dial: Dial, policy: Policy, context: ssl.SSLContext | None
) -> SocketSession:
    """Open a session over TCP or TLS and return it once it is up or has ended; OSError if there is no connection."""
    loop = asyncio.get_running_loop()
    session = StreamSession(host, policy, dial)
    try:
        async with asyncio.timeout(CONNECT_SECONDS):
            await loop.create_connection(lambda: session, address.host, address.port, ssl=context)
    except (asyncio.CancelledError, TimeoutError):
        if session.is_connected:  # just now: the loop has closed it without a word, and the hello still waits
            session.end(End("given up", refused=False))
        raise
    return await settled(session)


async def settled(session: SessionType) -> SessionType:
    """Return the session once it is up or has ended; if the wait is cancelled, end it."""
    try:
        await asyncio.shield(session.settled)
    except asyncio.CancelledError:
        session.end(End("given up", refused=False))
        raise
    return session


async def keep_open(
    open_session: Callable[[], Awaitable[SocketSession]],
    random: RandomSource,
) -> End:
    """Open a session, and reopen it whenever it ends, until the peer refuses; return that end."""
    backoff = Backoff(random)
    while True:
        await backoff.wait()
        try:
            session = await open_session()
        except OSError:
            backoff.failed()
            continue
        end = await asyncio.shield(session.ended)
        if end.refused:
            return end
        backoff.ended(session)
