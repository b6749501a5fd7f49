"""Measures requests and their answers against NATS: round trips over loopback, one at a time and several at once.

python benchmarks/requests.py [--count N] [--repeat N] [--at-once N] [--only NAME]... [--json]

Server, responder and requester are three processes. A request has an attribute and a payload of 128 B, the answer a
payload of 128 B. NATS gets both as one MessagePack value, as in `benchmarks/live.py`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import msgspec
from live.nats_core import NatsCore, connection
from live.own import Tidings
from output import progress, table_of
from rich.console import Console

import tidings
from tidings.drivers.sockets.loop import run

TOPIC, SUBJECT = "/price", "price"
PAYLOAD = b"p" * 128
GOAL = 1.5
WARM_UP = 500
STRETCH = 100
Ask = Callable[[], Awaitable[bytes]]
SERVERS = {
    "NATS": NatsCore(),
    "tidings best effort": Tidings("best-effort"),
    "tidings guaranteed": Tidings("guaranteed"),
}


class Figures(NamedTuple):
    p50_us: float
    p99_us: float
    best_p50_us: float
    """Of the best stretch: what the machine allows while nothing else runs on it."""
    requests_per_s: float
    """Several at once."""


class Row(NamedTuple):
    system: str
    p50_us: float
    of_NATS: float | None
    p99_us: float
    of_NATS_: float | None
    best_p50_us: float
    of_NATS__: float | None
    requests_per_s: float


@asynccontextmanager
async def asking(system: str, url: str) -> AsyncIterator[Ask]:
    """Yields a function that asks once."""
    if system == "NATS":
        async with connection(url) as client:

            async def ask_nats() -> bytes:
                question = msgspec.msgpack.encode(({"symbol": "ABB"}, PAYLOAD))
                return (await client.request(SUBJECT, question, timeout=30)).data

            yield ask_nats
    else:
        async with tidings.connect(url) as bus:

            async def ask() -> bytes:
                return (await bus.request(TOPIC, {"symbol": "ABB"}, PAYLOAD, timeout=30)).payload

            yield ask


async def respond(system: str, url: str) -> None:
    """Answer requests until the parent ends this process."""
    if system == "NATS":
        async with connection(url) as client:

            async def answer_nats(message: Any) -> None:
                msgspec.msgpack.decode(message.data)
                await message.respond(PAYLOAD)

            await client.subscribe(SUBJECT, cb=answer_nats)
            await client.flush()
            print("ready", flush=True)
            await asyncio.Event().wait()
    else:

        async def answer(event: tidings.Event) -> bytes:
            return PAYLOAD

        async with tidings.connect(url) as bus, bus.serve(TOPIC, answer, concurrency=64) as server:
            print("ready", flush=True)
            await server.wait()


@contextmanager
def responder(system: str, url: str) -> Iterator[None]:
    command = [sys.executable, __file__, "--respond", system, url]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        if process.stdout.readline() != "ready\n":
            raise ChildProcessError(f"{system}: the responder did not start")
        yield
    finally:
        process.terminate()
        process.wait(20)


async def measure(system: str, url: str, count: int, at_once: int) -> Figures:
    """Measure round trips one after the other, then the rate with several at once."""
    async with asking(system, url) as ask:
        for _ in range(WARM_UP):
            await ask()
        trips = []
        for _ in range(count):
            began_at = time.perf_counter_ns()
            assert await ask() == PAYLOAD
            trips.append((time.perf_counter_ns() - began_at) / 1_000)

        async def ask_often() -> None:
            for _ in range(count // at_once):
                await ask()

        began_at = time.perf_counter_ns()
        await asyncio.gather(*(ask_often() for _ in range(at_once)))
        taken_s = (time.perf_counter_ns() - began_at) / 1e9
        best = min(median(trips[begin : begin + STRETCH]) for begin in range(0, count, STRETCH))
        p99 = sorted(trips)[count * 99 // 100]
        return Figures(median(trips), p99, best, count // at_once * at_once / taken_s)


def repetition(systems: list[str], count: int, at_once: int) -> dict[str, Figures]:
    found = {}
    for system in systems:
        with tempfile.TemporaryDirectory() as directory:
            with SERVERS[system].serve(Path(directory), 1) as served, responder(system, served.url_in):
                found[system] = run(measure(system, served.url_in, count, at_once))
        progress(
            f"{system}: "
            + ", ".join(f"{name} {value:,.0f}" for name, value in found[system]._asdict().items())
        )
    return found


def row(system: str, runs: list[dict[str, Figures]]) -> Row:
    def middle(figure: int) -> float:
        return median(one[system][figure] for one in runs)

    def ratio(figure: int) -> float | None:
        if system == "NATS" or "NATS" not in runs[0]:
            return None
        return median(one[system][figure] / one["NATS"][figure] for one in runs)

    return Row(system, middle(0), ratio(0), middle(1), ratio(1), middle(2), ratio(2), middle(3))


def main() -> None:
    options = parse()
    if options.respond:
        run(respond(*options.respond))
        return
    systems = [
        name for name in SERVERS if not options.only or any(name.startswith(one) for one in options.only)
    ]
    runs = [repetition(systems, options.count, options.at_once) for _ in range(options.repeat)]
    rows = [row(system, runs) for system in systems]
    if options.json:
        print(json.dumps([one._asdict() for one in rows]))
        return
    title = (
        f"round trips, medians of {options.repeat}; requests/s with {options.at_once} at once; goal {GOAL}x"
    )
    Console(width=120).print(table_of(title, rows))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Measure requests and their answers against NATS.")
    parser.add_argument("--count", type=int, default=5_000, help="requests of each kind and repetition")
    parser.add_argument("--repeat", type=int, default=5, help="number of repetitions; medians are shown")
    parser.add_argument("--at-once", type=int, default=16, help="how many requests wait at once for the rate")
    parser.add_argument("--only", action="append", default=[], help=f"only these: {', '.join(SERVERS)}")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    parser.add_argument("--respond", nargs=2, help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    main()
