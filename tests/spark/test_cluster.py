"""A real standalone cluster on loopback: what runs here runs there, with `--master` and nothing else changed.

The workers' Python has what tidings depends on and not tidings itself, which the driver sends them.
"""

from __future__ import annotations

import json
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from source_archives import event, make_archive
from spark_cluster import environment, spark_cluster
from tidings.simulator.run import run_scenario
from tidings.spark.sweep.grid import load_grid, scenario_at

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("spark-cluster")]

COMMAND_SECONDS = 250
GRID = """
seeds = 2
[scenario]
duration_s = 1.0
settle_s = 1.0
overlay = { mode = "best-effort", shape = { kind = "chain", brokers = 3 } }
publisher = [{ name = "p0", at = "b0", rate_hz = 30 }]
subscriber = [{ name = "s0", at = "b2", order = "fifo" }]
[grid]
network.reorder = [0.0, 0.5]
"""
STREAM = """
import sys
from tidings.spark.session import spark_session

master, archive, room = sys.argv[1:]
with spark_session(master) as spark:
    events = spark.readStream.format("tidings").options(archive=archive, startingOffsets="earliest").load()
    query = (
        events.writeStream.format("parquet").option("checkpointLocation", room + "/checkpoint")
        .trigger(availableNow=True).start(room + "/sink")
    )
    assert query.awaitTermination(200), "the stream does not end"
    assert query.exception() is None, query.exception()
"""


@dataclass(frozen=True)
class Cluster:
    url: str
    environment: dict[str, str]

    def run(self, *arguments: object) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, *map(str, arguments)],
            capture_output=True,
            text=True,
            timeout=COMMAND_SECONDS,
            stdin=subprocess.DEVNULL,
            env=self.environment,
        )

    def tidings(self, *arguments: object) -> subprocess.CompletedProcess[str]:
        return self.run("-m", "tidings.cli.main", *arguments, "--master", self.url)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    directory = tmp_path_factory.mktemp("cluster")
    worker_python = directory / "worker-python"
    # Without the site module there are no editable installs: only what stands in site-packages itself.
    packages = sysconfig.get_path("purelib")
    worker_python.write_text(
        f'#!/bin/sh\nPYTHONPATH="$PYTHONPATH:{packages}" exec "{sys.executable}" -S "$@"\n'
    )
    worker_python.chmod(0o755)
    with spark_cluster(directory) as url:
        yield Cluster(url, {**environment(directory), "PYSPARK_PYTHON": str(worker_python)})


@pytest.fixture(scope="module")
def swept(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sweep's directory, with the traces of its runs, made on the cluster."""
    directory = tmp_path_factory.mktemp("sweep")
    path, out = directory / "grid.toml", directory / "out"
    path.write_text(GRID)
    done = cluster.tidings("sweep", path, "--out", out, "--check", "--keep-traces", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["ran"] == 4
    return directory


def test_a_sweep_on_a_cluster(swept: Path, tmp_path: Path) -> None:
    grid = load_grid(swept / "grid.toml")
    rows = pq.read_table(swept / "out" / "runs.parquet").to_pylist()
    assert [(row["point"], row["seed"]) for row in rows] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    for row in rows:
        scenario = scenario_at(grid.document, grid.values(row["point"]), row["seed"])
        assert row["trace_sha256"] == run_scenario(scenario, tmp_path)["trace_sha256"]
        assert (swept / "out" / "traces" / row["id"] / "delivered.parquet").is_file()


def test_an_audit_on_a_cluster(cluster: Cluster, swept: Path) -> None:
    trace = next((swept / "out" / "traces").iterdir())
    done = cluster.tidings("audit", trace, "--json")
    assert (done.returncode, done.stderr) == (0, "")
    assert "exactly_once" in done.stdout


def test_a_stream_on_a_cluster(cluster: Cluster, tmp_path: Path) -> None:
    archive = make_archive(tmp_path / "archive", [30, 20, 10])
    script = tmp_path / "stream.py"
    script.write_text(STREAM)
    done = cluster.run(script, cluster.url, archive, tmp_path)
    assert done.returncode == 0, done.stderr
    found = pq.read_table(tmp_path / "sink", columns=["offset", "value"]).sort_by("offset").to_pylist()
    assert found == [{"offset": number, "value": event(number).payload} for number in range(60)]
