"""`tidings reproduce`: runs the papers' experiments on Spark, and checks which of their claims hold."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tidings.cli.shared.exits import ExitCode, one_line, report
from tidings.cli.shared.options import Json, Quiet, option
from tidings.cli.shared.output import print_json, print_line, print_table, progress_bar

if TYPE_CHECKING:
    from tidings.studies.report import StudyReport
    from tidings.studies.study import Study

Names = Annotated[
    list[str] | None,
    typer.Argument(metavar="[NAME...]", help="Studies to run; see --list.", show_default=False),
]
Everything = Annotated[bool, option("--all", help="Run all studies.")]
Quick = Annotated[bool, option("--quick", help="Fewer and smaller runs: minutes instead of hours.")]
Out = Annotated[Path, option("--out", "-o", metavar="DIR", help="Directory for results and figures.")]
Master = Annotated[str | None, option("--master", metavar="URL", help="Spark master. Default: this machine.")]
List = Annotated[bool, option("--list", help="List the studies, and run none.")]


def reproduce(
    names: Names = None,
    everything: Everything = False,
    quick: Quick = False,
    out: Out = Path("reproductions"),
    master: Master = None,
    list_them: List = False,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Reproduce the papers' experiments, on Spark.

    Writes figures and verdicts to DIR/NAME. Run it again to continue.
    """
    from tidings.studies.plots import check_plots
    from tidings.studies.report import write_report
    from tidings.studies.runner import run_studies

    if list_them:
        show_list(as_json=json)
        return
    studies = chosen(names or [], everything)
    check_plots()
    with progress_bar("reproduce", quiet=quiet) as progress:
        outcomes = run_studies(studies, out, quick=quick, master=master, progress=progress)
    reports = [write_report(outcome, out, quick=quick) for outcome in outcomes]
    show(reports, quick, as_json=json)
    if not all(done.complete for done in reports):
        raise typer.Exit(ExitCode.CHECK_FAILED)


def chosen(names: list[str], everything: bool) -> list[Study]:
    from tidings.studies.study import STUDIES, load_study

    if everything == bool(names):
        wrong = "not allowed with --all" if names else f"expected {', '.join(STUDIES)}, or --all"
        raise typer.BadParameter(wrong, param_hint="NAME")
    return [load_study(name) for name in dict.fromkeys(names or STUDIES)]


def show_list(*, as_json: bool) -> None:
    from tidings.studies.study import STUDIES, load_study

    rows = []
    for name in STUDIES:
        study = load_study(name)
        rows.append((name, study.title, len(study.points(True)), len(study.points(False))))
    if as_json:
        keys = ("study", "title", "quick_points", "points")
        print_json([dict(zip(keys, row, strict=True)) for row in rows])
    else:
        print_table("Reproductions", ("name", "what", "runs with --quick", "runs"), rows)


def show(reports: list[StudyReport], quick: bool, *, as_json: bool) -> None:
    """Print verdicts to stdout, failures to stderr."""
    from tidings.studies.report import FAILURES, fields_of, verdict_line

    for done in reports:
        name, outcome = done.outcome.study.name, done.outcome
        for failure in outcome.failures:
            message = f"{name}: {failure.point} failed: {failure.reason}"
            report(one_line(message), as_json=as_json)
        if as_json:
            continue
        for claim in done.claims:
            print_line(verdict_line(done, claim))
        said = f"see {done.directory / 'README.md'}"
        if outcome.failures:
            said = f"{len(outcome.failures)} failed: see {done.directory / FAILURES}"
        print_line(f"{name}: {outcome.points} runs, {outcome.kept} of them from earlier, {said}")
    if as_json:
        print_json([fields_of(done, quick) for done in reports])
