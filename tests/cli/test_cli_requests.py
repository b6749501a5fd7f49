"""`tidings request` and `tidings serve`, as users run them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from command import process_of_tidings, tidings
from ports import base_port
from tidings.cli.shared.command_handler import environment, failure
from tidings.core.events.event import Event

pytestmark = [pytest.mark.processes, pytest.mark.timeout(120)]

PATIENCE_S = 40
Started = subprocess.Popen[str]
Start = Callable[..., Started]


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts commands that run on; each is killed by its pid if a test leaves it."""
    started: list[Started] = []

    def start_one(*arguments: object) -> Started:
        command = [sys.executable, "-m", "tidings.cli.main", *map(str, arguments)]
        process = subprocess.Popen(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        started.append(process)
        return process

    yield start_one
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate(timeout=PATIENCE_S)


def line(stream: object) -> str:
    found = stream.readline()  # type: ignore[attr-defined]
    assert found, "the process ended instead of saying something"
    return str(found).rstrip("\n")


@pytest.fixture
def broker(start: Start) -> str:
    return line(start("broker", "--listen", "127.0.0.1:0").stdout).partition(" listens on ")[2]


def serving(start: Start, *arguments: object) -> Started:
    process = start("serve", *arguments)
    assert line(process.stderr) == "serving"
    return process


def end(process: Started, number: int = signal.SIGINT) -> tuple[int, str, str]:
    process.send_signal(number)
    out, err = process.communicate(timeout=PATIENCE_S)
    return process.returncode, out, err


def test_a_command_answers_with_its_output(start: Start, broker: str) -> None:
    shown = (
        "echo $TIDINGS_TOPIC $TIDINGS_ATTRIBUTE_SYMBOL $TIDINGS_ATTRIBUTE_SIZE; cat; echo $TIDINGS_ATTRIBUTES"
    )
    server = serving(start, broker, "/price/*", "--exec", f"sh -c '{shown}'")
    asked = ("/price/now", "hello", "--attr", "symbol=A B", "-a", "size=12")
    done = tidings("request", broker, *asked, "--timeout", 30)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == '/price/now A B 12\nhello{"symbol": "A B", "size": 12}\n'
    done = tidings("request", broker, *asked, "--timeout", 30, "--json")
    answer = json.loads(done.stdout)
    assert answer["payload"].startswith("/price/now A B 12\nhello")
    assert answer["topic"].startswith("/~reply/")
    done = process_of_tidings("request", broker, "/price/now", "-", "--timeout", 30, given="from stdin")
    assert done.stdout == "/price/now\nfrom stdin{}\n"
    assert end(server) == (0, "", "")


def test_a_failing_command_is_a_failed_request(start: Start, broker: str) -> None:
    serving(
        start, broker, "/price", "--exec", "sh -c 'echo out; echo first >&2; echo no such symbol >&2; exit 3'"
    )
    done = tidings("request", broker, "/price", "--timeout", 30)
    assert (done.returncode, done.stdout, done.stderr) == (6, "", "tidings: no such symbol\n")
    done = tidings("request", broker, "/price", "--timeout", 30, "--json")
    assert json.loads(done.stderr) == {"error": "no such symbol"}


def test_nobody_and_no_answer_in_time_have_exit_codes_of_their_own(start: Start, broker: str) -> None:
    done = tidings("request", broker, "/price", "--timeout", 1000)
    assert (done.returncode, done.stdout) == (5, "")
    assert done.stderr.startswith("tidings: nobody is subscribed to /price")
    serving(start, broker, "/price", "--exec", "sleep 60", "--concurrency", 1)
    done = tidings("request", broker, "/price", "--timeout", 0.5)
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr == "tidings: no answer to the request on /price within 0.5 s\n"


def test_a_command_that_takes_too_long_is_ended(start: Start, broker: str) -> None:
    serving(start, broker, "/price", "--exec", "sleep 60", "--timeout", 0.2)
    done = tidings("request", broker, "/price", "--timeout", 30)
    assert (done.returncode, done.stderr) == (6, "tidings: 'sleep' took longer than 0.2 s\n")


def test_a_command_that_does_not_read_its_input_still_answers(
    start: Start, broker: str, tmp_path: Path
) -> None:
    large = tmp_path / "large"
    large.write_bytes(b"x" * 900_000)
    serving(start, broker, "/price", "--exec", "echo done")
    done = tidings("request", broker, "/price", "--file", large, "--timeout", 30)
    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_end_the_commands_too(start: Start, broker: str, tmp_path: Path, number: int) -> None:
    pid_file = tmp_path / "pid"
    server = serving(start, broker, "/price", "--exec", f"sh -c 'echo $$ > {pid_file}; exec sleep 600'")
    tidings("request", broker, "/price", "--timeout", 1)
    while not pid_file.exists() or not pid_file.read_text():
        time.sleep(0.05)
    code, _, err = end(server, number)
    assert (code, err) == (0, "")
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid_file.read_text()), 0)


