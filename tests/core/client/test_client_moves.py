"""A client of a guaranteed broker that moves to another: what may have waited at the old one is reported."""

from __future__ import annotations

import pytest

from recording_port import RecordingPort
from tidings.core.client.reliable_session import ReliableClient, ReliableSession
from tidings.core.events.event import make_publication
from tidings.core.events.subscription import Subscription
from tidings.core.facts import BrokerChanged, Delivered, EventsGivenUp
from tidings.core.messages import Notify, Subscribed
from tidings.core.overlay.guaranteed.messages import Baseline, Missed

Shown = int | tuple[int, int]


class Mover:
    """Was shown events 1 to 3 of source p at broker b0, and is asking b1 for its subscription now."""

    def __init__(self) -> None:
        self.port = RecordingPort("s")
        self.client = ReliableClient(self.port, "b0", incarnation=1)
        self.client.start()
        self.broker = "b0"
        self.client.link_up("b0")
        self.client.subscribe(Subscription("s/1", ("/a",)))
        self.client.receive("b0", Subscribed("s/1"))
        for sequence in (1, 2, 3):
            self.notify("p", sequence)
        self.port.facts.clear()
        self.client.link_down("b0")
        self.client.moved("b1")
        self.broker = "b1"
        self.client.link_up("b1")

    def notify(self, source: str, sequence: int) -> None:
        publication = make_publication(source, 0, sequence, "/a", {}, b"", 0)
        self.client.receive(self.broker, Notify(("s/1",), publication))

    def baseline(self, **marks: int) -> None:
        found = tuple((source, 0, mark) for source, mark in marks.items())
        self.client.receive(self.broker, Baseline("s/1", found))

    def shown(self, of: str) -> list[Shown]:
        """Sequences of that source, and pairs of those that may be missing."""
        found: list[Shown] = []
        for fact in self.port.facts:
            if isinstance(fact, Delivered) and fact.stretch.source == of:
                found.append(fact.stretch.sequence)
            elif isinstance(fact, EventsGivenUp) and fact.source == of:
                found.append((fact.first, fact.last))
        return found


def test_whoever_cannot_go_on_after_a_loss_hears_of_the_move() -> None:
    assert any(isinstance(fact, BrokerChanged) for fact in Mover().port.facts)


def test_what_lies_between_two_brokers_is_reported_with_the_next_event() -> None:
    mover = Mover()
    mover.notify("p", 7)
    mover.notify("p", 9)
    assert mover.shown("p") == [(4, 6), 7, 9]


def test_a_source_that_goes_on_where_it_was_misses_nothing() -> None:
    mover = Mover()
    mover.notify("p", 4)
    assert mover.shown("p") == [4]


def test_what_the_new_broker_begins_behind_is_reported_at_once() -> None:
    mover = Mover()
    mover.baseline(p=5)
    assert mover.shown("p") == [(4, 5)]
    mover.notify("p", 5)
    mover.notify("p", 8)  # 6 and 7 were not for us: from the baseline on, all comes
    assert mover.shown("p") == [(4, 5), 8]


def test_a_baseline_of_what_was_shown_says_that_nothing_is_missing() -> None:
    mover = Mover()
    mover.baseline(p=3)
    mover.notify("p", 6)
    assert mover.shown("p") == [6]


@pytest.mark.parametrize(("mark", "missing"), [(None, (1, 7)), (5, (1, 5))])
def test_of_a_source_that_was_never_heard_of_all_before_may_be_missing(
    mark: int | None, missing: tuple[int, int]
) -> None:
    """It is reported only if it has something for us."""
    mover = Mover()
    if mark is not None:
        mover.baseline(q=mark)
    assert mover.shown("q") == []
    mover.notify("q", 8)
    mover.notify("q", 11)
    assert mover.shown("q") == [missing, 8, 11]


def test_a_source_that_begins_after_the_move_misses_nothing() -> None:
    mover = Mover()
    mover.notify("q", 1)
    mover.notify("q", 3)
    assert mover.shown("q") == [1, 3]


def test_only_what_a_broker_gave_up_is_missing_for_certain() -> None:
    mover = Mover()
    mover.baseline(p=5)
    mover.client.receive("b1", Missed(("s/1",), "p", 0, 6, 8))
    certain = [fact.certain for fact in mover.port.facts if isinstance(fact, EventsGivenUp)]
    assert certain == [False, True]


def test_a_baseline_that_is_only_taken_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """As it was: what the new broker's baseline passes over vanished."""

    def only_taken(self: ReliableSession, sender: str, message: Baseline) -> None:
        for source, incarnation, sequence in message.marks:
            self._shown_before(self._held[message.subscription], source, incarnation, sequence)

    monkeypatch.setattr(ReliableSession, "on_baseline", only_taken)
    with pytest.raises(AssertionError):
        test_what_the_new_broker_begins_behind_is_reported_at_once()
