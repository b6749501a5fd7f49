"""Starting streaming queries on a machine that may be busy."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

LATE = "Python worker failed to connect back"
ATTEMPTS = 10
WAIT_S = 120


def started(start: Callable[[], Any]) -> Any:
    """The query, once it has made progress or has ended.

    Spark waits ten seconds, no longer, for the Python process behind a stream. A query that failed of that is started
    again.
    """
    for _ in range(ATTEMPTS):
        query = start()
        until = time.monotonic() + WAIT_S
        while query.isActive and query.lastProgress is None:
            assert time.monotonic() < until, query.status
            time.sleep(0.05)
        error = query.exception()
        if error is None or LATE not in str(error):
            return query
    raise AssertionError(f"{ATTEMPTS} times: {LATE}")
