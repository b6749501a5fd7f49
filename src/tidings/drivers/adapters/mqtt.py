"""An event service over MQTT 5.

    async with mqtt_service("mqtt://user:password@127.0.0.1:1883") as bus: ...

Names. The topic `/a/b` is the MQTT topic `tidings/a/b`; in a level `+`, `#` and `%` are written as `%2B`, `%23` and
`%25`. `/a/*` is the filter `tidings/a/+`, `/a/**` is `tidings/a/#`, which has `/a` in it. The payload of a message is
the encoded event. Filters are evaluated in the client.

Everything goes with QoS 1. `publish` is confirmed by the broker's PUBACK; what is not confirmed when the connection
breaks is sent again on the next one, and subscribers drop the repetitions. While a client is away the broker keeps its
session for `session_s` seconds, and in it what is published meanwhile, as far as that broker does: Mosquitto keeps
1,000 messages (`max_queued_messages`) and drops further ones without telling anybody, for clients that are connected
and read slowly, too; and it forgets sessions in a restart unless it has `persistence true`. So a subscription may have
gaps of which nobody hears. That is why this service is not `lossless`, and why it reads as fast as it can and leaves
slow readers to the bounded buffer of their stream, which counts what it leaves out.

The client is paho-mqtt, driven by our own event loop. aiomqtt, which wraps it, takes a publication that the broker
refuses in its PUBACK (no permission, quota) for confirmed, and spends a task on every message.
"""

from __future__ import annotations

import re

from tidings.core.errors import ConnectionFailed
from tidings.core.events.topics import TopicPattern
from tidings.drivers.adapters.external import DEFAULT_RETRY_S, DEFAULT_TIMEOUT_S, ExternalService
from tidings.drivers.adapters.session import AdapterSession, AdapterUrl, parse_url
from tidings.drivers.adapters.topics import TopicNames
from tidings.extras import need

SCHEME = "mqtt"
DEFAULT_PORT = 1883
DEFAULT_PREFIX = "tidings"
DEFAULT_SESSION_S = 3600
MAX_SESSION_S = 2**32 - 2

NAMES = TopicNames(separator="/", reserved="+#", any_level="+")


def topic_filter(prefix: str, pattern: TopicPattern) -> str:
    """What selects the topics of the pattern."""
    name = NAMES.pattern(prefix, pattern)
    return f"{name}/#" if pattern.subtree else name


class MqttService(ExternalService):
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
        """Never used before: an MQTT broker lets a second connection of a name replace the first, and two clients with
        one name would replace each other again and again."""
        self.prefix = prefix
        self.session_s = session_s
        self.filters: set[str] = set()
        """What the broker's session has, as far as we know: it outlives a connection."""

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
    """A service at the broker of `mqtt://[user:password@]host:port`.

    `name` identifies this client and must be unique; without one a new name is drawn. What the broker has not
    confirmed within `retry_s` fails with NotConfirmed.
    """
    target = parse_url(url, (SCHEME,), DEFAULT_PORT)
    if not re.fullmatch(r"[A-Za-z0-9_-]+(/[A-Za-z0-9_-]+)*", prefix):
        raise ConnectionFailed(
            f"prefix {prefix!r} is not a topic: letters, digits, '-', '_', with '/' between"
        )
    if not 0 <= session_s <= MAX_SESSION_S:
        raise ConnectionFailed(f"session_s {session_s} is not between 0 and {MAX_SESSION_S}")
    need("mqtt://", "mqtt", error=ConnectionFailed)
    return MqttService(target, name, prefix=prefix, session_s=session_s, timeout_s=timeout_s, retry_s=retry_s)
