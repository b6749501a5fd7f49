"""Draws the plots of the demo's report as SVG text."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tidings.demo.result import DemoResult, FaultResult
from tidings.demo.scene import NS_PER_S
from tidings.scenarios.trace.coded import Array, Coded
from tidings.scenarios.trace.demand import windows

NS_PER_MS = 1e6
LATENCY_BINS = 60
WIDTH_INCHES = 9.6
FAULT_COLOURS = {"crash": "#d1495b", "partition": "#edae49"}
WIDEST_POINTS = 4.5
OTHERWISE = "#30638e"
SETTINGS: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "tidings",
    "font.family": "sans-serif",
    "font.size": 10.0,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#9aa5b1",
    "axes.axisbelow": True,
    "axes.grid": True,
    "grid.color": "#e4e7eb",
    "legend.frameon": False,
}


def received_plot(result: DemoResult, coded: Coded) -> str:
    """Plot what each subscriber has received over time; faults are shaded."""

    def draw(axes: Any) -> None:
        for number, one in enumerate(result.subscribers):
            at_s = np.sort(coded.at[coded.subscriber == _number(coded, one.name)]) / NS_PER_S
            axes.step(at_s, np.arange(1, len(at_s) + 1), **_line(number, one.name))
        axes.set(xlabel="seconds", ylabel="events received")

    return _svg(draw, result.faults, 3.6)


def waiting_plot(result: DemoResult, coded: Coded) -> str:
    """Plot how many events wait for each subscriber: published for it and not delivered yet."""

    def draw(axes: Any) -> None:
        for number, one in enumerate(result.subscribers):
            at_s, waiting = waiting_of(coded, _number(coded, one.name))
            axes.step(at_s, waiting, **_line(number, one.name))
        axes.set(xlabel="seconds", ylabel="events waiting")

    return _svg(draw, result.faults, 3.0)


def waiting_of(coded: Coded, subscriber: int) -> tuple[Any, Array]:
    """Return instants in seconds, ascending, and how many events wait from each instant on."""
    first, end = windows(coded)
    published = []
    for row in np.flatnonzero(coded.subscriptions.subscriber == subscriber):
        selected = coded.interests.selected(int(coded.interests.of_subscription[row]))
        published.append(coded.events.at[selected[(selected >= first[row]) & (selected < end[row])]])
    delivered = coded.at[coded.subscriber == subscriber]
    at = np.concatenate([*published, delivered])
    steps = np.ones(len(at), dtype=np.int64)
    steps[len(at) - len(delivered) :] = -1
    order = np.argsort(at, kind="stable")
    return at[order] / NS_PER_S, np.cumsum(steps[order])


def latency_plot(result: DemoResult, coded: Coded) -> str:
    """Plot how long deliveries took, by the fault during which their events were published."""
    known = np.flatnonzero(coded.event >= 0)
    published_at = coded.events.at[coded.event[known]]
    latency_ms = np.maximum((coded.at[known] - published_at) / NS_PER_MS, 0.01)
    groups, labels, colours = [], [], []
    rest = np.ones(len(known), dtype=np.bool_)
    for fault in result.faults:
        during = (published_at >= fault.at_s * NS_PER_S) & (published_at < fault.until_s * NS_PER_S)
        groups.append(latency_ms[during & rest])
        labels.append(f"published {fault.at_s:.0f} to {fault.until_s:.0f} s: {fault.short}")
        colours.append(FAULT_COLOURS[fault.kind])
        rest &= ~during

    def draw(axes: Any) -> None:
        axes.set(xlabel="milliseconds from publication to delivery", ylabel="deliveries")
        if not len(known):
            return
        bins = np.geomspace(latency_ms.min(), latency_ms.max() * 1.001, LATENCY_BINS)
        axes.hist(
            [latency_ms[rest], *groups],
            bins=bins,
            stacked=True,
            label=["published otherwise", *labels],
            color=[OTHERWISE, *colours],
        )
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")

    return _svg(draw, (), 3.0)


def _line(number: int, name: str) -> dict[str, Any]:
    """Return a line's style; each line is thinner than the one before, so that covered lines stay visible."""
    return {
        "where": "post",
        "label": name,
        "color": f"C{number}",
        "linewidth": max(1.2, WIDEST_POINTS - 0.9 * number),
    }


def _number(coded: Coded, subscriber: str) -> int:
    return coded.subscriptions.subscriber_names.index(subscriber)


def _svg(draw: Callable[[Any], None], shaded: Sequence[FaultResult], height_inches: float) -> str:
    import matplotlib as mpl
    from matplotlib.figure import Figure

    with mpl.rc_context(SETTINGS):
        figure = Figure(figsize=(WIDTH_INCHES, height_inches), layout="constrained")
        axes = figure.add_subplot()
        for fault in shaded:
            axes.axvspan(fault.at_s, fault.until_s, color=FAULT_COLOURS[fault.kind], alpha=0.15, linewidth=0)
            middle, above = (fault.at_s + fault.until_s) / 2, axes.get_xaxis_transform()
            axes.text(middle, 1.02, fault.short, transform=above, ha="center", color="#52606d")
        draw(axes)
        if shaded:
            axes.set_xlim(left=0)
            axes.legend(fontsize=9, loc="center left", bbox_to_anchor=(1, 0.5))
        elif axes.get_legend_handles_labels()[0]:
            axes.legend(fontsize=9, loc="lower center", bbox_to_anchor=(0.5, 1), ncols=3)
        text = io.StringIO()
        figure.savefig(text, format="svg", metadata={"Date": None}, transparent=True)
    drawn = text.getvalue()
    return drawn[drawn.index("<svg") :]
