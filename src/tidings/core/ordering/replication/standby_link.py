"""The active replica's view of its standby: which batches were sent, and which are on the standby's disk.

First the standby gets the state (transfer.py). Then it follows: each batch is sent, and resent until acknowledged. From
then on the active replica is gated: no output of a batch leaves before the standby has the batch.
"""

from __future__ import annotations

from collections.abc import Callable

from tidings.core.messages import Message
from tidings.core.ordering.messages import Replicate, StateTaken
from tidings.core.ordering.replication.transfer import StateSender

MAX_UNACKNOWLEDGED = 2048
"""Batches that the standby has not acknowledged; beyond, new requests are ignored or, during a transfer of the state,
the standby is left behind."""
REPEATED = 256
"""Batches resent at a time."""


class StandbyLink:
    def __init__(self, server: str, send: Callable[[Message], None]) -> None:
        self.follows = False
        """The standby has the state, and each batch is sent to it."""
        self._server = server
        self._send = send
        self._gated = False
        self._gated_after = 0
        """The last batch whose outputs left although the standby did not have it."""
        self._acknowledged = 0
        self._silence = 0
        """Ticks since a new acknowledgement."""
        self._unacknowledged: dict[int, bytes] = {}
        self._transfer: StateSender | None = None

    @property
    def is_receiving_state(self) -> bool:
        return self._transfer is not None

    @property
    def is_gated(self) -> bool:
        return self._gated

    @property
    def is_full(self) -> bool:
        return self._gated and len(self._unacknowledged) >= MAX_UNACKNOWLEDGED

    @property
    def may_take_over(self) -> bool:
        """True if the standby has all that was sent, and so may take over."""
        return self._gated and self._acknowledged >= self._gated_after

    def safe(self, number: int) -> int:
        """Return the batch up to which outputs may leave; `number` is the last on our own disk."""
        return self._acknowledged if self._gated and self._acknowledged < number else number

    def leave_behind(self) -> None:
        self.follows = self._gated = False
        self._unacknowledged.clear()
        self._acknowledged = 0
        self._transfer = None

    def send_state(self, term: int, number: int, state: bytes) -> None:
        self.leave_behind()
        self._transfer = StateSender(self._server, term, number, state, self._send)

    def state_taken(self, message: StateTaken) -> bool:
        """Handle an acknowledgement of the transfer; False if it is not new."""
        return self._transfer is not None and self._transfer.taken(message)

    def resume(self, number: int, acknowledged: int, missing: dict[int, bytes]) -> None:
        """Continue with a standby that followed before our restart and has the batches up to `acknowledged`."""
        self._follow(number, acknowledged)
        self._unacknowledged = missing

    def _follow(self, number: int, acknowledged: int) -> None:
        self.follows = self._gated = True
        self._gated_after = number
        self._acknowledged = acknowledged

    def written(self, term: int, number: int, inputs: bytes) -> None:
        """Send a batch that is on our own disk."""
        if not self.follows and self._transfer is None:
            return
        self._unacknowledged[number] = inputs
        if self.follows:
            self._send(Replicate(self._server, term, number, inputs))
        elif len(self._unacknowledged) > MAX_UNACKNOWLEDGED:
            self.leave_behind()

    def has(self, taken: int, term: int, number: int) -> bool:
        """Record that the standby has the batches up to `taken`; False if it does not follow or cannot have them."""
        if self._transfer is not None and taken >= self._transfer.number:
            self._transfer = None
            self._follow(number, taken)
            self.repeat(term)
        if not self.follows or taken > number:
            return False
        self._acknowledged = max(self._acknowledged, taken)
        while self._unacknowledged and (first := next(iter(self._unacknowledged))) <= self._acknowledged:
            del self._unacknowledged[first]
            self._silence = 0
        return True

    def tick(self, term: int, number: int) -> None:
        """Send a heartbeat, and resend what the standby lacks."""
        if self._transfer is not None:
            self._transfer.repeat()
        if self.follows:
            self._silence += 1
            if self._silence >= 2:
                self.repeat(term)
            self._send(Replicate(self._server, term, number))

    def repeat(self, term: int) -> None:
        for number in list(self._unacknowledged)[:REPEATED]:
            self._send(Replicate(self._server, term, number, self._unacknowledged[number]))
