"""Measures what the guaranteed overlay costs and what it keeps up, in the simulator (partitions paper, section IX).

    python benchmarks/overlay.py [--only NAME] [--quick] [--full] [--json]

- cost: messages and bytes between brokers per delivery, without failures and with delta brokers down, against the
  tree's minimum (one message over each link that leads to a subscriber) and against best-effort in the same run.
- recovery: how much later than usual the first event arrives that is published after a failure on its path.
- memory: the time and memory that one broker needs for many subscriptions with different filters.
- figure10: 100 % matching, 17 % of the brokers crash: what is delivered while they are down, and at the end.
- growth: the cost of a publication as the number of publications, or of matching subscriptions, grows.

Deliveries are computed from trace tables, never from the state of brokers. Times are virtual or CPU time; other load on
the machine changes the latter by some 20 %.
"""

from __future__ import annotations

import argparse
import gc
import json
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import groupby, islice, pairwise
from multiprocessing import get_context
from os import sysconf
from pathlib import Path
from random import Random
from time import process_time
from typing import Any, NamedTuple

import numpy as np
from rich.console import Console
from rich.table import Table

from tidings.core.kernel import RandomSource, Send, TimerName
from tidings.core.messages import Message
from tidings.core.overlay.guaranteed.broker import DEFAULT_WINDOW, GuaranteedBroker
from tidings.core.overlay.guaranteed.messages import (
    Activate,
    Covered,
    Greeting,
    Record,
    Records,
    RecordsTaken,
    Sync,
)
from tidings.core.overlay.labels import Label, path
from tidings.scenarios.file.expand import expand
from tidings.scenarios.file.schema import (
    ChainShape,
    CrashFault,
    Fault,
    IntAttribute,
    LinkFault,
    Overlay,
    Publisher,
    Scenario,
    SubscriberTable,
    TreeShape,
)
from tidings.scenarios.simulate import Simulation
from tidings.scenarios.trace.checkers.gaps import gap_free
from tidings.scenarios.trace.reader import Trace
from tidings.scenarios.trace.writer import TraceWriter
from tidings.storage.disk_store import DiskStore
from tidings.studies.partitions.expected import CONNECTED, DELIVERY_BROKERS, DELIVERY_FAILURES
from tidings.studies.partitions.runs import (
    FAILED_SHARE,
    Tree,
    during_failures,
    figure_10_scenario,
    guarantees_hold,
)

DELTA = 2


class Run(NamedTuple):
    """A simulated scenario: its trace, and the CPU time that it took."""

    trace: Trace
    cpu_s: float
    publishing_cpu_s: float
    """Since the first publication was due, without subscribing."""


def simulate(scenario: Scenario) -> Run:
    start_s = min(publisher.start_s for publisher in scenario.publishers)
    quiet_share = start_s / (scenario.duration_s + scenario.settle_s)
    with tempfile.TemporaryDirectory() as directory:
        with TraceWriter(Path(directory)) as writer:
            simulation = Simulation(expand(scenario), writer)
            began = started = process_time()

            def look(share: float) -> None:
                nonlocal started
                if share < quiet_share:
                    started = process_time()

            simulation.run(look)
            ended = process_time()
            simulation.close()
        return Run(Trace.read(directory), ended - began, ended - started)


# --- cost ---------------------------------------------------------------------------------------------------

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


# --- recovery -----------------------------------------------------------------------------------------------

CHAIN = 8
FIRST_FAILURE_S, EVERY_S, FAILED_S = 10.0, 25.0, 15.0

Draw = Callable[[Random], tuple[str, ...]]


class Recovery(NamedTuple):
    """Milliseconds above the usual latency, for an event published 1 ms after a failure or after its end."""

    failure: str
    failures: int
    usual_ms: float
    mean_ms: float
    p99_ms: float
    max_ms: float
    end_mean_ms: float
    end_max_ms: float


def recovery(scale: float) -> Iterator[Recovery]:
    """Measure recovery on a chain, from one end to the other."""
    failures = round(200 * scale)
    inner = range(1, CHAIN - 1)
    yield recovery_from("crash of a broker", failures, lambda random: (f"b{random.choice(inner)}",))
    yield recovery_from("crash of delta brokers in a row", failures, lambda r: in_a_row(r.choice(inner[:-1])))
    yield recovery_from("link", failures, lambda r: in_a_row(r.randrange(CHAIN - 2)), link=True)
    yield recovery_from("link beside the subscriber", failures, lambda _: in_a_row(CHAIN - 2), link=True)


