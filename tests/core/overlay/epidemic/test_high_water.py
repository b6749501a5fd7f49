"""Counts that came to rest are told hop by hop until they are acknowledged; absurd ones cost a bounded buffer."""

from __future__ import annotations

from typing import Any

import pytest

from epidemic_network import NS_PER_MS, NS_PER_S, EpidemicNetwork, LoneBroker, Passage
from tidings.core.messages import PatternCount
from tidings.core.overlay.epidemic import high_water
from tidings.core.overlay.epidemic.messages import (
    MAX_NUMBERS,
    HighWater,
    HighWaterTaken,
    PatternNumbers,
    Solicit,
)
from tidings.core.overlay.epidemic.settings import RecoverySettings

INTERVAL_NS = 200 * NS_PER_MS


def settings(**changes: Any) -> RecoverySettings:
    return RecoverySettings(algorithm="subscriber-pull", interval_ns=INTERVAL_NS, **changes)


def counts_of(origin: str, numbers: PatternNumbers) -> tuple[PatternCount, ...]:
    return tuple((pattern, origin, epoch, number) for pattern, epoch, number in numbers)


def high_water_of(origin: str, numbers: PatternNumbers) -> HighWater:
    return HighWater(counts_of(origin, numbers))


def taken_of(origin: str, numbers: PatternNumbers) -> HighWaterTaken:
    return HighWaterTaken(counts_of(origin, numbers))


def told(broker: LoneBroker) -> list[tuple[str, int]]:
    """To whom, and which number."""
    found = []
    for to, message in broker.sent(HighWater):
        found += [(to, number) for *_, number in message.counts]
    return found


# --- Telling


