"""Durable subscriptions and groups that begin in the past: their home takes in what its archive has, then what is live.

The home reads the archive only while few events wait in the share, so a long history waits in the archive. Events and
the offset after them are one write: after a crash the home reads on from there.

Only near the archive's end the share subscribes, with the archive's record. What the broker takes from then on comes
live, and everything before is in the archive once a fence is passed (archive_fence.py): there the history ends. Live
events are not taken before the history has been read. Both have a source's events in order, so the last sequence that
was taken of each source tells what comes twice.

    reading -- near the end --> subscribed -- fence passed --> ending -- all read --> over (live)
       ^                             |
       +-------- restart ------------+

A fence that is not passed when the broker restarts is worth nothing, because what the broker had taken for the archive
alone comes again. The share then subscribes anew, and so it misses nothing: until the fence is passed, all that it is
to get is in the archive, or will be.

A driver that keeps an archive sets `archive`. It answers now or later, from anywhere: answers are handled in a turn of
the broker.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, Protocol

import msgspec
from msgspec.structs import replace

from tidings.core.errors import StoreCorrupt, StoreError, SubscriptionRefused, WireError
from tidings.core.events.run import Stretch
from tidings.core.events.subscription import ORDERED, Interest, make_interest
from tidings.core.facts import ShareFailed
from tidings.core.kernel import Part, Port, TimerName
from tidings.core.messages import Message, Subscribe, SubscribeAfterHistory, Unsubscribe
from tidings.core.overlay.guaranteed.archive_fence import NEEDS_ARCHIVE, ArchiveFence
from tidings.core.overlay.guaranteed.attachments import MAX_BASELINE, Attachments
from tidings.core.overlay.guaranteed.delivery import Delivery
from tidings.core.overlay.guaranteed.former_home import FormerHome
from tidings.core.overlay.guaranteed.held_share import HeldShare
from tidings.core.overlay.guaranteed.kept_share import KeptShare, Mark
from tidings.core.overlay.guaranteed.share_messages import ShareAttach, StartItem

HISTORY = "history"
"""The subscription of a share that began with history; its other one says where the share is."""
LOW_EVENTS, LOW_BYTES = 4_096, 8 * 1024 * 1024
"""The archive is read on while fewer events wait in the share, or nothing does."""
NEAR_EVENTS = 4_096
"""A share subscribes when the archive has no more than this left for it."""
POLL_NS = 5_000_000
"""How often to look whether the archive has passed the fence."""
UNKNOWN = -1


class HistoryPosition(msgspec.Struct, array_like=True, frozen=True):
    """How far a share has read its history, as kept on disk."""

    archive: str
    """The archive's id."""
    next: int
    stop: int = UNKNOWN
    """The offset at which the history ends, once the fence is passed."""
    newest_below: int = 0
    """Before this offset, only the newest event of each topic is history."""
    gaps_from: int = 0
    """Gaps that the archive notes at this offset or later have not been reported."""
    passed: tuple[Mark, ...] = ()
    """What the broker had taken of each source when the share subscribed: none of it is live."""


class HistoryRows(NamedTuple):
    """What an archive answers."""

    archive: str
    first: int
    """The oldest offset that it has. If that is beyond what was asked for, or the archive another one, nothing was
    read."""
    next: int
    """The offset after what was read."""
    end: int
    stretches: tuple[Stretch, ...] = ()
    gaps: tuple[tuple[int, int | None, str], ...] = ()
    """Those noted in what was read: offset, missing events if known, reason."""


class ShareArchive(Protocol):
    """The archive of a broker, as its driver gives access to it. An answer in words is a failure."""

    def begin(self, start: StartItem, answer: Callable[[HistoryPosition | str], None]) -> None:
        """Find the position of that start; answer why it cannot be."""

    def read(
        self, interest: Interest, position: HistoryPosition, answer: Callable[[HistoryRows | str], None]
    ) -> None:
        """Read some rows from the position on, and answer with what the interest selects."""


class HistoryListener(Protocol):
    def history_found(self) -> None:
        """It is known where new shares begin: `begin` tells."""

    def history_took(self, held: HeldShare) -> None:
        """The share has kept more events; if its history is over, live ones may follow."""


class _Reading:
    """A share with a history that is not over."""

    __slots__ = ("asked", "end", "fence", "held", "interest", "passed", "position", "trouble")

    def __init__(self, held: HeldShare, position: HistoryPosition) -> None:
        self.held = held
        self.interest = make_interest(held.definition.topics, held.definition.filter)
        self.position = position
        self.asked = False
        self.end: int | None = None
        """The archive's end, when it was read just now."""
        self.fence: int | None = None
        """Set while it is subscribed and does not know where its history ends."""
        self.passed: tuple[Mark, ...] = ()
        self.trouble = ""

    @property
    def is_subscribed(self) -> bool:
        return self.fence is not None or self.position.stop != UNKNOWN

    @property
    def is_at_end(self) -> bool:
        return self.end is not None and self.position.next >= self.end


