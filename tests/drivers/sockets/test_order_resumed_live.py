"""Killed with kill -9 and started again under their names, on a guaranteed network with an order: two readers and a
recorder, compared with readers that stay."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random

import pytest

import tidings
from live_network import until
from ports import base_port
from tidings.scenarios.trace.checkers import exactly_once, gap_free, total_order
from tidings.scenarios.trace.memory import MemoryWriter
from tidings.storage.archive import ArchiveReader, events_of

pytestmark = [pytest.mark.processes, pytest.mark.timeout(200)]

ENTRIES = ("/a", "/b/**", "/**")
TOPICS = ("/a", "/b/1", "/b/2", "/c")
EVENTS = 1_500
"""Of each publisher."""
KILLS = 3
FILTER = "x < 5"
LAST = 10_000
READER = """
import asyncio, os, sys, tidings

async def main(url, log, where):
    file = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    async with tidings.connect(url, name=sys.argv[4]) as bus, \\
            bus.subscribe("/**", order="total", where=where or None) as stream:
        os.write(file, b"begins\\n")
        before = None
        async for event in stream:
            os.write(file, b"shown %s\\n" % str(event.id).encode())
            await asyncio.sleep(0.0005)  # the turn in which it asked for this one is over
            if before is not None:
                os.write(file, b"done %s\\n" % before)
            before = str(event.id).encode()

