"""An archive read over real sockets: the same rows as from its files, and one clear error for whatever is wrong."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from recording_network import guaranteed_broker, running
from tidings.core.errors import ArchiveAhead, ArchiveCorrupt, ArchiveError, ArchiveTrimmed, ConnectionFailed
from tidings.core.events.event import Event
from tidings.core.messages import PROTOCOL_VERSION, Hello, Message, Welcome
from tidings.core.wire.archive_messages import (
    ArchiveInfo,
    ArchiveInfoRequest,
    ArchiveRead,
    ArchiveRows,
)
from tidings.core.wire.codec import decode, encode
from tidings.core.wire.frames import FrameReader, frame
from tidings.drivers.address import Address
from tidings.drivers.sockets import archive_read_service
from tidings.drivers.sockets.archive_client import RemoteArchive, open_reader
from tidings.drivers.sockets.archive_read_service import ArchiveReadService
from tidings.drivers.sockets.archive_server import ArchiveServer
from tidings.drivers.sockets.broker import BrokerServer
from tidings.storage.archive import Archive, ArchiveReader, ArchiveSettings

pytestmark = pytest.mark.timeout(100)


def events(first: int, count: int, payload_bytes: int = 4) -> list[Event]:
    return [
        Event("p", 0, number + 1, "/a", 1_000 + number, {"number": number}, bytes(payload_bytes))
        for number in range(first, first + count)
    ]


def fill(directory: Path, count: int = 300, payload_bytes: int = 4) -> Path:
    """Sealed segments of 100, and a tail."""
    with Archive.open(directory, ArchiveSettings(segment_rows=100)) as archive:
        for first in range(0, count, 50):
            archive.append(events(first, 50, payload_bytes), 5_000 + first)
        archive.append(events(count, 30, payload_bytes), 9_000)
    return directory


@contextmanager
def served(directory: Path, **options: Any) -> Iterator[str]:
    """The archive at a port, from a loop in another thread: readers block."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    def run(work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, loop).result(30)

    async def start() -> ArchiveServer:
        server = ArchiveServer("keeper", Address(port=0), ArchiveReadService(directory), **options)
        await server.start()
        return server

    server = run(start())
    try:
        yield f"tidings://{server.address}"
    finally:
        run(server.stop())
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def rows(batches: Iterator[Any]) -> list[dict[str, Any]]:
    return [row for batch in batches for row in batch.to_pylist()]


def test_it_reads_what_the_files_have(tmp_path: Path) -> None:
    directory = fill(tmp_path / "archive")
    with served(directory) as url, RemoteArchive(url) as remote, ArchiveReader(directory) as local:
        assert remote.id == local.id
        assert remote.bounds() == local.bounds() == (0, 330)
        for start, stop in [(0, 330), (0, 1), (99, 101), (250, 330), (330, 330), (17, 17)]:
            assert rows(remote.read(start, stop)) == rows(local.read(start, stop))
        assert [batch.num_rows for batch in remote.read(100, 150, batch_rows=20)] == [20, 20, 10]
        for at in (0, 1_000, 1_150, 1_329, 1_330):
            assert remote.offset_at(at) == local.offset_at(at)
        remote.commit("spark", 120)
        assert local.consumers() == {"spark": 120}
        assert remote.gaps() == []


def test_large_rows_are_cut_into_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive_read_service, "MAX_ROWS_BYTES", 20_000)
    directory = fill(tmp_path / "archive", payload_bytes=3_000)
    with served(directory) as url, RemoteArchive(url) as remote, ArchiveReader(directory) as local:
        batches = list(remote.read(0, 330))
        assert len(batches) > 30
        assert pa.Table.from_batches(batches) == pa.Table.from_batches(local.read(0, 330))


def test_a_range_that_is_given_up_leaves_the_connection_usable(tmp_path: Path) -> None:
    directory = fill(tmp_path / "archive")
    with served(directory) as url, RemoteArchive(url) as remote:
        next(remote.read(0, 330))
        assert remote.bounds() == (0, 330)
        assert len(rows(remote.read(5, 10))) == 5


def test_what_is_not_there_is_told(tmp_path: Path) -> None:
    directory = fill(tmp_path / "archive")
    settings = ArchiveSettings(segment_rows=100, retain_bytes=1)
    with Archive.open(directory, settings) as archive:
        archive.maintain()
        assert archive.bounds() == (300, 330)
    with served(directory) as url, RemoteArchive(url) as remote:
        with pytest.raises(ArchiveTrimmed, match="the first is 300"):
            list(remote.read(10, 320))
        with pytest.raises(ArchiveAhead, match="ends at 330"):
            list(remote.read(310, 331))
        assert len(rows(remote.read(310, 330))) == 20


def test_damage_is_told(tmp_path: Path) -> None:
    directory = fill(tmp_path / "archive")
    victim = sorted((directory / "segments").iterdir())[1]
    victim.write_bytes(victim.read_bytes()[:-20])
    with served(directory) as url, RemoteArchive(url) as remote:
        assert len(rows(remote.read(0, 100))) == 100
        with pytest.raises(ArchiveCorrupt, match=victim.name):
            list(remote.read(0, 330))


