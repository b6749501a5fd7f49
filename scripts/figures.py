"""Draws the manual's charts from the tables of benchmarks/README.md. Run: python scripts/figures.py [DIR]

No number is written here: whoever measures again changes the tables and runs this.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot

ROOT = Path(__file__).parent.parent
IMAGES = ROOT / "docs" / "images"
BENCHMARKS = ROOT / "benchmarks" / "README.md"
OURS, OTHERS, GRAY = "#1f6f8b", "#c9b79c", "#777777"
SETTINGS = {
    "svg.fonttype": "none",
    "svg.hashsalt": "tidings",
    "font.family": "sans-serif",
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "figure.facecolor": "white",
}


def table(heading: str) -> list[list[str]]:
    """The rows of the table whose heading has these words, each a list of cells, the heading first."""
    lines = BENCHMARKS.read_text(encoding="utf-8").splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith("|") and heading in line)
    rows = []
    for line in lines[start:]:
        if not line.startswith("|"):
            break
        rows.append([cell.strip() for cell in line.strip("|").split("|")])
    return [rows[0], *rows[2:]]


def number(cell: str) -> float:
    """The first number of a cell: `265,977`, `.5`, `99.1 %`."""
    found = re.search(r"\d[\d,]*(?:\.\d+)?|\.\d+", cell)
    assert found, cell
    return float(found[0].replace(",", ""))


def bars(axes: Any, rows: list[tuple[str, float]], title: str) -> None:
    """Horizontal bars, tidings' own in colour, each with its number."""
    names = [name for name, _ in reversed(rows)]
    values = [value for _, value in reversed(rows)]
    colours = [OURS if name.startswith(("tidings", "MatchIndex")) else OTHERS for name in names]
    drawn = axes.barh(names, values, color=colours)
    axes.bar_label(drawn, labels=[f"{value:,.0f}" for value in values], padding=4)
    axes.set_title(title, loc="left", fontsize=10, fontweight="bold")
    axes.set_xlim(0, 1.18 * max(values))
    axes.xaxis.set_visible(False)
    axes.spines["bottom"].set_visible(False)


def live() -> Any:
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(10.5, 2.9))
    one = [(row[0], number(row[1])) for row in table("one to one, events/s")[1:]]
    ten = [(row[0], number(row[1])) for row in table("one to ten, deliveries/s")[1:]]
    bars(left, one, "One publisher, one subscriber: events/s")
    bars(right, ten, "One publisher, ten subscribers: deliveries/s")
    return figure


def matching() -> Any:
    figure, axes = pyplot.subplots(figsize=(7, 2.8))
    heading, *rows = table("contender")
    column = heading.index("100,000, .01 %")
    kept = [(row[0], number(row[column])) for row in rows if row[0] != "its best stretch"]
    bars(axes, kept, "Events/s matched against 100,000 filters, on one core")
    return figure


def loss() -> Any:
    """Of the recovery algorithms, those that a user may choose between."""
    figure, axes = pyplot.subplots(figsize=(6, 3.2))
    heading, *rows = table("algorithm | 1 %")
    rates = [number(cell) for cell in heading[1:]]
    shown = {"none": (GRAY, ":"), "push, random partners": (OTHERS, "--"), "auto": (OURS, "-")}
    for row in rows:
        if row[0] in shown:
            colour, style = shown[row[0]]
            axes.plot(
                rates, [number(cell) for cell in row[1:]], style, color=colour, marker="o", label=row[0]
            )
    axes.set_xlabel("messages lost on each link, %")
    axes.set_ylabel("events delivered, %")
    axes.set_ylim(0, 104)
    axes.legend(frameon=False, loc="lower left")
    return figure


def delta() -> Any:
    figure, axes = pyplot.subplots(figsize=(6, 2.8))
    heading, *rows = table("delta | delivered during failures")
    measured, bound = heading.index("delivered during failures"), heading.index("bound")
    places = range(len(rows))
    drawn = axes.bar(
        places, [number(row[measured]) for row in rows], color=OURS, width=0.6, label="delivered"
    )
    axes.bar_label(drawn, labels=[row[measured] for row in rows], padding=2)
    axes.plot(places, [number(row[bound]) for row in rows], "D", color=OTHERS, label="what the graph allows")
    axes.set_xticks(places, [f"delta {row[0]}" for row in rows])
    axes.set_ylabel("delivered during failures, %")
    axes.set_ylim(0, 118)
    axes.legend(frameon=False, loc="upper left")
    return figure


FIGURES = {"live": live, "matching": matching, "loss": loss, "delta": delta}


def main(directory: Path) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    with matplotlib.rc_context(SETTINGS):
        for name, draw in FIGURES.items():
            figure = draw()
            figure.tight_layout()
            figure.savefig(directory / f"{name}.svg", metadata={"Date": None})
            pyplot.close(figure)
            print(directory / f"{name}.svg")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else IMAGES)
