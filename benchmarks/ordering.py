"""Measures what total order costs, without sockets: the size of stamps, the work per event, and how far stamps travel.

    python benchmarks/ordering.py [--only sizes,readings,cost,sites] [--quick] [--json]

- sizes: entries of a stamp over topics per client, with 10,000 clients and 1,000 topics (paper ordering, figure 7).
  Only entries for other topics count: with one topic per client there are none. The paper's mean is over topics; the
  mean over events weights topics by how often events are published on them.
- readings: the same at 10 topics per client, for each way to read 'a power law of shape 0.901 (0.349)'. The paper has
  means of 17 (46), and 0.5 % (40 %) of the topics with 80 % of the probability.
- cost: stamps per second of one server and events per second of one subscriber, as groups and the reordering grow.
- sites: five servers at five sites, each with its own popular topics: the share of stamps made within one site. The
  precedence is that of the paper (topics by identifier, 200 per site), or comes from
  `tidings.core.ordering.placement`: made for the actual clients, or for others drawn from the same popularity.

Sizes and sites are the same every time; rates are per CPU second of one core.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from random import Random
from statistics import fmean
from time import process_time
from typing import Any, NamedTuple

import numpy as np
from overlay import table_of
from rich.console import Console

from tidings.core.kernel import Node, RandomSource, Send, TimerName
from tidings.core.messages import Message
from tidings.core.ordering.groups import SequencingGroups
from tidings.core.ordering.messages import ChangeSubscription, Create, CreateRelay, EventStamps, WalkDone
from tidings.core.ordering.placement import place
from tidings.core.ordering.server.server import SequencerServer
from tidings.core.ordering.stamps import Chain, Timestamp
from tidings.core.ordering.subscriber import OrderedSubscriber
from tidings.studies.ordering.load import (
    DRAWS,
    SHAPES,
    SITES,
    TOPICS,
    Floats,
    clients_at_sites,
    draw_different,
    pareto,
    popularity_at,
    zipf,
)

PAPER_MEAN = {0.349: 46, 0.901: 17}
GOAL_LOCAL_PERCENT = 95.0
NOBODY: frozenset[int] = frozenset()


def progress(what: str) -> None:
    print(f"{what} ...", file=sys.stderr, flush=True)


# --- Sizes


class Sizes(NamedTuple):
    shape: float
    threshold: int
    topics_per_client: int
    mean: float
    p50: float
    p95: float
    max: int
    mean_over_events: float
    paper: int | None


def sizes(quick: bool) -> Iterator[Sizes]:
    clients, most = (1000, 10) if quick else (10_000, 20)
    for shape in SHAPES:
        chances = pareto(shape)
        draws = draw_different(chances, clients, most, np.random.default_rng(1))
        for threshold in (2, 1):
            progress(f"sizes: shape {shape}, threshold {threshold}")
            groups = SequencingGroups(range(TOPICS), threshold)
            for count in range(1, most + 1):
                for topics in draws:
                    groups.change(frozenset(topics[: count - 1]), frozenset(topics[:count]), ())
                entries = entries_of(groups)
                p50, p95 = np.quantile(entries, (0.5, 0.95)).tolist()
                published = (threshold, count, clients) == (2, 10, 10_000)
                yield Sizes(
                    shape,
                    threshold,
                    count,
                    float(entries.mean()),
                    p50,
                    p95,
                    int(entries.max()),
                    float(entries @ chances),
                    PAPER_MEAN[shape] if published else None,
                )


def entries_of(groups: SequencingGroups) -> Floats:
    return np.array([len(groups.members(topic)) for topic in range(TOPICS)], dtype=np.float64)


class Reading(NamedTuple):
    law: str
    topics_drawn: str
    shape: float
    percent_of_topics_with_80_percent: float
    mean_over_topics: float
    mean_over_subscribed_topics: float
    mean_over_events: float
    paper: int


def steeper_zipf(shape: float) -> Floats:
    return zipf(1 + shape)


LAWS: dict[str, Callable[[float], Floats]] = {
    "Pareto": pareto,
    "rank ** -shape": zipf,
    "rank ** -(1 + shape)": steeper_zipf,
}


def readings(quick: bool) -> Iterator[Reading]:
    for law, chances_of in LAWS.items():
        for drawn, draw in DRAWS.items():
            progress(f"readings: {law}, {drawn}")
            for shape in SHAPES:
                chances = chances_of(shape)
                groups = SequencingGroups(range(TOPICS), 2)
                subscribed: set[int] = set()
                for topics in draw(chances, 1000 if quick else 10_000, 10, np.random.default_rng(1)):
                    groups.change(NOBODY, frozenset(topics), ())
                    subscribed.update(topics)
                entries = entries_of(groups)
                head = int(np.searchsorted(np.cumsum(chances), 0.8)) + 1
                yield Reading(
                    law,
                    drawn,
                    shape,
                    100 * head / TOPICS,
                    float(entries.mean()),
                    float(entries[sorted(subscribed)].mean()),
                    float(entries @ chances),
                    PAPER_MEAN[shape],
                )


# --- Cost


class QuietPort:
    """Accepts everything and only counts."""

    def __init__(self, node: str) -> None:
        self.node = node
        self.random: RandomSource = Random(0)
        self.now = 0
        self.sent = 0
        self.facts = 0

    def send(self, to: str, message: Message) -> None:
        self.sent += 1

    def sender(self, to: str) -> Send:
        return lambda message: self.send(to, message)

    def set_timer(self, name: TimerName, at: int) -> None:
        pass

    def cancel_timer(self, name: TimerName) -> None:
        pass

    def emit(self, fact: object) -> None:
        self.facts += 1


class KeepingPort(QuietPort):
    """Keeps the answers to publishers."""

    def __init__(self, node: str) -> None:
        super().__init__(node)
        self.stamps: list[EventStamps] = []

    def send(self, to: str, message: Message) -> None:
        if isinstance(message, EventStamps):
            self.stamps.append(message)


class Cost(NamedTuple):
    of: str
    group: int
    batch: int
    reordered_within: int
    per_s: float
    us_each: float
    cost_to_group_of_1: float
    ns_per_entry: float


GROUPS = (1, 10, 46, 100, 1000)
WINDOWS = (1, 30, 300, 3000)
BATCHES = (1, 64)
PUBLISHER = ("publisher", 0)
Once = Callable[[], float]
"""Measures CPU seconds per stamp or event."""


def cost(quick: bool) -> Iterator[Cost]:
    rounds = 2 if quick else 7
    for batch in BATCHES:
        yield from compared("server, stamps", batch, 1, rounds, [stamping(group, batch) for group in GROUPS])
    for batch, window in ((64, 1), *((1, window) for window in WINDOWS)):
        events = [showing(group, batch, window) for group in GROUPS]
        yield from compared("subscriber, events", batch, window, rounds, events)


def compared(of: str, batch: int, window: int, rounds: int, measures: Sequence[Once]) -> Iterator[Cost]:
    """Yield the best of some rounds, each through all groups: other load on the machine only adds."""
    progress(f"cost: {of}, batch {batch}, reordered within {window}")
    each_s = [
        min(times) for times in zip(*[[once() for once in measures] for _ in range(rounds)], strict=True)
    ]
    for group, seconds in zip(GROUPS, each_s, strict=True):
        yield Cost(
            of, group, batch, window, 1 / seconds, 1e6 * seconds, seconds / each_s[0], 1e9 * seconds / group
        )


def requests_of(group: int, batch: int) -> list[Create]:
    """Return requests on one topic after the other; each is made when the one before is answered."""
    count = max(2_000_000 // (60 + group), 3 * max(WINDOWS)) // min(batch, 8)
    return [Create(PUBLISHER, number, number % group, batch, number - 1) for number in range(1, count + 1)]


def server_of(port: QuietPort, group: int) -> SequencerServer:
    """Return a server with two subscribers to as many topics as make a group of this size."""
    server = SequencerServer(port, Chain([port.node], [0], group), threshold=2)
    for subscriber in ("one", "other"):
        change = ChangeSubscription((subscriber, 0), 1, tuple(range(group)), ())
        server.on_change_subscription(subscriber, change)
    return server


def stamping(group: int, batch: int) -> Once:
    requests = requests_of(group, batch)

    def once() -> float:
        port = QuietPort("server")
        on_create = server_of(port, group).on_create
        port.sent = 0
        elapsed_s = timed(lambda: [on_create("publisher", request) for request in requests])
        if (port.sent, port.facts) != (len(requests), 0):
            raise SystemExit(f"{len(requests)} requests got {port.sent} answers, {port.facts} were rejected")
        return elapsed_s / (len(requests) * batch)

    return once


def showing(group: int, batch: int, window: int) -> Once:
    """Measure a subscriber whose events arrive up to `window` places late."""
    stamps = stamps_of(group, batch, window)

    def once() -> float:
        port = QuietPort("subscriber")
        receive = joined(port, group).receive
        port.facts = 0
        elapsed_s = timed(lambda: [receive(stamp, "event") for stamp in stamps])
        if port.facts != len(stamps):
            raise SystemExit(f"{port.facts} of {len(stamps)} events were shown")
        return elapsed_s / len(stamps)

    return once


def stamps_of(group: int, batch: int, window: int) -> list[Timestamp]:
    port = KeepingPort("server")
    server = server_of(port, group)
    for request in requests_of(group, batch):
        server.on_create("publisher", request)
    stamps = [
        Timestamp(answer.topic, answer.base + offset, answer.index, answer.values)
        for answer in port.stamps
        for offset in range(1, answer.count + 1)
    ]
    random = Random(1)
    late = [place + random.random() * (window - 1) for place in range(len(stamps))]
    return [stamps[place] for place in sorted(range(len(stamps)), key=late.__getitem__)]


def joined(port: QuietPort, group: int) -> OrderedSubscriber:
    """Return a subscriber to all topics of a group."""
    subscriber = OrderedSubscriber(port, Chain(["server"], [0], group), threshold=2)
    topics = tuple(range(group))
    subscriber.subscribe(*topics)
    subscriber.on_walk_done("server", WalkDone(subscriber.identity, 1, topics, (0,) * group))
    return subscriber


def timed(work: Callable[[], object]) -> float:
    gc.collect()
    gc.disable()
    try:
        start_s = process_time()
        work()
        return process_time() - start_s
    finally:
        gc.enable()


def verdict_on_cost(rows: Sequence[Cost]) -> str:
    us_of = {row[:4]: row.us_each for row in rows}
    said = []
    for of, batch, window in dict.fromkeys((row.of, row.batch, row.reordered_within) for row in rows):
        growth = us_of[of, 1000, batch, window] / us_of[of, 100, batch, window]
        said.append(
            f"{of}, batch {batch}, reordered within {window}: 10 times the group costs {growth:.1f} times as much"
        )
    for group in GROUPS:
        times = [us_of["subscriber, events", group, 1, window] for window in WINDOWS]
        ratios = ", ".join(f"{each / times[1]:.2f}" for each in times)
        said.append(
            f"group {group}: cost when reordered within {WINDOWS}, to that within {WINDOWS[1]}: {ratios}"
        )
    return "\n".join(said)


# --- Sites


class Case(NamedTuple):
    shape: float
    clients: int
    topics_drawn: str
    foreign_topics: str
    """Which topics of other sites a site prefers: those next by identifier, or any."""


class Local(NamedTuple):
    shape: float
    clients: int
    topics_drawn: str
    foreign_topics: str
    precedence: str
    percent_within_one_site: float
    lowest: float
    percent_of_topics: float
    percent_asked_at_own_site: float
    hops_per_stamp: float
    percent_climbing_by_server: str


CASES = (
    Case(0.901, 1000, "different", "next"),
    Case(0.901, 1000, "different", "any"),
    Case(0.901, 1000, "repeated", "next"),
    Case(0.901, 10_000, "different", "next"),
    Case(0.349, 1000, "different", "next"),
    Case(0.349, 1000, "repeated", "next"),
    Case(0.349, 10_000, "different", "next"),
)
PRECEDENCES = ("identifiers", "placed", "placed for others")
SEEDS = range(100, 110)
"""Not those used to tune the placement's settings."""