def in_a_row(first: int) -> tuple[str, ...]:
    return tuple(f"b{first + offset}" for offset in range(DELTA))


def recovery_from(failure: str, failures: int, draw: Draw, *, link: bool = False) -> Recovery:
    trace = simulate(recovery_scenario(failures, draw, link=link)).trace
    coded = trace.coded
    if not guarantees_hold(trace):
        raise SystemExit(f"recovery from {failure}: a guarantee does not hold")
    source = np.array([name.rstrip("0123456789") for name in coded.events.source_names])
    of_source = source[coded.events.source[coded.event]]
    latency_ms = (coded.at - coded.events.at[coded.event]) / 1e6
    usual_ms = float(np.median(latency_ms[of_source == "before"]))
    late_ms, end_ms = (latency_ms[of_source == name] - usual_ms for name in ("failed", "ended"))
    return Recovery(
        failure,
        failures,
        usual_ms,
        float(late_ms.mean()),
        float(np.percentile(late_ms, 99)),
        float(late_ms.max()),
        float(end_ms.mean()),
        float(end_ms.max()),
    )


def recovery_scenario(failures: int, draw: Draw, *, link: bool) -> Scenario:
    """Return the scenario: three publishers publish once, a second before each failure, just after it, and just after
    its end."""
    random = Random(1)
    publishers: list[Publisher] = []
    faults: list[Fault] = []
    for number in range(failures):
        at_s = FIRST_FAILURE_S + EVERY_S * number + random.random()
        until_s = at_s + FAILED_S
        names = draw(random)
        if link:
            faults.append(LinkFault(at_s=at_s, until_s=until_s, between=(names[0], names[1])))
        else:
            faults.append(CrashFault(at_s=at_s, until_s=until_s, nodes=names))
        for name, start_s in (("before", at_s - 1.0), ("failed", at_s + 0.001), ("ended", until_s + 0.001)):
            publishers.append(
                Publisher(name=f"{name}{number}", at="b0", count=1, start_s=start_s, arrival="periodic")
            )
    return Scenario(
        seed=1,
        duration_s=FIRST_FAILURE_S + EVERY_S * failures,
        overlay=Overlay(delta=DELTA, shape=ChainShape(brokers=CHAIN)),
        publishers=tuple(publishers),
        subscribers=(SubscriberTable(name="s", at=f"b{CHAIN - 1}"),),
        faults=tuple(faults),
    )


# --- memory -------------------------------------------------------------------------------------------------

BATCH = 500


class Memory(NamedTuple):
    """One broker between two others; `taking` is all that it does until everybody has the records."""

    subscriptions: int
    resident_bytes: float
    stored_bytes: float
    taking_us: float


def memory(scale: float) -> Iterator[Memory]:
    """Measure each size in a process of its own: memory that was used and freed before would hide what is used."""
    for size in (round(10_000 * scale), round(100_000 * scale)):
        with ProcessPoolExecutor(1, get_context("spawn")) as process:
            yield process.submit(take_subscriptions, size).result()


def take_subscriptions(size: int) -> Memory:
    with tempfile.TemporaryDirectory() as directory:
        store = DiskStore(Path(directory) / "store")
        peers = QuietPeers()
        broker = GuaranteedBroker(
            peers,
            (0, 0),
            {"above": ((0,), ""), "below": ((0, 0, 0), "")},
            store,
            delta=0,
            incarnation=1,
            new=True,
        )
        peers.connect(broker)
        for record in distinct_records(1):  # what is created only once does not count
            broker.receive("above", Records((record,)))
        peers.answer(broker)
        gc.collect()
        before_bytes, began = resident_bytes(), process_time()
        coming = distinct_records(size, first=1)
        while records := tuple(islice(coming, BATCH)):
            broker.receive("above", Records(records))
            peers.answer(broker)
        cpu_s, used_bytes = process_time() - began, resident_bytes() - before_bytes
        if len(broker.log) != size + 1:
            raise SystemExit(f"memory: the broker has {len(broker.log)} records of {size + 1}")
        stored = store.size_bytes("log") / size
        store.close()
    return Memory(size, used_bytes / size, stored, 1e6 * cpu_s / size)


