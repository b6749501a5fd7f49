"""Groups without a guarantee after random joins, departures and failures: then each event has one member again."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from breadth import examples
from tidings.bus.bus import Bus
from tidings.bus.stream import Stream
from tidings.core.errors import ConnectionFailed, SubscriptionRefused
from tidings.scenarios.file.schema import Overlay, TreeShape
from tidings.scenarios.file.topology import build_topology
from tidings.testing import TestNetwork, simulate

BROKERS = 5
HEALED_S = 40.0
OPERATIONS = ("join", "join", "leave", "vanish", "crash", "restart", "pause", "resume", "cut", "heal")
steps = st.lists(
    st.tuples(st.sampled_from(OPERATIONS), st.integers(0, 9), st.sampled_from((0.0, 0.02, 1.0, 8.0))),
    min_size=3,
    max_size=14,
)


class World:
    def __init__(self, net: TestNetwork) -> None:
        self.net = net
        self.members: list[tuple[str, AsyncExitStack, Stream]] = []
        self.down: set[str] = set()
        self.paused: set[str] = set()
        self.cut: set[tuple[str, str]] = set()
        self.links = build_topology(Overlay(mode="best-effort", shape=TreeShape(brokers=BROKERS)), 0).edges

    async def act(self, operation: str, number: int) -> None:
        broker = f"b{number % BROKERS}"
        link = self.links[number % len(self.links)]
        can_fail = broker not in self.down | self.paused
        match operation:
            case "join" if can_fail and len(self.members) < 6:
                asyncio.get_running_loop().create_task(self.join(broker))
                await asyncio.sleep(0)
            case "leave" | "vanish" if self.members:
                _, stack, stream = self.members.pop(number % len(self.members))
                if operation == "vanish":
                    await stream._service.connection.close()  # type: ignore[attr-defined]
                else:
                    await stack.aclose()
            case "crash" if can_fail:
                self.net.crash(broker)
                self.down.add(broker)
            case "restart" if broker in self.down:
                self.net.restart(broker)
                self.down.remove(broker)
            case "pause" if can_fail:
                self.net.pause(broker)
                self.paused.add(broker)
            case "resume" if broker in self.paused:
                self.net.resume(broker)
                self.paused.remove(broker)
            case "cut" if link not in self.cut:
                self.net.cut(*link)
                self.cut.add(link)
            case "heal" if link in self.cut:
                self.net.heal(*link)
                self.cut.remove(link)

    async def join(self, broker: str) -> None:
        stack = AsyncExitStack()
        try:
            bus = await stack.enter_async_context(self.net.connect(broker))
            stream = await stack.enter_async_context(bus.subscribe("/jobs", group="workers"))
        except (
            ConnectionFailed,
            SubscriptionRefused,
        ):  # the broker or the way to the others was gone for long
            await stack.aclose()
            return
        self.members.append((broker, stack, stream))

    def reachable(self) -> set[str]:
        """Return the brokers that b2 reaches."""
        found = {"b2"}
        for _ in self.links:
            for link in self.links:
                if link not in self.cut and found & {*link}:
                    found |= {*link} - self.down - self.paused
        return found

    def heal(self) -> None:
        for broker in sorted(self.down):
            self.net.restart(broker)
        for broker in sorted(self.paused):
            self.net.resume(broker)
        for link in sorted(self.cut):
            self.net.heal(*link)


@pytest.mark.parametrize("mode", ["best-effort", "epidemic"])
@given(script=steps, heals=st.booleans())
@settings(max_examples=examples(100), deadline=None)
def test_after_any_faults_each_event_has_one_of_the_members_within_reach(
    mode: str, script: list[tuple[str, int, float]], heals: bool
) -> None:
    async def scenario(net: TestNetwork) -> None:
        world = World(net)
        async with net.connect("b2") as bus:
            for broker in ("b3", "b1", "b0", "b4"):
                await world.join(broker)
            for operation, number, pause_s in script:
                if operation in ("crash", "pause") and number % BROKERS == 2:
                    continue  # our own broker
                await world.act(operation, number)
                await asyncio.sleep(pause_s)
            if heals:
                world.heal()
            await asyncio.sleep(HEALED_S)
            within = {f"b{number}" for number in range(BROKERS)} if heals else world.reachable()
            await check(bus, [(broker, stream) for broker, _, stream in world.members if broker in within])
            for _, stack, _ in world.members:
                with suppress(ConnectionFailed):
                    await stack.aclose()

    simulate(scenario, seed=0, brokers=BROKERS, mode=mode)


async def check(bus: Bus, members: list[tuple[str, Stream]]) -> None:
    """Check that all events that are published now have one member each, and all brokers in reach know the members."""
    for _, stream in members:
        while len(stream):
            await stream.get()
    await bus.publish_many([("/jobs", {"n": number}, b"") for number in range(40)])
    for number in range(40, 60):
        await bus.publish("/jobs", {"n": number})
    await asyncio.sleep(10)
    found = [(await stream.get(0)).attributes["n"] for _, stream in members for _ in range(len(stream))]
    assert sorted(found) == (list(range(60)) if members else [])
    known = [(row["name"], row["members"]) for row in (await bus.status())["groups"]]
    assert known == ([("workers", len(members))] if members else [])
