"""The stages of an audit on Spark: reducers are shuffle partitions, kept pieces are on the workers' disks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from tidings.spark.audit.stages import (
    PROBLEM,
    SCHEMA,
    Piece,
    Progress,
    Reduce,
    Run,
    checked,
    run_reducer,
    without_problems,
)
from tidings.spark.tasks import watched

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

BATCH_BYTES = 64 * 2**20
_BYTES_PER_BATCH = "spark.sql.execution.arrow.maxBytesPerBatch"


class SparkStages:
    def __init__(self, session: SparkSession) -> None:
        self.session = session
        self._kept: list[DataFrame] = []

    def map(self, run: Run, items: Sequence[Any]) -> SparkStage:
        from pyspark.sql.pandas.types import from_arrow_schema

        def run_batches(batches: Iterable[Any]) -> Iterator[Any]:
            for batch in batches:
                for index in batch.column("id").to_pylist():
                    yield from _batches(checked(run)(items[index]))

        indexes = self.session.range(0, len(items), 1, numPartitions=max(len(items), 1))
        frame = indexes.mapInArrow(run_batches, from_arrow_schema(SCHEMA))
        return SparkStage(self, frame, len(items))

    def keep(self, frame: DataFrame) -> DataFrame:
        from pyspark import StorageLevel

        self._kept.append(frame.persist(StorageLevel.DISK_ONLY))
        return self._kept[-1]

    def close(self) -> None:
        for frame in self._kept:
            frame.unpersist()
        self._kept.clear()


class SparkStage:
    def __init__(self, stages: SparkStages, frame: DataFrame, tasks: int) -> None:
        self._stages = stages
        self._frame = frame
        self._tasks = tasks

    def to_reducers(self, reducers: int, reduce: Reduce) -> SparkStage:
        from pyspark.sql.pandas.types import from_arrow_schema

        def run_batches(batches: Iterable[Any]) -> Iterator[Any]:
            for reducer, pieces in groupby(_pieces(batches), key=lambda piece: piece.reducer):
                yield from _batches(run_reducer(reducer, pieces, reduce))

        sent = self._frame.repartitionById(reducers, "reducer").sortWithinPartitions("reducer", "place")
        made = sent.mapInArrow(run_batches, from_arrow_schema(SCHEMA))
        return SparkStage(self._stages, made, self._tasks + reducers)

    def tagged(self, *tags: str) -> SparkStage:
        frame = self._frame
        return SparkStage(self._stages, frame.where(frame.tag.isin(*tags, PROBLEM)), self._tasks)

    def kept(self) -> SparkStage:
        return SparkStage(self._stages, self._stages.keep(self._frame), self._tasks)

    def collect(self, progress: Progress = lambda share: None) -> list[Piece]:
        session = self._stages.session
        with watched(session, self._tasks, progress):
            table = self._frame.toArrow()
        return without_problems(list(_pieces(table.to_batches())))


@contextmanager
def spark_stages(session: SparkSession) -> Iterator[SparkStages]:
    """Yield stages on this session, and free kept pieces at the end."""
    stages = SparkStages(session)
    before = session.conf.get(_BYTES_PER_BATCH)
    # A reducer may get more than one Arrow batch can hold.
    session.conf.set(_BYTES_PER_BATCH, str(BATCH_BYTES))
    try:
        yield stages
    finally:
        session.conf.set(_BYTES_PER_BATCH, before)
        stages.close()


def _batches(pieces: Iterable[Piece]) -> Iterator[Any]:
    for piece in pieces:
        columns = ([piece.reducer], [piece.place], [piece.tag], [piece.body])
        arrays = [pa.array(column, field.type) for column, field in zip(columns, SCHEMA, strict=True)]
        yield pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


def _pieces(batches: Iterable[Any]) -> Iterator[Piece]:
    for batch in batches:
        bodies = batch.column("body")
        others = (batch.column(name).to_pylist() for name in ("reducer", "place", "tag"))
        for row, (reducer, place, tag) in enumerate(zip(*others, strict=True)):
            yield Piece(reducer, place, tag, bodies[row].as_py())
