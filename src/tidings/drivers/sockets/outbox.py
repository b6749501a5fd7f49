"""What waits to be written to one peer: messages coalesced into frames, and bounded. No I/O happens here.

Consecutive publications and runs become one batch. So do consecutive notifications of the same subscriptions, forwarded
or stamped publications that share all but the event, and adjacent confirmed ranges. Order is kept, with one exception:
a `Confirm` or `Passed` may move behind events (a late one says less, and nothing false), so that a peer that both sends
and receives events still gets batches.

Events are encoded into the outgoing buffer by the end of the turn in which they arrived. Until then they are views of
what was read; a view kept longer would pin the whole read buffer for one small event. A large encoding that the
protocol keeps anyway (`Policy.lossless`) is not copied: all sessions that send it share it, each with its own frame.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

import msgspec
from msgspec import Raw

from tidings.core.events.event import Publication
from tidings.core.events.run import MAX_RUN_BYTES, Run, Stretch
from tidings.core.messages import Confirm, Dropped, Message, Notify
from tidings.core.overlay.epidemic.messages import Carried, Fragment
from tidings.core.overlay.guaranteed.messages import Forward, Passed, Relayed, Stamped
from tidings.core.wire.codec import (
    CarriedEvent,
    ForwardBatch,
    NotificationBatch,
    PublicationBatch,
    RelayedBody,
    StampedBatch,
    batch_of,
    encode,
)
from tidings.core.wire.frames import HEADER_BYTES

DEFAULT_LIMIT_BYTES = 16 * 1024 * 1024
BATCH_BYTES = MAX_RUN_BYTES
"""A batch is closed at this size, for the same reason as a run. No event is shorter than 12 bytes, so a batch stays
within MAX_EVENTS_PER_FRAME. A larger event, or a full run, travels alone."""
STREAM_CHUNK_BYTES = 256 * 1024
"""How much is passed to the transport at once."""
SHARED_BYTES = 8 * 1024
"""Encodings of this size or more are shared: below it, copying costs less than one more piece to write."""
DATAGRAM_EVENT_BYTES = 60_000
DATAGRAM_NAMES_BYTES = 5_000
"""How much the subscription names of one batch of notifications may take, besides its events."""
DATAGRAM_MAX_BYTES = 65_507
"""The largest payload of a UDP datagram over IPv4."""
MAX_PASSED_RANGES = 4_096
MAX_UNHURRIED = 1_024

Shared = tuple[object, ...] | None
"""What the events of one batch have in common: the subscriptions of notifications (and how they were recovered, if they
were), or everything of a forwarded or stamped publication but its event. None: plain publications."""

Chunk = bytes | bytearray | memoryview
_Batch = PublicationBatch | NotificationBatch | ForwardBatch | StampedBatch
_WRAPPED = (Carried, Relayed)
"""They travel in other messages."""
_NIL = 0xC0
_PLACE = Raw(bytes((_NIL,)))
"""A placeholder for a shared encoding. At most a string follows it, which cannot contain this byte."""

_encoder = msgspec.msgpack.Encoder()
_pack_into = struct.Struct(">I").pack_into


class Recovered(NamedTuple):
    """What recovered notifications share; it never equals a plain tuple of subscriptions."""

    subscriptions: tuple[str, ...]
    by: str


class Policy(NamedTuple):
    """What a session may drop when its peer is too slow."""

    limit_bytes: int = DEFAULT_LIMIT_BYTES
    drops_publications: bool = True
    drops_notifications: bool = True
    reports_drops: bool = True
    """Send the peer a `Dropped` in place of the missing events."""
    on_unsent: Callable[[Stretch, str], None] | None = None
    """Called with each dropped publication, and the reason."""

    @property
    def lossless(self) -> bool:
        """True if nothing is dropped: the protocol's windows bound what waits, not this buffer."""
        return not self.drops_publications and not self.drops_notifications


