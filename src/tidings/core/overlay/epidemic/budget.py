"""Limits the bytes of gossip that a broker sends per second."""

from __future__ import annotations

from tidings.core.kernel import Port
from tidings.core.overlay.epidemic.messages import Carried, Fragment

BURST_SECONDS = 1.0
HEADER_BYTES = 96
"""Roughly what a carried event or a block takes apart from its data."""


class Budget:
    """A token bucket of bytes that holds at most a second's worth.

    What does not fit is not sent, and `throttled` counts it; nothing waits. A broker that misses it asks again.
    """

    def __init__(self, port: Port, bytes_per_s: int) -> None:
        self._port = port
        self._bytes_per_s = bytes_per_s
        self._left = float(bytes_per_s) * BURST_SECONDS
        self._filled_at = port.now
        self.throttled = 0

    def allows(self, size_bytes: int, lacks: object) -> bool:
        """Return True if an event of that size is worth preparing; how many blocks it takes is known only then."""
        self._fill()
        if lacks is not None or size_bytes <= self._left:
            return True
        self.throttled += 1
        return False

    def _fill(self) -> None:
        now = self._port.now
        earned = (now - self._filled_at) * self._bytes_per_s / 1e9
        self._left = min(self._left + earned, self._bytes_per_s * BURST_SECONDS)
        self._filled_at = now

    def spend(self, size_bytes: int) -> bool:
        self._fill()
        if size_bytes > self._left:
            self.throttled += 1
            return False
        self._left -= size_bytes
        return True


def data_bytes(message: Carried | Fragment) -> int:
    if isinstance(message, Carried):
        return message.stretch.size_bytes + HEADER_BYTES
    return len(message.data) + len(message.coefficients) + HEADER_BYTES
