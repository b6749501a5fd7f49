"""Measures total order on loopback: timestamps per second of sequencer processes, and the latency that ordering adds.

    python benchmarks/ordering_live.py [--only stamps,latency] [--seconds 5] [--json]

- stamps: one sequencer process, and five in a chain, each with its data on disk; two processes ask for numbers, in
  batches of 64 events or one by one. Every pair of topics (eight per server) is in a group. The rate is what
  publishers got per second of wall time; beside it, per CPU second of the busiest sequencer, including its start: on
  two cores publishers and sequencers take turns.
- latency: one broker, with a publisher and a subscriber in one process; events are offered at 1,000, 5,000 and 10,000
  per second, unordered and in total order (with a sequencer process): from `publish` to the subscriber's stream.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

import tidings
from tidings.core.ordering.layout import Layout, ServerPlacement
from tidings.core.ordering.module import PUBLISHER, JoinCompleted, _InnerPort
from tidings.core.ordering.publisher import EventStamped, OrderedPublisher
from tidings.drivers.address import Address, parse_address
from tidings.drivers.sockets.broker import BrokerServer
from tidings.drivers.sockets.loop import run
from tidings.drivers.sockets.sequencer import SequencerHost
from tidings.drivers.sockets.sequencing import SequencingConnection

TOPICS_PER_SERVER = 8
OUTSTANDING = 8_192
PUBLISHERS = 2
BATCH = 64
RATES = (1_000, 5_000, 10_000)
PAPER_STAMPS_PER_SECOND = 4_000


def layout_of(servers: int) -> Layout:
    return Layout(
        [
            ServerPlacement(f"q{number}", tuple(f"/q{number}/{topic}" for topic in range(TOPICS_PER_SERVER)))
            for number in range(servers)
        ],
        causal=False,
    )


# --- Processes, each started from this file


async def sequencer_process(servers: int, number: int, ports: list[int], data: str) -> None:
    layout = layout_of(servers)
    addresses = {f"q{other}": Address("127.0.0.1", port) for other, port in enumerate(ports)}
    name = f"q{number}"
    host = SequencerHost(name, addresses[name], layout, addresses, data=Path(data) / name)
    await host.start()
    print("ready", flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)
    print(json.dumps({"cpu_s": time.process_time()}), flush=True)
    await host.stop()


class Load:
    """Asks for numbers as fast as it gets them; events count as published at once.

    It drives the publisher itself, not the module around it, to measure the sequencer alone.
    """

    def __init__(self, name: str, port: int, *, batch: int) -> None:
        self.connection = SequencingConnection([Address("127.0.0.1", port)], name, emit=self._on_fact)
        self.stamped = 0
        self._batch = batch
        self._asked = 0
        self._joined = asyncio.Event()
        self._room = asyncio.Event()
        self._publisher: OrderedPublisher

    def _on_fact(self, fact: object) -> None:
        if isinstance(fact, EventStamped):
            self.stamped += fact.count
            self._publisher.published(fact.receipt, fact.count)
            self._room.set()
        elif isinstance(fact, JoinCompleted):
            self._joined.set()

    async def run(self, seconds: float) -> float:
        """Return stamps per second, after a second of warm-up."""
        await self.connection.open(10)
        module = self.connection.module
        topics = module.layout.chain.topics
        module.change(module.add_subscriber(), range(topics))
        await asyncio.wait_for(self._joined.wait(), 30)
        port = _InnerPort(module, PUBLISHER, self._on_fact)
        self._publisher = OrderedPublisher(port, module.layout.chain, incarnation=1)
        module._publisher = self._publisher
        loop = asyncio.get_running_loop()
        began_at, counted = loop.time() + 1, -1
        while loop.time() < began_at + seconds:
            if counted < 0 and loop.time() >= began_at:
                counted = self.stamped
            while self._asked - self.stamped < OUTSTANDING:
                self._publisher.publish((self._asked // self._batch) % topics, None, self._batch)
                self._asked += self._batch
            self._room.clear()
            await self._room.wait()
        rate = (self.stamped - counted) / (loop.time() - began_at)
        await self.connection.close()
        return rate


async def load_process(name: str, port: int, batch: int, seconds: float) -> None:
    # Two subscribers to everything make every pair of topics a group.
    rate = await Load(name, port, batch=batch).run(seconds)
    print(json.dumps({"rate": rate}), flush=True)


def spawn(*arguments: object) -> subprocess.Popen[str]:
    command = [sys.executable, __file__, "--process", *map(str, arguments)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def line_of(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    line = process.stdout.readline().strip()
    if not line:
        raise SystemExit(f"a benchmark process ended unexpectedly: {process.args!r}")
    return line


def free_ports(count: int) -> list[int]:
    import socket

    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [server.getsockname()[1] for server in sockets]
    for server in sockets:
        server.close()
    return ports


def measure_stamps(servers: int, batch: int, seconds: float) -> dict[str, Any]:
    ports = free_ports(servers)
    with tempfile.TemporaryDirectory() as data:
        hosts = [
            spawn("sequencer", servers, number, ",".join(map(str, ports)), data) for number in range(servers)
        ]
        for host in hosts:
            line_of(host)
        loads = [spawn("load", f"p{number}", ports[0], batch, seconds) for number in range(PUBLISHERS)]
        rate = sum(json.loads(line_of(load))["rate"] for load in loads)
        cpu = []
        for host in hosts:
            assert host.stdin is not None
            host.stdin.write("stop\n")
            host.stdin.flush()
            cpu.append(json.loads(line_of(host))["cpu_s"])
        for process in (*hosts, *loads):
            process.wait(10)
    wall_s = seconds + 1
    return {
        "servers": servers,
        "batch": batch,
        "stamps_per_s": round(rate),
        "stamps_per_cpu_s": round(rate * wall_s / max(cpu)),
        "against_the_paper": round(rate / PAPER_STAMPS_PER_SECOND, 1),
    }


# --- Latency


async def broker_process(mode: str, sequencer: str) -> None:
    from tidings.drivers.sockets.guaranteed import GuaranteedSettings

    with tempfile.TemporaryDirectory() as data:
        settings = GuaranteedSettings((0,), {}, data=Path(data), new=True)
        guaranteed = settings if mode == "guaranteed" else None
        broker = BrokerServer(
            "b0",
            mode=mode,
            guaranteed=guaranteed,
            sequencers=[parse_address(sequencer)] if sequencer else [],
        )
        await broker.start()
        print(json.dumps({"port": broker.address.port}), flush=True)
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)
        await broker.stop()


async def measure_latency(url: str, order: str, rate: int, seconds: float) -> dict[str, Any]:
    latencies: list[float] = []
    async with tidings.connect(url) as publisher, tidings.connect(url) as reader:
        async with reader.subscribe("/q0/0", order=order) as stream:
            total = round(rate * seconds)
            reading = asyncio.create_task(read(stream, total, latencies))
            loop = asyncio.get_running_loop()
            began_at, sent = loop.time(), 0
            publishing = set()
            while sent < total:
                due = min(total, round((loop.time() - began_at) * rate) + 1)
                if due > sent:
                    events = [("/q0/0", {"at": time.monotonic_ns()}, b"x" * 128) for _ in range(due - sent)]
                    task = asyncio.create_task(publisher.publish_many(events))
                    publishing.add(task)
                    task.add_done_callback(publishing.discard)
                    sent = due
                await asyncio.sleep(0.001)
            await asyncio.wait_for(reading, 60)
    latencies.sort()
    return {
        "p50_ms": round(latencies[len(latencies) // 2], 2),
        "p99_ms": round(latencies[len(latencies) * 99 // 100], 2),
    }


async def read(stream: tidings.Stream, total: int, latencies: list[float]) -> None:
    while len(latencies) < total:
        event = await stream.get(30)
        latencies.append((time.monotonic_ns() - event.attributes["at"]) / 1e6)


def latency_rows(seconds: float) -> list[dict[str, Any]]:
    rows = []
    port = free_ports(1)[0]
    for mode in ("best-effort", "guaranteed"):
        for order in ("none", "total"):
            with tempfile.TemporaryDirectory() as data:
                # Threshold 1, since best effort may lose events: the layout of one topic is the same in both.
                processes = []
                if order != "none":
                    processes.append(spawn("sequencer-causal", 1, 0, port, data))
                    line_of(processes[0])
                broker = spawn("broker", mode, f"127.0.0.1:{port}" if order != "none" else "")
                processes.append(broker)
                url = f"tidings://127.0.0.1:{json.loads(line_of(broker))['port']}"
                for rate in RATES:
                    print(f"{mode}, order {order}, {rate}/s ...", file=sys.stderr, flush=True)
                    try:
                        found = run(measure_latency(url, order, rate, seconds))
                    except TimeoutError:
                        found = {"p50_ms": None, "p99_ms": None}
                    rows.append({"mode": mode, "order": order, "rate": rate, **found})
                for process in processes:
                    assert process.stdin is not None
                    process.stdin.write("stop\n")
                    process.stdin.flush()
                    process.wait(10)
    return rows


async def causal_sequencer_process(port: int, data: str) -> None:
    layout = Layout(
        [ServerPlacement("q0", tuple(f"/q0/{topic}" for topic in range(TOPICS_PER_SERVER)))], causal=True
    )
    address = Address("127.0.0.1", port)
    host = SequencerHost("q0", address, layout, {"q0": address}, data=Path(data) / "q0")
    await host.start()
    print("ready", flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)
    await host.stop()


def process(arguments: list[str]) -> None:
    match arguments:
        case ["sequencer", servers, number, ports, data]:
            run(sequencer_process(int(servers), int(number), [int(port) for port in ports.split(",")], data))
        case ["sequencer-causal", _, _, port, data]:
            run(causal_sequencer_process(int(port), data))
        case ["load", name, port, batch, seconds]:
            run(load_process(name, int(port), int(batch), float(seconds)))
        case ["broker", mode, sequencer]:
            run(broker_process(mode, sequencer))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="stamps,latency", help="run only these sections")
    parser.add_argument("--seconds", type=float, default=5.0, help="duration of each measurement")
    parser.add_argument("--json", action="store_true", help="print the numbers as JSON")
    parser.add_argument("--process", nargs="*", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.process:
        process(options.process)
        return
    found: dict[str, Any] = {}
    sections = options.only.split(",")
    if "stamps" in sections:
        found["stamps"] = []
        for servers in (1, 5):
            for batch in (1, BATCH):
                print(f"{servers} servers, batches of {batch} ...", file=sys.stderr, flush=True)
                found["stamps"].append(measure_stamps(servers, batch, options.seconds))
    if "latency" in sections:
        found["latency"] = latency_rows(options.seconds)
    if options.json:
        print(json.dumps(found))
        return
    console = Console()
    for name, rows in found.items():
        table = Table(*(key.replace("_", " ") for key in rows[0]), title=name)
        for row in rows:
            table.add_row(*map(str, row.values()))
        console.print(table)


if __name__ == "__main__":
    main()