class Outbox:
    """Coalesces and drops messages; subclasses store the encoded bodies."""

    def __init__(self, policy: Policy = Policy()) -> None:  # noqa: B008 - immutable
        self.policy = policy
        self.chunks: deque[Chunk] = deque()
        self.waiting_bytes = 0
        """The bytes in `chunks`."""
        self.on_waiting: Callable[[], None] = lambda: None
        """Called at the first message of a turn; `finish_turn` ends the turn."""
        self.on_late: Callable[[], None] = lambda: None
        """Called when a confirmation is kept back, which must leave some time (`release`)."""
        self.dropped = 0
        """Events dropped since the start."""
        self.taken_bytes = 0
        """Bytes passed to the transport since the start."""
        self.sent_events = 0
        """Events encoded since the start; the last ones may still wait."""
        self.unreported = 0
        """Dropped events that the peer has not been told of."""
        self._in_turn = False
        self._shared: Shared = None
        """What the events of the open batch share."""
        self._first: Forward | Stamped | None = None
        """The first message of an open batch of this kind."""
        self._raws: list[Raw] = []
        self._raws_events = 0
        self._raws_bytes = 0
        self._room_bytes = -1
        """The open batch may grow to this size; -1 while none is open."""
        self._confirm: Confirm | None = None
        self._confirmed_to = -1
        """The last number of the open confirmation so far."""
        self._is_kept_back = False
        """The open confirmation stays open after the turn: nobody waits for it, and more will join it."""
        self._unhurried: set[int] = set()
        """Publications of the peer for whose confirmation nobody waits."""
        self._passed: list[tuple[int, int]] = []
        """Ranges of numbers for the next `Passed`."""

    @property
    def size_bytes(self) -> int:
        return self.waiting_bytes + self._raws_bytes

    @property
    def overfull(self) -> bool:
        """True if more waits than droppable events can cause: the peer does not read at all."""
        return self.waiting_bytes > 2 * self.policy.limit_bytes

    def add(self, message: Message) -> None:
        kind = message.__class__
        first: Forward | Stamped | None = None
        if kind is Notify:
            publication: Stretch = message.stretch  # type: ignore[union-attr]
            shared: Shared = message.subscriptions  # type: ignore[union-attr]
            if message.by:  # type: ignore[union-attr]
                shared = Recovered(message.subscriptions, message.by)  # type: ignore[union-attr]
        elif kind is Publication or kind is Run:
            publication, shared = message, None  # type: ignore[assignment]
        elif kind is Forward or kind is Stamped:
            first = message  # type: ignore[assignment]
            assert first is not None
            publication, shared = first.stretch, _shared_by(first)
        else:
            self._add_other(message)
            return
        filled_bytes = self._raws_bytes + publication.size_bytes
        if filled_bytes <= self._room_bytes and shared == self._shared:
            self._raws.append(publication.raw)
            self._raws_events += publication.count
            self._raws_bytes = filled_bytes
        else:
            self._add_to_new_batch(publication, shared, first)

    def _add_other(self, message: Message) -> None:
        kind = message.__class__
        if kind is Confirm:
            self._add_confirm(message)  # type: ignore[arg-type]
        elif kind is Passed:
            self._add_passed(message)  # type: ignore[arg-type]
        else:
            self._close_all()
            self._store(_body(message) if isinstance(message, _WRAPPED) else message)
            if isinstance(message, Carried):
                self.sent_events += message.count
            self._begin_turn()

    def begin_turn(self) -> None:
        """Begin a turn that the caller ends by itself, in place of `on_waiting`."""
        self._in_turn = True

    def finish_turn(self) -> None:
        """Encode what is still open, so that nothing refers to this turn's read buffer any more."""
        self._in_turn = False
        if self._raws:
            self._close_batch()
        if self._confirm is not None and not self._is_kept_back:
            self._close_confirm(self._confirm)
        if self._passed:
            self._close_passed()

    def confirm_late(self, sequence: int) -> None:
        """Nobody will wait for the confirmation of this publication: it may be kept back until `release`."""
        if len(self._unhurried) < MAX_UNHURRIED:
            self._unhurried.add(sequence)

    def release(self) -> bool:
        """Let a confirmation that is kept back leave with what is sent next; return False if none is."""
        was_kept_back, self._is_kept_back = self._is_kept_back, False
        return was_kept_back

    def take(self) -> list[Chunk]:
        """Return the next chunks to write, about STREAM_CHUNK_BYTES together; empty if nothing waits. The report of
        drops follows the last one."""
        if not self.chunks and self.unreported:
            self._report_drops()
        taken: list[Chunk] = []
        size_bytes = 0
        while self.chunks and size_bytes < STREAM_CHUNK_BYTES:
            chunk = self.chunks.popleft()
            taken.append(chunk)
            size_bytes += len(chunk)
        self.waiting_bytes -= size_bytes
        self.taken_bytes += size_bytes
        return taken

    def _add_to_new_batch(
        self, publication: Stretch, shared: Shared, first: Forward | Stamped | None = None
    ) -> None:
        """Start a new batch. Limits are checked here only, once per batch."""
        if self._raws:
            self._close_batch()
        if self.waiting_bytes >= self.policy.limit_bytes and self._drop(publication, shared):
            return
        if self.unreported:
            self._report_drops()
        self._shared, self._first = shared, first
        self._raws.append(publication.raw)
        self._raws_events = publication.count
        self._raws_bytes = publication.size_bytes
        self._room_bytes = BATCH_BYTES
        self._begin_turn()

    def _drop(self, publication: Stretch, shared: Shared) -> bool:
        """Drop the event because the buffer is full, if that is allowed; return True if it was."""
        policy = self.policy
        if not (policy.drops_publications if shared is None else policy.drops_notifications):
            return False
        self._count_drop(publication, f"the peer is too slow: {self.waiting_bytes} bytes already wait for it")
        return True

    def _count_drop(self, publication: Stretch, reason: str) -> None:
        self.dropped += publication.count
        if self.policy.reports_drops:
            self.unreported += publication.count
        self._begin_turn()
        if self.policy.on_unsent is not None:
            self.policy.on_unsent(publication, reason)

    def _report_drops(self) -> None:
        count, self.unreported = self.unreported, 0
        if self._raws:
            self._close_batch()
        self._store(Dropped(count))

    def _add_confirm(self, confirm: Confirm) -> None:
        late = confirm.first == confirm.last and confirm.first in self._unhurried
        if late:
            self._unhurried.discard(confirm.first)
        held = self._confirm
        if (
            held is None
            or confirm.first != self._confirmed_to + 1
            or confirm.incarnation != held.incarnation
            or confirm.kept != held.kept
        ):
            if held is not None:
                self._close_all()  # events that were added before the held one leave before it
            self._confirm, self._is_kept_back = confirm, late
        self._confirmed_to = confirm.last
        if late:
            self.on_late()
        else:
            self._is_kept_back = False
            self._begin_turn()

    def _add_passed(self, passed: Passed) -> None:
        if len(self._passed) >= MAX_PASSED_RANGES:
            self._close_all()
        for first, last in passed.ranges:
            if self._passed and self._passed[-1][1] + 1 == first:
                self._passed[-1] = (self._passed[-1][0], last)
            else:
                self._passed.append((first, last))
        self._begin_turn()

    def _begin_turn(self) -> None:
        if not self._in_turn:
            self._in_turn = True
            self.on_waiting()

    def _close_all(self) -> None:
        if self._raws:
            self._close_batch()
        if self._confirm is not None:
            self._close_confirm(self._confirm)
        if self._passed:
            self._close_passed()

    def _close_passed(self) -> None:
        passed, self._passed = self._passed, []
        self._store(Passed(tuple(passed)))

    def _close_batch(self) -> None:
        raws, shared, first = self._raws, self._shared, self._first
        self.sent_events += self._raws_events
        self._raws = []
        self._raws_bytes = 0
        self._room_bytes = -1
        self._first = None
        if first is not None:
            self._store_batch(batch_of(first, raws))
        elif shared is None:
            self._store_batch(PublicationBatch(raws))
        elif isinstance(shared, Recovered):
            self._store_batch(NotificationBatch(shared.subscriptions, raws, shared.by))
        else:
            self._store_batch(NotificationBatch(shared, raws))  # type: ignore[arg-type]

    def _close_confirm(self, held: Confirm) -> None:
        self._confirm, self._is_kept_back = None, False
        self._store(Confirm(held.incarnation, held.first, self._confirmed_to, held.kept))

    def _store_batch(self, body: _Batch) -> None:
        self._store(body)

    def _store(self, body: object) -> None:
        raise NotImplementedError


