"""An event service over NATS, core or JetStream.

    async with nats_service("nats://127.0.0.1:4222") as bus: ...
    async with nats_service("nats+jetstream://127.0.0.1:4222") as bus: ...

Names. The topic `/a/b` is the subject `tidings.a.b`; in a level `.`, `*`, `>`, space and `%` are written as `%2E` and
so on. `/a/*` is `tidings.a.*`, `/a/**` the two subjects `tidings.a` and `tidings.a.>`, `/**` is `tidings.>`. The body
of a message is the encoded event. Filters are evaluated in the client.

Core (`nats://`) is best effort. `publish` is confirmed when the server has processed it: a message to ourselves, sent
behind it on the same connection, has come back. (The client library's `flush` sends its PING past what it still
buffers.) What the server sends to a subscriber that is away is lost, and a server drops a client that does not read.
Unconfirmed publications are sent again on the next connection; subscribers drop the repetitions.

JetStream (`nats+jetstream://`) keeps events in one stream, created if it is missing: `max_age_s` and `max_bytes` bound
it, and at the bound the oldest go. `publish` is confirmed when the stream has the event; repetitions carry the same
`Nats-Msg-Id`. A subscription is a position in the stream: the client asks for as many events as its reader has room
for, in order, and goes on from there after a break, also of the server. So a slow reader loses nothing until the
stream's bound overtakes it; then `Stream.gaps` has the numbers of the stream that are gone (with the stream's name as
the source, and not all of them need have been for it). Nothing is acknowledged: a client that repeats what it has not
acknowledged would break the order. Both kinds may use one server: what either publishes the other sees.

The client must be allowed to publish and subscribe to `_INBOX.>`.
"""

from __future__ import annotations

import re

from tidings.core.errors import ConnectionFailed
from tidings.core.events.topics import TopicPattern
from tidings.drivers.adapters.external import DEFAULT_RETRY_S, DEFAULT_TIMEOUT_S, ExternalService
from tidings.drivers.adapters.session import AdapterSession, AdapterUrl, parse_url
from tidings.drivers.adapters.topics import TopicNames
from tidings.extras import need

CORE, JETSTREAM = "nats", "nats+jetstream"
DEFAULT_PORT = 4222
DEFAULT_PREFIX = "tidings"
DEFAULT_STREAM = "TIDINGS"
DEFAULT_MAX_AGE_S = 24 * 3600.0
DEFAULT_MAX_BYTES = 1024**3

NAMES = TopicNames(separator=".", reserved=".*> ", any_level="*")


def subjects(prefix: str, pattern: TopicPattern) -> tuple[str, ...]:
    """What selects the topics of the pattern, together."""
    subject = NAMES.pattern(prefix, pattern)
    if not pattern.subtree:
        return (subject,)
    return (subject, f"{subject}.>") if pattern.levels else (f"{subject}.>",)


class NatsService(ExternalService):
    def __init__(
        self,
        target: AdapterUrl,
        name: str | None,
        *,
        jetstream: bool,
        prefix: str,
        stream: str,
        max_age_s: float,
        max_bytes: int,
        timeout_s: float,
        retry_s: float,
    ) -> None:
        kind = JETSTREAM if jetstream else CORE
        super().__init__(kind, target.server, name, timeout_s=timeout_s, retry_s=retry_s)
        self.target = target
        self.jetstream = jetstream
        self.prefix = prefix
        self.stream = stream
        self.max_age_s = max_age_s
        self.max_bytes = max_bytes

    @property
    def lossless(self) -> bool:
        return self.jetstream

    def _new_session(self) -> AdapterSession:
        from tidings.drivers.adapters.nats_jetstream import JetStreamSession
        from tidings.drivers.adapters.nats_session import CoreSession

        return (JetStreamSession if self.jetstream else CoreSession)(self)


def nats_service(
    url: str,
    *,
    name: str | None = None,
    jetstream: bool = False,
    prefix: str = DEFAULT_PREFIX,
    stream: str = DEFAULT_STREAM,
    max_age_s: float = DEFAULT_MAX_AGE_S,
    max_bytes: int = DEFAULT_MAX_BYTES,
    timeout_s: float = DEFAULT_TIMEOUT_S,
    retry_s: float = DEFAULT_RETRY_S,
) -> NatsService:
    """A service at the server of `nats://[user:password@]host:port`; `nats+jetstream://` is with JetStream.

    `name` identifies this client and must be unique; without one a new name is drawn. `stream`, `max_age_s` and
    `max_bytes` are for JetStream; a stream that exists keeps its bounds. What the server has not confirmed within
    `retry_s` fails with NotConfirmed.
    """
    target = parse_url(url, (CORE, JETSTREAM), DEFAULT_PORT)
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]*(\.[A-Za-z0-9_-]+)*", prefix):
        raise ConnectionFailed(
            f"prefix {prefix!r} is not a subject: letters, digits, '-', '_', with dots between"
        )
    if not re.fullmatch(r"[A-Za-z0-9_-]+", stream):
        raise ConnectionFailed(f"stream {stream!r} is not a stream name: letters, digits, '-', '_'")
    if max_age_s < 1 or max_bytes < 1:
        raise ConnectionFailed(f"max_age_s {max_age_s} and max_bytes {max_bytes} must be at least 1")
    need("nats://", "nats", error=ConnectionFailed)
    return NatsService(
        target,
        name,
        jetstream=jetstream or target.scheme == JETSTREAM,
        prefix=prefix,
        stream=stream,
        max_age_s=max_age_s,
        max_bytes=max_bytes,
        timeout_s=timeout_s,
        retry_s=retry_s,
    )
