"""Subscribers that change their topics again and again, whatever else happens to them: the users' client does it."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from breadth import few
from tidings.core.client.plain import PlainSubscription
from tidings.core.client.session import ClientSession
from tidings.core.errors import ScenarioError
from tidings.core.events.subscription import Subscription
from tidings.core.facts import SubscriptionAccepted
from tidings.core.overlay.guaranteed.bookmarks import LeftBookmarks
from tidings.core.structures.recent_ids import RecentIds
from tidings.lab.random_scenarios import SETTLE_S, scenario_text
from tidings.scenarios.file.expand import expand
from tidings.scenarios.file.load import parse_scenario
from tidings.scenarios.simulate import Simulation
from tidings.scenarios.trace.checkers import exactly_once, fifo, gap_free
from tidings.scenarios.trace.memory import MemoryWriter
from tidings.scenarios.trace.reader import Trace

BROKERS = 5
DURATION_S = 12.0
TOPICS = ("/a", "/b", "/c")
SEEDS = range(400)
SEEDS_FOR_A_BUG = range(40)
Table = dict[str, Any]


def changes(random: Random, topics: list[str]) -> list[Table]:
    """Some of them before the one before is accepted; now and then nothing is left."""
    at_s, steps, topics = 1.0, [], list(topics)
    while True:
        at_s += random.choice((0.01, 0.1, 0.5, 2.0, 6.0)) * random.uniform(0.5, 1.0)
        if at_s > DURATION_S:
            return steps
        wanted = random.sample(TOPICS, random.choice((0, 1, 1, 2, 2, 3)))
        step = {
            "at_s": round(at_s, 3),
            "add": [topic for topic in wanted if topic not in topics],
            "remove": [topic for topic in topics if topic not in wanted],
        }
        if step["add"] or step["remove"]:
            steps.append(step)
            topics = wanted


def scenario(seed: int, mode: str, *, calm: bool) -> str:
    random = Random(f"changing:{mode}:{seed}")
    delays: tuple[Table, ...] = (
        {"kind": "constant", "value": 10},
        {"kind": "uniform", "low": 1, "high": 200},
    )
    overlay: Table = {"mode": mode, "shape": {"kind": "random", "brokers": BROKERS, "degree": 3}}
    if mode == "guaranteed":
        overlay["window"] = 64 if calm else random.choice((2, 64))
    tables: list[tuple[str, Table]] = [
        ("", {"seed": seed, "duration_s": DURATION_S, "settle_s": SETTLE_S}),
        ("[network]", {"delay_ms": random.choice(delays)}),
        ("[overlay]", overlay),
    ]
    for number in range(2):
        publisher = {"name": f"p{number}", "at": f"b{random.randrange(BROKERS)}", "topics": list(TOPICS)}
        tables.append(("[[publisher]]", publisher | {"rate_hz": random.choice((5.0, 30.0))}))
    for number in range(3):
        topics = random.sample(TOPICS, random.randint(1, 2))
        subscriber = {
            "name": f"s{number}",
            "at": f"b{random.randrange(BROKERS)}",
            "topics": topics,
            "order": random.choice(("none", "fifo")),
            "changes": changes(random, topics),
        }
        tables.append(("[[subscriber]]", subscriber))
        if random.random() < 0.3:
            # With a small window every event takes a round trip, and all of them must get through in time.
            delay_ms = {"kind": "constant", "value": 5 if overlay.get("window") == 2 else 400}
            between = [subscriber["name"], subscriber["at"]]
            tables.append(("[[link]]", {"between": between, "delay_ms": delay_ms}))
    nodes = ["s0", "s1", "s2", *(f"b{number}" for number in range(BROKERS))]
    for _ in range(0 if calm else random.randint(1, 5)):
        at_s = random.uniform(0.5, DURATION_S - 0.5)
        until_s = min(DURATION_S, at_s + random.choice((0.05, 0.5, 3.0)))
        fault: Table = {"kind": "crash", "state": "kept", "nodes": [random.choice(nodes)]}
        if random.random() < 0.2:
            fault = {"kind": "partition", "groups": [["b0", "b1"], ["b2", "b3", "b4"]]}
        tables.append(("[[fault]]", fault | {"at_s": round(at_s, 3), "until_s": round(until_s, 3)}))
    return scenario_text(tables)


def run(text: str) -> Trace:
    writer = MemoryWriter()
    simulation = Simulation(expand(parse_scenario(text)), writer)
    simulation.run()
    trace = writer.trace()
    for row in trace.subscribed.to_pylist():
        answered = row["accepted_ns"] is not None or row["cancelled_ns"] is not None
        assert answered, f"{row['subscription']} was never accepted"
    return trace


def problems(seed: int, mode: str, *, calm: bool) -> list[str]:
    """Best effort loses nothing where nothing fails, and knows what is late unless its client was killed. The
    guaranteed overlay does as much if something fails, but who leaves does not wait for what comes very late."""
    try:
        trace = run(scenario(seed, mode, calm=calm))
    except (AssertionError, ScenarioError) as error:
        return [f"seed {seed}: {error}"]
    verdicts = [exactly_once(trace)]
    if mode == "guaranteed":
        verdicts += [fifo(trace), gap_free(trace, strict_end=calm)]
    elif calm:
        verdicts += [fifo(trace, orders=frozenset({"fifo"})), gap_free(trace, strict_end=True)]
    return [f"seed {seed}: {verdict}" for verdict in verdicts if not verdict.holds]


MODES = ("best-effort", "epidemic", "guaranteed")


@pytest.mark.parametrize("calm", [True, False], ids=["calm", "faults"])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("part", few(range(20), 1))
def test_whoever_changes_misses_nothing_and_gets_nothing_twice(mode: str, calm: bool, part: int) -> None:
    seeds = [seed for seed in SEEDS if seed % 20 == part]
    found = [problem for seed in seeds for problem in problems(seed, mode, calm=calm)]
    assert not found, "\n".join(found)


# --- What is broken on purpose


def forgets_what_it_showed(patch: pytest.MonkeyPatch) -> None:
    """What comes for two forms is shown twice."""
    patch.setattr(RecentIds, "fresh", lambda self, source, incarnation, first, last: [(first, last)])


def ends_at_once(patch: pytest.MonkeyPatch) -> None:
    """What is on its way for the form before is lost."""
    unsubscribe = ClientSession.unsubscribe
    patch.setattr(ClientSession, "unsubscribe", lambda self, name, drain=False: unsubscribe(self, name))


def ends_too_early(patch: pytest.MonkeyPatch) -> None:
    """The form before ends when the next is asked for, not when everybody knows it."""
    follow = PlainSubscription._maybe_follow

    def hasty(self: PlainSubscription) -> None:
        before = self._current
        follow(self)
        if self._next is not None and before is not None:
            self.on_accepted(SubscriptionAccepted(self._name(self._next)))

    patch.setattr(PlainSubscription, "_maybe_follow", hasty)


def shows_what_drains_if_it_is_wanted(patch: pytest.MonkeyPatch) -> None:
    """As a live stream does, which is enough there."""
    make = PlainSubscription.__init__

    def impatient(self: PlainSubscription, owner: Any, subscription: Subscription, **options: Any) -> None:
        make(self, owner, subscription, **options | {"lingers": False})

    patch.setattr(PlainSubscription, "__init__", impatient)


def finds_no_bookmark(patch: pytest.MonkeyPatch) -> None:
    """The next life does not know which forms the one before had."""
    patch.setattr(LeftBookmarks, "take", lambda self, subscription: None)


BUGS: list[tuple[Callable[[pytest.MonkeyPatch], None], str, bool]] = [
    (forgets_what_it_showed, "guaranteed", True),
    (ends_at_once, "best-effort", True),
    (ends_at_once, "epidemic", True),
    (ends_at_once, "guaranteed", True),
    (ends_too_early, "best-effort", True),
    (ends_too_early, "guaranteed", True),
    (shows_what_drains_if_it_is_wanted, "best-effort", True),
    (finds_no_bookmark, "guaranteed", False),
]


@pytest.mark.parametrize(("plant", "mode", "calm"), BUGS, ids=lambda value: getattr(value, "__name__", None))
def test_what_is_broken_on_purpose_is_found(
    plant: Callable[[pytest.MonkeyPatch], None], mode: str, calm: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    assert any(problems(seed, mode, calm=calm) for seed in SEEDS_FOR_A_BUG)
