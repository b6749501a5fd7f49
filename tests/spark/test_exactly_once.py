"""From an archive that grows into Parquet files, killed at any moment: every event once, none missing."""

from __future__ import annotations

import os
import random
import subprocess
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import exactly_once_job
from source_archives import event
from spark_killing import WAIT_S, batches_begun, batches_done, kill, running, wait_until, workers_of
from tidings.storage.archive.reader import ArchiveReader

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("spark"), pytest.mark.timeout(600)]
KILLS = int(os.environ.get("TIDINGS_KILLS", "1"))
SEED = int(os.environ.get("TIDINGS_SEED", "0")) or random.randrange(1, 2**31)
MOMENT_S = 0.7
"""Within so long after a batch has begun, the kill comes."""


def test_every_event_once_across_kills(spark: Any, tmp_path: Path) -> None:
    print(f"TIDINGS_SEED={SEED} TIDINGS_KILLS={KILLS}")
    moments = random.Random(SEED)
    job, home = exactly_once_job.__file__, str(tmp_path)
    with running(job, "write", home, home=tmp_path) as writer:
        wait_until(lambda: (tmp_path / "archive" / "archive.sqlite").exists(), writer, tmp_path)
        for turn in range(KILLS):
            with running(job, "query", home, home=tmp_path) as query:
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
