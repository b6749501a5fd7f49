"""One simulated node: the Port of a protocol node, and its life: up, paused, down."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

from tidings.model.messages import Message
from tidings.protocol.kernel import Handler, Node, TimerName
from tidings.simulator.link import Link
from tidings.simulator.schedule import Schedule

Emit = Callable[[object], None]


class _Handlers(dict[type, Handler]):
    """Message class -> handler; what is missing goes to `otherwise`."""

    def __init__(self, handlers: dict[type, Handler], otherwise: Handler) -> None:
        super().__init__(handlers)
        self._otherwise = otherwise

    def __missing__(self, kind: type) -> Handler:
        return self._otherwise


class SimulatedNode:
    """Implements Port. `make` builds the protocol node, anew after every crash; it may read `disk`."""

    def __init__(
        self,
        name: str,
        schedule: Schedule,
        random: Random,
        make: Callable[[SimulatedNode], Node],
        emit: Emit,
        find_link: Callable[[str, str], Link],
    ) -> None:
        self.node = name
        self.random = random
        self.emit = emit
        self.disk: dict[str, Any] = {}
        """What survives a crash with state = "kept"."""
        self.up = False
        self.paused = False
        self.links: dict[str, Link] = {}
        self.protocol: Node
        self._schedule = schedule
        self._make = make
        self._find_link = find_link
        self._timers: dict[TimerName, int] = {}
        self._timer_serial = 0
        self._held: list[tuple[Callable[[Any, Any], None], Any, Any]] = []
        self._handlers = _Handlers({}, self._drop)

    # --- Port

    @property
    def now(self) -> int:
        return self._schedule.now

    def send(self, to: str, message: Message) -> None:
        link = self.links.get(to)
        if link is None:
            link = self.links[to] = self._find_link(self.node, to)
        link.transmit(message)

    def set_timer(self, name: TimerName, at: int) -> None:
        self._timer_serial += 1
        self._timers[name] = self._timer_serial
        self._schedule.at(max(at, self._schedule.now), self._fire, name, self._timer_serial)

    def cancel_timer(self, name: TimerName) -> None:
        self._timers.pop(name, None)

    # --- What the network does to the node

    def deliver(self, sender: str, message: Message) -> None:
        self._handlers[message.__class__](sender, message)

    def connection(self, peer: str, up: bool) -> None:
        """A connection came or went; a node that is down or paused does not notice now."""
        if self.paused:
            self._held.append((self.connection, peer, up))
        elif self.up:
            (self.protocol.link_up if up else self.protocol.link_down)(peer)

    def start(self) -> None:
        self.up = True
        self.protocol = self._make(self)
        self._take_messages()
        self.protocol.start()

    def crash(self, *, keep_state: bool) -> None:
        self.up = False
        self.paused = False
        self._timers.clear()
        self._held.clear()
        self.protocol.discard()
        self._handlers = _Handlers({}, self._drop)
        if not keep_state:
            self.disk.clear()

    def pause(self) -> None:
        """Stopped, as by SIGSTOP: messages and timers wait."""
        if self.up:
            self.paused = True
            self._handlers = _Handlers({}, self._hold)

    def resume(self) -> None:
        if self.paused:
            self.paused = False
            self._take_messages()
            held, self._held = self._held, []
            for action, first, second in held:
                self._schedule.at(self._schedule.now, action, first, second)

    def _take_messages(self) -> None:
        self._handlers = _Handlers(self.protocol.handlers, self._ignore)

    def _fire(self, name: TimerName, serial: int) -> None:
        if self._timers.get(name) != serial:
            return
        if self.paused:
            self._held.append((self._fire, name, serial))
            return
        del self._timers[name]
        self.protocol.timer(name)

    def _drop(self, sender: str, message: Message) -> None:
        self._find_link(sender, self.node).drop(message)

    def _hold(self, sender: str, message: Message) -> None:
        self._held.append((self.deliver, sender, message))

    def _ignore(self, sender: str, message: Message) -> None:
        """A message of a part that this node does not run."""
