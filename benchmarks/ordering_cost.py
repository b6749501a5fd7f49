"""The CPU cost of stamps at a server and of events at a subscriber; for benchmarks/ordering.py."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from random import Random
from time import process_time
from typing import NamedTuple

from output import progress
from quiet_port import QuietPort

from tidings.core.messages import Message
from tidings.core.ordering.messages import ChangeSubscription, Create, EventStamps, WalkDone
from tidings.core.ordering.server.server import SequencerServer
from tidings.core.ordering.stamps import Chain, Timestamp
from tidings.core.ordering.subscriber import OrderedSubscriber


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
    lines = []
    for of, batch, window in dict.fromkeys((row.of, row.batch, row.reordered_within) for row in rows):
        growth = us_of[of, 1000, batch, window] / us_of[of, 100, batch, window]
        lines.append(
            f"{of}, batch {batch}, reordered within {window}: 10 times the group costs {growth:.1f} times as much"
        )
    for group in GROUPS:
        times = [us_of["subscriber, events", group, 1, window] for window in WINDOWS]
        ratios = ", ".join(f"{each / times[1]:.2f}" for each in times)
        lines.append(
            f"group {group}: cost when reordered within {WINDOWS}, to that within {WINDOWS[1]}: {ratios}"
        )
    return "\n".join(lines)
