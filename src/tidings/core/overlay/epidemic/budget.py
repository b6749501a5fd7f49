"""How much a broker may say: bytes of gossip per second, answers per round."""

from __future__ import annotations

from tidings.core.kernel import Port
from tidings.core.overlay.epidemic.messages import Carried, Fragment

BURST_SECONDS = 1.0
HEADER_BYTES = 96
"""About what a carried event or a block takes beside its data."""


class Budget:
    """Bytes that may be sent now: a second's worth at most, filled as time passes.

    What does not fit is not sent and counted in `throttled`; nothing waits. Whoever misses it asks again.
    """

    def __init__(self, port: Port, bytes_per_s: int) -> None:
        self._port = port
        self._bytes_per_s = bytes_per_s
        self._left = float(bytes_per_s) * BURST_SECONDS
        self._filled_at = port.now
        self.throttled = 0

    def allows(self, size_bytes: int, lacks: object) -> bool:
        """Whether it is worth preparing an event of that size; of how many blocks is known only afterwards."""
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
