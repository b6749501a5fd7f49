"""`tidings demo`: runs a network, breaks and heals it before your eyes, and shows the result."""

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
from tidings.cli.shared.output import print_json, print_line, print_table, printable, progress_bar

if TYPE_CHECKING:
    from tidings.demo.result import DemoResult

Out = Annotated[
    Path | None,
    option(
        "--out",
        "-o",
        metavar="DIR",
        help="A new directory for report, trace and archives; a temporary one without.",
    ),
]
Spark = Annotated[bool, option("--spark/--no-spark", help="Audit the archives on Spark, or in this process.")]


def demo(out: Out = None, spark: Spark = True, json: Json = False) -> None:
    """Run a network on three sites, break it twice, and show that nothing is lost.

    A broker is killed, then a site is cut off. It takes about a minute. Exit code 1 if a guarantee does not hold.
    """
    from tidings.cli.shared.running import run
    from tidings.demo.play import conclude, prepare
    from tidings.demo.view import DemoView

    with directory_for(out) as directory:
        story = prepare(directory)
        with DemoView(story.scene, quiet=json):
            summary = run(story.play())
        if not json:
            print_line(f"Checking the trace, and the archives{' on Spark' if spark else ''} ...")
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
    """Yield the given directory, or a temporary one, which is deleted if the demo does not finish."""
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
    from tidings.demo.report import left_out

    show_subscribers(result)
    show_faults(result)
    where = "archives, on Spark" if result.archives.on_spark else "archives"
    print_table("What was checked", ("promise", "trace", where), result.checks())
    for text in result.witnesses():
        print_line(printable(text))
    if result.archives.why_not:
        print_line(left_out(result))
    if result.holds:
        print_line("Nothing was lost, nothing came twice, and all saw one order.")
    else:
        print_line("Not everything that was promised holds.")
    print_line(f"The report with its plots: {result.report}")


def show_subscribers(result: DemoResult) -> None:
    rows = [
        (one.name, one.site, one.order, one.expected, one.received, one.missing, one.repeated)
        for one in result.subscribers
    ]
    columns = ("subscriber", "site", "order", "expected", "received", "missing", "repeated")
    print_table(f"Who got what of {result.published:,} events", columns, rows)


def show_faults(result: DemoResult) -> None:
    rows = [
        (
            one.short,
            f"{one.at_s:.0f} to {one.until_s:.0f} s",
            one.published,
            one.waited,
            f"{one.caught_up_s:.1f} s",
        )
        for one in result.faults
    ]
    columns = ("fault", "when", "published meanwhile", "deliveries that waited", "caught up in")
    print_table("What the faults did", columns, rows)
    for broker in result.order_given_by.values():
        print_line(f"The sequencer beside {broker} gives the order now.")
