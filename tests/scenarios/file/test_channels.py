"""What links do to messages, against the theory of each distribution; seeds are fixed, bounds are 5 sigma."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from math import erf, exp, log, sqrt
from random import Random
from statistics import fmean

import pytest

from tidings.core.events.event import make_publication
from tidings.core.messages import Message, Unsubscribe
from tidings.core.wire.codec import encoded_size
from tidings.drivers.virtual.link import VirtualLink
from tidings.drivers.virtual.schedule import Schedule
from tidings.scenarios.file.channels import delay_sampler, loss_sampler
from tidings.scenarios.file.links import LinkSpec
from tidings.scenarios.file.schema import (
    BernoulliLoss,
    ConstantDelay,
    Delay,
    EmpiricalDelay,
    GilbertLoss,
    LognormalDelay,
    Loss,
    NoLoss,
    NormalDelay,
    UniformDelay,
)

DRAWS = 40_000
NS_PER_MS = 1_000_000


def delays_ms(delay: Delay, seed: int = 1) -> list[float]:
    sample = delay_sampler(delay, Random(seed))
    return sorted(sample() / NS_PER_MS for _ in range(DRAWS))


def check_quantiles(drawn: list[float], share_below: Callable[[float], float], at: list[float]) -> None:
    for value in at:
        share = sum(draw <= value for draw in drawn) / len(drawn)
        expected = share_below(value)
        assert share == pytest.approx(expected, abs=5 * sqrt(0.25 / len(drawn)))


def test_a_constant_delay_is_constant() -> None:
    assert set(delays_ms(ConstantDelay(value=2.5))) == {2.5}


def test_a_uniform_delay_is_uniform() -> None:
    drawn = delays_ms(UniformDelay(low=5, high=15))
    assert 5 <= drawn[0] <= drawn[-1] <= 15
    assert fmean(drawn) == pytest.approx(10, abs=5 * (10 / sqrt(12)) / sqrt(DRAWS))
    check_quantiles(drawn, lambda value: (value - 5) / 10, [6, 8, 10, 14])


def test_normal_delays_are_those_of_the_generator() -> None:
    sample, twin = delay_sampler(NormalDelay(mean=2, std=4), Random(1)), Random(1)
    expected = [max(0, int(twin.gauss(2.0 * NS_PER_MS, 4.0 * NS_PER_MS))) for _ in range(1_001)]
    assert [sample() for _ in expected] == expected
    assert 0 in expected


def test_a_normal_delay_is_normal_and_never_below_zero() -> None:
    drawn = delays_ms(NormalDelay(mean=20, std=4))
    assert fmean(drawn) == pytest.approx(20, abs=5 * 4 / sqrt(DRAWS))
    check_quantiles(drawn, lambda value: (1 + erf((value - 20) / 4 / sqrt(2))) / 2, [14, 18, 20, 24, 28])
    cut = delays_ms(NormalDelay(mean=1, std=4))
    assert cut[0] == 0
    check_quantiles(cut, lambda value: (1 + erf((value - 1) / 4 / sqrt(2))) / 2, [0, 1, 5])


def test_a_lognormal_delay_has_its_median_and_mean() -> None:
    drawn = delays_ms(LognormalDelay(median=12, sigma=0.5))
    mean = 12 * exp(0.125)
    std = mean * sqrt(exp(0.25) - 1)
    assert fmean(drawn) == pytest.approx(mean, abs=5 * std / sqrt(DRAWS))
    check_quantiles(drawn, lambda value: (1 + erf(log(value / 12) / 0.5 / sqrt(2))) / 2, [6, 12, 24])


def test_an_empirical_delay_draws_its_values_equally() -> None:
    drawn = delays_ms(EmpiricalDelay(values=(1.0, 2.0, 2.0, 9.0)))
    assert set(drawn) == {1.0, 2.0, 9.0}
    check_quantiles(drawn, lambda value: {1: 0.25, 2: 0.75}[round(value)], [1, 2])


def losses(loss: Loss, seed: int = 1, draws: int = DRAWS) -> list[bool]:
    sample = loss_sampler(loss, Random(seed))
    assert sample is not None
    return [sample() for _ in range(draws)]


@pytest.mark.parametrize("rate", [0.01, 0.2, 0.9])
def test_bernoulli_loses_its_share_independently(rate: float) -> None:
    drawn = losses(BernoulliLoss(rate=rate))
    assert fmean(drawn) == pytest.approx(rate, abs=5 * sqrt(rate * (1 - rate) / DRAWS))
    after_loss = [after for before, after in pairwise(drawn) if before]
    assert fmean(after_loss) == pytest.approx(rate, abs=5 * sqrt(rate * (1 - rate) / len(after_loss)))


@pytest.mark.parametrize(("rate", "burst"), [(0.03, 4.0), (0.2, 3.0), (0.5, 1.0), (0.6, 8.0)])
def test_gilbert_loses_its_share_in_bursts_of_its_length(rate: float, burst: float) -> None:
    drawn = losses(GilbertLoss(rate=rate, burst=burst), draws=4 * DRAWS)
    bursts, length = [], 0
    for lost in drawn:
        if lost:
            length += 1
        elif length:
            bursts.append(length)
            length = 0
    # Lengths are geometric with mean `burst`; neighbouring draws correlate, which widens the rate's deviation.
    spread = sqrt(burst * (burst - 1)) if burst > 1 else 0.0
    assert fmean(bursts) == pytest.approx(burst, abs=5 * spread / sqrt(len(bursts)) + 1e-9)
    correlation = 1 - 1 / burst - rate / burst / (1 - rate)
    widened = sqrt(rate * (1 - rate) / len(drawn) * (1 + correlation) / (1 - correlation))
    assert fmean(drawn) == pytest.approx(rate, abs=5 * widened)


@pytest.mark.parametrize("loss", [NoLoss(), BernoulliLoss(rate=0.0), GilbertLoss(rate=0.0, burst=3)])
def test_no_loss_is_no_draw(loss: Loss) -> None:
    assert loss_sampler(loss, Random(1)) is None


# --- Links


class Line:
    """A link from `a` to `b` and what arrives over it, with the time in nanoseconds."""

    def __init__(
        self,
        delay_ms: Delay = ConstantDelay(value=10.0),
        loss: Loss = NoLoss(),
        duplicate: float = 0.0,
        reorder: float = 0.0,
        bandwidth_mbps: float = 0.0,
    ) -> None:
        self.schedule = Schedule()
        self.arrived: list[tuple[int, Message]] = []
        handlers = dict.fromkeys((Unsubscribe, type(event(1))), self._arrive)
        spec = LinkSpec(delay_ms, loss, duplicate, reorder, bandwidth_mbps)
        self.link = VirtualLink(self.schedule, "a", "b", handlers, spec, Random(3))

    def _arrive(self, sender: str, message: Message) -> None:
        assert sender == "a"
        self.arrived.append((self.schedule.now, message))

    def send(self, *messages: Message) -> list[tuple[int, Message]]:
        self.arrived.clear()
        for message in messages:
            self.link.transmit(message)
        self.schedule.run(self.schedule.now + 10**12)
        return self.arrived


def event(sequence: int, size_bytes: int = 0) -> Message:
    return make_publication("p", 0, sequence, "/a", {}, bytes(size_bytes), 0)


def numbered(count: int) -> list[Message]:
    return [Unsubscribe(str(number)) for number in range(count)]


def test_a_plain_link_delays_and_keeps_the_order() -> None:
    line = Line()
    messages = numbered(5)
    assert line.send(*messages) == [(10 * NS_PER_MS, message) for message in messages]


def test_traffic_counts_messages_bytes_and_drops_by_class() -> None:
    line = Line()
    line.send(Unsubscribe("s"), Unsubscribe("t"), event(1, 500))
    line.link.cuts = 1
    line.link.refresh()
    assert line.send(Unsubscribe("s"), event(2, 500)) == []
    counted = {
        kind.__name__: (traffic.messages, traffic.size_bytes, traffic.dropped)
        for kind, traffic in line.link.traffic().items()
    }
    assert counted == {
        "Unsubscribe": (3, 3 * encoded_size(Unsubscribe("s")), 1),
        "Publication": (2, 2 * encoded_size(event(1, 500)), 1),
    }


def test_a_lossy_link_drops_what_it_loses_and_no_more() -> None:
    line = Line(loss=BernoulliLoss(rate=0.3))
    arrived = line.send(*numbered(5_000))
    dropped = line.link.traffic()[Unsubscribe].dropped
    assert len(arrived) + dropped == 5_000
    assert dropped / 5_000 == pytest.approx(0.3, abs=5 * sqrt(0.21 / 5_000))


def test_duplicates_arrive_beside_the_originals() -> None:
    line = Line(duplicate=0.25)
    messages = numbered(5_000)
    arrived = [message for _, message in line.send(*messages)]
    assert (len(arrived) - 5_000) / 5_000 == pytest.approx(0.25, abs=5 * sqrt(0.1875 / 5_000))
    assert all(1 <= arrived.count(message) <= 2 for message in messages[:50])
    assert line.link.traffic()[Unsubscribe].messages == 5_000


def test_reordered_messages_take_a_second_delay() -> None:
    line = Line(reorder=0.1)
    arrived = line.send(*numbered(5_000))
    late = [at for at, _ in arrived if at == 20 * NS_PER_MS]
    assert len(late) + sum(at == 10 * NS_PER_MS for at, _ in arrived) == 5_000
    assert len(late) / 5_000 == pytest.approx(0.1, abs=5 * sqrt(0.09 / 5_000))


def test_a_narrow_link_sends_one_message_after_the_other() -> None:
    line = Line(bandwidth_mbps=2)
    messages = [event(number, 1_000 * number) for number in range(1, 4)]
    leaves_at, expected = 0, []
    for message in messages:
        leaves_at += round(encoded_size(message) * 8 * 1_000 / 2)  # bits at 2 per microsecond, in nanoseconds
        expected.append((leaves_at + 10 * NS_PER_MS, message))
    assert line.send(*messages) == expected
    later = line.schedule.now
    [(at, _)] = line.send(messages[0])
    assert at - later == expected[0][0], "an idle link is free at once"


def test_slowness_and_extra_loss_come_and_go() -> None:
    line = Line()
    line.link.slowness = 10.0
    line.link.refresh()
    assert [at for at, _ in line.send(Unsubscribe("s"))] == [100 * NS_PER_MS]
    line.link.slowness = 1.0
    line.link.extra_loss = (0.5, 0.5)
    line.link.refresh()
    start = len(line.send(*numbered(4_000)))
    assert start / 4_000 == pytest.approx(0.25, abs=5 * sqrt(0.1875 / 4_000))
    line.link.extra_loss = ()
    line.link.refresh()
    assert len(line.send(*numbered(100))) == 100
