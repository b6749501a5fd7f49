"""`tidings demo`: one story of a network that is broken and mended before your eyes, and what came of it."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tidings.cli.shared.exits import ExitCode
from tidings.cli.shared.options import Json, option
from tidings.cli.shared.output import print_json, print_line, print_table, progress_bar

if TYPE_CHECKING:
    from tidings.demo.result import DemoResult

Out = Annotated[
    Path | None,
    option(
        "--out", "-o", metavar="DIR", help="Where all of it goes, a new directory; a temporary one without."
    ),
]
Spark = Annotated[bool, option("--spark/--no-spark", help="Audit the archives on Spark, or in this process.")]


def demo(out: Out = None, spark: Spark = True, json: Json = False) -> None:
    """Run a network on three sites, kill a broker, cut a site off, and show that nothing is lost.

    It takes about a minute. Exit code 1 if a guarantee does not hold.
    """
    from tidings.cli.shared.running import run
    from tidings.demo.play import conclude, prepare
    from tidings.demo.view import DemoView

    with directory_for(out) as directory:
        story = prepare(directory)
        with DemoView(story.scene, quiet=json):
            summary = run(story.play())
        with progress_bar("audit of the archives", quiet=json) as progress:
            result = conclude(story.scene, directory, summary, spark=spark, progress=progress)
    if json:
        print_json(result.fields())
    else:
        show(result)
    if not result.holds:
        raise typer.Exit(ExitCode.CHECK_FAILED)


@contextmanager
def directory_for(out: Path | None) -> Iterator[Path]:
    """The directory asked for, or a temporary one, which goes if the demo does not come to its end."""
    if out is None:
        made = Path(tempfile.mkdtemp(prefix="tidings-demo-"))
        try:
            yield made
        except BaseException:
            shutil.rmtree(made, ignore_errors=True)
            raise
        return
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise typer.BadParameter(f"{out} exists; name a new or an empty directory", param_hint="--out")
    out.mkdir(parents=True, exist_ok=True)
    yield out


def show(result: DemoResult) -> None:
    show_subscribers(result)
    show_faults(result)
    show_checks(result)
    if not result.archives.on_spark:
        print_line(f"The audit on Spark was left out, and ran here instead: {result.archives.why_not}")
    if result.holds:
        print_line("Nothing was lost, nothing came twice, and all saw one order.")
    else:
        print_line("NOT AS PROMISED: see above what does not hold.")
    print_line(f"\nThe report, with plots: {result.report}")


def show_subscribers(result: DemoResult) -> None:
    rows = [
        (
            one.name,
            one.site,
            one.order,
            one.expected,
            one.received,
            one.missing,
            one.repeated,
        )
        for one in result.subscribers
    ]
    columns = ("subscriber", "site", "order", "expected", "received", "missing", "repeated")
    print_table(f"\n{result.published:,} events were published. Who got what:", columns, rows)


def show_faults(result: DemoResult) -> None:
    for fault in result.faults:
        waited = (
            f"{fault.waited:,} deliveries waited, and the last came {fault.caught_up_s:.1f} s after its end"
        )
        print_line(
            f"{fault.at_s:.1f} to {fault.until_s:.1f} s: {fault.text} {fault.published:,} events were published "
            f"meanwhile; {waited}."
        )


def show_checks(result: DemoResult) -> None:
    from tidings.demo.result import IN_WORDS

    archives = result.archives
    rows = [("trace", verdict) for verdict in result.verdicts]
    rows += [("archives", verdict) for verdict in archives.verdicts]
    cells = [
        (of, IN_WORDS[verdict.guarantee], "holds" if verdict.holds else "VIOLATED", verdict.violations)
        for of, verdict in rows
    ]
    where = "on Spark" if archives.on_spark else "in this process"
    title = f"Checked over the trace, and {where} over the archives:"
    print_table(title, ("checked", "guarantee", "verdict", "violations"), cells)
    for _, verdict in rows:
        for witness in verdict.witnesses[:1]:
            print_line(f"{verdict.guarantee}: {witness.text}")
    kept = ", ".join(f"{events:,} at {broker}" for broker, events in archives.events.items())
    print_line(f"The archives have {kept}, of {archives.published:,} events published.")
