"""Measures what an event costs an archive: appending, sealing, reading; and how that compares with SQLite alone.

    python benchmarks/archive.py [--quick] [--json]

Events have 5 attributes and a payload of 128 B, and come in runs, as a recorder gets them, 1,024 per commit. Figures
are microseconds of processor time per event, from the fastest of a few repetitions, all in one process. Appending is
compared with a lower bound: SQLite with the same settings that stores the same bytes, 64 KiB per row, without looking
at them or keeping a checksum.

The workload `archive` of benchmarks/live.py measures the whole path, with a broker and a publisher.
"""

from __future__ import annotations

import argparse
import json
import sqlite3
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from random import Random

from rich.console import Console
from rich.table import Table

from tidings.core.events.event import Event
from tidings.core.events.run import Arrival, RunMaker, Stretch
from tidings.core.filters.language.predicates import Scalar
from tidings.storage.archive import Archive, ArchiveReader, ArchiveSettings

EVENTS = 100_000
WARM_UP_EVENTS = 1_000
REPETITIONS = 5
QUICK_SHARE = 10
COMMIT_EVENTS = 1_024
PAYLOAD_BYTES = 128
ROW_BYTES = 64 * 1024
NOTIFIED_NS = 1_700_000_000_000_000_000
UNSEALED = ArchiveSettings(segment_rows=1 << 40, segment_bytes=1 << 50, max_tail_rows=1 << 40)
Batches = list[list[Arrival | Event]]
Figures = dict[str, float]


def make_runs(events: int) -> list[Stretch]:
    draw = Random(1)
    maker = RunMaker("publisher", 1)
    for sequence in range(1, events + 1):
        attributes: dict[str, Scalar] = {
            "number": sequence,
            "price": draw.random() * 100,
            "symbol": draw.choice(["IBM", "AAPL", "SAP"]),
            "open": True,
            "venue": "xetra",
        }
        maker.add(
            sequence,
            f"/stocks/{sequence % 10}",
            attributes,
            draw.randbytes(PAYLOAD_BYTES),
            NOTIFIED_NS + sequence,
        )
    return maker.take_all()


def batched(came: list[Arrival | Event]) -> Batches:
    """Group arrivals into as many as a broker's window allows at once."""
    batches: Batches = [[]]
    waiting = 0
    for one in came:
        if waiting + one.count > COMMIT_EVENTS and waiting:
            batches.append([])
            waiting = 0
        batches[-1].append(one)
        waiting += one.count
    return batches


def processor_time(work: Callable[[], object]) -> float:
    began = time.process_time()
    work()
    return time.process_time() - began


def fill_sqlite(path: Path, runs: list[Stretch]) -> None:
    """Write blobs of the events' size, with the same number of commits."""
    size_bytes = sum(run.size_bytes for run in runs)
    commits = max(1, sum(run.count for run in runs) // COMMIT_EVENTS)
    left = size_bytes // commits
    blobs = [bytes(ROW_BYTES)] * (left // ROW_BYTES) + [bytes(left % ROW_BYTES)]
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("CREATE TABLE tail (offset INTEGER PRIMARY KEY, value BLOB NOT NULL)")
        for _ in range(commits):
            connection.execute("BEGIN")
            connection.executemany("INSERT INTO tail (value) VALUES (?)", ((blob,) for blob in blobs))
            connection.execute("COMMIT")


def append(archive: Archive, batches: Batches) -> None:
    for batch in batches:
        archive.append(batch, NOTIFIED_NS, marks={"publisher": 1})


def read(reader: ArchiveReader, columns: list[str] | None = None) -> None:
    for _ in reader.read(*reader.bounds(), columns=columns):
        pass


def measure(runs: list[Stretch]) -> Figures:
    """Run one repetition, and return microseconds per event."""
    with tempfile.TemporaryDirectory(prefix="archive-", dir=".") as directory:
        spent = spend(Path(directory), runs)
    return {name: 1e6 * seconds / sum(run.count for run in runs) for name, seconds in spent.items()}


def spend(directory: Path, runs: list[Stretch]) -> Figures:
    """Run one repetition, and return seconds."""
    arrivals: list[Arrival | Event] = [Arrival(run) for run in runs]
    apart: list[Arrival | Event] = [
        event for run in runs for event in Arrival(run).events(print) if event is not None
    ]
    spent = {"SQLite alone": processor_time(lambda: fill_sqlite(directory / "limit.sqlite", runs))}
    with Archive.open(directory / "apart", UNSEALED) as archive:
        spent["append, event by event"] = processor_time(lambda: append(archive, batched(apart)))
    with Archive.open(directory / "runs", UNSEALED) as archive, ArchiveReader(directory / "runs") as reader:
        spent["append"] = processor_time(lambda: append(archive, batched(arrivals)))
        spent["read the tail"] = processor_time(lambda: read(reader))
        spent["read payloads of the tail"] = processor_time(lambda: read(reader, ["payload"]))
        spent["seal"] = processor_time(archive.seal)
        spent["read segments"] = processor_time(lambda: read(reader))
    return spent


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="fewer events, one repetition")
    parser.add_argument("--json", action="store_true", help="print the numbers as JSON")
    options = parser.parse_args()
    events = EVENTS // (QUICK_SHARE if options.quick else 1)
    measure(make_runs(WARM_UP_EVENTS))
    runs = make_runs(events)
    repetitions = [measure(runs) for _ in range(1 if options.quick else REPETITIONS)]
    best = {name: min(figures[name] for figures in repetitions) for name in repetitions[0]}
    best["append and seal"] = best["append"] + best["seal"]
    ratios = {name: value / best["SQLite alone"] for name, value in best.items()}
    if options.json:
        print(json.dumps({"us_per_event": best, "ratio_to_sqlite": ratios}))
    else:
        print_table(best, ratios)


def print_table(best: Figures, ratios: Figures) -> None:
    table = Table("work", "us per event", "SQLite alone = 1", title="An archive's processor time")
    for name, value in best.items():
        table.add_row(name, f"{value:.2f}", f"{ratios[name]:.1f}")
    Console().print(table)


if __name__ == "__main__":
    main()
