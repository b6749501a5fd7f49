"""Replays: every event of the archive, once and in order, also where a broker or the replay ends in between."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from pathlib import Path

import pytest

from live_network import until
from recording_network import guaranteed_broker, numbers, play, recording, running
from tidings.bus.bus import Bus
from tidings.core.errors import ArchiveTrimmed, ConnectionFailed
from tidings.core.events.event import Event
from tidings.drivers.address import Address
from tidings.drivers.sockets.broker import BrokerServer
from tidings.recording.recorder import Recorder
from tidings.recording.replay import BATCH_EVENTS, Replay, Source
from tidings.storage.archive import Archive, ArchiveSettings

pytestmark = pytest.mark.timeout(100)

COUNT = 3 * BATCH_EVENTS + 7


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    directory = tmp_path / "original"
    with Archive.open(directory, ArchiveSettings(segment_rows=500)) as opened:
        events = [Event("p", 0, number + 1, "/a", 1, {"number": number}, b"") for number in range(COUNT)]
        opened.append(events, 1)
    return directory


def test_every_event_is_published(tmp_path: Path, archive: Path) -> None:
    """Also those between two batches."""

    async def main() -> None:
        async with running(guaranteed_broker(tmp_path)) as url:
            async with recording(Recorder(url, tmp_path / "copy")) as recorder:
                replay = Replay(Source(archive), url)
                await replay.run()
                assert (replay.published, replay.next_offset) == (COUNT, COUNT)
                await until(lambda: recorder.recorded == COUNT)

    play(main)
    assert numbers(tmp_path / "copy") == list(range(COUNT))


def test_once_is_once_over_a_broker_that_restarts_and_a_replay_that_is_cut(
    tmp_path: Path, archive: Path
) -> None:
    async def main() -> None:
        server = guaranteed_broker(tmp_path)
        async with running(server) as url:
            async with recording(Recorder(url, tmp_path / "copy")) as recorder:
                cut = asyncio.ensure_future(Replay(Source(archive), url, once="again", rate_hz=3_000).run())
                await until(lambda: recorder.recorded > 300)
                cut.cancel()
                await asyncio.gather(cut, return_exceptions=True)
                replay = Replay(Source(archive), url, once="again", rate_hz=5_000)
                going_on = asyncio.ensure_future(replay.run())
                await until(lambda: replay.published > 1_000)
                await server.stop()
                async with running(guaranteed_broker(tmp_path, server.address.port)):
                    await going_on
                    await until(lambda: recorder.recorded >= COUNT, 30)

    play(main)
    assert numbers(tmp_path / "copy") == list(range(COUNT))


def test_one_that_is_cut_off_says_where_it_goes_on(tmp_path: Path, archive: Path) -> None:
    async def main() -> None:
        async with running(BrokerServer("b0", Address(port=0))) as url:
            async with recording(Recorder(url, tmp_path / "copy")) as recorder:
                replay = Replay(Source(archive, start=100), url, rate_hz=2_000)
                cut = asyncio.ensure_future(replay.run())
                await until(lambda: replay.published > 50)
                cut.cancel()
                await asyncio.gather(cut, return_exceptions=True)
                assert replay.next_offset == 100 + replay.published
                rest = Replay(Source(archive, start=replay.next_offset), url)
                await rest.run()
                await until(lambda: recorder.recorded >= COUNT - 100)

    play(main)
    found = numbers(tmp_path / "copy")
    assert sorted(set(found)) == list(range(100, COUNT))


def test_one_that_is_cut_off_before_its_first_confirmation_has_begun(
    tmp_path: Path, archive: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its events may be in the network although none counts as published: the user must hear how to go on."""

    async def main() -> None:
        out = asyncio.Event()

        async def publish_many(_: Bus, events: Iterable[object]) -> None:
            out.set()
            await asyncio.Event().wait()

        monkeypatch.setattr(Bus, "publish_many", publish_many)
        async with running(guaranteed_broker(tmp_path)) as url:
            replay = Replay(Source(archive), url, once="again")
            assert not replay.begun
            cut = asyncio.ensure_future(replay.run())
            await out.wait()
            cut.cancel()
            await asyncio.gather(cut, return_exceptions=True)
            assert (replay.begun, replay.published, replay.next_offset) == (True, 0, 0)

    play(main)


def test_what_cannot_be_replayed_is_told(tmp_path: Path, archive: Path) -> None:
    async def main() -> None:
        async with running(BrokerServer("b0", Address(port=0))) as url:
            with pytest.raises(ConnectionFailed, match="--once requires a guaranteed network"):
                await Replay(Source(archive), url, once="again").run()
        with Archive.open(archive, ArchiveSettings(segment_rows=500, retain_bytes=1)) as opened:
            opened.maintain()
        with pytest.raises(ArchiveTrimmed):
            await Replay(Source(archive, start=0), "tidings://127.0.0.1:1").run()

    play(main)
