"""The cases that claims of the ordering study compare, and notes on how they differ from the paper's."""

from __future__ import annotations

from typing import Any

from tidings.studies.estimates import Estimate, StudyRows, difference

MAX_LATENCY_MS = 300.0
PEAK_RATE = 5000
PAPER_PEAK = 4000
TOP_RATE = 10_000
PAPER_COUNT = 200
"""Topics per client at the right end of figure 7; beyond it both curves are at their maximum."""
TOLERANCE = 0.1
"""'About as much' is within a tenth."""
NEGLIGIBLE_PERCENT = 5.0
OURS: dict[str, Any] = {"part": "sites", "speed": "tidings", "precedence": "identifiers"}
LITERAL = {**OURS, "drawn": "different"}
REPEATED = {**OURS, "drawn": "repeated"}
PLACED = {**LITERAL, "precedence": "placed"}
PROTOTYPE = {**REPEATED, "speed": "prototype"}
TEN: dict[str, Any] = {"topics_per_client": 10}
USUAL = {**TEN, "rate_per_s": PEAK_RATE}

VIRTUAL = "our servers in virtual time, with the cost per message measured with live processes"
FITTED = (
    "not an independent test: of four values, 1 ms per message was chosen because it gives the paper's peak, and we "
    "assumed that clients wait for each answer and draw topics with repetition because that fits; peak and latency of "
    "the geographic pattern follow almost by arithmetic (1,000 clients / 4,400 per second)"
)
READING = (
    "of six readings, this law (Pareto) and this way to draw (different topics) come closest to the paper's two "
    "numbers (benchmarks/README.md)"
)
STRAY = (
    "two clients that share a topic of one site and one of another put both into one group; with different topics per "
    "client that happens to popular topics, while topics drawn with repetition are fewer and closer"
)
RELAYED = (
    "a request climbs through every server in between, because with the paper's shortcuts events can wait for each "
    "other forever; so servers in the middle forward what others began"
)


def gap(results: StudyRows, column: str, more: float, less: float, **where: Any) -> Estimate:
    return difference(
        results.by_seed(column, shape=more, **where), results.by_seed(column, shape=less, **where)
    )