class StreamOutbox(Outbox):
    """Stores frames one after the other, gathered into chunks."""

    def _store_batch(self, body: _Batch) -> None:
        events = body.events
        if len(events) == 1 and len(shared := memoryview(events[0])) >= SHARED_BYTES and self.policy.lossless:
            self._store_around(shared, body)
        else:
            self._store(body)

    def _store(self, body: object) -> None:
        chunk = self.chunks[-1] if self.chunks else None
        if not isinstance(chunk, bytearray) or len(chunk) >= STREAM_CHUNK_BYTES:
            chunk = bytearray()
            self.chunks.append(chunk)
        start = len(chunk)
        chunk += bytes(HEADER_BYTES)
        _encoder.encode_into(body, chunk, -1)
        size_bytes = len(chunk) - start
        _pack_into(chunk, start, size_bytes - HEADER_BYTES)
        self.waiting_bytes += size_bytes

    def _store_around(self, shared: memoryview, body: _Batch) -> None:
        """Store a frame around a single event or run whose encoding other sessions share."""
        body.events = [_PLACE]
        around = _encoder.encode(body)
        place = around.rindex(_NIL)
        size_bytes = len(around) - 1 + len(shared)
        self.chunks.append(size_bytes.to_bytes(HEADER_BYTES, "big") + around[:place])
        self.chunks.append(shared)
        if around[place + 1 :]:
            self.chunks.append(bytearray(around[place + 1 :]))
        self.waiting_bytes += HEADER_BYTES + size_bytes


