"""Keeps a broker's archive: a recorder inside its process, and a service for its readers."""

from __future__ import annotations

from tidings.cli.shared.broker_settings import KeptArchive
from tidings.cli.shared.retention import archive_settings
from tidings.drivers.sockets.archive_read_service import ArchiveReadService
from tidings.drivers.sockets.broker import BrokerServer
from tidings.recording.recorder import SUBSCRIPTION, Recorder


class Keeping:
    def __init__(self, archive: KeptArchive) -> None:
        self.read_service = ArchiveReadService(archive.directory)
        self._archive = archive
        self._settings = archive_settings(archive.size, archive.age)
        self._recorder: Recorder | None = None

    async def start(self, server: BrokerServer) -> None:
        """Start recording; return once everything published from now on is recorded."""
        self._recorder = Recorder(
            "tidings://127.0.0.1:0",
            self._archive.directory,
            *self._archive.topics,
            name=f"{server.name}/archive",
            settings=self._settings,
            opener=server.open_inside,
        )
        server.describe_archive = self._recorder.status
        self.read_service.recorded = self._recorder.subscription
        server.record_archive(self._recorder.name, SUBSCRIPTION)
        await self._recorder.start()

    async def run(self) -> None:
        """Record while the broker runs; a recorder that fails ends the broker, as readers rely on both."""
        assert self._recorder is not None
        await self._recorder.run()

    async def stop(self) -> None:
        if self._recorder is not None:
            await self._recorder.stop()
