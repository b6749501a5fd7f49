"""What a subscription needs to resume after a restart, as bytes that the broker keeps: the progress of an ordered one,
and the subscriptions in the service of an unordered one that has changed.

Numbers are done in the order of their turns. So one number per entry of the layout suffices: all up to it are done,
events as well as numbers without one (no-ops, headers).
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from contextlib import suppress

import msgspec
from msgspec import Struct, structs

from tidings.core.ordering.resuming import Fence, Resumed, Resumption
from tidings.core.overlay.guaranteed.bookmarks import LeftBookmarks
from tidings.core.overlay.guaranteed.messages import MAX_BOOKMARK_BYTES

MAX_OPEN = 64
"""How many no-ops per entry are remembered, the latest, in case their events still arrive."""
TOO_LARGE = "it had too many topics to resume"


class KeptEntry(Struct, frozen=True, array_like=True):
    """A joined entry, with what identifies its subscriptions in the service."""

    rank: int
    joined: int
    """How often the entry has been joined."""
    whole: int
    """The number of its subscription for events with bodies; 0: none, all events have them."""
    made: int
    """How many of these have been made."""
    done: Resumed


class Form(Struct, frozen=True, array_like=True):
    """One version of an unordered subscription: a subscription in the service."""

    number: int
    topics: tuple[str, ...]
    filter: str | None


class Forms(Struct, frozen=True):
    """The forms that an unordered subscription has in the service. (Not array_like, to tell it from a Bookmark.)"""

    made: int
    """How many have been made."""
    current: Form | None
    next: Form | None = None
    draining: tuple[Form, ...] = ()
    others: tuple[int, ...] = ()
    """The numbers of those that cannot resume."""

    def names(self, subscription_id: str) -> list[str]:
        """Return the names of its subscriptions in the service."""
        forms = (self.current, self.next, *self.draining)
        numbers = (*(form.number for form in forms if form is not None), *self.others)
        return [form_name(subscription_id, number) for number in numbers]


class Bookmark(Struct, frozen=True, array_like=True):
    """The progress of an ordered subscription, and its subscriptions in the service."""

    incarnation: int
    """That of the subscriber at the sequencers."""
    layout: int
    """The fingerprint of the layout that the ranks refer to."""
    topics: tuple[str, ...] = ()
    filter: str | None = None
    """Topics and filter when the subscription was last complete."""
    entries: tuple[KeptEntry, ...] = ()
    others: tuple[str, ...] = ()
    """Subscriptions in the service that cannot resume."""
    joined: tuple[tuple[int, int], ...] = ()
    """For entries that are not joined: rank, and how often it was joined."""
    ever: tuple[int, ...] = ()
    lineages: tuple[tuple[str, int], ...] = ()
    doubt: str = ""
    """Why a missing event may never arrive."""
    refusal: str = ""
    """Why the subscription cannot resume."""
    draining: tuple[str, ...] = ()
    """Replaced subscriptions in the service; something may be in flight for them alone."""

    def resumable(self, subscription_id: str) -> list[str]:
        names = (name for entry in self.entries for name in entry_names(subscription_id, entry))
        return [name for name in names if name is not None]

    def names(self, subscription_id: str) -> list[str]:
        """Return the names of its subscriptions in the service."""
        return [*self.others, *self.draining, *self.resumable(subscription_id)]

    def resumption(self) -> Resumption:
        topics = {entry.rank: entry.done for entry in self.entries}
        return Resumption(self.incarnation, self.ever, topics, self.lineages)


class Reached(Struct, frozen=True):
    """How far an application that keeps what it is shown (a recorder) knows that it has come.

    That is at least as far as the broker knows. It applies only to the subscriber of this incarnation.
    """

    incarnation: int
    done: Mapping[int, int]
    open: Mapping[int, tuple[int, ...]] = {}


class Progress:
    """Tracks which numbers of each joined entry are done."""

    def __init__(self, earlier: Progress | None = None) -> None:
        """Start empty, or as a copy of `earlier`."""
        self._done: dict[int, int] = {} if earlier is None else earlier._done.copy()
        self._open: dict[int, tuple[int, ...]] = {} if earlier is None else earlier._open.copy()
        """No-ops whose events may still arrive, the latest last."""
        self._fences: dict[int, Fence] = {} if earlier is None else earlier._fences.copy()
        """Rank -> fence, for entries of which no number is done since they were joined."""

    def begin(self, rank: int, start: Resumed) -> None:
        self._done[rank] = start.clock
        self._open[rank] = start.open
        if start.fence is not None:
            self._fences[rank] = start.fence

    def end(self, rank: int) -> None:
        self._done.pop(rank, None)
        self._open.pop(rank, None)
        self._fences.pop(rank, None)

    @property
    def ranks(self) -> Container[int]:
        """The joined entries."""
        return self._done

    def pass_by(self, rank: int, first: int, count: int = 1, *, no_op: bool) -> None:
        """Record that `count` numbers and all before them are done. A no-op's event may still arrive late."""
        done, last = self._done.get(rank), first + count - 1
        if done is None:
            return
        if last > done:
            self._done[rank] = last
            if self._fences:
                self._fences.pop(rank, None)
        open_ = self._open[rank]
        if no_op:
            new = (number for number in range(first, last + 1) if number not in open_)
            self._open[rank] = (*open_, *new)[-MAX_OPEN:]
        elif open_:
            self._open[rank] = tuple(number for number in open_ if not first <= number <= last)

    def copy(self) -> Progress:
        return Progress(self)

    def reached(self, incarnation: int) -> Reached:
        return Reached(incarnation, self._done, self._open)

    def of(self, rank: int) -> Resumed:
        return Resumed(self._done[rank], self._fences.get(rank), self._open[rank])


