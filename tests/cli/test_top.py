"""`tidings top`: rates from two looks, and the command against real brokers."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ports import base_port
from tidings.cli.shared.top_rates import Look, rates

PATIENCE_S = 60


def session(
    peer: str, counts: tuple[int, int, int, int], role: str = "client", **more: Any
) -> dict[str, Any]:
    names = ("received_events", "sent_events", "received_bytes", "sent_bytes")
    counters = dict(zip(names, counts, strict=True))
    return {
        "peer": peer,
        "role": role,
        "address": f"{peer}:1",
        "waiting_bytes": 0,
        "dropped": 0,
        **counters,
        **more,
    }


def broker(*sessions: dict[str, Any], incarnation: int = 1, **more: Any) -> dict[str, Any]:
    known = {"broker": "b", "mode": "guaranteed", "incarnation": incarnation, "subscriptions": 3}
    return {**known, "sessions": list(sessions), **more}


def test_rates_are_what_was_counted_between_the_looks_per_second() -> None:
    before = Look(10.0, {"u": broker(session("p", (100, 0, 5000, 10)), session("s", (0, 90, 10, 4000)))})
    after = Look(
        12.0, {"u": broker(session("p", (300, 0, 15_000, 10)), session("s", (0, 290, 10, 14_000), dropped=4))}
    )
    servers, sessions = rates(before, after)
    assert servers == [
        {
            "server": "b",
            "state": "up",
            "mode": "guaranteed",
            "clients": 2,
            "subscriptions": 3,
            "received_events_per_s": 100.0,
            "sent_events_per_s": 100.0,
            "received_bytes_per_s": 5000.0,
            "sent_bytes_per_s": 5000.0,
            "waiting_bytes": 0,
            "dropped": 4,
        }
    ]
    assert [(row["peer"], row["received_events_per_s"], row["sent_events_per_s"]) for row in sessions] == [
        ("p", 100.0, 0.0),
        ("s", 0.0, 100.0),
    ]


def test_sessions_with_most_events_come_first_and_brokers_are_no_clients() -> None:
    look = Look(
        1.0, {"u": broker(session("idle", (0, 0, 9, 9)), session("busy", (0, 50, 9, 9), role="broker"))}
    )
    servers, sessions = rates(Look(0.0, {"u": broker()}), look)
    assert [row["peer"] for row in sessions] == ["busy", "idle"]
    assert servers[0]["clients"] == 1


@pytest.mark.parametrize("incarnation", [1, 2])
def test_a_session_or_broker_that_began_anew_is_counted_from_nothing(incarnation: int) -> None:
    before = Look(0.0, {"u": broker(session("p", (100, 100, 100, 100)))})
    counts = (7, 7, 7, 7) if incarnation == 1 else (200, 200, 200, 200)
    after = Look(1.0, {"u": broker(session("p", counts), incarnation=incarnation)})
    assert rates(before, after).sessions[0]["received_events_per_s"] == counts[0]


def test_who_is_away_is_shown_and_who_watches_is_not() -> None:
    before = Look(0.0, {"u": "cannot reach it", "v": broker(session("me", (1, 1, 1, 1)))})
    after = Look(1.0, {"u": broker(session("p", (1, 1, 1, 1))), "v": "gone"})
    servers, sessions = rates(before, after, ["me"])
    assert [(row["server"], row["state"]) for row in servers] == [("b", "up"), ("v", "gone")]
    assert [row["peer"] for row in sessions] == ["p"]
    assert rates(before, before, ["me"]).sessions == []


def test_a_server_that_tells_only_how_many_sessions_it_has() -> None:
    status = {"sequencer": "s", "mode": "sequencer", "sessions": 5000, "subscriptions": [{}, {}]}
    servers, sessions = rates(Look(0.0, {"u": status}), Look(1.0, {"u": status}))
    assert (servers[0]["server"], servers[0]["subscriptions"], sessions) == ("s", 2, [])


# --- The command


def command(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "tidings.cli.main", *map(str, arguments)]


@pytest.fixture
def network(tmp_path: Path) -> Iterator[list[str]]:
    process = subprocess.Popen(
        command(
            "up",
            "--brokers",
            2,
            "--base-port",
            base_port(2),
            "--mode",
            "guaranteed",
            "--data",
            tmp_path / "data",
            "--json",
        ),
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        yield [found["url"] for found in json.loads(process.stdout.readline())["brokers"]]
    finally:
        process.terminate()
        process.wait(timeout=PATIENCE_S)
        process.stdout.close()


@pytest.mark.processes
@pytest.mark.timeout(180)
def test_top_shows_who_publishes(network: list[str], tmp_path: Path) -> None:
    subscriber = subprocess.Popen(
        command("sub", network[1], "/x/**", "--name", "reader"),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert subscriber.stderr is not None
    assert subscriber.stderr.readline() == "subscribed\n"
    watching = subprocess.Popen(
        command("top", *network, "--interval", 0.3, "--json"), stdout=subprocess.PIPE, text=True
    )
    assert watching.stdout is not None
    writing = subprocess.Popen(
        command("pub", network[0], "/x/y", "--name", "writer", "--rate", 20, "--count", 100_000, "hello"),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        seen: set[str] = set()
        for line in watching.stdout:  # until both were seen at work; the test's time limit bounds it
            found = json.loads(line)
            assert [row["state"] for row in found["servers"]] == ["up", "up"]
            for row in found["sessions"]:
                if row["received_events_per_s"] > 0 or row["sent_events_per_s"] > 0:
                    seen.add(row["peer"])
            if {"writer", "reader"} <= seen:
                break
        busy = {row["server"]: row["received_events_per_s"] for row in found["servers"]}
        assert len(busy) == 2
    finally:
        for process in (watching, writing, subscriber):
            process.terminate()
            process.wait(timeout=PATIENCE_S)
        watching.stdout.close()
        subscriber.stderr.close()
    assert watching.returncode == 0  # a signal is its normal end
    shown = subprocess.run(
        command("top", network[0], "-n", 1, "-i", 0.1), capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert shown.returncode == 0
    assert all(word in shown.stdout for word in ("servers", "guaranteed", "events in/s"))


@pytest.mark.processes
def test_nobody_there_is_an_error_and_so_is_a_bad_url() -> None:
    gone = subprocess.run(
        command("top", "tidings://127.0.0.1:1", "-n", 1), capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert (gone.returncode, gone.stdout, gone.stderr.count("\n")) == (4, "", 1)
    assert "tidings://127.0.0.1:1" in gone.stderr
    bad = subprocess.run(command("top", "http://x"), capture_output=True, text=True, timeout=PATIENCE_S)
    assert (bad.returncode, bad.stderr.count("\n")) == (2, 1)
