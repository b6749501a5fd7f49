"""One process of a live scenario: publishers and subscribers of the plan, over real sockets.

Started by `tidings up --scenario` as `python -m tidings.cli.scenario_client`. It reads its work from stdin and
ends when that closes; what its applications do and are told goes to stdout, line by line (`scenario_facts`). A
line leaves before the network hears of what it says: so even kill -9 leaves no event that nobody has published,
and none that was acknowledged and not seen.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from random import Random
from typing import NamedTuple

from tidings.cli import scenario_facts as words
from tidings.cli.broker_control import wake_when_orphaned
from tidings.cli.scenario_facts import Go, PublisherWork, SubscriberWork, Work
from tidings.cli.stdin import stdin_lines
from tidings.model.errors import ConnectionFailed
from tidings.model.event import is_hidden, source_text
from tidings.model.predicates import Scalar
from tidings.model.subscription import Order, Subscription
from tidings.net.address import Address
from tidings.net.client import ClientConnection
from tidings.protocol.facts import (
    Delivered,
    EventsMissed,
    PublicationConfirmed,
    SubscriptionAccepted,
    SubscriptionFailed,
)
from tidings.scenario.schema import Publisher
from tidings.scenario.timeline import Step
from tidings.simulator.clients import DRAIN_NS, NEVER, attribute_sampler
from tidings.simulator.faults import NS_PER_S, nanoseconds

RETRY_S = 0.2
"""Between attempts to reach the broker, for a client that starts while it is away."""

ROUNDING_S = 0.002
"""Event loops count milliseconds, and may be early by one."""


def report(fact: words.Fact) -> None:
    """Tell the conductor, at once: a line that waits here would be lost with the process."""
    sys.stdout.buffer.write(words.line_of(fact))
    sys.stdout.buffer.flush()


class Arrival(NamedTuple):
    due_ns: int
    topic: str
    attributes: dict[str, Scalar]


def arrivals(plan: Publisher, seed: int) -> Iterator[Arrival]:
    """What the publisher publishes and when: what the simulator draws for the same scenario and seed."""
    random = Random(f"{seed}:publisher:{plan.name}")
    samplers = {
        name: attribute_sampler(attribute, random) for name, attribute in sorted(plan.attributes.items())
    }
    due_s = plan.start_s
    number = 0
    while plan.count is None or number < plan.count:
        if plan.arrival == "poisson":
            due_s += random.expovariate(plan.rate_hz)
        elif number:
            due_s += 1.0 / plan.rate_hz
        attributes = {name: sample() for name, sample in samplers.items()}
        topic = plan.topics[0] if len(plan.topics) == 1 else random.choice(plan.topics)
        yield Arrival(nanoseconds(due_s), topic, attributes)
        number += 1


class LiveClient:
    """What publishers and subscribers share: a connection, and the common clock once there is one."""

    def __init__(self, name: str, address: Address, incarnation: int) -> None:
        self.name = name
        self.go: Go
        self._was_connected = False
        self._closing = False
        self.connection = ClientConnection(
            address,
            name,
            emit=self.on_fact,
            on_connection=self._on_connection,
            incarnation=incarnation,
        )

    async def open(self) -> None:
        """Until its broker takes it: that may be down, or cut off."""
        while True:
            try:
                return await self.connection.open()
            except ConnectionFailed:
                await asyncio.sleep(RETRY_S)

    async def close(self) -> None:
        self._closing = True
        await self.connection.close()

    async def until(self, at_ns: int) -> None:
        """That time, or now; others get their turn in any case."""
        await asyncio.sleep(max(0, at_ns - self.go.now) / NS_PER_S)
        if self.go.now < at_ns:
            await asyncio.sleep(ROUNDING_S)

    def on_fact(self, fact: object) -> None:
        raise NotImplementedError

    def on_first_connection(self) -> None:
        """Before anything comes over it."""

    def _on_connection(self, up: bool, reason: str) -> None:
        if up and not self._was_connected:
            self._was_connected = True
            self.on_first_connection()
        elif not up and self.connection.closed and not self._closing:
            report(words.Failed(f"client {self.name!r}: {reason}"))


class LivePublisher(LiveClient):
    def __init__(self, work: PublisherWork, address: Address, seed: int, end_ns: int) -> None:
        super().__init__(work.plan.name, address, work.lives)
        self._plan = work.plan
        self._absent = work.absent
        self._again = work.lives > 0
        self._source = source_text(work.plan.name, work.lives)
        self._arrivals = arrivals(work.plan, seed)
        self._end_ns = end_ns
        self._payload = bytes(work.plan.size_bytes)

    async def run(self) -> None:
        began_ns = self.go.now if self._again else 0  # who was away does not catch up
        for arrival in self._arrivals:
            due_ns = arrival.due_ns
            if due_ns >= self._end_ns:
                return
            if due_ns < began_ns or any(first <= due_ns < end for first, end in self._absent):
                continue
            await self.until(due_ns)
            if self.go.now >= self._end_ns:
                return
            self._publish(arrival)

    def _publish(self, arrival: Arrival) -> None:
        client, now = self.connection.client, self.go.now
        _, topic, attributes = arrival
        sequence = client.session.next_sequence
        report(words.Published(self._source, sequence, topic, attributes, len(self._payload), now))
        client.publish(topic, attributes, self._payload, self.go.wall_ns + now)

    def on_fact(self, fact: object) -> None:
        if isinstance(fact, PublicationConfirmed):
            report(words.Confirmed(self._source, fact.first, fact.last, self.go.now))


class Window:
    """A subscription and the time in which an event must have been published to be shown for it.

    As in the simulator: a subscriber whose topics change sees each event once, for the subscription that it had
    when the event was published; what is on its way when one is cancelled still arrives, for `DRAIN_NS`.
    """

    __slots__ = ("accepted", "cancelled_ns", "requested_ns", "subscription")

    def __init__(self, subscription: Subscription, requested_ns: int) -> None:
        self.subscription = subscription
        self.requested_ns = requested_ns
        self.cancelled_ns = NEVER
        self.accepted = False


class LiveSubscriber(LiveClient):
    def __init__(self, work: SubscriberWork, address: Address) -> None:
        super().__init__(work.name, address, 0)
        self._work = work
        self._made = work.made
        self._marks = work.marks
        self._windows: dict[str, Window] = {}
        self._current: Window | None = None

    async def run(self) -> None:
        for step in self._work.timeline[self._work.done :]:
            await self.until(nanoseconds(step.at_s))
            self._change(step)
            report(words.StepTaken(self.name))

    def on_first_connection(self) -> None:
        """Back from a crash: ask again for what there was, before the broker shows what it has kept for it."""
        for held in self._work.held:
            window = Window(self._subscription(held.subscription, held.topics), held.requested_ns)
            window.accepted = held.accepted
            self._windows[held.subscription] = window
            self.connection.client.subscribe(window.subscription)
            if held.cancelled_ns is None:
                self._current = window
            else:
                window.cancelled_ns = held.cancelled_ns
                self._end_later(window)

    def _subscription(self, subscription_id: str, topics: tuple[str, ...]) -> Subscription:
        return Subscription(subscription_id, topics, self._work.filter, Order(self._work.order))

    def _change(self, step: Step) -> None:
        if self._current is not None:
            self._cancel(self._current)
            self._current = None
        if step.topics is not None:
            self._current = self._subscribe(step.topics)

    def _subscribe(self, topics: tuple[str, ...]) -> Window:
        subscription = self._subscription(f"{self.name}#{self._made}", topics)
        self._made += 1
        window = self._windows[subscription.id] = Window(subscription, self.go.now)
        report(words.Requested(self.name, subscription.id, topics, window.requested_ns))
        self.connection.client.subscribe(subscription)
        return window

    def _cancel(self, window: Window) -> None:
        window.cancelled_ns = self.go.now
        report(words.Cancelled(self.name, window.subscription.id, window.cancelled_ns))
        self._end_later(window)

    def _end_later(self, window: Window) -> None:
        delay_ns = max(0, window.cancelled_ns + DRAIN_NS - self.go.now)
        asyncio.get_running_loop().call_later(delay_ns / NS_PER_S, self._end, window.subscription.id)

    def _end(self, subscription_id: str) -> None:
        del self._windows[subscription_id]
        report(words.Ended(self.name, subscription_id))
        self.connection.client.unsubscribe(subscription_id)

    def on_fact(self, fact: object) -> None:
        match fact:
            case Delivered():
                self._on_delivered(fact)
            case SubscriptionAccepted(subscription=name):
                self._on_accepted(name)
            case SubscriptionFailed(reason=reason):
                report(words.Failed(f"subscriber {self.name!r}: {reason}"))
            case EventsMissed(subscription, source, incarnation, first, last):
                report(words.Missed(self.name, subscription, source_text(source, incarnation), first, last))

    def _on_delivered(self, fact: Delivered) -> None:
        publication = fact.publication
        window = self._windows.get(fact.subscription)
        published_ns = publication.published_at - self.go.wall_ns
        if window is None or not window.requested_ns <= published_ns < window.cancelled_ns:
            return
        if is_hidden(publication):
            return
        source = source_text(publication.source, publication.incarnation)
        if publication.sequence <= self._marks.get(fact.subscription, {}).get(source, 0):
            return
        report(
            words.Delivered(
                self.name,
                fact.subscription,
                source,
                publication.sequence,
                published_ns,
                self.go.now,
                fact.out_of_order,
                fact.recovered_by,
            )
        )

    def _on_accepted(self, subscription_id: str) -> None:
        window = self._windows.get(subscription_id)
        if window is not None and not window.accepted and window.cancelled_ns == NEVER:
            window.accepted = True
            # What was published earlier in this very instant may have been missed.
            report(words.Accepted(self.name, subscription_id, self.go.now + 1))


def make_clients(work: Work) -> list[LivePublisher | LiveSubscriber]:
    """Subscribers first: of what is due in the same instant, asking comes before publishing."""
    subscribers = [LiveSubscriber(one, work.brokers[one.at]) for one in work.subscribers]
    publishers = [
        LivePublisher(one, work.brokers[one.plan.at], work.seed, work.end_ns) for one in work.publishers
    ]
    return [*subscribers, *publishers]


async def lines() -> AsyncIterator[bytes]:
    async for several in stdin_lines():
        for line in several:
            yield line


async def work_until_told() -> None:
    """Until stdin ends, or an error, which the conductor hears of."""
    orders = lines()
    work = words.decode_work(await anext(orders))
    started: asyncio.Future[Go] = asyncio.get_running_loop().create_future()
    if work.go is not None:
        started.set_result(work.go)
    clients = make_clients(work)
    try:
        async with asyncio.TaskGroup() as tasks:
            life = tasks.create_task(live(clients, started))
            async for line in orders:
                started.set_result(words.decode_go(line))
            life.cancel()
    finally:
        await asyncio.gather(*(client.close() for client in clients))


async def live(clients: list[LivePublisher | LiveSubscriber], started: asyncio.Future[Go]) -> None:
    try:
        if started.done():
            give_start(clients, started.result())
        await asyncio.gather(*(client.open() for client in clients))
        report(words.Ready())
        give_start(clients, await started)
        await asyncio.gather(*(client.run() for client in clients))
    except Exception as error:
        report(words.Failed(f"a client process: {type(error).__name__}: {error}"))
        raise


def give_start(clients: list[LivePublisher | LiveSubscriber], go: Go) -> None:
    for client in clients:
        client.go = go


def main() -> None:
    from tidings.net.loop import run

    wake_when_orphaned()
    with suppress(BrokenPipeError, StopAsyncIteration):
        run(work_until_told())


if __name__ == "__main__":
    main()
