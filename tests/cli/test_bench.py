"""`tidings bench`: every kind of network that it starts, networks of others, and that it leaves no process behind."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tidings.cli.benchmark import network as bench_network
from tidings.cli.benchmark.network import row_of_brokers
from tidings.cli.benchmark.process import quantiles_us
from tidings.drivers.address import Address

PATIENCE_S = 200
EVENTS = 2000


def command(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "tidings.cli.main", "bench", *map(str, arguments)]


def bench(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command("--events", EVENTS, *arguments), capture_output=True, text=True, timeout=PATIENCE_S
    )


@pytest.mark.parametrize(
    ("flags", "servers"),
    [
        ([], ["b0"]),
        (["--mode", "guaranteed", "--brokers", "2", "--order", "total"], ["b0", "b1", "s0", "s1", "s2"]),
        (["--mode", "epidemic", "--brokers", "3"], ["b0", "b1", "b2"]),
        (["--transport", "udp"], ["b0"]),
    ],
    ids=["best effort", "guaranteed, total order", "epidemic", "udp"],
)
@pytest.mark.processes
@pytest.mark.timeout(240)
def test_it_measures_a_network_of_its_own(flags: list[str], servers: list[str]) -> None:
    done = bench("--size", 10, "--subscribers", 2, "--json", *flags)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["published"], found["expected"]) == (EVENTS, 2 * EVENTS)
    assert found["arrived"] + found["lost"] == 2 * EVENTS
    if "udp" not in flags:
        assert found["lost"] == 0
    assert 0 < found["latency_us"]["p50"] <= found["latency_us"]["p99"] <= found["latency_us"]["max"]
    assert found["arrived_per_s"] > 0
    assert list(found["cpu_us_per_event"]) == ["publisher", "subscribers", *servers]
    assert found["cpu_us_per_event"]["subscribers"] > 0


@asynccontextmanager
async def network() -> AsyncIterator[str]:
    async with row_of_brokers(1, "guaranteed", "tcp", ordered=False) as started:
        yield started["b0"].url


@pytest.mark.processes
@pytest.mark.timeout(240)
def test_it_measures_the_network_of_a_url() -> None:
    async def main() -> None:
        async with network() as url:
            done = await asyncio.to_thread(bench, url)
            assert done.returncode == 0, done.stderr
            assert url in done.stdout
            assert f"0 of {EVENTS:,}" in done.stdout
            assert "CPU per event: subscribers" in done.stdout
            assert "b0" not in done.stdout  # not ours to look at

    asyncio.run(main())


@pytest.mark.processes
@pytest.mark.timeout(240)
def test_what_the_subscribers_are_refused_is_the_commands_error() -> None:
    async def main() -> None:
        async with network() as url:
            done = await asyncio.to_thread(bench, url, "--order", "total")
            assert done.returncode == 4, (done.stdout, done.stderr)
            assert done.stderr.startswith("tidings: ")
            assert "sequencer" in done.stderr

    asyncio.run(main())


@pytest.mark.processes
@pytest.mark.timeout(240)
def test_stopped_half_way_it_leaves_no_process() -> None:
    process = subprocess.Popen(
        command("--events", 100_000_000, "--json"), text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    listed = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    ends_at = time.monotonic() + PATIENCE_S
    while len(children := listed.read_text().split()) < 2 and time.monotonic() < ends_at:
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 128 + signal.SIGTERM, (out, err)
    assert len(children) == 2
    for pid in children:
        with pytest.raises(ProcessLookupError):
            os.kill(int(pid), 0)


@pytest.mark.parametrize(
    ("ordered_ns", "expected"),
    [
        ([], None),
        ([2000], {"p50": 2.0, "p99": 2.0, "max": 2.0}),
        ([1000 * number for number in range(1, 102)], {"p50": 51.0, "p99": 100.0, "max": 101.0}),
    ],
    ids=["none", "one", "many"],
)
def test_quantiles(ordered_ns: list[int], expected: dict[str, float] | None) -> None:
    assert quantiles_us(ordered_ns) == expected


def test_a_port_that_somebody_took_meanwhile_is_not_insisted_on(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[list[str]] = []
    find = bench_network.free_addresses

    async def main() -> None:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]

            def taken_at_first(names: Iterable[str]) -> dict[str, Address]:
                looked.append(list(names))
                found = find(looked[-1])
                return found if len(looked) > 1 else {**found, "b0": Address("127.0.0.1", port)}

            monkeypatch.setattr(bench_network, "free_addresses", taken_at_first)
            async with bench_network.running_row(1, "best-effort", "tcp", ordered=False) as network:
                assert network.brokers["b0"].url != f"tidings://127.0.0.1:{port}"

    asyncio.run(main())
    assert len(looked) == 2
