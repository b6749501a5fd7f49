"""The command line of `benchmarks/live.py`."""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from live.figure import draw
from live.goals import Key, Repetition
from live.measure import Figures
from live.report import as_json, medians, number, print_tables
from live.systems import SYSTEMS
from live.workloads import WORKLOADS, Workload

QUICK_SHARE = 20


def main() -> None:
    options = parse()
    # An exception, so that servers and clients end, too.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    chosen = [
        (workload, system)
        for workload in WORKLOADS
        for system in workload.systems
        if is_chosen(options.only, workload.name, [one.name for one in WORKLOADS])
        and is_chosen(options.only, system, SYSTEMS)
    ]
    repetitions: list[Repetition] = []
    repeat = 1 if options.quick else options.repeat
    failed = False
    for earlier in range(repeat):
        repetition: dict[Key, Figures] = {}
        for done, (workload, system) in enumerate(chosen, earlier * len(chosen) + 1):
            show(f"{done}/{repeat * len(chosen)} {workload.name}: {system} ...", end=" ")
            try:
                found = repetition[workload.name, system] = figures(workload, system, quick=options.quick)
                show(", ".join(f"{name} {number(value)}" for name, value in found.items()))
            except Exception as error:  # the others are still worth measuring
                show(f"failed: {error!r}")
                failed = True
        repetitions.append(repetition)
    print(as_json(repetitions)) if options.json else print_tables(repetitions)
    if options.figure is not None:
        draw(options.figure, medians(repetitions))
    sys.exit(1 if failed else 0)


def figures(workload: Workload, system: str, *, quick: bool) -> Figures:
    return workload.measure(system, lambda events: max(1, events // (QUICK_SHARE if quick else 1)))


def is_chosen(only: Sequence[str], name: str, names: Iterable[str]) -> bool:
    """Say whether `--only` selects a name; it names workloads and systems, and without any of a kind all are
    selected."""
    wanted = [text for text in only if any(known.startswith(text) for known in names)]
    exact = [text for text in wanted if text in names]
    return not wanted or name in exact or any(name.startswith(text) for text in wanted if text not in exact)


def show(what: str, end: str = "\n") -> None:
    print(what, end=end, file=sys.stderr, flush=True)


def parse() -> argparse.Namespace:
    names = ", ".join([*(workload.name for workload in WORKLOADS), *SYSTEMS])
    parser = argparse.ArgumentParser(description="Measure the live path against other brokers.")
    parser.add_argument("--repeat", type=int, default=5, help="number of repetitions; medians are shown")
    parser.add_argument("--quick", action="store_true", help="one repetition with a twentieth of the events")
    parser.add_argument(
        "--only",
        action="append",
        default=[],
        metavar="NAME",
        help=f"only workloads and systems that start with NAME; may be repeated: {names}",
    )
    parser.add_argument("--json", action="store_true", help="print all figures as JSON")
    parser.add_argument("--figure", type=Path, metavar="FILE", help="also draw a figure: .svg, .png or .pdf")
    options = parser.parse_args()
    if options.repeat < 1:
        parser.error("--repeat must be at least 1")
    known = [*(workload.name for workload in WORKLOADS), *SYSTEMS]
    for text in options.only:
        if not any(name.startswith(text) for name in known):
            parser.error(f"--only {text!r}: known names: {names}")
    return options
