"""`tidings bench`: how many events per second, and how fast, from `publish` to the subscriber's code.

Publisher and subscribers are in this process, the broker in its own; so the numbers are those of this machine
with all of it, and those of two machines differ.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from time import perf_counter_ns
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidings.cli.exits import ExitCode
from tidings.cli.options import Json, Quiet, TlsAuthority, TokenFile, TransportName, make_bus, option
from tidings.cli.output import Progress, print_json, print_table, progress_bar

if TYPE_CHECKING:
    from tidings.services.host import ApplicationHost
    from tidings.services.stream import Stream

LATENCY_EVENTS = 1000
LATENCY_RATE_HZ = 500.0
PROGRESS_EVENTS = 1000
QUIET_SECONDS = 3.0
"""When nothing has come for so long, the rest is lost."""

BrokerUrl = Annotated[
    str | None, typer.Argument(metavar="[URL]", help="A broker; without, one is started.", show_default=False)
]
Events = Annotated[int, option("--events", min=1, max=100_000_000, help="How many are published.")]
Size = Annotated[int, option("--size", min=0, max=1_000_000, help="Bytes of payload.")]
Subscribers = Annotated[int, option("--subscribers", min=1, max=1000, help="Each gets every event.")]
Transport = Annotated[TransportName, option("--transport", help="Of the broker that is started.")]


def bench(
    url: BrokerUrl = None,
    events: Events = 100_000,
    size: Size = 128,
    subscribers: Subscribers = 1,
    transport: Transport = TransportName.TCP,
    token_file: TokenFile = None,
    tls_ca: TlsAuthority = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Measure events per second end to end, and latency."""
    from tidings.cli.running import run

    with progress_bar("bench", quiet=quiet) as progress:
        measured = run(measure(url, transport, events, size, subscribers, token_file, tls_ca, progress))
    if json:
        print_json(measured)
    else:
        print_table(measured["url"], ("what", "value"), readable(measured))
    if not measured["arrived"]:
        raise typer.Exit(ExitCode.TIMEOUT)


async def measure(
    url: str | None,
    transport: TransportName,
    events: int,
    size_bytes: int,
    subscribers: int,
    token_file: Path | None,
    tls_authority: Path | None,
    progress: Progress,
) -> dict[str, Any]:
    async with broker_url(url, transport) as where, AsyncExitStack() as stack:

        def new_bus() -> ApplicationHost:
            return make_bus(where, token_file=token_file, tls_authority=tls_authority)

        topic = f"/bench/{secrets.token_hex(6)}"
        publisher = await stack.enter_async_context(new_bus())
        streams = []
        for _ in range(subscribers):
            bus = await stack.enter_async_context(new_bus())
            stream = bus.subscribe(topic, buffer_events=max(events, LATENCY_EVENTS))
            streams.append(await stack.enter_async_context(stream))
        latency = await measure_latency(publisher, topic, streams, size_bytes)
        throughput = await measure_throughput(publisher, topic, streams, events, size_bytes, progress)
        return {"url": where, "size_bytes": size_bytes, "subscribers": subscribers, **throughput, **latency}


@asynccontextmanager
async def broker_url(url: str | None, transport: TransportName) -> AsyncIterator[str]:
    """The URL that was given, or that of a broker which lives as long as this."""
    if url is not None:
        yield url
        return
    from tidings.cli.processes import BrokerProcess
    from tidings.net.address import Address

    broker = BrokerProcess("bench", Address(port=0), transport=transport.value)
    try:
        await broker.start()
        yield broker.url
    finally:
        await broker.stop()