def sites(quick: bool) -> Iterator[Local]:
    for case in CASES[:1] if quick else CASES:
        seeds = SEEDS[:2] if quick or case.clients > 1000 else SEEDS
        for precedence in PRECEDENCES:
            progress(f"sites: {' '.join(map(str, case))}, precedence {precedence}")
            runs = [run_sites(case, precedence, seed, 4000 if quick else 20_000) for seed in seeds]
            share, lowest = fmean(run.local for run in runs), min(run.local for run in runs)
            yield Local(
                *case,
                precedence,
                100 * share,
                100 * lowest,
                100 * fmean(run.local_topics for run in runs),
                100 * fmean(run.near for run in runs),
                fmean(run.hops for run in runs),
                " ".join(
                    f"{100 * fmean(climbing):.0f}"
                    for climbing in zip(*[run.climbing for run in runs], strict=True)
                ),
            )


class SiteRun(NamedTuple):
    local: float
    local_topics: float
    near: float
    hops: float
    climbing: list[float]
    """By server, from the top of the chain down."""


def run_sites(case: Case, precedence: str, seed: int, events: int) -> SiteRun:
    """Subscribe everybody through the chain, then publish, and count how far each request climbs."""
    random = np.random.default_rng(seed)
    shuffled = random if case.foreign_topics == "any" else None
    chances = [popularity_at(site, case.shape, TOPICS, shuffled) for site in range(SITES)]
    clients = clients_of(case, chances, random)
    order, starts = tuple(range(TOPICS)), {site: site * TOPICS // SITES for site in range(SITES)}
    if precedence != "identifiers":
        others = clients_of(case, chances, np.random.default_rng(seed + 1000))
        placement = place(range(TOPICS), clients if precedence == "placed" else others, SITES)
        order, starts = placement.topics, placement.starts()
    rank_of = {topic: rank for rank, topic in enumerate(order)}
    network = ChainOfSites(starts)
    for number, (_, topics) in enumerate(clients):
        network.subscribe(f"client {number}", sorted(rank_of[topic] for topic in topics))
    for site in range(SITES):
        for topic in random.choice(TOPICS, size=events // SITES, p=chances[site]).tolist():
            network.publish(site, rank_of[topic])
    return network.result()


def clients_of(
    case: Case, chances: Sequence[Floats], random: np.random.Generator
) -> list[tuple[int, list[int]]]:
    return clients_at_sites(chances, case.clients, 10, case.topics_drawn, random)


class ChainOfSites:
    """A server at each site; everything sent along the chain is delivered at once."""

    def __init__(self, starts: dict[int, int]) -> None:
        self.chain = Chain([f"site {site}" for site in starts], list(starts.values()), TOPICS)
        self.queue: deque[tuple[str, str, Message]] = deque()
        self.servers = {
            name: SequencerServer(ChainPort(name, self), self.chain, threshold=2)
            for name in self.chain.servers
        }
        self.nodes = {name: Node([server]) for name, server in self.servers.items()}
        self.asked: Counter[tuple[int, str]] = Counter()
        """(publisher's site, server) -> requests."""
        self.relays = 0
        self.answers = 0
        self.hops_of: dict[str, list[int]] = {name: [] for name in self.chain.servers}

    def send(self, sender: str, to: str, message: Message) -> None:
        if to in self.servers:
            self.relays += isinstance(message, CreateRelay)
            self.queue.append((to, sender, message))
        else:
            self.answers += isinstance(message, EventStamps | WalkDone)

    def ask(self, sender: str, to: str, message: Message) -> None:
        """Send a request and check its answer: a rejected request would look like one that stays within its site."""
        before = self.answers
        self.queue.append((to, sender, message))
        while self.queue:
            to, sender, message = self.queue.popleft()
            self.nodes[to].receive(sender, message)
        if self.answers != before + 1:
            raise SystemExit(f"{self.answers - before} answers to {message}")

    def subscribe(self, client: str, ranks: list[int]) -> None:
        change = ChangeSubscription((client, 0), 1, tuple(ranks), ())
        self.ask(client, self.chain.server_of(ranks[-1]), change)

    def publish(self, site: int, rank: int) -> None:
        server, before = self.chain.server_of(rank), self.relays
        self.asked[site, server] += 1
        publisher, number = f"publisher {site}", self.asked[site, server]
        self.ask(publisher, server, Create((publisher, 0), number, rank, 1, number - 1))
        self.hops_of[server].append(self.relays - before)

    def result(self) -> SiteRun:
        hops = [hops for of_server in self.hops_of.values() for hops in of_server]
        near = sum(count for (site, server), count in self.asked.items() if server == f"site {site}")
        within = [
            min(server.groups.members(rank), default=rank) >= server.own.start
            for server in self.servers.values()
            for rank in server.own
        ]
        return SiteRun(
            hops.count(0) / len(hops),
            fmean(within),
            near / len(hops),
            fmean(hops),
            [1 - of_server.count(0) / max(1, len(of_server)) for of_server in self.hops_of.values()],
        )


class ChainPort(QuietPort):
    def __init__(self, node: str, network: ChainOfSites) -> None:
        super().__init__(node)
        self._network = network

    def send(self, to: str, message: Message) -> None:
        self._network.send(self.node, to, message)

    def emit(self, fact: object) -> None:
        raise SystemExit(f"{self.node}: {fact}")


def verdict_on_sites(rows: Sequence[Local]) -> str:
    return "\n".join(
        f"shape {row.shape}, {row.clients:,} clients, {row.topics_drawn} topics, foreign {row.foreign_topics}, "
        f"{row.precedence}: {row.percent_within_one_site:.1f} % within one site, the goal of "
        f"{GOAL_LOCAL_PERCENT:.0f} % is {'met' if row.percent_within_one_site >= GOAL_LOCAL_PERCENT else 'NOT met'}"
        for row in rows
        if row.shape == 0.901
    )


# --- All


class Section(NamedTuple):
    title: str
    measure: Callable[[bool], Iterator[Any]]
    verdict: Callable[[Sequence[Any]], str] | None = None


SECTIONS = {
    "sizes": Section("entries of a stamp, 1,000 topics, 10,000 clients (quick: 1,000)", sizes),
    "readings": Section("entries at 10 topics per client, by reading of the power law", readings),
    "cost": Section("CPU of one server and of one subscriber", cost, verdict_on_cost),
    "sites": Section("five sites, 10 topics per client, threshold 2", sites, verdict_on_sites),
}


def sections(text: str) -> list[str]:
    names = text.split(",")
    unknown = [name for name in names if name not in SECTIONS]
    if unknown:
        raise argparse.ArgumentTypeError(
            f"unknown section {', '.join(unknown)!r}; known sections: {', '.join(SECTIONS)}"
        )
    return names


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--only", type=sections, default=list(SECTIONS), help="run only these sections, such as sizes,cost"
    )
    parser.add_argument("--quick", action="store_true", help="fewer clients, rounds and cases")
    parser.add_argument("--json", action="store_true", help="print the numbers as JSON")
    options = parser.parse_args()
    results: dict[str, Any] = {}
    console = Console(width=180)
    for name, section in SECTIONS.items():
        if name not in options.only:
            continue
        rows = list(section.measure(options.quick))
        results[name] = [row._asdict() for row in rows]
        if section.verdict is not None:
            results[f"{name}_verdict"] = section.verdict(rows).splitlines()
        if not options.json:
            console.print(table_of(f"{name}: {section.title}", rows))
            for line in results.get(f"{name}_verdict", []):
                console.print(line, highlight=False)
    if options.json:
        print(json.dumps(results, indent=2))


if __name__ == "__main__":
    main()
