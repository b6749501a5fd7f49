"""What a system under measurement provides: its server, a publisher and a reader, used as its documentation
recommends."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from pathlib import Path
from typing import NamedTuple, Protocol

from live.job import Event, Job

Send = Callable[[list[Event]], Awaitable[None]]
"""Returns once the system has taken responsibility for the events or, if it never does, once they are sent."""
Arrived = Callable[[bytes], None]
"""Called with the payload of each event that reaches the application, attributes decoded."""


class Served(NamedTuple):
    """Running servers."""

    url_in: str
    """For publishers."""
    url_out: str
    """For readers."""
    pids: Mapping[str, int]
    """The server processes by name."""


class System(Protocol):
    def serve(self, directory: Path, brokers: int) -> AbstractContextManager[Served]:
        """Run the server until the block is left; its data is in the directory."""

    def publisher(self, job: Job, number: int) -> AbstractAsyncContextManager[Send]:
        """Open a connection of its own."""

    async def read(self, job: Job, arrived: Arrived, ready: asyncio.Event) -> None:
        """Subscribe, set `ready`, and read until cancelled."""
