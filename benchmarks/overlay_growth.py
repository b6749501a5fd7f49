"""The cost of a publication as publications or matching subscriptions grow; for benchmarks/overlay.py."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from overlay_runs import DELTA, simulate

from tidings.scenarios.file.schema import (
    IntAttribute,
    Overlay,
    Publisher,
    Scenario,
    SubscriberTable,
    TreeShape,
)
from tidings.scenarios.trace.reader import Trace


class Growth(NamedTuple):
    """The cost of publications, without that of an idle network.

    `ratio`: the time per publication (where subscriptions are doubled, per delivery) relative to the row before.
    """

    doubled: str
    publications: int
    subscriptions: int
    messages_per_publication: float
    publication_us: float
    delivery_us: float
    ratio: float | None


def growth(scale: float) -> Iterator[Growth]:
    count, doublings = round(1000 * scale), 2 if scale == 1 else 1
    rows = [growth_point("publications", count << doubling, 20) for doubling in range(doublings + 1)]
    yield from with_ratios(rows, lambda row: row.publication_us)
    rows = [growth_point("subscriptions", count, 20 << doubling) for doubling in range(doublings + 1)]
    yield from with_ratios(rows, lambda row: row.delivery_us)


def growth_point(doubled: str, publications: int, subscriptions: int) -> Growth:
    idle, busy = (simulate(growth_scenario(count, subscriptions)) for count in (0, publications))
    cpu_us = 1e6 * (busy.publishing_cpu_s - idle.publishing_cpu_s)
    messages = all_messages(busy.trace) - all_messages(idle.trace)
    deliveries = busy.trace.delivered.num_rows
    if deliveries != publications * subscriptions:
        raise SystemExit(f"growth: {deliveries} deliveries of {publications * subscriptions}")
    return Growth(
        doubled,
        publications,
        subscriptions,
        messages / publications,
        cpu_us / publications,
        cpu_us / deliveries,
        None,
    )


def with_ratios(rows: Sequence[Growth], unit_cost: Callable[[Growth], float]) -> Iterator[Growth]:
    yield rows[0]
    for before, row in pairwise(rows):
        yield row._replace(ratio=unit_cost(row) / unit_cost(before))


def growth_scenario(publications: int, subscriptions: int, brokers: int = 40) -> Scenario:
    """Return the scenario: subscribers with different filters that all match, spread evenly; four publishers."""
    return Scenario(
        seed=1,
        duration_s=20.0,
        settle_s=10.0,
        overlay=Overlay(delta=DELTA, shape=TreeShape(brokers=brokers, degree=3)),
        publishers=tuple(
            Publisher(
                name=f"p{number}",
                at=f"b{11 * number}",
                count=publications // 4,
                rate_hz=publications / 40 or 1.0,
                start_s=5.0,
                arrival="periodic",
                attributes={"x": IntAttribute(low=0, high=9)},
            )
            for number in range(4)
        ),
        subscribers=tuple(
            SubscriberTable(name=f"s{number}", at=f"b{7 * number % brokers}", filter=f"x > {-1 - number}")
            for number in range(subscriptions)
        ),
    )


def all_messages(trace: Trace) -> int:
    return int(sum(trace.traffic["messages"].to_pylist()))
