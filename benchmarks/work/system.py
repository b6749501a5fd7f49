"""What a system under measurement provides, and all of them by name."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from importlib import import_module
from pathlib import Path
from typing import Protocol

from work.job import Job

OWN, JETSTREAM, REDIS, RABBITMQ = "tidings guaranteed", "JetStream", "Redis", "RabbitMQ"
SYSTEMS = {
    OWN: ("work.own", "Group"),
    JETSTREAM: ("work.jetstream", "WorkQueue"),
    REDIS: ("work.redis_groups", "ConsumerGroup"),
    RABBITMQ: ("work.rabbitmq", "Queue"),
}
SILENCE_S = 1.0
"""How long a worker may be silent before others get its events, where a system has to be told: JetStream, Redis."""

Send = Callable[[Sequence[bytes]], Awaitable[None]]
"""Returns once the system has taken responsibility for the events."""
Handle = Callable[[bytes], Awaitable[None]]
"""Does the work for one event; the worker acknowledges it afterwards."""


class System(Protocol):
    def serve(self, directory: Path) -> AbstractContextManager[str]:
        """Run the server until the block is left; return its URL."""

    async def prepare(self, url: str) -> None:
        """Create the queue or the group: what is published from now on waits for workers."""

    def publisher(self, url: str) -> AbstractAsyncContextManager[Send]: ...

    async def work(self, job: Job, handle: Handle, ready: asyncio.Event) -> None:
        """Join the group, set `ready`, and work until cancelled. Each event is acknowledged after its work."""


def system_of(name: str) -> System:
    module, kind = SYSTEMS[name]
    system: System = getattr(import_module(module), kind)()
    return system
