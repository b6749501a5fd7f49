"""Serving others: whatever a request names, the answers stay within the round's number and the budget of bytes."""

from __future__ import annotations

from typing import Any, cast

import pytest

from epidemic_network import NS_PER_MS, NS_PER_S, LoneBroker
from tidings.core.kernel import Port
from tidings.core.messages import Message
from tidings.core.overlay.epidemic.answers import Answers
from tidings.core.overlay.epidemic.assemblies import Assemblies
from tidings.core.overlay.epidemic.budget import Budget, data_bytes
from tidings.core.overlay.epidemic.messages import Ask, Carried, Fragment, Lost, Solicit
from tidings.core.overlay.epidemic.settings import RecoverySettings
from tidings.core.wire.codec import decode, encode

EVERYTHING = (0, 2**62)
BACKWARDS = (2**62, 0)


def lone(events: int, *, payload: bytes = b"", **changes: Any) -> LoneBroker:
    interval_ns = 200 * NS_PER_MS
    broker = LoneBroker(RecoverySettings(algorithm="subscriber-pull", interval_ns=interval_ns, **changes))
    broker.fill(events, payload=payload)
    return broker


def ask(*ranges: tuple[int, int], source: str = "p") -> Ask:
    return Ask(((source, 0, ranges),), (), "push")


def solicit(broker: LoneBroker, *ranges: tuple[int, int], origin: str = "far", **changes: Any) -> Solicit:
    lost: tuple[Lost, ...] = ((origin, broker.pattern, broker.ORIGIN_EPOCH, ranges),)
    return Solicit(
        **{"initiator": "far", "pattern": b"", "route": (), "lost": lost, "partial": (), "by": "x", **changes}
    )


def answered(broker: LoneBroker, to: str = "far") -> list[int]:
    return [
        sequence
        for peer, message in broker.port.sent
        if isinstance(message, Carried) and peer == to
        for sequence in range(message.stretch.first, message.stretch.last + 1)
    ]


# --- What is asked for is sent


def test_a_request_is_answered_from_the_cache() -> None:
    broker = lone(5)
    broker.receive("far", ask((2, 3), (5, 9)))
    assert answered(broker) == [2, 3, 5]
    broker.receive("n2", solicit(broker, (1, 2), initiator="n2"))
    assert answered(broker, "n2") == [1, 2]


def test_answers_go_to_the_initiator_however_the_request_came() -> None:
    broker = lone(3)
    broker.receive("n1", solicit(broker, (2, 2)))
    assert answered(broker, "far") == [2]
    assert answered(broker, "n1") == []


def test_answers_say_by_which_algorithm_they_were_asked_for() -> None:
    broker = lone(1)
    broker.receive("far", ask((1, 1)))
    ((_, message),) = broker.port.sent
    assert isinstance(message, Carried)
    assert (message.by, message.route) == ("push", ())


def test_only_the_blocks_that_lack_are_sent() -> None:
    broker = lone(1, payload=bytes(1_000), block_bytes=100)
    broker.receive("far", Ask((), (("p", 0, 1, ((0, 2, bytes([0b11111111])),)),), "push"))
    sent = [message for _, message in broker.port.sent]
    assert [message.index for message in sent if isinstance(message, Fragment)] == [8, 9]


# --- Absurd requests


@pytest.mark.parametrize("ranges", [(EVERYTHING,), (EVERYTHING,) * 3, ((0, 2**63 - 1), (5, 7), EVERYTHING)])
def test_a_request_for_everything_gets_the_answers_of_one_round(ranges: tuple[tuple[int, int], ...]) -> None:
    broker = lone(300, answers_per_round=50)
    broker.receive("far", ask(*ranges))
    broker.receive("far", solicit(broker, *ranges))
    assert answered(broker) == list(range(1, 51))
    assert broker.broker.gossip.answers.refused > 0
    broker.round()
    broker.port.now += NS_PER_S
    broker.receive("far", solicit(broker, *ranges))
    assert len(answered(broker)) == 100


@pytest.mark.parametrize("first_last", [BACKWARDS, (10**6, 10**6), (301, 2**62)])
def test_ranges_that_hold_nothing_get_nothing(first_last: tuple[int, int]) -> None:
    broker = lone(300)
    broker.receive("far", ask(first_last))
    broker.receive("far", solicit(broker, first_last))
    assert answered(broker) == []


def test_unknown_sources_patterns_and_epochs_get_nothing() -> None:
    broker = lone(5)
    broker.receive("far", ask(EVERYTHING, source="nobody"))
    broker.receive("far", solicit(broker, EVERYTHING, origin="nobody"))
    epoch = broker.ORIGIN_EPOCH
    for lost in (
        ("far", b"no such pattern", epoch, (EVERYTHING,)),
        ("far", broker.pattern, 2**60, (EVERYTHING,)),
    ):
        broker.receive("far", solicit(broker, lost=(lost,)))
    broker.receive("far", Ask((), (("nobody", 0, 1, ((0, 5, b""), (2**62, 2**62, b"\xff" * 32))),), "push"))
    assert answered(broker) == []
    assert broker.misbehaviours == []


