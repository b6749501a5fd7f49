"""What came together with events is handled after these have left, and before anything else of its session."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, cast

from tidings.core.errors import WireError
from tidings.core.events.event import Publication, make_publication
from tidings.core.messages import Message, Ping, Pong
from tidings.core.overlay.guaranteed.messages import Notified
from tidings.core.wire.codec import encode
from tidings.core.wire.frames import frame
from tidings.drivers.sockets.outbox import Policy
from tidings.drivers.sockets.session import End, SessionHost
from tidings.drivers.sockets.stream import StreamSession


class Host:
    """Notes what is handled, and when something leaves."""

    def __init__(self) -> None:
        self.heard: list[str] = []

    def persist(self) -> bool:
        self.heard.append("leaves")
        return False

    def on_ended(self, session: StreamSession, end: End) -> None:
        self.heard.append("ended")

    def on_bad_frame(self, session: StreamSession, error: WireError) -> None:
        self.heard.append(f"bad: {error}")

    def hear(self, message: Message) -> None:
        self.heard.append(type(message).__name__)


def played(play: Callable[[Host, StreamSession], Awaitable[None]]) -> Callable[[], None]:
    async def main() -> None:
        host = Host()
        session = StreamSession(cast("SessionHost", host), Policy())

        def on_event(message: Publication) -> None:
            host.hear(message)
            session.send(Pong(1))

        handlers: dict[type, Any] = {
            Publication: on_event,
            Notified: session.postponing(host.hear),
            Ping: host.hear,
        }
        session.set_up("c", "client", handlers, host.hear)
        await play(host, session)

    def test() -> None:
        asyncio.run(main())

    return test


def frames(*messages: Message) -> bytes:
    return b"".join(frame(encode(message)) for message in messages)


EVENT, DONE = make_publication("c", 0, 1, "/a", {}, b"", 0), Notified(1)


async def after_its_events(host: Host, session: StreamSession) -> None:
    session.data_received(frames(EVENT, DONE))
    assert host.heard == ["Publication"]
    await asyncio.sleep(0)
    assert host.heard == ["Publication", "leaves", "Notified"]


async def alone(host: Host, session: StreamSession) -> None:
    session.data_received(frames(EVENT))
    session.data_received(frames(DONE))
    assert host.heard == ["Publication", "Notified"]


async def before_what_follows(host: Host, session: StreamSession) -> None:
    session.data_received(frames(EVENT, DONE, DONE, Ping(1)))
    session.data_received(frames(Ping(2)))
    assert host.heard == ["Publication", "Notified", "Notified", "Ping", "Ping"]


async def before_the_end(host: Host, session: StreamSession) -> None:
    session.data_received(frames(EVENT, DONE))
    session.end(End("over", refused=False))
    assert host.heard == ["Publication", "Notified", "ended"]


async def an_error(host: Host, session: StreamSession) -> None:
    def refuse(message: Message) -> None:
        raise WireError("too many")

    session._handlers = {**session._handlers, Notified: session.postponing(refuse)}
    session.data_received(frames(EVENT, DONE))
    await asyncio.sleep(0)
    assert host.heard[-1] == "ended"
    assert "bad: too many" in host.heard


test_it_is_handled_once_the_events_have_left = played(after_its_events)
test_what_comes_without_events_is_handled_at_once = played(alone)
test_what_follows_waits_for_it = played(before_what_follows)
test_the_end_of_the_session_waits_for_it = played(before_the_end)
test_an_error_in_it_ends_the_session = played(an_error)
