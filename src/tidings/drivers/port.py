"""The Port of a live node: the event loop's clock and timers, a random generator, and the open sessions.

It decides nothing. A message for a peer without a session is counted and dropped, as on a lossy link.
"""

from __future__ import annotations

import asyncio
import random
import secrets
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Protocol

from tidings.core.kernel import RandomSource, Send, TimerName
from tidings.core.messages import Message

NS_PER_MS = 1_000_000
MS_PER_SECOND = 1_000


class Sink(Protocol):
    """What a port needs from a session."""

    @property
    def send(self) -> Send: ...


class AsyncPort:
    """`kernel.Port` over the running asyncio loop."""

    def __init__(
        self,
        node: str,
        *,
        on_timer: Callable[[TimerName], None],
        emit: Callable[[object], None],
        seed: int | None = None,
        on_unsent: Callable[[str, Message], None] | None = None,
    ) -> None:
        self.node = node
        self.random: RandomSource = random.Random(secrets.randbits(64) if seed is None else seed)
        self.emit = emit
        self.sessions: dict[str, Sink] = {}
        self.others: Mapping[str, Sink] = {}
        """Peers that are reached without a session."""
        self.unsent = 0
        """Messages dropped because their peer had no session."""
        self._on_timer = on_timer
        self._on_unsent = on_unsent
        self._timers: dict[TimerName, asyncio.Handle] = {}
        self._zero_ns = time.time_ns() - time.monotonic_ns()

    @property
    def now(self) -> int:
        """Wall time at the start plus the monotonic time since: it never goes back."""
        return self._zero_ns + time.monotonic_ns()

    def send(self, to: str, message: Message) -> None:
        session = self.sessions.get(to) or self.others.get(to)
        if session is not None:
            session.send(message)
            return
        self.unsent += 1
        if self._on_unsent is not None:
            self._on_unsent(to, message)

    def sender(self, to: str) -> Send:
        """Return a function that looks up the session at each call, so that it survives a reconnection."""
        return partial(self.send, to)

    def set_timer(self, name: TimerName, at: int) -> None:
        handle = self._timers.pop(name, None)
        if handle is not None:
            handle.cancel()
        self._arm(name, at)

    def cancel_timer(self, name: TimerName) -> None:
        handle = self._timers.pop(name, None)
        if handle is not None:
            handle.cancel()

    def close(self) -> None:
        """Cancel all timers; the node has stopped."""
        for handle in self._timers.values():
            handle.cancel()
        self._timers.clear()

    def _arm(self, name: TimerName, at: int) -> None:
        loop, delay_ns = asyncio.get_running_loop(), at - self.now
        if delay_ns > 0:
            # Up to a whole millisecond, as event loops count: a timer that fired earlier would be set again and again.
            delay_ms = -(-delay_ns // NS_PER_MS)
            self._timers[name] = loop.call_later(delay_ms / MS_PER_SECOND, self._fire, name, at)
        else:  # before what is scheduled from now on, such as the commit of what this turn writes
            self._timers[name] = loop.call_soon(self._fire, name, at)

    def _fire(self, name: TimerName, at: int) -> None:
        if self.now < at:  # the loop rounds, and a protocol must not see its timer too early
            self._arm(name, at)
            return
        del self._timers[name]
        self._on_timer(name)