async def measure_throughput(
    publisher: ApplicationHost,
    topic: str,
    streams: list[Stream],
    events: int,
    size_bytes: int,
    progress: Progress,
) -> dict[str, Any]:
    """Publish as fast as confirmations come; the time runs from the first call to the last arrival."""
    meters = [Meter(stream, events) for stream in streams]
    readers = [asyncio.create_task(meter.read()) for meter in meters]
    began_at = perf_counter_ns()
    published = await publisher.publish_many(numbered(topic, events, bytes(size_bytes), progress))
    confirmed_at = perf_counter_ns()
    await asyncio.gather(*readers)
    arrived = sum(meter.arrived for meter in meters)
    ended_at = max(meter.last_at for meter in meters) if arrived else confirmed_at
    return {
        "published": published,
        "expected": published * len(meters),
        "arrived": arrived,
        "lost": published * len(meters) - arrived,
        "published_per_s": round(published / (confirmed_at - began_at) * 1e9),
        "arrived_per_s": round(arrived / (ended_at - began_at) * 1e9),
    }


def numbered(
    topic: str, events: int, payload: bytes, progress: Progress
) -> Iterator[tuple[str, dict[str, Any], bytes]]:
    """The events; it is asked for them as fast as earlier ones are confirmed, and so knows the progress."""
    for number in range(events):
        if number % PROGRESS_EVENTS == 0:
            progress(number / events)
        yield topic, {"number": number}, payload


class Meter:
    """Counts what arrives on one stream until all did, or nothing does any more."""

    def __init__(self, stream: Stream, expected: int) -> None:
        self.stream = stream
        self.expected = expected
        self.arrived = 0
        self.last_at = 0

    async def read(self) -> None:
        while self.arrived < self.expected:
            try:
                await self.stream.get(timeout_s=QUIET_SECONDS)
            except TimeoutError:
                return
            self.arrived += 1
            self.last_at = perf_counter_ns()


async def measure_latency(
    publisher: ApplicationHost, topic: str, streams: list[Stream], size_bytes: int
) -> dict[str, Any]:
    """At a modest rate, so that it is the way that is measured and not a queue."""
    sent_at: dict[int, int] = {}
    latencies_ns: list[int] = []

    async def read(stream: Stream) -> None:
        for _ in range(LATENCY_EVENTS):
            try:
                event = await stream.get(timeout_s=QUIET_SECONDS)
            except TimeoutError:
                return
            latencies_ns.append(perf_counter_ns() - sent_at[event.attributes["number"]])

    readers = [asyncio.create_task(read(stream)) for stream in streams]
    loop = asyncio.get_running_loop()
    began_at = loop.time()
    payload = bytes(size_bytes)
    for number in range(LATENCY_EVENTS):
        await asyncio.sleep(max(0.0, began_at + number / LATENCY_RATE_HZ - loop.time()))
        sent_at[number] = perf_counter_ns()
        await publisher.publish(topic, {"number": number}, payload)
    await asyncio.gather(*readers)
    return {"latency_us": quantiles_us(sorted(latencies_ns))}


def quantiles_us(ordered_ns: list[int]) -> dict[str, float] | None:
    """p50, p99 and the maximum of ascending values; None without any."""
    if not ordered_ns:
        return None
    last = len(ordered_ns) - 1
    picked = {"p50": ordered_ns[last // 2], "p99": ordered_ns[last * 99 // 100], "max": ordered_ns[last]}
    return {name: value / 1000 for name, value in picked.items()}


def readable(measured: dict[str, Any]) -> list[tuple[str, object]]:
    latency = measured["latency_us"]
    times = "-" if latency is None else " / ".join(f"{latency[key]:,.0f}" for key in ("p50", "p99", "max"))
    return [
        ("events", f"{measured['published']:,} of {measured['size_bytes']} bytes"),
        ("subscribers", measured["subscribers"]),
        ("published and confirmed", f"{measured['published_per_s']:,} events/s"),
        ("arrived, end to end", f"{measured['arrived_per_s']:,} events/s"),
        ("lost", f"{measured['lost']:,} of {measured['expected']:,}"),
        (f"latency at {LATENCY_RATE_HZ:.0f} events/s", f"{times} µs (p50 / p99 / max)"),
    ]
