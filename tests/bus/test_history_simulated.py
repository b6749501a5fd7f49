"""Subscriptions that start in the past, in virtual time: random networks, crashes and cuts while they begin, and an
archive that lags."""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import tidings
from tidings.bus.history import HistoryStream
from tidings.bus.memory_archive import MemoryArchive
from tidings.core.errors import ConnectionFailed, SubscriptionRefused
from tidings.core.overlay.guaranteed.archive_fence import ArchiveFence
from tidings.core.overlay.guaranteed.attachments import Attachments
from tidings.testing import TestNetwork, simulate

pytestmark = pytest.mark.timeout(100)

Seen = dict[str, list[int]]


class Scenario:
    """Three publishers at random brokers, an archive and readers at one, faults elsewhere."""

    def __init__(self, seed: int, *, faults: bool) -> None:
        self.draw = random.Random(seed)
        self.faults = faults
        self.home = f"b{self.draw.randint(0, 4)}"
        self.count = self.draw.choice((60, 200, 400))
        self.done = 0

    async def run(self, net: TestNetwork) -> list[tuple[str, Seen]]:
        await net.keep_archive(self.home)
        publishers = [net.connect(f"b{self.draw.randint(0, 4)}", name=f"p{number}") for number in range(3)]
        for bus in publishers:
            await bus.open()
        work = [asyncio.create_task(self.publish(bus)) for bus in publishers]
        if self.faults:
            work.append(asyncio.create_task(self.disturb(net)))
        readers = [asyncio.create_task(self.read(net, number)) for number in range(4)]
        results = await asyncio.gather(*readers)
        await asyncio.gather(*work)
        return results

    async def publish(self, bus: tidings.EventService) -> None:
        first = 0
        while first < self.count:
            last = min(first + self.draw.randint(1, 40), self.count)
            await bus.publish_many(("/t", {"n": n, "odd": n % 2}, b"") for n in range(first, last))
            await asyncio.sleep(self.draw.random() * 0.1)
            first = last

    async def disturb(self, net: TestNetwork) -> None:
        """Crash the archive's broker, others, and cut links, all for a while."""
        while self.done < 4:
            await asyncio.sleep(self.draw.random() * 0.4)
            kind, victim = self.draw.random(), f"b{self.draw.randint(0, 4)}"
            if kind < 0.4:
                victim = self.home
            if kind < 0.7:
                net.crash(victim)
                await asyncio.sleep(self.draw.random() * 0.5)
                net.restart(victim)
            else:
                other = f"b{self.draw.randint(0, 4)}"
                if other != victim:
                    net.cut(victim, other)
                    await asyncio.sleep(self.draw.random() * 2)
                    net.heal(victim, other)

    async def read(self, net: TestNetwork, number: int) -> tuple[str, Seen]:
        where = self.draw.choice((None, "odd = 1"))
        expected = [n for n in range(self.count) if where is None or n % 2]
        await asyncio.sleep(self.draw.random())
        while True:
            seen: Seen = {f"p{publisher}": [] for publisher in range(3)}
            try:
                async with (
                    net.connect(self.home, name=f"r{number}-{self.draw.random()}") as bus,
                    bus.subscribe("/t", where=where, start="earliest", order="fifo") as stream,
                ):
                    while any(numbers[-1:] != expected[-1:] for numbers in seen.values()):
                        event = await stream.get(600)
                        seen[event.source].append(event.attributes["n"])  # type: ignore[arg-type]
                        if self.draw.random() < 0.02:
                            await asyncio.sleep(self.draw.random() * 0.2)
            except (SubscriptionRefused, ConnectionFailed):  # while it began: it says so, and we begin again
                assert not any(seen.values())
                await asyncio.sleep(0.1)
                continue
            self.done += 1
            return where or "", seen


def check(seed: int, *, faults: bool) -> None:
    scenario = Scenario(seed, faults=faults)
    for where, seen in simulate(scenario.run, seed=seed, mode="guaranteed", delta=1):
        expected = [n for n in range(scenario.count) if not where or n % 2]
        for source, numbers in seen.items():
            assert numbers == expected, f"seed {seed}: {source} {where}"


def check_all(seeds: range) -> None:
    for seed in seeds:
        check(seed, faults=False)


@pytest.mark.parametrize("seed", range(8))
def test_every_reader_sees_every_event_once(seed: int) -> None:
    check(seed, faults=False)


@pytest.mark.parametrize("seed", range(100, 110))
def test_faults_make_no_gap_and_no_repetition(seed: int) -> None:
    check(seed, faults=True)


def test_a_fence_that_is_passed_too_early_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A planted bug: the archive is not waited for."""
    monkeypatch.setattr(ArchiveFence, "is_passed", lambda self, fence: True)
    slow_archive(monkeypatch)
    with pytest.raises((AssertionError, TimeoutError)):
        check_all(range(8))


def test_a_record_of_its_own_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is on its way for the archive's record alone would be missing."""
    monkeypatch.setattr(Attachments, "_archive_record", lambda self, interest: None)

    async def scenario(net: TestNetwork) -> None:
        async with net.connect("b0") as old, old.subscribe("/t"):
            await net.keep_archive("b0")
            async with net.connect("b0") as bus:
                with pytest.raises(SubscriptionRefused, match="older than the archive: subscribe again"):
                    async with bus.subscribe("/t", start="earliest"):
                        pass

    simulate(scenario, mode="guaranteed")


def slow_archive(monkeypatch: pytest.MonkeyPatch) -> None:
    async def slowly(self: MemoryArchive, stream: Any) -> None:
        async for event in stream:
            await asyncio.sleep(0.002)
            self.events.append(event)

    monkeypatch.setattr(MemoryArchive, "_record", slowly)


