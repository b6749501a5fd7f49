"""A real standalone Spark cluster on loopback, from the jars of the pip package: a master and two workers."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from spark_home import make_spark_home, spark_package

START_SECONDS = 120.0
POLL_SECONDS = 0.1
END_SECONDS = 30.0
WORKERS = 2
QUICK_JVM = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
"""Halves what short programs take: they never need the second compiler."""
DEFAULTS = """\
spark.executor.memory 512m
spark.executor.cores 1
spark.sql.shuffle.partitions 2
"""


def scala_version() -> str:
    """What `bin/spark-class` would tell the workers, which they need to start executors."""
    (core,) = (spark_package() / "jars").glob("spark-core_*.jar")
    return core.name.removeprefix("spark-core_").partition("-")[0]


def environment(directory: Path) -> dict[str, str]:
    """For the cluster and for those who use it: the same Python everywhere, and small executors."""
    configuration = directory / "conf"
    configuration.mkdir(exist_ok=True)
    (configuration / "spark-defaults.conf").write_text(DEFAULTS)
    return {
        **os.environ,
        "JDK_JAVA_OPTIONS": QUICK_JVM,
        "SPARK_HOME": str(make_spark_home(directory)),
        "SPARK_CONF_DIR": str(configuration),
        "SPARK_SCALA_VERSION": scala_version(),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": sys.executable,
    }


class ClusterProcess:
    """A JVM of the cluster, and what it logs."""

    def __init__(self, directory: Path, name: str, main: str, *arguments: str) -> None:
        java = shutil.which("java")
        assert java is not None, "Spark needs Java"
        self.log = directory / f"{name}.log"
        class_path = f"{spark_package() / 'jars'}/*"
        command = [java, "-Xmx256m", "-cp", class_path, f"org.apache.spark.deploy.{main}", *arguments]
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment(directory),
                cwd=directory,
            )

    def wait_for(self, pattern: str) -> re.Match[str]:
        """The first place in the log that fits."""
        deadline = time.monotonic() + START_SECONDS
        while (found := re.search(pattern, self.log.read_text(errors="replace"))) is None:
            told = self.log.read_text(errors="replace")[-2000:]
            assert self.process.poll() is None, f"{self.log.name} ended: {told}"
            assert time.monotonic() < deadline, f"{self.log.name} has no {pattern!r}: {told}"
            time.sleep(POLL_SECONDS)
        return found

    def end(self) -> None:
        """By its process id; a worker ends its executors."""
        self.process.terminate()
        try:
            self.process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(END_SECONDS)


@contextmanager
def spark_cluster(directory: Path) -> Iterator[str]:
    """The master's URL, `spark://127.0.0.1:PORT`, once all workers have registered."""
    running: list[ClusterProcess] = []
    try:
        host = ("--host", "127.0.0.1", "--webui-port", "0")
        running.append(ClusterProcess(directory, "master", "master.Master", *host, "--port", "0"))
        url = running[0].wait_for(r"Starting Spark master at (spark://\S+)")[1]
        for number in range(WORKERS):
            room = ("--cores", "1", "--memory", "1g", "--work-dir", str(directory / f"work{number}"))
            running.append(ClusterProcess(directory, f"worker{number}", "worker.Worker", *host, *room, url))
        for worker in running[1:]:
            worker.wait_for("Successfully registered with master")
        yield url
    finally:
        for process in reversed(running):
            process.end()
