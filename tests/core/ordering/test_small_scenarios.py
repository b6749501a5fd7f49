"""All orders of small scenarios: the algorithm as it is has no bad end, without one of its rules it has one.

Topics by rank. Each scenario has the least that makes its rule necessary: two subscribers, one or two events.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from order_explorer import (
    Operation,
    Scenario,
    explore,
    forget_fence,
    forget_ghosts,
    forget_hold,
    forget_linger,
    forget_no_ops,
    take_shortcuts,
)

pytestmark = pytest.mark.slow

Flaw = Callable[[pytest.MonkeyPatch], None]


def publish(*topics: int, count: int = 1) -> list[Operation]:
    return [("publish", topic, count) for topic in topics]


def two(
    s: tuple[int, ...],
    t: tuple[int, ...],
    s_does: list[Operation] | None = None,
    t_does: list[Operation] | None = None,
    *,
    starts: tuple[int, ...] = (0, 1),
    count: int = 1,
) -> Scenario:
    """Two subscribers of the topics 0 and 1, and an event or a batch of each."""
    scripts = {"p": publish(0, count=count), "q": publish(1), "s": s_does or [], "t": t_does or []}
    return Scenario({"s": s, "t": t}, scripts, starts=starts, topics=2, prompt_publishers=True)


SCENARIOS: dict[str, tuple[Scenario, Flaw | None]] = {
    "path of 4, causal": (
        Scenario(
            {"s": (0, 2, 3), "t": (1, 2)},
            {"p": publish(2), "q": publish(3), "r": publish(0)},
            threshold=1,
            prompt_publishers=True,
        ),
        take_shortcuts,
    ),
    "walk past 3": (
        Scenario(
            {"s": (0, 1), "t": (0, 2)},
            {"p": publish(2), "q": publish(0), "s": [("subscribe", 2)]},
            starts=(0, 1, 2),
            topics=3,
            prompt_publishers=True,
        ),
        take_shortcuts,
    ),
    "leave 1": (two((0, 1), (0, 1), t_does=[("unsubscribe", 1)]), forget_linger),
    "leave 0": (two((0, 1), (0, 1), t_does=[("unsubscribe", 0)]), forget_linger),
    "move up": (two((0, 1), (1,), t_does=[("unsubscribe", 1), ("subscribe", 0)]), forget_ghosts),
    "move down": (two((0, 1), (0,), t_does=[("unsubscribe", 0), ("subscribe", 1)]), forget_ghosts),
    "move at once": (two((0, 1), (1,), t_does=[("change", (0,), (1,))]), forget_ghosts),
    "join": (two((0, 1), (0,), t_does=[("subscribe", 1)]), forget_hold),
    "subscribe again": (two((0, 1), (0, 1), t_does=[("unsubscribe", 1), ("subscribe", 1)]), None),
    "join in opposite order": (two((0,), (1,), [("subscribe", 1)], [("subscribe", 0)]), None),
    "together on one server": (two((0, 1), (0, 1), t_does=[("unsubscribe", 1)], starts=(0,)), forget_linger),
    "batch": (two((0, 1), (0,), t_does=[("subscribe", 1)], count=2), forget_hold),
    "publisher crash": (
        Scenario(
            {"s": (0, 1), "t": (0, 1)},
            {"p": [*publish(1), ("crash",)], "q": publish(1)},
            starts=(0, 1),
            topics=2,
        ),
        forget_no_ops,
    ),
    "swap": (two((0, 1), (0,), [("unsubscribe", 0)], [("subscribe", 1)]), forget_fence),
}


@pytest.mark.parametrize("name", SCENARIOS)
def test_every_order_of_the_scenario_is_right(name: str) -> None:
    result = explore(SCENARIOS[name][0], max_states=40_000)
    assert result.violations == []
    assert result.complete
    assert result.ends > 1


@pytest.mark.parametrize("name", [name for name, (_, flaw) in SCENARIOS.items() if flaw is not None])
def test_without_its_rule_some_order_is_wrong(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    scenario, flaw = SCENARIOS[name]
    assert flaw is not None
    flaw(monkeypatch)
    assert explore(scenario, max_states=40_000).violations != []


QUICK = [name for name in SCENARIOS if name not in ("swap", "join in opposite order", "publisher crash")]


@pytest.mark.parametrize("name", QUICK)
def test_with_threshold_1_it_is_right_without_the_rules_1_to_3(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are off by themselves; taking them away shows that none is in use."""
    for forget in (forget_linger, forget_ghosts, forget_fence):
        forget(monkeypatch)
    result = explore(replace(SCENARIOS[name][0], threshold=1), max_states=40_000)
    assert result.violations == []
    assert result.complete


def test_with_threshold_1_the_hold_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    forget_hold(monkeypatch)
    assert explore(replace(SCENARIOS["join"][0], threshold=1)).violations != []
