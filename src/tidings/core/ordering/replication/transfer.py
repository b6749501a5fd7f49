"""The state of a server on its way to a replica that lacks it: cut into parts, sent in order, repeated until taken."""

from __future__ import annotations

from collections.abc import Callable

from tidings.core.ordering.messages import MAX_PART_BYTES, StatePart, StateTaken

WINDOW = 32
"""Parts on their way at a time."""


class StateSender:
    def __init__(
        self, server: str, term: int, number: int, state: bytes, send: Callable[[StatePart], None]
    ) -> None:
        self.number = number
        self._pieces = [state[at : at + MAX_PART_BYTES] for at in range(0, len(state), MAX_PART_BYTES)] or [
            b""
        ]
        self._server = server
        self._term = term
        self._taken = 0
        self._next = 0
        self._send = send
        self.repeat()

    def repeat(self) -> None:
        """Again from the first that was not taken."""
        self._next = self._taken
        self._fill()

    def taken(self, message: StateTaken) -> bool:
        """False: it says nothing new."""
        if message.number != self.number or not self._taken < message.part <= len(self._pieces):
            return False
        self._taken = message.part
        self._next = max(self._next, self._taken)
        self._fill()
        return True

    def _fill(self) -> None:
        while self._next < min(len(self._pieces), self._taken + WINDOW):
            self._send(
                StatePart(
                    self._server,
                    self._term,
                    self.number,
                    self._next,
                    len(self._pieces),
                    self._pieces[self._next],
                )
            )
            self._next += 1


class StateReceiver:
    """Takes parts in their order; those of a later state begin anew."""

    def __init__(self) -> None:
        self._of = (0, -1)
        self._pieces: list[bytes] = []

    def take(self, part: StatePart) -> bytes | None:
        """The whole state with its last part."""
        of = (part.term, part.number)
        if of > self._of:
            self._of, self._pieces = of, []
        if of == self._of and part.part == len(self._pieces):
            self._pieces.append(part.data)
            if len(self._pieces) == part.parts:
                whole = b"".join(self._pieces)
                self._of, self._pieces = (0, -1), []
                return whole
        return None

    @property
    def count(self) -> int:
        return len(self._pieces)
