"""One run of the five sites: its clients, their requests, and what is measured (paper ordering, section 5.4)."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

import numpy as np

from tidings.core.ordering.placement import place
from tidings.core.ordering.stamps import Chain
from tidings.studies.ordering.load import SITES, clients_at_sites, popularity_at
from tidings.studies.ordering.sites import NS_PER_MS, NS_PER_S, SPEEDS, SimulatedSites, StampRequest


@dataclass(frozen=True, slots=True)
class Setting:
    shape: float
    topics: int
    clients: int
    topics_per_client: int
    precedence: str
    """`identifiers`, as in the paper, or `placed` by tidings.core.ordering.placement."""
    drawn: str
    speed: str
    rate_per_s: int
    duration_s: float
    warm_up_s: float
    seed: int


@dataclass(frozen=True, slots=True)
class Measured:
    """Measured over the requests after the warm-up, and the answers that arrived in that time."""

    latency_mean_ms: float
    latency_p99_ms: float
    throughput_per_s: float
    local_percent: float
    """Share of stamps made by one server alone."""
    near_percent: float
    """Share of requests to the publisher's own site."""
    hops: float
    entries: float
    outgoing_percent: list[float]
    """By server, the highest first: timestamp bytes forwarded to another server, as a share of all that it sent."""
    climbing_percent: list[float]
    """By server: the share of its requests that needed other servers."""
    busiest_percent: float


def run_sites(setting: Setting) -> Measured:
    random = np.random.default_rng(setting.seed)
    chances = [popularity_at(site, setting.shape, setting.topics) for site in range(SITES)]
    clients = clients_at_sites(chances, setting.clients, setting.topics_per_client, setting.drawn, random)
    order, starts = precedence_of(setting, clients)
    rank_of = {topic: rank for rank, topic in enumerate(order)}
    chain = Chain([f"site {site}" for site in starts], list(starts.values()), setting.topics)
    sites = SimulatedSites(chain, [site for site, _ in clients], SPEEDS[setting.speed], setting.seed)
    for number, (_, topics) in enumerate(clients):
        sites.subscribe(number, sorted(rank_of[topic] for topic in topics))
    count = round(setting.rate_per_s * setting.duration_s)
    times = np.sort(random.integers(0, round(setting.duration_s * NS_PER_S), count)).tolist()
    asking = random.integers(0, len(clients), count).tolist()
    drawn = [deque(random.choice(setting.topics, count, p=each).tolist()) for each in chances]
    requests = [
        (at, client, rank_of[drawn[clients[client][0]].popleft()])
        for at, client in zip(times, asking, strict=True)
    ]
    sites.run(requests)
    return measured(sites, setting)


def precedence_of(
    setting: Setting, clients: Sequence[tuple[int, list[int]]]
) -> tuple[Sequence[int], dict[int, int]]:
    if setting.precedence == "identifiers":
        topics = setting.topics
        return range(topics), {site: site * topics // SITES for site in range(SITES)}
    placement = place(range(setting.topics), clients, SITES)
    return placement.topics, placement.starts()


def measured(sites: SimulatedSites, setting: Setting) -> Measured:
    begin, end = round(setting.warm_up_s * NS_PER_S), round(setting.duration_s * NS_PER_S)
    timed = [request for request in sites.requests if begin <= request.asked_at < end]
    latency_ms = np.array([request.answered_at - request.asked_at for request in timed]) / NS_PER_MS
    answered = sum(begin <= request.answered_at < end for request in sites.requests)
    servers = sites.chain.servers
    return Measured(
        latency_mean_ms=float(latency_ms.mean()),
        latency_p99_ms=float(np.quantile(latency_ms, 0.99)),
        throughput_per_s=answered / (setting.duration_s - setting.warm_up_s),
        local_percent=100 * fmean(is_local(request, sites.chain) for request in timed),
        near_percent=100 * fmean(request.near for request in timed),
        hops=sites.relays / len(sites.requests),
        entries=fmean(request.entries for request in timed),
        outgoing_percent=[100 * sites.outgoing_share(server) for server in servers],
        climbing_percent=[100 * climbing_share(timed, server, sites.chain) for server in servers],
        busiest_percent=100 * max(sites.busy_ns.values()) / max(sites.schedule.now, 1),
    )


def is_local(request: StampRequest, chain: Chain) -> bool:
    """Say whether nothing in the stamp ranks above the server that was asked."""
    assert request.stamp is not None
    return min(request.stamp.index, default=request.rank) >= chain.ranks(request.server).start


def climbing_share(requests: Sequence[StampRequest], server: str, chain: Chain) -> float:
    local = [is_local(request, chain) for request in requests if request.server == server]
    return 1 - fmean(local) if local else 0.0
