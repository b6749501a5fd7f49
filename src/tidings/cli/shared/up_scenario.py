"""Implements the flags `--scenario`, `--out`, `--seed` and `--check` of `tidings up`, and prints their results."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from tidings.cli.shared.exits import ExitCode
from tidings.cli.shared.notices import notice
from tidings.cli.shared.options import option
from tidings.cli.shared.output import print_line, progress_bar
from tidings.cli.shared.scenario_run import INT64, load, naming, print_summary, show_verdicts, verdicts

SCENARIO = "Scenario"

ScenarioFile = Annotated[
    Path | None,
    option(
        "--scenario",
        metavar="FILE",
        rich_help_panel=SCENARIO,
        help="Run this scenario in real time, write its trace, and exit.",
    ),
]
Out = Annotated[
    Path | None,
    option("--out", "-o", metavar="DIR", rich_help_panel=SCENARIO, help="Directory for the trace."),
]
Seed = Annotated[
    int | None,
    option(
        "--seed", metavar="N", **INT64, rich_help_panel=SCENARIO, help="Seed to use instead of the file's."
    ),
]
Check = Annotated[
    bool,
    option(
        "--check/--no-check",
        rich_help_panel=SCENARIO,
        help="Check the trace; exits with 1 if a guarantee is violated.",
    ),
]


def up_scenario(
    path: Path | None, out: Path | None, seed: int | None, *, check: bool, as_json: bool, quiet: bool
) -> None:
    """Run the scenario; write DIR/*.parquet and DIR/summary.json."""
    from tidings.cli.shared.running import run
    from tidings.scenarios.live.run import run_live

    if path is None:
        raise typer.BadParameter("requires --scenario", param_hint=lone_flag(out, seed, check=check))
    if out is None:
        raise typer.BadParameter("required with --scenario", param_hint="--out")
    scenario = load(path, seed)
    with naming(path), progress_bar(path.name, quiet=quiet) as progress:
        summary = run(run_live(scenario, out, progress, partial(notice, as_json=as_json)))
    if as_json:
        print_line((out / "summary.json").read_text(encoding="utf-8").rstrip("\n"))
    else:
        how: list[tuple[str, object]] = [
            ("settled", f"{summary['settled_s']:.1f} s after the last fault and the last event"),
            ("time", f"{summary['virtual_s']:.1f} s of the scenario in {summary['wall_s']:.1f} s"),
        ]
        print_summary(path.name, summary, out, how)
    if check and not show_verdicts(verdicts(scenario, out, virtual=False), as_json=as_json):
        raise typer.Exit(ExitCode.CHECK_FAILED)


def lone_flag(out: Path | None, seed: int | None, *, check: bool) -> str:
    return "--out" if out is not None else "--seed" if seed is not None else "--check" if check else ""