def distinct_records(size: int, first: int = 0) -> Iterator[Record]:
    for number in range(first, first + size):
        text = f"price > {number} AND kind = 'k{number % 50}'"
        yield Record(f"b{number % 100}/1/{number}", f"b{number % 100}", (0, 1, number % 100), ("/a",), text)


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * sysconf("SC_PAGE_SIZE")


class QuietPeers:
    """The Port of a broker whose peers only answer as the protocol demands."""

    node = "here"
    now = 0

    def __init__(self) -> None:
        self.random: RandomSource = Random(0)
        self._answers: list[tuple[str, Message]] = []

    def connect(self, broker: GuaranteedBroker) -> None:
        broker.start()
        for peer, label in (("above", (0,)), ("below", (0, 0, 0))):
            broker.link_up(peer)
            broker.receive(peer, Greeting(label, 0, 1, DEFAULT_WINDOW))
            broker.receive(peer, Activate((), (), True))
        self.answer(broker)

    def answer(self, broker: GuaranteedBroker) -> None:
        while self._answers:
            answers, self._answers = self._answers, []
            for peer, message in answers:
                broker.receive(peer, message)

    def send(self, to: str, message: Message) -> None:
        if isinstance(message, Activate) and message.last:
            self._answers.append((to, Sync((), True)))
        elif isinstance(message, Records):
            ids = tuple(record.id for record in message.records)
            self._answers.append((to, RecordsTaken(ids, ())))
            self._answers.append((to, Covered(ids, False, (((0, 0, 0), True, True),))))

    def sender(self, to: str) -> Send:
        return lambda message: self.send(to, message)

    def set_timer(self, name: TimerName, at: int) -> None:
        pass

    def cancel_timer(self, name: TimerName) -> None:
        pass

    def emit(self, fact: object) -> None:
        pass


# --- figure 10 ----------------------------------------------------------------------------------------------

PAPER = ("", "~89", "~93", "97")
"""By delta: 'about 3 % lower than expected' for 3, 'steps of about 4 %' from 3 to 1."""


class Figure10(NamedTuple):
    """% of the pairs of an event published during the failures and a subscriber at a live broker."""

    degree: int
    brokers: int
    failed: int
    delta: int
    pairs: int
    delivered: float
    bound: float
    mean_bound: float | None
    paper: str
    certified: float
    guarantees_hold: bool
    cpu_s: float


def figure_10(scale: float, *, full: bool) -> Iterator[Figure10]:
    brokers, rounds = (DELIVERY_BROKERS, 4 if full else 2) if scale == 1 else (60, 1)
    for degree in (3, 7) if full else (3,):
        for delta in range(4):
            yield figure_10_point(brokers, degree, delta, rounds=rounds)


def figure_10_point(brokers: int, degree: int, delta: int, *, rounds: int = 1, seed: int = 1) -> Figure10:
    run = simulate(figure_10_scenario(brokers, degree, delta, rounds, seed))
    found = during_failures(run.trace, delta)
    return Figure10(
        degree,
        brokers,
        round(FAILED_SHARE * brokers),
        delta,
        found.pairs,
        found.delivered,
        found.bound,
        CONNECTED[degree, DELIVERY_FAILURES][delta] if brokers == DELIVERY_BROKERS else None,
        PAPER[delta],
        found.certified,
        found.guarantees_hold,
        run.cpu_s,
    )


# --- growth -------------------------------------------------------------------------------------------------


class Growth(NamedTuple):
    """The cost of publications, without that of an idle network.

    `ratio`: the time per publication (where subscriptions are doubled, per delivery) relative to the row before.
    """

    doubled: str
    publications: int
    subscriptions: int
    messages_per_publication: float
    publication_us: float
    delivery_us: float
    ratio: float | None


def growth(scale: float) -> Iterator[Growth]:
    count, doublings = round(1000 * scale), 2 if scale == 1 else 1
    rows = [growth_point("publications", count << doubling, 20) for doubling in range(doublings + 1)]
    yield from with_ratios(rows, lambda row: row.publication_us)
    rows = [growth_point("subscriptions", count, 20 << doubling) for doubling in range(doublings + 1)]
    yield from with_ratios(rows, lambda row: row.delivery_us)


