"""The command line of `benchmarks/work.py`."""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import sys
from collections.abc import Sequence
from statistics import median
from typing import NamedTuple

from output import table_of
from rich.console import Console

from work.measure import AHEAD, Figures, measure, measure_kill
from work.system import JETSTREAM, OWN, SYSTEMS

MEMBERS = (1, 4, 16)
QUICK_SHARE = 20

Key = tuple[str, int, int]
"""System, workers, milliseconds of work; no workers: one of four was killed."""


class Row(NamedTuple):
    """A line of the first table."""

    workers: int
    work_ms: int
    system: str
    events_per_s: float
    p99_waiting_ms: float


class KillRow(NamedTuple):
    """A line of the second table."""

    system: str
    repeated_percent: float
    redelivered_ms: float | None


class Goal(NamedTuple):
    """A line of the third table."""

    goal: str
    reached: float
    held: bool


def main() -> None:
    options = parse()
    # An exception, so that servers and clients end, too.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    systems = [name for name in SYSTEMS if not options.only or name.lower().startswith(tuple(options.only))]
    keys = [(name, members, work_ms) for work_ms in AHEAD for members in MEMBERS for name in systems]
    keys += [(name, 0, 0) for name in systems]
    runs: dict[Key, list[Figures]] = {}
    missing: set[str] = set()
    failed = False
    for number in range(1 if options.quick else options.repeat):
        for done, key in enumerate(keys, number * len(keys) + 1):
            if key[0] in missing:
                continue
            show(f"{done}: {describe(key)} ...", end=" ")
            try:
                found = figures(key, quick=options.quick)
                runs.setdefault(key, []).append(found)
                show(", ".join(f"{name} {value:,.1f}" for name, value in found.items()))
            except FileNotFoundError as error:  # a server that is not installed; the others go on
                missing.add(key[0])
                show(f"left out: {error}")
            except Exception as error:
                show(f"failed: {error!r}")
                failed = True
    report(runs, as_json=options.json)
    sys.exit(1 if failed else 0)


def figures(key: Key, *, quick: bool) -> Figures:
    def scale(events: float) -> int:
        return max(50, int(events) // (QUICK_SHARE if quick else 1))

    system, members, work_ms = key
    return measure(system, members, work_ms, scale) if members else measure_kill(system, scale)


def describe(key: Key) -> str:
    system, members, work_ms = key
    return f"{system}: {members} workers, {work_ms} ms" if members else f"{system}: a worker is killed"


def show(what: str, end: str = "\n") -> None:
    print(what, end=end, file=sys.stderr, flush=True)


def report(runs: dict[Key, list[Figures]], *, as_json: bool) -> None:
    medians = {key: middle(found) for key, found in runs.items()}
    goals = list(reached(medians))
    if as_json:
        rows = [{"system": key[0], "workers": key[1], "work_ms": key[2], **medians[key]} for key in medians]
        machine = {"cores": os.cpu_count(), "python": platform.python_version()}
        print(json.dumps({"machine": machine, "medians": rows, "goals": [each._asdict() for each in goals]}))
        return
    console = Console(width=max(120, Console().width))
    groups = [
        Row(members, work_ms, system, found["events_per_s"], found["p99_waiting_ms"])
        for (system, members, work_ms), found in medians.items()
        if members
    ]
    kills = [
        KillRow(system, found["repeated_percent"], found.get("redelivered_ms"))
        for (system, members, _), found in medians.items()
        if not members
    ]
    for title, table in (("groups", groups), ("one of four workers is killed", kills), ("goals", goals)):
        if table:
            console.print(table_of(title, table))


def middle(found: Sequence[Figures]) -> Figures:
    names = dict.fromkeys(name for each in found for name in each)
    return {name: median(each[name] for each in found if name in each) for name in names}


def reached(medians: dict[Key, Figures]) -> list[Goal]:
    """Return the goals for which there are figures."""
    goals = []

    def rate(system: str, members: int, work_ms: int) -> float | None:
        return medians.get((system, members, work_ms), {}).get("events_per_s")

    for members in MEMBERS:
        ours, theirs = rate(OWN, members, 0), rate(JETSTREAM, members, 0)
        if ours and theirs:
            ratio = ours / theirs
            goals.append(Goal(f"{members} workers, 0 ms: 4 times JetStream", ratio, ratio >= 4))
    one, many = rate(OWN, 1, 10), rate(OWN, MEMBERS[-1], 10)
    if one and many:
        share = many / one / MEMBERS[-1]
        goals.append(
            Goal(f"{MEMBERS[-1]} workers, 10 ms: {MEMBERS[-1]} times one (share)", share, share >= 0.9)
        )
    killed = medians.get((OWN, 0, 0), {}).get("redelivered_ms")
    if killed is not None:
        goals.append(Goal("redelivered within 100 ms of a closed connection", killed, killed <= 100))
    return goals


def parse() -> argparse.Namespace:
    names = ", ".join(SYSTEMS)
    parser = argparse.ArgumentParser(description="Measure groups of workers against other work queues.")
    parser.add_argument("--repeat", type=int, default=3, help="number of repetitions; medians are shown")
    parser.add_argument("--quick", action="store_true", help="one repetition with a twentieth of the events")
    parser.add_argument(
        "--only",
        action="append",
        default=[],
        type=str.lower,
        metavar="NAME",
        help=f"systems that start with it: {names}",
    )
    parser.add_argument("--json", action="store_true", help="print the medians as JSON")
    options = parser.parse_args()
    if options.repeat < 1:
        parser.error("--repeat must be at least 1")
    for text in options.only:
        if not any(name.lower().startswith(text) for name in SYSTEMS):
            parser.error(f"--only {text!r}: known names: {names}")
    return options