class DatagramOutbox(Outbox):
    """Stores one body per datagram, without a length."""

    def __init__(self, policy: Policy = Policy()) -> None:  # noqa: B008 - immutable
        super().__init__(policy)
        self.oversize = 0
        """Bodies dropped because they do not fit into a datagram."""

    def _add_to_new_batch(
        self, publication: Stretch, shared: Shared, first: Forward | Stamped | None = None
    ) -> None:
        size_bytes = publication.size_bytes
        if size_bytes > DATAGRAM_EVENT_BYTES:
            self._count_drop(
                publication, f"the event has {size_bytes} bytes; UDP carries at most {DATAGRAM_EVENT_BYTES}"
            )
            return
        if shared is None or first is not None:
            super()._add_to_new_batch(publication, shared, first)
            return
        for group in _groups(shared):
            super()._add_to_new_batch(publication, group)

    def _add_other(self, message: Message) -> None:
        """Drop events and blocks that gossip repairs if too much waits."""
        if isinstance(message, Carried | Fragment) and self.waiting_bytes >= self.policy.limit_bytes:
            self.dropped += message.count if isinstance(message, Carried) else 1
        else:
            super()._add_other(message)

    def _store(self, body: object) -> None:
        datagram = _encoder.encode(body)
        if len(datagram) > DATAGRAM_MAX_BYTES:
            self.oversize += 1
            return
        self.chunks.append(datagram)
        self.waiting_bytes += len(datagram)


def _shared_by(message: Forward | Stamped) -> Shared:
    if isinstance(message, Forward):
        return message.origin, message.label, message.generation, message.stamp, message.excluded
    return message.generation, message.stamp


def _body(message: Carried | Relayed) -> object:
    """Return the body as it travels: events and messages inside it are already encoded."""
    if isinstance(message, Carried):
        header = (message.origin, message.numbers, message.route, message.by)
        return CarriedEvent(*header, message.stretch.raw)
    return RelayedBody(message.peer, message.serial, encode(message.message))


def _groups(shared: tuple[object, ...]) -> list[tuple[object, ...]]:
    """Split what notifications share so that the names leave room for the largest event; usually it is one group."""
    if isinstance(shared, Recovered):
        return [Recovered(group, shared.by) for group in _name_groups(shared.subscriptions)]
    return list(_name_groups(shared))  # type: ignore[arg-type]


def _name_groups(subscriptions: tuple[str, ...]) -> list[tuple[str, ...]]:
    if (
        len(subscriptions) == 1
        or sum(len(name.encode()) + 3 for name in subscriptions) <= DATAGRAM_NAMES_BYTES
    ):
        return [subscriptions]
    half = len(subscriptions) // 2
    return _name_groups(subscriptions[:half]) + _name_groups(subscriptions[half:])
