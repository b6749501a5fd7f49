"""A Port whose time stands still until the test moves it, and which only records what is asked of it."""

from __future__ import annotations

from random import Random

from tidings.core.kernel import Send, TimerName
from tidings.core.messages import Message


class RecordingPort:
    def __init__(self, node: str = "me") -> None:
        self.node = node
        self.random = Random(0)
        self.now = 0
        self.sent: list[tuple[str, Message]] = []
        self.timers: dict[TimerName, int] = {}
        self.facts: list[object] = []

    def send(self, to: str, message: Message) -> None:
        self.sent.append((to, message))

    def sender(self, to: str) -> Send:
        return lambda message: self.send(to, message)

    def set_timer(self, name: TimerName, at: int) -> None:
        self.timers[name] = at

    def cancel_timer(self, name: TimerName) -> None:
        self.timers.pop(name, None)

    def emit(self, fact: object) -> None:
        self.facts.append(fact)
