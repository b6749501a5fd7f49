"""A program started by the path of its Python finds `format("tidings")`, though `python3` on PATH has no tidings."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from archive_events import make_events
from spark_home import make_spark_home
from tidings.spark import interpreter
from tidings.storage.archive import Archive

SESSION = """
from pyspark.sql import SparkSession
settings = {"spark.ui.enabled": "false", "spark.driver.host": "127.0.0.1"}
spark = SparkSession.builder.master("local[2]").config(map=settings).getOrCreate()
"""
IMPORT = """
import tidings.spark
"""
FAILS = """
try:
    spark.read.format("tidings").option("archive", "archive").load()
except Exception as error:
    print(error)
"""
STREAM = """
stream = spark.readStream.format("tidings").option("archive", "archive").option("startingOffsets", "earliest").load()
query = stream.writeStream.format("memory").queryName("got").trigger(availableNow=True).start()
query.awaitTermination()
print("rows", spark.table("got").count())
"""


@pytest.fixture
def other_python(tmp_path: Path) -> Path:
    """A directory whose `python3` has neither tidings nor any other package."""
    path = tmp_path / "bin" / "python3"
    path.parent.mkdir()
    path.write_text(f'#!/bin/sh\nexec "{sys.executable}" -S "$@"\n')
    path.chmod(0o755)
    return path.parent


def run(program: str, directory: Path, first_on_path: Path) -> subprocess.CompletedProcess[str]:
    (directory / "program.py").write_text(program)
    environment = {name: value for name, value in os.environ.items() if name not in interpreter.SETTINGS}
    environment.pop("PYTHONPATH", None)
    environment["PATH"] = f"{first_on_path}{os.pathsep}{environment['PATH']}"
    environment["SPARK_HOME"] = str(make_spark_home(directory))
    return subprocess.run(
        [sys.executable, "program.py"],
        cwd=directory,
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
    )


@pytest.mark.spark
@pytest.mark.xdist_group("spark")
@pytest.mark.parametrize(
    "program", [IMPORT + SESSION + STREAM, SESSION + FAILS + IMPORT + STREAM], ids=["before", "after"]
)
def test_the_import_makes_a_stream_work_before_and_after_the_session_is_made(
    tmp_path: Path, other_python: Path, program: str
) -> None:
    with Archive.open(tmp_path / "archive") as archive:
        archive.append(make_events(0, 40), 1)
    done = run(program, tmp_path, other_python)
    assert "rows 40" in done.stdout, done.stderr
    assert ("DATA_SOURCE_NOT_FOUND" in done.stdout) == (FAILS in program)


def test_what_the_user_has_chosen_stays(monkeypatch: pytest.MonkeyPatch, other_python: Path) -> None:
    monkeypatch.setenv("PATH", str(other_python))
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    monkeypatch.setenv("PYSPARK_DRIVER_PYTHON", "/opt/python")
    interpreter.use_this_python()
    assert "PYSPARK_PYTHON" not in os.environ
    monkeypatch.delenv("PYSPARK_DRIVER_PYTHON")
    monkeypatch.setenv("PYSPARK_PYTHON", "/opt/python")
    interpreter.use_this_python()
    assert os.environ["PYSPARK_PYTHON"] == "/opt/python"


def test_an_activated_environment_needs_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in interpreter.SETTINGS:
        monkeypatch.delenv(name, raising=False)
    activated = tmp_path / "bin"
    activated.mkdir()
    for name in ("python", "python3"):
        (activated / name).symlink_to(sys.executable)
    monkeypatch.setenv("PATH", str(activated))
    monkeypatch.setattr(sys, "executable", str(activated / "python"))
    interpreter.use_this_python()
    assert "PYSPARK_PYTHON" not in os.environ
