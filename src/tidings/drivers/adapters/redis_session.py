"""One connection to a Redis server, through redis-py; redis.py documents what it guarantees."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import (
    AuthenticationError,
    NoPermissionError,
    RedisError,
    ResponseError,
)
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from tidings.core.errors import ConnectionFailed, SubscriptionRefused
from tidings.core.events.event import Publication
from tidings.drivers.adapters.held import HeldIncoming
from tidings.drivers.adapters.incoming import Incoming
from tidings.drivers.adapters.redis_feed import (
    EMPTY,
    FIELD,
    Entry,
    EntryId,
    Feed,
    FeedPosition,
    StreamInfo,
    id_text,
    parse_id,
)
from tidings.drivers.adapters.redis_held import RedisHeldReader, holder_key, shares_key
from tidings.drivers.adapters.session import AdapterSession, ConnectionRefused, SessionLost

if TYPE_CHECKING:
    from tidings.drivers.adapters.redis import RedisService

OLDEST_VERSION = 7
"""The first version in which a stream counts all entries ever added."""
BLOCK_MS = 1_000

log = logging.getLogger("tidings")


class RedisSession(AdapterSession):
    """Publishes with XADD and reads the stream for all subscriptions."""

    def __init__(self, service: RedisService) -> None:
        super().__init__()
        self.service = service
        self.key = service.key
        host, port = service.target.address
        self.redis: Any = Redis(
            host=host,
            port=port,
            db=service.database,
            username=service.target.user or None,
            password=service.target.password,
            protocol=2,
            socket_timeout=max(service.timeout_s, 2 * BLOCK_MS / 1000),
            socket_connect_timeout=service.timeout_s,
            retry=Retry(NoBackoff(), 0),  # the service decides what to do about a broken connection
            client_name=None,
        )
        self._version = ""
        self._feed = Feed(self._read, self._read_behind, self._receive, self._missed)
        self._tasks: list[asyncio.Task[None]] = []
        self._held: dict[str, RedisHeldReader] = {}

    # --- The connection

    async def start(self) -> None:
        server = self.service.server
        try:
            info = await self.redis.info("server")
        except (AuthenticationError, NoPermissionError) as error:
            raise ConnectionRefused(f"{server} refused the connection: {error}") from None
        except (RedisError, OSError) as error:
            raise ConnectionFailed(f"cannot connect to {server}: {error}") from None
        self._version = str(info.get("redis_version", "0"))
        if int(self._version.partition(".")[0] or 0) < OLDEST_VERSION:
            raise ConnectionRefused(
                f"{server} runs Redis {self._version}, but {OLDEST_VERSION}.0 or newer is required"
            )
        for work in (self._feed.run, self._watch):
            self._tasks.append(asyncio.get_running_loop().create_task(self._guard(work)))

    async def _guard(self, work: Any) -> None:
        """Run a task; if it fails, the session ends."""
        try:
            await work()
        except (RedisError, OSError) as error:
            self.end(str(error) or type(error).__name__)
        except Exception as error:
            log.exception("%s: reading failed", self.service.server)
            self.end(f"{type(error).__name__}: {error}")

    async def close(self, *, forget: bool) -> None:
        self.end("closed")
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(
            *self._tasks, *(reader.stop() for reader in self._held.values()), return_exceptions=True
        )
        try:
            await self.redis.aclose()
        except (RedisError, OSError) as error:
            log.debug("%s: %s", self.service.server, error)

    def status(self) -> dict[str, Any]:
        return {"server_version": self._version, "stream": self.key}

    # --- Publications

    async def write(self, batch: Sequence[Publication]) -> None:
        pipeline = self.redis.pipeline(transaction=False)
        for publication in batch:
            pipeline.xadd(
                self.key, {FIELD: bytes(publication.raw)}, maxlen=self.service.max_events, approximate=True
            )
        try:
            answers = await pipeline.execute(raise_on_error=False)
        except (RedisError, OSError) as error:
            raise SessionLost(str(error) or type(error).__name__) from None
        for publication, answer in zip(batch, answers, strict=True):
            if isinstance(answer, RedisConnectionError | RedisTimeoutError):  # the server is loading its data
                raise SessionLost(str(answer))
            if isinstance(answer, Exception):
                self.service.outgoing.fail(publication.sequence, f"the server rejected it: {answer}")
            else:
                self.service.outgoing.confirm(publication.sequence)

    # --- Subscriptions

    async def subscribe(self, incoming: Incoming) -> None:
        if isinstance(incoming, HeldIncoming):
            held = self._held[incoming.subscription.id] = RedisHeldReader(self, incoming)
            await held.start()
            return
        position = incoming.position
        if not isinstance(position, FeedPosition):
            try:
                info = await self._info()
            except (RedisConnectionError, RedisTimeoutError, OSError) as error:
                raise SessionLost(str(error)) from None
            except RedisError as error:
                raise SubscriptionRefused(
                    f"{self.service.server} rejected the subscription: {error}"
                ) from None
            incoming.position = position = FeedPosition(info.last, info.added)
        self._feed.add(incoming, position)

    async def unsubscribe(self, incoming: Incoming) -> None:
        self._feed.remove(incoming)
        held = self._held.pop(incoming.subscription.id, None)
        if held is not None:
            await held.leave()

    async def cancel_held(self, name: str) -> None:
        try:
            destroyed = await self.redis.xgroup_destroy(self.key, name)
            await self.redis.hdel(shares_key(self.key), name)
            await self.redis.delete(holder_key(self.key, name))
        except ResponseError:  # there is no stream
            destroyed = 0
        except (RedisError, OSError) as error:
            raise SessionLost(str(error)) from None
        if not destroyed:
            raise SubscriptionRefused(f"{self.service.server} has no durable subscription or group {name!r}")

    # --- Reading

    async def _info(self) -> StreamInfo:
        try:
            return _parse_info(await self.redis.xinfo_stream(self.key))
        except ResponseError as error:
            if "no such key" in str(error):
                return EMPTY
            raise

    async def _read(self, start: EntryId, count: int) -> list[Entry]:
        return _parse_entries(await self.redis.xrange(self.key, min=id_text(start), count=count))

    async def _read_behind(self, start: EntryId, count: int) -> tuple[StreamInfo, list[Entry]]:
        async with self.redis.pipeline(transaction=True) as pipeline:
            pipeline.xinfo_stream(self.key)
            pipeline.xrange(self.key, min=f"({id_text(start)}", count=count)
            info, entries = await pipeline.execute(raise_on_error=False)
        if isinstance(info, ResponseError) and "no such key" in str(info):
            return EMPTY, []
        for answer in (info, entries):
            if isinstance(answer, Exception):
                raise answer
        return _parse_info(info), _parse_entries(entries)

    async def _watch(self) -> None:
        """Wake the feed when the stream has more than it has read."""
        while True:
            await self._feed.caught_up.wait()
            end = id_text(self._feed.end)
            if await self.redis.xread({self.key: end}, count=1, block=BLOCK_MS):
                self._feed.wake()

    def _receive(self, entry: Entry, takers: Iterable[Incoming]) -> None:
        body = entry[1]
        if body is None:
            self.service.skip(f"entry {id_text(entry[0])} of {self.key} has no field {FIELD.decode()!r}")
        else:
            self.service.receive(body, takers)

    def _missed(self, incoming: Incoming, first: int, last: int) -> None:
        self.service.missed(incoming, self.key, first, last)


def _parse_info(info: dict[str, Any]) -> StreamInfo:
    return StreamInfo(info["length"], info["entries-added"], parse_id(info["last-generated-id"]))


def _parse_entries(entries: Iterable[tuple[bytes, dict[bytes, bytes] | None]]) -> list[Entry]:
    return [(parse_id(entry), (fields or {}).get(FIELD)) for entry, fields in entries]
