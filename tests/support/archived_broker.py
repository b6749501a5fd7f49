"""A broker with an archive, in this process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from recording_network import guaranteed_broker, running
from tidings.cli.shared.broker_archive import Keeping
from tidings.cli.shared.broker_settings import KeptArchive
from tidings.drivers.sockets.broker import BrokerServer


@asynccontextmanager
async def keeping(server: BrokerServer, kept: Keeping) -> AsyncIterator[str]:
    """Run the broker and its recorder; yields its URL."""
    async with running(server) as url:
        await kept.start(server)
        recording = asyncio.ensure_future(kept.run())
        try:
            yield url
        finally:
            recording.cancel()
            await asyncio.gather(recording, return_exceptions=True)
            await kept.stop()


@asynccontextmanager
async def archived(
    tmp_path: Path, *topics: str, size: str | None = None, **options: Any
) -> AsyncIterator[str]:
    """The only broker of a guaranteed network, which keeps an archive of these topics; yields its URL."""
    kept = Keeping(KeptArchive(tmp_path / "archive", topics, size, None))
    server = guaranteed_broker(tmp_path / "data", archive=kept.read_service, **options)
    async with keeping(server, kept) as url:
        yield url
