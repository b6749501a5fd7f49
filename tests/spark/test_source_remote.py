"""The source over the network, called as Spark calls it: whoever keeps the archive may go and come back."""

from __future__ import annotations

import asyncio
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from source_archives import extend, make_archive
from tidings.core.errors import BrokerAway, ConnectionFailed, PipelineError
from tidings.drivers.address import Address
from tidings.drivers.sockets.archive_client import RemoteArchive
from tidings.drivers.sockets.archive_read_service import ArchiveReadService
from tidings.drivers.sockets.archive_server import ArchiveServer
from tidings.drivers.sockets.security import Tls, client_context
from tidings.spark.format import waiting
from tidings.spark.format.source import SCHEMA, ArchiveBatchReader
from tidings.spark.format.stream_reader import ArchiveStreamReader
from tidings.storage.archive.reader import ArchiveReader

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

    def start(self, token: str = "") -> None:
        self._server = ArchiveServer("keeper", self.address, ArchiveReadService(self.directory), token=token)
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


class Clock:
    """In place of the module `time`: waiting takes no time, and `act` happens when so many seconds have passed."""

    def __init__(self, act: Callable[[], None] = lambda: None, after_s: float = 5.0) -> None:
        self.now = 0.0
        self._act, self._after_s = act, after_s

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        before, self.now = self.now, self.now + seconds
        if before < self._after_s <= self.now:
            self._act()


@pytest.fixture
def set_clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[Clock], Clock]:
    def set_it(clock: Clock) -> Clock:
        monkeypatch.setattr(waiting, "time", clock)
        return clock

    return set_it


def never() -> None:
    raise AssertionError("it waits for who is there")


def test_a_stream_waits_for_its_keeper_and_goes_on(
    keeper: Keeper, set_clock: Callable[[Clock], Clock]
) -> None:
    options = {"url": keeper.url, "startingOffsets": "earliest", "consumer": "job"}
    reader = ArchiveStreamReader(options, SCHEMA)
    start = reader.initialOffset()
    keeper.stop()
    clock = set_clock(Clock(keeper.start))
    end = reader.latestOffset(start, ReadAllAvailable())
    (part,) = reader.partitions(start, end)
    assert 5 <= clock.now < 10

    keeper.stop()
    extend(keeper.directory, 5)
    set_clock(Clock(keeper.start))
    assert sum(batch.num_rows for batch in reader.read(part)) == 60
    reader.commit(end)  # on the connection that was lost meanwhile
    with ArchiveReader(keeper.directory) as plain:
        assert plain.consumers() == {"job": 60}
    assert list(reader.latestOffset(end, ReadAllAvailable()).values()) == [65]
    reader.stop()


def test_a_keeper_that_stays_away_is_told_in_one_line(
    keeper: Keeper, set_clock: Callable[[Clock], Clock]
) -> None:
    options = {"url": keeper.url, "startingOffsets": "earliest", "timeout": "8"}
    stream, batch = ArchiveStreamReader(options, SCHEMA), ArchiveBatchReader(options, SCHEMA)
    start = stream.initialOffset()
    end = stream.latestOffset(start, ReadAllAvailable())
    (of_stream,), (of_batch,) = stream.partitions(start, end), batch.partitions()
    again = ArchiveStreamReader(options, SCHEMA)  # after a restart of the driver, with a checkpoint
    keeper.stop()
    goes_on, anew = (
        "start the query again to resume where it stopped",
        "run it again when the broker is reachable",
    )
    for ask, advice in (
        (lambda: stream.latestOffset(start, ReadAllAvailable()), goes_on),
        (lambda: again.partitions(start, end), goes_on),
        (lambda: list(stream.read(of_stream)), goes_on),
        (lambda: list(batch.read(of_batch)), anew),
    ):
        clock = set_clock(Clock())
        with pytest.raises(ConnectionFailed) as caught:
            ask()
        refused = f"cannot reach {keeper.url}: connection refused"
        assert str(caught.value) == f"{refused}; gave up after 8 s (option timeout): {advice}"
        assert clock.now == pytest.approx(8)
    keeper.start()


def test_a_first_connection_is_tried_once(keeper: Keeper, set_clock: Callable[[Clock], Clock]) -> None:
    keeper.stop()
    clock = set_clock(Clock())
    options = {"url": keeper.url}
    for ask in (
        ArchiveStreamReader(options, SCHEMA).initialOffset,
        ArchiveBatchReader(options, SCHEMA).partitions,
    ):
        with pytest.raises(ConnectionFailed, match=r": connection refused$"):
            ask()
    assert clock.now == 0
    keeper.start()


