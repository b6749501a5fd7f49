"""Writes a plan into a directory: the groups, the sizes with a figure, and a summary."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tidings.core.errors import PipelineError
from tidings.extras import need
from tidings.spark.plan.planning import OrderPlan
from tidings.spark.plan.sizes import histogram

if TYPE_CHECKING:
    from matplotlib.figure import Figure

GROUPS = pa.schema(
    [
        pa.field("rank", pa.int64(), nullable=False),
        pa.field("topic", pa.string(), nullable=False),
        pa.field("site", pa.string(), nullable=False),
        pa.field("subscribers", pa.int64(), nullable=False),
        pa.field("weight", pa.float64(), nullable=False),
        pa.field("entries", pa.int64(), nullable=False),
        pa.field("local", pa.bool_(), nullable=False),
        pa.field("group", pa.list_(pa.field("element", pa.string(), nullable=False)), nullable=False),
    ]
)
"""One row per topic, by falling precedence; `group` leaves out the topic itself."""
SIZES = pa.schema(
    [
        pa.field("entries", pa.int64(), nullable=False),
        pa.field("topics", pa.int64(), nullable=False),
        pa.field("weight", pa.float64(), nullable=False),
    ]
)


def write_plan(plan: OrderPlan, directory: Path) -> list[str]:
    """Write the files, and return their names."""
    need("the figure of a plan", "spark", "matplotlib", error=PipelineError)  # before anything is written
    directory.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(group_rows(plan), schema=GROUPS), directory / "groups.parquet")
    pq.write_table(pa.Table.from_pylist(size_rows(plan), schema=SIZES), directory / "sizes.parquet")
    text = json.dumps(plan.summary(), indent=2, ensure_ascii=False)
    (directory / "plan.json").write_text(text + "\n", encoding="utf-8")
    names = ["groups.parquet", "sizes.parquet", "plan.json"]
    if len(plan.entries):
        draw_sizes(plan, directory)
        names += ["sizes.png", "sizes.svg"]
    return names


def group_rows(plan: OrderPlan) -> list[dict[str, Any]]:
    texts, planned = plan.entries.texts, plan.planned
    rank_of = {number: rank for rank, number in enumerate(planned.topics)}
    subscribers, entries = plan.counted.counts.subscribers, plan.stamp_entries
    return [
        {
            "rank": rank,
            "topic": texts[number],
            "site": plan.sites.names[planned.sites[rank]],
            "subscribers": int(subscribers[number]),
            "weight": float(plan.weights[number]),
            "entries": int(entries[number]),
            "local": planned.is_local[rank],
            "group": [
                texts[other]
                for other in sorted(np.flatnonzero(plan.groups[number]).tolist(), key=rank_of.__getitem__)
            ],
        }
        for rank, number in enumerate(planned.topics)
    ]


def size_rows(plan: OrderPlan) -> list[dict[str, Any]]:
    rows = histogram(plan.stamp_entries, plan.weights)
    return [{"entries": entries, "topics": topics, "weight": weight} for entries, topics, weight in rows]


def draw_sizes(plan: OrderPlan, directory: Path) -> None:
    """Draw the share of topics, and of publications, whose stamps have at most a given number of entries."""
    from matplotlib import rc_context
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    rows = histogram(plan.stamp_entries, plan.weights)
    sizes = [entries for entries, _, _ in rows]
    with rc_context({"svg.hashsalt": "tidings", "font.size": 9}):
        figure = Figure(figsize=(6.4, 4.0), layout="constrained")
        FigureCanvasAgg(figure)
        axes = figure.add_subplot()
        _draw_share(axes, sizes, [topics for _, topics, _ in rows], "topics")
        if plan.weights.sum():
            label = "publications" if plan.weighted_by == "publications" else "topics, by subscribers"
            _draw_share(axes, sizes, [weight for _, _, weight in rows], label)
        axes.set_xlabel("entries of a timestamp")
        axes.set_ylabel("share with at most this many")
        axes.set_ylim(0, 1.02)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.grid(alpha=0.3)
        axes.legend(loc="lower right")
        _save(figure, directory)


def _draw_share(axes: Any, sizes: list[int], amounts: list[float] | list[int], label: str) -> None:
    shares = np.cumsum(amounts) / np.sum(amounts)
    axes.step(sizes, shares, where="post", marker=".", label=label)


def _save(figure: Figure, directory: Path) -> None:
    """Save the figure without dates: the same plan gives the same files."""
    figure.savefig(directory / "sizes.png", dpi=150, metadata={"Software": None})
    figure.savefig(directory / "sizes.svg", metadata={"Date": None})
