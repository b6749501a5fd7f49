"""The live path: publisher, broker and subscriber as three processes on loopback, end to end.

    python benchmarks/live.py [--quick] [--json]

Every event has five attributes and a payload of 128 bytes unless the row says otherwise. Throughput counts
events decoded in the subscriber's process from the first to the last; the subscriber reports its progress as
events, and the publisher keeps a window of undelivered ones open. Latency is from `publish` to the callback at
500 events/s. CPU is what each process used per event. The baseline in the same run is what one writes first:
asyncio streams and one JSON line per event.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table

from tidings.model.subscription import Subscription
from tidings.net.address import Address, Transport
from tidings.net.broker import BrokerServer
from tidings.net.client import ClientConnection
from tidings.net.loop import run
from tidings.protocol.facts import Delivered, PublicationFailed, SubscriptionAccepted

TOPIC = "/bench/events"
FILTER = "location = 'USA' AND size > 10 AND provider LIKE 'B%'"
LATENCY_RATE = 500
QUIET_SECONDS = 5.0
PROGRESS_TOPIC = "/bench/progress"
PROGRESS_EVENTS = 512


class Case(NamedTuple):
    name: str
    transport: Transport = "tcp"
    plain: bool = False  # the baseline: asyncio streams and JSON lines
    subscribers: int = 1
    filter: str | None = None
    payload_bytes: int = 128
    events: int = 600_000
    rate: int = 0  # events per second that are offered; 0: as many as the window lets through
    window: int = 16_384  # events that may be on their way


CASES = (
    Case("streams, JSON lines", plain=True, events=60_000),
    Case("TCP, by topic"),
    Case("TCP, by topic and filter", filter=FILTER),
    Case("TCP, one to ten", subscribers=10, events=200_000),
    Case("TCP, 1 KiB payload", payload_bytes=1024, events=200_000),
    Case("UDP, offered 60k/s", "udp", rate=60_000, events=180_000),
    Case("UDP, a window of 2048", "udp", window=2_048, events=300_000),
)


def attributes(number: int) -> dict[str, bool | int | float | str | bytes | None]:
    return {"provider": "BBC", "location": "USA", "size": 11 + number % 100, "price": 1.5, "urgent": True}


def payload(size_bytes: int) -> bytes:
    """The instant of publication, which all processes of a machine read from one clock, then padding."""
    return time.monotonic_ns().to_bytes(8, "big") + bytes(size_bytes - 8)


# --- The broker's process


async def broker(case: Case, port: int) -> None:
    server = BrokerServer("broker", transport=case.transport)
    await server.start()
    await serve_until_told(server.address.port)
    await server.stop()


async def serve_until_told(port: int) -> None:
    """Until the parent closes our input; then say what it cost."""
    say({"port": port})
    began = time.process_time()
    await asyncio.to_thread(sys.stdin.read)
    say({"cpu_seconds": time.process_time() - began})


async def json_broker(case: Case, port: int) -> None:
    """Lines in, lines out to every subscriber: the first line of a connection says what it is."""
    subscribers: list[asyncio.StreamWriter] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if (await reader.readline()).strip() == b"subscriber":
            subscribers.append(writer)
            writer.write(b"accepted\n")
            return
        while line := await reader.readline():
            event = json.loads(line)
            if event["topic"] == TOPIC:
                for subscriber in subscribers:
                    subscriber.write(json.dumps(event).encode() + b"\n")
                    await subscriber.drain()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    await serve_until_told(server.sockets[0].getsockname()[1])
    server.close()


# --- The subscriber's process


class Meter:
    """What arrived, when, and how late."""

    def __init__(self, expected: int) -> None:
        self.expected = expected
        self.count = 0
        self.first_at = self.last_at = 0
        self.latencies_ns: list[int] = []
        self.done = asyncio.Event()
        self._cpu_began = time.process_time()

    def arrived(self, published_at: int) -> None:
        now = self.last_at = time.monotonic_ns()
        if self.count == 0:
            self.first_at = now
        self.count += 1
        if self.expected <= 20_000:
            self.latencies_ns.append(now - published_at)
        if self.count >= self.expected:
            self.done.set()

    async def wait(self) -> dict[str, float]:
        """Until everything arrived, or nothing does any more."""
        seen = -1
        while not self.done.is_set() and (self.count == 0 or seen != self.count):
            seen = self.count
            try:
                await asyncio.wait_for(self.done.wait(), QUIET_SECONDS)
            except TimeoutError:
                continue
        seconds = max(1, self.last_at - self.first_at) / 1e9
        cpu_seconds = time.process_time() - self._cpu_began
        found: dict[str, float] = {"count": self.count, "seconds": seconds, "cpu_seconds": cpu_seconds}
        if self.latencies_ns:
            ordered = sorted(self.latencies_ns)
            found["p50_us"] = ordered[len(ordered) // 2] / 1000
            found["p99_us"] = ordered[len(ordered) * 99 // 100] / 1000
        return found


async def subscriber(case: Case, port: int) -> None:
    meter = Meter(case.events * case.subscribers)
    accepted = asyncio.Semaphore(0)

    def on_fact(fact: object) -> None:
        if isinstance(fact, Delivered):
            event = fact.publication.event()
            meter.arrived(int.from_bytes(event.payload[:8], "big"))
            if meter.count % progress_events == 0 and not case.rate:
                count = meter.count // case.subscribers
                clients[0].client.publish(PROGRESS_TOPIC, {"count": count}, b"", clients[0].now)
        elif isinstance(fact, SubscriptionAccepted):
            accepted.release()

    progress_events = PROGRESS_EVENTS * case.subscribers
    clients = [client_of(case, port, f"subscriber{number}", on_fact) for number in range(case.subscribers)]
    for client in clients:
        await client.open()
        client.client.subscribe(Subscription("all", (TOPIC,), case.filter))
        await accepted.acquire()
    say({"ready": True})
    say(await meter.wait())
    for client in clients:
        await client.close()


async def json_subscriber(case: Case, port: int) -> None:
    meter = Meter(case.events)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"subscriber\n")
    await reader.readline()
    say({"ready": True})
    waiting = asyncio.create_task(meter.wait())
    while not waiting.done() and not meter.done.is_set():
        meter.arrived(json.loads(await reader.readline())["published_at"])
    say(await waiting)
    writer.close()


# --- The publisher's process


async def publisher(case: Case, port: int) -> None:
    delivered = 0
    progress = asyncio.Event()

    def on_fact(fact: object) -> None:
        nonlocal delivered
        if isinstance(fact, Delivered):
            delivered = max(delivered, fact.publication.event().attributes["count"])
        elif isinstance(fact, PublicationFailed):
            raise SystemExit(f"publication {fact.sequence}: {fact.reason}")
        progress.set()

    connection = client_of(case, port, "publisher", on_fact)
    await connection.open()
    connection.client.subscribe(Subscription("progress", (PROGRESS_TOPIC,)))
    await progress.wait()
    began = time.process_time()
    publish = connection.client.publish
    paced_from = time.perf_counter()
    for number in range(1, case.events + 1):
        publish(TOPIC, attributes(number), payload(case.payload_bytes), time.monotonic_ns())
        if case.rate:
            await keep_pace(case, number, paced_from)
        elif number % 64 == 0:
            await connection.drain()
            while number - delivered > case.window:
                progress.clear()
                try:
                    await asyncio.wait_for(progress.wait(), QUIET_SECONDS / 4)
                except TimeoutError:  # datagrams: some were lost, or the report was
                    delivered = number
    await connection.close()
    say({"cpu_seconds": time.process_time() - began})


async def json_publisher(case: Case, port: int) -> None:
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"publisher\n")
    began = time.process_time()
    paced_from = time.perf_counter()
    for number in range(1, case.events + 1):
        event = {"topic": TOPIC, "attributes": attributes(number), "payload": "x" * case.payload_bytes}
        writer.write(json.dumps(event | {"published_at": time.monotonic_ns()}).encode() + b"\n")
        await writer.drain()
        if case.rate:
            await keep_pace(case, number, paced_from)
    writer.close()
    await writer.wait_closed()
    say({"cpu_seconds": time.process_time() - began})


async def keep_pace(case: Case, number: int, began: float) -> None:
    """Spread the events over time, in steps of 2 ms at least."""
    if number % max(1, case.rate // 500) == 0:
        await asyncio.sleep(max(0.0, began + number / case.rate - time.perf_counter()))


def client_of(case: Case, port: int, name: str, emit: Any) -> ClientConnection:
    return ClientConnection(Address(port=port), name, emit=emit, transport=case.transport)


ROLES = {
    "broker": (json_broker, broker),
    "subscriber": (json_subscriber, subscriber),
    "publisher": (json_publisher, publisher),
}


# --- The parent


def say(what: dict[str, Any]) -> None:
    print(json.dumps(what), flush=True)


class Child:
    """One process of a case, which talks in JSON lines."""

    def __init__(self, role: str, case: Case, port: int = 0) -> None:
        arguments = [
            sys.executable,
            __file__,
            "--role",
            role,
            "--case",
            json.dumps(case),
            "--port",
            str(port),
        ]
        self.process = subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def hear(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"a process of the benchmark ended with {self.process.wait()}")
        heard: dict[str, Any] = json.loads(line)
        return heard

    def tell(self) -> None:
        """Closing its input tells a broker to stop."""
        assert self.process.stdin
        self.process.stdin.close()

    def end(self) -> None:
        self.tell()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        assert self.process.stdout
        self.process.stdout.close()


def measure(case: Case) -> dict[str, Any]:
    """One run of the three processes."""
    children: list[Child] = []
    try:
        children.append(Child("broker", case))
        port = children[0].hear()["port"]
        children.append(Child("subscriber", case, port))
        children[1].hear()
        children.append(Child("publisher", case, port))
        found = children[1].hear()
        found["publisher_cpu_seconds"] = children[2].hear()["cpu_seconds"]
        children[0].tell()
        found["broker_cpu_seconds"] = children[0].hear()["cpu_seconds"]
        return found
    finally:
        for child in reversed(children):
            child.end()


def measure_case(case: Case, *, quick: bool) -> dict[str, Any]:
    if quick:
        case = case._replace(events=case.events // 10)
    fast = measure(case)
    slow = measure(case._replace(events=LATENCY_RATE * (1 if quick else 4), rate=LATENCY_RATE))
    offered = case.events * case.subscribers
    return {
        "case": case.name,
        "deliveries_per_second": round(fast["count"] / fast["seconds"]),
        "lost_percent": round(100 * (1 - fast["count"] / offered), 3),
        "p50_us": round(slow["p50_us"]),
        "p99_us": round(slow["p99_us"]),
        "publisher_cpu_us": round(1e6 * fast["publisher_cpu_seconds"] / case.events, 2),
        "broker_cpu_us": round(1e6 * fast["broker_cpu_seconds"] / case.events, 2),
        "subscriber_cpu_us": round(1e6 * fast["cpu_seconds"] / max(1, fast["count"]), 2),
    }


COLUMNS = {
    "deliveries/s": "deliveries_per_second",
    "x baseline": "times_baseline",
    "lost %": "lost_percent",
    "p50 us": "p50_us",
    "p99 us": "p99_us",
    "CPU us: publisher": "publisher_cpu_us",
    "broker": "broker_cpu_us",
    "subscriber": "subscriber_cpu_us",
}


def report(results: Sequence[dict[str, Any]]) -> None:
    table = Table(title="publisher -> broker -> subscriber, three processes on loopback")
    table.add_column("case")
    for column in COLUMNS:
        table.add_column(column, justify="right")
    for row in results:
        table.add_row(row["case"], *(f"{row[key]:,}" for key in COLUMNS.values()))
    Console(width=max(120, Console().width)).print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description="end to end over real sockets")
    parser.add_argument("--quick", action="store_true", help="a tenth of the events")
    parser.add_argument("--json", action="store_true", help="print the results as JSON")
    parser.add_argument(
        "--only", default="", help="only the cases whose name has this in it, and the baseline"
    )
    parser.add_argument("--role", choices=tuple(ROLES), help=argparse.SUPPRESS)
    parser.add_argument("--case", help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, default=0, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.role:
        case = Case(*json.loads(options.case))
        plain, ours = ROLES[options.role]
        if case.plain:
            asyncio.run(plain(case, options.port))
        else:
            run(ours(case, options.port))
        return
    results: list[dict[str, Any]] = []
    for case in (case for case in CASES if case.plain or options.only in case.name):
        print(f"{case.name} ...", file=sys.stderr, flush=True)
        results.append(measure_case(case, quick=options.quick))
        ratio = results[-1]["deliveries_per_second"] / results[0]["deliveries_per_second"]
        results[-1]["times_baseline"] = round(ratio, 2)
    print(json.dumps(results, indent=2)) if options.json else report(results)


if __name__ == "__main__":
    main()
