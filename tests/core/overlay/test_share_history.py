"""How a share takes in the history that its broker's archive has: step by step, with an archive made of numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from recording_port import RecordingPort
from tidings.core.errors import StoreError, SubscriptionRefused
from tidings.core.events.event import make_publication
from tidings.core.events.subscription import Interest
from tidings.core.facts import ShareFailed
from tidings.core.messages import Message, Subscribe, SubscribeAfterHistory, Unsubscribe
from tidings.core.overlay.guaranteed.held_share import HeldShare
from tidings.core.overlay.guaranteed.kept_share import KeptShare, stored_shares
from tidings.core.overlay.guaranteed.share_definition import ShareDefinition
from tidings.core.overlay.guaranteed.share_history import (
    HistoryPosition,
    HistoryRows,
    ShareHistories,
    history_row,
)
from tidings.core.overlay.guaranteed.share_messages import ShareAttach, StartItem
from tidings.core.store import MemoryStore

START: StartItem = ("earliest", 0)
DEFINITION = ShareDefinition("d", ("/t",), None, False, "", "fifo", 10**9, start=START)
STEP = ("share_histories", "step", "d")


class Home:
    """A broker's part, with an archive that has offsets up to `end` and answers when told to."""

    def __init__(self, end: int = 0) -> None:
        self.port = RecordingPort("b0")
        self.first, self.end, self.id = 0, end, "archive"
        self.received: list[Message] = []
        self.asked: list[tuple[HistoryPosition, Callable[[HistoryRows | str], None]]] = []
        self.passed = False
        self.refused = ""
        self.took = self.found = 0
        self.store = MemoryStore()
        self.parts = self.make()
        kept = KeptShare(DEFINITION, self.store)
        kept.create()
        kept.open()
        kept.keep_position(history_row(HistoryPosition("archive", 0)))
        self.enter(kept)

    def make(self) -> ShareHistories:
        home: Any = self
        parts = ShareHistories(self.port, home, home, lambda client, message: self.received.append(message))
        parts._fence = home
        parts.archive = home
        parts.listener = home
        return parts

    def enter(self, kept: KeptShare) -> None:
        self.held = HeldShare(DEFINITION, kept, lambda client, message: None, 0)
        self.parts.clear(self.held)
        self.parts.enter(self.held)

    def restart(self) -> None:
        (kept,) = stored_shares(self.store, self.port.now)
        self.received.clear()
        self.asked.clear()
        self.parts = self.make()
        self.enter(kept)

    # --- The fence, the broker's memory, and the listener

    def check(self, interest: Interest) -> None:
        if self.refused:
            raise SubscriptionRefused(self.refused)

    def raise_for(self, client: str, subscription: str) -> int:
        assert (client, subscription) == ("share:d", "history")
        return 17

    def is_passed(self, fence: int) -> bool:
        assert fence == 17
        return self.passed

    def recent_flows(self, limit: int) -> list[tuple[str, int, int]]:
        return [("p", 0, self.end), ("q", 1, 5)]

    def history_took(self, held: HeldShare) -> None:
        self.took += 1

    def history_found(self) -> None:
        self.found += 1

    # --- The archive

    def begin(self, start: StartItem, answer: Callable[[HistoryPosition | str], None]) -> None:
        answer(HistoryPosition("archive", 3) if start[1] < 10 else f"offset {start[1]} does not exist yet")

    def read(
        self, interest: Interest, position: HistoryPosition, answer: Callable[[HistoryRows | str], None]
    ) -> None:
        self.asked.append((position, answer))

    def answer(self, count: int = 10, **changes: Any) -> None:
        """Answer with some rows, and let the broker handle that."""
        (position, answer), *self.asked = self.asked
        stop = min(position.next + count, self.end if position.stop < 0 else position.stop)
        rows = tuple(make_publication("p", 0, at + 1, "/t", {}, b"", 1) for at in range(position.next, stop))
        found = HistoryRows(self.id, self.first, stop, self.end, rows)
        if self.first > position.next:
            found = found._replace(stretches=(), next=position.next)
        answer(found._replace(**changes))
        self.let("answers")

    def fail(self, reason: str) -> None:
        self.asked.pop()[1](reason)
        self.let("answers")

    def let(self, *name: str) -> None:
        self.parts.on_timer(("share_histories", *name))

    def step(self) -> None:
        self.let("step", "d")

    @property
    def told(self) -> list[str]:
        return [fact.reason for fact in self.port.facts if isinstance(fact, ShareFailed)]


