"""The source over the network, called as Spark calls it: whoever keeps the archive may go and come back."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from source_archives import extend, make_archive
from tidings.archive.reader import ArchiveReader
from tidings.model.errors import ConnectionFailed, PipelineError
from tidings.net.address import Address
from tidings.net.archive_desk import ArchiveDesk
from tidings.net.archive_server import ArchiveServer
from tidings.spark.format.source import SCHEMA, ArchiveBatchReader
from tidings.spark.format.stream_reader import ArchiveStreamReader

WAIT_S = 30


class Keeper:
    """An archive's server in a thread; it starts again at the same port."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.address = Address(port=0)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self.start()

    @property
    def url(self) -> str:
        return f"tidings://{self.address}"

    def start(self) -> None:
        self._server = ArchiveServer("keeper", self.address, ArchiveDesk(self.directory))
        asyncio.run_coroutine_threadsafe(self._server.start(), self._loop).result(WAIT_S)
        self.address = self._server.address

    def stop(self) -> None:
        asyncio.run_coroutine_threadsafe(self._server.stop(), self._loop).result(WAIT_S)

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(WAIT_S)
        self._loop.close()


@pytest.fixture
def keeper(tmp_path: Path) -> Iterator[Keeper]:
    keeper = Keeper(make_archive(tmp_path / "a", [30, 20, 10]))
    yield keeper
    keeper.stop()
    keeper.close()


def test_a_batch_over_the_network_is_that_of_the_files(keeper: Keeper) -> None:
    found = []
    for options in ({"url": keeper.url}, {"archive": str(keeper.directory)}):
        reader = ArchiveBatchReader({**options, "startingOffsets": "7", "where": "size < 50"}, SCHEMA)
        found.append(
            [row for part in reader.partitions() for batch in reader.read(part) for row in batch.to_pylist()]
        )
    assert found[0] == found[1]
    assert [row["offset"] for row in found[0]] == list(range(7, 50))


def test_a_stream_goes_on_when_its_keeper_is_back(keeper: Keeper) -> None:
    options = {"url": keeper.url, "startingOffsets": "earliest", "consumer": "job"}
    reader = ArchiveStreamReader(options, SCHEMA)
    start = reader.initialOffset()
    keeper.stop()
    with pytest.raises(ConnectionFailed, match=f"cannot reach {keeper.url}"):
        reader.latestOffset(start, ReadAllAvailable())
    keeper.start()
    end = reader.latestOffset(start, ReadAllAvailable())
    (part,) = reader.partitions(start, end)
    keeper.stop()
    extend(keeper.directory, 5)
    with pytest.raises(ConnectionFailed, match=f"cannot reach {keeper.url}"):
        list(reader.read(part))
    keeper.start()
    assert sum(batch.num_rows for batch in reader.read(part)) == 60
    reader.commit(end)  # on the connection that was lost meanwhile
    with ArchiveReader(keeper.directory) as plain:
        assert plain.consumers() == {"job": 60}
    assert list(reader.latestOffset(end, ReadAllAvailable()).values()) == [65]
    reader.stop()


def test_an_archive_and_its_keeper_are_one(keeper: Keeper) -> None:
    """The position is of the archive, however it is read."""
    over = ArchiveStreamReader({"url": keeper.url}, SCHEMA)
    direct = ArchiveStreamReader({"archive": str(keeper.directory)}, SCHEMA)
    assert over.initialOffset() == direct.initialOffset()
    twice = ArchiveStreamReader({"url": f"{keeper.url},tidings://localhost:{keeper.address.port}"}, SCHEMA)
    with pytest.raises(PipelineError, match="are the same archive"):
        twice.initialOffset()
    over.stop()
    direct.stop()
