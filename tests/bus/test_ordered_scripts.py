"""Random scripts of several clients over the three modes: subscribe, unsubscribe, publish, answer; then the checks."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from dataclasses import dataclass, field
from random import Random

import pytest

import order_checks
import tidings
from ordered_clients import MODES, TIMEOUT_S, run
from tidings.bus.bus import Bus
from tidings.bus.embedded import Embedded

LAYOUTS: tuple[tuple[str, ...], ...] = (
    ("/**",),
    ("/a", "/b/**", "/c/*"),
    ("/c/*", "/**"),
    ("/a", "/b/1", "/b/**", "/c/1", "/**"),
)
TOPICS = ("/a", "/b/1", "/b/2", "/b/2/3", "/c/1", "/c/2")
PATTERNS = ("/a", "/b/1", "/b/**", "/c/*", "/c/1", "/b/2/3")
FILTERS = (None, None, "n > 3", "n BETWEEN 2 AND 6", "kind = 'answer' OR n < 5")
STEPS = 25


@dataclass
class Reading:
    """One ordered stream: what was published since it began is for it, until it is closed."""

    name: str
    stream: tidings.Stream
    begun_at: int
    closed: bool = False
    events: list[tidings.Event] = field(default_factory=list)

    def take(self) -> None:
        """What has come."""
        while len(self.stream):
            self.events.append(self.stream._next())

    def wants(self, event: tidings.Event) -> bool:
        interest = self.stream.subscription.interest()
        if not any(pattern.matches(event.topic) for pattern in interest.topics):
            return False
        pattern = interest.pattern
        return pattern is None or bool(pattern.matches({**event.attributes, "topic": event.topic}))


class Run:
    def __init__(self, random: Random, orders: tuple[str, ...]) -> None:
        self.random = random
        self.orders = orders
        self.calls = 0
        self.called_at: dict[tidings.EventId, int] = {}
        self.readings: list[Reading] = []
        self.causes: dict[tidings.EventId, list[tidings.EventId]] = defaultdict(list)

    async def client(self, client: Bus, name: str) -> None:
        mine: list[Reading] = []
        last: tidings.EventId | None = None
        for step in range(STEPS):
            match self.random.choices(("open", "close", "publish", "batch", "answer"), (2, 1, 6, 1, 4))[0]:
                case "open" if len(mine) < 3:
                    mine.append(await self._open(client, f"{name}.{step}"))
                case "close" if mine:
                    await self._close(mine.pop(self.random.randrange(len(mine))))
                case "publish":
                    last = await self._publish(client, last, "publish")
                case "batch":
                    for _ in range(3):
                        last = await self._publish(client, last, "batch")
                case "answer" if mine:
                    reading = self.random.choice(mine)
                    reading.take()
                    read = [event.id for event in reading.events]
                    last = await self._publish(client, last, "answer", read)
            if self.random.random() < 0.2:
                await asyncio.sleep(self.random.random() * 0.003)

    async def _open(self, client: Bus, name: str) -> Reading:
        topics = self.random.sample(PATTERNS, self.random.randint(1, 3))
        stream = client.subscribe(
            *topics, where=self.random.choice(FILTERS), order=self.random.choice(self.orders)
        )
        await stream.__aenter__()
        reading = Reading(name, stream, self.calls)
        self.readings.append(reading)
        return reading

    async def _close(self, reading: Reading) -> None:
        reading.take()
        reading.closed = True
        await reading.stream.__aexit__(None, None, None)

    async def _publish(
        self,
        client: Bus,
        last: tidings.EventId | None,
        kind: str,
        read: list[tidings.EventId] | None = None,
    ) -> tidings.EventId:
        self.calls += 1
        at = self.calls
        attributes = {"n": self.random.randint(0, 9), "kind": kind}
        event_id = await client.publish(self.random.choice(TOPICS), attributes, kind.encode())
        self.called_at[event_id] = at
        self.causes[event_id] += [*([] if last is None else [last]), *(read or ())]
        return event_id


async def script(bus: Embedded, seed: int, *, causal: bool) -> None:
    random = Random(seed)
    going_on = Run(random, ("total", "causal") if causal else ("total",))
    async with bus.subscribe("/**") as plain:
        clients = [bus.connect(random.choice(bus.network.brokers)) for _ in range(4)]
        for client in clients:
            await client.open()
        async with bus.subscribe("/a", "/b/**", "/c/*", order="total") as every:
            reference = Reading("every", every, 0)
            published: dict[tidings.EventId, tidings.Event] = {}
            taking = asyncio.create_task(take_all(plain, published))
            await asyncio.gather(*(going_on.client(client, f"c{at}") for at, client in enumerate(clients)))
            while len(published) < len(going_on.called_at):  # noqa: ASYNC110 - a few turns
                await asyncio.sleep(0.001)
            taking.cancel()
            await asyncio.gather(taking, return_exceptions=True)
            for reading in (reference, *going_on.readings):
                await read_to_the_end(reading, published, going_on)
            check(reference, going_on, causal=causal)
        for client in clients:
            await client.close()


async def take_all(stream: tidings.Stream, taken: dict[tidings.EventId, tidings.Event]) -> None:
    """At once: what a reader leaves lying is confirmed late."""
    async for event in stream:
        taken[event.id] = event


async def read_to_the_end(
    reading: Reading, published: dict[tidings.EventId, tidings.Event], going_on: Run
) -> None:
    wanted = [
        event_id
        for event_id, event in published.items()
        if going_on.called_at[event_id] > reading.begun_at and reading.wants(event)
    ]
    if reading.closed:
        return
    while not {*wanted} <= {event.id for event in reading.events}:
        reading.events.append(await reading.stream.get(TIMEOUT_S))
    reading.take()
    for event in reading.events:
        original = published[event.id]
        assert (event.attributes, event.payload) == (original.attributes, original.payload)
        assert reading.wants(event), f"{reading.name} was shown {event}"


def check(reference: Reading, going_on: Run, *, causal: bool) -> None:
    readings = (reference, *going_on.readings)
    assert not any(event.out_of_order for reading in readings for event in reading.events)
    shown = {reading.name: [event.id for event in reading.events] for reading in readings}
    order_checks.check_agreement(shown)
    assert len(shown["every"]) == len(going_on.called_at)
    if causal:
        order_checks.check_causes(shown, going_on.causes)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("mode", "causal"), [*((mode, True) for mode in MODES), ("guaranteed", False)])
def test_random_scripts_keep_the_order(mode: str, causal: bool, seed: int) -> None:
    print(f"mode {mode}, causal {causal}, seed {seed}")
    run(
        lambda bus: script(bus, seed, causal=causal),
        mode=mode,
        causal=causal,
        order_topics=LAYOUTS[seed % len(LAYOUTS)],
        seed=seed,
    )
