"""Reading a durable subscription by number: for readers that must be able to read a range again, such as Spark.

The home numbers the events of a durable subscription. A reader asks how far it may go, which counts as delivering what
comes before, and fetches events by their numbers, over any connection, as often as it likes, until it says that it is
done with everything before some number. Nothing is pushed.

A *reading* has an id that its reader made up and keeps with its position. Whoever resumes it gets the same events for
the same numbers, with the same attempts. A new reading begins at the lowest number that is not done; what went out
before goes out again, with a higher attempt. A reading is over when another one begins, or when somebody attaches who
is sent events, and may acknowledge what the reading would ask for again.

    invariant: done_below <= the reader's position <= reached
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from tidings.core.overlay.guaranteed.share_messages import (
    MAX_STRETCHES_READ,
    ShareAttach,
    ShareReach,
    ShareReached,
    ShareRead,
    ShareRows,
)

if TYPE_CHECKING:
    from tidings.core.overlay.guaranteed.kept_share import KeptShare

READ_BYTES = 512 * 1024
READ_NUMBERS = 65_536
"""An answer with events ends after this many bytes or numbers; the reader asks for the rest."""


class Reading(msgspec.Struct, array_like=True, frozen=True):
    id: int
    done_below: int
    """The reader is done with everything before this number."""
    reached: int
    """Everything that is not done before this number went out to it."""


decode_reading = msgspec.msgpack.Decoder(Reading).decode


def check(kept: KeptShare, message: ShareAttach) -> None:
    """Raise ValueError if the reading cannot begin, or cannot go on."""
    name, now = kept.definition.name, kept.reading
    if kept.definition.group:
        raise ValueError(f"{name!r} is a group: only a durable subscription is read by number")
    if now is not None and now.id == message.reading:
        return
    if message.resumes:
        raise ValueError(f"{name!r} was read further by somebody else, who began without this position")
    if now is not None and not message.takeover:
        raise ValueError(f"{name!r} belongs to another reader")


def start(kept: KeptShare, member: str, message: ShareAttach) -> None:
    """Attach a reader: it resumes its reading, or begins one."""
    kept.queue.hurry()  # only this client can have had them
    if kept.reading is not None and kept.reading.id == message.reading:
        kept.queue.claim(member, kept.reading.reached - 1)
        return
    first = kept.queue.first_waiting
    if first is None:
        first = kept.last + 1
    kept.set_reading(Reading(message.reading, first, first))


def reach(kept: KeptShare, member: str, message: ShareReach, now: int) -> ShareReached:
    """Take more events for the reader, and forget what it is done with."""
    reading = kept.reading
    assert reading is not None, "a reader is attached"
    position, name, end = message.position, kept.definition.name, kept.last + 1
    if max(message.done_below, position) > reading.reached:
        return _failed(message, f"the position is ahead of {name!r}, which was read up to {reading.reached}")
    if position and position < reading.done_below:
        done = reading.done_below
        return _failed(message, f"the position {position} is too old: all before {done} is acknowledged")
    done_below = max(reading.done_below, message.done_below)
    kept.finish_below(member, done_below)
    stop = position
    if position:
        stop = max(min(message.stop or end, end, position + message.count), position)
        kept.pull(member, stop, now)
    moved = Reading(reading.id, done_below, max(reading.reached, stop))
    if moved != reading:
        kept.set_reading(moved)
    return ShareReached(message.subscription, message.request, done_below, stop, end)


def _failed(message: ShareReach, reason: str) -> ShareReached:
    return ShareReached(message.subscription, message.request, reason=reason)


def read(kept: KeptShare, message: ShareRead) -> ShareRows:
    """Return events by their numbers, as many as fit into an answer."""
    reading, name = kept.reading, kept.definition.name
    if reading is None:
        reason = f"{name!r} is not read by number"
        return ShareRows(name, message.request, reason=reason, unread=True)
    if reading.id != message.reading:
        return ShareRows(name, message.request, reason=f"{name!r} belongs to another reader now")
    if message.first < reading.done_below and message.first < message.stop:
        reason = f"event {message.first} of {name!r} is acknowledged and no longer kept"
        return ShareRows(name, message.request, reason=reason)
    events: list[tuple[int, int, bytes]] = []
    size_bytes, following = 0, min(message.stop, message.first + READ_NUMBERS)
    for first, _, attempt, encoding in kept.read(message.first, following - 1):
        if events and (size_bytes + len(encoding) > READ_BYTES or len(events) == MAX_STRETCHES_READ):
            following = first
            break
        events.append((first, attempt, encoding))
        size_bytes += len(encoding)
    return ShareRows(name, message.request, following, tuple(events))
