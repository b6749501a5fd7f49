"""From an archive that grows into Parquet files, killed at any moment: every event once, none missing."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

import exactly_once_job
from source_archives import event
from tidings.storage.archive.reader import ArchiveReader

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("spark"), pytest.mark.timeout(600)]
KILLS = int(os.environ.get("TIDINGS_KILLS", "1"))
SEED = int(os.environ.get("TIDINGS_SEED", "0")) or random.randrange(1, 2**31)
WAIT_S = 120
MOMENT_S = 0.7
"""Within so long after a batch has begun, the kill comes."""


@contextmanager
def running(program: str, home: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A program in a session of its own, with all that it starts."""
    support = str(Path(exactly_once_job.__file__).parent)
    environment = {
        **os.environ,
        "PYTHONPATH": support,
        "SPARK_LOCAL_DIRS": str(home / "local"),
        "PYSPARK_PYTHON": sys.executable,
    }
    command = [sys.executable, exactly_once_job.__file__, program, str(home)]
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


def test_every_event_once_across_kills(spark: Any, tmp_path: Path) -> None:
    print(f"TIDINGS_SEED={SEED} TIDINGS_KILLS={KILLS}")
    moments = random.Random(SEED)
    with running("write", tmp_path) as writer:
        wait_until(lambda: (tmp_path / "archive" / "archive.sqlite").exists(), writer, tmp_path)
        for turn in range(KILLS):
            with running("query", tmp_path) as query:
                if turn == 0:
                    kill_a_worker(query, tmp_path, moments)
                begun = batches_begun(tmp_path)
                wait_until(lambda: batches_begun(tmp_path) > begun, query, tmp_path)  # noqa: B023
                time.sleep(moments.uniform(0, MOMENT_S))
        (tmp_path / "enough").touch()
        assert writer.wait(WAIT_S) == 0
    last = exactly_once_job.start_query(spark, tmp_path, {"availableNow": True})
    try:
        assert last.awaitTermination(WAIT_S)
    finally:
        last.stop()
    assert_once(spark, tmp_path)


def kill_a_worker(query: subprocess.Popen[bytes], home: Path, moments: random.Random) -> None:
    """The query goes on: Spark runs the worker's task again."""
    wait_until(lambda: batches_done(home) >= 0 and bool(workers_of(query.pid)), query, home)
    time.sleep(moments.uniform(0, MOMENT_S))
    for worker in workers_of(query.pid):
        kill(worker)
    done = batches_done(home)
    wait_until(lambda: batches_done(home) > done + 1, query, home)


def assert_once(spark: Any, home: Path) -> None:
    with ArchiveReader(home / "archive") as reader:
        end = reader.bounds().end
    assert end > 0
    rows = spark.read.parquet(str(home / "rows")).select("offset", "value", "source", "sequence").collect()
    found = sorted(tuple(row) for row in rows)
    assert wrong_counts([row[0] for row in found], end) == {}
    for offset, value, source, sequence in found:
        wanted = event(offset)
        assert (bytes(value), source, sequence) == (wanted.payload, wanted.source, wanted.sequence)


def wrong_counts(offsets: list[int], end: int) -> dict[int, int]:
    """How often each offset is there that is not there once."""
    counts = Counter(offsets)
    return {
        offset: counts[offset] for offset in {*range(end), *counts} if counts[offset] != 1 or offset >= end
    }


def test_the_check_sees_what_is_wrong() -> None:
    assert wrong_counts([2, 0, 1], 3) == {}
    assert wrong_counts([0, 1, 1, 3, 4], 4) == {1: 2, 2: 0, 4: 1}