def test_history_then_the_fence_then_it_is_over() -> None:
    home = Home(25)
    assert [type(each) for each in home.received] == [Unsubscribe]
    home.step()
    home.answer()  # now the end is known to be near
    assert [type(each) for each in home.received[1:]] == [Unsubscribe, SubscribeAfterHistory]
    home.answer()
    home.end = 27  # the archive goes on
    home.answer()
    assert home.held.kept.queue.count == 27
    assert not home.asked and home.port.timers[STEP] > 0, "it waits for the fence"
    home.end = 29
    home.passed = True
    home.step()
    position = home.asked[0][0]
    assert (position.next, position.stop) == (27, -1)
    home.answer(1)
    assert home.held.reads_history and home.asked[0][0].stop == 29
    home.end = 40  # this comes live, too
    home.answer()
    assert not home.held.reads_history and not home.asked
    assert home.held.kept.queue.count == 29
    assert home.held.kept.highest(("q", 1)) == 5, "what was there before is not live"
    home.restart()
    assert [type(each) for each in home.received] == [Subscribe]
    assert not home.held.reads_history and home.parts.status(home.held) == ""


def test_it_reads_on_only_while_little_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ShareHistories, "low_events", 15)
    monkeypatch.setattr(ShareHistories, "near_events", 5)
    home = Home(100)
    home.step()
    home.answer()
    home.answer()
    assert not home.asked and home.held.kept.queue.count == 20
    assert home.parts.status(home.held) == "its history from offset 20 on"
    home.held.kept.queue.join("m", 10)
    home.held.kept.due(0)
    home.parts.go_on(home.held)
    home.answer(78)
    assert home.held.kept.queue.count == 98 and not home.asked
    home.held.kept.queue.join("n", 80)
    home.held.kept.due(0)
    home.end = 150  # it has gone on meanwhile, so the end is far again
    home.parts.go_on(home.held)
    assert home.asked and not any(isinstance(each, SubscribeAfterHistory) for each in home.received)
    home.answer(0)
    assert not any(isinstance(each, SubscribeAfterHistory) for each in home.received)
    home.end = 103
    home.answer(0)
    assert isinstance(home.received[-1], SubscribeAfterHistory)
    home.end = 150
    home.answer(40)
    assert home.asked and home.held.kept.queue.waiting_count > 15, "near the end, it reads on"


def test_after_a_restart_it_goes_on_where_it_was() -> None:
    home = Home(25)
    home.step()
    home.answer()
    home.restart()  # its fence was not passed
    assert [type(each) for each in home.received] == [Unsubscribe]
    home.step()
    assert home.asked[0][0].next == 10
    home.passed = True
    home.answer()
    home.answer(1)
    assert home.asked[0][0].stop == 25
    home.restart()  # now it knows where its history ends, and what is live waits for it
    assert [type(each) for each in home.received] == [Subscribe]
    home.end = 30
    home.step()
    home.answer()
    assert home.held.kept.queue.count == 25 and not home.held.reads_history


