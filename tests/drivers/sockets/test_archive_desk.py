"""The desk when readers go in the middle of something, and when the archive under it does."""

from __future__ import annotations

import asyncio
import gc
import shutil
from pathlib import Path
from typing import Any

import pytest

from live_network import until
from tidings.core.errors import ArchiveError
from tidings.core.events.event import Event
from tidings.core.wire.archive_messages import ArchiveRead
from tidings.drivers.address import Address, url
from tidings.drivers.sockets.archive_client import RemoteArchive
from tidings.drivers.sockets.archive_read_service import ArchiveReadService
from tidings.drivers.sockets.archive_server import ArchiveServer
from tidings.storage.archive import Archive, ArchiveSettings

pytestmark = pytest.mark.timeout(60)


def fill(directory: Path, count: int, payload_bytes: int = 4) -> None:
    with Archive.open(directory, ArchiveSettings(segment_rows=50)) as archive:
        for number in range(count):
            archive.append([Event("p", 0, number + 1, "/a", 1, {}, bytes(payload_bytes))], 1)


def serve(directory: Path, use: Any) -> list[dict[str, Any]]:
    """Runs `use(server, desk)`; returns what asyncio complained of."""
    complaints: list[dict[str, Any]] = []

    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: complaints.append(context))
        desk = ArchiveReadService(directory)
        server = ArchiveServer("keeper", Address(port=0), desk)
        await server.start()
        try:
            await use(server, desk)
        finally:
            await server.stop()
        assert desk._reader is None
        assert not desk._tasks and not desk._ending
        gc.collect()
        await asyncio.sleep(0)

    asyncio.run(asyncio.wait_for(main(), 50))
    return complaints


def test_a_desk_that_closes_while_readers_read(tmp_path: Path) -> None:
    """The readers' files are closed before the archive is, and nothing is opened afterwards."""
    fill(tmp_path / "archive", 120, 400_000)

    async def use(server: ArchiveServer, desk: ArchiveReadService) -> None:
        readers = [await asyncio.to_thread(RemoteArchive, url(server.address)) for _ in range(3)]
        for reader in readers:  # none of them takes what it asked for
            reader._send(ArchiveRead(100, 0, 120))
        await until(lambda: sum(map(len, desk._tasks.values())) == 3)
        readers[0].close()
        await until(lambda: len(desk._tasks) == 2)
        await server.stop()
        for reader in readers:
            reader.close()

    assert serve(tmp_path / "archive", use) == []


def test_a_reader_that_takes_nothing_holds_up_nobody(tmp_path: Path) -> None:
    fill(tmp_path / "archive", 120, 400_000)

    async def use(server: ArchiveServer, desk: ArchiveReadService) -> None:
        def read() -> int:
            with RemoteArchive(url(server.address)) as reader:
                return sum(batch.num_rows for batch in reader.read(0, 120))

        slow = await asyncio.to_thread(RemoteArchive, url(server.address))
        slow._send(ArchiveRead(100, 0, 120))
        assert await asyncio.gather(*(asyncio.to_thread(read) for _ in range(2))) == [120, 120]
        waiting = sum(session.outbox.size_bytes for session in server._sessions)
        assert waiting < 8 * 1024 * 1024
        slow.close()

    assert serve(tmp_path / "archive", use) == []


def test_an_archive_that_is_removed_or_replaced_is_not_taken_for_the_same(tmp_path: Path) -> None:
    directory = tmp_path / "archive"
    fill(directory, 10)

    async def use(server: ArchiveServer, desk: ArchiveReadService) -> None:
        def look() -> None:
            with RemoteArchive(url(server.address)) as before:
                assert before.bounds() == (0, 10)
                shutil.rmtree(directory)
                with pytest.raises(ArchiveError, match="there is no archive"):
                    before.bounds()
                fill(directory, 3)
                with pytest.raises(ArchiveError, match="was replaced by another one"):
                    list(before.read(0, 2))
                with RemoteArchive(url(server.address)) as after:
                    assert after.bounds() == (0, 3)
                    assert after.id != before.id

        await asyncio.to_thread(look)

    assert serve(directory, use) == []
