"""The plots of the ordering study: one panel per figure of the paper and speed of the servers."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from tidings.studies.estimates import StudyRows
from tidings.studies.ordering.load import GEOGRAPHIC, SHAPES, SITES, SPRAY
from tidings.studies.study import Panel, Place

PAPER_SIZE = {SPRAY: 46.0, GEOGRAPHIC: 17.0}
"""Mean entries with 10 topics for each of 10,000 clients: figure 7's only numbers."""
PATTERNS = {GEOGRAPHIC: "geographic, 0.901", SPRAY: "spray-and-diffuse, 0.349"}
VARIANTS = {
    "different topics": {"precedence": "identifiers", "drawn": "different"},
    "drawn with repetition": {"precedence": "identifiers", "drawn": "repeated"},
    "placed": {"precedence": "placed", "drawn": "different"},
}
SPEEDS = {"tidings": "", "prototype": ", servers as slow as the paper's"}
LATENCY = ("latency_mean_ms", "mean latency of a timestamp, ms")
THROUGHPUT = ("throughput_per_s", "timestamps per second")
RATE = ("rate_per_s", "timestamp requests per second")
SUBSCRIPTIONS = ("subscriptions", "subscribed topics in total")


def panels_of(table: pa.Table) -> list[Panel]:
    results = StudyRows(table)
    return [
        *size_panels(results),
        *over(results, "fig 9", "fig9_latency", RATE, LATENCY, topics_per_client=10),
        *over(results, "fig 10", "fig10_throughput", RATE, THROUGHPUT, topics_per_client=10),
        outgoing(results, "fig 11", "fig11_outgoing_geographic", GEOGRAPHIC),
        outgoing(results, "fig 12", "fig12_outgoing_spray", SPRAY),
        *over(results, "fig 13", "fig13_latency", SUBSCRIPTIONS, LATENCY, rate_per_s=5000),
        *over(results, "fig 14", "fig14_throughput", SUBSCRIPTIONS, THROUGHPUT, rate_per_s=5000),
    ]


def size_panels(results: StudyRows) -> Iterator[Panel]:
    for figure, name, column, label in (
        ("fig 7", "fig7_size", "size_mean", "mean entries of a timestamp"),
        ("fig 8", "fig8_deviation", "size_deviation", "standard deviation of the entries, over topics"),
    ):
        series = {
            PATTERNS[shape]: results.series("subscriptions", column, part="sizes", shape=shape)
            for shape in SHAPES
        }
        paper: dict[str, list[Place]] = {}
        if column == "size_mean":
            paper = {PATTERNS[shape]: [(100_000.0, PAPER_SIZE[shape])] for shape in SHAPES}
        title = "Size of timestamps, 10,000 clients, 1,000 topics"
        yield Panel(
            name,
            title,
            SUBSCRIPTIONS[1],
            label,
            series,
            log_x=True,
            log_y=True,
            paper=paper,
            figure=figure,
        )


def over(
    results: StudyRows, figure: str, name: str, x: tuple[str, str], y: tuple[str, str], **where: object
) -> Iterator[Panel]:
    for speed, slow in SPEEDS.items():
        series = {}
        for shape in reversed(SHAPES):
            for variant, columns in VARIANTS.items():
                places = results.series(
                    x[0], y[0], part="sites", speed=speed, shape=shape, **columns, **where
                )
                if places:
                    series[f"{PATTERNS[shape]}: {variant}"] = places
        is_rate = x == RATE
        yield Panel(
            name if speed == "tidings" else f"{name}_{speed}",
            f"{y[1][0].upper()}{y[1][1:]}, five sites{slow}",
            x[1],
            y[1],
            series,
            log_x=is_rate,
            log_y=is_rate and y == THROUGHPUT,
            figure=figure,
        )


def outgoing(results: StudyRows, figure: str, name: str, shape: float) -> Panel:
    series: dict[str, list[Place]] = {}
    for variant in ("different topics", "drawn with repetition"):
        chosen = {
            "part": "sites",
            "speed": "tidings",
            "shape": shape,
            "rate_per_s": 5000,
            "topics_per_client": 10,
        }
        chosen |= VARIANTS[variant]
        for what, column in (
            ("outgoing bytes", "outgoing"),
            ("requests that need other servers", "climbing"),
        ):
            means = [results.mean(f"{column}_{server}", **chosen) for server in range(1, SITES + 1)]
            series[f"{what}, {variant}"] = [
                (f"server {server}", mean.mean, mean.half) for server, mean in enumerate(means, start=1)
            ]
    return Panel(name, f"Outgoing bandwidth, {PATTERNS[shape]}", "", "percent", series, figure=figure)
