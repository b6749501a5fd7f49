"""Bookmarks: the progress of a client's ordered subscriptions, and the current form of changed ones, which the client's
broker keeps across restarts of the client.

To a broker they are bytes. A lasting client sends a bookmark before it acknowledges anything, on the same connection.
So whatever the broker forgets is covered by a bookmark on its disk, whoever crashes. A bookmark may cover more than was
acknowledged: after a restart the client acknowledges the duplicates at once.

    client                                                broker
    KeepBookmark(state), Notified(done)      ->           writes it to disk, forgets what is done
    restarts: Attach                         ->
                                             <-           KeepBookmark(state), Attached, then what is not done
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
    """The broker's side."""

    name = "bookmarks"
    handles = {KeepBookmark: "on_bookmark"}

    def __init__(self, port: Port, store: Store) -> None:
        super().__init__(port)
        self._store = store
        self._kept: dict[str, dict[str, bytes]] = {}
        """Client -> subscription -> state."""
        self._unwritten: dict[str, dict[str, KeepBookmark]] = {}
        """Bookmarks for which the disk has no room."""
        for key, state in store.read(TABLE):
            try:
                client, subscription = _decode_key(key)
            except msgspec.MsgspecError as error:
                raise StoreCorrupt(f"bookmark {key!r} does not decode: {error}") from None
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
        """Write the client's bookmarks. Return False if the disk has no room: then the client is done with nothing."""
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
        """Remove the bookmarks of a client that is no longer expected back."""
        self._unwritten.pop(client, None)
        with suppress(StoreError):  # the next start finds them again, and forgets them a day later
            for subscription in list(self._kept.get(client, ())):
                self._write(client, subscription, b"")

    def on_link_down(self, peer: str) -> None:
        self._unwritten.pop(peer, None)


class LeftBookmarks:
    """The client's side: what earlier incarnations left at the broker, and what this one leaves there."""

    def __init__(self, send: Send, emit: Emit, end: EndEarlier) -> None:
        self.end = end
        """Ends a subscription of an earlier incarnation; with `drain`, after delivering what already waits for it."""
        self.known = False
        """The broker has sent what it has."""
        self._send = send
        self._emit = emit
        self._found: dict[str, bytes] = {}
        self._discarded: set[str] = set()
        """Earlier subscriptions for which events came that nobody took."""
        self._makers: dict[str, Callable[[], bytes]] = {}
        self._sent: dict[str, bytes] = {}
        """What was sent on this connection."""
        self._asked: dict[str, int] = {}
        """Subscription -> number of the last bookmark for which a BookmarkKept was requested."""

    # --- Earlier incarnations

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
        """Take the bookmark of an earlier subscription; None if there was none, or it ended."""
        return self._found.pop(subscription, None)

    @property
    def left(self) -> list[str]:
        """The earlier subscriptions whose bookmarks nobody has taken."""
        return list(self._found)

    def has_discarded(self, subscriptions: Iterable[str]) -> bool:
        """Return True if an event for one of these was discarded, and is lost."""
        return not self._discarded.isdisjoint(subscriptions)

    # --- This incarnation

    def keep(self, subscription: str, make: Callable[[], bytes]) -> None:
        """From now on send the broker the subscription's bookmark whenever it changed and something is done."""
        self._makers[subscription] = make

    def tell(self) -> None:
        for subscription, make in self._makers.items():
            state = make()
            if state != self._sent.get(subscription):
                self._sent[subscription] = state
                self._send(KeepBookmark(subscription, state))

    def ask(self, subscription: str) -> int:
        """Send the bookmark now and return its number. `BookmarkIsKept` with that number reports that it is on disk."""
        number = self._asked[subscription] = self._asked.get(subscription, 0) + 1
        self._send_asked(subscription)
        return number

    def _send_asked(self, subscription: str) -> None:
        state = self._sent[subscription] = self._makers[subscription]()
        self._send(KeepBookmark(subscription, state, self._asked[subscription]))

    def on_kept(self, message: BookmarkKept) -> None:
        self._emit(BookmarkIsKept(message.subscription, message.number))

    def forget(self, subscription: str) -> None:
        """Remove the bookmark: there is nothing to resume."""
        self._makers.pop(subscription, None)
        self._sent.pop(subscription, None)
        self._send(KeepBookmark(subscription, b""))

    def link_up(self) -> None:
        """Resend the bookmarks on a new connection: another broker may not know them."""
        self._sent.clear()
        for subscription in self._makers:
            if subscription in self._asked:
                self._send_asked(subscription)
        self.tell()
