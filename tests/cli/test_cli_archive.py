"""`tidings record`, `get`, `replay` and `broker --archive` as processes, killed and started again."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from command import tidings
from recording_network import numbers
from tidings.core.events.event import Event
from tidings.drivers.processes.brokers import free_addresses
from tidings.scenarios.trace.checkers import check_all
from tidings.scenarios.trace.reader import Trace
from tidings.storage.archive import Archive, ArchiveReader, ArchiveSettings

pytestmark = [pytest.mark.processes, pytest.mark.timeout(200)]

PATIENCE_S = 60
Started = subprocess.Popen[str]


@pytest.fixture
def start() -> Iterator[Callable[..., tuple[Started, dict[str, Any]]]]:
    """Starts a command with --json; returns it with the first line it printed."""
    started: list[Started] = []

    def start_one(*arguments: object) -> tuple[Started, dict[str, Any]]:
        process = subprocess.Popen(
            [sys.executable, "-m", "tidings.cli.main", *map(str, arguments), "--json"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, process.communicate(timeout=PATIENCE_S)
        return process, json.loads(line)

    yield start_one
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate(timeout=PATIENCE_S)


def kill(process: Started) -> None:
    process.kill()
    process.communicate(timeout=PATIENCE_S)


def stop(process: Started) -> str:
    process.send_signal(signal.SIGTERM)
    printed, errors = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, errors
    return printed


def guaranteed(tmp_path: Path, port: int, *more: object) -> list[object]:
    listen = f"127.0.0.1:{port}"
    return [
        "broker",
        "--mode",
        "guaranteed",
        "--label",
        "0",
        "--data",
        tmp_path / "data",
        "--listen",
        listen,
        *more,
    ]


def publish(url: str, first: int, last: int) -> None:
    """One event per number; each id is printed once it is confirmed."""
    code = f"""
import tidings
with tidings.sync.connect({url!r}, name="p{first}") as bus:
    bus.publish_many([("/a", {{"number": n}}, b"payload") for n in range({first}, {last})])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == 0, done.stderr


def until(condition: Callable[[], bool]) -> None:
    ends_at = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < ends_at
        time.sleep(0.05)


def recorded(archive: Path) -> int:
    with ArchiveReader(archive) as reader:
        return reader.bounds().end


def test_what_is_recorded_survives_kills(tmp_path: Path, start: Callable[..., Any]) -> None:
    """The recorder is killed twice, the broker once; then the archive is read over the network and replayed."""
    archive = tmp_path / "archive"
    port = free_addresses(["b0"])["b0"].port
    broker, told = start(*guaranteed(tmp_path, port, "--new"))
    url = told["url"]
    record = ("record", url, "/a", "--archive", archive, "--segment-rows", 150)
    recorder, told = start(*record)
    assert (told["event"], told["offset"]) == ("recording", 0)
    publish(url, 0, 200)
    kill(recorder)
    publish(url, 200, 300)
    recorder, _ = start(*record)
    publish(url, 300, 400)
    kill(broker)
    broker, _ = start(*guaranteed(tmp_path, port))
    publish(url, 400, 450)
    until(lambda: recorded(archive) >= 450)
    kill(recorder)
    publish(url, 450, 500)
    recorder, told = start(*record, "--listen", "127.0.0.1:0")
    until(lambda: recorded(archive) >= 500)
    assert numbers(archive) == list(range(500))

    lines = tidings("get", told["url"], "--offset", 100, "--count", 3, "--json").stdout.splitlines()
    assert [json.loads(line)["offset"] for line in lines] == [100, 101, 102]
    assert [json.loads(line)["attributes"]["number"] for line in lines] == [100, 101, 102]
    text = tidings("get", archive, "--offset", "-2", "--where", "number = 499").stdout
    assert text == "499 /a number=499 | payload\n"
    info = json.loads(tidings("get", archive, "--info", "--json").stdout)
    assert (info["first"], info["end"], info["gaps"]) == (0, 500, [])
    printed = stop(recorder)
    assert json.loads(printed)["event"] == "ended"

    # Each of a replay's events is taken once, however often it is started.
    collected = tmp_path / "replayed"
    reader, _ = start("record", url, "/**", "--archive", collected)
    for _ in range(2):
        done = tidings("replay", archive, url, "--offset", 490, "--once", "again", "--json")
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout) == {"published": 10, "next_offset": 500}
    assert tidings("replay", archive, url, "--offset", 498, "--where", "number > 498").returncode == 0
    until(lambda: recorded(collected) >= 11)
    stop(reader)
    assert numbers(collected) == [*range(490, 500), 499]
    stop(broker)


