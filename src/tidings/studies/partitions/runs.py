"""Figure 10 of the partitions paper, simulated: what is delivered while many brokers are down.

Every broker has a subscriber to everything; some brokers crash at once and come back together. Deliveries in between
are compared with the graph: pairs with more than delta consecutive failed brokers on their path are cut off, and no
others should be. All of it is read from trace tables, never from the state of brokers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby
from random import Random
from typing import NamedTuple

import numpy as np

from tidings.core.overlay.labels import Label, parse_label, path
from tidings.scenarios.file.schema import CrashFault, Overlay, Publisher, Scenario, SubscriberTable, TreeShape
from tidings.scenarios.trace.checkers.gaps import gap_free
from tidings.scenarios.trace.checkers.once import exactly_once
from tidings.scenarios.trace.checkers.per_source import fifo
from tidings.scenarios.trace.reader import Trace
from tidings.studies.recovery_runs import play

NS_PER_S = 1_000_000_000
FAILED_SHARE = 0.17
PUBLISHERS = 10
ROUND_S, DOWN_S, GRACE_S = 27.0, 15.0, 5.0
FIRST_ROUND_S = 8.0


class DuringFailures(NamedTuple):
    """% of the pairs of an event published during the failures and a subscriber at a live broker."""

    pairs: int
    delivered: float
    bound: float
    certified: float
    """At the end: % of the deliveries that the guarantee covers."""
    guarantees_hold: bool


def play_figure_10(
    brokers: int, degree: int, delta: int, *, failed: int | None = None, rounds: int = 1, seed: int = 1
) -> DuringFailures:
    trace = play(figure_10_scenario(brokers, degree, delta, rounds, seed, failed)).trace
    return during_failures(trace, delta)


def during_failures(trace: Trace, delta: int) -> DuringFailures:
    delivered, bound = delivered_during_failures(trace), connected_during_failures(trace, delta)
    owed = gap_free(trace, strict_end=True).counts
    return DuringFailures(
        len(delivered),
        100.0 * float(np.mean(delivered)),
        100.0 * float(np.mean(bound)),
        100.0 * owed["delivered"] / owed["expected"],
        guarantees_hold(trace),
    )


def figure_10_scenario(
    brokers: int, degree: int, delta: int, rounds: int, seed: int, failed: int | None = None
) -> Scenario:
    """Return the scenario: a subscriber at every broker; in each round other brokers crash at once and come back
    together."""
    random = Random(f"{seed}:figure 10:{brokers}:{degree}")
    names = [f"b{number}" for number in range(brokers)]
    homes = random.sample(names, PUBLISHERS)
    others = [name for name in names if name not in homes]
    failures = round(FAILED_SHARE * brokers) if failed is None else failed
    begins = [FIRST_ROUND_S + ROUND_S * number for number in range(rounds)]
    return Scenario(
        seed=seed,
        duration_s=FIRST_ROUND_S + ROUND_S * rounds,
        settle_s=10.0,
        overlay=Overlay(delta=delta, shape=TreeShape(brokers=brokers, degree=degree)),
        publishers=tuple(
            Publisher(name=f"p{number}", at=at, rate_hz=0.25, start_s=5.0) for number, at in enumerate(homes)
        ),
        subscribers=tuple(SubscriberTable(name=f"s{at}", at=at) for at in names),
        faults=tuple(
            CrashFault(at_s=at_s, until_s=at_s + DOWN_S, nodes=tuple(random.sample(others, failures)))
            for at_s in begins
        ),
    )


def guarantees_hold(trace: Trace) -> bool:
    """Check exactly once, order per source, and that no certified delivery is missing."""
    return exactly_once(trace).holds and fifo(trace).holds and gap_free(trace, strict_end=True).holds


class Tree:
    """The brokers of a trace by label, and the broker of each client."""

    def __init__(self, trace: Trace) -> None:
        rows = trace.nodes.to_pylist()
        self.labels = {row["node"]: parse_label(row["label"]) for row in rows if row["kind"] == "broker"}
        self.at = {row["node"]: row["parent"] for row in rows if row["kind"] != "broker"}

    def label_at(self, client: str) -> Label:
        return self.labels[self.at[client]]


class Pair(NamedTuple):
    """An event published while brokers are down, and a subscriber whose broker is up."""

    event: str
    origin: Label
    subscriber: str
    target: Label
    down: frozenset[Label]
    until_ns: int


def pairs_during_failures(trace: Trace) -> Iterator[Pair]:
    """Yield the pairs of events published at least `GRACE_S` before the brokers came back."""
    tree = Tree(trace)
    events = trace.published.select(["event_id", "source", "at_ns"]).to_pylist()
    subscribers = trace.subscribed["subscriber"].to_pylist()
    for fault in trace.faults.to_pylist():
        down = frozenset(tree.labels[name] for name in fault["target"].split(","))
        last_ns = fault["until_ns"] - round(GRACE_S * NS_PER_S)
        live = [(name, label) for name in subscribers if (label := tree.label_at(name)) not in down]
        for event in events:
            if fault["at_ns"] <= event["at_ns"] <= last_ns:
                origin = tree.label_at(event["source"])
                for name, label in live:
                    yield Pair(event["event_id"], origin, name, label, down, fault["until_ns"])


def delivered_during_failures(trace: Trace) -> list[bool]:
    """Say for each pair whether it was delivered before the brokers came back."""
    columns = (trace.delivered[name].to_pylist() for name in ("event_id", "subscriber", "at_ns"))
    at_ns = {(event, subscriber): at for event, subscriber, at in zip(*columns, strict=True)}
    return [
        at_ns.get((pair.event, pair.subscriber), pair.until_ns) < pair.until_ns
        for pair in pairs_during_failures(trace)
    ]


def connected_during_failures(trace: Trace, delta: int) -> list[bool]:
    """Say for each pair whether at most delta consecutive brokers on its path failed: no protocol does better."""
    return [
        longest_run(label in pair.down for label in path(pair.origin, pair.target)) <= delta
        for pair in pairs_during_failures(trace)
    ]


def longest_run(failed: Iterable[bool]) -> int:
    return max((sum(run) for is_failed, run in groupby(failed) if is_failed), default=0)
