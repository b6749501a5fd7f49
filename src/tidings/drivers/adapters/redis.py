"""An event service over Redis streams (Redis 7.0 or newer).

    async with redis_service("redis://127.0.0.1:6379/0") as bus: ...

The events of all topics are entries of one stream, `tidings:events` in the database of the URL; an entry has one field,
`e`, with the encoded event. Topics are not mapped: the client reads every entry and selects by topic and filter itself.
So a subscriber costs the traffic of the whole stream, once per client and not per subscription, and a client handles
some ten thousand entries a second. Put topics that a group of clients does not need under another `key`.

`publish` is confirmed by Redis' answer to XADD; what is unconfirmed when the connection breaks is resent, and
subscribers drop the duplicates. Whether a confirmed event survives a crash of the server depends on its settings: with
`appendfsync always` it does; by default the last second may be lost.

A subscription is a position in the stream: the client reads as many entries as its reader has room for, in order, and
resumes there after a lost connection. So a slow reader loses nothing while the stream has it. Publishers trim the
stream to about `max_events` entries (XADD MAXLEN ~). For a reader that is further behind, `Stream.gaps` lists the
numbers of the entries that are gone, counted from the first ever added, with the key as the source; not all of them
need have matched. If the server itself lost entries, nobody can count them, and the gap has a single number.

A group or a durable subscription is a consumer group: its members share the entries, and acknowledge them
(redis_held.py).
"""

from __future__ import annotations

from tidings.core.errors import AddressError, ConnectionFailed
from tidings.drivers.adapters.external import DEFAULT_RETRY_S, DEFAULT_TIMEOUT_S, ExternalService
from tidings.drivers.adapters.held_options import DEFAULT_HOLD_S, HeldSupport, check_hold
from tidings.drivers.adapters.session import AdapterSession, AdapterUrl, parse_url
from tidings.extras import need

SCHEME = "redis"
DEFAULT_PORT = 6379
DEFAULT_KEY = "tidings:events"
DEFAULT_MAX_EVENTS = 100_000


class RedisService(ExternalService):
    """An event service over a Redis stream, made by `redis_service`."""

    held_support = HeldSupport(keeps=True)

    def __init__(
        self,
        target: AdapterUrl,
        name: str | None,
        *,
        database: int,
        key: str,
        max_events: int,
        hold_s: float,
        timeout_s: float,
        retry_s: float,
    ) -> None:
        super().__init__(SCHEME, target.server, name, timeout_s=timeout_s, retry_s=retry_s)
        self.target = target
        self.database = database
        self.key = key
        self.max_events = max_events
        self.hold_s = hold_s

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
    hold_s: float = DEFAULT_HOLD_S,
    timeout_s: float = DEFAULT_TIMEOUT_S,
    retry_s: float = DEFAULT_RETRY_S,
) -> RedisService:
    """Return an event service over a Redis server (7.0 or newer), to use with `async with`.

    Args:
        url: `redis://[user:password@]host:port/database`.
        name: Identifies this client; no two clients may share it. None draws a random name.
        key: The key of the Redis stream that holds the events.
        max_events: About how many events the stream keeps; publishers delete the oldest.
        hold_s: How long a member of a group, or the holder of a durable subscription, may be silent before what it
            holds is delivered again, in seconds. All members should have the same.
        timeout_s: How long to wait for a connection and for answers to requests, in seconds.
        retry_s: A publication that the server has not confirmed after so many seconds fails with NotConfirmed.

    Raises:
        ConnectionFailed: The URL or another argument is not valid, or redis-py is not installed.
    """
    target = parse_url(url, (SCHEME,), DEFAULT_PORT, with_path=True)
    database = target.path.removeprefix("/") or "0"
    if not (database.isascii() and database.isdigit()):
        raise AddressError(f"{target.server!r}: the database must be a number, not {database!r}")
    if not key:
        raise ConnectionFailed("key must not be empty")
    if max_events < 1:
        raise ConnectionFailed(f"max_events must be at least 1, not {max_events}")
    need("redis://", "redis", error=ConnectionFailed)
    return RedisService(
        target,
        name,
        database=int(database),
        key=key,
        max_events=max_events,
        hold_s=check_hold(hold_s),
        timeout_s=timeout_s,
        retry_s=retry_s,
    )