def test_a_broker_keeps_an_archive_across_kills(tmp_path: Path, start: Callable[..., Any]) -> None:
    archive = tmp_path / "archive"
    port = free_addresses(["b0"])["b0"].port
    keeping = ("--archive", archive, "--archive-topic", "/a", "--retain-age", "30d")
    broker, told = start(*guaranteed(tmp_path, port, "--new", *keeping))
    publish(told["url"], 0, 120)
    kill(broker)
    broker, told = start(*guaranteed(tmp_path, port, *keeping))
    publish(told["url"], 120, 150)
    until(lambda: recorded(archive) >= 150)
    status = json.loads(tidings("status", told["url"], "--json").stdout)
    assert (status["archive"], status["archive_recorder"]) == (str(archive), "b0/archive")
    lines = tidings("get", told["url"], "--json").stdout.splitlines()
    assert [json.loads(line)["attributes"]["number"] for line in lines] == list(range(150))
    stop(broker)
    assert numbers(archive) == list(range(150))


@pytest.mark.parametrize("mode", ["guaranteed", None])
def test_a_recording_as_a_trace(tmp_path: Path, start: Callable[..., Any], mode: str | None) -> None:
    port = free_addresses(["b0"])["b0"].port
    plain = ("broker", "--listen", "127.0.0.1:0")
    broker, told = start(*(guaranteed(tmp_path, port, "--new") if mode else plain))
    trace = tmp_path / "trace"
    recorder, _ = start("record", told["url"], "--trace", trace, "--count", 30, "--order", "fifo")
    publish(told["url"], 0, 30)
    printed, errors = recorder.communicate(timeout=PATIENCE_S)
    assert recorder.returncode == 0, errors
    assert json.loads(printed)["recorded"] == 30
    read = Trace.read(trace)
    assert read.delivered.num_rows == read.published.num_rows == 30
    assert all(verdict.holds for verdict in check_all(read))
    audited = json.loads(tidings("audit", trace, "--json").stdout)["traces"][0]
    assert audited["mode"] == mode
    promised = ["exactly_once", "fifo", *(["gap_free"] if mode else [])]
    assert [verdict["guarantee"] for verdict in audited["verdicts"]] == promised
    assert "events that never reached it are not in the trace" in audited["remarks"][0]
    stop(broker)


