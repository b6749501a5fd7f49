"""Joins a running network: a broker asks an existing one for a place below it (guaranteed/membership.py)."""

from __future__ import annotations

import asyncio
import ssl

from tidings.core.errors import ConnectionFailed, WireError
from tidings.core.messages import PROTOCOL_VERSION, Hello, Message, Refused, Welcome
from tidings.core.overlay.guaranteed.messages import Join, Joined
from tidings.drivers.address import Address
from tidings.drivers.sockets.dialling import CONNECT_SECONDS, explain, open_stream
from tidings.drivers.sockets.handshake import BROKER, CROSSING, NAME_TAKEN, HandshakeRules, welcome_refusal
from tidings.drivers.sockets.outbox import Policy
from tidings.drivers.sockets.session import Dial, End, SocketSession

ANSWER_SECONDS = 10.0
ATTEMPTS = 5


async def ask_to_join(
    us: HandshakeRules, listen: Address, parent: Address, context: ssl.SSLContext | None
) -> Joined:
    """Return the place that the broker at `parent` gives us; ConnectionFailed says why there is none."""
    for attempt in range(ATTEMPTS):
        answer = await _ask_once(us, listen, parent, context)
        if not isinstance(answer, str):
            return answer
        # A broker with our name connected there while we asked. Ask again, to get the protocol's own refusal.
        if answer not in (CROSSING, NAME_TAKEN) or attempt == ATTEMPTS - 1:
            break
        await asyncio.sleep(0.05 * (attempt + 1))
    raise ConnectionFailed(f"cannot join at {parent}: {answer}")


async def _ask_once(
    us: HandshakeRules, listen: Address, parent: Address, context: ssl.SSLContext | None
) -> Joined | str:
    """Return the answer, or why there is none."""
    asking = _Asking(us)
    dial = Dial(Hello(PROTOCOL_VERSION, us.node, BROKER, us.mode, us.token))
    try:
        async with asyncio.timeout(CONNECT_SECONDS):
            session = await open_stream(asking, parent, dial, Policy(drops_publications=False), context)
    except OSError as error:
        raise ConnectionFailed(f"cannot join at {parent}: {explain(error)}") from None
    try:
        if not session.ended.done():
            session.send(Join(str(listen)))
        async with asyncio.timeout(ANSWER_SECONDS):
            answer = await asking.answer
    except TimeoutError:
        raise ConnectionFailed(f"cannot join at {parent}: no answer within {ANSWER_SECONDS:g} s") from None
    finally:
        session.end(End("joined", refused=False))
    return answer


class _Asking:
    """Hosts the session over which we ask."""

    def __init__(self, us: HandshakeRules) -> None:
        self.answer: asyncio.Future[Joined | str] = asyncio.get_running_loop().create_future()
        self._us = us

    def on_hello(self, session: SocketSession, hello: Hello) -> None:
        session.refuse("this broker is still joining")

    def on_welcome(self, session: SocketSession, welcome: Welcome) -> None:
        reason = welcome_refusal(welcome, self._us, welcome.node)
        if reason is not None:
            session.refuse(reason)
            self._settle(reason)
            return
        session.set_up(welcome.node, BROKER, {}, self._take)

    def _take(self, message: Message) -> None:
        if isinstance(message, Joined):
            self._settle(message)
        elif isinstance(message, Refused):
            self._settle(message.reason)

    def persist(self) -> bool:
        return True  # nothing to persist

    def on_bad_frame(self, session: SocketSession, error: WireError) -> None:
        self._settle(str(error))

    def on_ended(self, session: SocketSession, end: End) -> None:
        self._settle(end.reason)

    def _settle(self, answer: Joined | str) -> None:
        if not self.answer.done():
            self.answer.set_result(answer)
