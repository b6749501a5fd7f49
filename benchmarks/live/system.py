"""What a system under measurement offers: its server, a publisher and a reader, at its best documented usage."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from pathlib import Path
from typing import NamedTuple, Protocol

from live.job import Event, Job

Send = Callable[[list[Event]], Awaitable[None]]
"""Returns once the system has taken responsibility for the events, or, where it never does, once they are sent."""
Arrived = Callable[[bytes], None]
"""Told the payload of each event that the application has, attributes decoded."""


class Served(NamedTuple):
    """Servers that run."""

    url_in: str
    """For publishers."""
    url_out: str
    """For readers."""
    pids: Mapping[str, int]
    """Of every server process."""


class System(Protocol):
    def serve(self, directory: Path, brokers: int) -> AbstractContextManager[Served]:
        """Runs until the block is left; what it keeps is in the directory."""

    def publisher(self, job: Job, number: int) -> AbstractAsyncContextManager[Send]:
        """An open connection of its own."""

    async def read(self, job: Job, arrived: Arrived, ready: asyncio.Event) -> None:
        """Subscribes, says that it is ready, and reads until it is cancelled."""
