"""A broker that is away for a while, as one that restarts is, is waited for; a mistake is not."""

from __future__ import annotations

import random
import time

from tidings.core.errors import BrokerAway, ConnectionFailed
from tidings.drivers.sockets.dialling import backoff_seconds

GOES_ON = "a query that is started again goes on where it was"
BEGINS_ANEW = "run it again when the broker is there"


class RetryBudget:
    """How long one more attempt is made: so many seconds from the first failure, and anew after a success."""

    def __init__(self, seconds: float, advice: str) -> None:
        self._seconds = seconds
        self._advice = advice
        self._ends_at: float | None = None
        self._attempt = 0

    def renew(self) -> None:
        self._ends_at, self._attempt = None, 0

    def wait(self, error: ConnectionFailed) -> None:
        """Until it is time for another attempt. ConnectionFailed if none can help, or there were enough."""
        if not isinstance(error, BrokerAway):  # who refuses us, or cannot be trusted, is there
            raise error
        now = time.monotonic()
        if self._ends_at is None:
            self._ends_at = now + self._seconds
        if now >= self._ends_at:
            raise ConnectionFailed(
                f"{error}, for {self._seconds:g} s (option timeout): {self._advice}"
            ) from None
        # The last attempt comes when the time is over, not up to a whole delay before.
        time.sleep(min(backoff_seconds(self._attempt, random.random()), self._ends_at - now))
        self._attempt += 1
