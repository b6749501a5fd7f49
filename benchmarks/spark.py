"""Measures rows per second from an archive through `format("tidings")`, against Spark's Parquet scan of its segments.

    python benchmarks/spark.py [--quick] [--json] [--rows N] [--url URL]

Every column of every row goes into Spark's noop sink, on 2 cores. Sealed: from the archive's files. Live: from a
broker that keeps the same archive, over loopback (`--url`: from that broker instead, whatever it holds). The contenders
take turns within one run, after a warm-up round. CPU is that of the JVM and all Python processes together.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table

from tidings.core.events.event import Event
from tidings.spark.session import spark_session
from tidings.storage.archive.archive import Archive
from tidings.storage.archive.reader import ArchiveReader

CORES = 2
ROWS, QUICK_ROWS = 2_000_000, 200_000
APPEND_ROWS = 10_000
PAYLOAD = bytes(128)
TOPICS = tuple(f"/bench/{number}" for number in range(100))
ROUNDS, QUICK_ROUNDS = 5, 2
GOALS = {"sealed": 500_000, "live": 200_000}
START_S = 60


class Result(NamedTuple):
    case: str
    rows: int
    rows_per_s: float
    cpu_us_per_row: float


def event(number: int) -> Event:
    """Return an event with 5 attributes, as in the benchmarks of the live path."""
    attributes = {
        "key": f"k{number % 1000}",
        "size": number,
        "price": number / 8,
        "region": "europe",
        "urgent": not number % 7,
    }
    return Event(
        f"p{number % 50}", 0, number // 50 + 1, TOPICS[number % 100], number * 1000, attributes, PAYLOAD
    )


def make_archive(directory: Path, rows: int) -> None:
    with Archive.open(directory) as archive:
        for first in range(0, rows, APPEND_ROWS):
            archive.append([event(number) for number in range(first, min(first + APPEND_ROWS, rows))], first)
        archive.seal()


def read_all(frame: Any) -> None:
    frame.write.format("noop").mode("overwrite").save()


def parquet_scan(session: Any, directory: Path) -> Callable[[], None]:
    return lambda: read_all(session.read.parquet(str(directory / "segments")))


def sealed_source(session: Any, directory: Path) -> Callable[[], None]:
    return lambda: read_all(session.read.format("tidings").load(str(directory)))


def live_source(session: Any, url: str) -> Callable[[], None]:
    return lambda: read_all(session.read.format("tidings").option("url", url).load())


@contextmanager
def broker(directory: Path) -> Iterator[str]:
    """Run a broker that keeps the archive, and yield its URL."""
    command = [sys.executable, "-m", "tidings.cli.main", "broker", "--listen", "127.0.0.1:0"]
    process = subprocess.Popen([*command, "--archive", str(directory)], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()  # it prints one line, or ends
        found = re.search(r"tidings://\S+", line)
        if found is None:
            raise SystemExit(f"the broker did not start: {line}")
        yield found[0].rstrip(".,")
    finally:
        process.terminate()
        process.wait(START_S)


def measure(cases: dict[str, Callable[[], None]], rows: dict[str, int], rounds: int) -> list[Result]:
    taken: dict[str, list[tuple[float, float]]] = {case: [] for case in cases}
    for turn in range(rounds + 1):
        for case, run in cases.items():
            progress(f"{case}: {'warm-up' if not turn else f'round {turn} of {rounds}'}")
            began, began_cpu = time.perf_counter(), cpu_seconds()
            run()
            if turn:
                taken[case].append((time.perf_counter() - began, cpu_seconds() - began_cpu))
    return [
        Result(
            case,
            rows[case],
            rows[case] / median(wall for wall, _ in times),
            1e6 * median(cpu for _, cpu in times) / rows[case],
        )
        for case, times in taken.items()
    ]


def cpu_seconds() -> float:
    """Return the CPU time of this process and its descendants: Spark's workers are grandchildren, and most keep
    running."""
    ticks, parents = {}, {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it has ended; its parent's children time includes it
        number = int(path.parent.name)
        parents[number] = int(fields[1])
        ticks[number] = sum(map(int, fields[11:15]))
    return sum(ticks[number] for number in ticks if _is_ours(number, parents)) / 100


def _is_ours(number: int, parents: dict[int, int]) -> bool:
    while number > 1:
        if number == os.getpid():
            return True
        number = parents.get(number, 0)
    return False


def rows_at(url: str) -> int:
    from tidings.drivers.sockets.archive_client import RemoteArchive

    with RemoteArchive(url) as archive:
        first, end = archive.bounds()
    return end - first


def run(rows: int, rounds: int, url: str | None) -> list[Result]:
    with tempfile.TemporaryDirectory() as home:
        directory = Path(home) / "archive"
        progress(f"an archive of {rows:,} rows")
        make_archive(directory, rows)
        with spark_session(f"local[{CORES}]", app="tidings benchmark") as session:
            with ArchiveReader(directory) as reader:
                assert session.read.format("tidings").load(str(directory)).count() == reader.bounds().end
            files: dict[str, Callable[[], None]] = {
                "parquet": parquet_scan(session, directory),
                "sealed": sealed_source(session, directory),
            }
            results = measure(files, dict.fromkeys(files, rows), rounds)
            if url is not None:
                return results + measure({"live": live_source(session, url)}, {"live": rows_at(url)}, rounds)
            with broker(directory) as own:
                return results + measure({"live": live_source(session, own)}, {"live": rows_at(own)}, rounds)


def progress(what: str) -> None:
    print(f"\r\033[K{what}", end="", file=sys.stderr, flush=True)


def show(results: list[Result]) -> None:
    table = Table("case", "rows", "rows/s", "x Parquet scan", "CPU us/row", "goal")
    scan = results[0].rows_per_s
    for case, rows, rate, cpu_us in results:
        goal = GOALS.get(case)
        verdict = "" if goal is None else f"{goal:,}: {'met' if rate >= goal else 'missed'}"
        table.add_row(case, f"{rows:,}", f"{rate:,.0f}", f"{rate / scan:.2f}", f"{cpu_us:.2f}", verdict)
    Console().print(table)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="fewer rows and rounds")
    parser.add_argument("--json", action="store_true", help="print the numbers as JSON")
    parser.add_argument("--rows", type=int, help="rows of the archive")
    parser.add_argument("--url", help="URL of a broker that keeps an archive")
    options = parser.parse_args()
    rows = options.rows or (QUICK_ROWS if options.quick else ROWS)
    results = run(rows, QUICK_ROUNDS if options.quick else ROUNDS, options.url)
    progress("")
    if options.json:
        print(json.dumps([result._asdict() for result in results]))
    else:
        show(results)


if __name__ == "__main__":
    main()
