"""One session with one peer, over any transport (drivers/sockets/stream.py, drivers/sockets/udp.py).

    opening -> up -> ended
       |              ^
       +--------------+   refused, timed out, or the connection broke before it was up

The side that opened sends Hello; the other answers Welcome or Refused. Once the session is up, the peer's messages go
to the host (broker.py, client.py), which owns the protocol's node. What the node sends in one turn of the loop leaves
in one write at its end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Any, NamedTuple, Protocol

from tidings.core.errors import WireError
from tidings.core.events.event import Publication
from tidings.core.events.run import Run
from tidings.core.messages import Hello, Message, Notify, Ping, Pong, Refused, Welcome
from tidings.core.overlay.epidemic.messages import Carried
from tidings.core.overlay.guaranteed.messages import Forward, Stamped
from tidings.core.wire.codec import decode
from tidings.drivers.sockets.outbox import Chunk, Outbox

HANDSHAKE_SECONDS = 5.0
MAX_REASON_CHARACTERS = 1000
BACKLOG_BYTES = 256 * 1024
"""`drained` waits while more than this is unsent."""
LATE_SECONDS = 0.005
"""How long a confirmation that nobody waits for is kept back, so that others join it, and how long it then waits for
company."""
STALL_SECONDS = 10.0
"""A session that may drop nothing ends when too much waits and its peer has read nothing for this long."""


EVENT_KINDS: frozenset[type] = frozenset((Publication, Run, Notify, Forward, Stamped, Carried))
"""Messages that carry events."""

Handler = Callable[[Any], None]


class SessionState(StrEnum):
    """The states of a session, in order."""

    OPENING = "opening"
    UP = "up"
    ENDED = "ended"


class End(NamedTuple):
    """Why a session ended."""

    reason: str
    refused: bool
    """True if the peer refused us: a retry would get the same answer."""


class Dial(NamedTuple):
    """What the opening side sends and expects."""

    hello: Hello
    expected: str = ""
    """The node that should answer; empty: any."""


class SessionHost(Protocol):
    """Owns sessions: it decides who may open one and who handles its messages."""

    def on_hello(self, session: SocketSession, hello: Hello) -> None:
        """Call `session.welcome` or `session.refuse`."""

    def on_welcome(self, session: SocketSession, welcome: Welcome) -> None:
        """Call `session.set_up` or `session.refuse`."""

    def persist(self) -> bool:
        """Persist what outgoing messages may depend on; called before anything is sent. False: send nothing."""

    def on_bad_frame(self, session: SocketSession, error: WireError) -> None: ...

    def on_ended(self, session: SocketSession, end: End) -> None:
        """Called once per session, whether it was ever up or not."""


class SocketSession:
    """What all transports share. A subclass writes the outbox's chunks and closes the connection."""

    def __init__(self, host: SessionHost, outbox: Outbox, dial: Dial | None = None) -> None:
        self.host = host
        self.outbox = outbox
        self.dial = dial
        """Set on the side that opened."""
        self.state = SessionState.OPENING
        self.peer = ""
        self.role = ""
        self.received_bytes = 0
        self.received_events = 0
        self.address = ""
        self.silent = False
        """A fault, for tests: nothing passes any more, silently (`silence`)."""
        self.up_at = 0.0
        """When it came up, by the loop's clock; 0 if it never did."""
        loop = asyncio.get_running_loop()
        self.settled: asyncio.Future[None] = loop.create_future()
        """Done once the session is up or has ended."""
        self.ended: asyncio.Future[End] = loop.create_future()
        self._loop = loop
        self._handlers: Mapping[type, Handler] = {}
        self._other: Handler = self._take_first
        outbox.on_waiting = self._schedule_flush
        outbox.on_late = self._schedule_late_flush
        self._late_flush: asyncio.TimerHandle | None = None
        self.send: Callable[[Message], None] = outbox.add
        """Queues a message, which leaves at the end of this turn of the loop. It is the outbox's method, for speed."""
        self._took_events = False
        """What was read together brought events."""
        self._postponed: list[tuple[Handler, Message]] = []
        """What came with events and is handled once these have left."""
        self._waiters: list[asyncio.Future[None]] = []
        self._stall_timer: asyncio.TimerHandle | None = None
        self._handshake_timer = loop.call_later(HANDSHAKE_SECONDS, self._on_handshake_timeout)

    # --- Opening

    def welcome(
        self, peer: str, role: str, answer: Welcome, handlers: Mapping[type, Handler], other: Handler
    ) -> None:
        """Accept the peer's Hello; its messages go to `handlers` by their class, otherwise to `other`."""
        self.send(answer)
        self.set_up(peer, role, handlers, other)

    def set_up(self, peer: str, role: str, handlers: Mapping[type, Handler], other: Handler) -> None:
        """Bring the session up; the peer's messages go to `handlers` by their class, otherwise to `other`."""
        self.peer = peer
        self.role = role
        self.state = SessionState.UP
        self.up_at = self._loop.time()
        self._handlers = {
            Ping: self._on_ping,
            Pong: self._ignore,
            Refused: self._on_refused,
            Hello: self._on_hello_again,
            Welcome: self._ignore,
            **handlers,
        }
        self._other = other
        self._settle()

    def _take_first(self, message: Message) -> None:
        if self.dial is None and isinstance(message, Hello):
            self.host.on_hello(self, message)
        elif self.dial is not None and isinstance(message, Welcome):
            self.host.on_welcome(self, message)
        elif isinstance(message, Refused):
            self._on_refused(message)
        else:
            expected = "Hello" if self.dial is None else "Welcome"
            self.refuse(f"expected {expected}, got {type(message).__name__}")

    def _on_handshake_timeout(self) -> None:
        self.end(End(f"no session within {HANDSHAKE_SECONDS:g} seconds", refused=False))

    def _settle(self) -> None:
        self._handshake_timer.cancel()
        if not self.settled.done():
            self.settled.set_result(None)

    # --- Receiving

    def take_body(self, body: bytes | memoryview) -> None:
        if self._postponed:
            self._catch_up()
        try:
            messages = decode(body)
            carries_events = messages[0].__class__ in EVENT_KINDS  # then so do all others in the body
            for message in messages:
                if carries_events:
                    self._took_events = True
                    self.received_events += message.count  # type: ignore[union-attr]
                self._handlers.get(message.__class__, self._other)(message)
        except WireError as error:
            self.fail(error)

    def postponing(self, handle: Handler) -> Handler:
        """Return a handler for messages that nobody waits for: what came together with events is handled after these
        have left, but before anything else of this session."""

        def postpone(message: Message) -> None:
            if self._took_events:
                self._postponed.append((handle, message))
                self._loop.call_soon(self._catch_up)
            else:
                handle(message)

        return postpone

    def _catch_up(self) -> None:
        postponed, self._postponed = self._postponed, []
        try:
            for handle, message in postponed:
                if self.state is not SessionState.ENDED:
                    handle(message)
        except WireError as error:
            self.fail(error)

    def fail(self, error: WireError) -> None:
        """End this session, and only this one, because the peer sent something invalid; tell the peer why."""
        if self.state is not SessionState.ENDED:
            self.host.on_bad_frame(self, error)
            self.refuse(str(error))

    def _ignore(self, message: Message) -> None:
        pass

    def _on_ping(self, message: Ping) -> None:
        self.send(Pong(message.number))

    def _on_refused(self, message: Refused) -> None:
        self.end(End(message.reason, refused=True))

    def _on_hello_again(self, message: Hello) -> None:
        self.refuse("a second Hello on one connection")

    # --- Sending

    def _schedule_flush(self) -> None:
        self._loop.call_soon(self.flush)

    def _schedule_late_flush(self) -> None:
        if self._late_flush is None:
            self._late_flush = self._loop.call_later(LATE_SECONDS, self._flush_late)

    def _flush_late(self) -> None:
        self._late_flush = None
        if self.outbox.release():
            self._schedule_late_flush()
        else:
            self.flush()

    async def drained(self, below_bytes: int = BACKLOG_BYTES) -> None:
        """Wait until no more than that is unsent, or the session has ended."""
        while self.state is SessionState.UP and (self.paused or self.outbox.size_bytes > below_bytes):
            waiter: asyncio.Future[None] = self._loop.create_future()
            self._waiters.append(waiter)
            await waiter

    def flush(self) -> None:
        if self.state is SessionState.ENDED or self.silent or not self.host.persist():
            return
        outbox = self.outbox
        outbox.finish_turn()
        while (outbox.chunks or outbox.unreported) and not self.paused:
            self.write(outbox.take())
        if outbox.waiting_bytes and outbox.overfull:
            self._on_overfull()
        elif self._waiters and not self.paused:
            self._wake()

    def _on_overfull(self) -> None:
        if not self.outbox.policy.lossless:
            self._end_unread()
        elif self._stall_timer is None:
            self._watch_stall()

    def _watch_stall(self) -> None:
        taken_bytes = self.outbox.taken_bytes
        self._stall_timer = self._loop.call_later(STALL_SECONDS, self._check_stall, taken_bytes)

    def _check_stall(self, taken_bytes: int) -> None:
        self._stall_timer = None
        if self.state is SessionState.ENDED or not self.outbox.overfull:
            return
        if self.outbox.taken_bytes == taken_bytes:
            self._end_unread()
        else:
            self._watch_stall()

    def _end_unread(self) -> None:
        self.end(End(f"the peer does not read: {self.outbox.size_bytes} bytes wait for it", refused=False))
        self.abort()

    def _wake(self) -> None:
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    # --- Ending

    def refuse(self, reason: str) -> None:
        """Tell the peer why, and end."""
        if self.state is SessionState.ENDED:
            return
        reason = reason[:MAX_REASON_CHARACTERS]
        self.send(Refused(reason))
        self.flush()
        self.end(End(reason, refused=False))

    def silence(self) -> None:
        """Become a black hole, as behind a cut cable: the peer is told nothing, whatever happens here."""
        self.silent = True
        self._handlers = {}
        self._other = self.send = self._ignore
        self._wake()

    def end(self, end: End) -> None:
        """End the session; the connection closes in its own time."""
        if self._postponed:
            self._catch_up()
        if self.state is SessionState.ENDED:
            return
        self.state = SessionState.ENDED
        self._handlers = {}
        self._other = self.send = self._ignore
        for timer in (self._stall_timer, self._late_flush):
            if timer is not None:
                timer.cancel()
        self._settle()
        self._wake()
        if not self.silent:
            self.close_transport()
        self.ended.set_result(end)
        self.host.on_ended(self, end)

    # --- For the transport to implement

    @property
    def paused(self) -> bool:
        """True while the transport's buffer is full."""
        raise NotImplementedError

    def write(self, chunks: list[Chunk]) -> None:
        raise NotImplementedError

    def close_transport(self) -> None:
        raise NotImplementedError

    def abort(self) -> None:
        raise NotImplementedError

    async def wait_closed(self) -> None:
        """Wait until the connection of an ended session is closed."""

    def status(self) -> dict[str, object]:
        return {
            "peer": self.peer,
            "role": self.role,
            "address": self.address,
            "waiting_bytes": self.outbox.size_bytes,
            "dropped": self.outbox.dropped,
            "received_bytes": self.received_bytes,
            "received_events": self.received_events,
            "sent_bytes": self.outbox.taken_bytes,
            "sent_events": self.outbox.sent_events,
        }
