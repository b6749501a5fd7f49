"""Runs one call per Spark task and reports progress; sweeps and studies use it.

`createDataFrame(...).mapInArrow` would put many items into one task; a range with as many partitions as items does not.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from threading import Event, Thread
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Item = TypeVar("Item")
Row = Mapping[str, Any]
Progress = Callable[[float], None]
"""Called with the share that is done, from 0 to 1."""
POLL_SECONDS = 0.2


def map_tasks(
    session: SparkSession, run: Callable[[Item], Iterable[Row]], items: Sequence[Item], schema: pa.Schema
) -> DataFrame:
    """Return the rows of `run(item)` for all items, one task per item. `run` and the items are sent to the workers."""
    from pyspark.sql.pandas.types import from_arrow_schema

    def run_batches(batches: Iterable[Any]) -> Iterator[Any]:
        for batch in batches:
            for index in batch.column("id").to_pylist():
                yield pa.RecordBatch.from_pylist(list(run(items[index])), schema=schema)

    indexes = session.range(0, len(items), 1, numPartitions=max(len(items), 1))
    return indexes.mapInArrow(run_batches, from_arrow_schema(schema))


def run_tasks(
    session: SparkSession,
    run: Callable[[Item], Iterable[Row]],
    items: Sequence[Item],
    schema: pa.Schema,
    progress: Progress = lambda share: None,
) -> pa.Table:
    """Run `map_tasks` now and return the rows, in the order of the items."""
    if not items:
        return schema.empty_table()
    with watched(session, len(items), progress):
        table = map_tasks(session, run, items, schema).toArrow()
    return table.cast(schema)


class watched:  # noqa: N801 - used as a context manager
    """Reports the share of `tasks` that the jobs started inside have finished."""

    def __init__(self, session: SparkSession, tasks: int, progress: Progress) -> None:
        self._context = session.sparkContext
        self._tasks = max(tasks, 1)
        self._progress = progress
        self._group = f"tidings-{uuid.uuid4().hex}"
        self._done = Event()
        self._thread = Thread(target=self._watch, daemon=True)

    def __enter__(self) -> None:
        self._context.setJobGroup(self._group, "tidings")
        self._thread.start()

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._done.set()
        self._thread.join()
        if _interrupted(error):
            raise KeyboardInterrupt from None
        if kind is None:
            self._progress(1.0)

    def _watch(self) -> None:
        while not self._done.wait(POLL_SECONDS):
            self._progress(min(self._finished() / self._tasks, 1.0))

    def _finished(self) -> int:
        tracker = self._context.statusTracker()
        finished = 0
        for job in tracker.getJobIdsForGroup(self._group):
            info = tracker.getJobInfo(job)
            for stage in info.stageIds if info else ():
                counted = tracker.getStageInfo(stage)
                finished += counted.numCompletedTasks if counted else 0
        return finished


def _interrupted(error: BaseException | None) -> bool:
    """Say whether the cause is ^C: pyspark then cancels the jobs and raises an error because they were cancelled."""
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__cause__ or error.__context__
    return error is not None
