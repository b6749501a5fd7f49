"""What a broker keeps of bookmarks, and what it does while there is no room for them."""

from __future__ import annotations

from collections.abc import Sequence

from recording_port import RecordingPort
from tidings.core.errors import StoreFull
from tidings.core.overlay.guaranteed.bookmarks import KeptBookmarks
from tidings.core.overlay.guaranteed.messages import BookmarkKept, KeepBookmark
from tidings.core.store import Change, MemoryStore


class FullStore(MemoryStore):
    full = False

    def write(self, changes: Sequence[Change]) -> None:
        if self.full:
            raise StoreFull("no room")
        super().write(changes)


def states(kept: KeptBookmarks, client: str) -> dict[str, bytes]:
    return {bookmark.subscription: bookmark.state for bookmark in kept.of(client)}


def test_a_bookmark_outlives_the_broker_until_it_is_forgotten() -> None:
    store = MemoryStore()
    kept = KeptBookmarks(RecordingPort(), store)
    for client, state in (("c", b"one"), ("c", b"two"), ("d", b"other")):
        kept.on_bookmark(client, KeepBookmark("s", state))
    again = KeptBookmarks(RecordingPort(), store)
    assert (states(again, "c"), states(again, "d")) == ({"s": b"two"}, {"s": b"other"})
    again.on_bookmark("c", KeepBookmark("s", b""))
    again.forget("d")
    assert not again.clients
    assert not KeptBookmarks(RecordingPort(), store).clients


def test_without_room_nothing_is_confirmed_and_nothing_counts_as_done() -> None:
    port, store = RecordingPort(), FullStore()
    kept = KeptBookmarks(port, store)
    kept.on_bookmark("c", KeepBookmark("s", b"one", 1))
    store.full = True
    kept.on_bookmark("c", KeepBookmark("s", b"two", 2))
    assert not kept.write("c")
    assert kept.write("d")
    assert states(kept, "c") == {"s": b"one"}
    assert port.sent == [("c", BookmarkKept("s", 1))]
    store.full = False
    assert kept.write("c")
    assert states(kept, "c") == {"s": b"two"}
    assert port.sent[1:] == [("c", BookmarkKept("s", 2))]
