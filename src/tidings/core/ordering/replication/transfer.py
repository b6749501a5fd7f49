"""Transfers a server's state to a replica that lacks it: in parts, sent in order, resent until acknowledged."""

from __future__ import annotations

from collections.abc import Callable

from tidings.core.ordering.messages import MAX_PART_BYTES, StatePart, StateTaken

WINDOW = 32
"""Parts in flight at a time."""


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
        """Resend from the first unacknowledged part on."""
        self._next = self._taken
        self._fill()

    def taken(self, message: StateTaken) -> bool:
        """Handle an acknowledgement; False if it is not new."""
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
    """Takes parts in order; a part of a later state starts anew."""

    def __init__(self) -> None:
        self._of = (0, -1)
        self._pieces: list[bytes] = []

    def take(self, part: StatePart) -> bytes | None:
        """Take a part; with the last one, return the whole state."""
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
