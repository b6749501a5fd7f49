"""`sub --start`, `get --since`, `replay --since`, `last`, and a broker that is killed in the middle of a history."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import typer

import tidings as package
from broker_thread import BrokerThread
from command import tidings
from tidings.cli.shared.instants import parse_instant, parse_start
from tidings.core.events.event import Event
from tidings.drivers.processes.brokers import free_addresses
from tidings.storage.archive import Archive, ArchiveSettings

pytestmark = [pytest.mark.processes, pytest.mark.timeout(200)]

PATIENCE_S = 60
SECOND_NS = 1_000_000_000


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[[], subprocess.Popen[str]]]:
    """Starts the broker with its archive, always at the same port."""
    started: list[subprocess.Popen[str]] = []
    port = free_addresses(["b0"])["b0"].port

    def start_one() -> subprocess.Popen[str]:
        words = ["broker", "--mode", "guaranteed", "--label", "0", "--data", tmp_path / "data"]
        words += ["--listen", f"127.0.0.1:{port}", "--archive", tmp_path / "archive", "--json"]
        words += [] if started else ["--new"]
        process = subprocess.Popen(
            [sys.executable, "-m", "tidings.cli.main", *map(str, words)],
            stdout=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline()
        return process

    start_one.url = f"tidings://127.0.0.1:{port}"  # type: ignore[attr-defined]
    yield start_one
    for process in started:
        process.kill()
        process.communicate(timeout=PATIENCE_S)


def test_the_broker_is_killed_in_the_middle_of_a_history(
    tmp_path: Path, start: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """Twice: in the history, with events of before and after the subscription waiting, and at the seam."""

    async def main() -> None:
        broker = start()
        async with package.connect(start.url, name="p") as bus, package.connect(start.url) as other:
            await bus.publish_many(("/t", {"n": n}, bytes(500)) for n in range(60_000))
            async with other.subscribe("/t", start="earliest") as stream:
                publishing = asyncio.create_task(
                    bus.publish_many(("/t", {"n": n}, b"") for n in range(60_000, 63_000))
                )
                numbers = [(await stream.get(PATIENCE_S)).attributes["n"] for _ in range(20_000)]
                for more in (30_000, 13_000):
                    broker.kill()
                    await asyncio.to_thread(broker.communicate)
                    restarting = asyncio.create_task(asyncio.to_thread(start))
                    numbers += [(await stream.get(PATIENCE_S)).attributes["n"] for _ in range(more)]
                    broker = await restarting
                assert numbers == list(range(63_000))
                await publishing
                with pytest.raises(TimeoutError):
                    await stream.get(0.5)

    asyncio.run(asyncio.wait_for(main(), 150))
    assert "the history waits: lost the connection" in caplog.text


def test_the_home_is_killed_in_the_middle_of_a_durable_history(tmp_path: Path, start: Any) -> None:
    """With kill -9, in the history and about its end. Its holder has what it had in hand once more, marked."""
    count = 9_000

    async def main() -> None:
        broker = start()
        done: list[Any] = []
        async with package.connect(start.url, name="p") as bus, package.connect(start.url) as other:
            await bus.publish_many(("/t", {"n": n}, bytes(200)) for n in range(count))
            options: dict[str, Any] = {"durable": "d", "start": "earliest", "order": "fifo"}
            async with other.subscribe("/t", **options, ack="manual") as stream:
                publishing = asyncio.create_task(
                    bus.publish_many(("/t", {"n": n}, b"") for n in range(count, count + 2_000))
                )
                for until in (500, 4_500, count - 3_000, count - 50):
                    while len(done) < until:
                        await finish(await stream.get(PATIENCE_S), done)
                    broker.kill()
                    await asyncio.to_thread(broker.communicate)
                    broker = await asyncio.to_thread(start)
                while len(done) < count + 2_000:
                    await finish(await stream.get(PATIENCE_S), done)
                await publishing
                with pytest.raises(TimeoutError):
                    await stream.get(0.5)
        assert done == list(range(count + 2_000))

    async def finish(event: Any, done: list[Any]) -> None:
        try:
            await event.ack()
        except package.NotHeld:
            return  # the broker was killed: it comes again
        done.append(event.attributes["n"])

    asyncio.run(asyncio.wait_for(main(), 150))


def fill(directory: Path) -> Path:
    """Ten events, one per hour, the last one now."""
    now_ns = time.time_ns()
    with Archive.open(directory) as archive:
        for n in range(10):
            published_ns = now_ns - (9 - n) * 3_600 * SECOND_NS
            archive.append([Event("p", 0, n + 1, f"/t/{n % 3}", published_ns, {"n": n}, b"")], published_ns)
    return directory


def test_since_reaches_back_beyond_what_an_archive_dropped(tmp_path: Path) -> None:
    now_ns = time.time_ns()
    settings = ArchiveSettings(segment_rows=100, retain_bytes=1)
    with Archive.open(tmp_path / "archive", settings) as archive:
        for first in range(0, 200, 50):
            events = [Event("p", 0, n + 1, "/t", now_ns, {"n": n}, b"") for n in range(first, first + 50)]
            archive.append(events, now_ns)
        archive.append([Event("p", 0, 201, "/t", now_ns, {"n": 200}, b"")], now_ns)
        archive.maintain()
        assert archive.bounds() == (200, 201)
    done = tidings("get", tmp_path / "archive", "--since", "2h")
    assert done.returncode == 2
    assert "the archive does not reach back to" in done.stderr
    assert "the oldest event kept is at offset 200, published" in done.stderr
    assert done.stderr.endswith(": use --offset earliest\n")
    assert printed("get", tmp_path / "archive", "--offset", "earliest") == [200]


def printed(*arguments: object) -> list[Any]:
    done = tidings(*arguments, "--json")
    assert done.returncode == 0, done.stderr
    return [json.loads(line)["attributes"]["n"] for line in done.stdout.splitlines()]


def test_get_and_replay_since(tmp_path: Path) -> None:
    archive = fill(tmp_path / "archive")
    assert printed("get", archive, "--since", "150m") == [7, 8, 9]
    assert printed("get", archive, "--since", "5.5h", "--end", "-1", "--topic", "/t/1") == [4, 7]
    since = (datetime.now(UTC) - timedelta(hours=3.5)).isoformat()
    assert printed("get", archive, "--since", since) == [6, 7, 8, 9]
    assert printed("get", archive, "--since", "0s") == []
    assert printed("get", archive, "--since", "3d") == list(range(10))  # it has dropped nothing
    done = tidings("get", archive, "--since", "3d", "--offset", "5")
    assert (done.returncode, "not allowed with --offset" in done.stderr) == (2, True)
    for bad in ("yesterday", "2x", "h", "-2h", "1e999d", "2026-13-01", "naNs"):
        done = tidings("get", archive, "--since", bad)
        assert done.returncode == 2
        assert "expected a time ago such as 2h, 90s or 7d, or an ISO 8601 time such as" in done.stderr
    with BrokerThread("best-effort") as broker:
        url = broker.url
        done = tidings("replay", archive, url, "--since", "150m", "--json")
        assert json.loads(done.stdout) == {"published": 3, "next_offset": 10}


def test_last_prints_the_newest_event_of_each_topic(tmp_path: Path) -> None:
    archive = fill(tmp_path / "archive")
    assert printed("last", archive) == [7, 8, 9]
    assert printed("last", archive, "/t/0", "/t/2") == [8, 9]
    assert printed("last", archive, "--where", "n < 5") == [2, 3, 4]
    assert printed("last", archive, "/u") == []
    done = tidings("last", archive, "/t/*", "--where", "n < 4")
    assert done.stdout == "1 /t/1 n=1\n2 /t/2 n=2\n3 /t/0 n=3\n"
    done = tidings("last", "no-such-archive")
    assert done.returncode == 2
    assert "Traceback" not in done.stderr


def test_sub_starts_where_it_is_told(tmp_path: Path, start: Any) -> None:
    start()
    with package.sync.connect(start.url) as bus:
        bus.publish_many([(f"/t/{n % 3}", {"n": n}, b"") for n in range(10)])
        with bus.subscribe("/**", start="last") as stream:
            assert sorted(stream.get(5).attributes["n"] for _ in range(3)) == [7, 8, 9]
    for given, count, expected in (
        ("earliest", 10, list(range(10))),
        ("6", 4, [6, 7, 8, 9]),
        ("last", 3, [7, 8, 9]),
    ):
        assert printed("sub", start.url, "/**", "--start", given, "--count", count) == expected
    assert printed("sub", start.url, "/t/1", "--where", "n > 1", "--start", "earliest", "--count", 2) == [
        4,
        7,
    ]
    assert printed("last", start.url) == [7, 8, 9]
    durable = ("sub", start.url, "/**", "--durable", "d", "--start")
    assert printed(*durable, "3", "--count", 2) == [3, 4]
    assert printed(*durable, "earliest", "--count", 5) == [5, 6, 7, 8, 9]
    assert printed("sub", start.url, "/**", "--group", "g", "--start", "last", "--count", 3) == [7, 8, 9]
    done = tidings("sub", start.url, "/**", "--durable", "e", "--start", "77", "--count", 1)
    assert (done.returncode, done.stderr.count("\n")) == (4, 1)
    assert "offset 77 does not exist yet; the archive ends at 10" in done.stderr
    everything = list(range(10))  # a time before the first event means that one, as nothing was dropped
    assert printed("sub", start.url, "/**", "--start", "7d", "--count", 10) == everything
    assert printed("get", start.url, "--since", "7d") == everything
    done = tidings("sub", start.url, "/**", "--start", "77", "--count", 1)
    assert (done.returncode, "offset 77 does not exist yet; the archive ends at 10" in done.stderr) == (
        2,
        True,
    )
    done = tidings("sub", start.url, "/**", "--start", "soon")
    assert done.returncode == 2
    assert "expected new, earliest, last, an offset, a time ago such as 2h" in done.stderr
    done = tidings("sub", start.url, "/**", "--start", "earliest", "--archive", start.url)
    assert (done.returncode, "archive= is for subscriptions with start=" in done.stderr) == (2, True)
    with BrokerThread("best-effort") as broker:
        url = broker.url
        done = tidings("sub", url, "/**", "--start", "earliest")
        assert done.returncode == 4
        assert "needs the archive of a guaranteed broker: tidings broker --mode guaranteed" in done.stderr


def test_times_as_users_write_them() -> None:
    now = datetime.now(UTC)
    for text, ago in (("90s", 90), ("15m", 900), ("2h", 7_200), ("7d", 604_800), ("0.5h", 1_800)):
        assert abs((now - parse_instant(text, "--since")).total_seconds() - ago) < 5
    assert parse_instant("2026-11-18T12:00:00Z", "-") == datetime(2026, 11, 18, 12, tzinfo=UTC)
    assert parse_instant("2026-11-18T12:00+02:00", "-") == datetime(2026, 11, 18, 10, tzinfo=UTC)
    assert parse_instant("2026-11-18 12:00", "-") == datetime(2026, 11, 18, 12).astimezone()
    assert parse_instant("2026-11-18", "-").tzinfo is not None
    assert [parse_start(text, "-") for text in ("new", "last", "12")] == ["new", "last", 12]
    for bad in ("", "12x", "-1", "١٢", "in 2h", "2h ago", "earlies"):
        with pytest.raises(typer.BadParameter, match="expected new, earliest, last, an offset"):
            parse_start(bad, "--start")
