"""Reports a user's mistake in one line: Spark prints its worker's traceback in front of any error of ours."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from tidings.core.errors import TidingsError


@contextmanager
def hide_traceback() -> Iterator[None]:
    """Let errors of tidings leave without a traceback, all others with one.

    Spark asks the environment of the failed worker whether to show the traceback. That worker ends with the error, so
    no other traceback is hidden.
    """
    try:
        yield
    except TidingsError:
        if "pyspark.worker_util" in sys.modules:
            os.environ["SPARK_HIDE_TRACEBACK"] = "1"
        raise
