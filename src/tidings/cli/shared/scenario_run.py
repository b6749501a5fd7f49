"""Holds what `sim` and `up --scenario` share: reading a scenario, its summary, and the verdicts on its trace."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tidings.cli.shared.output import json_line, print_line, print_table

if TYPE_CHECKING:
    from tidings.scenarios.file.schema import Scenario
    from tidings.scenarios.trace.verdict import Verdict

INT64 = {"min": -(2**63), "max": 2**63 - 1}


def load(path: Path, seed: int | None) -> Scenario:
    """Return the checked scenario, with the given seed if there is one."""
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
    """Add the file's name to later errors about a scenario, too."""
    from tidings.core.errors import ScenarioError

    try:
        yield
    except ScenarioError as error:
        raise type(error)(f"{path}: {error}") from None


def print_summary(title: str, summary: dict[str, Any], out: Path, how: list[tuple[str, object]]) -> None:
    """Print the summary; `how` holds the rows of only this kind of run."""
    latency = summary["latency_ms"]
    rows = [
        ("seed, mode", f"{summary['seed']}, {summary['mode']}"),
        ("brokers", summary["brokers"]),
        ("published", summary["published"]),
        ("expected", summary["expected"]),
        ("delivered", summary["delivered"]),
        *([("expired", summary["expired"])] if summary["expired"] else []),
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


def verdicts(scenario: Scenario, out: Path, *, virtual: bool = True) -> list[Verdict]:
    """Return the verdicts on the trace in `out`: what its subscriptions ask for and its mode promises."""
    from tidings.scenarios.checking import verdicts as check

    return check(scenario, out, virtual=virtual)


def show_verdicts(found: list[Verdict], *, as_json: bool) -> bool:
    """Print the verdicts and return whether all hold; with --json to stderr, as stdout has only the summary."""
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
        **({"note": verdict.note} if verdict.note else {}),
        "witnesses": [witness.text for witness in verdict.witnesses],
    }
