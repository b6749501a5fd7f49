"""Makes Spark run the Python of the program, which has tidings, instead of any `python3` on PATH.

Spark looks for `format("tidings")`, and runs tasks, with the Python that PYSPARK_DRIVER_PYTHON or PYSPARK_PYTHON names
when the session is made, else with `python3` on PATH. A program that is started by the path of its Python, without
activating the environment, would therefore use the system's Python, which has no tidings.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

SETTINGS = ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON")


def use_this_python() -> None:
    """Make Spark run this Python, unless the user has chosen one or Spark would find this one anyway."""
    if any(os.environ.get(name) for name in SETTINGS) or not sys.executable or _is_first_on_path():
        return
    os.environ["PYSPARK_PYTHON"] = sys.executable
    if "pyspark.sql" in sys.modules:
        _mend_running_session()


def _is_first_on_path() -> bool:
    """Say whether `python3` on PATH is this Python. Links are not followed: the Python of a virtual environment is a
    link to one that has other packages."""
    found = shutil.which("python3")
    return found is not None and Path(found).absolute().parent == Path(sys.executable).absolute().parent


def _mend_running_session() -> None:
    """Register the source by hand, because the JVM has already read its environment.

    Not on a cluster: there `python3` may well be a Python that has tidings.
    """
    from pyspark.sql import SparkSession

    session = SparkSession.getActiveSession()
    if session is None or not session.sparkContext.master.startswith("local"):
        return
    from pyspark_tidings import DefaultSource

    session.sparkContext.pythonExec = sys.executable
    session.dataSource.register(DefaultSource)
