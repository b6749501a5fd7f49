"""Records which runs of a sweep are done, so that a sweep that was killed at any moment can continue.

Workers write `done/<id>.json`, a file per run. After each part of the sweep the driver writes its records into one
Parquet file and removes the workers' files, so that there are never more small files than runs in a part. If the driver
is killed in between, or a run was repeated, a run has two records; the better one counts.
"""

from __future__ import annotations

import json
import shutil
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from tidings.core.errors import PipelineError
from tidings.spark.sweep.run import DONE, MARK, RECORD, ROOM, TRACES, Record
from tidings.storage.files import lock_file, replaced

LOCK = ".lock"
PART = "part-"
TAKE_ROWS = 10_000


class SweepRecords:
    """The records in a sweep's directory; only the holder of `opened_records` writes there."""

    def __init__(self, out: Path) -> None:
        self.out = out
        self.mark = uuid.uuid4().hex
        self._done = out / DONE
        self._table = RECORD.empty_table()
        self._row_of: dict[str, int] = {}
        self._load()

    def __len__(self) -> int:
        return len(self._row_of)

    def finished(self, ids: Sequence[str], *, checked: bool, with_trace: bool) -> set[str]:
        """Return the runs that have a result, and were checked or kept their trace if that is required."""
        rows = [self._row_of[run_id] for run_id in ids if run_id in self._row_of]
        found = self._table.select(["id", "checked", "error"]).take(pa.array(rows, pa.int64()))
        return {
            row["id"]
            for row in found.to_pylist()
            if row["error"] is None
            and (row["checked"] or not checked)
            and (not with_trace or (self.out / TRACES / row["id"]).is_dir())
        }

    def add(self, records: pa.Table) -> None:
        """Write the records into one file, and remove the workers' files."""
        if not len(records):
            return
        write_table(records, self._done / f"{PART}{uuid.uuid4().hex}.parquet")
        self._take(records, newer=True)
        for run_id in records.column("id").to_pylist():
            (self._done / f"{run_id}.json").unlink(missing_ok=True)

    def batches(self, ids: Sequence[str]) -> Iterator[list[Record]]:
        """Yield the records of these runs, in this order; all must exist."""
        for first in range(0, len(ids), TAKE_ROWS):
            rows = [self._row_of[run_id] for run_id in ids[first : first + TAKE_ROWS]]
            yield self._table.take(pa.array(rows, pa.int64())).to_pylist()

    def _take(self, records: pa.Table, *, newer: bool = False) -> None:
        first = len(self._table)
        self._table = pa.concat_tables([self._table, records])
        for row, run_id in enumerate(records.column("id").to_pylist(), start=first):
            earlier = self._row_of.get(run_id)
            if earlier is None or newer or self._rank(row) >= self._rank(earlier):
                self._row_of[run_id] = row

    def _rank(self, row: int) -> tuple[bool, bool]:
        return not self._table["error"][row].is_valid, self._table["checked"][row].as_py()

    def _load(self) -> None:
        self._done.mkdir(parents=True, exist_ok=True)
        parts = sorted(self._done.glob(f"{PART}*.parquet"))
        for path in parts:
            self._take(read_part(path))
        self._gather(parts)
        for room in (self.out / TRACES).glob(f"{ROOM}*"):
            shutil.rmtree(room, ignore_errors=True)
        write_text(self.out / MARK, self.mark)

    def _gather(self, parts: Sequence[Path]) -> None:
        """Merge everything into one file: parts, and records that interrupted runs left."""
        small = [path for path in self._done.iterdir() if path.suffix == ".json" and path.name[0] != "."]
        found = [record for path in small if (record := read_record(path)) is not None]
        if found or len(parts) > 1:
            self._take(pa.Table.from_pylist(found, schema=RECORD))
            rows = pa.array(self._row_of.values(), pa.int64())
            self._table = self._table.take(rows).combine_chunks()
            self._row_of = {run_id: row for row, run_id in enumerate(self._row_of)}
            write_table(self._table, self._done / f"{PART}{uuid.uuid4().hex}.parquet")
            remove(parts)
        remove(small)
        remove(path for path in self._done.iterdir() if path.name[0] == ".")


@contextmanager
def opened_records(out: Path) -> Iterator[SweepRecords]:
    """Yield the records in `out`; PipelineError if another sweep is writing there."""
    out.mkdir(parents=True, exist_ok=True)
    try:
        lock = lock_file(out / LOCK)
    except BlockingIOError:
        raise PipelineError(f"{out}: another sweep is writing there") from None
    with lock:
        yield SweepRecords(out)


def read_part(path: Path) -> pa.Table:
    try:
        return pq.read_table(path).cast(RECORD)
    except (OSError, pa.ArrowException) as error:
        reason = " ".join(str(error).split())
        raise PipelineError(f"cannot read {path}; remove it to repeat its runs: {reason}") from None


def read_record(path: Path) -> Record | None:
    """Read a record; None if it is damaged, after a crash of the machine: that run is repeated."""
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        pa.Table.from_pylist([record], schema=RECORD)
    except (OSError, ValueError, AttributeError, pa.ArrowException):
        return None
    return record if set(record) == set(RECORD.names) else None


def write_table(table: pa.Table, path: Path) -> None:
    """Write the table atomically; it is on disk when this returns."""
    with replaced(path) as draft:
        pq.write_table(table, draft, compression="zstd")


def write_text(path: Path, text: str) -> None:
    with replaced(path) as draft:
        draft.write_text(text, encoding="utf-8")


def remove(paths: Iterable[Path]) -> None:
    for path in paths:
        path.unlink(missing_ok=True)
