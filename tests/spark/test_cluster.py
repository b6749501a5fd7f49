"""A real standalone cluster on loopback: what runs here runs there, with `--master` and nothing else changed.

The workers' Python has what tidings depends on and not tidings itself, which the driver sends them.
"""

from __future__ import annotations

import json
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pyarrow.parquet as pq
import pytest

import cluster_driver
from source_archives import event, make_archive
from spark_cluster import environment, spark_cluster
from tidings.scenarios.simulate import run_scenario
from tidings.spark.sweep.grid import load_grid, scenario_at

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("spark-cluster")]

END_SECONDS = 60
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


class Done(NamedTuple):
    code: int
    told: str
    complaints: str


class Cluster:
    """A process that drives one application on the cluster at `url` after the other."""

    def __init__(self, url: str, environment: dict[str, str]) -> None:
        self._url = url
        self._driver = subprocess.Popen(
            [sys.executable, cluster_driver.__file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )

    def tidings(self, *arguments: object) -> Done:
        return self._run(*arguments, "--master", self._url)

    def stream(self, archive: Path, room: Path) -> Done:
        return self._run("stream", archive, room, self._url)

    def _run(self, *arguments: object) -> Done:
        assert self._driver.stdin is not None and self._driver.stdout is not None
        print(json.dumps(list(map(str, arguments))), file=self._driver.stdin, flush=True)
        told = self._driver.stdout.readline()
        assert told, f"the driver has ended with {self._driver.wait()}"
        return Done(*json.loads(told))

    def end(self) -> None:
        self._driver.communicate(timeout=END_SECONDS)


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
        cluster = Cluster(url, {**environment(directory), "PYSPARK_PYTHON": str(worker_python)})
        yield cluster
        cluster.end()


@pytest.fixture(scope="module")
def swept(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sweep's directory, with the traces of its runs, made on the cluster."""
    directory = tmp_path_factory.mktemp("sweep")
    path, out = directory / "grid.toml", directory / "out"
    path.write_text(GRID)
    done = cluster.tidings("sweep", path, "--out", out, "--check", "--keep-traces", "--json")
    assert (done.code, done.complaints) == (0, "")
    assert json.loads(done.told)["ran"] == 4
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
    assert (done.code, done.complaints) == (0, "")
    assert "exactly_once" in done.told


def test_a_stream_on_a_cluster(cluster: Cluster, tmp_path: Path) -> None:
    archive = make_archive(tmp_path / "archive", [30, 20, 10])
    done = cluster.stream(archive, tmp_path)
    assert done == (0, "", "")
    found = pq.read_table(tmp_path / "sink", columns=["offset", "value"]).sort_by("offset").to_pylist()
    assert found == [{"offset": number, "value": event(number).payload} for number in range(60)]
