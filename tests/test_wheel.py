"""The wheel, installed without any extra: what works, and what says which extra it needs."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from plain_install import ROOT, PlainInstall
from ports import base_port
from tidings.cli.main import NEEDS

pytestmark = [pytest.mark.slow, pytest.mark.processes, pytest.mark.xdist_group("wheel")]

LIMIT_BYTES = 60_000_000
TABLES = "numpy and pyarrow: pip install 'tidings[archive]'"
SIM = "numpy, pyarrow and scipy: pip install 'tidings[sim]'"
NEEDING = {
    "record": ("record tidings://127.0.0.1:1 --archive a", f"record needs {TABLES}"),
    "get": ("get a", f"get needs {TABLES}"),
    "last": ("last a", f"last needs {TABLES}"),
    "replay": ("replay a tidings://127.0.0.1:1", f"replay needs {TABLES}"),
    "sim": ("sim chain.toml --out o", f"sim needs {SIM}"),
    "audit": ("audit o", f"audit needs {SIM}"),
    "plan": ("plan s.csv", f"plan needs {SIM}"),
    "demo": ("demo", f"demo needs {SIM}"),
    "sweep": (
        "sweep loss.toml --out o",
        "sweep needs numpy, pyarrow, scipy and pyspark: pip install 'tidings[spark]'",
    ),
    "reproduce": (
        "reproduce --list",
        "reproduce needs numpy, pyarrow, scipy, pyspark and matplotlib: pip install 'tidings[lab]'",
    ),
    "broker --archive": ("broker --archive a", f"an archive needs {TABLES}"),
    "up --scenario": (
        f"up --scenario {ROOT}/scenarios/chain.toml --out o",
        "a trace needs numpy and pyarrow: pip install 'tidings[sim]'",
    ),
    "nats": ("pub nats://127.0.0.1 /a b", "nats:// needs nats-py: pip install 'tidings[nats]'"),
    "mqtt": ("sub mqtt://127.0.0.1 /a", "mqtt:// needs paho-mqtt: pip install 'tidings[mqtt]'"),
    "redis": ("pub redis://127.0.0.1 /a b", "redis:// needs redis: pip install 'tidings[redis]'"),
}
"""A command line, and what it says."""
EMBEDDED = """
import asyncio, tidings

async def main():
    for mode in ("best-effort", "guaranteed", "epidemic"):
        async with tidings.embedded(3, mode=mode) as bus:
            streams = [bus.subscribe("/n", where=f"size > {size}") for size in range(100)]
            for stream in streams:
                await stream.__aenter__()
            await bus.publish("/n", {"size": 50}, b"hello")
            for size, stream in enumerate(streams):
                if size < 50:
                    assert (await stream.get()).payload == b"hello"
            await bus.publish("/n", {"size": 1000}, b"last")
            assert all([(await stream.get()).payload == b"last" for stream in streams]), "nobody else got the first"
            print(mode)

asyncio.run(main())
"""
MATCHING = """
import tidings
assert tidings.Filter("a > 1 AND b LIKE 'x%'").matches({"a": 2, "b": "xy"})
index = tidings.MatchIndex()
for key in range(5000):
    index.add(key, f"a = {key % 100} AND b > {key // 100}")
print(index.match({"a": 7, "b": 3}))
"""
MISSING = """
import tidings
for name in ("Archive", "ArchiveReader", "ArchiveSettings", "Recorder", "RemoteArchive"):
    try:
        getattr(tidings, name)
    except tidings.MissingExtra as error:
        print(error)
for module in ("archive", "trace.checkers", "scenarios.trace.reader", "recording.replay", "spark.format.source",
               "studies.runner", "lab.campaign"):
    try:
        __import__(f"tidings.{module}")
    except ImportError as error:
        assert isinstance(error, tidings.TidingsError), repr(error)
        print(error)
