"""`tidings up --archive`: every broker records what is published, serves it, and goes on when the network is back."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import typer

from command import tidings
from ports import base_port
from tidings.cli.shared.up_options import UpOptions
from tidings.cli.up import commands, make_network
from tidings.core.errors import TidingsError

PATIENCE_S = 60


def where(**flags: Any) -> UpOptions:
    return UpOptions(
        **({"brokers": 2, "mode": "guaranteed", "data": Path("data"), "archive": Path("arch")} | flags)
    )


def flags_of(options: UpOptions, broker: str, path: Path | None = None) -> str:
    return " ".join(make_network(options, path)[broker]._archive_flags())


def test_each_broker_has_an_archive_of_its_own() -> None:
    assert flags_of(where(), "b1") == "--archive arch/b1"
    given = where(archive_topics=("/a/**", "/b"), retain_size="1G", retain_age="7d")
    wanted = "--archive arch/b0 --archive-topic /a/** --archive-topic /b --retain-size 1G --retain-age 7d"
    assert flags_of(given, "b0") == wanted
    assert flags_of(where(archive=None), "b0") == ""


def test_a_name_is_never_a_path(tmp_path: Path) -> None:
    path = tmp_path / "net.toml"
    path.write_text('[overlay]\nedges = [["a/b", "c d"]]', encoding="utf-8")
    network = make_network(where(brokers=None), path)
    assert [str(broker.archive.directory) for broker in network.brokers.values() if broker.archive] == [
        "arch/a%2Fb",
        "arch/c d",
    ]


@pytest.mark.parametrize(
    ("given", "flag"),
    [
        (where(archive=None, archive_topics=("/a",)), "--archive-topic"),
        (where(archive=None, retain_size="1G"), "--retain-size"),
        (where(archive_topics=("/a/#",)), "--archive-topic"),
        (where(archive_topics=("a",)), "--archive-topic"),
        (where(retain_size="much"), "--retain-size"),
        (where(retain_age="0d"), "--retain-age"),
    ],
)
def test_a_flag_that_cannot_be_used_is_named(given: UpOptions, flag: str) -> None:
    with pytest.raises((typer.BadParameter, TidingsError)) as caught:
        make_network(given)
    assert isinstance(caught.value, typer.BadParameter)
    assert caught.value.param_hint == flag


def test_up_says_what_to_type_next() -> None:
    b0, b1 = "tidings://127.0.0.1:9000", "tidings://127.0.0.1:9001"
    first = [f"tidings sub {b1} '/news/**'", f"tidings pub {b0} /news/bbc 'Hello, world'"]

    def shown(**flags: Any) -> list[str]:
        return list(commands(make_network(where(base_port=9000, **flags))))

    assert shown(archive=None) == first
    assert shown() == [*first, f"tidings sub {b1} '/**' --start earliest", f"tidings last {b1}"]
    assert shown(archive_topics=("/a/**", "/b"))[2] == f"tidings sub {b1} '/a/**' '/b' --start earliest"
    assert shown(mode="epidemic", data=None) == [*first, f"tidings get {b1} --follow", f"tidings last {b1}"]


@contextmanager
def network(directory: Path, mode: str, *flags: object) -> Iterator[list[str]]:
    """Runs two brokers with their archives; their URLs."""
    command = [sys.executable, "-m", "tidings.cli.main", "up", "--brokers", 2, "--mode", mode, "--json"]
    command += ["--archive", directory / "archives", *flags]
    process = subprocess.Popen(list(map(str, command)), stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        brokers = json.loads(process.stdout.readline())["brokers"]
        assert [Path(broker["archive"]).name for broker in brokers] == ["b0", "b1"]
        yield [broker["url"] for broker in brokers]
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0


def numbers(*arguments: object) -> list[int]:
    done = tidings(*arguments, "--json")
    assert done.returncode == 0, done.stderr
    return [json.loads(line)["attributes"]["n"] for line in done.stdout.splitlines()]


def publish(url: str, first: int, last: int) -> None:
    lines = "".join(f"{n}\n" for n in range(first, last + 1))
    for n in map(int, lines.split()):
        assert tidings("pub", url, f"/t/{n % 2}", "-a", f"n={n}").returncode == 0


@pytest.mark.processes
@pytest.mark.timeout(180)
def test_what_was_published_is_read_after_a_restart(tmp_path: Path) -> None:
    flags = ("--data", tmp_path / "data", "--base-port", base_port(2))
    with network(tmp_path, "guaranteed", *flags) as (one, other):
        publish(one, 1, 3)
        assert numbers("sub", other, "/**", "--start", "earliest", "--count", 3) == [1, 2, 3]
    with network(tmp_path, "guaranteed", *flags) as (one, other):
        publish(other, 4, 5)
        for url in (one, other):
            assert numbers("sub", url, "/**", "--start", "earliest", "--count", 5) == [1, 2, 3, 4, 5]
            assert numbers("get", url) == [1, 2, 3, 4, 5]
            assert numbers("last", url) == [4, 5]
        assert numbers("sub", other, "/t/0", "--start", "last", "--count", 1) == [4]
        assert json.loads(tidings("get", one, "--info", "--json").stdout)["gaps"] == []
    assert numbers("get", tmp_path / "archives" / "b1") == [1, 2, 3, 4, 5]


@pytest.mark.processes
@pytest.mark.timeout(180)
def test_a_network_without_a_guarantee_has_archives_too(tmp_path: Path) -> None:
    with network(tmp_path, "best-effort", "--base-port", base_port(2), "--archive-topic", "/t/1") as (
        one,
        other,
    ):
        publish(one, 1, 3)
        assert numbers("get", other, "--follow", "--count", 2) == [1, 3]
        assert numbers("last", other) == [3]
