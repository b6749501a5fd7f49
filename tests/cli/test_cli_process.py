"""The command as a process: descriptors that were closed, readers that are gone, signals that end it."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tidings.cli.main import run
from tidings.cli.shared.running import SIGNALS, Terminated, raise_on_signals
from tidings.cli.shared.running import run as run_work
from tidings.scenarios.simulate import Simulation

COMMAND = [sys.executable, "-m", "tidings.cli.main"]
NOWHERE = "tidings://127.0.0.1:1"
SMALL = """
duration_s = 1.0
settle_s = 1.0
[overlay]
mode = "best-effort"
shape = { kind = "chain", brokers = 2 }
[[publisher]]
name = "p"
at = "b0"
[[subscriber]]
name = "s"
at = "b1"
"""


@pytest.fixture
def scenario(tmp_path: Path) -> Path:
    path = tmp_path / "small.toml"
    path.write_text(SMALL, encoding="utf-8")
    return path


# --- Descriptors


def without(descriptors: tuple[int, ...], *command: str) -> subprocess.CompletedProcess[str]:
    """What a command does that finds these closed."""

    def close() -> None:
        for number in descriptors:
            os.close(number)

    return subprocess.run(command, capture_output=True, text=True, timeout=60, preexec_fn=close)


@pytest.mark.parametrize("closed", [(0,), (1,), (2,), (0, 1, 2)], ids=str)
def test_with_closed_descriptors_no_socket_gets_their_numbers(closed: tuple[int, ...]) -> None:
    done = without(closed, *COMMAND, "status", NOWHERE)
    assert done.returncode == 4, done
    assert ("connection refused" in done.stderr) == (2 not in closed)


@pytest.mark.parametrize("closed", [(1,), (1, 2)], ids=str)
def test_a_run_without_an_output_writes_its_trace(
    closed: tuple[int, ...], scenario: Path, tmp_path: Path
) -> None:
    done = without(closed, *COMMAND, "sim", str(scenario), "--out", str(tmp_path / "out"), "--check")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert (tmp_path / "out" / "summary.json").exists()


def test_what_was_closed_is_nowhere_for_us_and_for_processes_of_ours(tmp_path: Path) -> None:
    script = (
        "import json, os, pathlib, sys\n"
        "from tidings.cli.shared.descriptors import open_closed_descriptors\n"
        "open_closed_descriptors()\n"
        "print('out'); print('err', file=sys.stderr)\n"
        "found = [sys.stdin.read(), *(os.get_inheritable(number) for number in range(3))]\n"
        "pathlib.Path(sys.argv[1]).write_text(json.dumps(found))\n"
    )
    done = without((0, 1, 2), sys.executable, "-c", script, str(tmp_path / "found"))
    assert done.returncode == 0
    assert json.loads((tmp_path / "found").read_text()) == ["", True, True, True]


@pytest.mark.parametrize("arguments", [["--help"], ["sim", "--help"]], ids=" ".join)
def test_a_help_whose_reader_is_gone(arguments: list[str]) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run([*COMMAND, *arguments], stdout=writing, stderr=subprocess.PIPE, timeout=60)
    os.close(writing)
    assert (done.returncode, done.stderr) == (141, b"")


# --- Signals


@pytest.fixture
def _handled() -> Iterator[None]:
    """As `main` has it; the test run's own handlers are back afterwards."""
    before = {number: signal.getsignal(number) for number in SIGNALS}
    hook = sys.unraisablehook
    raise_on_signals()
    yield
    sys.unraisablehook = hook
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("_handled")
@pytest.mark.parametrize("number", SIGNALS)
def test_a_run_that_is_cut_short_leaves_nothing(
    number: signal.Signals,
    scenario: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = tmp_path / "out"
    begun: list[str] = []

    def strike(simulation: Simulation, progress: object) -> None:
        begun.extend(path.name for path in out.iterdir())
        signal.raise_signal(number)

    monkeypatch.setattr(Simulation, "run", strike)
    assert run(["sim", str(scenario), "--out", str(out)]) == 128 + number
    told = "" if number == signal.SIGINT else f"tidings: stopped by {number.name}\n"  # Ctrl-C is quiet
    assert capsys.readouterr().err == told
    assert len(begun) == 6 and all(name.endswith(".tmp") for name in begun)
    assert list(out.iterdir()) == []


@pytest.mark.usefixtures("_handled")
def test_a_second_sigterm_does_not_cut_the_clean_up_short() -> None:
    with pytest.raises(Terminated):
        signal.raise_signal(signal.SIGTERM)
    signal.raise_signal(signal.SIGTERM)


@pytest.mark.usefixtures("_handled")
@pytest.mark.parametrize(
    ("number", "raised"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, Terminated)]
)
def test_what_runs_after_an_event_loop_can_be_cut_short_as_well(
    number: signal.Signals, raised: type[BaseException]
) -> None:
    run_work(asyncio.sleep(0))
    with pytest.raises(raised):
        signal.raise_signal(number)


def test_sigterm_ends_a_process_that_runs_no_loop(tmp_path: Path) -> None:
    fifo = tmp_path / "scenario.toml"
    os.mkfifo(fifo)
    command = [*COMMAND, "sim", str(fifo), "--out", str(tmp_path / "out")]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        with fifo.open("w"):  # it is open at both ends now: the command waits for what never comes
            process.send_signal(signal.SIGTERM)
            _, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (143, "tidings: stopped by SIGTERM\n")


@pytest.mark.skipif(not list(Path("/proc/self/task").glob("*/children")), reason="no list of children here")
def test_whom_a_library_forgot_ends_with_the_command() -> None:
    script = (
        "import subprocess, sys\n"
        "from tidings.cli.shared.running import end_children\n"
        "forgotten = subprocess.Popen([sys.executable, '-c', 'input()'], stdin=subprocess.PIPE)\n"
        "end_children()\n"
        "print(forgotten.wait())\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == (f"{-signal.SIGTERM}\n", "")


SLOWLY_READ = """
import signal, sys
from tidings.cli.shared.descriptors import buffer_output

signal.signal(signal.SIGTERM, lambda number, frame: None)
buffer_output()
print("ready", file=sys.stderr, flush=True)
sys.stdout.write("x" * 300_000 + "\\n")
sys.stdout.flush()
"""


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_signal_cuts_nothing_off_that_is_printed(unbuffered: str) -> None:
    """The reader is slow, so that the write waits when the signal comes."""
    process = subprocess.Popen(
        [sys.executable, "-c", SLOWLY_READ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
    )
    with process:
        assert process.stdout is not None and process.stderr is not None
        assert process.stderr.readline() == "ready\n"
        time.sleep(0.3)
        process.send_signal(signal.SIGTERM)
        time.sleep(0.3)
        assert len(process.stdout.read()) == 300_001
