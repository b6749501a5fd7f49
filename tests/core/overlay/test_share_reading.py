"""Reading by number against a model: a range is always the same, nothing is lost, and what comes again is marked."""

from __future__ import annotations

from collections.abc import Iterable
from random import Random
from typing import Any

import pytest
from msgspec import Raw

from breadth import few
from tidings.core.events.event import make_publication
from tidings.core.events.run import decode_stretch
from tidings.core.overlay.guaranteed.held_share import Client, HeldShare
from tidings.core.overlay.guaranteed.kept_share import KeptShare, stored_shares
from tidings.core.overlay.guaranteed.share_definition import ShareDefinition
from tidings.core.overlay.guaranteed.share_messages import (
    ShareAccepted,
    ShareAsideRequest,
    ShareAttach,
    ShareBack,
    ShareDone,
    ShareGiven,
    ShareMessage,
    ShareReach,
    ShareReached,
    ShareRead,
    ShareRefused,
    ShareRows,
)
from tidings.core.sharing.shared_queue import SharedQueue
from tidings.core.store import MemoryStore

DEFINITION = ShareDefinition("lake", ("/a",), None, False, "", "none", 1)
Row = tuple[int, int, int]
"""Number, attempt, sequence."""


class Home:
    """A broker's share, which may restart."""

    def __init__(self) -> None:
        self.store = MemoryStore()
        self.sent: list[ShareMessage] = []
        self.last = self.now = 0
        kept = KeptShare(DEFINITION, self.store)
        kept.create()
        kept.open()
        self.held = HeldShare(DEFINITION, kept, self._send, 0)

    def _send(self, client: Client, message: ShareMessage) -> None:
        self.sent.append(message)

    def restart(self) -> None:
        (kept,) = stored_shares(self.store, self.now)
        self.held = HeldShare(DEFINITION, kept, self._send, self.now)

    def take(self) -> None:
        self.last += 1
        self.held.kept.take(make_publication("p", 0, self.last, "/a", {}, b"", 1))
        self.held.give(self.now)

    def attach(self, client: str, **options: Any) -> ShareMessage:
        try:
            for holder in self.held.attach(client, ShareAttach("s", "lake", ("/a",), None, **options)):
                assert not self.held.has(holder)
        except ValueError as error:
            return ShareRefused("s", str(error))
        self.held.admit(self.now)
        return next(one for one in reversed(self.sent) if isinstance(one, ShareAccepted))

    def leave(self, client: str) -> None:
        self.held.remove((client, "s"), self.now)

    def reach(self, client: str, position: int = 0, **options: int) -> ShareReached:
        self.held.reach((client, "s"), ShareReach("s", 1, position, **options), self.now)
        answer = self.sent[-1]
        assert isinstance(answer, ShareReached)
        return answer

    def read(self, reading: int, first: int, stop: int) -> list[Row]:
        found: list[Row] = []
        while first < stop:
            rows = self.ask(reading, first, stop)
            assert not rows.reason, rows.reason
            for number, attempt, encoding in rows.events:
                stretch = decode_stretch(Raw(encoding))
                sequences = range(stretch.first, stretch.last + 1)
                found += [(number + at, attempt, sequence) for at, sequence in enumerate(sequences)]
            first = rows.next
        return found

    def ask(self, reading: int, first: int, stop: int) -> ShareRows:
        self.held.answer("worker", ShareRead("lake", 1, reading, first, stop), "b", 0)
        answer = self.sent[-1]
        assert isinstance(answer, ShareRows)
        return answer


def play(seed: int) -> None:
    """A driver that reads, reads again, acknowledges a batch late, dies with and without its position, while the home
    restarts."""
    random, home = Random(seed), Home()
    driver, reading, committed = "d0", 1, 0
    assert isinstance(home.attach(driver, reading=reading, takeover=True), ShareAccepted)
    position = begun = home.reach(driver).done_below
    batches: list[list[Row]] = []
    out: dict[int, int] = {}
    for step in range(60):
        match random.choice(["take", "take", "batch", "batch", "again", "restart", "move", "anew"]):
            case "take":
                home.take()
            case "batch":
                if batches:  # Spark commits the one before
                    committed = batches[-1][-1][0] + 1 if batches[-1] else committed
                    assert home.reach(driver, done_below=committed).done_below >= committed
                taken = home.reach(driver, position, count=random.randrange(1, 5))
                rows = home.read(reading, position, taken.stop)
                assert [row[0] for row in rows] == list(range(position, taken.stop))
                assert all(number == sequence for number, _, sequence in rows)
                for number, attempt, _ in rows:
                    assert attempt == out.get(number, 0) + 1
                batches.append(rows)
                position = taken.stop
            case "again" if batches and batches[-1]:
                assert home.read(reading, batches[-1][0][0], position) == batches[-1]
            case "restart" | "move" as how:
                if how == "restart":
                    home.restart()
                driver = f"d{step}"  # in another process, from the checkpoint
                answer = home.attach(driver, reading=reading, resumes=True, takeover=True)
                assert isinstance(answer, ShareAccepted)
                if batches and batches[-1]:
                    first = batches[-1][0][0]
                    assert home.reach(driver, first, count=position - first).stop == position
                    assert home.read(reading, first, position) == batches[-1]
            case "anew":
                out |= {number: attempt for rows in batches for number, attempt, _ in rows}
                old, reading, driver, batches = reading, reading + 1, f"d{step}", []
                assert isinstance(home.attach(driver, reading=reading, takeover=True), ShareAccepted)
                position = begun = home.reach(driver).done_below
                assert position == max(committed, 1)  # nothing is missing
                assert home.ask(old, begun, begun).reason == "'lake' belongs to another reader now"
                refused = home.attach("d", reading=old, resumes=True, takeover=True)
                assert isinstance(refused, ShareRefused) and "read further" in refused.reason


