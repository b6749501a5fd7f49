"""Audits the traces and archives named on the command line, on Spark or in this process.

Small inputs are audited in this process, which is faster than Spark. On Spark each small trace is one task of one job,
a large one has jobs of its own; archives are audited together.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import cast

import msgspec

from tidings.core.errors import PipelineError
from tidings.scenarios.trace.tables import TABLES
from tidings.spark.audit.archive import ArchivesAudited, audit_archives, check_named
from tidings.spark.audit.auditing import Audited, AuditRequest, AuditSizes, audit_trace
from tidings.spark.audit.checks import known_guarantee
from tidings.spark.audit.files import trace_files
from tidings.spark.audit.on_spark import spark_stages
from tidings.spark.audit.stages import HereStages, Piece, Progress, Stages, part_of
from tidings.spark.session import spark_session
from tidings.storage.archive import ArchiveReader

ARCHIVE_FILE = "archive.sqlite"
LOCAL, SPARK = "local", "spark"
SMALL_ROWS = 1_000_000
"""A trace of up to this many deliveries is one task."""
LOCAL_ROWS = 10_000_000
"""Up to this many deliveries and archived events run in this process: 8 s and 1.1 GB (benchmarks/README.md)."""


class Engine(msgspec.Struct, frozen=True):
    """The engine that did the work, "local" or "spark", and why."""

    name: str
    why: str


class AuditReport(msgspec.Struct, frozen=True):
    engine: Engine
    traces: list[Audited]
    archives: ArchivesAudited | None

    @property
    def holds(self) -> bool:
        return all(trace.holds for trace in self.traces) and (self.archives is None or self.archives.holds)


def audit(
    paths: Sequence[Path],
    request: AuditRequest,
    *,
    master: str | None = None,
    here: bool = False,
    progress: Progress = lambda share: None,
) -> AuditReport:
    """Audit traces and archives; a one-line TraceError, ArchiveError or PipelineError if one cannot be audited."""
    for name in request.guarantees:
        known_guarantee(name)
    archives = [path for path in paths if _is_archive(path)]
    traces = [path for path in paths if path not in archives]
    if archives:
        check_named(request.guarantees, len(archives))
    sizes = {path: trace_files(path).rows for path in traces}  # opens all before the first is audited
    engine = choose_engine(sum(sizes.values()) + sum(map(_events, archives)), master, here=here)
    with _stages(engine, master) as stages:
        share = 1 / (bool(traces) + bool(archives))
        small_rows = 0 if engine.name == LOCAL else SMALL_ROWS
        audited = _audit_traces(stages, sizes, small_rows, request, part_of(progress, 0.0, share))
        checked = None
        if archives:
            rest = part_of(progress, 1 - share, 1.0)
            checked = audit_archives(stages, archives, request.guarantees, rest)
    return AuditReport(engine, [audited[path] for path in traces], checked)


def choose_engine(rows: int, master: str | None, *, here: bool) -> Engine:
    if here:
        return Engine(LOCAL, "--here")
    if master is not None:
        return Engine(SPARK, f"--master {master}")
    if rows <= LOCAL_ROWS:
        return Engine(LOCAL, f"{rows:,} deliveries: faster than Spark up to {LOCAL_ROWS:,}")
    return Engine(SPARK, f"{rows:,} deliveries: above {LOCAL_ROWS:,} Spark bounds memory and uses all cores")


def _events(archive: Path) -> int:
    with ArchiveReader(archive) as reader:
        first, end = reader.bounds()
    return end - first


def _is_archive(path: Path) -> bool:
    if not path.is_dir():
        raise PipelineError(f"no such directory: {path}")
    if (path / ARCHIVE_FILE).exists():
        return True
    if not any((path / f"{name}.parquet").exists() for name in TABLES):
        raise PipelineError(
            f"{path} is neither a trace ({', '.join(f'{name}.parquet' for name in TABLES[:3])}, ...) "
            f"nor an archive ({ARCHIVE_FILE})"
        )
    return False


@contextmanager
def _stages(engine: Engine, master: str | None) -> Iterator[Stages]:
    if engine.name == LOCAL:
        yield HereStages()
        return
    with spark_session(master, app="tidings audit") as session, spark_stages(session) as stages:
        yield cast("Stages", stages)


def _audit_traces(
    stages: Stages, sizes: dict[Path, int], small_rows: int, request: AuditRequest, progress: Progress
) -> dict[Path, Audited]:
    """Audit traces of up to `small_rows` in parallel, each as one task, and the others one after the other."""
    small = [path for path, rows in sizes.items() if small_rows > 0 and rows <= small_rows]
    total = max(sum(sizes.values()), 1)
    done = sum(sizes[path] for path in small)
    audited: dict[Path, Audited] = {}
    if small:
        items = [(number, path.resolve()) for number, path in enumerate(small)]
        pieces = stages.map(partial(audit_small, request), items).collect(
            part_of(progress, 0.0, done / total)
        )
        for piece in pieces:
            path = small[piece.place]
            found = msgspec.msgpack.decode(piece.body, type=Audited)
            audited[path] = msgspec.structs.replace(found, directory=str(path))
    for path, rows in sizes.items():
        if path not in audited:
            share = part_of(progress, done / total, (done + rows) / total)
            audited[path] = audit_trace(stages, path, request, progress=share)
            done += rows
    return audited


def audit_small(request: AuditRequest, item: tuple[int, Path]) -> Iterator[Piece]:
    """Audit a whole trace in one task."""
    number, path = item
    found = audit_trace(HereStages(), path, request, AuditSizes())
    yield Piece(0, number, "audited", msgspec.msgpack.encode(found))
