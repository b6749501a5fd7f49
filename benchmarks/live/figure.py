"""Draws the medians: rates, CPU per event, latencies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from live.goals import Key
from live.measure import Figures

RATES = ("one to one", "one to ten", "ten to one")
CPU = {"server": "server_cpu_us", "subscriber": "subscriber_cpu_us", "publisher": "publisher_cpu_us"}
QUANTILES = {"p50": "p50_us", "p99": "p99_us"}


def draw(path: Path, results: Mapping[Key, Figures]) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    systems = list(dict.fromkeys(system for _, system in results))
    drawing, (rates, cpu, latency) = pyplot.subplots(1, 3, figsize=(16, 5), layout="constrained")
    of_workloads = {
        workload: [results.get((workload, system), {}).get("events_per_s", 0.0) for system in systems]
        for workload in RATES
    }
    bars(rates, "deliveries/s", systems, of_workloads)
    bars(cpu, "CPU us per event, one to one", systems, series(results, "one to one", systems, CPU))
    bars(latency, "latency in us at 2,000 events/s", systems, series(results, "latency", systems, QUANTILES))
    latency.set_yscale("log")
    drawing.savefig(path)
    pyplot.close(drawing)


def series(
    results: Mapping[Key, Figures], workload: str, systems: Sequence[str], names: Mapping[str, str]
) -> dict[str, list[float]]:
    return {
        label: [results.get((workload, system), {}).get(name, 0.0) for system in systems]
        for label, name in names.items()
    }


def bars(axes: Any, title: str, systems: Sequence[str], values: Mapping[str, Sequence[float]]) -> None:
    """Draw groups of bars: a group per system, a colour per series."""
    width = 0.8 / max(1, len(values))
    for index, (label, heights) in enumerate(values.items()):
        places = [place + index * width for place in range(len(systems))]
        axes.bar(places, heights, width, label=label)
    axes.set_xticks(
        [place + 0.4 - width / 2 for place in range(len(systems))], systems, rotation=30, ha="right"
    )
    axes.set_title(title)
    axes.legend()
    axes.grid(axis="y", alpha=0.3)
