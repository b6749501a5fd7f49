"""Measures how fast events are matched: the match index, a linear scan, and simple candidates.

    python benchmarks/matching.py [--quick] [--json] [--sizes 10000,100000] [--selectivities 0.0001]

Each contender is first checked against the others on a sample. Rates are of one core, in processor time, so that other
work on the machine disturbs them less. Other guests of the same processor can still slow down whole stretches, so a
rate is the median of several stretches, and for the index the best stretch is shown, too. Memory is what the index's
bitmaps reserve.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
import time
from collections.abc import Callable
from itertools import pairwise
from statistics import median
from typing import Any

import numpy as np
from matching_candidates import CANDIDATES
from matching_workload import Workload, make_workload
from rich.console import Console
from rich.table import Table

from tidings.core.filters.matching.match_index import MatchIndex

SELECTIVITIES = (0.01, 0.0001)
STRETCHES = 15
SECONDS_PER_STRETCH = 0.3
CHANGES = 5_000
VERIFIED_EVENTS = 5
LINEAR = "linear scan, compiled closures"
INDEX = "MatchIndex"


CLOCK_EVERY = 50
"""Reading the clock for every event would distort the rates of the fastest contenders."""


def stretch_rates(match: Callable[[Any], list[int]], events: list[Any], stretches: int) -> list[float]:
    """Return events per second of processor time in each stretch, slowest first, after a warm-up."""
    for event in events[:20]:
        match(event)
    return sorted(rate_per_second(match, events, SECONDS_PER_STRETCH) for _ in range(stretches))


def rate_per_second(match: Callable[[Any], list[int]], events: list[Any], seconds: float) -> float:
    done, spent = 0, 0.0
    while spent < seconds:
        part = events[:CLOCK_EVERY]
        events = events[CLOCK_EVERY:] + part
        started = time.process_time()
        for event in part:
            match(event)
        spent += time.process_time() - started
        done += len(part)
    return done / spent


def measure(size: int, selectivity: float, stretches: int) -> dict[str, Any]:
    """Measure all contenders on one workload."""
    workload = make_workload(size, selectivity, events=1_000)
    patterns = workload.patterns()
    index: MatchIndex[int] = MatchIndex()
    started = time.process_time()
    for key, pattern in enumerate(patterns):
        index.add(key, pattern)
    insert_us = (time.process_time() - started) / size * 1e6
    gc.freeze()
    matched = sum(len(index.match(event)) for event in workload.events[:200]) / 200
    own_rates = stretch_rates(index.match, workload.events, stretches)
    rates = {INDEX: median(own_rates)}
    expected = [index.match(event) for event in workload.events[:VERIFIED_EVENTS]]

    def scan(event: dict[str, Any]) -> list[int]:
        return [key for key, pattern in enumerate(patterns) if pattern.matches(event)]

    verify(LINEAR, [scan(event) for event in workload.events[:VERIFIED_EVENTS]], expected)
    rates[LINEAR] = linear_rate(scan, workload)
    codes = workload.codes.tolist()
    for name, build in CANDIDATES.items():
        match = with_keys(build(workload.intervals).match, list(index))
        verify(name, [match(row) for row in codes[:VERIFIED_EVENTS]], expected)
        rates[name] = median(stretch_rates(match, codes, stretches))
        del match
    return {
        "size": size,
        "selectivity": selectivity,
        "matched_per_event": matched,
        "events_per_second": rates,
        "best_stretch": own_rates[-1],
        "insert_us": insert_us,
        "change_us": change_us(index, patterns),
        "memory_bytes": index.size_bytes,
    }


def with_keys(match: Callable[[list[int]], list[int]], keys: list[int]) -> Callable[[list[int]], list[int]]:
    """Make a candidate return keys, as the index does: touching so many objects is not free."""
    return lambda codes: list(map(keys.__getitem__, match(codes)))


def linear_rate(scan: Callable[[dict[str, Any]], list[int]], workload: Workload) -> float:
    started = time.process_time()
    for event in workload.events[:3]:
        scan(event)
    return 3 / (time.process_time() - started)


def verify(name: str, found: list[list[int]], expected: list[list[int]]) -> None:
    if found != expected:
        sys.exit(f"{name} does not agree with {INDEX}")


def change_us(index: MatchIndex[int], patterns: list[Any]) -> dict[str, float]:
    """Return microseconds per removal from and per insertion into the full index."""
    chosen = np.random.default_rng(3).permutation(len(patterns))[:CHANGES].tolist()
    spent = {}
    for name, change in (("remove", index.remove), ("insert", lambda key: index.add(key, patterns[key]))):
        started = time.process_time()
        for key in chosen:
            change(key)
        spent[name] = (time.process_time() - started) / len(chosen) * 1e6
    return spent


def report(results: list[dict[str, Any]], console: Console) -> None:
    table = Table(title="events/s on one core: 8 attributes, conjunctions of 2-4 predicates")
    table.add_column("contender")
    for result in results:
        table.add_column(f"{result['size']:,}\n{result['selectivity']:.2%}", justify="right")
    for name in results[0]["events_per_second"]:
        table.add_row(name, *(f"{result['events_per_second'][name]:,.0f}" for result in results))
    table.add_row(f"({INDEX}, best stretch)", *(f"{result['best_stretch']:,.0f}" for result in results))
    table.add_section()
    table.add_row("matched per event", *(f"{result['matched_per_event']:,.1f}" for result in results))
    table.add_row("insert all, us each", *(f"{result['insert_us']:.0f}" for result in results))
    table.add_row("insert one, us", *(f"{result['change_us']['insert']:.0f}" for result in results))
    table.add_row("remove one, us", *(f"{result['change_us']['remove']:.0f}" for result in results))
    table.add_row("bitmaps, MB", *(f"{result['memory_bytes'] / 1e6:.0f}" for result in results))
    console.print(table)
    for selectivity in dict.fromkeys(result["selectivity"] for result in results):
        console.print(growth(selectivity, [r for r in results if r["selectivity"] == selectivity]))
    console.print(ratios(results))


def growth(selectivity: float, results: list[dict[str, Any]]) -> str:
    steps = []
    for small, large in pairwise(results):
        cost = small["events_per_second"][INDEX] / large["events_per_second"][INDEX]
        steps.append(f"x{large['size'] / small['size']:.0f} filters cost x{cost:.1f}")
    return f"growth at {selectivity:.2%}: " + (", ".join(steps) or "one size only")


def ratios(results: list[dict[str, Any]]) -> str:
    parts = []
    for result in results:
        rates = result["events_per_second"]
        best = max(CANDIDATES, key=rates.__getitem__)
        parts.append(
            f"{result['size']:,} at {result['selectivity']:.2%}: x{rates[INDEX] / rates[LINEAR]:,.0f} linear, "
            f"x{rates[INDEX] / rates[best]:.2f} {best}"
        )
    return "ratios: " + "; ".join(parts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="10,000 and 50,000 filters, short runs")
    parser.add_argument("--json", action="store_true", help="print the numbers as JSON")
    parser.add_argument("--sizes", default="", help="numbers of filters, separated by commas")
    parser.add_argument("--selectivities", default="", help="shares of filters to match, separated by commas")
    options = parser.parse_args()
    sizes = [10_000, 50_000] if options.quick else [10_000, 100_000, 1_000_000]
    if options.sizes:
        sizes = [int(size) for size in options.sizes.split(",")]
    stretches = 1 if options.quick else STRETCHES
    selectivities = [float(share) for share in options.selectivities.split(",") if share] or SELECTIVITIES
    results = []
    for selectivity in selectivities:
        for size in sizes:
            results.append(measure(size, selectivity, stretches))
            gc.unfreeze()
            gc.collect()
    if options.json:
        print(json.dumps(results, indent=2))
    else:
        report(results, Console(width=160))


if __name__ == "__main__":
    main()
