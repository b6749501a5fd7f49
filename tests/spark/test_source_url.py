"""`format("tidings")` with a url: the archive of a running broker, through a real Spark, also when the broker goes."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from live_network import until
from recording_network import guaranteed_broker
from tidings.net.archive_desk import ArchiveDesk
from tidings.net.broker import BrokerServer
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
        self._server = guaranteed_broker(self.directory, self.port, archive=ArchiveDesk(archive))
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


def test_a_broker_that_goes_and_comes_back(spark: Any, keeper: Keeper, tmp_path: Path) -> None:
    """A batch, a stream, the same stream without its broker, and on from its checkpoint."""
    keeper.call(keeper.publish(0, 300))
    batch = spark.read.format("tidings").option("url", keeper.url).option("minPartitions", 3).load()
    assert numbers(batch) == list(range(300))

    def query() -> Any:
        stream = (
            spark.readStream.format("tidings")
            .option("url", keeper.url)
            .option("startingOffsets", "earliest")
            .option("consumer", "table")
            .load()
        )
        return (
            stream.writeStream.format("parquet")
            .option("path", str(tmp_path / "table"))
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )

    assert query().awaitTermination(100)
    keeper.call(keeper.publish(300, 400))
    keeper.call(keeper.stop())
    without = query()
    with pytest.raises(Exception, match=r"cannot reach tidings://127\.0\.0\.1:\d+: connection refused"):
        without.awaitTermination(100)
    keeper.call(keeper.start())
    keeper.call(keeper.publish(400, 450))
    assert query().awaitTermination(100)
    assert numbers(spark.read.parquet(str(tmp_path / "table"))) == list(range(450))
