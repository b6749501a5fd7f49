"""Dialling that is given up at the very moment of the connection."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any, cast

import pytest

from tidings.core.messages import PROTOCOL_VERSION, Hello
from tidings.drivers.address import Address
from tidings.drivers.sockets.dialling import open_stream
from tidings.drivers.sockets.loop import run
from tidings.drivers.sockets.outbox import Policy
from tidings.drivers.sockets.session import Dial
from tidings.drivers.sockets.stream import StreamSession


class Host:
    def __init__(self) -> None:
        self.reasons: list[str] = []

    def persist(self) -> bool:
        return True

    def on_ended(self, session: object, end: Any) -> None:
        self.reasons.append(end.reason)


def test_nothing_is_sent_and_the_host_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    problems: list[object] = []
    host = Host()

    async def main() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda loop, context: problems.append(context))
        server = await asyncio.start_server(lambda reader, writer: writer.close(), "127.0.0.1", 0)
        dial = Dial(Hello(PROTOCOL_VERSION, "c", "client", "guaranteed", ""), "b0")
        made = StreamSession.connection_made

        def connected(session: StreamSession, transport: asyncio.BaseTransport) -> None:
            made(session, transport)
            dialling.cancel()

        monkeypatch.setattr(StreamSession, "connection_made", connected)
        address = Address("127.0.0.1", server.sockets[0].getsockname()[1])
        dialling = asyncio.create_task(open_stream(cast("Any", host), address, dial, Policy(), None))
        with contextlib.suppress(asyncio.CancelledError):
            await dialling
        assert dialling.cancelled()
        await asyncio.sleep(0.1)
        server.close()

    run(main())
    assert problems == []
    assert host.reasons == ["given up"]