"""


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> PlainInstall:
    return PlainInstall(tmp_path_factory.mktemp("wheel"))


def test_it_is_small_and_has_no_library_for_tables(plain: PlainInstall) -> None:
    assert plain.size_bytes < LIMIT_BYTES
    there = {path.name for path in plain.site.iterdir()}
    assert {"tidings", "msgspec"} <= there
    assert not there & {"numpy", "pyarrow", "scipy", "pandas", "pyspark"}
    assert (plain.site / "tidings" / "py.typed").exists()


def test_filters_match_without_numpy(plain: PlainInstall) -> None:
    assert plain.program(MATCHING).strip() == "[7, 107, 207]"


def test_a_network_in_the_process_works_in_every_mode(plain: PlainInstall) -> None:
    assert plain.program(EMBEDDED).split() == ["best-effort", "guaranteed", "epidemic"]


@contextmanager
def running(plain: PlainInstall, *arguments: object) -> Iterator[None]:
    """A command that runs on, from its first line of output."""
    command = list(map(str, (plain.command, *arguments)))
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        try:
            if not process.stdout.readline():
                pytest.fail(process.stderr.read())
            yield
        finally:
            process.terminate()
            process.communicate()


@pytest.mark.parametrize("mode", ["best-effort", "guaranteed", "epidemic"])
def test_a_network_of_processes_works_in_every_mode(plain: PlainInstall, mode: str) -> None:
    port = base_port(2)
    first, second = f"tidings://127.0.0.1:{port}", f"tidings://127.0.0.1:{port + 1}"
    with running(plain, "up", "--brokers", 2, "--mode", mode, "--base-port", port, "--json"):
        reader = [plain.command, "sub", second, "/a/**", "--where", "size > 1", "--count", "1", "--json"]
        with subprocess.Popen(reader, stdout=subprocess.PIPE, text=True) as reading:
            assert reading.stdout is not None
            while reading.poll() is None:  # what is published before it is subscribed does not count
                for size in (1, 2):
                    sent = plain.tidings("pub", first, "/a/b", "hello", "--attribute", f"size={size}")
                    assert sent.returncode == 0, sent.stderr
            (line,) = reading.stdout.read().splitlines()
        event = json.loads(line)
        assert event["attributes"] == {"size": 2}
        status = json.loads(plain.tidings("status", first, "--json").stdout)
        assert status["matching"].endswith("pip install 'tidings[fast]'")


def test_every_verb_with_an_extra_is_tried() -> None:
    assert set(NEEDS) <= set(NEEDING)


@pytest.mark.parametrize("case", NEEDING)
def test_what_needs_an_extra_says_so_in_one_line(plain: PlainInstall, case: str, tmp_path: Path) -> None:
    command, said = NEEDING[case]
    done = plain.tidings(*command.split(), cwd=tmp_path)
    (line,) = done.stderr.splitlines()
    assert line.startswith("tidings: ")
    assert said in line
    assert (done.returncode, done.stdout) == (2, "")
    assert not list(tmp_path.iterdir())


def test_programs_get_an_error_of_tidings(plain: PlainInstall) -> None:
    lines = plain.program(MISSING).splitlines()
    names = ("Archive", "ArchiveReader", "ArchiveSettings", "Recorder", "RemoteArchive")
    assert lines[:5] == [f"tidings.{name} needs {TABLES}" for name in names]
    assert [line.partition(" needs ")[0] for line in lines[5:]] == [
        *(
            "an archive",
            "a trace",
            "a trace",
            "a recording",
            "tidings.spark",
            "tidings.studies",
            "tidings.lab",
        )
    ]
    assert all("pip install 'tidings[" in line for line in lines)


def test_help_needs_no_extra(plain: PlainInstall) -> None:
    for verb in ("--help", *(f"{verb} --help" for verb in NEEDS)):
        assert plain.tidings(*verb.split()).returncode == 0


def test_the_wheel_brings_the_examples(plain: PlainInstall, tmp_path: Path) -> None:
    done = plain.tidings("examples", "--all", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    copied = json.loads(done.stdout)["copied"]
    kept = [*(ROOT / "examples").glob("*.py"), *(ROOT / "scenarios").rglob("*.toml")]
    assert sorted(copied) == sorted(str(path.relative_to(ROOT)) for path in kept)
    for name in copied:
        assert (tmp_path / name).read_bytes() == (ROOT / name).read_bytes()
    run = plain.run(plain.python, "examples/embedded.py", cwd=tmp_path)
    assert run.returncode == 0, run.stderr
