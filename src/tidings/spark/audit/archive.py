"""Audits archives: each is one subscriber that was shown its events in the order of their offsets.

An archive does not record what was published, nor what was subscribed to. So an audit can tell that it has no
duplicates, that the events of each source are in order and, with several archives, that all agree on one order. It
cannot tell that nothing is missing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from tidings.core.errors import PipelineError
from tidings.scenarios.trace.checkers.causal import CAUSAL_ORDER
from tidings.scenarios.trace.checkers.gaps import AGREEMENT, GAP_FREE
from tidings.scenarios.trace.checkers.once import EXACTLY_ONCE
from tidings.scenarios.trace.checkers.per_source import FIFO
from tidings.scenarios.trace.checkers.total import TOTAL_ORDER
from tidings.scenarios.trace.verdict import Case, Found, Verdict, Witness, first_cases, verdict_of
from tidings.spark.audit.archive_tasks import (
    NUMBERED,
    SIZE,
    ArchiveJob,
    check_order,
    check_sources,
    read_archive,
    verify,
)
from tidings.spark.audit.checks import known_guarantee
from tidings.spark.audit.stages import Piece, Progress, Stages
from tidings.spark.audit.tasks import FOUND, decoded
from tidings.storage.archive.reader import ArchiveReader

INTACT = "intact"
CHECKED = (EXACTLY_ONCE, FIFO, TOTAL_ORDER)
NOT_CHECKED = (GAP_FREE, AGREEMENT, CAUSAL_ORDER)
UNKNOWABLE = "not checked: archives do not record what was published or subscribed to"
TAKES_TWO = "not checked: needs two archives"
TAKES_TWO_WHOLE = "not checked: needs two undamaged archives"
NONE_WHOLE = "not checked: all archives are damaged"
NOT_ALL = "not checked: damaged archives are left out, and the others have no violation"
CHUNK_ROWS = 1_000_000


class ArchivesAudited(msgspec.Struct, frozen=True):
    directories: list[str]
    events: list[int]
    verdicts: list[Verdict]
    not_checked: dict[str, str]
    remarks: list[str]

    @property
    def holds(self) -> bool:
        return all(verdict.holds for verdict in self.verdicts)


def audit_archives(
    stages: Stages,
    directories: Sequence[Path],
    guarantees: Sequence[str] = (),
    progress: Progress = lambda share: None,
    chunk_rows: int = CHUNK_ROWS,
) -> ArchivesAudited:
    """Audit archives; ArchiveError if one cannot be opened. Damage inside is a violation."""
    # Absolute, because workers may run elsewhere.
    directories = list(dict.fromkeys(directory.resolve() for directory in directories))
    check_named(guarantees, len(directories))
    ranges, remarks = [], []
    for directory in directories:
        with ArchiveReader(directory) as reader:
            first, end = reader.bounds()
            ranges.append((first, end))
            remarks += [
                f"{directory}: events may be missing before offset {gap.offset}: {gap.reason}"
                for gap in reader.gaps()
            ]
            if first == end:
                remarks.append(f"{directory} is empty")
    job = ArchiveJob(
        tuple(map(str, directories)),
        tuple(ranges),
        1,
        tuple(dict.fromkeys(guarantees)) or CHECKED,
        bool(guarantees),
    )
    intact, damaged = _verify(stages, job, lambda share: progress(share / 2))
    job = _without(job, damaged, chunk_rows)
    not_checked = dict.fromkeys(NOT_CHECKED, UNKNOWABLE)
    if len(job.directories) < 2 and TOTAL_ORDER in job.checks:
        not_checked[TOTAL_ORDER] = TAKES_TWO_WHOLE if damaged else TAKES_TWO
        job = replace(job, checks=tuple(name for name in job.checks if name != TOTAL_ORDER))
    remarks += [f"{directories[index]} is damaged: its events are not checked" for index in damaged]
    found = _check(stages, job, chunk_rows, lambda share: progress(0.5 + share / 2))
    if damaged:  # the archives that were left out may violate what the others do not
        why = NOT_ALL if job.directories else NONE_WHOLE
        not_checked.update((verdict.guarantee, why) for verdict in found if verdict.holds)
        found = [verdict for verdict in found if not verdict.holds]
    return ArchivesAudited(
        [str(directory) for directory in directories],
        [end - first for first, end in ranges],
        [intact, *found],
        not_checked,
        remarks,
    )


def check_named(guarantees: Sequence[str], archives: int) -> None:
    """Raise PipelineError if this many archives cannot show whether a guarantee holds."""
    for name in guarantees:
        if known_guarantee(name) not in CHECKED:
            raise PipelineError(
                f"archives cannot show whether {name} holds: they can be checked for {', '.join(CHECKED)}"
            )
    if TOTAL_ORDER in guarantees and archives < 2:
        raise PipelineError(f"one archive cannot show whether {TOTAL_ORDER} holds: name at least two")


def _verify(stages: Stages, job: ArchiveJob, progress: Progress) -> tuple[Verdict, list[int]]:
    """Return the verdict on the files, and which archives have damaged ones."""
    pieces = stages.map(partial(verify, job), range(len(job.directories))).collect(progress)
    problems = sorted(
        (piece.place, found) for piece in pieces for found in msgspec.msgpack.decode(piece.body)
    )
    cases = first_cases(
        enumerate(problems),
        lambda item: Case((item[0],), Witness(item[1][1], (), (job.directories[item[1][0]],))),
    )
    return verdict_of(INTACT, [Found(len(problems), cases)]), sorted({index for index, _ in problems})


def _without(job: ArchiveJob, damaged: Sequence[int], chunk_rows: int) -> ArchiveJob:
    kept = [index for index in range(len(job.directories)) if index not in damaged]
    ranges = tuple(job.ranges[index] for index in kept)
    rows = sum(end - first for first, end in ranges)
    return replace(
        job,
        directories=tuple(job.directories[index] for index in kept),
        ranges=ranges,
        reducers=rows // chunk_rows + 1,
    )


def _check(stages: Stages, job: ArchiveJob, chunk_rows: int, progress: Progress) -> list[Verdict]:
    items = [
        (index, low, min(low + chunk_rows, end))
        for index, (first, end) in enumerate(job.ranges)
        for low in range(first, end, chunk_rows)
    ]
    by_source = stages.map(partial(read_archive, job), items).to_reducers(
        job.reducers, partial(_reduced, check_sources, job)
    )
    by_source = by_source.kept()
    found = by_source.tagged(FOUND).collect(lambda share: progress(share * 0.7))
    verdicts = []
    for index, name in enumerate(job.checks):
        pieces = found
        if name == TOTAL_ORDER:
            numbered = by_source.tagged(NUMBERED, SIZE).to_reducers(1, partial(_reduced, check_order, job))
            pieces = numbered.collect(lambda share: progress(0.7 + share * 0.3))
        verdicts.append(
            verdict_of(name, decoded((piece for piece in pieces if piece.reducer == index), Found))
        )
    progress(1.0)
    return verdicts


def _reduced(reduce: Callable[..., Iterator[Piece]], *arguments: Any) -> Iterator[Piece]:
    return reduce(*arguments)
