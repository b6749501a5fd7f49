"""The epidemic paper's experiment, simulated: many patterns on a random tree whose links lose messages.

The defaults are those of the paper's evaluation as far as it gives them: 100 brokers of degree 4 at most, 70 patterns,
2 per broker, a buffer of 1,500 events, a round every 30 ms, 5 publishers with 50 events/s each.
"""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from typing import Any

from tidings.scenarios.file.schema import (
    Fault,
    Loss,
    Network,
    Overlay,
    Publisher,
    RandomShape,
    Recovery,
    Scenario,
    SubscriberTable,
)

PATTERNS = 70
PATTERNS_PER_BROKER = 2
PUBLISHERS = 5
RATE_HZ = 50.0
INTERVAL_MS = 30.0
SETTLE_S = 10.0

ALGORITHMS: Mapping[str, Mapping[str, Any]] = {
    "none": {"algorithm": "none"},
    "push": {"algorithm": "push", "push": "digest", "routing": "tree"},
    "subscriber pull": {"algorithm": "subscriber-pull", "routing": "tree"},
    "publisher pull": {"algorithm": "publisher-pull"},
    "combined pull": {"algorithm": "combined", "routing": "tree"},
}
"""The paper's algorithms as keys of [recovery]: digests go along the tree."""


def epidemic_scenario(
    keys: Mapping[str, Any],
    loss: Loss,
    *,
    brokers: int,
    start_s: float,
    publish_s: float,
    seed: int = 1,
    patterns: int = PATTERNS,
    patterns_per_broker: int = PATTERNS_PER_BROKER,
    used_patterns: int | None = None,
    publishers: int = PUBLISHERS,
    settle_s: float = SETTLE_S,
    faults: tuple[Fault, ...] = (),
) -> Scenario:
    """Return the scenario. `keys` are those of [recovery]; events are published for the first `used_patterns`, or for
    all.

    Everybody subscribes before `start_s`, which takes a while where much is lost.
    """
    random = Random(seed)
    names = [f"b{number}" for number in range(brokers)]
    topics = [f"/p{number}" for number in range(patterns)]
    return Scenario(
        seed=seed,
        duration_s=start_s + publish_s,
        settle_s=settle_s,
        network=Network(loss=loss),
        overlay=Overlay(mode="epidemic", shape=RandomShape(brokers=brokers, degree=4)),
        recovery=Recovery(**{"interval_ms": INTERVAL_MS, **keys}),
        publishers=tuple(
            Publisher(
                name=f"p{at}", at=at, topics=tuple(topics[:used_patterns]), rate_hz=RATE_HZ, start_s=start_s
            )
            for at in random.sample(names, publishers)
        ),
        subscribers=tuple(
            SubscriberTable(name=f"s{at}{topic}", at=at, topics=(topic,))
            for at in names
            for topic in random.sample(topics, patterns_per_broker)
        ),
        faults=faults,
    )
