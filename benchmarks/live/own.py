"""tidings itself, through its public interface: `tidings up`, `connect`, `publish_many`, `subscribe` and `async
for`."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path

import tidings
from live.job import Event, Job
from live.servers import STOP_TIMEOUT_S, free_port
from live.system import Arrived, Send, Served
from tidings.drivers.processes.brokers import is_free

SEQUENCERS = 3
SUBSCRIBED_TOGETHER = 1_000
WINDOW = 1024
"""The window of guaranteed brokers in `tidings broker`; a topology file has that of scenarios by default."""


class Tidings:
    def __init__(self, mode: str, order: str = "none") -> None:
        self._mode = mode
        self._order = order

    @contextmanager
    def serve(self, directory: Path, brokers: int) -> Iterator[Served]:
        """Run brokers in a row: publishers are at the first, readers at the last."""
        topology = directory / "row.toml"
        topology.write_text(
            f'[overlay]\nmode = "{self._mode}"\nwindow = {WINDOW}\n'
            f'shape = {{ kind = "chain", brokers = {brokers} }}\n'
        )
        command = [sys.executable, "-m", "tidings.cli.main", "up", str(topology), "--json"]
        command += ["--base-port", str(ports_in_a_row(brokers + SEQUENCERS))]
        if self._mode == "guaranteed":
            command += ["--data", str(directory / "data")]
        if self._order != "none":
            command += ["--order", self._order]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            if not line:
                raise ChildProcessError("the network did not start")
            ready = json.loads(line)
            rows = [(row["broker"], row) for row in ready["brokers"]]
            rows += [(row["sequencer"], row) for row in ready.get("sequencers", ())]
            yield Served(
                ready["brokers"][0]["url"],
                ready["brokers"][-1]["url"],
                {name: row["pid"] for name, row in rows},
            )
        finally:
            process.terminate()
            process.wait(STOP_TIMEOUT_S)

    @asynccontextmanager
    async def publisher(self, job: Job, number: int) -> AsyncIterator[Send]:
        async with tidings.connect(job.url) as bus:

            async def send(events: list[Event]) -> None:
                await bus.publish_many(events)

            yield send

    async def read(self, job: Job, arrived: Arrived, ready: asyncio.Event) -> None:
        async with (
            tidings.connect(job.url) as bus,
            bus.subscribe(job.topic, where=job.where, order=self._order) as stream,
        ):
            await stream.completed()
            ready.set()
            async for event in stream:
                event.attributes  # noqa: B018 - decoded, as for the others
                arrived(event.payload)


async def hold_open(job: Job, stack: AsyncExitStack) -> None:
    """Open idle clients, and spread subscriptions to the job's topic and topics below it over them; none is ever
    read."""
    buses = [
        await stack.enter_async_context(tidings.connect(job.url, timeout_s=60.0))
        for _ in range(job.connections)
    ]

    async def subscribe(number: int) -> None:
        topic = f"{job.topic}/{number}" if number else job.topic
        await stack.enter_async_context(buses[number % len(buses)].subscribe(topic))

    for first in range(0, job.subscriptions, SUBSCRIBED_TOGETHER):
        numbers = range(first, min(first + SUBSCRIBED_TOGETHER, job.subscriptions))
        await asyncio.gather(*map(subscribe, numbers))


def ports_in_a_row(count: int) -> int:
    """Return the first of `count` consecutive free ports."""
    while True:
        first = free_port()
        if first + count < 65_536 and all(is_free("127.0.0.1", port) for port in range(first, first + count)):
            return first
