"""Draws what a scenario's publisher publishes and when: the same in simulated and live runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from random import Random
from typing import NamedTuple

from tidings.core.events.payload import PayloadItem, TypedPayload
from tidings.core.filters.language.predicates import Scalar
from tidings.scenarios.file.schema import (
    Attribute,
    BoolAttribute,
    ChoiceAttribute,
    FloatAttribute,
    IntAttribute,
    Publisher,
)
from tidings.scenarios.file.times import nanoseconds

NS_PER_MS = 1_000_000


class DueEvent(NamedTuple):
    due_ns: int
    topic: str
    attributes: dict[str, Scalar]


def arrivals(plan: Publisher, seed: int, end_ns: int) -> Iterator[DueEvent]:
    """Yield the publisher's events by due time, all before `end_ns`."""
    random = Random(f"{seed}:publisher:{plan.name}")
    samplers = {name: _sampler(attribute, random) for name, attribute in sorted(plan.attributes.items())}
    topics, rate_hz, is_poisson = plan.topics, plan.rate_hz, plan.arrival == "poisson"
    due_s = plan.start_s
    number = 0
    while plan.count is None or number < plan.count:
        if is_poisson:
            due_s += random.expovariate(rate_hz)
        elif number:
            due_s += 1.0 / rate_hz
        due_ns = nanoseconds(due_s)
        if due_ns >= end_ns:
            return
        attributes = {name: sample() for name, sample in samplers.items()}
        topic = topics[0] if len(topics) == 1 else random.choice(topics)
        yield DueEvent(due_ns, topic, attributes)
        number += 1


def lifetime_ns(plan: Publisher) -> int:
    """Return how long the publisher's events may be shown; 0: without limit."""
    return 0 if plan.expires_ms == 0 else max(round(plan.expires_ms * NS_PER_MS), 1)


def scenario_payload(data: bytes, published_at: int, lifetime_ns: int) -> PayloadItem:
    return TypedPayload(data, expires_at=published_at + lifetime_ns) if lifetime_ns else data


def _sampler(attribute: Attribute, random: Random) -> Callable[[], Scalar]:
    match attribute:
        case IntAttribute(low=low, high=high):
            return lambda: random.randint(low, high)
        case FloatAttribute(low=least, high=most):
            return lambda: random.uniform(least, most)
        case ChoiceAttribute(values=values):
            return lambda: random.choice(values)
        case BoolAttribute():
            return lambda: random.random() < 0.5