def test_who_is_not_welcome(tmp_path: Path) -> None:
    directory = fill(tmp_path / "archive")
    with served(directory, token="secret") as url:
        with pytest.raises(ConnectionFailed, match="wrong or missing token"):
            RemoteArchive(url)
        with RemoteArchive(url, token="secret") as remote:
            assert remote.bounds() == (0, 330)
    with pytest.raises(ConnectionFailed, match="connection refused"):
        RemoteArchive(url)
    for wrong in ("http://127.0.0.1:1", "127.0.0.1:1", "tidings+udp://127.0.0.1:1"):
        with pytest.raises(ConnectionFailed, match="is not an archive's URL"):
            RemoteArchive(wrong)
    with pytest.raises(ConnectionFailed, match="TLS is required"):
        RemoteArchive("tidings://192.0.2.1:7400")
    with pytest.raises(ArchiveError, match="directory of an archive or a URL"):
        open_reader(None, None)


def test_a_broker_without_an_archive_says_so(tmp_path: Path) -> None:
    async def main() -> None:
        async with running(BrokerServer("b0", Address(port=0))) as url:
            with pytest.raises(ArchiveError, match="keeps no archive"):
                await asyncio.to_thread(RemoteArchive, url)

    asyncio.run(main())


@pytest.mark.parametrize("mode", ["best-effort", "guaranteed"])
def test_a_broker_lets_its_archive_be_read(tmp_path: Path, mode: str) -> None:
    directory = fill(tmp_path / "archive")

    async def main() -> None:
        desk = ArchiveReadService(directory)
        if mode == "guaranteed":
            server = guaranteed_broker(tmp_path, archive=desk)
        else:
            server = BrokerServer("b0", Address(port=0), archive=desk)

        def read(url: str) -> int:
            with RemoteArchive(url) as remote:
                return len(rows(remote.read(*remote.bounds())))

        async with running(server) as url:
            found = await asyncio.gather(*(asyncio.to_thread(read, url) for _ in range(8)))
        assert found == [330] * 8

    asyncio.run(main())


# --- A keeper that lies


@contextmanager
def liar(answer: Callable[[Message], list[bytes]]) -> Iterator[str]:
    """Welcomes one reader, and answers as it likes."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        connection, _ = listener.accept()
        reader = FrameReader()
        with connection:
            while data := connection.recv(65_536):
                for body in reader.feed(data):
                    for message in decode(body):
                        if isinstance(message, Hello):
                            connection.sendall(frame(encode(Welcome(PROTOCOL_VERSION, "liar"))))
                        elif isinstance(message, ArchiveInfoRequest):
                            connection.sendall(frame(encode(ArchiveInfo(message.request, "x" * 32, 0, 100))))
                        else:
                            for bytes_ in answer(message):
                                connection.sendall(bytes_)
                            if not answer(message):
                                return

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield f"tidings://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        listener.close()
        thread.join(10)


def framed(*messages: Message) -> list[bytes]:
    return [frame(encode(message)) for message in messages]


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (lambda asked: [], "closed by the peer"),
        (lambda asked: [b"\x00\x00\x00\x01\xff"], "invalid answer"),
        (lambda asked: [b"\xff\xff\xff\xff"], "a frame of"),
        (lambda asked: framed(ArchiveRows(asked.request, 0, 10, b"nonsense")), "do not decode"),
        (lambda asked: framed(ArchiveRows(asked.request, 5, 10, b"")), "rows from 5, expected 0"),
        (lambda asked: framed(ArchiveRows(asked.request, 0, 0, b"")), "rows from 0, expected 0"),
        (lambda asked: framed(ArchiveRows(asked.request, 0, 101, b"")), "rows from 0"),
        (lambda asked: framed(ArchiveRows(asked.request + 1, 0, 10, b"")), "expected"),
        (lambda asked: framed(ArchiveInfo(asked.request, "x", 0, 1)), "ArchiveInfo, expected ArchiveRows"),
    ],
)
def test_a_keeper_that_lies_is_told_apart(answer: Callable[[Any], list[bytes]], reason: str) -> None:
    with liar(answer) as url, RemoteArchive(url, timeout_s=5) as remote:
        with pytest.raises(ConnectionFailed, match=reason):
            list(remote.read(0, 100))


def test_a_keeper_that_says_nothing_does_not_hang_its_reader() -> None:
    with liar(lambda asked: [b"\x00"]) as url, RemoteArchive(url, timeout_s=0.2) as remote:
        with pytest.raises(ConnectionFailed, match="no answer in time"):
            list(remote.read(0, 100))


def test_a_reader_that_asks_for_too_much_at_once_is_sent_away(tmp_path: Path) -> None:
    directory = fill(tmp_path / "archive")
    with served(directory) as url, RemoteArchive(url) as remote:
        for request in range(100, 200):
            remote._send(ArchiveRead(request, 0, 330))
        with pytest.raises(ConnectionFailed, match=r"requests at once|lost the connection"):
            list(iter(remote._next, None))
