"""History in total order from a recorder, then live events of the same order, with real brokers and sequencers."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import tidings
from ports import base_port
from tidings.core.errors import SubscriptionRefused

pytestmark = [pytest.mark.processes, pytest.mark.timeout(200)]

COUNT = 600
"""Events of each publisher."""


def started(*arguments: object) -> tuple[subprocess.Popen[str], dict[str, Any]]:
    command = [sys.executable, "-m", "tidings.cli.main", *map(str, arguments), "--json"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    return process, json.loads(process.stdout.readline())


@pytest.fixture
def network(tmp_path: Path) -> Iterator[tuple[str, str, str]]:
    """Two brokers, sequencers, and recorders of everything in total order and in none; their URLs."""
    up, ready = started(
        "up", "--brokers", 2, "--base-port", base_port(5), "--mode", "guaranteed", "--order", "total",
        "--data", tmp_path / "data",
    )  # fmt: skip
    url = ready["brokers"][1]["url"]
    served = ["--listen", "127.0.0.1:0"]
    total, one = started("record", url, "--archive", tmp_path / "total", "--order", "total", *served)
    plain, other = started("record", url, "/t", "--archive", tmp_path / "plain", *served)
    yield ready["brokers"][0]["url"], one["url"], other["url"]
    for process in (total, plain, up):
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)


async def publish(url: str, name: str) -> None:
    async with tidings.connect(url, name=name) as bus:
        for n in range(COUNT):
            await bus.publish("/t" if n % 3 else "/u", {"n": n}, wait=False)
            if n % 20 == 0:
                await asyncio.sleep(0.02)
        await bus.publish("/u", {"n": COUNT})


async def read(url: str, archive: str, after_s: float, start: Any = "earliest") -> list[tuple[str, int]]:
    await asyncio.sleep(after_s)
    seen: list[tuple[str, Any]] = []
    async with (
        tidings.connect(url) as bus,
        bus.subscribe("/t", "/u", order="total", start=start, archive=archive) as stream,
    ):
        while len([1 for _, n in seen if n == COUNT]) < 2:
            event = await stream.get(60)
            seen.append((event.source, event.attributes["n"]))
    return seen


def test_history_and_live_events_have_one_order(network: tuple[str, str, str]) -> None:
    url, archive, plain = network

    async def main() -> None:
        whole = asyncio.create_task(read(url, archive, 0))
        await asyncio.sleep(0.3)
        publishing = [asyncio.create_task(publish(url, name)) for name in ("p", "q")]
        readers = [asyncio.create_task(read(url, archive, delay)) for delay in (0.1, 0.3, 0.5, 1.5)]
        seen = await whole
        assert sorted(seen) == sorted((name, n) for name in ("p", "q") for n in range(COUNT + 1))
        assert [await reader for reader in readers] == [seen] * 4
        await asyncio.gather(*publishing)
        assert await read(url, archive, 0, start=1_000) == seen[1_000:]
        for wrong, why in (
            (plain, "this archive is recorded with order 'none'.*record --order total --listen"),
            (None, "this broker keeps no archive"),
        ):
            async with tidings.connect(url) as bus:
                with pytest.raises((SubscriptionRefused, tidings.ArchiveError), match=why):
                    async with bus.subscribe("/t", order="total", start="earliest", archive=wrong):
                        pass

    asyncio.run(asyncio.wait_for(main(), 150))
    command = ["sub", url, "/t", "/u", "--order", "total", "--start", "earliest", "--archive", archive]
    done = subprocess.run(
        [sys.executable, "-m", "tidings.cli.main", *command, "--count", str(2 * COUNT + 2), "--json"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 2 * COUNT + 2