def test_blocks_of_generations_that_an_event_has_not_are_not_sent() -> None:
    broker = lone(1, payload=bytes(1_000), block_bytes=100)
    broker.receive("far", Ask((), (("p", 0, 1, ((2**62, 2**62, b""), (7, 1, b""))),), "push"))
    assert broker.sent(Fragment, Carried) == []


def test_more_blocks_than_there_are_cannot_be_had() -> None:
    broker = lone(1, payload=bytes(1_000), block_bytes=100)
    lacks = tuple((0, 2**62, b"") for _ in range(1_000))
    broker.receive("far", Ask((), (("p", 0, 1, lacks),), "push"))
    assert len(broker.sent(Fragment)) == 10


# --- Replays and floods


@pytest.mark.parametrize("kind", ["ask", "solicit"])
def test_a_replayed_request_is_not_answered_again_at_once(kind: str) -> None:
    broker = lone(5)
    request: Message = ask((1, 5)) if kind == "ask" else solicit(broker, (1, 5))
    for _ in range(100):
        broker.receive("far", request)
    assert answered(broker) == [1, 2, 3, 4, 5]


def test_a_request_that_is_repeated_later_is_answered_again() -> None:
    broker = lone(1)
    broker.receive("far", ask((1, 1)))
    broker.port.now += NS_PER_S
    broker.receive("far", ask((1, 1)))
    assert answered(broker) == [1, 1]


def test_what_is_remembered_of_answers_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidings.core.overlay.epidemic.answers.MAX_REMEMBERED", 20)
    broker = lone(100)
    broker.receive("far", ask(EVERYTHING))
    assert len(broker.broker.gossip.answers._answered) == 20


def sent_bytes(broker: LoneBroker) -> int:
    return sum(map(data_bytes, broker.events_sent))


def test_the_byte_budget_holds_under_a_flood() -> None:
    """A second's worth at once, and as much per second after that."""
    broker = lone(200, payload=bytes(900), gossip_bytes_per_s=20_000, answers_per_round=10_000)
    for step in range(1, 101):
        broker.receive("far", ask(EVERYTHING))
        broker.receive("n1", solicit(broker, EVERYTHING, initiator="n1"))
        broker.receive("n2", ask(EVERYTHING))
        broker.advance(50 * NS_PER_MS)
        assert sent_bytes(broker) <= 20_000 * (1 + step * 0.05)
    assert sent_bytes(broker) > 50_000
    assert broker.broker.gossip.budget.throttled > 0


def test_answers_per_round_hold_under_a_flood() -> None:
    broker = lone(200, answers_per_round=7)
    for rounds in range(1, 20):
        for name in ("far", "n1", "n2"):
            for _ in range(20):
                broker.receive(name, ask(EVERYTHING))
        assert len(broker.sent(Carried)) <= 7 * rounds
        broker.port.now += NS_PER_S
        broker.round()


def test_a_budget_fills_with_time_up_to_a_second() -> None:
    broker = lone(0)
    budget = Budget(cast("Port", broker.port), 1_000)
    assert budget.spend(1_000)
    assert not budget.spend(1)
    broker.port.now += NS_PER_S // 2
    assert not budget.spend(501)
    assert budget.spend(500)
    broker.port.now += 100 * NS_PER_S
    assert not budget.spend(1_001)
    assert budget.spend(1_000)
    assert budget.throttled == 3


# --- The cost of an answer depends on what is held, not on what is asked


def calls(monkeypatch: pytest.MonkeyPatch, owner: type, method: str) -> list[int]:
    counter = [0]
    original = getattr(owner, method)

    def counting(self: Any, *arguments: Any, **named: Any) -> Any:
        counter[0] += 1
        return original(self, *arguments, **named)

    monkeypatch.setattr(owner, method, counting)
    return counter


def test_a_range_that_is_named_often_is_looked_up_once_when_the_budget_is_spent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    broker = lone(60, payload=bytes(3_000), gossip_bytes_per_s=10_000)
    cut = calls(monkeypatch, Answers, "messages")
    broker.receive("far", ask(*[EVERYTHING] * 20))
    assert cut[0] <= 256


def test_a_range_that_is_named_often_is_looked_up_once(monkeypatch: pytest.MonkeyPatch) -> None:
    broker = lone(100)
    looked_at = calls(monkeypatch, Answers, "_just_sent")
    broker.receive("far", ask(*[EVERYTHING] * 100))
    assert looked_at[0] <= 1_000


def test_incomplete_events_are_not_searched_for_range_by_range(monkeypatch: pytest.MonkeyPatch) -> None:
    broker = lone(0)
    searched = calls(monkeypatch, Assemblies, "get")
    broker.receive("far", ask(*[EVERYTHING] * 100))
    assert searched[0] <= 1_000


def test_what_is_left_of_a_request_can_be_read_by_the_next() -> None:
    broker = lone(0, answers_per_round=10_000)
    for number in range(0, 3_000, 2):
        broker.receive("n1", broker.carried(number))
    broker.port.sent.clear()
    broker.receive("far", solicit(broker, (0, 3_000), route=("n1",)))
    ((to, onward),) = broker.sent(Solicit)
    assert to == "n1"
    decode(encode(onward))
