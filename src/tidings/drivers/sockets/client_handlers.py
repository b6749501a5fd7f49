"""The handlers for what clients may send to a broker."""

from __future__ import annotations

from collections.abc import Callable

from tidings.core.errors import WireError
from tidings.core.events.event import Publication, check_publication
from tidings.core.events.payload import PayloadItem, TypedPayload
from tidings.core.events.run import Run, Stretch
from tidings.core.messages import (
    JoinGroup,
    Message,
    PublishFailed,
    RespondersRequest,
    Status,
    StatusRequest,
    Subscribe,
    SubscribeAfterHistory,
    Unsubscribe,
)
from tidings.core.overlay.guaranteed.messages import (
    Attach,
    Drain,
    KeepBookmark,
    Notified,
    Stamped,
    StampTaken,
)
from tidings.core.overlay.guaranteed.share_messages import (
    ShareAsideRequest,
    ShareAttach,
    ShareBack,
    ShareDone,
    ShareEnd,
    ShareLeave,
    ShareListRequest,
    ShareReach,
    ShareRead,
)
from tidings.core.wire.archive_messages import ArchiveFailed, ArchiveInfoRequest
from tidings.drivers.sockets.session import MAX_REASON_CHARACTERS, Handler, SocketSession
from tidings.drivers.sockets.status_text import status_text

NO_ARCHIVE = "this broker keeps no archive; start it with --archive DIR"

Handlers = dict[type, Handler]


def client_handlers(
    session: SocketSession, receive: Handler, status: Callable[[], dict[str, object]]
) -> Handlers:
    """Return the handlers for clients of every mode; `receive` is the protocol's."""

    def send_status(message: StatusRequest) -> None:
        session.send(Status(status_text(status())))

    def refuse_reader(message: ArchiveInfoRequest) -> None:
        session.send(ArchiveFailed(message.request, "error", NO_ARCHIVE))

    return {
        Subscribe: receive,
        Unsubscribe: receive,
        RespondersRequest: receive,
        StatusRequest: send_status,
        ArchiveInfoRequest: refuse_reader,
    }


def unkept_handlers(
    session: SocketSession, receive: Handler, prepare: Callable[[Stretch], Stretch] | None = None
) -> Handlers:
    """Return the handlers for what clients of networks without a guarantee send; `prepare` converts publications and
    runs for the protocol."""

    def take(publication: Publication) -> None:
        payload = _checked(session, publication)
        if payload is None:
            return
        if payload.__class__ is TypedPayload and payload.request:  # it is the answer that somebody waits for
            session.outbox.confirm_late(publication.sequence)
        receive(publication if prepare is None else prepare(publication))

    def take_run(run: Run) -> None:
        for stretch in _sound_stretches(session, run):
            receive(stretch if prepare is None else prepare(stretch))

    return {Publication: take, Run: take_run, JoinGroup: receive}


def stamped_handlers(session: SocketSession, receive: Handler) -> Handlers:
    """Return the handlers for what clients of a guaranteed network send."""

    holds_shares = False

    def take(message: Stamped) -> None:
        stretch = message.stretch
        if isinstance(stretch, Run):
            for sound in _sound_stretches(session, stretch):
                receive(message if sound is stretch else Stamped(message.generation, message.stamp, sound))
        elif (payload := _checked(session, stretch)) is not None:
            if (
                payload.__class__ is TypedPayload
                and payload.request
                and (payload.reply_to or not holds_shares)
            ):
                session.outbox.confirm_late(stretch.sequence)  # it is the answer that somebody waits for
            receive(message)

    def attach_share(message: ShareAttach) -> None:
        nonlocal holds_shares
        holds_shares = True  # whoever answers its events acknowledges them once the answers are confirmed
        receive(message)

    taken: Handlers = {
        Stamped: take,
        Notified: session.postponing(receive),
        ShareAttach: attach_share,
    }
    sent = (SubscribeAfterHistory, Attach, StampTaken, KeepBookmark, Drain)
    of_shares = (ShareDone, ShareBack, ShareLeave, ShareEnd, ShareAsideRequest, ShareListRequest)
    by_number = (ShareReach, ShareRead)
    return taken | dict.fromkeys((*sent, *of_shares, *by_number), receive)


def refuse_other(session: SocketSession) -> Handler:
    """Return a handler that refuses a client for sending something that clients do not send."""

    def refuse(message: Message) -> None:
        session.refuse(f"a client does not send {type(message).__name__}")

    return refuse


def _sound_stretches(session: SocketSession, run: Run) -> list[Stretch]:
    """Return the run without invalid events, and tell the publisher why those are rejected."""
    refused = run.check()
    if not refused:
        return [run]
    for sequence, reason in refused:
        session.send(PublishFailed(sequence, reason[:MAX_REASON_CHARACTERS]))
    return run.without([sequence for sequence, _ in refused])


def _checked(session: SocketSession, publication: Publication) -> PayloadItem | None:
    """Return the payload of a valid publication; otherwise None, and tell the publisher why."""
    try:
        return check_publication(publication)
    except WireError as error:
        session.send(PublishFailed(publication.sequence, str(error)[:MAX_REASON_CHARACTERS]))
        return None