def growth_point(doubled: str, publications: int, subscriptions: int) -> Growth:
    idle, busy = (simulate(growth_scenario(count, subscriptions)) for count in (0, publications))
    cpu_us = 1e6 * (busy.publishing_cpu_s - idle.publishing_cpu_s)
    messages = all_messages(busy.trace) - all_messages(idle.trace)
    deliveries = busy.trace.delivered.num_rows
    if deliveries != publications * subscriptions:
        raise SystemExit(f"growth: {deliveries} deliveries of {publications * subscriptions}")
    return Growth(
        doubled,
        publications,
        subscriptions,
        messages / publications,
        cpu_us / publications,
        cpu_us / deliveries,
        None,
    )


def with_ratios(rows: Sequence[Growth], unit_cost: Callable[[Growth], float]) -> Iterator[Growth]:
    yield rows[0]
    for before, row in pairwise(rows):
        yield row._replace(ratio=unit_cost(row) / unit_cost(before))


def growth_scenario(publications: int, subscriptions: int, brokers: int = 40) -> Scenario:
    """Return the scenario: subscribers with different filters that all match, spread evenly; four publishers."""
    return Scenario(
        seed=1,
        duration_s=20.0,
        settle_s=10.0,
        overlay=Overlay(delta=DELTA, shape=TreeShape(brokers=brokers, degree=3)),
        publishers=tuple(
            Publisher(
                name=f"p{number}",
                at=f"b{11 * number}",
                count=publications // 4,
                rate_hz=publications / 40 or 1.0,
                start_s=5.0,
                arrival="periodic",
                attributes={"x": IntAttribute(low=0, high=9)},
            )
            for number in range(4)
        ),
        subscribers=tuple(
            SubscriberTable(name=f"s{number}", at=f"b{7 * number % brokers}", filter=f"x > {-1 - number}")
            for number in range(subscriptions)
        ),
    )


def all_messages(trace: Trace) -> int:
    return int(sum(trace.traffic["messages"].to_pylist()))


# --- the command --------------------------------------------------------------------------------------------

MAX_COLUMNS = 12
Section = Callable[[float, bool], Iterator[Any]]

SECTIONS: dict[str, tuple[str, Section]] = {
    "cost": ("between brokers, per delivery (40 brokers, delta 2)", lambda scale, _: cost(scale)),
    "recovery": (
        f"the first event after a failure, ms above usual (chain of {CHAIN}, delta {DELTA})",
        lambda scale, _: recovery(scale),
    ),
    "memory": ("a broker with many subscriptions, each", lambda scale, _: memory(scale)),
    "figure10": (
        "% delivered while brokers are down, and of everything certified at the end",
        lambda scale, full: figure_10(scale, full=full),
    ),
    "growth": (
        "CPU us above that of an idle network (40 brokers, delta 2)",
        lambda scale, _: growth(scale),
    ),
}


def table_of(title: str, rows: Sequence[Any]) -> Table:
    """Return a table with a line per row, or a column per row if it has too many fields for a line."""
    fields = [field.replace("_", " ") for field in rows[0]._fields]
    lines = [[shown(value) for value in row] for row in rows]
    if len(fields) > MAX_COLUMNS:
        fields, *lines = [list(line) for line in zip(fields, *lines, strict=True)]
    table = Table(title=title)
    for number, field in enumerate(fields):
        table.add_column(field, justify="right" if number else "left")
    for line in lines:
        table.add_row(*line)
    return table


def shown(value: object) -> str:
    match value:
        case None:
            return ""
        case bool():
            return "yes" if value else "NO"
        case int():
            return f"{value:,}"
        case float():
            return f"{value:,.2f}" if abs(value) < 1000 else f"{value:,.0f}"
        case _:
            return str(value)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--only", choices=SECTIONS, help="run only this measurement")
    parser.add_argument("--quick", action="store_true", help="a tenth of the events and a smaller figure 10")
    parser.add_argument(
        "--full", action="store_true", help="also run figure 10 with degree 7, and more rounds"
    )
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    if arguments.quick and arguments.full:
        parser.error("--quick and --full exclude each other")
    results: dict[str, list[dict[str, Any]]] = {}
    console = Console()
    for name, (title, section) in SECTIONS.items():
        if arguments.only not in (None, name):
            continue
        rows = list(section(0.1 if arguments.quick else 1.0, arguments.full))
        results[name] = [row._asdict() for row in rows]
        if not arguments.json:
            console.print(table_of(f"{name}: {title}", rows))
    if arguments.json:
        print(json.dumps(results, indent=2))


if __name__ == "__main__":
    main()
