"""What a user did wrong, told in one line: Spark prints a traceback of its worker in front of any error of ours."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from tidings.core.errors import TidingsError


@contextmanager
def told_plainly() -> Iterator[None]:
    """Errors of ours leave without a traceback, any other with one.

    Spark asks the environment of the worker that failed whether to show it. That worker ends with the error, so
    nobody else's tracebacks are hidden.
    """
    try:
        yield
    except TidingsError:
        if "pyspark.worker_util" in sys.modules:
            os.environ["SPARK_HIDE_TRACEBACK"] = "1"
        raise