asyncio.run(main(*sys.argv[1:4]))
"""


class Network:
    """Two brokers and three sequencers, as processes."""

    def __init__(self, data: Path) -> None:
        topics = [word for entry in ENTRIES for word in ("--order-topic", entry)]
        self._process = started(
            "up", "--brokers", 2, "--base-port", base_port(5), "--mode", "guaranteed", "--order", "total",
            *topics, "--data", data, "--json",
        )  # fmt: skip
        assert self._process.stdout is not None
        ready = json.loads(self._process.stdout.readline())
        self.urls: list[str] = [broker["url"] for broker in ready["brokers"]]

    def stop(self) -> None:
        self._process.send_signal(signal.SIGINT)
        self._process.communicate(timeout=60)


def started(*arguments: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tidings.cli.main", *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.fixture
def network(tmp_path: Path) -> Iterator[Network]:
    made = Network(tmp_path / "data")
    yield made
    made.stop()


class Recording:
    """A recorder that is killed."""

    def __init__(self, url: str, archive: Path) -> None:
        self.archive = archive
        self._arguments = ("record", url, "--archive", archive, "--order", "total", "--json")
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        self._process = started(*self._arguments)

    async def begins(self) -> None:
        assert self._process is not None and self._process.stdout is not None
        assert await asyncio.to_thread(self._process.stdout.readline), "it ended by itself"

    def kill(self) -> None:
        assert self._process is not None
        self._process.kill()
        _, errors = self._process.communicate()
        assert self._process.returncode == -signal.SIGKILL, errors


class Victim:
    """A reader that is killed; what each of its lives wrote down."""

    def __init__(self, url: str, log: Path, where: str, name: str) -> None:
        self._arguments = [sys.executable, "-c", READER, url, str(log), where, name]
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self._process = subprocess.Popen(self._arguments)

    def kill(self) -> None:
        assert self._process is not None
        assert self._process.poll() is None, "it ended by itself"
        self._process.kill()
        self._process.wait()

    @property
    def lives(self) -> list[list[str]]:
        """The lines of each life; the last line may be half a line."""
        text = self._log.read_text() if self._log.exists() else ""
        return [part.splitlines() for part in text.split("begins\n")[1:]]

    def shown(self) -> list[str]:
        """In the order of the lives: what was not done with was shown again, and counts where it came last."""
        seen: list[str] = []
        done: set[str] = set()
        for life in self.lives:
            shown = [line.removeprefix("shown ") for line in life if line.startswith("shown ")]
            again = set(shown)
            assert not again & done, f"shown again though it was done with: {again & done}"
            seen = [event for event in seen if event not in again] + shown
            done |= {line.removeprefix("done ") for line in life if line.startswith("done ")}
        return seen


async def publish(url: str, name: str, seed: int) -> None:
    random = Random(seed)
    async with tidings.connect(url, name=name) as bus:
        for number in range(EVENTS):
            await bus.publish(random.choice(TOPICS), {"x": random.randrange(10), "n": number}, wait=False)
            if number % 10 == 0:
                await asyncio.sleep(random.choice((0.0, 0.01, 0.06)))
        await bus.publish("/c", {"x": 0, "n": LAST})


@asynccontextmanager
async def witness(url: str, where: str | None, events: list[tidings.Event]) -> AsyncIterator[None]:
    async def read(stream: tidings.Stream) -> None:
        async for event in stream:
            events.append(event)

    async with tidings.connect(url) as bus, bus.subscribe("/**", order="total", where=where) as stream:
        reading = asyncio.create_task(read(stream))
        try:
            yield
        finally:
            reading.cancel()


def all_came(events: list[tidings.Event]) -> bool:
    return sum(event.attributes["n"] == LAST for event in events) == 2


def check(seen: dict[str, list[str]], filters: dict[str, str], events: list[tidings.Event]) -> None:
    """By the checkers; `events` are all that were published."""
    writer = MemoryWriter()
    for event in events:
        writer.published(
            str(event.id), str(event.id).rpartition(":")[0], event.sequence, event.topic, event.attributes, 0, 1, 1
        )  # fmt: skip
    for name, shown in seen.items():
        writer.subscribed(name, "s", ("/**",), filters.get(name), "total", 0)
        writer.accepted(name, "s", 0)
        for position, event_id in enumerate(shown):
            writer.delivered(name, "s", position, event_id, 2, False, None)
    trace = writer.trace()
    for verdict in (
        exactly_once(trace),
        total_order(trace),
        gap_free(trace, confirmed_only=True, strict_end=True),
    ):
        assert verdict.holds, str(verdict)


def recorded(archive: Path) -> list[str]:
    with ArchiveReader(archive) as reader:
        assert not reader.gaps()
        return [str(event.id) for batch in reader.read(*reader.bounds()) for event in events_of(batch)]


def test_readers_and_a_recorder_with_an_order_survive_kills(network: Network, tmp_path: Path) -> None:
    near, far = network.urls
    reader = Victim(far, tmp_path / "reader.log", "", "reader")
    choosy = Victim(near, tmp_path / "choosy.log", FILTER, "choosy")
    recorder = Recording(far, tmp_path / "archive")
    victims = (reader, choosy, recorder)
    everything: list[tidings.Event] = []
    selected: list[tidings.Event] = []

    async def main() -> None:
        for victim in victims:
            victim.start()
        try:
            await recorder.begins()
            await until(lambda: bool(reader.lives and choosy.lives))
            async with witness(near, None, everything), witness(far, FILTER, selected):
                publishing = [publish(url, f"p{number}", number) for number, url in enumerate(network.urls)]
                await asyncio.gather(killing(), *publishing)
                await until(lambda: all_came(everything) and all_came(selected))
                await until(lambda: len(reader.shown()) == len(everything), what=lambda: len(reader.shown()))
                await until(lambda: len(choosy.shown()) == len(selected), what=lambda: len(choosy.shown()))
                await until(lambda: len(recorded(recorder.archive)) >= len(everything))
        finally:
            for victim in victims:
                victim.kill()

    async def killing() -> None:
        random = Random(7)
        for _ in range(KILLS):
            for victim in victims:
                await asyncio.sleep(random.uniform(0.1, 0.6))
                victim.kill()
                await asyncio.sleep(random.choice((0.0, 0.3)))
                victim.start()

    asyncio.run(asyncio.wait_for(main(), 150))
    ids = [str(event.id) for event in everything]
    seen = {"witness": ids, "reader": reader.shown(), "choosy": choosy.shown()}
    seen["recorder"] = recorded(recorder.archive)
    assert seen["reader"] == seen["recorder"] == ids
    assert seen["choosy"] == [str(event.id) for event in selected]
    check(seen, {"choosy": FILTER}, everything)
