"""Draws panels as PNG and SVG. The same results give the same files."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tidings.core.errors import PipelineError
from tidings.extras import need
from tidings.studies.keeping import write_whole
from tidings.studies.study import Panel, Place

SIZE_INCHES = (7.0, 4.6)
DOTS_PER_INCH = 120
MARKERS = "osD^vP*Xh<>"
OURS = {"linestyle": "-", "markersize": 4}
PAPERS = {"linestyle": "--", "markersize": 9, "markerfacecolor": "none"}
"""Hollow and larger, so that they show even where both agree."""
SETTINGS: dict[Any, Any] = {"svg.hashsalt": "tidings", "svg.fonttype": "none", "font.size": 9.0}


def check_plots() -> None:
    need("a figure", "lab", "matplotlib", error=PipelineError)


def draw(panel: Panel, directory: Path) -> list[Path]:
    """Write NAME.png and NAME.svg."""
    import matplotlib as mpl

    with mpl.rc_context(SETTINGS):
        figure = figure_of(panel)
        paths = []
        for kind, metadata in (("png", {"Software": None}), ("svg", {"Date": None})):
            path = directory / f"{panel.name}.{kind}"
            buffer = io.BytesIO()
            figure.savefig(buffer, format=kind, metadata=metadata)
            write_whole(path, buffer.getvalue())
            paths.append(path)
        return paths


def figure_of(panel: Panel) -> Any:
    from matplotlib.figure import Figure

    figure = Figure(figsize=SIZE_INCHES, dpi=DOTS_PER_INCH, layout="constrained")
    axes = figure.add_subplot()
    names = list(dict.fromkeys([*panel.series, *panel.paper]))
    for index, name in enumerate(names):
        style = {"color": f"C{index % 10}", "marker": MARKERS[index % len(MARKERS)]}
        draw_line(axes, panel, panel.series.get(name, ()), name, style | OURS)
        draw_line(axes, panel, panel.paper.get(name, ()), f"{name} (paper)", style | PAPERS)
    label(axes, panel)
    return figure


def draw_line(axes: Any, panel: Panel, places: Sequence[Place], name: str, style: dict[str, Any]) -> None:
    shown = [place for place in places if visible(panel, place)]
    if not shown:
        return
    errors = [place[2] if len(place) > 2 else 0.0 for place in shown]
    xs, ys = [place[0] for place in shown], [place[1] for place in shown]
    bars = errors if any(errors) else None
    axes.errorbar(xs, ys, yerr=bars, label=name, linewidth=1.2, capsize=2, **style)


def visible(panel: Panel, place: Place) -> bool:
    """Say whether a point can be drawn: not NaN, and positive on a logarithmic axis."""
    x, y = place[0], place[1]
    if y != y or (not isinstance(x, str) and x != x):
        return False
    return not (panel.log_y and y <= 0) and not (panel.log_x and not isinstance(x, str) and x <= 0)


def label(axes: Any, panel: Panel) -> None:
    if panel.log_x:
        axes.set_xscale("log")
    if panel.log_y:
        axes.set_yscale("log")
    axes.set_title(panel.title)
    axes.set_xlabel(panel.x_label)
    axes.set_ylabel(panel.y_label)
    axes.grid(visible=True, alpha=0.3)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(fontsize=7)
