"""The plots of the partitions study: figures 9 to 12 of its paper, a panel per fanout."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tidings.studies.estimates import StudyRows
from tidings.studies.partitions.expected import (
    BROKERS,
    DELIVERY_BROKERS,
    DELTAS,
    DISCONNECTED,
    FANOUTS,
)
from tidings.studies.study import Panel, Place


def panels(results: StudyRows) -> list[Panel]:
    return [
        *figure_9(results),
        *figure_10(results),
        *figure_11(results),
        *figure_12(results),
    ]


def over_failures(results: StudyRows, delta: int, **where: Any) -> list[Place]:
    found: list[Place] = []
    for failures in results.distinct("failures", **where):
        mean = results.mean("value", failures=failures, delta=delta, **where)
        if mean.mean == mean.mean:
            found.append((float(failures), mean.mean, mean.half))
    return found


def complement(places: list[Place]) -> list[Place]:
    """Return 100 minus each percentage."""
    return [(place[0], 100 - place[1], *place[2:]) for place in places]


def figure_9(results: StudyRows) -> Iterator[Panel]:
    for fanout in FANOUTS:
        where = {"kind": "graph", "brokers": BROKERS, "fanout": fanout, "quantity": "connected"}
        series = {f"delta {delta}": complement(over_failures(results, delta, **where)) for delta in DELTAS}
        model: dict[str, list[Place]] = {
            f"delta {delta}, model": [
                (float(failures), float(by_delta[delta]))
                for (of, failures), by_delta in DISCONNECTED.items()
                if of == fanout
            ]
            for delta in DELTAS
        }
        yield Panel(
            f"unreachable_fanout_{fanout}",
            f"{BROKERS:,} brokers, fanout {fanout}",
            "failed brokers",
            "% of live pairs that cannot reach each other",
            {**series, **model},
            figure="fig 9",
        )


def figure_10(results: StudyRows) -> Iterator[Panel]:
    y_label = "% of live pairs"
    for fanout in FANOUTS:
        bound = {"kind": "graph", "brokers": DELIVERY_BROKERS, "fanout": fanout, "quantity": "connected"}
        yield Panel(
            f"connected_fanout_{fanout}",
            f"What the graph allows: {DELIVERY_BROKERS} brokers, fanout {fanout}",
            "failed brokers",
            f"{y_label} that reach each other",
            {f"delta {delta}": over_failures(results, delta, **bound) for delta in DELTAS[:4]},
            figure="fig 10",
        )
        for brokers in results.distinct("brokers", kind="simulation", fanout=fanout):
            run = {"kind": "simulation", "brokers": brokers, "fanout": fanout}
            series: dict[str, list[Place]] = {}
            for delta in DELTAS[:4]:
                series[f"delta {delta}"] = over_failures(results, delta, quantity="delivered", **run)
                series[f"delta {delta}, bound"] = over_failures(results, delta, quantity="bound", **run)
            yield Panel(
                f"delivered_{brokers}_fanout_{fanout}",
                f"Delivered while brokers are down: {brokers} brokers, fanout {fanout}",
                "failed brokers",
                f"{y_label} of an event and a subscriber",
                series,
                figure="fig 10",
            )


def figure_11(results: StudyRows) -> Iterator[Panel]:
    for fanout in FANOUTS:
        series = {
            f"delta {delta}": distribution(results, kind="neighbours", fanout=fanout, delta=delta)
            for delta in DELTAS[:4]
        }
        yield Panel(
            f"neighbourhoods_fanout_{fanout}",
            f"Sizes of neighbourhoods: {BROKERS:,} brokers, fanout {fanout}",
            "brokers within delta + 1",
            "share of brokers with at most this many",
            series,
            log_x=True,
            figure="fig 11",
        )


def figure_12(results: StudyRows) -> Iterator[Panel]:
    for fanout in FANOUTS:
        series = {
            f"{failures} failures": distribution(results, kind="sessions", fanout=fanout, failures=failures)
            for failures in results.distinct("failures", kind="sessions", fanout=fanout)
        }
        yield Panel(
            f"sessions_fanout_{fanout}",
            f"Active sessions at delta 3: {BROKERS:,} brokers, fanout {fanout}",
            "active sessions",
            "share of brokers with at most this many",
            series,
            figure="fig 12",
        )


def distribution(results: StudyRows, **where: Any) -> list[Place]:
    """Return the mean distribution over runs; a run without a broker at x keeps its share of the next lower x."""
    rows = results.rows(quantity="cdf", **where)
    by_seed: dict[int, dict[float, float]] = {}
    for row in rows:
        by_seed.setdefault(row["seed"], {})[row["x"]] = row["value"]
    found: list[Place] = []
    shares = dict.fromkeys(by_seed, 0.0)
    for x in sorted({row["x"] for row in rows}):
        shares = {seed: by_seed[seed].get(x, before) for seed, before in shares.items()}
        found.append((x, sum(shares.values()) / len(shares)))
    return found
