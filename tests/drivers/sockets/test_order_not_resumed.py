"""Ordered readers and recorders whose earlier life cannot be resumed, or was of other topics: never in silence."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

import tidings
from live_network import until
from recording_network import guaranteed_broker, numbers, play, recording, running
from tidings.core.client import reliable_session as reliable_client
from tidings.core.client.reliable_session import ReliableSession
from tidings.core.errors import OrderError
from tidings.core.ordering.layout import single
from tidings.core.ordering.replication.replica import Times
from tidings.core.ordering.server.server import SequencerServer
from tidings.drivers.address import Address
from tidings.drivers.sockets.guaranteed import DEFAULT_WINDOW
from tidings.drivers.sockets.sequencer import SequencerHost
from tidings.recording.recorder import Recorder
from tidings.storage.archive import ArchiveReader

pytestmark = pytest.mark.timeout(100)

LAYOUT = single("s", ("/a", "/b", "/c"), causal=False)


@asynccontextmanager
async def network(tmp_path: Path, **options: Any) -> AsyncIterator[tuple[str, list[SequencerHost]]]:
    """The broker's URL, and the sequencer, in a list: it may be replaced."""
    sequencers = [SequencerHost("s", Address(port=0), LAYOUT, {}, **options)]
    await sequencers[0].start()
    broker = guaranteed_broker(tmp_path / "data", sequencers=[sequencers[0].address])
    async with running(broker) as url:
        yield url, sequencers
    await sequencers[0].stop()


async def forget_all(sequencers: list[SequencerHost]) -> None:
    """Another one takes the place of the sequencer, and knows nothing."""
    address = sequencers[0].address
    await sequencers[0].stop()
    sequencers[0] = SequencerHost("s", address, LAYOUT, {})
    await sequencers[0].start()


async def kill(bus: Any) -> None:
    """Without a word, to anybody."""
    bus.connection._keeper.cancel()
    bus.connection._session.abort()
    order = bus._order._connection
    for keeper in order._keepers.values():
        keeper.cancel()
    order._port.close()
    for link in list(order._links.values()):
        link.session.abort()
    await asyncio.sleep(0.05)


async def publish(url: str, topic: str, some: range) -> None:
    async with tidings.connect(url) as bus:
        await bus.publish_many((topic, {"number": number}, b"") for number in some)


async def shown(stream: tidings.Stream, count: int) -> list[Any]:
    return [(await stream.get(10)).attributes["number"] for _ in range(count)]


async def dead_reader(url: str, *topics: str) -> None:
    """It took three of ten events of each topic, and was done with two."""
    bus = tidings.connect(url, name="reader")
    await bus.open()
    stream = await bus.subscribe(*topics, order="total").__aenter__()
    for topic in topics:
        await publish(url, topic, range(10))
    await shown(stream, 3)
    await asyncio.sleep(0.1)
    await kill(bus)


def check_refused(tmp_path: Path, **options: Any) -> None:
    async def main() -> None:
        async with network(tmp_path, **options) as (url, sequencers):
            await dead_reader(url, "/a")
            if not options:
                await forget_all(sequencers)
            else:
                await asyncio.sleep(3)
            async with tidings.connect(url, name="reader") as bus:
                with pytest.raises(OrderError, match=r"lost its state|away for too long"):
                    await bus.subscribe("/a", order="total").__aenter__()
                async with bus.subscribe("/a", order="total") as stream:
                    await publish(url, "/a", range(20, 25))
                    assert await shown(stream, 5) == list(range(20, 25))

    play(main)


def test_a_reader_is_told_that_the_sequencers_lost_their_state(tmp_path: Path) -> None:
    check_refused(tmp_path)


def test_a_reader_is_told_that_it_was_away_for_too_long(tmp_path: Path) -> None:
    check_refused(tmp_path, times=Times(subscriber_ns=500_000_000))


def test_a_server_that_takes_strangers_would_go_on_in_silence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The planted bug: nobody looks whether the subscriber is known, or was given up."""
    monkeypatch.setattr(SequencerServer, "_maybe_walk", SequencerServer._walk)
    monkeypatch.setattr(SequencerServer, "subscriber_gone", lambda self, subscriber: None)
    with pytest.raises(pytest.fail.Exception, match="DID NOT RAISE"):
        check_refused(tmp_path, times=Times(subscriber_ns=500_000_000))


def test_other_topics_go_on_with_what_both_have(tmp_path: Path) -> None:
    async def main() -> None:
        async with network(tmp_path) as (url, _):
            await dead_reader(url, "/a", "/b")
            async with (
                tidings.connect(url, name="reader") as bus,
                bus.subscribe("/b", "/c", order="total") as stream,
            ):
                await publish(url, "/a", range(20, 22))
                await publish(url, "/c", range(30, 33))
                assert await shown(stream, 13) == [*range(10), *range(30, 33)]

    play(main)


def check_changed_filter(tmp_path: Path) -> None:
    """More waits than a window when it changes what it wants, and is killed."""
    wanted, count = "number >= 0 OR m = 1", 3 * DEFAULT_WINDOW

    async def main() -> None:
        async with network(tmp_path) as (url, _):
            bus: Any = tidings.connect(url, name="reader")
            await bus.open()
            stream = await bus.subscribe("/a", where="number >= 0", order="total").__aenter__()
            await publish(url, "/a", range(count))
            await stream.change(where=wanted)
            await kill(bus)
            async with (
                tidings.connect(url, name="reader") as again,
                again.subscribe("/a", where=wanted, order="total") as rest,
            ):
                assert await shown(rest, count) == list(range(count))

    play(main)


def test_what_waits_stays_whole_for_the_next_life_of_one_that_had_changed(tmp_path: Path) -> None:
    check_changed_filter(tmp_path)


def test_ending_what_drained_in_the_life_before_would_lose_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The planted bug to the test above."""
    end = ReliableSession.end_earlier
    monkeypatch.setattr(ReliableSession, "end_earlier", lambda self, name, drain=False: end(self, name))
    with pytest.raises((AssertionError, TimeoutError)):
        check_changed_filter(tmp_path)


def test_who_subscribes_too_late_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reliable_client, "EARLY_NS", 200_000_000)

    async def main() -> None:
        async with network(tmp_path) as (url, _):
            await dead_reader(url, "/a")
            async with tidings.connect(url, name="reader") as bus:
                await asyncio.sleep(0.5)
                with pytest.raises(OrderError, match="too late"):
                    await bus.subscribe("/a", order="total").__aenter__()

    play(main)


def test_a_recorder_that_cannot_resume_notes_why(tmp_path: Path) -> None:
    archive = tmp_path / "archive"

    async def main() -> None:
        async with network(tmp_path) as (url, sequencers):
            async with recording(Recorder(url, archive, "/a", order="total")) as recorder:
                await publish(url, "/a", range(5))
                await until(lambda: recorder.recorded == 5)
            async with recording(Recorder(url, archive, "/a", order="total")) as recorder:
                await publish(url, "/a", range(5, 8))
                await until(lambda: recorder.recorded == 3)
            await forget_all(sequencers)
            async with recording(Recorder(url, archive, "/a", order="total")) as recorder:
                await publish(url, "/a", range(8, 10))
                await until(lambda: recorder.recorded == 2)

    play(main)
    assert numbers(archive) == list(range(10))
    with ArchiveReader(archive) as reader:
        (gap,) = reader.gaps()
    assert gap.offset == 8
    assert "lost its state" in gap.reason or "removed this subscriber" in gap.reason
