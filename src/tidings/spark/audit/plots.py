"""Plots of an audit, each as PNG and SVG: latency, delivery ratio, deliveries over time."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from tidings.core.errors import PipelineError
from tidings.extras import need
from tidings.scenarios.trace.metrics import NS_PER_MS
from tidings.spark.audit.auditing import Audited
from tidings.spark.audit.metrics import TIME_BINS

LATENCY_BINS = 100
NS_PER_S = 1e9
MAX_BARS = 40
"""Up to this many subscribers get a bar each; more are drawn as a curve."""


def check_plots() -> None:
    """Raise PipelineError, in one line, if matplotlib is missing."""
    need("a report with plots", "spark", "matplotlib", error=PipelineError)


def draw(trace: Audited, out: Path, prefix: str) -> list[str]:
    """Draw the plots that have data, and return their names without suffixes."""
    check_plots()
    import matplotlib

    matplotlib.use("Agg")
    # The same trace gives the same files.
    matplotlib.rcParams["svg.hashsalt"] = "tidings"
    plots: list[tuple[str, Callable[[Any, Audited], None], bool]] = [
        ("latency", _latency, len(trace.quantities.latencies) > 0),
        ("delivery_ratio", _delivery_ratio, len(trace.quantities.subscribers) > 0),
        ("deliveries", _deliveries, trace.quantities.metrics.delivered > 0),
    ]
    return [_drawn(plot, trace, out / f"{prefix}{name}") for name, plot, wanted in plots if wanted]


def _drawn(plot: Callable[[Any, Audited], None], trace: Audited, path: Path) -> str:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4), layout="constrained")
    axes = figure.subplots()
    plot(axes, trace)
    figure.savefig(path.with_name(f"{path.name}.png"), dpi=120, metadata={"Software": None})
    figure.savefig(path.with_name(f"{path.name}.svg"), metadata={"Date": None})
    return path.name


def _latency(axes: Any, trace: Audited) -> None:
    rows = trace.quantities.latencies
    axes.hist(rows["value"] / NS_PER_MS, bins=LATENCY_BINS, weights=rows["count"], color="tab:blue")
    latency = trace.quantities.metrics.latency_ms
    if latency is not None:
        for name, value, style in (("p50", latency.p50, "--"), ("p99", latency.p99, ":")):
            axes.axvline(value, color="black", linestyle=style, label=f"{name}: {value:,.3f} ms")
        axes.legend()
    axes.set(xlabel="latency (ms)", ylabel="deliveries", title="Latency from publication to delivery")


def _delivery_ratio(axes: Any, trace: Audited) -> None:
    rows = trace.quantities.subscribers
    ratio = np.where(rows["expected"] > 0, 1 - rows["missing"] / np.maximum(rows["expected"], 1), 1.0)
    lowest = 0.0
    if len(rows) <= MAX_BARS:
        places = np.arange(len(rows))
        axes.bar(places, ratio * 100, color="tab:green")
        names = [trace.subscribers[number] for number in rows["subscriber"]]
        axes.set_xticks(places, [_plain(name) for name in names], rotation=90 if len(rows) > 8 else 0)
        axes.set(xlabel="subscriber")
    else:
        axes.plot(np.sort(ratio) * 100, color="tab:green")
        lowest = max(ratio.min() * 100 - 1, 0.0)
        axes.set(xlabel="subscribers, worst first")
    axes.set(
        ylabel="delivered (%)", title="Share of the expected deliveries that arrived", ylim=(lowest, 101)
    )


def _deliveries(axes: Any, trace: Audited) -> None:
    low, high = trace.span
    edges = np.linspace(0, (high - low) / NS_PER_S, TIME_BINS + 1)
    counts = trace.quantities.over_time
    axes.stairs(counts, edges if high > low else np.arange(TIME_BINS + 1), fill=True, color="tab:purple")
    axes.set(xlabel="time since the first delivery (s)", ylabel="deliveries", title="Deliveries over time")


def _plain(name: str) -> str:
    """Shorten a name, and escape what matplotlib takes for a formula."""
    return name[:20].replace("$", r"\$")
