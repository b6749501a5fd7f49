"""Measures what an audit of a large trace costs: CPU seconds and memory of all its processes, by number of deliveries.

    python benchmarks/audit.py [--rows 1e6 1e7] [--engine local spark] [--broken] [--json]

Traces are generated: 100 subscribers, half of them also publishers, each on half of 20 topics, in total or causal
order; events are shown in one order that is not that of publication. So every check has work to do: exactly once, total
order, causal order, and all metrics. `--broken` shows one subscriber two neighbouring events in the wrong order, and
drops one event.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from rich.console import Console
from rich.table import Table

from tidings.scenarios.trace.tables import SCHEMAS, arrow_table
from tidings.spark.session import default_master

SUBSCRIBERS = 100
PUBLISHERS = 50
TOPICS = 20
BLOCK_EVENTS = 20_000
GAP_NS = 1_000_000
DELAYS_NS = 50_000_000
TICKS = os.sysconf("SC_CLK_TCK")
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
FLAGS = {"local": ["--here"], "spark": ["--master", default_master()]}


def generate(directory: Path, rows: int, *, broken: bool = False) -> int:
    """Write a trace with about this many deliveries, and return how many."""
    directory.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(1)
    events = rows * 2 // SUBSCRIBERS
    source = random.integers(0, PUBLISHERS, events)
    topic = random.integers(0, TOPICS, events)
    sequence = np.empty(events, dtype=np.int64)
    for publisher in range(PUBLISHERS):
        mine = source == publisher
        sequence[mine] = np.arange(np.count_nonzero(mine))
    at = np.arange(events) * GAP_NS
    names = np.char.add(np.char.add(np.char.add("c", source.astype(str)), ":"), sequence.astype(str))
    ids = pa.array(names.tolist(), pa.string())
    _write(directory, "published", _published(ids, source, sequence, topic, at))
    interest = np.stack(
        [np.isin(np.arange(TOPICS), random.permutation(TOPICS)[: TOPICS // 2]) for _ in range(SUBSCRIBERS)]
    )
    _write(directory, "subscribed", _subscribed(interest))
    for name in ("traffic", "faults", "nodes"):
        _write(directory, name, SCHEMAS[name].empty_table())
    shown_at = at + random.integers(0, DELAYS_NS, PUBLISHERS)[source]
    order = np.argsort(shown_at, kind="stable")
    return _write_delivered(directory, ids, order, shown_at, interest[:, topic[order]], broken=broken)


def _published(ids: Any, source: Any, sequence: Any, topic: Any, at: Any) -> Any:
    sources = pa.array([f"c{number}" for number in range(PUBLISHERS)]).take(pa.array(source))
    topics = pa.array([f"/t/{number}" for number in range(TOPICS)]).take(pa.array(topic))
    empty = pa.MapArray.from_arrays(
        np.zeros(len(ids) + 1, np.int32), pa.array([], pa.string()), pa.array([], pa.string())
    )
    columns = [ids, sources, sequence, topics, empty, np.full(len(ids), 100), at, at + 1]
    schema = SCHEMAS["published"]
    return pa.table(
        [pa.array(column).cast(field.type) for column, field in zip(columns, schema, strict=True)], schema
    )


def _subscribed(interest: Any) -> Any:
    rows = [
        (
            f"c{number}",
            "s",
            [f"/t/{topic}" for topic in np.flatnonzero(topics)],
            None,
            ("total", "causal")[number % 2],
            0,
            0,
            None,
        )
        for number, topics in enumerate(interest)
    ]
    return arrow_table("subscribed", list(zip(*rows, strict=True)))


def _write_delivered(
    directory: Path, ids: Any, order: Any, shown_at: Any, wanted: Any, *, broken: bool
) -> int:
    names = pa.array([f"c{number}" for number in range(SUBSCRIBERS)])
    positions = np.zeros(SUBSCRIBERS, dtype=np.int64)
    schema = SCHEMAS["delivered"]
    total = 0
    with pq.ParquetWriter(directory / "delivered.parquet", schema, compression="zstd") as writer:
        for low in range(0, len(order), BLOCK_EVENTS):
            mask = wanted[:, low : low + BLOCK_EVENTS].T
            place, subscriber = np.nonzero(mask)
            position = (np.cumsum(mask, axis=0) - 1 + positions)[place, subscriber]
            event = order[low + place]
            if broken and low == 0:
                position, event, subscriber = _break(position, event, subscriber)
            positions += mask.sum(axis=0) - (np.array([broken and low == 0, *[0] * (SUBSCRIBERS - 1)]))
            table = pa.table(
                [
                    names.take(pa.array(subscriber)),
                    pa.array(["s"]).take(pa.array(np.zeros(len(event), np.int64))),
                    pa.array(position),
                    ids.take(pa.array(event)),
                    pa.array(shown_at[event] + 1_000 * (subscriber + 1)),
                    pa.array(np.zeros(len(event), np.bool_)),
                    pa.nulls(len(event), pa.string()),
                ],
                schema,
            )
            writer.write_table(table, row_group_size=65_536)
            total += len(table)
    return total


def _break(position: Any, event: Any, subscriber: Any) -> tuple[Any, Any, Any]:
    """Show subscriber 0 its fourth event before its third, and drop its last one of this block."""
    mine = np.flatnonzero(subscriber == 0)
    event[mine[2]], event[mine[3]] = event[mine[3]], event[mine[2]]
    return tuple(np.delete(column, mine[-1]) for column in (position, event, subscriber))


def _write(directory: Path, name: str, table: Any) -> None:
    pq.write_table(table, directory / f"{name}.parquet", compression="zstd", row_group_size=65_536)


def measure(command: list[str]) -> dict[str, Any]:
    """Run a command, and return CPU seconds and peak memory of its process tree, sampled ten times a second."""
    started = time.monotonic()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    cpu: dict[int, float] = {}
    peak = 0
    while process.poll() is None:
        seen = dict(_tree(process.pid))
        cpu |= {number: seconds for number, (seconds, _) in seen.items()}
        peak = max(peak, sum(resident for _, resident in seen.values()))
        time.sleep(0.1)
    output = process.communicate()[0]
    return {
        "wall_s": round(time.monotonic() - started, 1),
        "cpu_s": round(sum(cpu.values()), 1),
        "peak_gb": round(peak / 1e9, 2),
        "exit": process.returncode,
        "output": output,
    }


def _tree(root: int) -> Iterator[tuple[int, tuple[float, int]]]:
    parents: dict[int, int] = {}
    stats: dict[int, list[str]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it has ended
        number = int(path.parent.name)
        parents[number], stats[number] = int(fields[1]), fields
    for number, fields in stats.items():
        above = number
        while above not in (0, root):
            above = parents.get(above, 0)
        if above == root:
            # Its own time only: its children are counted on their own while they run.
            yield number, ((int(fields[11]) + int(fields[12])) / TICKS, int(fields[21]) * PAGE_BYTES)


def cells(rows: int, engine: str, found: dict[str, Any]) -> list[str]:
    times = (found["wall_s"], found["cpu_s"], found["peak_gb"], found["cpu_s"] / rows * 1e6)
    return [f"{rows:,}", engine, *(f"{number:,.2f}" for number in times), str(found["exit"])]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=float, nargs="+", default=[1e6, 1e7], help="deliveries of the traces")
    parser.add_argument("--broken", action="store_true", help="violate the guarantees")
    parser.add_argument("--engine", nargs="+", choices=list(FLAGS), default=list(FLAGS), help="what to run")
    parser.add_argument("--json", action="store_true", help="print the numbers as JSON lines")
    options = parser.parse_args()
    table = Table(
        *("deliveries", "engine", "wall s", "CPU s", "peak GB", "CPU s per million", "exit code"),
        title="tidings audit",
    )
    for wanted in options.rows:
        with tempfile.TemporaryDirectory() as directory:
            rows = generate(Path(directory), int(wanted), broken=options.broken)
            for engine in options.engine:
                command = [str(Path(sys.executable).parent / "tidings"), "audit", directory, "--json"]
                found = measure([*command, *FLAGS[engine]])
                if options.json:
                    print(json.dumps({"rows": rows, "engine": engine, **found}), flush=True)
                table.add_row(*cells(rows, engine, found))
    if not options.json:
        Console().print(table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