def play_all(seeds: Iterable[int]) -> None:
    for seed in seeds:
        play(seed)


@pytest.mark.parametrize("seed", few(range(200), 40))
def test_readings(seed: int) -> None:
    play(seed)


def test_a_reader_that_does_not_claim_what_went_out_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SharedQueue, "claim", lambda *_: None)
    with pytest.raises(AssertionError):
        play_all(range(40))


def test_a_program_and_a_reader_by_number() -> None:
    """One of them at a time; what the program acknowledged is not read, what it held comes marked."""
    home = Home()
    for _ in range(4):
        home.take()
    home.attach("program", max_unacked=3)
    given = home.sent[-1]
    assert isinstance(given, ShareGiven)
    refused = home.attach("d", reading=1, takeover=True)
    assert refused == ShareRefused("s", "'lake' is held by client program, which must leave first")
    home.held.finish(("program", "s"), ShareDone("s", ((2, 2),)).numbers)
    home.held.take_back(("program", "s"), ShareBack("s", 1, 10**12), home.now)
    home.leave("program")
    home.attach("d", reading=1, takeover=True)
    assert home.reach("d", 1, count=10).stop == 5
    assert home.read(1, 1, 5) == [(1, 2, 1), (3, 2, 3), (4, 1, 4)]
    refused = home.attach("program")
    assert isinstance(refused, ShareRefused) and refused.reason.startswith("'lake' is held by client d;")
    home.attach("program", takeover=True)
    assert home.ask(1, 1, 5).unread
    refused = home.attach("d", reading=1, resumes=True, takeover=True)
    assert isinstance(refused, ShareRefused)


def test_what_was_set_aside_is_not_read_and_not_released_meanwhile() -> None:
    home = Home()
    home.take()
    home.take()
    home.attach("program")
    home.held.take_back(("program", "s"), ShareBack("s", 1, aside=True), home.now)
    home.leave("program")
    home.attach("d", reading=1, takeover=True)
    assert home.reach("d").done_below == 2
    home.held.answer("any", ShareAsideRequest("lake", release=((1, 1),)), "b", 0)
    assert getattr(home.sent[-1], "reason", "").startswith("'lake' is read by number")
    home.held.answer("any", ShareAsideRequest("lake", drop=((1, 1),)), "b", 0)
    assert getattr(home.sent[-1], "changed", 0) == 1


def test_positions_that_cannot_be_true_are_refused() -> None:
    home = Home()
    for _ in range(3):
        home.take()
    home.attach("d", reading=1, takeover=True)
    assert home.reach("d", 1, count=2).stop == 3
    assert "is ahead of 'lake'" in home.reach("d", 4, count=1).reason
    assert "is ahead of 'lake'" in home.reach("d", done_below=4).reason
    home.reach("d", done_below=3)
    assert home.reach("d", 2, count=1).reason == "the position 2 is too old: all before 3 is acknowledged"
    assert home.ask(1, 2, 3).reason == "event 2 of 'lake' is acknowledged and no longer kept"
    home.held.reach(("nobody", "s"), ShareReach("s", 7, 1), 0)
    assert getattr(home.sent[-1], "request", 0) != 7


def test_a_reading_is_read_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidings.core.overlay.guaranteed.share_reading.READ_BYTES", 50)
    monkeypatch.setattr("tidings.core.overlay.guaranteed.share_reading.READ_NUMBERS", 7)
    home = Home()
    for _ in range(40):
        home.take()
    home.attach("d", reading=1, takeover=True)
    home.reach("d", 1, count=100, stop=31)
    assert [row[0] for row in home.read(1, 1, 31)] == list(range(1, 31))
    assert len(home.ask(1, 1, 31).events) < 7  # bytes; otherwise 7 numbers
