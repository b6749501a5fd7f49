"""An event service over MQTT 5.

    async with mqtt_service("mqtt://user:password@127.0.0.1:1883") as bus: ...

Names. The topic `/a/b` is the MQTT topic `tidings/a/b`; in a level `+`, `#` and `%` are written as `%2B`, `%23` and
`%25`. `/a/*` is the filter `tidings/a/+`, `/a/**` is `tidings/a/#`, which includes `/a`. The payload of a message is
the encoded event. Filters are evaluated in the client.

Everything is sent with QoS 1. `publish` is confirmed by the broker's PUBACK; what is unconfirmed when the connection
breaks is resent on the next one, and subscribers drop the duplicates. While a client is away, the broker keeps its
session for `session_s` seconds, with what is published meanwhile, within the broker's own limits: Mosquitto keeps 1,000
messages (`max_queued_messages`) and silently drops further ones, also for connected clients that read slowly; and it
forgets sessions in a restart unless `persistence true` is set. So a subscription may have gaps that nobody notices.
That is why this service is not `lossless`, and why it reads as fast as it can: for slow readers, the bounded buffer of
the stream counts what it drops.

A group is a shared subscription (`$share/GROUP/filter`): the broker chooses a member for each event. What a member has
not acknowledged when it dies, Mosquitto passes on to nobody; so acknowledgement and durable subscriptions are refused.

The client is paho-mqtt, driven by our own event loop. aiomqtt, which wraps it, treats a publication that the broker
rejects in its PUBACK (no permission, quota) as confirmed, and spends a task on every message.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from tidings.core.errors import ConnectionFailed
from tidings.core.events.topics import TopicPattern
from tidings.drivers.adapters.external import DEFAULT_RETRY_S, DEFAULT_TIMEOUT_S, ExternalService
from tidings.drivers.adapters.held_options import HeldSupport
from tidings.drivers.adapters.session import AdapterSession, AdapterUrl, parse_url
from tidings.drivers.adapters.topics import TopicNames, overlap
from tidings.extras import need

SCHEME = "mqtt"
DEFAULT_PORT = 1883
DEFAULT_PREFIX = "tidings"
DEFAULT_SESSION_S = 3600
MAX_SESSION_S = 2**32 - 2

NAMES = TopicNames(separator="/", reserved="+#", any_level="+")


def topic_filter(prefix: str, pattern: TopicPattern) -> str:
    """Return the topic filter that selects the topics of the pattern."""
    name = NAMES.pattern(prefix, pattern)
    return f"{name}/#" if pattern.subtree else name


def shared_filters(prefix: str, group: str, patterns: Sequence[TopicPattern]) -> list[str]:
    """Return the filters of a group. They do not overlap: the broker would choose a member for each of them."""
    plain = [topic_filter(prefix, each) for each in patterns]
    return [f"$share/{group}/{each}" for each in ([f"{prefix}/#"] if overlap(patterns) else plain)]


class MqttService(ExternalService):
    """An event service over MQTT, made by `mqtt_service`."""

    held_support = HeldSupport(keeps=False, instead="tidings' guaranteed networks, JetStream and Redis do")

    def __init__(
        self,
        target: AdapterUrl,
        name: str | None,
        *,
        prefix: str,
        session_s: int,
        timeout_s: float,
        retry_s: float,
    ) -> None:
        super().__init__(SCHEME, target.server, name, timeout_s=timeout_s, retry_s=retry_s)
        self.target = target
        self.client_id = self.name if name is None else f"{self.name}-{self.outgoing.incarnation}"
        """Never used before: an MQTT broker lets a new connection replace an older one with the same id, and two
        clients with one id would replace each other for ever."""
        self.prefix = prefix
        self.session_s = session_s
        self.filters: set[str] = set()
        """The filters that the broker's session has, as far as we know; the session outlives a connection."""

    def _new_session(self) -> AdapterSession:
        from tidings.drivers.adapters.mqtt_session import MqttSession

        return MqttSession(self)


def mqtt_service(
    url: str,
    *,
    name: str | None = None,
    prefix: str = DEFAULT_PREFIX,
    session_s: int = DEFAULT_SESSION_S,
    timeout_s: float = DEFAULT_TIMEOUT_S,
    retry_s: float = DEFAULT_RETRY_S,
) -> MqttService:
    """Return an event service over an MQTT 5 broker, to use with `async with`.

    Args:
        url: `mqtt://[user:password@]host:port`.
        name: Identifies this client; no two clients may share it. None draws a random name.
        prefix: The MQTT topic under which all topics are.
        session_s: How long the broker keeps the session of a client that is away, in seconds.
        timeout_s: How long to wait for a connection and for answers to requests, in seconds.
        retry_s: A publication that the broker has not confirmed after so many seconds fails with NotConfirmed.

    Raises:
        ConnectionFailed: The URL or another argument is not valid, or paho-mqtt is not installed.
    """
    target = parse_url(url, (SCHEME,), DEFAULT_PORT)
    if not re.fullmatch(r"[A-Za-z0-9_-]+(/[A-Za-z0-9_-]+)*", prefix):
        raise ConnectionFailed(
            f"prefix {prefix!r} is not a topic: use letters, digits, '-' and '_', separated by '/'"
        )
    if not 0 <= session_s <= MAX_SESSION_S:
        raise ConnectionFailed(f"session_s must be from 0 to {MAX_SESSION_S}, not {session_s}")
    need("mqtt://", "mqtt", error=ConnectionFailed)
    return MqttService(target, name, prefix=prefix, session_s=session_s, timeout_s=timeout_s, retry_s=retry_s)