def test_following_an_archive(tmp_path: Path, start: Callable[..., Any]) -> None:
    directory = tmp_path / "archive"
    with Archive.open(directory) as archive:
        archive.append([Event("p", 0, 1, "/a", 1, {"number": 0}, b"")], 1)
        process = subprocess.Popen(
            [sys.executable, "-m", "tidings.cli.main", "get", str(directory), "--follow", "--count", "2"],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None
        assert process.stdout.readline() == "0 /a number=0\n"
        archive.append([Event("p", 0, 2, "/a", 2, {"number": 1}, b"\xff")], 2)
        printed, _ = process.communicate(timeout=PATIENCE_S)
    assert printed == "1 /a number=1 | \\xff\n"
    assert process.returncode == 0


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["get", "nowhere"], 2, "nowhere"),
        (
            ["get", "{archive}", "--offset", "soon"],
            2,
            "expected a number, earliest, latest, or -N for the last N, not 'soon'",
        ),
        (["get", "{archive}", "--offset", "5"], 2, "offset 5 does not exist yet; the archive ends at 1"),
        (["get", "{archive}", "--end", "9"], 2, "offset 9 does not exist yet"),
        (["get", "{archive}", "--where", "x >"], 2, "position"),
        (["get", "{archive}", "--topic", "a"], 2, "'a'"),
        (["get", "tidings://127.0.0.1:1"], 4, "connection refused"),
        (["get", "nats://127.0.0.1:1"], 2, "is not an archive's URL"),
        (["replay", "{archive}", "tidings://127.0.0.1:1"], 4, "connection refused"),
        (["replay", "{archive}", "nats://127.0.0.1:1", "--once", "x"], 4, "guaranteed"),
        (
            ["replay", "{archive}", "tidings://127.0.0.1:1", "--rate", "1", "--speed", "1"],
            2,
            "--speed: not allowed with --rate",
        ),
        (["record", "tidings://127.0.0.1:1"], 2, "--archive"),
        (["record", "tidings://127.0.0.1:1", "--archive", "{tmp}/new"], 4, "connection refused"),
        (["record", "tidings://127.0.0.1:1", "-a", "{tmp}/new", "--retain-size", "much"], 2, "500M or 20G"),
        (["record", "tidings://127.0.0.1:1", "-a", "{tmp}/new", "--retain-age", "0d"], 2, "12h or 30d"),
        (["broker", "--retain-age", "1d"], 2, "--archive"),
        (["broker", "--archive", "{tmp}/new", "--archive-topic", "x"], 2, "'x'"),
    ],
)
def test_mistakes(tmp_path: Path, arguments: list[str], code: int, message: str) -> None:
    directory = tmp_path / "archive"
    with Archive.open(directory) as archive:
        archive.append([Event("p", 0, 1, "/a", 1, {}, b"")], 1)
    done = tidings(*(text.format(archive=directory, tmp=tmp_path) for text in arguments))
    assert done.returncode == code, done
    assert len(done.stderr.splitlines()) == 1
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_an_archive_in_use_is_not_written_by_a_second(tmp_path: Path) -> None:
    with Archive.open(tmp_path / "archive"):
        done = tidings("record", "tidings://127.0.0.1:1", "--archive", tmp_path / "archive")
    assert done.returncode == 2
    assert "archive" in done.stderr and len(done.stderr.splitlines()) == 1
    assert os.path.isdir(tmp_path / "archive")


def test_what_comes_before_a_damaged_file_is_printed(tmp_path: Path) -> None:
    directory = tmp_path / "archive"
    with Archive.open(directory, ArchiveSettings(segment_rows=2)) as archive:
        for number in range(6):
            archive.append([Event("p", 0, number + 1, "/a", 1, {"number": number}, b"")], 1)
    damaged = sorted((directory / "segments").iterdir())[1]
    damaged.write_bytes(bytes(damaged.stat().st_size))
    done = tidings("get", directory)
    assert done.stdout == "0 /a number=0\n1 /a number=1\n"
    assert done.returncode == 2
    assert damaged.name in done.stderr and len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("once", [False, True])
def test_a_replay_that_is_cut_off_says_how_to_go_on(
    tmp_path: Path, start: Callable[..., Any], once: bool
) -> None:
    directory = tmp_path / "archive"
    with Archive.open(directory) as archive:
        events = [Event("p", 0, number + 1, "/a", 1, {"number": number}, b"") for number in range(2_000)]
        archive.append(events, 1)
    port = free_addresses(["b0"])["b0"].port
    mode = guaranteed(tmp_path, port, "--new") if once else ["broker", "--listen", f"127.0.0.1:{port}"]
    broker, told = start(*mode)
    start("record", told["url"], "--archive", tmp_path / "copy")
    command = ["replay", directory, told["url"], "--rate", 50, "--quiet", *(["--once", "x"] if once else [])]
    replay = subprocess.Popen(
        [sys.executable, "-m", "tidings.cli.main", *map(str, command)], stderr=subprocess.PIPE, text=True
    )
    until(lambda: recorded(tmp_path / "copy") >= 20)
    if once:
        replay.send_signal(signal.SIGINT)
    else:
        kill(broker)
    _, errors = replay.communicate(timeout=PATIENCE_S)
    assert replay.returncode == (130 if once else 4), errors
    assert len(errors.splitlines()) == 1
    if once:
        assert "to continue, run the same command again" in errors
    else:
        assert re.search(r"to continue, add --offset \d+\n", errors)