def test_a_server_whose_broker_goes_says_so_and_goes_on(start: Start) -> None:
    first = start("broker", "--listen", "127.0.0.1:0")
    url = line(first.stdout).partition(" listens on ")[2]
    server = serving(start, url, "/price", "--exec", "echo hi")
    end(first)
    assert "reconnecting" in line(server.stderr)
    start("broker", "--listen", url.removeprefix("tidings://"))
    while (done := tidings("request", url, "/price", "--timeout", 10)).returncode in (4, 5):
        time.sleep(0.1)
    assert (done.returncode, done.stdout) == (0, "hi\n")


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("serve", "URL", "/price"), "--exec"),
        (("serve", "URL", "/price", "--exec", " "), "--exec: expected a command"),
        (("serve", "URL", "/price", "--exec", "echo 'a"), '--exec: "echo \'a": no closing quotation'),
        (("serve", "URL", "/price", "--exec", "no-such-program x"), "there is no program 'no-such-program'"),
        (("serve", "URL", "price", "--exec", "cat"), "must start with '/'"),
        (("serve", "URL", "/price/#", "--exec", "cat"), "write '/price/**'"),
        (("serve", "URL", "/price", "--exec", "cat", "--group", "a b"), "name 'a b' must have"),
        (("serve", "URL", "/price", "--exec", "cat", "--concurrency", "0"), "--concurrency"),
        (("request", "URL", "/price/*"), "wildcard"),
        (("request", "URL", "/price", "x", "--file", "y"), "--file: not allowed with a payload"),
        (("request", "URL", "/price", "--file", "/no/such"), "cannot read /no/such"),
        (("request", "URL", "/price", "--attr", "x"), "expected NAME=VALUE"),
        (("request", "URL", "/price", "--attr", "topic=x"), "reserved"),
        (("request", "URL", "/price", "--timeout", "0"), "--timeout"),
    ],
)
def test_bad_input_is_one_line(arguments: tuple[str, ...], problem: str) -> None:
    done = tidings(*(("tidings://127.0.0.1:1" if one == "URL" else one) for one in arguments))
    assert done.returncode == 2, done.stderr
    assert done.stdout == ""
    assert problem in done.stderr
    assert done.stderr.count("\n") == 1


def test_servers_of_a_group_answer_without_a_guarantee(start: Start, broker: str) -> None:
    for name in ("one", "two"):
        serving(start, broker, "/price", "--exec", f"echo {name}", "--group", "pricing")
    answers = [tidings("request", broker, "/price", "x", "--timeout", PATIENCE_S) for _ in range(12)]
    assert {done.stdout.strip() for done in answers} == {"one", "two"}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_a_group_whose_last_member_has_gone_is_nobody(start: Start, tmp_path: Path, number: int) -> None:
    given = (
        "--brokers",
        2,
        "--mode",
        "guaranteed",
        "--data",
        tmp_path,
        "--base-port",
        base_port(2),
        "--json",
    )
    network = start("up", *given)
    near, far = (broker["url"] for broker in json.loads(line(network.stdout))["brokers"])
    server = serving(start, near, "/price", "--exec", "cat", "--group", "pricing")
    for url in (near, far):
        assert tidings("request", url, "/price", "12", "--timeout", PATIENCE_S).stdout.strip() == "12"
    end(server, number)
    for url in (near, far):
        done = tidings("request", url, "/price", "--timeout", 1000)
        assert (done.returncode, done.stdout) == (5, "")
        assert done.stderr.startswith("tidings: nobody is subscribed to /price")
    serving(start, far, "/price", "--exec", "cat", "--group", "pricing")
    for url in (near, far):
        assert tidings("request", url, "/price", "13", "--timeout", PATIENCE_S).stdout.strip() == "13"
    assert end(network)[0] == 0


def test_the_environment_takes_any_attribute() -> None:
    attributes = {"a-b": True, "none": None, "bytes": b"\x01", "zero": "a\0b", "lone": "\ud800", "x": 1.5}
    event = Event("s", 0, 1, "/a", 0, attributes, b"")  # type: ignore[arg-type]
    found = {name: value for name, value in environment(event).items() if name.startswith("TIDINGS_")}
    assert found["TIDINGS_TOPIC"] == "/a"
    assert found["TIDINGS_EVENT"] == "s:1"
    assert found["TIDINGS_ATTRIBUTE_A_B"] == "true"
    assert found["TIDINGS_ATTRIBUTE_NONE"] == "null"
    assert found["TIDINGS_ATTRIBUTE_BYTES"] == "0x01"
    assert found["TIDINGS_ATTRIBUTE_ZERO"] == "ab"
    assert found["TIDINGS_ATTRIBUTE_LONE"] == "?"
    assert json.loads(found["TIDINGS_ATTRIBUTES"])["x"] == 1.5


@pytest.mark.parametrize(
    ("code", "errors", "said"),
    [
        (1, b"a\nb\n\n", "b"),
        (2, b"", "'cmd' exited with 2"),
        (-9, b"\n", "'cmd' was ended by signal 9"),
        (1, b"\xff", "\N{REPLACEMENT CHARACTER}"),
        (1, b"x" * 5_000, "x" * 1_000),
    ],
)
def test_how_a_failure_is_told(code: int, errors: bytes, said: str) -> None:
    assert failure("cmd", code, errors) == said
