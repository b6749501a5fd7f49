"""`format("tidings")` with a durable name, on a real Spark and real guaranteed brokers."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import durable_job
import tidings
from broker_thread import BrokerThread
from durable_job import ROWS, start_query
from one_line import told_in_one_line
from spark_killing import batches_begun, batches_done, running, wait_until

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("spark"), pytest.mark.timeout(250)]

SECONDS = 100
LAST_BATCH = ROWS
"""Spark never commits it."""


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerThread]:
    with BrokerThread(data=tmp_path / "broker") as running:
        yield running


def publish(broker: BrokerThread, first: int, stop: int) -> None:
    async def work() -> None:
        async with tidings.connect(broker.url) as bus:
            await bus.publish_many((f"/orders/{n % 3}", {"number": n}, b"%d" % n) for n in range(first, stop))

    broker.run(work())


def run(spark: Any, broker: BrokerThread, home: Path, **options: Any) -> None:
    """A query that reads what there is into the table under `home`, and ends."""
    query = start_query(spark, home, broker.url, {"availableNow": True}, **options)
    try:
        assert query.awaitTermination(SECONDS)
    finally:
        query.stop()


def table(spark: Any, home: Path) -> list[tuple[int, int]]:
    """The number and the attempt of each row."""
    rows = spark.read.parquet(str(home / "table"))
    return sorted((int(bytes(row.value)), row.attempt) for row in rows.collect())


def test_a_query_goes_on_where_it_was(spark: Any, broker: BrokerThread, tmp_path: Path) -> None:
    home = tmp_path / "home"
    run(spark, broker, home)  # now the name exists
    publish(broker, 0, 50)
    run(spark, broker, home)
    broker.restart()
    publish(broker, 50, 80)
    run(spark, broker, home, minPartitions=3)
    assert table(spark, home) == [(number, 1) for number in range(80)]


@pytest.mark.parametrize("batch", [0, 2])
def test_a_query_that_is_killed_in_a_batch(
    spark: Any, broker: BrokerThread, tmp_path: Path, batch: int
) -> None:
    """With its checkpoint every event comes once; without it only what was not acknowledged comes again."""
    home, copied, elsewhere = tmp_path / "home", tmp_path / "copied", tmp_path / "elsewhere"
    home.mkdir()
    run(spark, broker, tmp_path / "first")  # the name exists
    publish(broker, 0, 100)
    with running(durable_job.__file__, str(home), broker.url, "50", home=home) as query:
        wait_until(lambda: batches_begun(home) == batch, query, home)
    assert batches_done(home) == batch - 1  # and nothing was printed
    shutil.move(home / "checkpoint", copied)
    run(spark, broker, home, checkpoint=copied)
    assert table(spark, home) == [(number, 1) for number in range(100)]
    publish(broker, 100, 130)
    run(spark, broker, elsewhere)
    again = 100 - LAST_BATCH
    assert table(spark, elsewhere) == [(number, 2 if number < 100 else 1) for number in range(again, 130)]


def test_a_checkpoint_whose_name_went_on_without_it(spark: Any, broker: BrokerThread, tmp_path: Path) -> None:
    """It is not continued: somebody else has acknowledged what it would read again."""
    run(spark, broker, tmp_path / "old")
    publish(broker, 0, 50)
    run(spark, broker, tmp_path / "old")
    run(spark, broker, tmp_path / "new")
    assert table(spark, tmp_path / "new") == [(number, 2) for number in range(40, 50)]
    with pytest.raises(Exception, match="STREAM_FAILED") as raised:
        run(spark, broker, tmp_path / "old")
    told_in_one_line(raised.value, "this checkpoint cannot go on: 'lake' was read further by somebody else")
