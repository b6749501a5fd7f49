"""Figures 7 to 14 of the ordering paper: sizes of stamps, and five sites of sequencers under load.

Sizes come from the groups that subscriptions make (figures 7 and 8). Latency, throughput and the bandwidth between
sites (9 to 14) come from the product's servers and publishers in virtual time (`sites.py`), at two speeds: `tidings`,
as measured with live processes, and `prototype`, as slow as the paper's. A client's topics are drawn as in the paper, a
number of different ones, and for comparison with repetition, which gives fewer.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import numpy as np
import pyarrow as pa

from tidings.studies.ordering.claims import claims_of
from tidings.studies.ordering.load import SHAPES, TOPICS, draw_in_order, entries_by_topic, pareto
from tidings.studies.ordering.panels import panels_of
from tidings.studies.ordering.runs import Setting, run_sites
from tidings.studies.study import Panel, PaperClaim, Point, Row, Study

SIZE_CLIENTS = 10_000
SIZE_COUNTS = (1, 2, 5, 10, 20, 50, 100, 200, 500)
"""Topics per client: 10,000 to 2,000,000 subscriptions as in the paper, and one more value to show the curve's end."""
SITE_CLIENTS = 1000
VARIANTS = (
    {"speed": "tidings", "precedence": "identifiers", "drawn": "different"},
    {"speed": "tidings", "precedence": "identifiers", "drawn": "repeated"},
    {"speed": "tidings", "precedence": "placed", "drawn": "different"},
    {"speed": "prototype", "precedence": "identifiers", "drawn": "repeated"},
)
USUAL_RATE = 5000
USUAL_COUNT = 10
BEFORE_PEAK = 2500
"""Only servers with a limit near this rate need a quick run here, to show where their peak begins."""
QUICK_RATES = (1000, BEFORE_PEAK, USUAL_RATE, 10_000)
RATES = (500, 1000, 2000, 3000, 4000, USUAL_RATE, 6000, 7000, 8000, 9000, 10_000)
BEYOND = (20_000, 40_000, 80_000)
"""Rates at which servers as fast as ours reach their limit; run for a shorter time."""
QUICK_COUNTS = (5, 40)
COUNTS = (5, 20, 30, 50, 70, 100)
SEEDS = range(1, 11)
QUICK_SEEDS, MORE_QUICK_SEEDS = range(1, 5), range(1, 9)
"""Who shares a topic with whom varies much with the seed: more seeds where verdicts need them."""

PARAMETERS = [
    ("part", pa.string()),
    ("seed", pa.int64()),
    ("shape", pa.float64()),
    ("topics_per_client", pa.int64()),
    ("subscriptions", pa.int64()),
    ("drawn", pa.string()),
    ("precedence", pa.string()),
    ("speed", pa.string()),
    ("rate_per_s", pa.int64()),
]
SIZES = [("size_mean", pa.float64()), ("size_deviation", pa.float64()), ("size_over_events", pa.float64())]
PERFORMANCE = [
    ("latency_mean_ms", pa.float64()),
    ("latency_p99_ms", pa.float64()),
    ("throughput_per_s", pa.float64()),
    ("local_percent", pa.float64()),
    ("near_percent", pa.float64()),
    ("hops", pa.float64()),
    ("entries", pa.float64()),
    ("busiest_percent", pa.float64()),
]
BY_SERVER = [
    (f"{what}_{server}", pa.float64()) for what in ("outgoing", "climbing") for server in range(1, 6)
]


class OrderingStudy(Study):
    name = "ordering"
    title = "Efficient notification ordering for geo-distributed publish/subscribe, figures 7 to 14"
    schema = pa.schema([*PARAMETERS, *SIZES, *PERFORMANCE, *BY_SERVER])

    def points(self, quick: bool) -> list[Point]:
        found: list[Point] = [
            {"part": "sizes", "shape": shape, "clients": SIZE_CLIENTS, "topics": TOPICS, "seed": seed}
            for shape in SHAPES
            for seed in (QUICK_SEEDS if quick else SEEDS)
        ]
        rates = QUICK_RATES if quick else RATES + BEYOND
        loads = [(rate, USUAL_COUNT) for rate in rates]
        loads += [(USUAL_RATE, count) for count in (QUICK_COUNTS if quick else COUNTS)]
        for variant in VARIANTS:
            for rate, count in loads:
                slow = variant["speed"] == "prototype"
                if (rate in BEYOND and slow) or (rate == BEFORE_PEAK and not slow):
                    continue
                for seed in seeds_of(variant, count, quick):
                    found += [site_point(variant, shape, rate, count, seed, quick) for shape in SHAPES]
        return found

    def run(self, point: Point) -> list[Row]:
        if point["part"] == "sizes":
            return size_rows(point)
        return [site_row(point)]

    def cost(self, point: Point) -> float:
        if point["part"] == "sizes":
            return 6.0
        events = point["rate_per_s"] * point["duration_s"]
        return float(0.3 + 1e-4 * events * (1 + point["topics_per_client"] / 25))

    def panels(self, table: pa.Table, quick: bool) -> list[Panel]:
        return panels_of(table)

    def claims(self, table: pa.Table, quick: bool) -> list[PaperClaim]:
        return claims_of(table)


def seeds_of(variant: dict[str, str], count: int, quick: bool) -> range:
    if not quick:
        return SEEDS
    slow = variant["speed"] == "prototype"
    compared = count == USUAL_COUNT or (slow and count > USUAL_COUNT)
    compared = compared and variant["precedence"] == "identifiers"
    return MORE_QUICK_SEEDS if compared else QUICK_SEEDS


def site_point(variant: dict[str, str], shape: float, rate: int, count: int, seed: int, quick: bool) -> Point:
    warm_up_s, duration_s = (0.7, 1.3) if quick or rate in BEYOND else (2.0, 10.0)
    setting = Setting(
        shape=shape,
        topics=TOPICS,
        clients=SITE_CLIENTS,
        topics_per_client=count,
        **variant,
        rate_per_s=rate,
        duration_s=duration_s,
        warm_up_s=warm_up_s,
        seed=seed,
    )
    return {"part": "sites", **asdict(setting)}


def size_rows(point: Point) -> list[Row]:
    """Return the sizes; a client with n topics has the first n of those that it would have with more."""
    topics, clients = point["topics"], point["clients"]
    chances = pareto(point["shape"], topics)
    counts = [count for count in SIZE_COUNTS if count <= topics]
    drawn = draw_in_order(chances, clients, counts[-1], np.random.default_rng(point["seed"]))
    rows = []
    for count in counts:
        entries = entries_by_topic(drawn[:, :count], topics)
        rows.append(
            {
                "part": "sizes",
                "seed": point["seed"],
                "shape": point["shape"],
                "topics_per_client": count,
                "subscriptions": count * clients,
                "size_mean": float(entries.mean()),
                "size_deviation": float(entries.std()),
                "size_over_events": float(entries @ chances),
            }
        )
    return rows


def site_row(point: Point) -> Row:
    setting = Setting(**{name: value for name, value in point.items() if name != "part"})
    found: dict[str, Any] = asdict(run_sites(setting))
    for what in ("outgoing", "climbing"):
        shares = found.pop(f"{what}_percent")
        found.update({f"{what}_{server}": share for server, share in enumerate(shares, start=1)})
    shown = {name: point[name] for name, _ in PARAMETERS if name in point}
    return {**shown, "subscriptions": setting.clients * setting.topics_per_client, **found}


STUDY = OrderingStudy()
