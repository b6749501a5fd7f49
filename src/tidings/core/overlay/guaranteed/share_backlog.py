"""Questions about shares that cannot be answered yet, in the order in which they came."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from tidings.core.overlay.guaranteed.far_shares import Question
from tidings.core.overlay.guaranteed.held_share import Client

MAX_QUESTIONS = 1_024
"""How many questions of one client wait; further ones are refused at once."""
TOO_MANY = f"{MAX_QUESTIONS} questions of this client wait already: ask again later"

Waiting = tuple[Client, Question]


class Backlog:
    def __init__(self) -> None:
        self._waiting: list[Waiting] = []
        self._counts: Counter[Client] = Counter()

    def add(self, client: Client, question: Question) -> bool:
        """Keep a question; return False if too many of this client wait."""
        if self._counts[client] >= MAX_QUESTIONS:
            return False
        self._waiting.append((client, question))
        self._counts[client] += 1
        return True

    def take(
        self, is_wanted: Callable[[Client, Question], bool] = lambda client, question: True
    ) -> list[Waiting]:
        """Remove and return some questions, or all."""
        found = [each for each in self._waiting if is_wanted(*each)]
        if found:
            self._waiting = [each for each in self._waiting if not is_wanted(*each)]
            self._counts = Counter(client for client, _ in self._waiting)
        return found
