"""An audit of whatever was named on the command line: traces and archives, on Spark or in this process.

Each small trace is one task of one job, a large one has jobs of its own; archives are looked at together.
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
from tidings.spark.audit.stages import HereStages, Piece, Progress, Stages
from tidings.spark.session import spark_session

ARCHIVE_FILE = "archive.sqlite"
SMALL_ROWS = 1_000_000
"""Deliveries of a trace that one task looks at as a whole."""


class AuditReport(msgspec.Struct, frozen=True):
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
    """TraceError, ArchiveError or PipelineError, in one line, for what cannot be audited."""
    for name in request.guarantees:
        known_guarantee(name)
    archives = [path for path in paths if _is_archive(path)]
    traces = [path for path in paths if path not in archives]
    if archives:
        check_named(request.guarantees, len(archives))
    sizes = {path: trace_files(path).rows for path in traces}  # all are looked at before the first is audited
    with _stages(master, here=here) as stages:
        share = 1 / (bool(traces) + bool(archives))
        audited = _audit_traces(stages, sizes, request, lambda done: progress(done * share))
        checked = None
        if archives:
            rest = _part(progress, 1 - share, 1.0)
            checked = audit_archives(stages, archives, request.guarantees, rest)
    return AuditReport([audited[path] for path in traces], checked)


def _is_archive(path: Path) -> bool:
    if not path.is_dir():
        raise PipelineError(f"there is no directory {path}")
    if (path / ARCHIVE_FILE).exists():
        return True
    if not any((path / f"{name}.parquet").exists() for name in TABLES):
        raise PipelineError(
            f"{path} is neither a trace ({', '.join(f'{name}.parquet' for name in TABLES[:3])}, ...) "
            f"nor an archive ({ARCHIVE_FILE})"
        )
    return False


@contextmanager
def _stages(master: str | None, *, here: bool) -> Iterator[Stages]:
    if here:
        yield cast("Stages", HereStages())
        return
    with spark_session(master, app="tidings audit") as session, spark_stages(session) as stages:
        yield cast("Stages", stages)


def _audit_traces(
    stages: Stages, sizes: dict[Path, int], request: AuditRequest, progress: Progress
) -> dict[Path, Audited]:
    small = [path for path, rows in sizes.items() if rows <= SMALL_ROWS]
    total = max(sum(sizes.values()), 1)
    done = sum(sizes[path] for path in small)
    audited: dict[Path, Audited] = {}
    if small:
        items = [(number, path.resolve()) for number, path in enumerate(small)]
        pieces = stages.map(partial(audit_small, request), items).collect(_part(progress, 0.0, done / total))
        for piece in pieces:
            path = small[piece.place]
            found = msgspec.msgpack.decode(piece.body, type=Audited)
            audited[path] = msgspec.structs.replace(found, directory=str(path))
    for path, rows in sizes.items():
        if path not in audited:
            share = _part(progress, done / total, (done + rows) / total)
            audited[path] = audit_trace(stages, path, request, progress=share)
            done += rows
    return audited


def audit_small(request: AuditRequest, item: tuple[int, Path]) -> Iterator[Piece]:
    """A whole trace in one task."""
    number, path = item
    found = audit_trace(cast("Stages", HereStages()), path, request, AuditSizes())
    yield Piece(0, number, "audited", msgspec.msgpack.encode(found))


def _part(progress: Progress, low: float, high: float) -> Progress:
    return lambda share: progress(low + (high - low) * share)