def advanced(kept: Bookmark, reached: Reached | None) -> Bookmark:
    """Return the bookmark, advanced by what the application knows."""
    if reached is None or reached.incarnation != kept.incarnation:
        return kept
    return structs.replace(kept, entries=tuple(_advance(entry, reached) for entry in kept.entries))


def _advance(entry: KeptEntry, reached: Reached) -> KeptEntry:
    number = reached.done.get(entry.rank, 0)
    if number <= entry.done.clock:
        return entry
    return structs.replace(entry, done=Resumed(number, None, reached.open.get(entry.rank, ())))


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Bookmark).decode
_decode_forms = msgspec.msgpack.Decoder(Forms).decode


def encode_bookmark(bookmark: Bookmark) -> bytes:
    """Encode a bookmark; one that is too large becomes a refusal to resume."""
    state = _encode(bookmark)
    if len(state) > MAX_BOOKMARK_BYTES:
        state = _encode(Bookmark(bookmark.incarnation, bookmark.layout, refusal=TOO_LARGE))
    return state


def encode_forms(forms: Forms) -> bytes:
    """Encode forms; of too large ones only the numbers are kept, so that a restarted client can end them."""
    state = _encode(forms)
    if len(state) > MAX_BOOKMARK_BYTES:
        every = (forms.current, forms.next, *forms.draining)
        state = _encode(
            Forms(forms.made, None, others=tuple(form.number for form in every if form is not None))
        )
    return state


def decode_bookmark(state: bytes) -> Bookmark | Forms:
    """Decode what the broker kept; invalid bytes become a bookmark with a refusal."""
    with suppress(msgspec.MsgspecError):
        return _decode_forms(state)
    try:
        return _decode(state)
    except msgspec.MsgspecError as error:
        return Bookmark(0, 0, refusal=f"its bookmark is invalid: {error}")


def end_kept(bookmarks: LeftBookmarks, subscription_id: str, kept: Bookmark | Forms) -> None:
    """End what an earlier run has left: it is of no use to this one."""
    for name in kept.names(subscription_id):
        bookmarks.end(name)
    bookmarks.forget(subscription_id)


def entry_names(subscription_id: str, entry: KeptEntry) -> tuple[str, str | None]:
    """Return the names of its subscriptions in the service: for all numbers, and for events with bodies."""
    numbers = numbers_name(subscription_id, entry.rank, entry.joined)
    return numbers, whole_name(numbers, entry.whole) if entry.whole else None


def form_name(subscription_id: str, number: int) -> str:
    return subscription_id if number == 1 else f"{subscription_id}.{number}"


def numbers_name(subscription_id: str, rank: int, joined: int) -> str:
    return f"{subscription_id}@{rank}" + (f".{joined}" if joined > 1 else "")


def whole_name(numbers: str, made: int) -> str:
    return f"{numbers}?" + (str(made) if made > 1 else "")
