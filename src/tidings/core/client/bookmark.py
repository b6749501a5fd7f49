"""What the next life of a subscription needs, as the bytes that the broker keeps: how far an ordered one has come, and
which subscriptions in the service one without an order has, once it has changed.

Numbers are done with in the order in which they had their turns. So per entry of the layout one number says which are:
all up to it, events as well as numbers without one (no-ops, headers).
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
"""No-ops of an entry that are remembered, the latest, in case their events come yet."""
TOO_LARGE = "it had too many topics to be resumed"


class KeptEntry(Struct, frozen=True, array_like=True):
    """An entry that was joined, with what its subscriptions in the service are called by."""

    rank: int
    joined: int
    """How often the entry was, so far."""
    whole: int
    """Which of the subscriptions for events as a whole it has; 0: none, all come so."""
    made: int
    """How many of these were made."""
    done: Resumed


class Form(Struct, frozen=True, array_like=True):
    """What a subscription without an order wants, or wanted: one in the service."""

    number: int
    topics: tuple[str, ...]
    filter: str | None


class Forms(Struct, frozen=True):
    """Those that a subscription without an order has in the service. (Not an array: so it is told from a Bookmark.)"""

    made: int
    """So many, so far."""
    current: Form | None
    next: Form | None = None
    draining: tuple[Form, ...] = ()
    others: tuple[int, ...] = ()
    """The numbers of those that cannot be resumed."""

    def names(self, subscription_id: str) -> list[str]:
        """Of its subscriptions in the service."""
        forms = (self.current, self.next, *self.draining)
        numbers = (*(form.number for form in forms if form is not None), *self.others)
        return [form_name(subscription_id, number) for number in numbers]


class Bookmark(Struct, frozen=True, array_like=True):
    incarnation: int
    """Of the subscriber at the sequencers."""
    layout: int
    """The fingerprint of that which the ranks are of."""
    topics: tuple[str, ...] = ()
    filter: str | None = None
    """What was wanted when the subscription was last complete."""
    entries: tuple[KeptEntry, ...] = ()
    others: tuple[str, ...] = ()
    """Subscriptions in the service of which nothing can be resumed."""
    joined: tuple[tuple[int, int], ...] = ()
    """Of the other entries: rank, and how often it was joined."""
    ever: tuple[int, ...] = ()
    lineages: tuple[tuple[str, int], ...] = ()
    doubt: str = ""
    """Why something that it waits for may never come."""
    refusal: str = ""
    """Why it cannot be resumed."""
    draining: tuple[str, ...] = ()
    """Subscriptions in the service that have successors; something may be on its way for them alone."""

    def resumable(self, subscription_id: str) -> list[str]:
        names = (name for entry in self.entries for name in entry_names(subscription_id, entry))
        return [name for name in names if name is not None]

    def names(self, subscription_id: str) -> list[str]:
        """Of its subscriptions in the service."""
        return [*self.others, *self.draining, *self.resumable(subscription_id)]

    def resumption(self) -> Resumption:
        topics = {entry.rank: entry.done for entry in self.entries}
        return Resumption(self.incarnation, self.ever, topics, self.lineages)


class Reached(Struct, frozen=True):
    """What an application itself knows of how far it has come, because it keeps what it is shown: a recorder.

    It may know more than the broker was told, and never less. It counts for the subscriber of that incarnation alone.
    """

    incarnation: int
    done: Mapping[int, int]
    open: Mapping[int, tuple[int, ...]] = {}


class Progress:
    """What is done of each entry that is joined."""

    def __init__(self, earlier: Progress | None = None) -> None:
        """As far as the earlier one has come by now."""
        self._done: dict[int, int] = {} if earlier is None else earlier._done.copy()
        self._open: dict[int, tuple[int, ...]] = {} if earlier is None else earlier._open.copy()
        """No-ops whose events may come yet, the latest last."""
        self._fences: dict[int, Fence] = {} if earlier is None else earlier._fences.copy()
        """Of entries of which nothing was done with since they were joined."""

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
        """The entries that are joined."""
        return self._done

    def pass_by(self, rank: int, first: int, count: int = 1, *, no_op: bool) -> None:
        """Done with so many numbers, and with all before them. A no-op's event that comes after all is shown late."""
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
    """With what the application knows better."""
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
    """One that is too large says so to the next life."""
    state = _encode(bookmark)
    if len(state) > MAX_BOOKMARK_BYTES:
        state = _encode(Bookmark(bookmark.incarnation, bookmark.layout, refusal=TOO_LARGE))
    return state


def encode_forms(forms: Forms) -> bytes:
    """Of what is too large the next life can only end what is left."""
    state = _encode(forms)
    if len(state) > MAX_BOOKMARK_BYTES:
        every = (forms.current, forms.next, *forms.draining)
        state = _encode(
            Forms(forms.made, None, others=tuple(form.number for form in every if form is not None))
        )
    return state


def decode_bookmark(state: bytes) -> Bookmark | Forms:
    """One that does not decode says so itself."""
    with suppress(msgspec.MsgspecError):
        return _decode_forms(state)
    try:
        return _decode(state)
    except msgspec.MsgspecError as error:
        return Bookmark(0, 0, refusal=f"what was kept of it does not decode: {error}")


def end_kept(bookmarks: LeftBookmarks, subscription_id: str, kept: Bookmark | Forms) -> None:
    """What an earlier life has left is of no use to this one."""
    for name in kept.names(subscription_id):
        bookmarks.end(name)
    bookmarks.forget(subscription_id)


def entry_names(subscription_id: str, entry: KeptEntry) -> tuple[str, str | None]:
    """Of its subscriptions in the service: that for all numbers, and that for events as a whole."""
    numbers = numbers_name(subscription_id, entry.rank, entry.joined)
    return numbers, whole_name(numbers, entry.whole) if entry.whole else None


def form_name(subscription_id: str, number: int) -> str:
    return subscription_id if number == 1 else f"{subscription_id}.{number}"


def numbers_name(subscription_id: str, rank: int, joined: int) -> str:
    return f"{subscription_id}@{rank}" + (f".{joined}" if joined > 1 else "")


def whole_name(numbers: str, made: int) -> str:
    return f"{numbers}?" + (str(made) if made > 1 else "")
