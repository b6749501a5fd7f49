"""Waits for a broker that is unreachable for a while, for example during a restart, but not after a user's mistake."""

from __future__ import annotations

import random
import time

from tidings.core.errors import BrokerAway, ConnectionFailed
from tidings.drivers.sockets.dialling import backoff_seconds

RESUME_ADVICE = "start the query again to resume where it stopped"
RERUN_ADVICE = "run it again when the broker is reachable"


class RetryBudget:
    """Allows retries for some seconds after the first failure; `renew` starts over after a success."""

    def __init__(self, seconds: float, advice: str) -> None:
        self._seconds = seconds
        self._advice = advice
        self._ends_at: float | None = None
        self._attempt = 0

    def renew(self) -> None:
        self._ends_at, self._attempt = None, 0

    def wait(self, error: ConnectionFailed) -> None:
        """Sleep until the next attempt. Raises ConnectionFailed if none can help or the time is over."""
        if not isinstance(error, BrokerAway):  # rejected or untrusted: the broker is reachable
            raise error
        now = time.monotonic()
        if self._ends_at is None:
            self._ends_at = now + self._seconds
        if now >= self._ends_at:
            raise ConnectionFailed(
                f"{error}; gave up after {self._seconds:g} s (option timeout): {self._advice}"
            ) from None
        # The last attempt comes when the time is over, not up to a whole delay earlier.
        time.sleep(min(backoff_seconds(self._attempt, random.random()), self._ends_at - now))
        self._attempt += 1
