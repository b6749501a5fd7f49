"""Where Spark cannot run, one line says why and what to install."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from command import process_of_tidings
from tidings.core.errors import PipelineError
from tidings.spark import session

GRID = """
seeds = 1
[scenario]
duration_s = 1
[scenario.overlay]
mode = "best-effort"
shape = { kind = "chain", brokers = 2 }
[grid]
"network.duplicate" = [0.0, 0.1]
"""


def fake_java(directory: Path, printed: str) -> Path:
    """A home of Java whose java prints that."""
    java = directory / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\nprintf '%s\\n' '{printed}' >&2\n")
    java.chmod(0o755)
    return directory


def test_no_java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(PipelineError, match="none was found: apt-get install default-jre-headless"):
        session.check_spark()
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(PipelineError, match="none was found in JAVA_HOME"):
        session.check_spark()


@pytest.mark.parametrize(
    ("printed", "found"),
    [
        ('openjdk version "11.0.2" 2019-01-15', "version 11"),
        ('java version "1.8.0_301"', "version 8"),
        ("nonsense", "an unknown version"),
    ],
)
def test_java_that_is_too_old(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, printed: str, found: str
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path, printed)))
    with pytest.raises(PipelineError, match=rf"needs Java 17 or newer.*is {found}") as told:
        session.check_spark()
    assert "\n" not in str(told.value)


def test_java_that_is_new_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path, 'openjdk version "21.0.1" 2023-10-17')))
    session.check_spark()


def test_no_pyspark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyspark", None)
    with pytest.raises(PipelineError, match=r"pip install 'tidings\[spark\]'"):
        session.check_spark()


def test_a_command_says_so_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "grid.toml").write_text(GRID)
    done = process_of_tidings(
        "sweep", tmp_path / "grid.toml", "--out", tmp_path / "out", JAVA_HOME=str(tmp_path / "none")
    )
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert "apt-get install default-jre-headless" in done.stderr
