"""Claims of the ordering paper about latency and throughput over the rate of requests: figures 9 and 10."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from tidings.studies.estimates import Estimate, StudyRows, above, below, both, claimed, sure
from tidings.studies.ordering.cases import (
    FITTED,
    LITERAL,
    MAX_LATENCY_MS,
    PAPER_PEAK,
    PEAK_RATE,
    PLACED,
    PROTOTYPE,
    REPEATED,
    STRAY,
    TEN,
    TOLERANCE,
    TOP_RATE,
    USUAL,
    VIRTUAL,
    gap,
)
from tidings.studies.ordering.load import GEOGRAPHIC, SHAPES, SPRAY
from tidings.studies.ordering.panels import PATTERNS
from tidings.studies.study import PaperClaim


def latency(results: StudyRows) -> Iterator[PaperClaim]:
    claim = partial(claimed, "fig 9")
    rates = [rate for rate in results.distinct("rate_per_s", **LITERAL) if rate <= TOP_RATE]
    under = partial(worst_over, results, "latency_mean_ms", rates, shape=GEOGRAPHIC, **TEN)
    ours, repeated, slow, placed = (under(**chosen) for chosen in (LITERAL, REPEATED, PROTOTYPE, PLACED))
    yield claim(
        f"geographic: mean latency stays small up to {TOP_RATE:,} events/s",
        f"less than {MAX_LATENCY_MS:.0f} ms",
        f"at most {ours.text(0, ' ms')}; with topics drawn with repetition {repeated.mean:.0f} ms, "
        f"placed {placed.mean:.0f} ms",
        below(ours, MAX_LATENCY_MS),
        note=VIRTUAL,
    )
    yield claim(
        "geographic: the same with servers as slow as the prototype",
        f"less than {MAX_LATENCY_MS:.0f} ms",
        f"at most {slow.text(0, ' ms')}",
        below(slow, MAX_LATENCY_MS),
        note=FITTED,
    )
    yield pattern_gap(results, rates)
    local = results.mean("local_percent", shape=GEOGRAPHIC, **LITERAL, **USUAL)
    others = [
        results.mean("local_percent", shape=GEOGRAPHIC, **chosen, **USUAL).mean
        for chosen in (REPEATED, PLACED)
    ]
    yield claim(
        "geographic: most timestamps are made by one server",
        "most",
        f"{local.text(0, ' %')}; with topics drawn with repetition {others[0]:.0f} %, placed {others[1]:.0f} %",
        above(local, 50.0),
        why=STRAY,
    )
    near = results.mean("near_percent", shape=GEOGRAPHIC, **LITERAL, **USUAL)
    yield claim("geographic: most requests use a short link", "most", near.text(0, " %"), above(near, 50.0))


def worst_over(results: StudyRows, column: str, rates: list[int], **where: Any) -> Estimate:
    """Return the estimate at the rate with the highest mean."""
    return max(
        (results.mean(column, rate_per_s=rate, **where) for rate in rates), key=lambda found: found.mean
    )


def pattern_gap(results: StudyRows, rates: list[int]) -> PaperClaim:
    gaps = [
        gap(results, "latency_mean_ms", SPRAY, GEOGRAPHIC, **LITERAL, **TEN, rate_per_s=rate)
        for rate in rates
    ]
    repeated = gap(results, "latency_mean_ms", SPRAY, GEOGRAPHIC, **REPEATED, **USUAL)
    least = min(gaps, key=lambda found: found.mean)
    return claimed(
        "fig 9",
        "spray-and-diffuse takes longer because it involves long links",
        "higher at every rate",
        f"longer by at least {least.text(0, ' ms')}; with topics drawn with repetition {repeated.mean:.0f} ms",
        both(*map(above, gaps)),
        note=VIRTUAL,
    )


def throughput(results: StudyRows) -> Iterator[PaperClaim]:
    claim = partial(claimed, "fig 10")
    found = results.mean("throughput_per_s", shape=GEOGRAPHIC, **LITERAL, **USUAL)
    fastest = worst_over(
        results,
        "throughput_per_s",
        results.distinct("rate_per_s", **LITERAL),
        shape=GEOGRAPHIC,
        **LITERAL,
        **TEN,
    )
    yield claim(
        f"geographic: at {PEAK_RATE:,} requests/s, the servers make more than {PAPER_PEAK:,} timestamps/s",
        f"more than {PAPER_PEAK:,}",
        f"{found.text(0)}, and {fastest.mean:.0f} at higher rates",
        above(found, PAPER_PEAK),
        note=f"{VIRTUAL}; this is what was requested in that time, not the servers' limit",
    )
    for shape in reversed(SHAPES):
        yield peak(results, shape)
    less = gap(results, "throughput_per_s", GEOGRAPHIC, SPRAY, **PROTOTYPE, **USUAL)
    yield claim(
        "throughput is higher with geographic popularity than with spray-and-diffuse",
        "best with geographic popularity",
        f"higher by {less.text(0, '/s')}",
        above(less),
        note=f"{FITTED}; at the speed of tidings both keep up with the requests",
    )


def peak(results: StudyRows, shape: float) -> PaperClaim:
    rates = [rate for rate in results.distinct("rate_per_s", **PROTOTYPE) if rate <= TOP_RATE]
    means = {
        rate: results.mean("throughput_per_s", shape=shape, **PROTOTYPE, **TEN, rate_per_s=rate).mean
        for rate in rates
    }
    enough = (1 - TOLERANCE) * max(means.values())
    reached = min(rate for rate, mean in means.items() if mean >= enough)
    return claimed(
        "fig 10",
        f"{PATTERNS[shape]}: the peak is at {PEAK_RATE:,} requests/s",
        f"peak at {PEAK_RATE:,}",
        ", ".join(f"{mean:.0f} at {rate:,}" for rate, mean in means.items()),
        sure(reached == PEAK_RATE),
        why=f"within a tenth of the maximum from {reached:,} requests/s on",
        note=f"{FITTED}; queues here lose nothing, so throughput does not fall beyond the peak",
    )
