"""Runs campaigns of random networks on Spark, with one task per block of seeds.

    python -m tidings.lab.spark_campaign --seeds 0:100000 --master 'local[*]' --out campaign
    python -m tidings.lab.spark_campaign --kind shares --seeds 0:100000 --master 'local[*]' --out shares

`overlay` is lab/campaign.py; `shares` is lab/share_campaign.py, whose kinds of networks take turns. It
writes two Parquet tables: `OUT/seeds` with a row per seed, and `OUT/failures` with the failed seeds' problems and the
commands that replay them.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the usual name

from tidings.lab.campaign import run_seed
from tidings.lab.seeds import CampaignResult, RunSeed, parse_seeds
from tidings.lab.share_campaign import run_in_turn
from tidings.spark.session import spark_session

SEEDS_PER_TASK = 50
KINDS: dict[str, RunSeed] = {"overlay": partial(run_seed, monitor=True), "shares": run_in_turn}
SCHEMA = "seed long, failed boolean, problems array<string>, replay string, published long, delivered long, steps long"
COLUMNS = pa.schema(
    [
        ("seed", pa.int64()),
        ("failed", pa.bool_()),
        ("problems", pa.list_(pa.string())),
        ("replay", pa.string()),
        ("published", pa.int64()),
        ("delivered", pa.int64()),
        ("steps", pa.int64()),
    ]
)


@dataclass(frozen=True, slots=True)
class Summary:
    """The result of a campaign; `first_failures` has the commands that replay the first failures."""

    seeds: int
    failed: int
    published: int
    delivered: int
    first_failures: tuple[str, ...]

    def __str__(self) -> str:
        counts = f"{self.seeds} seeds, {self.failed} failed, {self.published} published, {self.delivered} delivered"
        return "\n".join([counts, *self.first_failures])


def row(result: CampaignResult) -> dict[str, Any]:
    return {
        "seed": result.seed,
        "failed": result.failed,
        "problems": list(result.problems),
        "replay": result.replay if result.failed else None,
        "published": result.published,
        "delivered": result.delivered,
        "steps": result.steps,
    }


def run_batches(kind: str) -> Callable[[Iterable[Any]], Iterator[Any]]:
    """Return what runs the seeds of a task, one record batch at a time."""

    def run(batches: Iterable[Any]) -> Iterator[Any]:
        for batch in batches:
            rows = [row(KINDS[kind](seed)) for seed in batch.column("id").to_pylist()]
            yield pa.RecordBatch.from_pylist(rows, schema=COLUMNS)

    return run


def with_results(seeds: DataFrame, kind: str = "overlay") -> DataFrame:
    """Return the results of the seeds (a column `id`)."""
    return seeds.mapInArrow(run_batches(kind), SCHEMA)


def failures(results: DataFrame) -> DataFrame:
    return results.where("failed").select("seed", "problems", "replay").orderBy("seed")


def run_campaign(seeds: range, master: str | None, out: Path, kind: str = "overlay") -> Summary:
    """Run all seeds and write `out/seeds` and `out/failures`.

    Uses the active session if there is one, else a session of its own at `master`.
    """
    with spark_session(master, app="tidings campaign") as session:
        return _run_campaign(session, seeds, out, kind)


def _run_campaign(session: SparkSession, seeds: range, out: Path, kind: str) -> Summary:
    tasks = -(-len(seeds) // SEEDS_PER_TASK)
    results_path, failures_path = str(out / "seeds"), str(out / "failures")
    to_run = session.range(seeds.start, seeds.stop, 1, numPartitions=tasks)
    with_results(to_run, kind).write.mode("overwrite").parquet(results_path)
    results = session.read.parquet(results_path)  # read back, so that nothing is computed twice
    failures(results).coalesce(1).write.mode("overwrite").parquet(failures_path)
    totals = results.agg(
        F.count("*").alias("seeds"),
        F.count_if("failed").alias("failed"),
        F.sum("published").alias("published"),
        F.sum("delivered").alias("delivered"),
    ).first()
    assert totals is not None  # an aggregate without groups has one row
    first = [found["replay"] for found in failures(results).take(10)]
    return Summary(totals["seeds"], totals["failed"], totals["published"], totals["delivered"], tuple(first))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tidings.lab.spark_campaign")
    parser.add_argument("--seeds", type=parse_seeds, required=True, metavar="A:B", help="from A to B - 1")
    parser.add_argument("--master", metavar="URL", help="Spark master, such as local[*]")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="write the tables to DIR")
    parser.add_argument(
        "--kind", choices=sorted(KINDS), default="overlay", help="what runs: %(default)s by default"
    )
    options = parser.parse_args(arguments)
    summary = run_campaign(options.seeds, options.master, options.out, options.kind)
    print(summary)
    return 1 if summary.failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
