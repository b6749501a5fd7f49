"""The share of stamps made within one of five sites; for benchmarks/ordering.py."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator, Sequence
from statistics import fmean
from typing import NamedTuple

import numpy as np
from output import progress
from quiet_port import QuietPort

from tidings.core.kernel import Node
from tidings.core.messages import Message
from tidings.core.ordering.messages import ChangeSubscription, Create, CreateRelay, EventStamps, WalkDone
from tidings.core.ordering.placement import place
from tidings.core.ordering.server.server import SequencerServer
from tidings.core.ordering.stamps import Chain
from tidings.studies.ordering.load import (
    SITES,
    TOPICS,
    Floats,
    clients_at_sites,
    popularity_at,
)

GOAL_LOCAL_PERCENT = 95.0


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
