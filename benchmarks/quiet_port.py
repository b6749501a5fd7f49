"""The Port of a node that benchmarks drive without a network."""

from __future__ import annotations

from random import Random

from tidings.core.kernel import RandomSource, Send, TimerName
from tidings.core.messages import Message


class QuietPort:
    """Accepts everything and only counts."""

    def __init__(self, node: str) -> None:
        self.node = node
        self.random: RandomSource = Random(0)
        self.now = 0
        self.sent = 0
        self.facts = 0

    def send(self, to: str, message: Message) -> None:
        self.sent += 1

    def sender(self, to: str) -> Send:
        return lambda message: self.send(to, message)

    def set_timer(self, name: TimerName, at: int) -> None:
        pass

    def cancel_timer(self, name: TimerName) -> None:
        pass

    def emit(self, fact: object) -> None:
        self.facts += 1
