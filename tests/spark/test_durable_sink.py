"""The sink's durable name: a query that goes on elsewhere publishes nothing twice, and no other query publishes so."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from broker_thread import BrokerThread
from one_line import told_in_one_line
from sink_queries import ROWS, add_files, finish, forget_last_commit, numbers, start

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("spark")]


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerThread]:
    with BrokerThread(data=tmp_path / "broker") as running:
        yield running


def test_a_query_that_goes_on_elsewhere_publishes_once(
    spark: Any, broker: BrokerThread, tmp_path: Path
) -> None:
    files, checkpoint, copied = tmp_path / "files", tmp_path / "checkpoint", tmp_path / "copied"
    add_files(files, 0, 1)
    finish(start(spark, files, checkpoint, broker, durable="orders-feed"))
    forget_last_commit(checkpoint)
    shutil.copytree(checkpoint, copied)
    add_files(files, 2)
    finish(start(spark, files, copied, broker, durable="orders-feed"))
    shown = broker.settled()
    assert numbers(shown) == list(range(3 * ROWS))
    assert broker.repeated == ROWS
    assert all(event.source.startswith("orders-feed-") for event in shown)
    broker.restart()  # the name is on its disk
    without = start(spark, files, tmp_path / "lost", broker, durable="orders-feed")
    with pytest.raises(Exception, match="STREAM_FAILED") as raised:
        finish(without)
    told_in_one_line(raised.value, "option durable: 'orders-feed' belongs to another query")
    assert len(broker.settled()) == 3 * ROWS
    finish(start(spark, files, tmp_path / "lost", broker, durable="orders-feed-2"))
    assert len(broker.settled()) == 6 * ROWS  # a name of its own: published again, nothing is lost


@pytest.mark.parametrize(
    ("mode", "options", "words"),
    [
        ("guaranteed", {"durable": "a b"}, "option durable 'a b' must have 1 to 64 letters"),
        ("guaranteed", {"durable": "a", "name": "b"}, "options name and durable exclude each other"),
        (
            "guaranteed",
            {"durable": "a"},
            "option durable is only for streams: a batch write has no checkpoint",
        ),
    ],
)
def test_a_mistake_in_a_batch_is_told_in_one_line(
    spark: Any, tmp_path: Path, mode: str, options: dict[str, str], words: str
) -> None:
    with BrokerThread(mode, tmp_path / "broker") as broker:
        writer = spark.range(1).selectExpr("'' value").write.format("tidings").mode("append")
        with pytest.raises(Exception) as raised:
            writer.options(url=broker.url, topic="/a", **options).save()
        told_in_one_line(raised.value, words)


def test_a_network_without_durable_subscriptions_is_told(spark: Any, tmp_path: Path) -> None:
    add_files(tmp_path / "files", 0)
    with BrokerThread("best-effort") as broker:
        query = start(spark, tmp_path / "files", tmp_path / "checkpoint", broker, durable="a")
        with pytest.raises(Exception, match="STREAM_FAILED") as raised:
            finish(query)
    told_in_one_line(raised.value, "the option durable needs a guaranteed network, and tidings://127.0.0.1:")
