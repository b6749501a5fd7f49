"""Which publications of a client are confirmed late: those whose publisher waits for an answer, or for nothing."""

from __future__ import annotations

from typing import Any, cast

import pytest

from tidings.core.events.event import Publication, make_publication
from tidings.core.events.payload import typed_payload
from tidings.core.messages import Message
from tidings.core.overlay.guaranteed.messages import Stamped
from tidings.core.overlay.guaranteed.share_messages import ShareAttach
from tidings.drivers.sockets.client_handlers import Handlers, stamped_handlers, unkept_handlers
from tidings.drivers.sockets.session import Handler, SocketSession

PLAIN, REQUEST, ANSWER = 1, 2, 3


class Session:
    """Notes which publications are to be confirmed late."""

    def __init__(self) -> None:
        self.outbox = self
        self.late: list[int] = []

    def confirm_late(self, sequence: int) -> None:
        self.late.append(sequence)

    def postponing(self, handle: Handler) -> Handler:
        return handle


def publications() -> list[Publication]:
    payloads: dict[int, Any] = {
        PLAIN: b"",
        REQUEST: typed_payload(b"", reply_to="/~reply/c", request="1"),
        ANSWER: typed_payload(b"", request="1"),
    }
    return [make_publication("c", 0, number, "/a", {}, payload, 0) for number, payload in payloads.items()]


def late(handlers: Handlers, session: Session, wrap: Any) -> list[int]:
    for publication in publications():
        message = wrap(publication)
        handlers[type(message)](message)
    return session.late


def attach() -> ShareAttach:
    return cast("ShareAttach", object())


def test_a_broker_without_a_guarantee_confirms_requests_and_answers_late() -> None:
    session, received = Session(), list[Message]()
    handlers = unkept_handlers(cast("SocketSession", session), received.append)
    assert late(handlers, session, lambda publication: publication) == [REQUEST, ANSWER]
    assert len(received) == 3


@pytest.mark.parametrize("holds_share", [False, True])
def test_a_guaranteed_broker_confirms_answers_at_once_where_events_are_acknowledged(
    holds_share: bool,
) -> None:
    session, received = Session(), list[Message]()
    handlers = stamped_handlers(cast("SocketSession", session), received.append)
    if holds_share:
        handlers[ShareAttach](attach())
        received.clear()
    expected = [REQUEST] if holds_share else [REQUEST, ANSWER]
    assert late(handlers, session, lambda publication: Stamped(1, 1, publication)) == expected
    assert len(received) == 3
