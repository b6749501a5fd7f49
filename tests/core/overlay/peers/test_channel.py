"""A channel delivers what is queued exactly once while it is open, whatever happens to datagrams."""

from __future__ import annotations

from collections.abc import Iterable
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from breadth import examples
from tidings.core.overlay.peers.channel import FIRST_WINDOW, LATER_ACKED, Channel, QueuedMessage
from tidings.core.overlay.peers.messages import Beat, Datagram, Packet, Vote
from tidings.core.overlay.peers.round_trip import (
    FIRST_TIMEOUT_NS,
    LEAST_TIMEOUT_NS,
    MOST_TIMEOUT_NS,
    RoundTrip,
)

MS = 1_000_000


def vote(number: int) -> Vote:
    return Vote("p", 0, number, b"")


class Side:
    """One side of a channel, and what its application sees."""

    def __init__(self, session: int) -> None:
        self.channel = Channel("peer", session, 0)
        self.shown: list[int] = []
        self.arrived: list[object] = []
        self.openings = self.closings = 0

    def hear(self, datagram: Datagram, now: int) -> None:
        closed, opened = self.channel.hear(datagram, now)
        self.openings += opened
        self.closings += closed
        if self.channel.is_of_this_session(datagram):
            self.arrived += self.channel.acknowledged(datagram.acks, now)
            if isinstance(datagram, Packet):
                self.shown += [message.serial for message in self.channel.take(datagram)]  # type: ignore[attr-defined]

    def _header(self) -> tuple[int, int, int, tuple[tuple[int, int], ...]]:
        channel = self.channel
        channel.serial += 1
        return (channel.session, channel.heard, channel.serial, channel.acks)

    def beat(self) -> Beat:
        return Beat(*self._header(), 500, b"")

    def packets(self, now: int) -> list[Packet]:
        sent = self.channel.outgoing(now) if self.channel.is_open else []
        return [Packet(*self._header(), number, self.channel.floor, messages) for number, messages in sent]

    def queue(self, numbers: Iterable[int]) -> None:
        for number in numbers:
            self.channel.queue(QueuedMessage(vote(number), 400, number))


def opened() -> tuple[Side, Side]:
    left, right = Side(5), Side(9)
    for _ in range(2):
        right.hear(left.beat(), 0)
        left.hear(right.beat(), 0)
    assert left.channel.is_open and right.channel.is_open
    return left, right


@settings(max_examples=examples(200), deadline=None)
@given(st.randoms(use_true_random=False), st.integers(1, 120), st.floats(0, 0.4))
def test_everything_arrives_once_though_datagrams_are_lost_doubled_and_overtaken(
    random: Random, count: int, loss: float
) -> None:
    left, right = opened()
    left.queue(range(count))
    flying: list[tuple[int, Side, Datagram]] = []
    now = 0
    while len(left.arrived) < count:
        now += 5 * MS
        assert now < 600_000 * MS, "it stands still"
        for side, other in ((left, right), (right, left)):
            for datagram in (*side.packets(now), side.beat()):
                copies = 0 if random.random() < loss else 1 + (random.random() < 0.1)
                flying += [(now + random.randrange(1, 40) * MS, other, datagram) for _ in range(copies)]
        for due in [each for each in flying if each[0] <= now]:
            due[1].hear(due[2], now)
        flying = [each for each in flying if each[0] > now]
    assert sorted(right.shown) == sorted(map(int, left.arrived)) == list(range(count))  # type: ignore[arg-type]
    assert (left.closings, right.closings) == (0, 0)


def test_an_old_datagram_says_nothing_about_the_sessions() -> None:
    left, right = Side(5), Side(9)
    early = left.beat()
    right.hear(left.beat(), 0)
    left.hear(right.beat(), 0)
    right.hear(left.beat(), 0)
    assert right.channel.is_open
    right.hear(early, 1)
    assert right.channel.is_open and right.closings == 0


def test_a_side_that_closes_makes_the_other_one_close_and_both_open_anew() -> None:
    left, right = opened()
    left.queue([1])
    lost = left.packets(0)[0]
    left.channel.close(0)
    right.hear(left.beat(), 1)
    assert not right.channel.is_open and right.closings == 1
    for _ in range(2):
        left.hear(right.beat(), 2)
        right.hear(left.beat(), 2)
    assert left.channel.is_open and right.channel.is_open
    right.hear(lost, 3)
    assert right.shown == [], "what was sent before is of another session"
    left.queue([2])
    right.hear(left.packets(3)[0], 3)
    assert right.shown == [2]


def test_the_window_bounds_what_is_on_its_way_and_is_halved_by_a_loss() -> None:
    left, right = opened()
    left.queue(range(300))
    first = left.packets(0)
    assert len(first) == int(FIRST_WINDOW) and not left.packets(1)
    for packet in first[1 : LATER_ACKED + 2]:
        right.hear(packet, 10 * MS)
    left.hear(right.beat(), 20 * MS)
    again = left.packets(20 * MS)
    assert again[0].number == first[0].number, "what later ones overtook is sent again at once"
    assert left.channel.on_their_way < FIRST_WINDOW


def test_packets_are_bounded_in_bytes() -> None:
    left, _ = opened()
    left.queue(range(7))
    assert [len(packet.messages) for packet in left.packets(0)] == [3, 3, 1]


def test_a_number_far_ahead_is_not_taken() -> None:
    _, right = opened()
    header = (5, right.channel.session, 100, ())
    right.hear(Packet(*header, 2**40, 1, (vote(1),)), 0)
    assert right.shown == [] and right.channel.acks == ()


@pytest.mark.parametrize(
    ("took_ms", "times", "timeout_ms"),
    [
        ([], 1, FIRST_TIMEOUT_NS / MS),
        ([], 3, 4 * FIRST_TIMEOUT_NS / MS),
        ([1], 1, LEAST_TIMEOUT_NS / MS),
        ([100], 1, 300),
        ([100, 100], 1, 252),
        ([100] * 50, 1, 101),
        ([1_000], 2, MOST_TIMEOUT_NS / MS),
    ],
)
def test_timeouts_are_those_of_rfc_6298(took_ms: list[int], times: int, timeout_ms: float) -> None:
    round_trip = RoundTrip()
    for each in took_ms:
        round_trip.measured(each * MS)
    assert round_trip.timeout_ns(times) / MS == pytest.approx(timeout_ms, rel=0.02)