@pytest.mark.parametrize("seed", range(4))
def test_an_archive_that_lags_is_waited_for(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    slow_archive(monkeypatch)
    check(seed, faults=False)


def test_a_network_in_the_process_keeps_an_archive() -> None:
    async def main() -> None:
        async with tidings.embedded(brokers=3, mode="guaranteed", archive=True) as bus:
            await bus.publish_many((f"/t/{n % 3}", {"n": n}, b"") for n in range(3_000))
            async with bus.connect("b0") as other, other.subscribe("/t/*", start="last") as stream:
                await bus.publish("/t/0", {"n": -1})
                numbers = [(await stream.get(5)).attributes["n"] for _ in range(4)]
                assert numbers == [2_997, 2_998, 2_999, -1]
            async with bus.subscribe("/t/1", where="n > 2990", start=1_000) as stream:
                assert isinstance(stream, HistoryStream)
                assert [(await stream.get(5)).attributes["n"] for _ in range(3)] == [2_992, 2_995, 2_998]
            yesterday = datetime.now(UTC) - timedelta(days=1)
            async with bus.subscribe("/t/2", start=yesterday) as stream:
                assert (await stream.get(5)).attributes["n"] == 2
            async with bus.connect("b2") as far:
                with pytest.raises(SubscriptionRefused, match="needs the archive of a guaranteed broker"):
                    async with far.subscribe("/t/1", start="earliest"):
                        pass

    asyncio.run(asyncio.wait_for(main(), 60))
    with pytest.raises(ValueError, match="archive=True requires mode 'guaranteed', not 'epidemic'"):
        tidings.embedded(mode="epidemic", archive=True)


def test_the_example_runs() -> None:
    example = Path(__file__).parents[2] / "examples" / "history.py"
    done = subprocess.run([sys.executable, example], capture_output=True, text=True, timeout=60)
    assert done.stdout.splitlines() == [
        "/sensors/1 23",
        "/sensors/0 24",
        "/sensors/1 25",
        "/sensors/1 30",
        "newest of /sensors/0 24",
        "newest of /sensors/1 30",
    ], done.stderr


# --- Total and causal order


class OrderedScenario(Scenario):
    """The archive and the readers have an order across publishers; each reader returns all that it saw."""

    def __init__(self, seed: int, order: str, *, faults: bool) -> None:
        super().__init__(seed, faults=faults)
        self.order: Any = order
        self.count = self.draw.choice((20, 60))
        self.lists: list[list[tuple[str, str, int]]] = []

    async def run(self, net: TestNetwork) -> list[tuple[str, Seen]]:
        await net.keep_archive(self.home, "/t", "/u", order=self.order)
        publishers = [net.connect(f"b{self.draw.randint(0, 4)}", name=f"p{number}") for number in range(3)]
        for bus in publishers:
            await bus.open()
        work = [asyncio.create_task(self.publish(bus)) for bus in publishers]
        if self.faults:
            work.append(asyncio.create_task(self.disturb(net)))
        await asyncio.gather(*(self.read_all(net) for _ in range(4)))
        await asyncio.gather(*work)
        return []

    async def publish(self, bus: tidings.EventService) -> None:
        for n in range(self.count):
            await bus.publish(self.draw.choice(("/t", "/u")), {"n": n})
            await asyncio.sleep(self.draw.random() * 0.1)

    async def read_all(self, net: TestNetwork) -> None:
        await asyncio.sleep(self.draw.random() * 2)
        while True:
            seen: list[tuple[str, str, int]] = []
            try:
                async with (
                    net.connect(self.home) as bus,
                    bus.subscribe("/t", "/u", start="earliest", order=self.order) as stream,
                ):
                    while len(seen) < 3 * self.count:
                        event = await stream.get(600)
                        seen.append((event.source, event.topic, event.attributes["n"]))  # type: ignore[arg-type]
                    with pytest.raises(TimeoutError):
                        await stream.get(5)
            except (SubscriptionRefused, ConnectionFailed):
                assert not seen
                await asyncio.sleep(0.1)
                continue
            self.done += 1
            self.lists.append(seen)
            return


def check_order(seed: int, order: str, *, faults: bool) -> None:
    scenario = OrderedScenario(seed, order, faults=faults)
    topics = ("/t", "/u") if seed % 2 else ("/**",)
    simulate(scenario.run, seed=seed, mode="guaranteed", delta=1, order_topics=topics)
    for seen in scenario.lists:
        for source in ("p0", "p1", "p2"):
            numbers = [n for name, _, n in seen if name == source]
            assert sorted(numbers) == list(range(scenario.count)), f"seed {seed}"
            assert order != "total" or numbers == sorted(numbers), f"seed {seed}"
    if order == "total":
        assert scenario.lists == scenario.lists[:1] * 4, f"seed {seed}: not the same order"


@pytest.mark.parametrize("order", ["total", "causal"])
@pytest.mark.parametrize("seed", range(3))
def test_history_and_live_events_have_one_order(seed: int, order: str) -> None:
    check_order(seed, order, faults=False)


@pytest.mark.parametrize("seed", range(100, 104))
def test_faults_do_not_change_the_order(seed: int) -> None:
    check_order(seed, "total", faults=True)


def test_an_archive_without_an_order_is_refused() -> None:
    async def scenario(net: TestNetwork) -> None:
        await net.keep_archive("b0")
        async with net.connect("b0") as bus:
            with pytest.raises(SubscriptionRefused, match="has no order across publishers: use order 'fifo'"):
                async with bus.subscribe("/t", start="earliest", order="total"):
                    pass

    simulate(scenario, mode="guaranteed")
