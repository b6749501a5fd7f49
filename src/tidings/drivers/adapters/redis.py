"""An event service over Redis streams (Redis 7.0 or newer).

    async with redis_service("redis://127.0.0.1:6379/0") as bus: ...

All events of all topics are entries of one stream, `tidings:events` in the database of the URL; an entry has one field,
`e`, with the encoded event. There is no mapping of topics: the client reads every entry and selects by topic and filter
itself. So a subscriber costs the traffic of the whole stream, once per client and not per subscription, and a client
handles some ten thousand entries a second; topics that nobody of a group wants belong under another `key`.

`publish` is confirmed by Redis' answer to XADD; what is not confirmed when the connection breaks is sent again, and
subscribers drop the repetitions. Whether a confirmed event survives a crash of the server is the server's setting:
with `appendfsync always` it does, by default the last second may be lost.

A subscription is a position in the stream: the client reads as many entries as its reader has room for, in order, and
goes on from there after a break. So a slow reader loses nothing while the stream has it. The stream is trimmed to about
`max_events` entries (XADD MAXLEN ~) by whoever publishes. A reader that is further behind is told: `Stream.gaps` has
the numbers of the entries that are gone, counted from the first that was ever added, with the key as the source, and
not all of them need have been for it. If the server lost entries, one number stands for what nobody can count.
"""

from __future__ import annotations

from tidings.core.errors import AddressError, ConnectionFailed
from tidings.drivers.adapters.external import DEFAULT_RETRY_S, DEFAULT_TIMEOUT_S, ExternalService
from tidings.drivers.adapters.session import AdapterSession, AdapterUrl, parse_url
from tidings.extras import need

SCHEME = "redis"
DEFAULT_PORT = 6379
DEFAULT_KEY = "tidings:events"
DEFAULT_MAX_EVENTS = 100_000


class RedisService(ExternalService):
    def __init__(
        self,
        target: AdapterUrl,
        name: str | None,
        *,
        database: int,
        key: str,
        max_events: int,
        timeout_s: float,
        retry_s: float,
    ) -> None:
        super().__init__(SCHEME, target.server, name, timeout_s=timeout_s, retry_s=retry_s)
        self.target = target
        self.database = database
        self.key = key
        self.max_events = max_events

    @property
    def lossless(self) -> bool:
        return True

    def _new_session(self) -> AdapterSession:
        from tidings.drivers.adapters.redis_session import RedisSession

        return RedisSession(self)


def redis_service(
    url: str,
    *,
    name: str | None = None,
    key: str = DEFAULT_KEY,
    max_events: int = DEFAULT_MAX_EVENTS,
    timeout_s: float = DEFAULT_TIMEOUT_S,
    retry_s: float = DEFAULT_RETRY_S,
) -> RedisService:
    """A service at the server of `redis://[user:password@]host:port/database`.

    `name` identifies this client and must be unique; without one a new name is drawn. What the server has not
    confirmed within `retry_s` fails with NotConfirmed.
    """
    target = parse_url(url, (SCHEME,), DEFAULT_PORT, with_path=True)
    database = target.path.removeprefix("/") or "0"
    if not (database.isascii() and database.isdigit()):
        raise AddressError(f"{target.server!r}: the database must be a number, not {database!r}")
    if not key:
        raise ConnectionFailed("the key of the stream is empty")
    if max_events < 1:
        raise ConnectionFailed(f"max_events {max_events} must be at least 1")
    need("redis://", "redis", error=ConnectionFailed)
    return RedisService(
        target,
        name,
        database=int(database),
        key=key,
        max_events=max_events,
        timeout_s=timeout_s,
        retry_s=retry_s,
    )