class ShareHistories(Part):
    name = "share_histories"
    low_events, near_events = LOW_EVENTS, NEAR_EVENTS

    def __init__(
        self,
        port: Port,
        attachments: Attachments,
        delivery: Delivery,
        receive: Callable[[str, Message], None],
    ) -> None:
        """`receive` takes the messages that shares send, as those of other clients."""
        super().__init__(port)
        self.archive: ShareArchive | None = None
        self.listener: HistoryListener
        self._fence = ArchiveFence(port.node, attachments, delivery)
        self._delivery = delivery
        self._receive = receive
        self._readings: dict[str, _Reading] = {}
        """By the shares' names."""
        self._beginning: dict[tuple[str, StartItem], HistoryPosition | str | None] = {}
        """Where a new share begins, or why it cannot; None: not known yet."""
        self._answers: list[Callable[[], None]] = []

    # --- Beginning

    def begin(self, message: ShareAttach) -> HistoryPosition | None:
        """Return where a new share begins; None: `history_found` follows. Raise SubscriptionRefused if it cannot."""
        if message.order in ORDERED:
            raise SubscriptionRefused(
                f"start={_text(message.start)} is not available for durable subscriptions with order "
                f"{message.order!r}: use order 'fifo'"
            )
        if self.archive is None:
            raise SubscriptionRefused(NEEDS_ARCHIVE.format(_text(message.start)))
        self._fence.check(make_interest(message.topics, message.filter))
        key = (message.name, message.start)
        if key not in self._beginning:
            self._beginning[key] = None
            self.archive.begin(message.start, partial(self._answer, partial(self._on_begun, key)))
        found = self._beginning[key]
        if isinstance(found, str):
            raise SubscriptionRefused(found)
        return found

    def _on_begun(self, key: tuple[str, StartItem], found: HistoryPosition | str) -> None:
        self._beginning[key] = found
        self.listener.history_found()  # whoever waits asks again now
        del self._beginning[key]

    def _answer(self, handle: Callable[[Any], None], answer: object) -> None:
        self._answers.append(partial(handle, answer))
        self.port.set_timer((self.name, "answers"), self.port.now)

    def clear(self, share: HeldShare | FormerHome) -> None:
        """Before the share attaches: end a subscription whose fence was not passed."""
        if _position(share) is not None and not self._is_ending(share):
            self._receive(share.client, Unsubscribe(HISTORY))

    def enter(self, share: HeldShare | FormerHome) -> None:
        """Let a share that began with history go on."""
        position = _position(share)
        if position is None or self._is_ending(share):
            topics, condition = share.definition.topics, share.definition.filter
            self._receive(share.client, Subscribe(HISTORY, topics, condition, "none"))
        if position is not None and isinstance(share, HeldShare):
            reading = self._readings[share.definition.name] = _Reading(share, position)
            self._step_soon(reading)

    @staticmethod
    def _is_ending(share: HeldShare | FormerHome) -> bool:
        position = _position(share)
        return position is not None and position.stop != UNKNOWN

    def end(self, held: HeldShare) -> None:
        """The share is over."""
        self._readings.pop(held.definition.name, None)

    # --- Reading

    def go_on(self, held: HeldShare) -> None:
        """Read on if the share has little left."""
        reading = self._readings.get(held.definition.name) if self._readings else None
        if reading is not None and not reading.asked:
            self._step(reading)

    def check(self) -> None:
        """Try again what failed."""
        for reading in list(self._readings.values()):
            self._step(reading)

    def on_timer(self, name: TimerName) -> None:
        if name[1] == "answers":
            answers, self._answers = self._answers, []
            for handle in answers:
                handle()
        elif name[2] in self._readings:
            self._step(self._readings[str(name[2])])

    def _step_soon(self, reading: _Reading, delay_ns: int = 0) -> None:
        self.port.set_timer((self.name, "step", reading.held.definition.name), self.port.now + delay_ns)

    def _step(self, reading: _Reading) -> None:
        """Do what is next, unless it must wait."""
        kept = reading.held.kept
        if reading.asked or not kept.is_open or kept.is_full:
            return
        if not reading.is_subscribed and not self._has_little(kept):
            reading.end = None  # by then it may be elsewhere
            return
        if self.archive is None:
            self._report(reading, "its history waits: this broker keeps no archive at the moment")
            return
        is_near = reading.end is not None and reading.end - reading.position.next <= self.near_events
        if is_near and not reading.is_subscribed and not self._subscribe(reading):
            return
        settled = reading.fence is not None and self._fence.is_passed(reading.fence)
        if reading.fence is not None and not settled and reading.is_at_end:
            self._step_soon(reading, POLL_NS)
            return
        reading.asked = True
        handle = partial(self._on_rows, reading, settled)
        self.archive.read(reading.interest, reading.position, partial(self._answer, handle))

    def _has_little(self, kept: KeptShare) -> bool:
        waiting = kept.queue.waiting_count
        return not waiting or (waiting < self.low_events and kept.size_bytes < LOW_BYTES)

    def _subscribe(self, reading: _Reading) -> bool:
        """Subscribe with the archive's record, and raise the fence; return False if that must wait."""
        definition, client = reading.held.definition, reading.held.client
        try:
            self._fence.check(reading.interest)
            self._receive(client, Unsubscribe(HISTORY))
            self._receive(
                client, SubscribeAfterHistory(HISTORY, definition.topics, definition.filter, "none")
            )
            reading.fence = self._fence.raise_for(client, HISTORY)
        except SubscriptionRefused as error:
            self._report(reading, f"its history waits: {error}")
            return False
        reading.passed = tuple(self._delivery.recent_flows(MAX_BASELINE))
        return True

    def _on_rows(self, reading: _Reading, settled: bool, answer: HistoryRows | str) -> None:
        reading.asked = False
        held = reading.held
        if self._readings.get(held.definition.name) is not reading:
            return
        if isinstance(answer, str):
            self._report(reading, f"its history waits: {answer}")
            return
        position = reading.position
        if settled:
            position = replace(position, stop=answer.end, passed=reading.passed)
        try:
            self._take(reading, position, answer)
        except (StoreError, WireError) as error:
            self._report(reading, str(error))
            return
        reading.end = answer.end
        if settled:
            reading.fence = None
        self.listener.history_took(held)
        if self._readings.get(held.definition.name) is reading:
            self._step(reading)

    def _take(self, reading: _Reading, position: HistoryPosition, rows: HistoryRows) -> None:
        """Keep what was read, with the position after it, and report what is missing."""
        held, stop = reading.held, position.stop
        gap = _gap(position, rows)
        if rows.archive != position.archive:
            following = rows.first if stop == UNKNOWN else stop
            position = HistoryPosition(rows.archive, following, stop, 0, following, position.passed)
        else:
            following = (
                max(rows.next, rows.first) if stop == UNKNOWN else min(max(rows.next, rows.first), stop)
            )
            position = replace(position, next=following, gaps_from=max(position.gaps_from, following + 1))
        is_over = stop != UNKNOWN and position.next >= stop
        encoded = b"" if is_over else _encode(position)
        held.kept.take(*rows.stretches, position=encoded, passed=position.passed if is_over else ())
        reading.position, reading.trouble = position, ""
        if is_over:
            del self._readings[held.definition.name]
        for missing, text in [*gap, *_noted(rows)]:
            held.missed += missing
            self.port.emit(ShareFailed(held.definition.name, text))

    def _report(self, reading: _Reading, trouble: str) -> None:
        """Report once why nothing is read; `check` tries again."""
        if reading.trouble != trouble:
            reading.trouble = trouble
            self.port.emit(ShareFailed(reading.held.definition.name, trouble))

    def status(self, held: HeldShare) -> str:
        """Return what the share still reads; empty if nothing."""
        reading = self._readings.get(held.definition.name)
        if reading is None:
            return ""
        return reading.trouble or f"its history from offset {reading.position.next} on"


