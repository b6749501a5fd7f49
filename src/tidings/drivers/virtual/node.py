"""One simulated node: the Port of a protocol node, and its state: up, paused or down."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any

from tidings.core.kernel import Handler, Node, RandomSource, Send, TimerName
from tidings.core.messages import Message
from tidings.core.overlay.guaranteed.messages import KeepBookmark
from tidings.core.store import MemoryStore
from tidings.drivers.virtual.crash_points import CrashPoints, Point
from tidings.drivers.virtual.link import VirtualLink
from tidings.drivers.virtual.schedule import Schedule

Emit = Callable[[object], None]


class _Handlers(dict[type, Handler]):
    """Message class -> handler, `otherwise` for a class that is missing."""

    def __init__(self, handlers: dict[type, Handler], otherwise: Handler) -> None:
        super().__init__(handlers)
        self._otherwise = otherwise

    def __missing__(self, kind: type) -> Handler:
        return self._otherwise


class SimulatedNode:
    """Implements Port. `make` builds the protocol node, anew after every crash, and may read `disk`."""

    def __init__(
        self,
        name: str,
        schedule: Schedule,
        random: Random,
        make: Callable[[SimulatedNode], Node],
        emit: Emit,
        find_link: Callable[[str, str], VirtualLink],
        on_start: Callable[[str], None] | None = None,
    ) -> None:
        self.node = name
        self.random: RandomSource = random
        self.emit = emit
        self.disk: dict[str, Any] = {}
        """What survives a crash with state = "kept"."""
        self.programs = 0
        """How many programs ran under its name before this one."""
        self.up = False
        self.paused = False
        self._senders: dict[str, Send] = {}
        self.protocol: Node
        self._schedule = schedule
        self._make = make
        self._find_link = find_link
        self._on_start = on_start
        self._timers: dict[TimerName, int] = {}
        self._timer_serial = 0
        self._held: list[tuple[Callable[[Any, Any], None], Any, Any]] = []
        self.crash_points: CrashPoints | None = None
        """If set, the node has turns and may crash between a write and a send. Otherwise there are no turns, and
        nothing waits for their end. To be set before the node starts."""
        self._store: MemoryStore | None = None
        self._outbox: list[tuple[str, Send, Message]] = []
        self._turn: object = None
        """The current turn, while something waits for its end."""
        self.handlers = _Handlers({}, self.deliver)
        """The handlers for messages that are sent now, shared by all links to this node. Empty while the node is down
        or paused: `deliver` then decides on arrival."""

    # --- Port

    @property
    def now(self) -> int:
        return self._schedule.now

    def send(self, to: str, message: Message) -> None:
        (self._senders.get(to) or self.sender(to))(message)

    def sender(self, to: str) -> Send:
        send = self._senders.get(to)
        if send is None:
            send = self._find_link(self.node, to).transmit
            if self.crash_points is not None:
                send = partial(self._put_out, to, send)
            self._senders[to] = send
        return send

    def set_timer(self, name: TimerName, at: int) -> None:
        serial = self._timer_serial = self._timer_serial + 1
        self._timers[name] = serial
        schedule = self._schedule
        schedule.at(at if at > schedule.now else schedule.now, self._fire, name, serial)

    def cancel_timer(self, name: TimerName) -> None:
        self._timers.pop(name, None)

    # --- Persist before send

    def open_store(self, name: str = "tables") -> MemoryStore:
        """Open the store with what is on disk under that name; a node opens one store per incarnation."""
        on_pending = None if self.crash_points is None else self._open_turn
        self._store = MemoryStore(self.disk.setdefault(name, {}), on_pending)
        return self._store

    def _put_out(self, to: str, send: Send, message: Message) -> None:
        self._outbox.append((to, send, message))
        self._open_turn()

    def _open_turn(self) -> None:
        if self._turn is None and self.crash_points is not None:
            self._turn = object()
            self._schedule.at(self.now + self.crash_points.turn_ns(), self._end_turn, self._turn)

    def _end_turn(self, turn: object, _second: object) -> None:
        if turn is self._turn and not self.holds(self._end_turn, turn):
            self.end_turn()

    def end_turn(self) -> None:
        """Commit, then flush, or crash somewhere in between."""
        points = self.crash_points
        if self._turn is None or points is None:
            return
        self._turn = None
        outbox, self._outbox = self._outbox, []
        writes = self._store is not None and bool(self._store.pending)
        tells = any(isinstance(message, KeepBookmark) for _, _, message in outbox)
        point = points.draw() if writes or tells else None
        if self._store is not None and writes and point is not Point.BEFORE_COMMIT:
            self._store.commit()
        if point is not None:
            del outbox[points.leaving(point, len(outbox)) :]
        for _, send, message in outbox:
            send(message)
        if point is not None:
            points.crash(self.node, point)

    # --- What the network does to the node

    def deliver(self, sender: str, message: Message) -> None:
        """Handle a message that was sent while the node was down or paused, or that was under way when it stopped."""
        if self.paused:
            self._held.append((self.deliver, sender, message))
        elif self.up:
            self.protocol.receive(sender, message)
        else:
            self._find_link(sender, self.node).drop(message)

    def connection(self, peer: str, up: bool) -> None:
        """Tell the node that a connection came or went; a paused node learns it later, one that is down never."""
        if self.paused:
            self._held.append((self.connection, peer, up))
        elif self.up:
            # What waits in the outbox was for the previous connection.
            self._outbox = [entry for entry in self._outbox if entry[0] != peer]
            (self.protocol.link_up if up else self.protocol.link_down)(peer)

    def holds(self, action: Callable[[Any, Any], None], first: Any) -> bool:
        """Return True if the node is paused; it then calls `action(first, None)` when it resumes."""
        if self.paused:
            self._held.append((action, first, None))
        return self.paused

    def start(self) -> None:
        self.up = True
        self.protocol = self._make(self)
        self.handlers.update(self.protocol.handlers)
        self.protocol.start()
        if self._on_start is not None:
            self._on_start(self.node)

    def replace(self, make: Callable[[SimulatedNode], Node], emit: Emit) -> None:
        """While it is down: another program is to start under its name."""
        self._make, self.emit = make, emit
        self.programs += 1

    def crash(self, *, keep_state: bool) -> None:
        self.up = False
        self.paused = False
        self._timers.clear()
        self._held.clear()
        self._outbox.clear()
        self._turn = self._store = None
        self._interrupt()
        self.protocol.discard()
        if not keep_state:
            self.disk.clear()

    def pause(self) -> None:
        """Suspend the node as SIGSTOP would: messages and timers wait."""
        if self.up and not self.paused:
            self.paused = True
            self._interrupt()

    def resume(self) -> None:
        if self.paused:
            self.paused = False
            self.handlers.update(self.protocol.handlers)
            held, self._held = self._held, []
            for action, first, second in held:  # at once: other arrivals of this instant were sent later
                action(first, second)

    def _interrupt(self) -> None:
        """Redirect messages under way, which are bound to the protocol's handlers, to `deliver`."""
        parts = frozenset(id(part) for part in self.protocol.parts)
        self._schedule.redirect(lambda action: id(getattr(action, "__self__", None)) in parts, self.deliver)
        self.handlers.clear()

    def _fire(self, name: TimerName, serial: int) -> None:
        if self._timers.get(name) != serial:
            return
        if self.paused:
            self._held.append((self._fire, name, serial))
            return
        del self._timers[name]
        self.protocol.timer(name)
