"""What clients may send to a broker, and who takes it."""

from __future__ import annotations

from collections.abc import Callable

from tidings.core.errors import WireError
from tidings.core.events.event import Publication, check_publication
from tidings.core.events.run import Run, Stretch
from tidings.core.messages import Message, PublishFailed, Status, StatusRequest, Subscribe, Unsubscribe
from tidings.core.overlay.guaranteed.messages import (
    Attach,
    Drain,
    KeepBookmark,
    Notified,
    Stamped,
    StampTaken,
)
from tidings.core.wire.archive_messages import ArchiveFailed, ArchiveInfoRequest
from tidings.drivers.sockets.session import MAX_REASON_CHARACTERS, Handler, SocketSession
from tidings.drivers.sockets.status_text import status_text

NO_ARCHIVE = "this broker keeps no archive (tidings broker --archive DIR)"

Handlers = dict[type, Handler]


def client_handlers(
    session: SocketSession, receive: Handler, status: Callable[[], dict[str, object]]
) -> Handlers:
    """What clients of every mode may send; `receive` is the protocol's."""

    def tell_status(message: StatusRequest) -> None:
        session.send(Status(status_text(status())))

    def refuse_reader(message: ArchiveInfoRequest) -> None:
        session.send(ArchiveFailed(message.request, "error", NO_ARCHIVE))

    return {
        Subscribe: receive,
        Unsubscribe: receive,
        StatusRequest: tell_status,
        ArchiveInfoRequest: refuse_reader,
    }


def publication_handlers(
    session: SocketSession, receive: Handler, prepare: Callable[[Stretch], Stretch] | None = None
) -> Handlers:
    """Publications and runs of them as such; `prepare` makes of each what the protocol is to get."""

    def take(publication: Publication) -> None:
        if _is_sound(session, publication):
            receive(publication if prepare is None else prepare(publication))

    def take_run(run: Run) -> None:
        for stretch in _sound_stretches(session, run):
            receive(stretch if prepare is None else prepare(stretch))

    return {Publication: take, Run: take_run}


def stamped_handlers(session: SocketSession, receive: Handler) -> Handlers:
    """What clients of a guaranteed network send."""

    def take(message: Stamped) -> None:
        stretch = message.stretch
        if isinstance(stretch, Run):
            for sound in _sound_stretches(session, stretch):
                receive(message if sound is stretch else Stamped(message.generation, message.stamp, sound))
        elif _is_sound(session, stretch):
            receive(message)

    return {Stamped: take} | dict.fromkeys((Attach, StampTaken, Notified, KeepBookmark, Drain), receive)


def refuse_other(session: SocketSession) -> Handler:
    def refuse(message: Message) -> None:
        session.refuse(f"a client does not send {type(message).__name__}")

    return refuse


def _sound_stretches(session: SocketSession, run: Run) -> list[Stretch]:
    """All but the events that nobody may publish: of these their publisher is told why."""
    refused = run.check()
    if not refused:
        return [run]
    for sequence, reason in refused:
        session.send(PublishFailed(sequence, reason[:MAX_REASON_CHARACTERS]))
    return run.without([sequence for sequence, _ in refused])


def _is_sound(session: SocketSession, publication: Publication) -> bool:
    """If not, its publisher is told why."""
    try:
        check_publication(publication)
    except WireError as error:
        session.send(PublishFailed(publication.sequence, str(error)[:MAX_REASON_CHARACTERS]))
        return False
    return True
