"""Measures what a durable reader that sleeps costs: the memory of its broker, and the latency of another subscription.

python benchmarks/sleeper.py [--events N]... [--rate HZ] [--sleep S] [--quick] [--json]

For each number of events, twice on a fresh guaranteed broker: the reader is awake and takes what comes, or it holds its
window of 1,024 unacknowledged events and sleeps while the others wait. Events have 128 B. Meanwhile another
subscription gets 100 events/s. Broker, feeder, and readers are separate processes.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from live.own import Tidings
from output import progress, table_of
from rich.console import Console

import tidings
from tidings.drivers.sockets.loop import run

PAYLOAD = b"p" * 128
BACKLOG, PROBE, NAME = "/backlog", "/probe", "sleeper"
PROBE_HZ = 100.0
BATCH = 500
COMMANDS = ("awake", "asleep")


class Row(NamedTuple):
    events: int
    reader: str
    waiting: int
    """At the end, by the broker's own count."""
    memory_before_mb: float
    memory_after_mb: float
    p50_ms: float
    p99_ms: float


async def feed(url: str, events: int, rate: float) -> None:
    """Publish the backlog at that rate."""
    async with tidings.connect(url) as bus:
        began_at = time.perf_counter()
        for first in range(0, events, BATCH):
            await asyncio.sleep(max(began_at + first / rate - time.perf_counter(), 0))
            await bus.publish_many((BACKLOG, {}, PAYLOAD) for _ in range(min(BATCH, events - first)))


async def read(url: str, *, asleep: bool) -> None:
    """Hold the durable subscription until the parent ends this process."""
    async with tidings.connect(url) as bus, bus.subscribe(BACKLOG, durable=NAME) as stream:
        print("ready", flush=True)
        async for _ in stream:
            if asleep:
                await asyncio.Event().wait()


@contextmanager
def child(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen([sys.executable, __file__, *arguments], stdout=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.terminate()
        process.wait(20)


async def probe(url: str, feeder: subprocess.Popen[str], then_s: float) -> list[float]:
    """Return the latencies, in ms, of another subscription until the feeder has ended and `then_s` have passed."""
    found: list[float] = []
    async with tidings.connect(url) as bus, bus.subscribe(PROBE) as stream:
        await stream.completed()
        ends_at = None
        while ends_at is None or time.perf_counter() < ends_at:
            if ends_at is None and feeder.poll() is not None:
                ends_at = time.perf_counter() + then_s
            began_at = time.perf_counter()
            await bus.publish(PROBE, {}, PAYLOAD)
            await stream.get(60)
            found.append((time.perf_counter() - began_at) * 1e3)
            await asyncio.sleep(max(began_at + 1 / PROBE_HZ - time.perf_counter(), 0))
    return sorted(found)


async def waiting_at(url: str) -> int:
    async with tidings.connect(url) as bus:
        (row,) = await bus.durable_subscriptions()
    return int(row["waiting"])


def resident_mb(pid: int) -> float:
    (line,) = (
        line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmRSS")
    )
    return int(line.split()[1]) / 1024


def measure(reader: str, events: int, rate: float, sleep_s: float) -> Row:
    with (
        tempfile.TemporaryDirectory(prefix="sleeper-") as directory,
        Tidings("guaranteed").serve(Path(directory), 1) as served,
        child("--as", reader, served.url_in) as reading,
    ):
        assert reading.stdout is not None
        if reading.stdout.readline() != "ready\n":
            raise ChildProcessError("the reader did not start")
        (pid,) = served.pids.values()
        before_mb = resident_mb(pid)
        with child("--feed", served.url_in, str(events), str(rate)) as feeder:
            times = run(probe(served.url_in, feeder, sleep_s))
            if feeder.returncode:
                raise ChildProcessError("the feeder failed")
        waiting = run(waiting_at(served.url_in))
        p50, p99 = (times[len(times) * share // 100] for share in (50, 99))
        return Row(events, reader, waiting, before_mb, resident_mb(pid), p50, p99)


def main() -> None:
    if sys.argv[1:2] == ["--feed"]:
        run(feed(sys.argv[2], int(sys.argv[3]), float(sys.argv[4])))
        return
    if sys.argv[1:2] == ["--as"]:
        run(read(sys.argv[3], asleep=sys.argv[2] == "asleep"))
        return
    options = parse()
    rows = []
    for events in options.events:
        for reader in COMMANDS:
            rows.append(measure(reader, events, options.rate, options.sleep))
            progress(f"{events:,} events, reader {reader}: p99 {rows[-1].p99_ms:.2f} ms")
    if options.json:
        print(json.dumps([row._asdict() for row in rows]))
    else:
        console = Console(width=max(120, Console().width))
        console.print(table_of("a reader that sleeps", rows))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Measure what a durable reader that sleeps costs.")
    parser.add_argument("--events", type=int, action="append", help="default: 100,000 and 1,000,000")
    parser.add_argument("--rate", type=float, default=5_000.0, help="events/s of the backlog")
    parser.add_argument("--sleep", type=float, default=600.0, help="seconds after the last event")
    parser.add_argument("--quick", action="store_true", help="5,000 events and one second")
    parser.add_argument("--json", action="store_true", help="print the rows as JSON")
    options = parser.parse_args()
    options.events = options.events or ([5_000] if options.quick else [100_000, 1_000_000])
    if options.quick:
        options.sleep = 1.0
    return options


if __name__ == "__main__":
    main()
