"""The Spark session of the command line: local by default, quiet, and with a one-line error where Spark cannot run.

Importing this module does not import pyspark, so that a missing pyspark can be reported.
"""

from __future__ import annotations

import io
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import tidings
from tidings.core.errors import PipelineError
from tidings.extras import need

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JAVA_NEEDED = 17
NO_JAVA = "Spark needs Java 17 or newer, but none was found: apt-get install default-jre-headless (or set JAVA_HOME)"
LOCAL_ATTEMPTS = 3
"""`local[2]` would never retry a failed task."""
SHUFFLE_PARTITIONS_PER_CORE = 2
SOURCE = Path(tidings.__file__).parents[1]
"""The directory of the packages that make up tidings."""
LOG_SETTINGS = Path(__file__).parent / "log4j2.properties"
JAVA_SECONDS = 60
MASTER_SECONDS = 10.0
STOPPED = "stopped SparkContext"


def default_master() -> str:
    return f"local[{os.cpu_count() or 1},{LOCAL_ATTEMPTS}]"


def check_spark() -> None:
    """Raise PipelineError, in one line, where Spark cannot run."""
    need("a job on Spark", "spark", "pyspark", error=PipelineError)
    home = os.environ.get("JAVA_HOME")
    java = shutil.which("java", path=str(Path(home) / "bin")) if home else shutil.which("java")
    if java is None:
        where = f" in JAVA_HOME ({home})" if home else ""
        raise PipelineError(NO_JAVA.replace("none was found", f"none was found{where}"))
    try:
        reply = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=JAVA_SECONDS)  # noqa: S603
    except (OSError, subprocess.TimeoutExpired) as error:
        raise PipelineError(f"{NO_JAVA} ({java} does not run: {error})") from None
    found = re.search(r'version "(?:1\.)?(\d+)', reply.stderr + reply.stdout)
    if found is None or int(found[1]) < JAVA_NEEDED:
        which = "an unknown version" if found is None else f"version {found[1]}"
        raise PipelineError(NO_JAVA.replace("none was found", f"{java} is {which}"))


@contextmanager
def spark_session(
    master: str | None = None, *, app: str = "tidings", settings: Mapping[str, str] | None = None
) -> Iterator[SparkSession]:
    """Yield the active session, which stays open, or start one at `master` and stop it at the end."""
    check_spark()
    from pyspark.sql import SparkSession

    running = SparkSession.getActiveSession()
    if running is not None:
        yield running
        return
    with tempfile.TemporaryDirectory(prefix="tidings-") as room:
        session = _start(master or default_master(), app, settings or {})
        try:
            if not session.sparkContext.master.startswith("local"):
                ship_package(session, Path(room))
            yield session
        finally:
            session.stop()


def _start(master: str, app: str, settings: Mapping[str, str]) -> SparkSession:
    from pyspark.sql import SparkSession

    check_master(master)
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    _add_python_path()
    local = master.startswith("local")
    cores = os.cpu_count() or 1
    chosen = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.memory": f"{_driver_megabytes()}m",
        "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={LOG_SETTINGS.as_uri()}",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        "spark.sql.session.timeZone": "UTC",
        **({"spark.sql.shuffle.partitions": str(SHUFFLE_PARTITIONS_PER_CORE * cores)} if local else {}),
        **(
            {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
            if _loopback(master)
            else {}
        ),
        **settings,
    }
    builder = SparkSession.builder.appName(app).master(master)
    for key, value in chosen.items():
        builder = builder.config(key, value)
    with _stderr_kept() as printed:
        try:
            session = builder.getOrCreate()
        except Exception as error:
            raise PipelineError(
                f"cannot start a Spark session at {master}: {_reason(error, printed())}"
            ) from None
    return session


def check_master(master: str) -> None:
    """Raise PipelineError if nothing listens at a standalone master's address: Spark retries for minutes, and says
    less."""
    problems = []
    for address in master.removeprefix("spark://").split(",") if master.startswith("spark://") else ():
        host, _, port = address.rpartition(":")
        if not host or not port.isdecimal() or not 0 < int(port) < 2**16:
            raise PipelineError(f"{master} is not the address of a Spark master: expected spark://HOST:PORT")
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=MASTER_SECONDS).close()
            return
        except OSError as error:
            problems.append(f"{address}: {error.strerror or error}")
    if problems:
        raise PipelineError(f"cannot reach a Spark master at {'; '.join(problems)}")


def _add_python_path() -> None:
    """Add tidings to PYTHONPATH: the driver's JVM looks for `format("tidings")` with PYSPARK_PYTHON, which may lack
    it."""
    source = str(SOURCE)
    paths = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    if source not in paths:
        os.environ["PYTHONPATH"] = os.pathsep.join([*paths, source])


def _loopback(master: str) -> bool:
    return master.startswith(("local", "spark://127.", "spark://localhost"))


def _driver_megabytes() -> int:
    """Return a quarter of the machine's memory, between 1 and 8 GiB; the Python workers need memory, too."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2**20
    return min(max(total // 4, 1024), 8192)


@contextmanager
def _stderr_kept() -> Iterator[Callable[[], str]]:
    """Capture what the JVM prints while it starts: it inherits stderr as it is at that moment."""
    with tempfile.TemporaryFile() as kept:

        def text() -> str:
            kept.seek(0)
            return kept.read().decode(errors="replace")

        sys.stderr.flush()
        own = os.dup(2)
        os.dup2(kept.fileno(), 2)
        try:
            yield text
        finally:
            os.dup2(own, 2)
            os.close(own)


def _reason(error: Exception, printed: str) -> str:
    lines = [line.strip() for line in f"{printed}\n{error}".splitlines() if line.strip()]
    errors = [line for line in lines if "Exception" in line or "Error" in line]
    if errors and STOPPED in errors[-1]:
        return "the cluster stopped the application at once; see the logs of its master and workers"
    return (errors or lines or [type(error).__name__])[-1][:500]


def ship_package(session: SparkSession, directory: Path) -> None:
    """Send this copy of tidings to the workers of a cluster, which must have its dependencies.

    Workers fetch it when they start, so the directory must last as long as the session.
    """
    path = directory / "tidings.zip"
    path.write_bytes(package_zip())
    session.sparkContext.addPyFile(str(path))


def package_zip(source: Path = SOURCE) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for package in ("tidings", "pyspark_tidings"):
            if not (source / package / "__init__.py").is_file():
                raise PipelineError(f"{source} has no package {package} to send to Spark's workers")
            for path in sorted((source / package).rglob("*")):
                if path.is_file() and path.suffix != ".pyc":
                    archive.write(path, path.relative_to(source))
    return buffer.getvalue()
