"""Real servers of every kind for tests of groups and durable subscriptions, and what members of a group do."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import tidings
from external_brokers import ExternalBroker, MosquittoBroker, NatsBroker, RedisBroker
from external_checks import WAIT_S, Make
from tidings.drivers.adapters.external import ExternalService
from tidings.drivers.adapters.held_reader import HeldReader
from tidings.drivers.adapters.mqtt import mqtt_service
from tidings.drivers.adapters.nats import nats_service
from tidings.drivers.adapters.nats_session import NatsSession
from tidings.drivers.adapters.redis import redis_service

KEEPING = ("jetstream", "redis")
PASSING = ("nats", "mqtt")
HOLD_S = 0.6

STARTERS: dict[str, Callable[[Path], ExternalBroker]] = {
    "nats": NatsBroker,
    "jetstream": lambda path: NatsBroker(path, jetstream=True),
    "mqtt": MosquittoBroker,
    "redis": lambda path: RedisBroker(path, durable=False),
}


@contextmanager
def all_servers(directory: Path) -> Iterator[dict[str, ExternalBroker]]:
    with ExitStack() as stack:
        servers = {}
        for kind, start in STARTERS.items():
            (directory / kind).mkdir()
            servers[kind] = stack.enter_context(start(directory / kind))
        yield servers


def maker(kind: str, server: Any, test: str) -> Make:
    """Services of one kind; each test has topics, a stream or a key of its own."""
    space = "".join(character if character.isalnum() else "-" for character in test)
    own: dict[str, dict[str, Any]] = {
        "nats": {"prefix": space},
        "jetstream": {"prefix": space, "stream": space, "max_bytes": 2**26, "hold_s": HOLD_S},
        "mqtt": {"prefix": space},
        "redis": {"key": space, "hold_s": HOLD_S},
    }
    makers: dict[str, Callable[..., Any]] = {"mqtt": mqtt_service, "redis": redis_service}

    def make(**options: Any) -> Any:
        return makers.get(kind, nats_service)(server.url, **{**own[kind], **options})

    return make


async def publish(bus: tidings.bus.service.EventService, *numbers: int, topic: str = "/jobs") -> None:
    for number in numbers:
        await bus.publish(topic, {"n": number})


async def read(stream: tidings.Stream, count: int) -> list[tuple[Any, int]]:
    """Return the number and the attempt of the next events."""
    events = [await stream.get(WAIT_S) for _ in range(count)]
    return [(event.attributes["n"], event.attempt) for event in events]


async def die(bus: ExternalService) -> None:
    """End a client as `kill -9` does: nothing is said to the broker any more."""
    keeper: Any = bus.keeper
    session = keeper.session
    keeper._task.cancel()
    await asyncio.gather(keeper._task, return_exceptions=True)
    session.end("killed")
    await asyncio.gather(*(HeldReader.stop(reader) for reader in session._held.values()))
    if isinstance(session, NatsSession):
        session.client.dispose()
    else:
        await session.redis.connection_pool.disconnect()


class Worker:
    """A member of a group that takes everything it gets, until it is stopped."""

    def __init__(self, stream: tidings.Stream) -> None:
        self.seen: list[tuple[Any, int]] = []
        self._stream = stream
        self._task = asyncio.create_task(self._work())

    async def _work(self) -> None:
        async for event in self._stream:
            self.seen.append((event.attributes["n"], event.attempt))
            await asyncio.sleep(0)

    @property
    def numbers(self) -> list[Any]:
        return [number for number, _ in self.seen]

    async def stop(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
