"""Messages and bytes between brokers per delivery, without failures and with some; for benchmarks/overlay.py."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from random import Random
from typing import NamedTuple

import numpy as np
from overlay_runs import DELTA, Run, simulate

from tidings.core.overlay.labels import Label, path
from tidings.scenarios.file.schema import (
    CrashFault,
    Overlay,
    Publisher,
    Scenario,
    SubscriberTable,
    TreeShape,
)
from tidings.scenarios.trace.checkers.gaps import gap_free
from tidings.scenarios.trace.reader import Trace
from tidings.studies.partitions.runs import Tree

PUBLICATIONS = frozenset({"publication", "forward"})
CONFIRMATIONS = frozenset({"passed", "parked", "taken"})
HEARTBEATS = frozenset({"heartbeat"})


class Cost(NamedTuple):
    """Between brokers, per delivery; `least` is the number of links that lead to subscribers."""

    mode: str
    down: int
    deliveries: int
    delivered_share: float
    least: float
    publications: float
    confirmations: float
    heartbeats: float
    others: float
    messages: float
    bytes: float
    times_least_messages: float
    times_least_bytes: float
    times_best_effort_bytes: float
    times_best_effort_cpu: float


def cost(scale: float) -> Iterator[Cost]:
    for down in (0, DELTA):
        best_effort, guaranteed = (
            simulate(cost_scenario(mode, down, max(60.0 * scale, 15.0)))
            for mode in ("best-effort", "guaranteed")
        )
        yield cost_of("best-effort", down, best_effort, best_effort)
        yield cost_of("guaranteed", down, guaranteed, best_effort)


def cost_scenario(mode: str, down: int, duration_s: float, brokers: int = 40) -> Scenario:
    """Return the scenario: ten topics, two per subscriber; from 5 s on, `down` brokers are down for 8 s out of 10."""
    random = Random(1)
    names = [f"b{number}" for number in range(brokers)]
    homes = random.sample(names, 4)
    others = [name for name in names if name not in homes]
    topics = [f"/t{number}" for number in range(10)]
    return Scenario(
        seed=1,
        duration_s=duration_s,
        settle_s=15.0,
        overlay=Overlay(mode=mode, delta=DELTA, shape=TreeShape(brokers=brokers, degree=3)),  # type: ignore[arg-type]
        publishers=tuple(
            Publisher(name=f"p{at}", at=at, topics=tuple(topics), rate_hz=20.0, start_s=2.0) for at in homes
        ),
        subscribers=tuple(
            SubscriberTable(name=f"s{at}", at=at, topics=tuple(random.sample(topics, 2))) for at in names
        ),
        faults=tuple(
            CrashFault(at_s=at_s, until_s=at_s + 8.0, nodes=tuple(random.sample(others, down)))
            for at_s in np.arange(5.0, duration_s - 5.0, 10.0).tolist()
            if down
        ),
    )


def cost_of(mode: str, down: int, run: Run, best_effort: Run) -> Cost:
    counts, reference = BrokerTraffic(run.trace), BrokerTraffic(best_effort.trace)
    owed = gap_free(run.trace, strict_end=True).counts
    deliveries = run.trace.delivered.num_rows
    least = least_messages(run.trace)
    publication_bytes = reference.bytes_of(PUBLICATIONS) / reference.messages_of(PUBLICATIONS)
    publications, confirmations, heartbeats = (
        counts.messages_of(kinds) / deliveries for kinds in (PUBLICATIONS, CONFIRMATIONS, HEARTBEATS)
    )
    messages, size_bytes = counts.messages_of() / deliveries, counts.bytes_of() / deliveries
    reference_deliveries = best_effort.trace.delivered.num_rows
    return Cost(
        mode=mode,
        down=down,
        deliveries=deliveries,
        delivered_share=owed["delivered"] / owed["expected"],
        least=least / deliveries,
        publications=publications,
        confirmations=confirmations,
        heartbeats=heartbeats,
        others=messages - publications - confirmations - heartbeats,
        messages=messages,
        bytes=size_bytes,
        times_least_messages=messages / (least / deliveries),
        times_least_bytes=size_bytes / (publication_bytes * least / deliveries),
        times_best_effort_bytes=size_bytes / (reference.bytes_of() / reference_deliveries),
        times_best_effort_cpu=(run.publishing_cpu_s / deliveries)
        / (best_effort.publishing_cpu_s / reference_deliveries),
    )


class BrokerTraffic:
    """What brokers sent to brokers, by kind of message."""

    def __init__(self, trace: Trace) -> None:
        brokers = Tree(trace).labels.keys()
        rows = trace.traffic.to_pylist()
        self._rows = [row for row in rows if row["from"] in brokers and row["to"] in brokers]

    def messages_of(self, kinds: frozenset[str] | None = None) -> int:
        return sum(row["messages"] for row in self._rows if kinds is None or row["kind"] in kinds)

    def bytes_of(self, kinds: frozenset[str] | None = None) -> int:
        return sum(row["bytes"] for row in self._rows if kinds is None or row["kind"] in kinds)


def least_messages(trace: Trace) -> int:
    """Count, for each event, the links on the paths from its broker to those where it was delivered, each once."""
    tree = Tree(trace)
    deliveries = sorted(
        zip(*(trace.delivered[name].to_pylist() for name in ("event_id", "subscriber")), strict=True)
    )
    links = 0
    for event_id, rows in groupby(deliveries, key=lambda row: row[0]):
        origin = tree.label_at(event_id.rpartition(":")[0])
        reached: set[Label] = set()
        for _, subscriber in rows:
            reached.update(path(origin, tree.label_at(subscriber)))
        links += len(reached) - 1  # these brokers form a tree
    return links
