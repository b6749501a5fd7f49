"""`scripts/setup`: short and clear, whatever pip and apt print. Both are played by scripts: they would take minutes."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
NOISE = "WARNING: noise of pip"
MOST_LINES = 10


class Machine:
    """Programs that the script finds, each played by a few lines of shell."""

    def __init__(self, directory: Path) -> None:
        self.programs = directory / "programs"
        self.programs.mkdir()
        self.venv = directory / "venv"
        for name in ("env", "dirname", "grep", "sed", "tail", "id", "mkdir", "bash", "sh"):
            found = next(
                Path(place) / name for place in ("/bin", "/usr/bin") if (Path(place) / name).exists()
            )
            (self.programs / name).symlink_to(found)
        self.plays("java", "echo 'openjdk version \"21.0.1\" 2023-10-17' >&2")
        self.plays("mosquitto", "")
        self.plays("redis-server", "")
        self.plays(
            "python3",
            f'[ "$1" = -m ] && mkdir -p "$3/bin" && cp "{self.programs}/pip" "$3/bin/python"; exit 0',
        )
        (self.programs / "cp").symlink_to("/bin/cp")
        self.installs()

    def plays(self, name: str, script: str) -> None:
        path = self.programs / name
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)

    def installs(self, *, fails_on: str = "nothing") -> None:
        """What runs as `VENV/bin/python`."""
        self.plays(
            "pip",
            '[ "$1" = --version ] && { echo Python 3.12.0; exit; }\n'
            f'for number in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15; do echo "{NOISE} $number" >&2; echo "$@"; done\n'
            f'case "$*" in *{fails_on}*) echo "ERROR: no such thing" >&2; exit 1;; esac',
        )

    def setup(self, **environment: str) -> subprocess.CompletedProcess[str]:
        kept = {name: value for name, value in os.environ.items() if name != "CI"}
        return subprocess.run(
            ["/bin/bash", ROOT / "scripts" / "setup", self.venv],
            capture_output=True,
            text=True,
            timeout=60,
            env={**kept, "PATH": str(self.programs), **environment},
        )


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_it_says_what_it_does_in_few_lines_and_again_the_same(machine: Machine) -> None:
    for _ in range(2):
        done = machine.setup()
        assert (done.returncode, done.stderr) == (0, "")
        lines = done.stdout.splitlines()
        assert len(lines) <= MOST_LINES
        assert [line[:11] for line in lines] == [*(f"setup [{n}/4]" for n in range(1, 5)), "setup: read"]
        assert "Python 3.12.0" in lines[0]
        log = (machine.venv / "setup.log").read_text()
        assert NOISE in log
        assert "--require-hashes --no-deps" not in done.stdout


@pytest.mark.parametrize(
    ("fails_on", "said"),
    [
        ("dev.lock", "could not install the pinned packages"),
        ("--editable", "could not install tidings itself"),
    ],
)
def test_a_failure_shows_the_end_of_the_log_and_what_failed(
    machine: Machine, fails_on: str, said: str
) -> None:
    machine.installs(fails_on=fails_on)
    done = machine.setup()
    assert done.returncode == 1
    lines = done.stderr.splitlines()
    assert lines[-1] == f"setup: {said}"
    assert lines[-2] == "ERROR: no such thing"
    assert f"the end of {machine.venv}/setup.log" in lines[0]
    assert NOISE not in done.stdout
    machine.installs()
    (machine.venv / "bin" / "python").write_bytes((machine.programs / "pip").read_bytes())
    assert machine.setup().returncode == 0, "what failed can be tried again"


def test_old_java_is_replaced_by_apt_quietly(machine: Machine) -> None:
    machine.plays("java", "echo 'openjdk version \"11.0.1\" 2018-10-16' >&2")
    machine.plays("apt-get", "echo apt has much to say; echo and to warn of >&2")
    machine.plays("id", "echo 0")
    done = machine.setup()
    assert (done.returncode, done.stderr) == (0, "")
    assert "Java 17 or newer, which Spark needs: installing it with apt" in done.stdout
    assert "much to say" not in done.stdout
    assert len(done.stdout.splitlines()) <= MOST_LINES
    assert "apt has much to say" in (machine.venv / "setup.log").read_text()


def test_without_apt_it_says_what_to_install(machine: Machine) -> None:
    (machine.programs / "java").unlink()
    done = machine.setup()
    assert done.returncode == 1
    assert "run 'apt-get install default-jre-headless' as root" in done.stderr.splitlines()[-1]


def test_servers_that_cannot_be_had_matter_to_ci_only(machine: Machine) -> None:
    (
        machine.programs / "redis-server"
    ).unlink()  # Debian has it in /usr/bin; the script looks in /usr/sbin, too
    machine.plays("apt-get", "echo no such package; exit 100")
    machine.plays("id", "echo 0")
    done = machine.setup()
    assert done.returncode == 0
    assert "their tests are skipped" in done.stdout
    assert len(done.stdout.splitlines()) <= MOST_LINES
    done = machine.setup(CI="yes")
    assert done.returncode == 1
    assert "run 'apt-get install redis-server' as root" in done.stderr


def test_no_python_is_told(machine: Machine) -> None:
    machine.plays("python3", "exit 1")
    done = machine.setup()
    assert done.returncode == 1
    assert done.stderr == (
        "setup: Python 3.11 or newer is missing: run 'apt-get install python3 python3-venv' (3.11+), then try again\n"
    )
