"""`format("tidings")` with a url: the archive of a running broker, through a real Spark, also when the broker goes."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from live_network import until
from recording_network import guaranteed_broker
from spark_queries import started
from tidings.drivers.sockets.archive_read_service import ArchiveReadService
from tidings.drivers.sockets.broker import BrokerServer
from tidings.recording.recorder import Recorder

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("spark"), pytest.mark.timeout(250)]


class Keeper:
    """A guaranteed broker that keeps an archive, in a thread; it can be stopped and started again."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.port = 0
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        self._server: BrokerServer | None = None
        self._recorder: Recorder | None = None
        self._task: asyncio.Future[None] | None = None

    def call(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(60)

    @property
    def url(self) -> str:
        return f"tidings://127.0.0.1:{self.port}"

    async def start(self) -> None:
        archive = self.directory / "archive"
        self._server = guaranteed_broker(self.directory, self.port, archive=ArchiveReadService(archive))
        await self._server.start()
        self.port = self._server.address.port
        self._recorder = Recorder(self.url, archive, opener=self._server.open_inside)
        await self._recorder.start()
        self._task = asyncio.ensure_future(self._recorder.run())

    async def stop(self) -> None:
        assert self._server is not None and self._recorder is not None and self._task is not None
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        await self._recorder.stop()
        await self._server.stop()

    async def publish(self, first: int, last: int) -> None:
        import tidings

        before = 0 if self._recorder is None else self._recorder.recorded
        async with tidings.connect(self.url) as bus:
            await bus.publish_many(("/a", {"number": number}, b"x") for number in range(first, last))
        recorder = self._recorder
        assert recorder is not None
        await until(lambda: recorder.recorded >= before + last - first)

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


@pytest.fixture
def keeper(tmp_path: Path) -> Iterator[Keeper]:
    found = Keeper(tmp_path)
    found.call(found.start())
    yield found
    found.call(found.stop())
    found.close()


def numbers(frame: Any) -> list[int]:
    rows = frame.selectExpr("CAST(attributes['number'] AS INT) AS number").collect()
    return sorted(row.number for row in rows)


def start(spark: Any, keeper: Keeper, home: Path, trigger: dict[str, Any], **options: object) -> Any:
    """From the archive's beginning into the table under `home`."""
    given = {"url": keeper.url, "startingOffsets": "earliest", **options}
    writer = spark.readStream.format("tidings").options(**given).load().writeStream.format("parquet")
    writer = writer.option("checkpointLocation", str(home / "checkpoint")).trigger(**trigger)
    return started(lambda: writer.start(str(home / "table")))


def table(spark: Any, home: Path) -> list[int]:
    return numbers(spark.read.parquet(str(home / "table")))


def test_a_broker_that_goes_and_comes_back(spark: Any, keeper: Keeper, tmp_path: Path) -> None:
    """A batch, a stream, the same stream without its broker, and on from its checkpoint."""
    keeper.call(keeper.publish(0, 300))
    batch = spark.read.format("tidings").option("url", keeper.url).option("minPartitions", 3).load()
    assert numbers(batch) == list(range(300))

    def run(**options: object) -> None:
        query = start(spark, keeper, tmp_path, {"availableNow": True}, consumer="table", **options)
        assert query.awaitTermination(100)

    run()
    keeper.call(keeper.publish(300, 400))
    keeper.call(keeper.stop())
    with pytest.raises(
        Exception, match=r"cannot reach tidings://127\.0\.0\.1:\d+: connection refused"
    ) as told:
        run(timeout=1)
    line = str(told.value).splitlines()[0]
    assert line.endswith(
        "; gave up after 1 s (option timeout): start the query again to resume where it stopped"
    )
    assert "Traceback" not in str(told.value)
    keeper.call(keeper.start())
    keeper.call(keeper.publish(400, 450))
    run()
    assert table(spark, tmp_path) == list(range(450))


def test_a_running_stream_goes_on_when_its_broker_is_back(spark: Any, keeper: Keeper, tmp_path: Path) -> None:
    """Without an end of the query, and every event once."""
    keeper.call(keeper.publish(0, 100))
    query = start(spark, keeper, tmp_path, {"processingTime": "50 milliseconds"}, timeout=100)

    def wait_for(count: int) -> None:
        ends_at = time.monotonic() + 100
        while sum(one["numInputRows"] for one in query.recentProgress) < count:
            assert query.isActive, query.exception()
            assert time.monotonic() < ends_at, query.status
            time.sleep(0.1)

    try:
        for round_ in range(2):
            wait_for(100 + 50 * round_)
            keeper.call(keeper.stop())
            time.sleep(1)  # it asks twenty times a second
            assert query.isActive, query.exception()
            keeper.call(keeper.start())
            keeper.call(keeper.publish(100 + 50 * round_, 150 + 50 * round_))
        wait_for(200)
    finally:
        query.stop()
    assert table(spark, tmp_path) == list(range(200))
