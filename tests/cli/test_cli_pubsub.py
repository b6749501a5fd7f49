"""`broker`, `pub`, `sub` and `status` as users run them: real processes, over TCP and over datagrams."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from command import process_of_tidings, tidings
from tidings import sync

pytestmark = [pytest.mark.processes, pytest.mark.timeout(120)]

Started = subprocess.Popen[str]
Start = Callable[..., Started]
PATIENCE_S = 40
ENVIRONMENT = {key: value for key, value in os.environ.items() if key != "PYTHONUNBUFFERED"}
"""As users have it: what is not flushed is not seen."""


def command(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "tidings.cli.main", *map(str, arguments)]


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts commands that run on; each is killed by its pid if a test leaves it."""
    started: list[Started] = []

    def start_one(*arguments: object) -> Started:
        process = subprocess.Popen(
            command(*arguments),
            text=True,
            env=ENVIRONMENT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        started.append(process)
        return process

    yield start_one
    for process in started:
        if process.poll() is None:
            process.kill()
        process.wait(timeout=PATIENCE_S)
        for stream in (process.stdin, process.stdout, process.stderr):
            with suppress(BrokenPipeError):
                stream.close()  # type: ignore[union-attr]


def line(stream: object) -> str:
    """The next line; the test's timeout bounds the wait."""
    found = stream.readline()  # type: ignore[attr-defined]
    assert found, "the process ended instead of saying something"
    return str(found).rstrip("\n")


def ready_url(broker: Started) -> str:
    name, _, url = line(broker.stdout).partition(" listens on ")
    assert name == "b0"
    return url


def end(process: Started, number: int = signal.SIGINT) -> tuple[int, str, str]:
    process.send_signal(number)
    out, err = process.communicate(timeout=PATIENCE_S)
    return process.returncode, out, err


def subscribed(start: Start, *arguments: object) -> Started:
    process = start("sub", *arguments)
    assert "subscribed" in line(process.stderr)
    return process


@pytest.mark.parametrize("transport", ["tcp", "udp"])
def test_what_is_published_is_printed_where_the_filter_says_so(start: Start, transport: str) -> None:
    broker = start("broker", "--listen", "127.0.0.1:0", "--transport", transport)
    url = ready_url(broker)
    assert url.startswith("tidings://" if transport == "tcp" else "tidings+udp://")
    large = subscribed(start, url, "/news/*", "--where", "size > 10 AND name = 'BBC'", "--count", 2)
    every = subscribed(start, url, "/news/**", "/sport", "--json", "--count", 4, "--timeout", 30)
    shown = ["-a", "size=12", "-a", "price=1.5", "-a", "urgent=true", "-a", "name=BBC", "-a", 'code="12"']
    first = tidings("pub", url, "/news/bbc", "hello", *shown, "-a", "none=null")
    assert first.returncode == 0, first.stderr
    small = tidings("pub", url, "/news/bbc", "-a", "size=3", "-a", "name=BBC", "--json")
    assert json.loads(small.stdout)["topic"] == "/news/bbc"
    lines = process_of_tidings(
        "pub", url, "/news/bbc", "-", "-a", "size=20", "-a", "name=BBC", given="one\ntwo"
    )
    assert len(lines.stdout.splitlines()) == 2
    out, err = large.communicate(timeout=PATIENCE_S)
    assert large.returncode == 0, err
    text = '/news/bbc size=12 price=1.5 urgent=true name=BBC code="12" none=null | hello'
    assert out.splitlines() == [text, "/news/bbc size=20 name=BBC | one"]
    out, err = every.communicate(timeout=PATIENCE_S)
    assert every.returncode == 0, err
    events = [json.loads(found) for found in out.splitlines()]
    assert [event["payload"] for event in events] == ["hello", "", "one", "two"]
    assert events[0]["id"] == first.stdout.strip()
    assert events[0]["attributes"]["code"] == "12"
    assert events[0]["attributes"]["none"] is None
    code, _, err = end(broker, signal.SIGTERM)
    assert code == 0, err


def test_an_event_says_what_it_is_and_when_it_expires(start: Start) -> None:
    url = ready_url(start("broker", "--listen", "127.0.0.1:0"))
    reading = subscribed(start, url, "/x", "--json", "--count", 3)
    assert tidings("pub", url, "/x", "plain").returncode == 0
    assert tidings("pub", url, "/x", "short", "--expires", "1.5h").returncode == 0
    with sync.connect(url) as bus:
        bus.publish("/x", {}, {"a": 1})
    plain, short, typed = map(json.loads, reading.communicate(timeout=PATIENCE_S)[0].splitlines())
    assert not {"content_type", "expires_at"} & plain.keys()
    assert abs(short["expires_at"] - short["published_at"] - 5_400 * 10**9) < 10**9
    assert (typed["content_type"], typed["payload"]) == ("application/json", '{"a":1}')
    for bad in ("0s", "soon", "-1s", "1e12s"):
        found = tidings("pub", url, "/x", "--expires", bad)
        assert (found.returncode, found.stdout) == (2, "")
        assert "--expires" in found.stderr and "Traceback" not in found.stderr


def test_status_shows_who_is_there(start: Start) -> None:
    url = ready_url(start("broker", "--listen", "127.0.0.1:0", "--neighbour", "b1=127.0.0.1:9"))
    subscribed(start, url, "/x", "--name", "reader")
    found = json.loads(tidings("status", url, "--json").stdout)
    assert (found["broker"], found["mode"], found["subscriptions"]) == ("b0", "best-effort", 1)
    assert found["neighbours"]["b1"]["present"] is False
    assert "reader" in [session["peer"] for session in found["sessions"]]
    shown = tidings("status", url).stdout
    for word in ("b0", "reader", "neighbours", "interests received", "best-effort"):
        assert word in shown


def test_a_subscriber_that_waits_in_vain_says_so_by_its_exit_code(start: Start) -> None:
    url = ready_url(start("broker", "--listen", "127.0.0.1:0"))
    assert tidings("sub", url, "/x", "--timeout", 0.2).returncode == 3
    with sync.connect(
        url
    ) as bus:  # not a process: on a busy machine it starts more slowly than a reader waits
        waiting = subscribed(start, url, "/x", "--count", 2, "--timeout", 2)
        bus.publish("/x", {}, b"only one")
        out, _ = waiting.communicate(timeout=PATIENCE_S)
        assert (waiting.returncode, out) == (3, "/x | only one\n")
        enough = subscribed(start, url, "/x", "--timeout", 2)
        bus.publish("/x")
        out, _ = enough.communicate(timeout=PATIENCE_S)
        assert (enough.returncode, out) == (0, "/x\n")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_a_subscriber_cleanly(start: Start, number: int) -> None:
    url = ready_url(start("broker", "--listen", "127.0.0.1:0"))
    code, out, err = end(subscribed(start, url, "/x"), number)
    assert (code, out, err) == (0, "", "")


def test_a_reader_that_has_had_enough_ends_the_subscriber_in_silence(start: Start) -> None:
    url = ready_url(start("broker", "--listen", "127.0.0.1:0"))
    reading = subscribed(start, url, "/x")
    assert reading.stdout is not None
    assert tidings("pub", url, "/x", "1").returncode == 0
    assert line(reading.stdout) == "/x | 1"
    reading.stdout.close()
    assert tidings("pub", url, "/x", "2").returncode == 0
    assert reading.wait(timeout=PATIENCE_S) == 0
    assert reading.stderr is not None
    assert reading.stderr.read() == ""


def test_payloads_and_attributes_cannot_write_to_the_terminal(start: Start, tmp_path: Path) -> None:
    url = ready_url(start("broker", "--listen", "127.0.0.1:0"))
    plain = subscribed(start, url, "/x", "--count", 1)
    digits = subscribed(start, url, "/x", "--count", 1, "--payload", "hex")
    exact = subscribed(start, url, "/x", "--count", 1, "--json")
    file = tmp_path / "payload"
    file.write_bytes(b"\x1b[2J\xff\n")
    assert tidings("pub", url, "/x", "--file", file, "-a", "name=\x1b[0m").returncode == 0
    assert plain.communicate(timeout=PATIENCE_S)[0] == '/x name="\\x1b[0m" | \\x1b[2J\\xff\\n\n'
    assert digits.communicate(timeout=PATIENCE_S)[0].endswith("| 1b5b324aff0a\n")
    assert json.loads(exact.communicate(timeout=PATIENCE_S)[0])["payload_hex"] == "1b5b324aff0a"


def test_a_rate_is_kept_and_a_count_is_a_count(start: Start) -> None:
    url = ready_url(start("broker", "--listen", "127.0.0.1:0"))
    reading = subscribed(start, url, "/x", "--count", 5, "--json")
    done = tidings("pub", url, "/x", "tick", "--count", 5, "--rate", 20)
    ids = done.stdout.splitlines()
    assert len(set(ids)) == 5
    events = [json.loads(found) for found in reading.communicate(timeout=PATIENCE_S)[0].splitlines()]
    assert [event["id"] for event in events] == ids
    assert events[-1]["published_at"] - events[0]["published_at"] >= 4 * 50_000_000 * 0.9
    assert (
        len(process_of_tidings("pub", url, "/x", "-", "--count", 2, given="a\nb\nc\n").stdout.splitlines())
        == 2
    )
    many = tidings("pub", url, "/x", "--count", 2000)
    assert len(many.stdout.splitlines()) == 2000


def test_lines_are_published_as_they_are_typed(start: Start) -> None:
    url = ready_url(start("broker", "--listen", "127.0.0.1:0"))
    reading = subscribed(start, url, "/x")
    typing = start("pub", url, "/x", "-")
    assert typing.stdin is not None
    for word in ("first", "second"):
        typing.stdin.write(word + "\n")
        typing.stdin.flush()
        assert line(reading.stdout) == f"/x | {word}"
    typing.send_signal(signal.SIGINT)
    assert typing.wait(timeout=PATIENCE_S) == 130  # while stdin is still open
    assert typing.stderr is not None and typing.stderr.read() == ""


def test_a_token_is_asked_for(start: Start, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("secret\n", encoding="utf-8")
    url = ready_url(start("broker", "--listen", "127.0.0.1:0", "--token-file", token))
    refused = tidings("pub", url, "/x")
    assert refused.returncode == 4
    assert "wrong or missing token" in refused.stderr
    assert tidings("pub", url, "/x", "--token-file", token).returncode == 0


def test_a_broker_that_goes_away_before_it_confirms_is_told(start: Start) -> None:
    broker = start("broker", "--listen", "127.0.0.1:0")
    url = ready_url(broker)
    publishing = start("pub", url, "/x", "--rate", 50, "--count", 100_000)
    line(publishing.stdout)
    broker.send_signal(signal.SIGKILL)
    _, err = publishing.communicate(timeout=PATIENCE_S)
    assert publishing.returncode == 4
    assert err.startswith("tidings: ")
    assert err.count("\n") == 1


def test_a_broker_lives_no_longer_than_the_pipe_it_was_told_to_watch(start: Start) -> None:
    broker = start("broker", "--listen", "127.0.0.1:0", "--stop-on-eof")
    ready_url(broker)
    assert broker.stdin is not None
    broker.stdin.close()
    assert broker.wait(timeout=PATIENCE_S) == 0
    with pytest.raises(ProcessLookupError):
        os.kill(broker.pid, 0)


@pytest.mark.parametrize("as_json", [False, True])
def test_a_broker_that_dies_under_sub_is_reported_and_so_is_the_reconnection(
    start: Start, as_json: bool
) -> None:
    broker = start("broker", "--listen", "127.0.0.1:0")
    url = ready_url(broker)
    reading = subscribed(start, url, "/x", "--count", 1, *(["--json"] if as_json else []))
    broker.kill()
    lost = line(reading.stderr)
    ready_url(start("broker", "--listen", url.removeprefix("tidings://")))
    found = line(reading.stderr)
    assert lost.startswith('{"notice": "lost' if as_json else "tidings: lost the connection to broker b0: ")
    assert found == (
        '{"notice": "reconnected to broker b0"}' if as_json else "tidings: reconnected to broker b0"
    )
    assert tidings("pub", url, "/x", "again").returncode == 0
    assert "again" in line(reading.stdout)
