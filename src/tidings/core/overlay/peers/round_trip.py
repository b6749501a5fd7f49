"""Estimates round-trip times and when to send again, as RFC 6298 says."""

from __future__ import annotations

FIRST_TIMEOUT_NS = 300_000_000
LEAST_TIMEOUT_NS = 40_000_000
"""RFC 6298 has a second; acknowledgements of channels are delayed by at most half of this."""
MOST_TIMEOUT_NS = 3_000_000_000
GRANULARITY_NS = 1_000_000


class RoundTrip:
    """The smoothed round-trip time of one channel, and its timeout."""

    __slots__ = ("smoothed_ns", "variation_ns")

    def __init__(self) -> None:
        self.smoothed_ns: int | None = None
        self.variation_ns = 0

    def measured(self, took_ns: int) -> None:
        """Take in the time from sending a packet to its acknowledgement. Packets that were sent twice do not count."""
        if self.smoothed_ns is None:
            self.smoothed_ns, self.variation_ns = took_ns, took_ns // 2
            return
        self.variation_ns += (abs(self.smoothed_ns - took_ns) - self.variation_ns) // 4
        self.smoothed_ns += (took_ns - self.smoothed_ns) // 8

    def timeout_ns(self, times: int = 1) -> int:
        """Return how long to wait for the acknowledgement of a packet that was sent `times` times."""
        if self.smoothed_ns is None:
            timeout_ns = FIRST_TIMEOUT_NS
        else:
            timeout_ns = self.smoothed_ns + max(GRANULARITY_NS, 4 * self.variation_ns)
        timeout_ns = max(timeout_ns, LEAST_TIMEOUT_NS) << min(times - 1, 10)
        return min(timeout_ns, MOST_TIMEOUT_NS)