def history_row(position: HistoryPosition) -> bytes:
    """Return the position of a new share, as it is kept on disk."""
    return _encode(position)


def _position(share: HeldShare | FormerHome) -> HistoryPosition | None:
    """Return how far the share has read its history; None if that is over."""
    if not isinstance(share, HeldShare) or not share.reads_history:
        return None
    try:
        return _decode(share.kept.position)
    except msgspec.MsgspecError as error:
        raise StoreCorrupt(f"the history of {share.definition.name!r} does not decode: {error}") from None


def _gap(position: HistoryPosition, rows: HistoryRows) -> list[tuple[int, str]]:
    """Return what is gone from the archive although it was not read: how many events at most, and a text."""
    if rows.archive != position.archive:
        missing = 0 if position.stop == UNKNOWN else position.stop - position.next
        what = "its archive was replaced by another one"
        return [(missing, f"{what}: what it had from offset {position.next} on is missing")]
    first = rows.first if position.stop == UNKNOWN else min(rows.first, position.stop)
    if first <= position.next:
        return []
    what = f"offsets {position.next} to {first - 1} left its archive before they were read"
    return [(first - position.next, f"{what}: up to {first - position.next} events are missing")]


def _noted(rows: HistoryRows) -> list[tuple[int, str]]:
    found: list[tuple[int, str]] = []
    for offset, missing, reason in rows.gaps:
        count = "events" if missing is None else f"{missing} events"
        found.append((missing or 0, f"its archive may miss {count} before offset {offset}: {reason}"))
    return found


def _text(start: StartItem) -> str:
    kind, number = start
    return {"offset": str(number), "time": "datetime"}.get(kind, repr(kind))


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(HistoryPosition).decode