def test_a_count_is_told_once_no_event_raises_it_any_more() -> None:
    broker = LoneBroker(settings())
    for number in range(1, 6):
        broker.receive("n1", broker.carried(number))
        broker.advance(INTERVAL_NS // 2)
    assert told(broker) == [], "each event tells as much"
    broker.advance(2 * INTERVAL_NS)
    assert set(told(broker)) == {("n2", 5)}, "not back to who told us"


def test_it_is_repeated_with_pauses_until_it_is_taken() -> None:
    broker = LoneBroker(settings())
    broker.receive("n1", broker.carried(1))
    broker.advance(10 * NS_PER_S)
    repeated = len(told(broker))
    assert 4 <= repeated <= 10
    broker.receive("n2", taken_of("far", broker.numbers(1)))
    broker.advance(60 * NS_PER_S)
    assert len(told(broker)) == repeated
    assert broker.broker.high_waters._fresh == {}


def test_it_is_not_repeated_for_ever() -> None:
    broker = LoneBroker(settings())
    broker.receive("n1", broker.carried(1))
    broker.advance(600 * NS_PER_S)
    assert len(told(broker)) <= high_water.MAX_ATTEMPTS + 1
    assert broker.broker.high_waters._fresh == {}
    assert ("high-water", "turn") not in broker.port.timers, "at rest nothing is sent"


def test_an_acknowledgement_of_another_number_or_from_another_broker_is_none() -> None:
    broker = LoneBroker(settings())
    broker.receive("n1", broker.carried(2))
    broker.receive("n2", taken_of("far", broker.numbers(1)))
    broker.receive("stranger", taken_of("far", broker.numbers(2)))
    broker.receive("n2", taken_of("nobody", broker.numbers(2)))
    broker.advance(3 * INTERVAL_NS)
    assert ("n2", 2) in told(broker)


def test_many_counts_go_in_messages_that_can_be_read() -> None:
    topics = [f"/t{number}" for number in range(100)]
    broker = LoneBroker(settings(), topics=topics)
    for start in range(0, 100, 50):
        numbers = tuple((pattern, 7, 3) for pattern in broker.patterns[start : start + 50])
        broker.receive("n1", high_water_of("far", numbers))
    broker.port.sent.clear()
    broker.advance(2 * INTERVAL_NS)
    sizes = [len(message.counts) for _, message in broker.sent(HighWater)]
    assert sizes
    assert max(sizes) <= MAX_NUMBERS
    assert len(set(told(broker))) == 1


def test_a_loss_at_the_tail_is_noticed_at_the_end_of_lossy_hops() -> None:
    network = EpidemicNetwork(
        "b0-b1-b2-b3", RecoverySettings(algorithm="publisher-pull", interval_ns=INTERVAL_NS)
    )
    network.subscribe("b3")
    tries: dict[tuple[str, str], int] = {}

    def lose(passage: Passage) -> bool:
        """The event beyond b1, and of everything about counts the first three on each link."""
        if isinstance(passage.message, HighWater | HighWaterTaken):
            link = passage.source, passage.target
            tries[link] = tries.get(link, 0) + 1
            return tries[link] <= 3
        return passage.by == "" and passage.source == "b1"

    network.lose = lose
    network.publish("b0")
    network.run(30)
    assert network.shown("b3") == [1]


def test_a_loss_at_the_tail_is_noticed_though_the_origin_has_crashed_and_counts_anew() -> None:
    """b1 has what b0 published last, and b2 hears of it when b0 has published more."""
    network = EpidemicNetwork("b0-b1-b2", settings())
    network.subscribe("b1")
    network.subscribe("b2")
    network.publish("b0")
    network.lose = lambda passage: "b2" in (passage.source, passage.target)
    network.publish("b0")
    network.network.crash("b0", keep_state=False)
    network.run(1)
    network.network.restart("b0")
    network.run(1)
    network.publish("b0")
    network.lose = lambda passage: False
    network.publish("b0")
    network.run(20)
    assert network.shown("b1") == [1, 2, 3, 4]
    assert network.shown("b2") == [1, 2, 3, 4]


# --- Bad input


@pytest.mark.parametrize("sender", ["stranger", "far", "c"])
def test_only_a_neighbour_tells_how_far_an_origin_has_counted(sender: str) -> None:
    broker = LoneBroker(settings())
    broker.receive(sender, high_water_of("far", broker.numbers(50)))
    assert broker.lost == 0
    assert broker.port.sent == []
    assert broker.misbehaviours == [
        (sender, "reported how far an origin has counted but is not a neighbour"),
    ]


@pytest.mark.parametrize("number", [2**62, 2**63 - 1])
def test_absurd_numbers_fill_a_bounded_buffer(number: int) -> None:
    broker = LoneBroker(settings(max_lost=100))
    broker.receive("n1", broker.carried(1))
    for _ in range(3):
        broker.receive("n1", high_water_of("far", broker.numbers(number)))
    assert broker.lost == 100
    broker.receive("n1", high_water_of("far", ((broker.pattern, 2**62, number),)))
    assert broker.lost <= 100
    broker.advance(3 * NS_PER_S)
    for number in range(2, 5):
        broker.receive("n1", broker.carried(number))
    assert broker.notified == [1, 2, 3, 4], "and what comes is shown as ever"


def test_many_origins_fill_bounded_tables() -> None:
    broker = LoneBroker(settings(max_lost=100, max_streams=50))
    for number in range(1_000):
        broker.receive("n1", high_water_of(f"origin-{number}", broker.numbers(3)))
    detector = broker.broker.recovery_state.losses
    assert detector.lost <= 100
    assert len(detector._recent) <= 50
    assert len(broker.broker.counted.counts(broker.pattern)) <= 512


def test_counts_beyond_the_bound_are_not_told_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(high_water, "MAX_FRESH", 10)
    broker = LoneBroker(settings())
    for number in range(100):
        broker.receive("n1", high_water_of(f"origin-{number}", broker.numbers(3)))
    assert len(broker.broker.high_waters._fresh) == 10


def test_numbers_for_patterns_that_nobody_has_are_forgotten() -> None:
    broker = LoneBroker(settings())
    for number in range(500):
        broker.receive("n1", high_water_of("far", ((number.to_bytes(8, "big"), 7, 9),)))
    assert broker.lost == 0
    broker.port.sent.clear()
    broker.advance(2 * INTERVAL_NS)
    assert broker.sent(HighWater, Solicit) == []
    assert broker.broker.high_waters._fresh == {}


def test_nobody_tells_us_how_far_we_have_counted() -> None:
    broker = LoneBroker(settings())
    broker.receive("n1", high_water_of("me", broker.numbers(40)))
    assert broker.lost == 0
