"""Measures what a broker needs in mode epidemic as the network grows, at the same load per broker; for recovery.py.

One broker in ten has a publisher of 2 events/s; every broker has subscribers to 2 topics, and there is one topic per
five brokers, so each event has about 10 subscribers, however many brokers there are. 5 % of the messages are lost. A
run first rests, with all subscriptions in place, then publishes.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from random import Random
from typing import NamedTuple

from output import progress
from overlay_memory import resident_bytes

from tidings.scenarios.file.schema import (
    BernoulliLoss,
    Network,
    Overlay,
    Publisher,
    Recovery,
    Scenario,
    SubscriberTable,
    TreeShape,
)
from tidings.scenarios.simulate import DATA, GOSSIP
from tidings.studies.recovery_runs import DIRECTORY, BrokerTraffic, play

SMALLEST = 10
RATE_HZ = 2.0
TOPICS_PER_BROKER = 2
REST_AT_S, START_S, END_S = 30.0, 40.0, 50.0
SETTLE_S = 50.0
LOSS = BernoulliLoss(rate=0.05)


class Growth(NamedTuple):
    """Between brokers, per broker: in total until everybody has subscribed; per second of rest; per second of
    publishing.

    Gossip is digests and counts; the events and blocks that it brings are `brought`, and are also counted as events.
    CPU is what publishing adds to rest. Memory includes the simulator's part.
    """

    brokers: int
    delivered_percent: float
    join_messages: float
    join_directory_kb: float
    rest_messages: float
    rest_bytes: float
    rest_directory_messages: float
    gossip_messages: float
    gossip_bytes: float
    brought_messages: float
    event_messages: float
    event_bytes: float
    cpu_us_per_delivery: float
    broker_kb: float


def growth(quick: bool) -> Iterator[Growth]:
    """Measure each size in a process of its own: memory that was used and freed before would hide what is used."""
    for brokers in (SMALLEST, 30, 100) if quick else (SMALLEST, 30, 100, 300, 1000):
        progress(f"growth: {brokers} brokers")
        with ProcessPoolExecutor(1, get_context("spawn")) as process:
            yield process.submit(growth_point, brokers).result()


def growth_point(brokers: int) -> Growth:
    once = play(growth_scenario(SMALLEST))  # what is created only once does not count
    scenario = growth_scenario(brokers)
    gc.collect()
    before_bytes = resident_bytes()
    played = play(scenario, (REST_AT_S, START_S, END_S + SETTLE_S))
    gc.collect()
    used_bytes = resident_bytes() - before_bytes
    del once  # not earlier: its freed memory would be reused
    if not played.all_subscribed_by(REST_AT_S):
        raise SystemExit("growth: some subscribers had not subscribed in time")
    begun, started, ended = played.counts
    rest, load = started.since(begun), ended.since(started)
    resting, loaded = brokers * (START_S - REST_AT_S), brokers * (END_S - START_S)
    return Growth(
        brokers=brokers,
        delivered_percent=100 * played.summary["delivery_ratio"],
        join_messages=begun.messages.total() / brokers,
        join_directory_kb=begun.bytes_of(DIRECTORY) / brokers / 1000,
        rest_messages=rest.messages.total() / resting,
        rest_bytes=rest.size_bytes.total() / resting,
        rest_directory_messages=rest.messages_of(DIRECTORY) / resting,
        gossip_messages=load.messages_of(GOSSIP) / loaded,
        gossip_bytes=load.bytes_of(GOSSIP) / loaded,
        brought_messages=load.brought / loaded,
        event_messages=load.messages_of(DATA) / loaded,
        event_bytes=load.bytes_of(DATA) / loaded,
        cpu_us_per_delivery=1e6 * cpu_s(rest, load) / played.summary["delivered"],
        broker_kb=used_bytes / brokers / 1000,
    )


def cpu_s(rest: BrokerTraffic, load: BrokerTraffic) -> float:
    """Return the CPU time of publishing, without what the network takes anyway."""
    return load.cpu_s - rest.cpu_s * (END_S + SETTLE_S - START_S) / (START_S - REST_AT_S)


def growth_scenario(brokers: int) -> Scenario:
    random = Random(1)
    names = [f"b{number}" for number in range(brokers)]
    topics = [f"/t{number}" for number in range(brokers // 5)]
    return Scenario(
        seed=1,
        duration_s=END_S,
        settle_s=SETTLE_S,
        network=Network(loss=LOSS),
        overlay=Overlay(mode="epidemic", shape=TreeShape(brokers=brokers, degree=4)),
        recovery=Recovery(algorithm="auto"),
        publishers=tuple(
            Publisher(name=f"p{at}", at=at, topics=tuple(topics), rate_hz=RATE_HZ, start_s=START_S)
            for at in random.sample(names, brokers // 10)
        ),
        subscribers=tuple(
            SubscriberTable(name=f"s{at}{topic}", at=at, topics=(topic,))
            for at in names
            for topic in random.sample(topics, TOPICS_PER_BROKER)
        ),
    )
