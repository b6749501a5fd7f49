"""Groups without a guarantee: brokers and members are processes of their own, over TCP and UDP, and are killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from command import tidings
from ports import base_port

pytestmark = [pytest.mark.processes, pytest.mark.timeout(180)]

PATIENCE_S = 60
Started = subprocess.Popen[str]
Start = Callable[..., Started]
NETWORKS = (
    ("--mode", "best-effort"),
    ("--mode", "best-effort", "--transport", "udp"),
    ("--mode", "epidemic"),
)


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts commands that run on; each is killed by its pid if a test leaves it."""
    started: list[Started] = []

    def start_one(*arguments: object) -> Started:
        command = [sys.executable, "-m", "tidings.cli.main", *map(str, arguments)]
        process = subprocess.Popen(
            command, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=dict(os.environ)
        )
        started.append(process)
        return process

    yield start_one
    for process in reversed(started):
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
        try:
            process.communicate(timeout=PATIENCE_S)
        except subprocess.TimeoutExpired:
            process.kill()


def network(start: Start, *flags: str) -> dict[str, dict[str, Any]]:
    """Start five brokers; return each one's row, by name."""
    process = start("up", "--brokers", 5, *flags, "--base-port", base_port(5), "--json")
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line, process.communicate(timeout=PATIENCE_S)[1]
    return {row["broker"]: row for row in json.loads(line)["brokers"]}


def member(start: Start, url: str, *flags: object) -> Started:
    process = start("sub", url, "/jobs", "--group", "workers", "--json", *flags)
    assert process.stderr is not None
    said = process.stderr.readline()
    assert "subscribed" in said, said
    return process


def publish(url: str, count: int, topic: str = "/jobs") -> list[str]:
    done = tidings("pub", url, topic, "job", "--count", count, "--json")
    assert done.returncode == 0, done.stderr
    return sorted(json.loads(text)["id"] for text in done.stdout.splitlines())


def printed(process: Started, count: int) -> list[str]:
    assert process.stdout is not None
    return [json.loads(process.stdout.readline())["id"] for _ in range(count)]


def rest(process: Started) -> list[str]:
    """End the member in order; return the ids of all that it printed and we have not read."""
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=PATIENCE_S)
    return [json.loads(text)["id"] for text in out.splitlines()]


def members_known(url: str) -> int:
    done = tidings("status", url, "--json")
    assert done.returncode == 0, done.stderr
    status = json.loads(done.stdout)
    return sum(int(group["members"]) for group in status["groups"])


def until_known(url: str, members: int) -> None:
    limit = time.monotonic() + PATIENCE_S
    while members_known(url) != members:
        assert time.monotonic() < limit, "the broker did not learn of the change"
        time.sleep(0.2)


@pytest.mark.parametrize("flags", NETWORKS, ids=["tcp", "udp", "epidemic"])
def test_five_brokers_and_a_member_that_is_killed(start: Start, flags: tuple[str, ...]) -> None:
    urls = {name: row["url"] for name, row in network(start, *flags).items()}
    everything = start("sub", urls["b2"], "/**", "--json")
    assert everything.stderr is not None and "subscribed" in everything.stderr.readline()
    members = [member(start, urls[at]) for at in ("b0", "b1", "b3", "b3")]
    first = publish(urls["b4"], 60)
    until_seen = sorted(printed(everything, 60))
    assert until_seen == first
    members[1].kill()
    lost = [json.loads(text)["id"] for text in members[1].communicate(timeout=PATIENCE_S)[0].splitlines()]
    for url in urls.values():
        until_known(url, 3)
    second = publish(urls["b4"], 60)
    assert sorted(printed(everything, 60)) == second
    time.sleep(0.5)
    found = [rest(one) for one in (members[0], *members[2:])]
    assert all(found)
    got = sorted(text for ids in found for text in ids)
    assert [text for text in got if text in second] == second
    before = [text for text in got if text in first]
    assert len({*before} | {*lost}) == len(before) + len(lost), "nobody got what another one had"
    assert {*before, *lost} <= {*first}
    rest(everything)


@pytest.mark.parametrize("flags", NETWORKS, ids=["tcp", "udp", "epidemic"])
def test_a_broker_that_is_killed_takes_its_members_along(start: Start, flags: tuple[str, ...]) -> None:
    base = base_port(3)
    addresses = [f"127.0.0.1:{base + number}" for number in range(3)]
    brokers = []
    for number, address in enumerate(addresses):
        neighbours = [
            f"--neighbour=b{near}={addresses[near]}" for near in (number - 1, number + 1) if 0 <= near < 3
        ]
        brokers.append(start("broker", "--name", f"b{number}", "--listen", address, *neighbours, *flags))
    urls = []
    for broker in brokers:
        assert broker.stdout is not None
        urls.append(broker.stdout.readline().partition(" listens on ")[2].strip())
    members = [member(start, url) for url in urls]
    until_known(urls[0], 3)
    brokers[2].kill()
    brokers[2].communicate(timeout=PATIENCE_S)
    until_known(urls[0], 2)
    until_known(urls[1], 2)
    published = publish(urls[0], 40)
    time.sleep(0.5)
    found = [rest(one) for one in members[:2]]
    assert sorted(text for ids in found for text in ids) == published
    assert all(found)


@pytest.mark.parametrize("mode", ["best-effort", "epidemic"])
def test_what_needs_a_guarantee_is_refused_in_one_line(start: Start, mode: str) -> None:
    broker = start("broker", "--listen", "127.0.0.1:0", "--mode", mode)
    assert broker.stdout is not None
    url = broker.stdout.readline().partition(" listens on ")[2].strip()
    refused = {
        "durable=": ("--durable", "billing"),
        "keep_for=": ("--group", "workers", "--keep-for", "2d"),
        "max_unacked=": ("--group", "workers", "--max-unacked", 5),
        "max_deliveries=": ("--group", "workers", "--max-deliveries", 5),
    }
    for option, given in refused.items():
        done = tidings("sub", url, "/jobs", *given)
        assert done.returncode == 4, done
        assert f"{option} needs a guaranteed network" in done.stderr
        assert done.stderr.count("\n") == 1
