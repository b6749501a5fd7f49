"""What a broker asks the homes of shares elsewhere: whether anybody is attached there."""

from __future__ import annotations

import pytest

from tidings.core.overlay.guaranteed import attendance
from tidings.core.overlay.guaranteed.attendance import ASKER, PATIENCE_NS, Attendance
from tidings.core.overlay.guaranteed.far_links import FarMessage
from tidings.core.overlay.guaranteed.former_home import Place
from tidings.core.overlay.guaranteed.share_messages import ShareAside, ShareAsideRequest
from tidings.core.overlay.labels import Label

HOME, OTHER = Place("b1", (0,)), Place("b2", (1,))


class Bench:
    """Links that a test takes up and down."""

    def __init__(self, *up: str) -> None:
        self.up = set(up)
        self.opened: list[str] = []
        self.sent: list[tuple[str, str, str]] = []
        """(broker, asker, share)"""
        self.now = 0
        self.told: list[str] = []
        self.attendance = Attendance(self, lambda: self.now)  # type: ignore[arg-type]

    def open(self, broker: str, label: Label) -> None:
        self.opened.append(broker)

    def is_up(self, broker: str) -> bool:
        return broker in self.up

    def send(self, broker: str, client: str, message: FarMessage) -> None:
        assert isinstance(message, ShareAsideRequest)
        assert not message.release and not message.drop
        self.sent.append((broker, client, message.name))

    def ask(self, who: str, **homes: Place) -> None:
        self.attendance.ask(homes, lambda: self.told.append(who))

    def answer(self, *, attended: bool = False, reason: str = "", index: int = -1) -> None:
        _, asker, name = self.sent[index]
        self.attendance.heard(asker, ShareAside(name, reason=reason, attended=attended))


def test_without_shares_elsewhere_nobody_is_asked() -> None:
    bench = Bench()
    bench.ask("a")
    assert (bench.told, bench.opened) == (["a"], [])


@pytest.mark.parametrize(
    ("attended", "reason", "told"), [(False, "", ["a"]), (True, "", []), (False, "no such share", [])]
)
def test_the_home_knows(attended: bool, reason: str, told: list[str]) -> None:
    bench = Bench("b1")
    bench.ask("a", jobs=HOME)
    assert bench.told == []
    bench.answer(attended=attended, reason=reason)
    assert bench.told == told
    bench.answer()
    assert bench.told == told, "an answer counts once"
    assert bench.attendance._questions == {}


def test_a_home_that_does_not_say_may_have_somebody() -> None:
    assert ShareAside("jobs").attended


def test_all_homes_must_say_so() -> None:
    bench = Bench("b1", "b2")
    bench.ask("a", jobs=HOME, work=OTHER)
    bench.answer(index=0)
    assert bench.told == []
    bench.answer(index=1)
    assert bench.told == ["a"]
    bench.ask("b", jobs=HOME, work=OTHER)
    bench.answer(index=2)
    bench.answer(index=3, attended=True)
    assert bench.told == ["a"]


def test_one_question_at_a_time_and_who_asks_meanwhile_gets_an_answer_of_its_own() -> None:
    bench = Bench("b1")
    for who in "abc":
        bench.ask(who, jobs=HOME)
    assert len(bench.sent) == 1
    bench.answer()
    assert (bench.told, len(bench.sent)) == (["a"], 2)
    bench.ask("d", jobs=HOME)
    bench.answer(index=0)
    assert bench.told == ["a"], "the answer to the first question"
    bench.answer(attended=True)
    assert (bench.told, len(bench.sent)) == (["a"], 3)
    bench.answer()
    assert (bench.told, len(bench.sent)) == (["a", "d"], 3)


def test_questions_wait_for_the_link() -> None:
    bench = Bench()
    bench.ask("a", jobs=HOME)
    bench.ask("b", jobs=HOME)
    assert (bench.sent, set(bench.opened)) == ([], {"b1"})
    bench.attendance.far_up("b2")
    assert bench.sent == []
    bench.up.add("b1")
    bench.attendance.far_up("b1")
    assert bench.sent == [("b1", f"{ASKER}1", "jobs")]
    bench.answer()
    assert bench.told == ["a", "b"]


@pytest.mark.parametrize("up", [[], ["b1"]])
def test_homes_that_cannot_be_reached_are_given_up(up: list[str]) -> None:
    bench = Bench(*up)
    bench.ask("a", jobs=HOME)
    bench.attendance.far_down("b2")
    bench.now = PATIENCE_NS
    bench.attendance.check()
    assert bench.attendance._questions
    bench.now += 1
    bench.attendance.check()
    assert not bench.attendance._questions
    bench.ask("b", jobs=HOME)
    bench.attendance.far_down("b1")
    assert not bench.attendance._questions
    bench.up.add("b1")
    bench.attendance.far_up("b1")
    assert bench.told == []
    bench.ask("c", jobs=HOME)
    bench.answer()
    assert bench.told == ["c"]


def test_after_a_move_only_the_new_home_counts() -> None:
    bench = Bench("b1", "b2")
    bench.ask("a", jobs=HOME)
    bench.ask("b", jobs=OTHER)
    bench.answer(index=0)
    assert bench.told == []
    bench.answer(index=1)
    assert bench.told == ["b"]


def test_what_waits_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attendance, "MAX_WAITING", 2)
    monkeypatch.setattr(attendance, "MAX_SHARES_ASKED", 2)
    bench = Bench("b1")
    bench.ask("many", one=HOME, two=HOME, three=HOME)
    assert bench.sent == []
    for who in "abcd":
        bench.ask(who, jobs=HOME)
    bench.answer()
    bench.answer()
    assert bench.told == ["a", "b", "c"]
    assert len(bench.sent) == 2
