"""Programs with a Spark of their own that a test kills, with all processes that they start."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

WAIT_S = 120


@contextmanager
def running(job: str, *arguments: str, home: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A program in a session of its own, with all that it starts."""
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(Path(job).parent), *filter(None, [os.environ.get("PYTHONPATH")])]),
        "SPARK_LOCAL_DIRS": str(home / "local"),
        "PYSPARK_PYTHON": sys.executable,
    }
    command = [sys.executable, job, *arguments]
    with (home / "printed").open("ab") as printed:
        process = subprocess.Popen(
            command, env=environment, stdout=printed, stderr=printed, cwd=home, start_new_session=True
        )
    try:
        yield process
    finally:
        kill_session(process)


def kill_session(process: subprocess.Popen[bytes]) -> None:
    """The driver, its JVM and all Python workers: Spark puts those into another group, but not another session."""
    until = time.monotonic() + WAIT_S
    while members := session_members(process.pid):
        assert time.monotonic() < until, "processes that do not end"
        for member in members:
            kill(member)
        process.poll()
        time.sleep(0.05)
    process.wait(WAIT_S)


def kill(process_id: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(process_id, signal.SIGKILL)


def session_members(session_id: int) -> list[int]:
    return [found for found, fields in processes() if int(fields[3]) == session_id and fields[0] != "Z"]


def processes() -> Iterator[tuple[int, list[str]]]:
    """Process ids, each with its state, parent, group, session and so on."""
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            yield int(path.parent.name), path.read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it has ended


def workers_of(session_id: int) -> list[int]:
    """Python workers that run tasks: the children of Spark's daemon."""
    daemons = [one for one in session_members(session_id) if "pyspark.daemon" in command_line(one)]
    return [found for found, fields in processes() if int(fields[1]) in daemons and found in daemons]


def command_line(process_id: int) -> str:
    try:
        return Path(f"/proc/{process_id}/cmdline").read_text()
    except OSError:
        return ""


def batches_begun(home: Path) -> int:
    return max((int(path.name) for path in home.glob("checkpoint/offsets/[0-9]*")), default=-1)


def batches_done(home: Path) -> int:
    return max((int(path.name) for path in home.glob("checkpoint/commits/[0-9]*")), default=-1)


def wait_until(true: Callable[[], bool], process: subprocess.Popen[bytes], home: Path) -> None:
    until = time.monotonic() + WAIT_S
    while not true():
        printed = (home / "printed").read_text(errors="replace")[-3000:]
        assert process.poll() is None, f"the query has ended: {printed}"
        assert time.monotonic() < until, f"nothing happens: {printed}"
        time.sleep(0.01)
