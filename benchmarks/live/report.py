"""Reports medians of all repetitions, as tables for people and as JSON for programs."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Sequence
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table

from live.goals import Key, Reached, Repetition, reached
from live.measure import Figures

COLUMNS = {
    "events/s": "events_per_s",
    "lost": "lost",
    "CPU us per event: server": "server_cpu_us",
    "subscriber": "subscriber_cpu_us",
    "publisher": "publisher_cpu_us",
    "p50 us": "p50_us",
    "p99 us": "p99_us",
    "p99 us alone": "p99_alone_us",
    "events/s beside": "beside_per_s",
    "server MB": "memory_mb",
    "bytes each": "bytes_each",
}
WIDTH = 170


def medians(repetitions: Sequence[Repetition]) -> dict[Key, Figures]:
    """Return the medians of each figure of each workload and system."""
    keys = dict.fromkeys(key for one in repetitions for key in one)
    found: dict[Key, Figures] = {}
    for key in keys:
        runs = [one[key] for one in repetitions if key in one]
        found[key] = {name: median(run[name] for run in runs if name in run) for name in runs[0]}
    return found


def print_tables(repetitions: Sequence[Repetition]) -> None:
    console = Console(width=max(WIDTH, Console().width))
    results = medians(repetitions)
    shown = {title: name for title, name in COLUMNS.items() if any(name in row for row in results.values())}
    table = Table("workload", "system", title=f"medians of {len(repetitions)}", title_justify="left")
    for title in shown:
        table.add_column(title, justify="right")
    previous = ""
    for (workload, system), row in results.items():
        if previous and workload != previous:
            table.add_section()
        table.add_row(
            workload if workload != previous else "",
            system,
            *(number(row[name]) if name in row else "" for name in shown.values()),
        )
        previous = workload
    console.print(table)
    if found := reached(repetitions):
        console.print(goals_table(found))


def goals_table(found: Sequence[Reached]) -> Table:
    table = Table("work", "goal", title="goals", title_justify="left")
    for title in ("reached", "ratio", "held"):
        table.add_column(title, justify="right")
    for row in found:
        held = "yes" if row.held else "no"
        table.add_row(row.goal.what, row.goal.text, number(row.ours), f"{row.ratio:.2f}", held)
    return table


def number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:,.1f}"


def as_json(repetitions: Sequence[Repetition]) -> str:
    def rows(repetition: Repetition) -> list[dict[str, Any]]:
        return [{"workload": key[0], "system": key[1], **row} for key, row in repetition.items()]

    goals = [
        {
            "work": row.goal.what,
            "goal": row.goal.text,
            "reached": row.ours,
            "ratio": row.ratio,
            "held": row.held,
        }
        for row in reached(repetitions)
    ]
    return json.dumps(
        {
            "machine": {"cores": os.cpu_count(), "python": platform.python_version()},
            "medians": rows(medians(repetitions)),
            "goals": goals,
            "repetitions": [rows(one) for one in repetitions],
        },
        indent=2,
    )
