"""Networks of broker processes: `up`, and that none of them leaves a process behind."""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from command import process_of_tidings, tidings
from ports import base_port
from tidings.bus.connect import connect
from tidings.core.errors import ConnectionFailed
from tidings.drivers.processes.brokers import BrokerNetwork, BrokerProcess, free_addresses
from tidings.drivers.processes.topology_file import tree

pytestmark = [pytest.mark.processes, pytest.mark.timeout(240)]

Started = subprocess.Popen[str]
Start = Callable[..., Started]
PATIENCE_S = 150
ENVIRONMENT = {key: value for key, value in os.environ.items() if key != "PYTHONUNBUFFERED"}
"""As users have it: what is not flushed is not seen."""
TOPOLOGY = """
[overlay]
mode = "best-effort"
edges = [["west", "middle"], ["middle", "east"]]
[up]
base_port = {port}
"""


def command(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "tidings.cli.main", *map(str, arguments)]


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts commands that run on; each is killed by its pid if a test leaves it, its children follow."""
    started: list[Started] = []

    def start_one(*arguments: object) -> Started:
        process = subprocess.Popen(
            command(*arguments), text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=ENVIRONMENT
        )
        started.append(process)
        return process

    yield start_one
    for process in started:
        if process.poll() is None:
            process.kill()
        process.wait(timeout=PATIENCE_S)
        for stream in (process.stdout, process.stderr):
            stream.close()  # type: ignore[union-attr]


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def alive(pid: int) -> bool:
    """False for a zombie, too: it has ended, and only waits for its parent."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    except (FileNotFoundError, ProcessLookupError):
        return False
    return status.rpartition(")")[2].split()[0] != "Z"


def until(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    ends_at = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < ends_at, "it did not come to pass in time"
        time.sleep(0.02)


def ready(process: Started) -> dict[str, dict[str, object]]:
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line, process.stderr.read() if process.stderr else ""
    found = json.loads(line)
    assert found["event"] == "ready"
    return {broker["broker"]: broker for broker in found["brokers"]}


def test_a_network_from_a_topology_file_delivers_survives_and_ends(start: Start, tmp_path: Path) -> None:
    file = tmp_path / "net.toml"
    file.write_text(TOPOLOGY.format(port=base_port(3)), encoding="utf-8")
    network = start("up", file, "--json")
    brokers = ready(network)
    assert list(brokers) == ["west", "middle", "east"]
    assert brokers["middle"]["neighbours"] == ["west", "east"]
    east = start("sub", brokers["east"]["url"], "/x", "--count", 1)
    assert east.stderr is not None
    assert east.stderr.readline() == "subscribed\n"
    assert tidings("pub", brokers["west"]["url"], "/x", "across").returncode == 0
    assert east.communicate(timeout=PATIENCE_S)[0] == "/x | across\n"

    os.kill(int(str(brokers["middle"]["pid"])), signal.SIGKILL)
    assert network.stdout is not None
    ended = json.loads(network.stdout.readline())
    assert (ended["event"], ended["broker"], ended["how"]) == ("ended", "middle", "killed by SIGKILL")
    assert json.loads(tidings("status", brokers["west"]["url"], "--json").stdout)["broker"] == "west"

    network.send_signal(signal.SIGINT)
    assert network.wait(timeout=PATIENCE_S) == 0
    assert not any(alive(int(str(broker["pid"]))) for broker in brokers.values())


def test_a_network_ends_with_its_parent_even_if_that_is_killed(start: Start) -> None:
    network = start("up", "--brokers", 2, "--base-port", base_port(2), "--json")
    pids = [int(str(broker["pid"])) for broker in ready(network).values()]
    network.kill()
    until(lambda: not any(alive(pid) for pid in pids))


def test_a_network_that_cannot_start_says_why_and_leaves_nothing(start: Start) -> None:
    port = base_port(3)
    first = start("broker", "--listen", f"127.0.0.1:{port + 1}")
    assert first.stdout is not None
    assert first.stdout.readline()
    done = process_of_tidings("up", "--brokers", 3, "--base-port", port)
    assert done.returncode == 4
    assert (
        done.stderr
        == f"tidings: b1 did not start: cannot listen on 127.0.0.1:{port + 1}: the port is in use\n"
    )
    assert done.stdout == ""
    until(lambda: not listens(port) and not listens(port + 2))


def test_when_no_broker_is_left_up_ends(start: Start) -> None:
    network = start("up", "--brokers", 1, "--base-port", base_port(1), "--transport", "udp", "--json")
    (broker,) = ready(network).values()
    assert str(broker["url"]).startswith("tidings+udp://")
    os.kill(int(str(broker["pid"])), signal.SIGKILL)
    assert network.wait(timeout=PATIENCE_S) == 4


def test_processes_can_be_killed_and_started_again_at_the_same_place() -> None:
    async def main() -> None:
        topology = tree(2)
        async with BrokerNetwork(topology, free_addresses(topology.brokers)) as network:
            before = network["b1"].pid
            await network.kill("b1")
            assert not network["b1"].running
            assert network["b1"].ending == "killed by SIGKILL"
            with pytest.raises(ConnectionFailed):
                await connect(network["b1"].url).open()
            await network.restart("b1")
            assert network["b1"].pid != before
            async with connect(network["b1"].url) as bus:
                assert (await bus.status())["broker"] == "b1"
            pids = [broker.pid for broker in network.brokers.values()]
        assert not any(alive(pid) for pid in pids if pid is not None)

    asyncio.run(asyncio.wait_for(main(), PATIENCE_S))


def test_a_child_does_not_read_its_parents_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDINGS_BROKER_NEIGHBOUR", "not an address")

    async def main() -> None:
        broker = BrokerProcess("alone", next(iter(free_addresses(["alone"]).values())))
        await broker.start()
        await broker.stop()
        assert broker.ending == "exit code 0"

    asyncio.run(asyncio.wait_for(main(), PATIENCE_S))


def test_up_says_what_to_type_next_and_it_works(start: Start, tmp_path: Path) -> None:
    process = start("up", "--brokers", 2, "--base-port", base_port(2))
    assert process.stdout is not None
    lines = []
    while not lines or not lines[-1].startswith("Press Ctrl-C"):
        lines.append(process.stdout.readline())
        assert lines[-1], "it ended"
    typed = [shlex.split(text)[1:] for text in lines if text.strip().startswith("tidings ")]
    assert [words[0] for words in typed] == ["sub", "pub"]
    reading = start(*typed[0], "--count", 1)
    assert reading.stderr is not None and reading.stderr.readline() == "subscribed\n"
    assert tidings(*typed[1]).returncode == 0
    out, _ = reading.communicate(timeout=PATIENCE_S)
    assert "Hello, world" in out
