"""Draws the delay and loss of messages on a link from a seeded generator."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import cos, log, sin, sqrt, tau
from random import Random

from tidings.scenarios.file.schema import (
    BernoulliLoss,
    ConstantDelay,
    Delay,
    EmpiricalDelay,
    GilbertLoss,
    LognormalDelay,
    Loss,
    NormalDelay,
    UniformDelay,
)
from tidings.scenarios.file.times import NS_PER_MS


def delay_sampler(delay: Delay, random: Random) -> Callable[[], int]:
    """Return a function that draws delays in nanoseconds, never below zero."""
    match delay:
        case ConstantDelay():
            constant_ns = round(delay.value * NS_PER_MS)
            return lambda: constant_ns
        case UniformDelay():
            low_ns, high_ns = delay.low * NS_PER_MS, delay.high * NS_PER_MS
            span_ns, draw = high_ns - low_ns, random.random
            return lambda: int(low_ns + span_ns * draw())  # `random.uniform`, inlined
        case NormalDelay():
            mean_ns, std_ns = delay.mean * NS_PER_MS, delay.std * NS_PER_MS
            return _normal_delays(mean_ns, std_ns, random.random).__next__
        case LognormalDelay():
            median_log, sigma = log(delay.median * NS_PER_MS), delay.sigma
            return lambda: int(random.lognormvariate(median_log, sigma))
        case EmpiricalDelay():
            values_ns = [round(value * NS_PER_MS) for value in delay.values]
            return lambda: random.choice(values_ns)


def _normal_delays(mean_ns: float, std_ns: float, draw: Callable[[], float]) -> Iterator[int]:
    """Yield the same numbers as `random.gauss`, without the cost of a call for each message."""
    while True:
        angle = draw() * tau
        radius = sqrt(-2.0 * log(1.0 - draw()))
        for deviation in (cos(angle) * radius, sin(angle) * radius):
            delay_ns = int(mean_ns + deviation * std_ns)
            yield delay_ns if delay_ns > 0 else 0


def loss_sampler(loss: Loss, random: Random) -> Callable[[], bool] | None:
    """Return a function that draws whether the next message is lost; None if no message ever is."""
    match loss:
        case BernoulliLoss() if loss.rate > 0:
            rate = loss.rate
            return lambda: random.random() < rate
        case GilbertLoss() if loss.rate > 0:
            return GilbertChannel(loss.rate, loss.burst, random)
        case _:
            return None


class GilbertChannel:
    """Steps between two states with each message: the bad one loses everything and lasts `burst` messages on average.

    In the long run it loses `rate` of all messages: rate = enter / (enter + leave).
    """

    def __init__(self, rate: float, burst: float, random: Random) -> None:
        self._leave = 1.0 / burst
        self._enter = min(1.0, rate * self._leave / (1.0 - rate))
        self._random = random
        self._bad = random.random() < rate

    def __call__(self) -> bool:
        lost = self._bad
        self._bad = self._random.random() >= self._leave if lost else self._random.random() < self._enter
        return lost
