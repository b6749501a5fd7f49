"""Bookmarks: how far the ordered subscriptions of a client have come, and what others had become that changed, kept by
its broker for the client's next life.

To a broker they are bytes. A client that lasts sends one before it says that it is done with something, on the same
connection: so what the broker forgets is always covered by a bookmark that it has on disk, whoever crashes. One that
names more than the broker was told to be done is harmless: the next life is done at once with what comes again.

    client                                                broker
    Bookmark(state), Notified(done)          ->           on disk, forgets what is done
    a new life: Attach                       ->
                                             <-           Bookmark(state), Attached, then what is not done
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import Protocol

import msgspec

from tidings.core.errors import StoreCorrupt, StoreError
from tidings.core.facts import BookmarkIsKept, BookmarksKnown
from tidings.core.kernel import Part, Port
from tidings.core.overlay.guaranteed.messages import BookmarkKept, KeepBookmark
from tidings.core.store import Store

TABLE = "bookmarks"
Send = Callable[[KeepBookmark], None]
Emit = Callable[[object], None]


class EndEarlier(Protocol):
    def __call__(self, subscription_id: str, *, drain: bool = False) -> None: ...


_encode_key = msgspec.msgpack.Encoder().encode
_decode_key = msgspec.msgpack.Decoder(tuple[str, str]).decode


class KeptBookmarks(Part):
    """The broker's half."""

    name = "bookmarks"
    handles = {KeepBookmark: "on_bookmark"}

    def __init__(self, port: Port, store: Store) -> None:
        super().__init__(port)
        self._store = store
        self._kept: dict[str, dict[str, bytes]] = {}
        """Client -> subscription -> state."""
        self._unwritten: dict[str, dict[str, KeepBookmark]] = {}
        """What there was no room for."""
        for key, state in store.read(TABLE):
            try:
                client, subscription = _decode_key(key)
            except msgspec.MsgspecError as error:
                raise StoreCorrupt(f"the bookmark {key!r} does not decode: {error}") from None
            self._kept.setdefault(client, {})[subscription] = state

    @property
    def clients(self) -> list[str]:
        return list(self._kept)

    def has(self, client: str) -> bool:
        return client in self._kept

    def of(self, client: str) -> Iterator[KeepBookmark]:
        for subscription, state in self._kept.get(client, {}).items():
            yield KeepBookmark(subscription, state)

    def on_bookmark(self, sender: str, message: KeepBookmark) -> None:
        self._unwritten.setdefault(sender, {})[message.subscription] = message
        self.write(sender)

    def write(self, client: str) -> bool:
        """False: there is no room for what the client said last, so it is not done with anything yet."""
        waiting = self._unwritten.get(client)
        if waiting is None:
            return True
        for subscription, message in list(waiting.items()):
            try:
                self._write(client, subscription, message.state)
            except StoreError:
                return False
            del waiting[subscription]
            if message.number:
                self.port.send(client, BookmarkKept(subscription, message.number))
        del self._unwritten[client]
        return True

    def _write(self, client: str, subscription: str, state: bytes) -> None:
        of_client = self._kept.get(client, {})
        if not state and subscription not in of_client:
            return
        self._store.write([(TABLE, _encode_key((client, subscription)), state or None)])
        if state:
            self._kept.setdefault(client, {})[subscription] = state
        else:
            del of_client[subscription]
            if not of_client:
                del self._kept[client]

    def forget(self, client: str) -> None:
        """Nobody is waited for any more under that name."""
        self._unwritten.pop(client, None)
        with suppress(StoreError):  # then they are found again at the next start, and forgotten a day later
            for subscription in list(self._kept.get(client, ())):
                self._write(client, subscription, b"")

    def on_link_down(self, peer: str) -> None:
        self._unwritten.pop(peer, None)


class LeftBookmarks:
    """The client's half: what an earlier life has left at the broker, and what this one leaves there."""

    def __init__(self, send: Send, emit: Emit, end: EndEarlier) -> None:
        self.end = end
        """A subscription of an earlier life is not wanted any more; `drain`: what is on its way for it is."""
        self.known = False
        """The broker has said what it has."""
        self._send = send
        self._emit = emit
        self._found: dict[str, bytes] = {}
        self._discarded: set[str] = set()
        """Subscriptions of an earlier life for which something came that nobody wanted to have."""
        self._makers: dict[str, Callable[[], bytes]] = {}
        self._told: dict[str, bytes] = {}
        """On this connection."""
        self._asked: dict[str, int] = {}
        """Subscription -> number of the last one of which it wants to hear that it is kept."""

    # --- Of the earlier life

    def on_bookmark(self, message: KeepBookmark) -> None:
        if not self.known:
            self._found[message.subscription] = message.state

    def attached(self) -> None:
        if not self.known:
            self.known = True
            self._emit(BookmarksKnown())

    def discard(self, subscription: str) -> None:
        if self._found:
            self._discarded.add(subscription)

    def take(self, subscription: str) -> bytes | None:
        """Of an earlier life's subscription; None: there was none, or it ended."""
        return self._found.pop(subscription, None)

    def has_discarded(self, subscriptions: Iterable[str]) -> bool:
        """Something that came for one of these is gone for good."""
        return not self._discarded.isdisjoint(subscriptions)

    # --- Of this one

    def keep(self, subscription: str, make: Callable[[], bytes]) -> None:
        """From now on the broker is told, whenever something is done, how far the subscription has come."""
        self._makers[subscription] = make

    def tell(self) -> None:
        for subscription, make in self._makers.items():
            state = make()
            if state != self._told.get(subscription):
                self._told[subscription] = state
                self._send(KeepBookmark(subscription, state))

    def ask(self, subscription: str) -> int:
        """Tell it now; `BookmarkIsKept` with the number that is returned says that it outlives us."""
        number = self._asked[subscription] = self._asked.get(subscription, 0) + 1
        self._send_asked(subscription)
        return number

    def _send_asked(self, subscription: str) -> None:
        state = self._told[subscription] = self._makers[subscription]()
        self._send(KeepBookmark(subscription, state, self._asked[subscription]))

    def on_kept(self, message: BookmarkKept) -> None:
        self._emit(BookmarkIsKept(message.subscription, message.number))

    def forget(self, subscription: str) -> None:
        """There is nothing that a next life could resume."""
        self._makers.pop(subscription, None)
        self._told.pop(subscription, None)
        self._send(KeepBookmark(subscription, b""))

    def link_up(self) -> None:
        """Another connection, or another broker: it may know nothing of what the one before was told."""
        self._told.clear()
        for subscription in self._makers:
            if subscription in self._asked:
                self._send_asked(subscription)
        self.tell()
