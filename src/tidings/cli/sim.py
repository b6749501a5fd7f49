"""`tidings sim`: runs a scenario in virtual time, and checks its trace."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidings.cli.shared.exits import ExitCode
from tidings.cli.shared.options import Json, Quiet, option
from tidings.cli.shared.output import json_line, print_line, print_table, progress_bar

if TYPE_CHECKING:
    from tidings.scenarios.file.schema import Scenario
    from tidings.scenarios.trace.verdict import Verdict

INT64 = {"min": -(2**63), "max": 2**63 - 1}

ScenarioPath = Annotated[
    Path, typer.Argument(metavar="SCENARIO", help="A scenario file (TOML).", show_default=False)
]
Out = Annotated[Path, option("--out", "-o", metavar="DIR", help="Where the trace goes.", show_default=False)]
Seed = Annotated[int | None, option("--seed", metavar="N", **INT64, help="Instead of the file's seed.")]
Check = Annotated[bool, option("--check/--no-check", help="Check the trace against what was promised.")]


def sim(
    scenario: ScenarioPath,
    out: Out,
    seed: Seed = None,
    check: Check = False,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Run a scenario in virtual time; write DIR/*.parquet and DIR/summary.json."""
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


def load(path: Path, seed: int | None) -> Scenario:
    """The checked scenario, with the seed replaced where one is given."""
    import msgspec

    from tidings.scenarios.file.check import check_scenario
    from tidings.scenarios.file.load import load_scenario

    scenario = load_scenario(path)
    if seed is not None:
        scenario = msgspec.structs.replace(scenario, seed=seed)
        with naming(path):
            check_scenario(scenario)
    return scenario


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """What is wrong with a scenario that was read before is told with its file, too."""
    from tidings.core.errors import ScenarioError

    try:
        yield
    except ScenarioError as error:
        raise type(error)(f"{path}: {error}") from None


def print_summary(title: str, summary: dict[str, Any], out: Path, how: list[tuple[str, object]]) -> None:
    """`how` is what only this kind of run has to tell."""
    latency = summary["latency_ms"]
    rows = [
        ("seed, mode", f"{summary['seed']}, {summary['mode']}"),
        ("brokers", summary["brokers"]),
        ("published", summary["published"]),
        ("expected", summary["expected"]),
        ("delivered", summary["delivered"]),
        ("delivery ratio", _ratio(summary)),
        ("duplicates", summary["duplicates"]),
        ("out of order", summary["out_of_order"]),
        (
            "latency",
            " / ".join(f"{latency[key]:.1f}" for key in ("p50", "p99", "max")) + " ms (p50 / p99 / max)",
        ),
        *how,
        ("trace hash", summary["trace_sha256"]),
        ("written to", out),
    ]
    print_table(title, ("what", "value"), rows)


def _ratio(summary: dict[str, Any]) -> str:
    if not summary["expected"]:
        return "none: no event was published while a subscription that it is for was accepted"
    return f"{summary['delivery_ratio']:.4%}"


def verdicts(scenario: Scenario, out: Path) -> list[Verdict]:
    """What the checkers say of the trace in `out`, for what its subscriptions asked for and the mode promises."""
    from tidings.scenarios.checking import verdicts as check

    return check(scenario, out)


def show_verdicts(found: list[Verdict], *, as_json: bool) -> bool:
    """Prints them, with --json on stderr: stdout is then the summary alone. True if all hold."""
    for verdict in found:
        if as_json:
            sys.stderr.write(json_line(verdict_fields(verdict)) + "\n")
        else:
            print_line(str(verdict))
    return all(verdict.holds for verdict in found)


def verdict_fields(verdict: Verdict) -> dict[str, Any]:
    return {
        "guarantee": verdict.guarantee,
        "holds": verdict.holds,
        "violations": verdict.violations,
        "witnesses": [witness.text for witness in verdict.witnesses],
    }
