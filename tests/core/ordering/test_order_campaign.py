"""Random and adversarial schedules of larger scenarios, with losses, repeats, batches, moves and crashes."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest

from breadth import few
from order_explorer import (
    Operation,
    Scenario,
    World,
    explore,
    forget_hold,
    forget_no_ops,
    run_priorities,
    run_random,
    take_shortcuts,
)
from tidings.core.ordering.subscriber import OrderedSubscriber, Patience

pytestmark = pytest.mark.slow

TOPICS = 4
STARTS = ((0, 1, 2, 3), (0, 2), (0, 1, 3), (0,))


def random_scenario(
    seed: int, *, threshold: int, crash: bool = False, lost_events: int = 0, patience: Patience | None = None
) -> Scenario:
    """Three or four subscribers that come and go, two publishers."""
    random = Random(seed)
    subscribers, scripts = {}, {}
    for name in "stuv"[: random.choice((3, 4))]:
        topics = set(random.sample(range(TOPICS), random.randrange(TOPICS)))
        subscribers[name] = tuple(sorted(topics))
        scripts[name] = [random_change(random, topics) for _ in range(random.randrange(3))]
    for name in "pq":
        scripts[name] = [
            ("publish", random.randrange(TOPICS), random.choice((1, 1, 2)))
            for _ in range(random.randrange(2, 6))
        ]
    if crash:
        scripts["p"].append(("crash",))
    return Scenario(
        subscribers,
        scripts,
        starts=random.choice(STARTS),
        topics=TOPICS,
        threshold=threshold,
        losses=random.randrange(4),
        repeats=random.randrange(4),
        lost_events=lost_events,
        patience=patience,
    )


def random_change(random: Random, topics: set[int]) -> Operation:
    """Joins something, leaves something, or both; `topics` are then those after it."""
    absent = sorted(set(range(TOPICS)) - topics)
    add = tuple(random.sample(absent, min(len(absent), random.randrange(2))))
    remove = tuple(random.sample(sorted(topics), min(len(topics), random.randrange(2))))
    topics.difference_update(remove)
    topics.update(add)
    return ("change", add, remove)


SHORT_SEEDS = 6_250
"""Of each of four kinds, each played twice: 50,000 schedules, of which every run plays one slice."""
SLICES = 16
LONG_SEEDS = 125
"""Of each of two kinds, each played twice: 500 schedules."""


@pytest.mark.parametrize("part", few(range(SLICES), 1))
@pytest.mark.parametrize("threshold", [2, 1], ids=["total", "causal"])
@pytest.mark.parametrize("crash", [False, True], ids=["alive", "crash"])
def test_no_schedule_breaks_the_order(threshold: int, crash: bool, part: int) -> None:
    for seed in range(part, SHORT_SEEDS, SLICES):
        scenario = random_scenario(seed, threshold=threshold, crash=crash)
        assert run_random(scenario, seed) == [], f"run_random of seed {seed}"
        assert run_priorities(scenario, seed) == [], f"run_priorities of seed {seed}"


def long_scenario(seed: int, *, threshold: int) -> Scenario:
    """Six subscribers that change again and again, four publishers of some fifty events, one of which dies."""
    random = Random(seed)
    subscribers, scripts = {}, {}
    for name in "stuvwx":
        topics = set(random.sample(range(TOPICS), random.randrange(TOPICS)))
        subscribers[name] = tuple(sorted(topics))
        scripts[name] = [random_change(random, topics) for _ in range(6)]
    for name in "opqr":
        scripts[name] = [("publish", random.randrange(TOPICS), random.choice((1, 1, 2))) for _ in range(9)]
    scripts["o"].append(("crash",))
    return Scenario(
        subscribers,
        scripts,
        starts=random.choice(STARTS),
        topics=TOPICS,
        threshold=threshold,
        losses=8,
        repeats=8,
    )


@pytest.mark.parametrize("part", few(range(SLICES), 1))
@pytest.mark.parametrize("threshold", [2, 1], ids=["total", "causal"])
def test_no_long_schedule_breaks_the_order(threshold: int, part: int) -> None:
    for seed in range(part, LONG_SEEDS, SLICES):
        scenario = long_scenario(seed, threshold=threshold)
        assert run_random(scenario, seed) == [], f"run_random of long seed {seed}"
        assert run_priorities(scenario, seed) == [], f"run_priorities of long seed {seed}"


@pytest.mark.parametrize("flaw", [take_shortcuts, forget_hold, forget_no_ops])
def test_the_campaign_finds_planted_flaws(
    flaw: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that take more luck are for exhaustive exploration."""
    flaw(monkeypatch)
    crash = flaw is forget_no_ops
    assert any(run_priorities(random_scenario(seed, threshold=2, crash=crash), seed) for seed in range(250))


def test_over_a_lossy_service_what_is_not_marked_is_in_order() -> None:
    for seed in range(250):
        patience = Patience(events=Random(seed).choice((1, 2, 5)), limit_ns=50_000_000)
        scenario = random_scenario(seed, threshold=1, lost_events=4, patience=patience)
        assert run_random(scenario, seed) == [], f"run_random of seed {seed}"
        assert run_priorities(scenario, seed) == [], f"run_priorities of seed {seed}"


def test_what_is_forced_goes_after_what_precedes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A planted bug: an event is forced though others that it names wait beside it."""
    monkeypatch.setattr(OrderedSubscriber, "_unmet", lambda self, stamp, stack: None)
    patience = Patience(events=1, limit_ns=50_000_000)
    scenarios = [random_scenario(seed, threshold=1, lost_events=4, patience=patience) for seed in range(250)]
    assert any(run_priorities(scenario, seed) for seed, scenario in enumerate(scenarios))


@pytest.mark.parametrize("serial", [True, False])
def test_causal_order_needs_a_serial_publisher(serial: bool) -> None:
    """p publishes to 0, then to 1; who has both must see them so. With requests to both under way it may not."""
    scenario = Scenario(
        {"s": (0, 1)},
        {"p": [("publish", 0), ("publish", 1)]},
        starts=(0, 1),
        topics=2,
        threshold=1,
        serial=serial,
    )
    swapped = 0
    for seed in range(60):
        world = World(scenario)
        random = Random(seed)
        while actions := world.actions():
            world.act(random.choice(actions))
        swapped += [number for number, _ in world.shown["s"]] == [(1, 1), (0, 1)]
    assert (swapped == 0) is serial


def test_a_schedule_can_be_played_again() -> None:
    scenario = random_scenario(7, threshold=2)
    first, again = explore(scenario, max_states=300), explore(scenario, max_states=300)
    assert (first.states, first.ends) == (again.states, again.ends)