def test_what_fails_is_reported_once_and_tried_again() -> None:
    home = Home(5)
    home.step()
    for _ in range(3):
        home.fail("the disk is broken")
        assert not home.asked
        home.parts.check()
    home.refused = "b0 is not recording its archive at the moment"
    home.answer(1)
    home.parts.check()
    assert home.told == ["its history waits: the disk is broken", f"its history waits: {home.refused}"]
    assert home.parts.status(home.held) == home.told[1]
    home.refused = ""
    home.passed = True
    home.parts.check()
    home.answer()
    assert home.held.kept.queue.count == 5 and not home.held.reads_history


def test_a_full_disk_takes_nothing_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    home = Home(20)
    home.passed = True
    home.step()

    def full(changes: object) -> None:
        raise StoreError("the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(home.store, "write", full)
        home.answer()
    assert home.told == ["the disk is full"] and home.held.kept.queue.count == 0
    home.parts.check()
    home.answer()
    home.answer()
    assert home.held.kept.queue.count == 20 and not home.held.reads_history


def test_what_left_the_archive_unread_is_told() -> None:
    home = Home(30)
    home.step()
    home.first = 12
    home.answer()
    assert home.told == [
        "offsets 0 to 11 left its archive before they were read: up to 12 events are missing"
    ]
    assert home.held.missed == 12 and home.asked[0][0].next == 12
    home.answer(5, gaps=((13, 4, "too slow"), (14, None, "restarted")))
    assert home.held.missed == 16
    assert home.told[1:] == [
        "its archive may miss 4 events before offset 13: too slow",
        "its archive may miss events before offset 14: restarted",
    ]
    home.passed = True
    home.answer(5)
    home.first, home.end = 40, 50
    home.answer()
    assert home.held.missed == 16 + 18
    assert (home.asked[0][0].next, home.asked[0][0].stop) == (40, 50)
    home.first = 60
    home.answer()
    assert home.held.missed == 16 + 28 and not home.held.reads_history


@pytest.mark.parametrize("settled", [False, True])
def test_another_archive_is_a_gap(settled: bool) -> None:
    home = Home(30)
    home.step()
    home.passed = settled
    home.answer()
    home.answer()
    home.id, home.first, home.end = "other", 0, 3
    home.answer(0, stretches=())
    assert home.told == ["its archive was replaced by another one: what it had from offset 20 on is missing"]
    assert home.held.reads_history != settled
    if not settled:
        assert (home.asked[0][0].archive, home.asked[0][0].next) == ("other", 0)
    else:
        assert home.held.missed == 10


def test_where_a_new_share_begins() -> None:
    home = Home()

    def begin(**options: Any) -> HistoryPosition | None:
        return home.parts.begin(ShareAttach("s", "new", ("/t",), None, **options))

    assert begin(start=START) is None
    assert begin(start=("offset", 77)) is None
    home.parts.listener = listener = Asking(begin)  # type: ignore[assignment]
    home.let("answers")
    assert listener.found == [
        HistoryPosition("archive", 3),
        "offset 77 does not exist yet",
    ]
    assert begin(start=START) is None, "next time it asks again"
    with pytest.raises(
        SubscriptionRefused, match="not available for durable subscriptions with order 'total'"
    ):
        begin(start=START, order="total")
    home.refused = "the archive of b0 has only /x: subscribe to no more"
    with pytest.raises(SubscriptionRefused, match="has only /x"):
        begin(start=START)
    home.parts.archive = None
    for start, text in ((START, "'earliest'"), (("offset", 0), "0"), (("time", 10**18), "datetime")):
        with pytest.raises(
            SubscriptionRefused, match=f"start={text} needs the archive of a guaranteed broker"
        ):
            begin(start=start)


class Asking:
    """Asks again when it may, as whoever waits does."""

    def __init__(self, begin: Callable[..., HistoryPosition | None]) -> None:
        self.begin = begin
        self.found: list[HistoryPosition | str | None] = []
        self.starts: list[StartItem] = [START, ("offset", 77)]

    def history_found(self) -> None:
        try:
            self.found.append(self.begin(start=self.starts.pop(0)))
        except SubscriptionRefused as error:
            self.found.append(str(error))
