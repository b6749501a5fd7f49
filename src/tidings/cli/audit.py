"""`tidings audit`: checks the guarantees over traces and archives of any size, here or on Spark."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidings.cli.shared.exits import ExitCode
from tidings.cli.shared.options import Json, Quiet, option
from tidings.cli.shared.output import print_json, print_line, print_table, printable, progress_bar

if TYPE_CHECKING:
    from tidings.scenarios.trace.verdict import Verdict
    from tidings.spark.audit.archive import ArchivesAudited
    from tidings.spark.audit.auditing import Audited
    from tidings.spark.audit.run import AuditReport

SHOWN_WITNESSES = 3


class AuditMode(StrEnum):
    ASKED = "asked"
    GUARANTEED = "guaranteed"


Paths = Annotated[
    list[Path],
    typer.Argument(metavar="DIR...", help="Traces (DIR/*.parquet) and archives.", show_default=False),
]
Out = Annotated[
    Path | None, option("--out", "-o", metavar="DIR", help="Where report.md, its plots and tables go.")
]
Guarantees = Annotated[
    list[str] | None,
    option(
        "--guarantee",
        "-g",
        metavar="NAME",
        help="Check this, over all subscriptions; may be repeated. Without: what was promised.",
    ),
]
Mode = Annotated[
    AuditMode | None,
    option(
        "--mode",
        help="'guaranteed' checks what that mode promises, too: FIFO, and no gaps. 'asked' checks only what the "
        "subscriptions asked for. Without: by the mode of the run, if the trace says it.",
    ),
]
Master = Annotated[
    str | None,
    option(
        "--master", metavar="URL", help="On Spark, at this master. Without: on Spark only if it is large."
    ),
]
Here = Annotated[bool, option("--here", help="In this process, without Spark, however large it is.")]


def audit(
    paths: Paths,
    out: Out = None,
    guarantee: Guarantees = None,
    mode: Mode = None,
    master: Master = None,
    here: Here = False,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Check the guarantees over traces and archives. Exit code 1 if one is violated."""
    from tidings.spark.audit.auditing import AuditRequest
    from tidings.spark.audit.run import audit as run

    if here and master is not None:
        raise typer.BadParameter("--here and --master exclude each other")
    if guarantee and mode is AuditMode.GUARANTEED:
        raise typer.BadParameter("--guarantee and --mode guaranteed exclude each other")
    if out is not None:
        from tidings.spark.audit.plots import check_plots

        check_plots()
        out.mkdir(parents=True, exist_ok=True)  # fail before the work if it cannot be written
    request = AuditRequest(tuple(guarantee or ()), None if mode is None else mode.value)
    with progress_bar("audit", quiet=quiet) as progress:
        report = run(list(dict.fromkeys(paths)), request, master=master, here=here, progress=progress)
        if out is not None:
            from tidings.spark.audit.report import write_report

            write_report(report, out)
    if json:
        print_json(report_fields(report))
    else:
        show(report, out)
    if not report.holds:
        raise typer.Exit(ExitCode.CHECK_FAILED)


def show(report: AuditReport, out: Path | None) -> None:
    from tidings.spark.audit.report import metric_rows, where

    print_line(f"audited {where(report.engine)}")
    for trace in report.traces:
        show_verdicts(f"trace {trace.directory}", trace.verdicts)
        print_table("", ("what", "value"), metric_rows(trace))
        show_remarks(trace.remarks)
    if report.archives is not None:
        archives = report.archives
        pairs = zip(archives.directories, archives.events, strict=True)
        show_verdicts(
            "archives " + ", ".join(f"{name} ({events:,} events)" for name, events in pairs),
            archives.verdicts,
        )
        for name, why in archives.not_checked.items():
            print_line(f"{name}: {why}")
        show_remarks(archives.remarks)
    if out is not None:
        print_line(f"written to {out}: report.md, verdicts.parquet, witnesses.parquet, latency.parquet")


def show_verdicts(title: str, verdicts: list[Verdict]) -> None:
    rows = [
        (
            verdict.guarantee,
            "holds" if verdict.holds else "VIOLATED",
            verdict.violations,
            ", ".join(f"{name} {count:,}" for name, count in verdict.counts.items()) or None,
        )
        for verdict in verdicts
    ]
    print_table(title, ("guarantee", "verdict", "violations", "counts"), rows)
    for verdict in verdicts:
        for witness in verdict.witnesses[:SHOWN_WITNESSES]:
            print_line(printable(f"{verdict.guarantee}: {witness.text}"))


def show_remarks(remarks: list[str]) -> None:
    for remark in remarks:
        print_line(printable(f"note: {remark}"))


def report_fields(report: AuditReport) -> dict[str, Any]:
    return {
        "holds": report.holds,
        "engine": {"name": report.engine.name, "why": report.engine.why},
        "traces": [trace_fields(trace) for trace in report.traces],
        "archives": None if report.archives is None else archive_fields(report.archives),
    }


def trace_fields(trace: Audited) -> dict[str, Any]:
    import msgspec

    return {
        "directory": trace.directory,
        "mode": trace.mode,
        "holds": trace.holds,
        "verdicts": [verdict_fields(verdict) for verdict in trace.verdicts],
        "metrics": msgspec.to_builtins(trace.quantities.metrics),
        "missing": msgspec.to_builtins(trace.quantities.missing),
        "exact_quantiles": trace.quantities.exact,
        "traffic": msgspec.to_builtins(trace.traffic),
        "remarks": trace.remarks,
    }


def archive_fields(archives: ArchivesAudited) -> dict[str, Any]:
    return {
        "directories": archives.directories,
        "events": archives.events,
        "holds": archives.holds,
        "verdicts": [verdict_fields(verdict) for verdict in archives.verdicts],
        "not_checked": archives.not_checked,
        "remarks": archives.remarks,
    }


def verdict_fields(verdict: Verdict) -> dict[str, Any]:
    import msgspec

    fields: dict[str, Any] = msgspec.to_builtins(verdict)
    return fields
