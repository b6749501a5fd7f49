"""`tidings sweep`: runs a grid of scenarios on Spark, one simulation per task (docs/sweeps.md)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidings.cli.shared.exits import ExitCode
from tidings.cli.shared.options import Json, Quiet, option
from tidings.cli.shared.output import cell_text, print_json, print_line, print_table, progress_bar

if TYPE_CHECKING:
    from tidings.spark.sweep.driver import Sweep

TABLE_METRICS = {
    "delivery_ratio": "delivery ratio",
    "latency_ms_p50": "latency p50 ms",
    "latency_ms_p99": "latency p99 ms",
    "overhead": "overhead",
}
TABLE_POINTS = 50
JSON_POINTS = 1_000
SHOWN_FAILURES = 10

GridPath = Annotated[
    Path, typer.Argument(metavar="GRID", help="Grid file (TOML); - is stdin.", show_default=False)
]
Out = Annotated[
    Path, option("--out", "-o", metavar="DIR", help="Directory for the results.", show_default=False)
]
Master = Annotated[
    str | None,
    option("--master", metavar="URL", help="Spark master, such as spark://HOST:7077. Default: this machine."),
]
KeepTraces = Annotated[bool, option("--keep-traces", help="Keep the trace of each run in DIR/traces.")]
Check = Annotated[bool, option("--check/--no-check", help="Check each trace against the guarantees.")]
RunTimeout = Annotated[
    float | None,
    option("--run-timeout", metavar="SECONDS", min=0.001, help="A run that takes longer has failed."),
]


def sweep(
    grid: GridPath,
    out: Out,
    master: Master = None,
    keep_traces: KeepTraces = False,
    check: Check = False,
    run_timeout: RunTimeout = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Run a scenario over a grid of parameters, on Spark.

    Writes DIR/runs.parquet, metrics.parquet and failures.parquet. Run it again to continue a sweep.
    """
    from tidings.spark.sweep.driver import SweepOptions, run_sweep
    from tidings.spark.sweep.grid import load_grid

    loaded = load_grid(grid)
    options = SweepOptions(master, check, keep_traces, run_timeout)
    with progress_bar(grid.name, quiet=quiet) as progress:
        done = run_sweep(loaded, out, options, progress)
    if json:
        print_json(json_object(done))
    else:
        print_sweep(grid.name, done)
    if len(done.results.failures):
        raise typer.Exit(ExitCode.CHECK_FAILED)


def json_object(done: Sweep) -> dict[str, Any]:
    points = done.grid.points
    return {
        "runs": len(done.results.runs),
        "ran": done.ran,
        "kept": done.kept,
        "failed": len(done.results.failures),
        "out": str(done.out),
        "points": point_objects(done, JSON_POINTS),
        "points_left_out": max(points - JSON_POINTS, 0),
        "failures": done.results.failures.slice(0, SHOWN_FAILURES).to_pylist(),
    }


def point_objects(done: Sweep, most: int) -> list[dict[str, Any]]:
    """Return the first points with their values, their runs and the statistics of each metric."""
    names = done.grid.parameters
    failed = counts(done.results.failures.column("point").to_pylist())
    shown: dict[int, dict[str, Any]] = {
        point: {
            "point": point,
            "parameters": {
                name: value for name, (_path, value) in zip(names, done.grid.values(point), strict=True)
            },
            "runs": len(done.grid.seeds),
            "failed": failed.get(point, 0),
            "metrics": {},
        }
        for point in range(min(done.grid.points, most))
    }
    for row in done.results.statistics(most):
        shown[row.pop("point")]["metrics"][row.pop("metric")] = row
    return list(shown.values())


def counts(points: list[int]) -> dict[int, int]:
    found: dict[int, int] = {}
    for point in points:
        found[point] = found.get(point, 0) + 1
    return found


def print_sweep(title: str, done: Sweep) -> None:
    names = short_names(done.grid.parameters)
    rows = [
        (
            *(
                value if isinstance(value, int | float | str) else str(value)
                for value in entry["parameters"].values()
            ),
            entry["runs"],
            entry["failed"],
            *(mean_text(entry["metrics"].get(metric)) for metric in TABLE_METRICS),
        )
        for entry in point_objects(done, TABLE_POINTS)
    ]
    print_table(title, (*names, "runs", "failed", *TABLE_METRICS.values()), rows)
    if done.grid.points > TABLE_POINTS:
        print_line(f"and {done.grid.points - TABLE_POINTS:,} more points in metrics.parquet")
    for row in done.results.failures.slice(0, SHOWN_FAILURES).to_pylist():
        print_line(f"failed: {done.grid.label(row['point'])}, seed {row['seed']}: {row['message']}")
        if row["replay"] is not None:
            print_line(f"  replay: {row['replay']}")
    more = len(done.results.failures) - SHOWN_FAILURES
    if more > 0:
        print_line(f"and {more:,} more in failures.parquet")
    kept = f" ({done.kept:,} of them done before)" if done.kept else ""
    print_line(
        f"{len(done.results.runs):,} runs{kept}, {len(done.results.failures):,} failed, written to {done.out}"
    )


def short_names(names: list[str]) -> list[str]:
    """Shorten each key to its last word if that is enough to tell keys apart."""
    last = [name.rpartition(".")[2] for name in names]
    return [short if last.count(short) == 1 else name for name, short in zip(names, last, strict=True)]


def mean_text(found: dict[str, Any] | None) -> str:
    """Format the mean and its 95 % confidence interval."""
    if found is None:
        return "-"
    if found["high"] is None:
        return cell_text(found["mean"])
    return f"{cell_text(found['mean'])} ± {cell_text(found['high'] - found['mean'])}"
