"""Writes what a study found: results.parquet, the plots, claims.json and README.md."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

import tidings
from tidings.studies.keeping import write_whole
from tidings.studies.plots import draw
from tidings.studies.runner import Outcome
from tidings.studies.study import Panel, PaperClaim

FAILURES = "failures.txt"


@dataclass(frozen=True, slots=True)
class StudyReport:
    """The report of a study; without panels and claims if points failed, since partial results prove nothing."""

    outcome: Outcome
    panels: tuple[Panel, ...]
    claims: tuple[PaperClaim, ...]
    directory: Path

    @property
    def complete(self) -> bool:
        return not self.outcome.failures


def write_report(outcome: Outcome, out: Path, *, quick: bool) -> StudyReport:
    directory = out / outcome.study.name
    buffer = io.BytesIO()
    pq.write_table(outcome.table, buffer)
    write_whole(directory / "results.parquet", buffer.getvalue())
    (directory / FAILURES).unlink(missing_ok=True)
    if outcome.failures:
        errors = "\n".join(f"{failure.point}\n{failure.error}" for failure in outcome.failures)
        write_whole(directory / FAILURES, errors.encode())
        return StudyReport(outcome, (), (), directory)
    panels = outcome.study.panels(outcome.table, quick)
    claims = outcome.study.claims(outcome.table, quick)
    for panel in panels:
        draw(panel, directory)
    report = StudyReport(outcome, tuple(panels), tuple(claims), directory)
    fields = json.dumps(fields_of(report, quick), indent=2, ensure_ascii=False) + "\n"
    write_whole(directory / "claims.json", fields.encode())
    write_whole(directory / "README.md", readme(report, quick).encode())
    return report


def fields_of(report: StudyReport, quick: bool) -> dict[str, Any]:
    outcome = report.outcome
    return {
        "study": outcome.study.name,
        "title": outcome.study.title,
        "quick": quick,
        "version": tidings.__version__,
        "points": outcome.points,
        "kept": outcome.kept,
        "failed": len(outcome.failures),
        "cpu_s": round(outcome.cpu_s, 3),
        "claims": [asdict(claim) for claim in report.claims],
        "panels": [panel.name for panel in report.panels],
        "directory": str(report.directory),
    }


def verdict_line(report: StudyReport, claim: PaperClaim) -> str:
    what = f"{claim.text}: {claim.measured} (paper: {claim.paper})"
    return f"{report.outcome.study.name} {claim.figure}: {claim.verdict}: {what}"


def readme(report: StudyReport, quick: bool) -> str:
    study, claims = report.outcome.study, report.claims
    size = "a reduced version (`--quick`)" if quick else "the paper's size"
    held = sum(claim.holds for claim in claims)
    open_ = sum(claim.undecided for claim in claims)
    lines = [
        f"# {study.title}",
        "",
        f"{report.outcome.points} runs, {size}, tidings {tidings.__version__}; "
        f"{held} of {len(claims)} claims hold, {open_} are undecided. The rows of all runs are in `results.parquet`.",
        "",
    ]
    figures = dict.fromkeys([*(panel.figure for panel in report.panels), *(claim.figure for claim in claims)])
    for figure in figures:
        panels = [panel for panel in report.panels if panel.figure == figure]
        lines += section(figure, panels, [claim for claim in claims if claim.figure == figure])
    return "\n".join(lines).rstrip("\n") + "\n"


def section(figure: str, panels: Sequence[Panel], claims: Sequence[PaperClaim]) -> list[str]:
    lines = [f"## {figure[:1].upper()}{figure[1:]}" if figure else "## Others", ""]
    for panel in panels:
        lines += [f"![{panel.title}]({panel.name}.png)", ""]
    if claims:
        lines += ["| the paper says | paper | measured | holds | why |", "| --- | --- | --- | --- | --- |"]
        for claim in claims:
            verdict = "yes" if claim.holds else f"**{'undecided' if claim.undecided else 'no'}**"
            cells = (claim.text, claim.paper, claim.measured, verdict, claim.why)
            lines.append("| " + " | ".join(map(cell, cells)) + " |")
        lines.append("")
    return lines


def cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
