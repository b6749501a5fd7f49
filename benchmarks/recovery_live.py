"""Measures brokers in mode epidemic over real UDP on loopback that lose a tenth of what they send; for recovery.py.

Ten brokers in a ternary tree and their clients share one process. One client publishes at a leaf, and each other broker
has a subscriber. Latency is from `publish` to the subscriber's callback. Brokers recover with the defaults of `auto`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import NamedTuple

import numpy as np
from output import progress

from tidings.core.events.run import singles
from tidings.core.events.subscription import Subscription
from tidings.core.facts import Delivered, SubscriptionAccepted
from tidings.core.overlay.epidemic.settings import RecoverySettings
from tidings.core.overlay.labels import Label
from tidings.drivers.address import Address
from tidings.drivers.sockets.broker import BrokerServer
from tidings.drivers.sockets.client import ClientConnection
from tidings.drivers.sockets.epidemic import EpidemicSettings
from tidings.drivers.sockets.loop import loop_factory
from tidings.scenarios.file.schema import BernoulliLoss

BROKERS = 10
CHILDREN = 3
PUBLISHER_AT = BROKERS - 1
TOPIC = "/bench/events"
LOSS = BernoulliLoss(rate=0.1)
CASES = ((128, 100.0), (20_000, 10.0))
"""(bytes of payload, events per second)"""
READY_S = 60.0
QUIET_S = 30.0
"""An event that has not arrived after this time counts as lost."""


class Live(NamedTuple):
    """`added`: compared with no loss. `by_gossip`: deliveries that were lost, or merely slower, on the tree."""

    payload_bytes: int
    loss_percent: float
    expected: int
    delivered_percent: float
    by_gossip_percent: float
    p50_ms: float
    p99_ms: float
    max_ms: float
    added_p50_ms: float | None
    added_p99_ms: float | None


def live(quick: bool) -> Iterator[Live]:
    seconds = 2.0 if quick else 10.0
    for payload_bytes, rate in CASES:
        events = round(rate * seconds)
        plain: Live | None = None
        for loss in (None, LOSS):
            progress(
                f"live: {payload_bytes:,} bytes, {'no loss' if loss is None else f'{loss.rate:.0%} lost'}"
            )
            with asyncio.Runner(loop_factory=loop_factory()) as runner:
                arrivals = runner.run(measured(payload_bytes, rate, events, loss))
            row = live_row(payload_bytes, loss, events, arrivals, plain)
            plain = plain or row
            yield row


class Arrivals(NamedTuple):
    """What arrived at all subscribers together."""

    latency_ms: list[float]
    by_gossip: int
    repeated: int


def live_row(
    payload_bytes: int, loss: BernoulliLoss | None, events: int, arrivals: Arrivals, plain: Live | None
) -> Live:
    if arrivals.repeated:
        raise SystemExit(f"live: {arrivals.repeated} events were delivered twice")
    expected = events * (BROKERS - 1)
    p50_ms, p99_ms, max_ms = (float(np.percentile(arrivals.latency_ms, share)) for share in (50, 99, 100))
    return Live(
        payload_bytes=payload_bytes,
        loss_percent=0.0 if loss is None else 100 * loss.rate,
        expected=expected,
        delivered_percent=100 * len(arrivals.latency_ms) / expected,
        by_gossip_percent=100 * arrivals.by_gossip / expected,
        p50_ms=p50_ms,
        p99_ms=p99_ms,
        max_ms=max_ms,
        added_p50_ms=None if plain is None else p50_ms - plain.p50_ms,
        added_p99_ms=None if plain is None else p99_ms - plain.p99_ms,
    )


def payload(size_bytes: int) -> bytes:
    """Return a payload: the time of publication, then padding."""
    return time.monotonic_ns().to_bytes(8, "big") + bytes(size_bytes - 8)


async def measured(payload_bytes: int, rate: float, events: int, loss: BernoulliLoss | None) -> Arrivals:
    async with network(loss) as servers, AsyncExitStack() as stack:
        publisher = ClientConnection(servers[PUBLISHER_AT].address, "publisher", emit=lambda fact: None)
        await publisher.open()
        stack.push_async_callback(publisher.close)
        subscribers = [LiveSubscriber(server.address, number) for number, server in enumerate(servers)]
        del subscribers[PUBLISHER_AT]
        for subscriber in subscribers:
            await subscriber.connection.open()
            stack.push_async_callback(subscriber.connection.close)
            subscriber.connection.client.subscribe(Subscription("all", (TOPIC,)))
        async with asyncio.timeout(READY_S):
            for subscriber in subscribers:
                await subscriber.accepted.wait()
            await acquainted(servers)
        began = time.perf_counter()
        for number in range(events):
            publisher.client.publish(TOPIC, {"number": number}, payload(payload_bytes), publisher.now)
            await asyncio.sleep(max(0.0, began + (number + 1) / rate - time.perf_counter()))
        await all_arrived(subscribers, events)
    return Arrivals(
        [latency for subscriber in subscribers for latency in subscriber.latency_ms.values()],
        sum(subscriber.by_gossip for subscriber in subscribers),
        sum(subscriber.repeated for subscriber in subscribers),
    )


async def all_arrived(subscribers: Sequence[LiveSubscriber], events: int) -> None:
    """Wait until all events have arrived, or nothing arrives any more."""
    ends_at = time.perf_counter() + QUIET_S
    while time.perf_counter() < ends_at and any(  # noqa: ASYNC110 - seconds
        len(each.latency_ms) < events for each in subscribers
    ):
        await asyncio.sleep(0.01)


class LiveSubscriber:
    """A client that records the latency of each event."""

    def __init__(self, address: Address, number: int) -> None:
        self.connection = ClientConnection(address, f"subscriber{number}", emit=self._on_fact)
        self.accepted = asyncio.Event()
        self.latency_ms: dict[object, float] = {}
        """By event number."""
        self.by_gossip = 0
        self.repeated = 0

    def _on_fact(self, fact: object) -> None:
        if isinstance(fact, SubscriptionAccepted):
            self.accepted.set()
        elif isinstance(fact, Delivered):
            (publication,) = singles(fact.stretch)
            event = publication.event()
            late_ns = time.monotonic_ns() - int.from_bytes(event.payload[:8], "big")
            number = event.attributes["number"]
            self.repeated += number in self.latency_ms
            self.latency_ms[number] = late_ns / 1e6
            self.by_gossip += bool(fact.recovered_by)


# --- The brokers


@asynccontextmanager
async def network(loss: BernoulliLoss | None) -> AsyncIterator[list[BrokerServer]]:
    """Run the brokers. Of two neighbours the one with the lower name dials, so starting from the last, all know the
    address."""
    addresses: dict[str, Address] = {}
    servers: list[BrokerServer] = []
    try:
        for number in reversed(range(BROKERS)):
            server = BrokerServer(
                f"b{number}",
                neighbours={name: addresses.get(name, Address(port=1)) for name in around(number)},
                mode="epidemic",
                epidemic=EpidemicSettings(RecoverySettings(), label(number), loss, seed=1),
            )
            servers.insert(0, server)
            await server.start()
            addresses[server.name] = server.address
        yield servers
    finally:
        for server in servers:
            await server.stop()


def around(number: int) -> list[str]:
    """Return the neighbours in a complete tree; b0 is the root."""
    children = range(CHILDREN * number + 1, min(CHILDREN * number + 1 + CHILDREN, BROKERS))
    parents = [(number - 1) // CHILDREN] if number else []
    return [f"b{peer}" for peer in (*parents, *children)]


def label(number: int) -> Label:
    return (0,) if number == 0 else (*label((number - 1) // CHILDREN), (number - 1) % CHILDREN)


async def acquainted(servers: Sequence[BrokerServer]) -> None:
    """Wait until every broker knows all the others."""

    def known(server: BrokerServer) -> int:
        recovery = server.status()["recovery"]
        assert isinstance(recovery, dict)
        return int(recovery["brokers_known"])

    while any(known(server) < len(servers) - 1 for server in servers):  # noqa: ASYNC110 - it takes a few turns
        await asyncio.sleep(0.05)
