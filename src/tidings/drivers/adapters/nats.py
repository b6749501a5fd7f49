"""An event service over NATS, core or JetStream.

    async with nats_service("nats://127.0.0.1:4222") as bus: ...
    async with nats_service("nats+jetstream://127.0.0.1:4222") as bus: ...

Names. The topic `/a/b` is the subject `tidings.a.b`; in a level `.`, `*`, `>`, space and `%` are written as `%2E` and
so on. `/a/*` is `tidings.a.*`, `/a/**` the two subjects `tidings.a` and `tidings.a.>`, `/**` is `tidings.>`. The body
of a message is the encoded event. Filters are evaluated in the client.

Core (`nats://`) is best effort. `publish` is confirmed once the server has processed it: a message to ourselves, sent
after it on the same connection, has come back. (The client library's `flush` sends its PING ahead of what it still
buffers.) What the server sends to a subscriber that is away is lost, and a server disconnects a client that does not
read. Unconfirmed publications are resent on the next connection; subscribers drop the duplicates.

JetStream (`nats+jetstream://`) keeps events in one stream, created if it is missing. `max_age_s` and `max_bytes` bound
it; at the bound the oldest events are deleted. `publish` is confirmed once the stream has the event; a resent event has
the same `Nats-Msg-Id`. A subscription is a position in the stream: the client requests as many events as its reader has
room for, in order, and resumes there after a lost connection or a restart of the server. So a slow reader loses nothing
until the stream's bound overtakes it; then `Stream.gaps` lists the numbers of the stream that are gone (with the
stream's name as the source; not all of them need have matched). Nothing is acknowledged: redelivery of unacknowledged
events would break the order. Both kinds may use one server: what either publishes the other sees.

A group is a queue group of core NATS: the server chooses a member for each event, and keeps nothing. At JetStream, a
group or a durable subscription is a durable consumer with explicit acknowledgement (nats_held.py).

The client needs permission to publish and subscribe to `_INBOX.>`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from tidings.bus.receipts import Receipt
from tidings.bus.requests import MAX_PENDING
from tidings.core.errors import ConnectionFailed
from tidings.core.events.topics import TopicPattern
from tidings.core.filters.language.predicates import Scalar
from tidings.drivers.adapters.external import DEFAULT_RETRY_S, DEFAULT_TIMEOUT_S, ExternalService
from tidings.drivers.adapters.held_options import DEFAULT_HOLD_S, HeldSupport, check_hold
from tidings.drivers.adapters.session import AdapterSession, AdapterUrl, parse_url
from tidings.drivers.adapters.topics import TopicNames, overlap
from tidings.extras import need

CORE, JETSTREAM = "nats", "nats+jetstream"
DEFAULT_PORT = 4222
DEFAULT_PREFIX = "tidings"
DEFAULT_STREAM = "TIDINGS"
DEFAULT_MAX_AGE_S = 24 * 3600.0
DEFAULT_MAX_BYTES = 1024**3

CORE_HELD = HeldSupport(keeps=False, instead="nats+jetstream:// does")
JETSTREAM_HELD = HeldSupport(keeps=True, expires=True, delays=True)

NAMES = TopicNames(separator=".", reserved=".*> ", any_level="*")


def subjects(prefix: str, pattern: TopicPattern) -> tuple[str, ...]:
    """Return the subjects that together select the topics of the pattern."""
    subject = NAMES.pattern(prefix, pattern)
    if not pattern.subtree:
        return (subject,)
    return (subject, f"{subject}.>") if pattern.levels else (f"{subject}.>",)


def disjoint_subjects(prefix: str, patterns: Sequence[TopicPattern]) -> list[str]:
    """Return the subjects of all patterns, or everything if they overlap: for a consumer or a group, they must not."""
    if overlap(patterns):
        return [f"{prefix}.>"]
    return [subject for pattern in patterns for subject in subjects(prefix, pattern)]


class NatsService(ExternalService):
    """An event service over NATS, made by `nats_service`."""

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
        hold_s: float,
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
        self.asking: dict[int, int] = {}
        """Requests that are not sent yet: the sequence of the publication, and the number of the request."""
        self.hold_s = hold_s
        self.held_support = JETSTREAM_HELD if jetstream else CORE_HELD

    @property
    def lossless(self) -> bool:
        return self.jetstream

    def ask_for_responders(
        self, number: int, topic: str, attributes: Mapping[str, Scalar], receipt: Receipt
    ) -> None:
        """Let the server say that it has no subscriber for this message. A stream would be one."""
        if not self.jetstream and receipt.id is not None and not receipt.done:
            if len(self.asking) >= MAX_PENDING:  # of publications that were never sent
                self.asking.clear()
            self.asking[receipt.id.sequence] = number

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
    hold_s: float = DEFAULT_HOLD_S,
    timeout_s: float = DEFAULT_TIMEOUT_S,
    retry_s: float = DEFAULT_RETRY_S,
) -> NatsService:
    """Return an event service over a NATS server, to use with `async with`.

    Args:
        url: `nats://[user:password@]host:port` (best effort) or `nats+jetstream://...` (keeps events in a stream).
        name: Identifies this client; no two clients may share it. None draws a random name.
        jetstream: True uses JetStream whatever the URL's scheme.
        prefix: The subject under which all topics are.
        stream: JetStream: the name of the stream, created if it is missing. An existing stream keeps its bounds.
        max_age_s: JetStream: how long a new stream keeps events, in seconds.
        max_bytes: JetStream: how many bytes a new stream keeps.
        hold_s: JetStream: how long a member of a group, or the holder of a durable subscription, may be silent before
            what it holds is delivered again, in seconds. Those that create a group decide.
        timeout_s: How long to wait for a connection and for answers to requests, in seconds.
        retry_s: A publication that the server has not confirmed after so many seconds fails with NotConfirmed.

    Raises:
        ConnectionFailed: The URL or another argument is not valid, or nats-py is not installed.
    """
    target = parse_url(url, (CORE, JETSTREAM), DEFAULT_PORT)
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]*(\.[A-Za-z0-9_-]+)*", prefix):
        raise ConnectionFailed(
            f"prefix {prefix!r} is not a subject: use letters, digits, '-' and '_', separated by dots"
        )
    if not re.fullmatch(r"[A-Za-z0-9_-]+", stream):
        raise ConnectionFailed(f"stream {stream!r} is not a stream name: use letters, digits, '-' and '_'")
    if max_age_s < 1 or max_bytes < 1:
        raise ConnectionFailed(f"max_age_s and max_bytes must be at least 1, not {max_age_s} and {max_bytes}")
    need("nats://", "nats", error=ConnectionFailed)
    return NatsService(
        target,
        name,
        jetstream=jetstream or target.scheme == JETSTREAM,
        prefix=prefix,
        stream=stream,
        max_age_s=max_age_s,
        max_bytes=max_bytes,
        hold_s=check_hold(hold_s),
        timeout_s=timeout_s,
        retry_s=retry_s,
    )
