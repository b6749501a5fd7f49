"""`tidings sim`: runs a scenario in virtual time, and checks its trace."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from tidings.cli.shared.exits import ExitCode
from tidings.cli.shared.options import Json, Quiet, option
from tidings.cli.shared.output import print_line, progress_bar
from tidings.cli.shared.scenario_run import INT64, load, naming, print_summary, show_verdicts, verdicts

ScenarioPath = Annotated[
    Path, typer.Argument(metavar="SCENARIO", help="Scenario file (TOML); - is stdin.", show_default=False)
]
Out = Annotated[
    Path, option("--out", "-o", metavar="DIR", help="Directory for the trace.", show_default=False)
]
Seed = Annotated[
    int | None, option("--seed", metavar="N", **INT64, help="Seed to use instead of the file's.")
]
Check = Annotated[
    bool,
    option(
        "--check/--no-check", help="Check the trace against the guarantees; exits with 1 if one is violated."
    ),
]


def sim(
    scenario: ScenarioPath,
    out: Out,
    seed: Seed = None,
    check: Check = False,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Run a scenario in virtual time.

    Writes the trace as DIR/*.parquet, and DIR/summary.json.
    """
    from tidings.scenarios.simulate import run_scenario

    loaded = load(scenario, seed)
    with naming(scenario), progress_bar(scenario.name, quiet=quiet) as progress:
        summary = run_scenario(loaded, out, progress)
    if json:
        print_line((out / "summary.json").read_text(encoding="utf-8").rstrip("\n"))
    else:
        how: list[tuple[str, object]] = [
            ("messages", f"{summary['messages']:,} ({summary['bytes']:,} bytes)"),
            ("overhead", f"{summary['overhead']:.2f} messages between brokers per event or block"),
            *gossip_rows(summary),
            ("time", f"{summary['virtual_s']:g} s simulated in {summary['wall_s']:g} s"),
        ]
        print_summary(scenario.name, summary, out, how)
    if check and not show_verdicts(verdicts(loaded, out), as_json=json):
        raise typer.Exit(ExitCode.CHECK_FAILED)


def gossip_rows(summary: dict[str, Any]) -> list[tuple[str, object]]:
    if summary["mode"] != "epidemic":
        return []
    shares = [f"{kind} {share:.1%}" for kind, share in summary["utility"].items() if share is not None]
    messages = summary["gossip_messages"]
    by = "" if messages is None else f", by {messages:,} gossip messages"
    return [
        ("recovered", f"{summary['recovered']:,} deliveries{by}"),
        ("of use", ", ".join(shares) or "-"),
    ]
