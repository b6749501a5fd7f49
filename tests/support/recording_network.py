"""What tests of recorders share: a broker in this process, events, and what an archive has of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tidings.drivers.address import Address, url
from tidings.drivers.sockets.broker import BrokerServer
from tidings.drivers.sockets.guaranteed import GuaranteedSettings
from tidings.recording.recorder import Recorder
from tidings.storage.archive import ArchiveReader, events_of


def play(main: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        await asyncio.wait_for(main(), 90)

    asyncio.run(bounded())


def guaranteed_broker(data: Path, port: int = 0, **options: Any) -> BrokerServer:
    """The only broker of a guaranteed network."""
    settings = GuaranteedSettings((0,), {}, delta=0, data=data, new=True)
    return BrokerServer("b0", Address(port=port), mode="guaranteed", guaranteed=settings, **options)


@asynccontextmanager
async def running(server: BrokerServer) -> AsyncIterator[str]:
    """The broker's URL."""
    await server.start()
    try:
        yield url(server.address)
    finally:
        await server.stop()


@asynccontextmanager
async def recording(recorder: Recorder) -> AsyncIterator[Recorder]:
    await recorder.start()
    task = asyncio.ensure_future(recorder.run())
    try:
        yield recorder
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await recorder.stop()


def numbers(archive: Path) -> list[Any]:
    """The attribute `number` of every event, by offset."""
    with ArchiveReader(archive) as reader:
        first, end = reader.bounds()
        batches = list(reader.read(first, end))
    offsets = [offset for batch in batches for offset in batch.column("offset").to_pylist()]
    assert offsets == list(range(first, end))
    return [event.attributes["number"] for batch in batches for event in events_of(batch)]