def test_what_is_available_now_is_asked_when_somebody_is_there(
    keeper: Keeper, set_clock: Callable[[Clock], Clock]
) -> None:
    """Spark wants to know it first of all, also of a query that goes on from its checkpoint."""
    first = ArchiveStreamReader({"url": keeper.url, "startingOffsets": "3"}, SCHEMA)
    start = first.initialOffset()
    first.stop()
    keeper.stop()
    set_clock(Clock(keeper.start))
    reader = ArchiveStreamReader({"url": keeper.url}, SCHEMA)
    reader.prepareForTriggerAvailableNow()
    end = reader.latestOffset(start, ReadAllAvailable())
    assert list(end.values()) == [60]
    extend(keeper.directory, 5)
    assert reader.latestOffset(end, ReadAllAvailable()) == end
    assert list(reader.reportLatestOffset().values()) == [65]
    reader.stop()


def test_a_range_goes_on_behind_what_was_read_of_it(
    keeper: Keeper, set_clock: Callable[[Clock], Clock], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The keeper goes twice while a worker reads."""
    everything, asked = RemoteArchive.read, []

    def read(remote: RemoteArchive, start: int, stop: int, **options: Any) -> Iterator[Any]:
        asked.append(start)
        for number, batch in enumerate(everything(remote, start, stop, 7, **options)):
            if number == 2 and len(asked) < 3:
                keeper.stop()
                set_clock(Clock(keeper.start))
                remote.bounds()
            yield batch

    reader = ArchiveBatchReader({"url": keeper.url}, SCHEMA)
    (part,) = reader.partitions()
    monkeypatch.setattr(RemoteArchive, "read", read)
    found = [offset for batch in reader.read(part) for offset in batch.column("offset").to_pylist()]
    assert found == list(range(60))
    assert asked == [0, 14, 28]


def test_another_archive_at_the_same_address_is_refused(
    keeper: Keeper, set_clock: Callable[[Clock], Clock], tmp_path: Path
) -> None:
    def replaced() -> None:
        keeper.directory = make_archive(tmp_path / "other", [60])
        keeper.start()

    stream = ArchiveStreamReader({"url": keeper.url, "startingOffsets": "earliest"}, SCHEMA)
    start = stream.initialOffset()
    (part,) = stream.partitions(start, stream.latestOffset(start, ReadAllAvailable()))
    keeper.stop()
    set_clock(Clock(replaced))
    with pytest.raises(
        PipelineError, match=f"{keeper.url} was archive [0-9a-f]+ when the read was planned, and is archive"
    ):
        list(stream.read(part))
    with pytest.raises(PipelineError, match="but this source reads"):
        stream.latestOffset(start, ReadAllAvailable())
    stream.stop()


def test_who_refuses_is_not_waited_for(keeper: Keeper, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = ArchiveStreamReader({"url": keeper.url, "startingOffsets": "earliest"}, SCHEMA)
    start = stream.initialOffset()
    (part,) = stream.partitions(start, stream.latestOffset(start, ReadAllAvailable()))
    stream.stop()
    keeper.stop()
    keeper.start("secret")
    monkeypatch.setattr(waiting, "backoff_seconds", lambda *_: never())
    for ask in (
        lambda: stream.latestOffset(start, ReadAllAvailable()),
        lambda: list(stream.read(part)),
        ArchiveStreamReader({"url": keeper.url}, SCHEMA).prepareForTriggerAvailableNow,
    ):
        with pytest.raises(
            ConnectionFailed, match=f"^{keeper.url} refused the connection: wrong or missing token$"
        ):
            ask()


@pytest.mark.parametrize(
    ("problem", "away"),
    [
        (ConnectionRefusedError(), True),
        (TimeoutError(), True),
        (socket.gaierror(), True),  # names of containers come and go with them
        (OSError(101, "Network is unreachable"), True),
        (ssl.SSLEOFError(), True),
        (ssl.SSLCertVerificationError(), False),
    ],
)
def test_who_cannot_be_reached_is_away(problem: OSError, away: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise problem

    monkeypatch.setattr(socket, "create_connection", fail)
    with pytest.raises(ConnectionFailed) as caught:
        RemoteArchive("tidings+tls://127.0.0.1:1")
    assert isinstance(caught.value, BrokerAway) == away


def test_a_mistake_is_not_away() -> None:
    for mistaken, words in (
        (lambda: RemoteArchive("tidings://192.0.2.1:1"), "beyond loopback, TLS is required"),
        (lambda: client_context(Tls(authority="/none")), "cannot use the certificates in /none"),
    ):
        with pytest.raises(ConnectionFailed, match=words) as caught:
            mistaken()
        assert not isinstance(caught.value, BrokerAway)


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
