"""The interface between protocols and drivers: a Port, parts with one handler per message, and a node made of parts.

A part is a plain class that reads no clock and does no I/O. Its `Port`, which the driver (drivers/) implements,
provides the time, a seeded generator, sending, timers, and `emit` for what leaves the protocol (a delivery to the
application, a fact for the trace).

`handles` maps message classes to a part's methods named `on_<message>`; `on_timer` gets the name of a timer that the
part set. Timers are named by tuples whose first item is the part's `name`, so that parts of one node never clash.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, MutableSequence, Sequence
from typing import Any, ClassVar, Protocol, TypeVar

from tidings.core.messages import Message

Handler = Callable[[str, Any], None]
Send = Callable[[Message], None]
TimerName = tuple[Hashable, ...]
Item = TypeVar("Item")


class RandomSource(Protocol):
    """The part of `random.Random` that protocols use; the driver seeds and owns the generator."""

    def random(self) -> float: ...
    def randrange(self, start: int, stop: int | None = None, /) -> int: ...
    def choice(self, seq: Sequence[Item], /) -> Item: ...
    def sample(self, population: Sequence[Item], k: int) -> list[Item]: ...
    def shuffle(self, x: MutableSequence[Any], /) -> None: ...


class Port(Protocol):
    """What a driver provides to one node."""

    node: str
    random: RandomSource

    @property
    def now(self) -> int:
        """The time in nanoseconds, virtual or monotonic."""

    def send(self, to: str, message: Message) -> None:
        """Send without any guarantee: a link may lose, duplicate or reorder unless its driver says otherwise."""

    def sender(self, to: str) -> Send:
        """Return `send` bound to that peer, for callers that send to it often."""

    def set_timer(self, name: TimerName, at: int) -> None:
        """Call `on_timer(name)` once, at time `at`. Setting a name again replaces the timer."""

    def cancel_timer(self, name: TimerName) -> None:
        """Cancel the timer. Unknown names are ignored."""

    def emit(self, output: object) -> None:
        """Hand a fact or a command (core/facts.py) to this node's driver."""


class Part:
    """One protocol of a node. Subclasses set `name` and `handles` and implement the handlers."""

    name: ClassVar[str]
    handles: ClassVar[Mapping[type, str]] = {}
    """Message class -> name of the method that takes (sender, message)."""

    def __init__(self, port: Port) -> None:
        self.port = port

    def start(self) -> None:
        """Called once, when the node starts or restarts."""

    def on_timer(self, name: TimerName) -> None:
        raise KeyError(f"{type(self).__name__} set no timer {name!r}")

    def on_link_up(self, peer: str) -> None:
        """The driver (re)opened a connection to `peer`. Datagram drivers and simulated links never report this."""

    def on_link_down(self, peer: str) -> None:
        """The driver lost its connection to `peer`."""


class Node:
    """Composes parts into one state machine. The driver calls `start`, `receive`, `timer` and `link_*`."""

    def __init__(self, parts: Iterable[Part]) -> None:
        self.parts = tuple(parts)
        self._by_name: dict[Hashable, Part] = {part.name: part for part in self.parts}
        self.handlers: dict[type, Handler] = {}
        for part in self.parts:
            for message_type, method in part.handles.items():
                if message_type in self.handlers:
                    raise ValueError(f"two parts handle {message_type.__name__}")
                self.handlers[message_type] = getattr(part, method)

    def start(self) -> None:
        for part in self.parts:
            part.start()

    def receive(self, sender: str, message: Message) -> None:
        handler = self.handlers.get(message.__class__)
        if handler is not None:  # ignore messages of parts that this node does not run
            handler(sender, message)

    def receiver(self, sender: str) -> Callable[[Message], None]:
        """Return `receive` bound to that sender, for drivers whose sessions have one."""
        handlers = self.handlers

        def receive(message: Message) -> None:
            handler = handlers.get(message.__class__)
            if handler is not None:
                handler(sender, message)

        return receive

    def timer(self, name: TimerName) -> None:
        self._by_name[name[0]].on_timer(name)

    def discard(self) -> None:
        """Release what the node shares with others of its process. It will not be used again."""

    def link_up(self, peer: str) -> None:
        for part in self.parts:
            part.on_link_up(peer)

    def link_down(self, peer: str) -> None:
        for part in self.parts:
            part.on_link_down(peer)
