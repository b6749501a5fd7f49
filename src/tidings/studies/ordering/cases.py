"""The cases that claims of the ordering study compare, and what is to be said of how they differ from the paper's."""

from __future__ import annotations

from typing import Any

from tidings.studies.estimates import Estimate, StudyRows, difference

MAX_LATENCY_MS = 300.0
PEAK_RATE = 5000
PAPER_PEAK = 4000
TOP_RATE = 10_000
PAPER_COUNT = 200
"""Topics per client at the right end of figure 7; with more both curves are at their maximum."""
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

VIRTUAL = "our servers in virtual time, each message at the cost measured with live processes"
FITTED = (
    "no independent test: 1 ms per message was chosen, among four values tried, to give the paper's peak, and that "
    "clients ask one by one and draw topics with repetition was assumed because it fits; peak and latency of the "
    "geographic pattern follow from that almost by arithmetic (1,000 clients / 4,400 per second)"
)
READING = (
    "the law (Pareto) and the way to draw (different topics) are those of six readings that come nearest to the "
    "paper's two numbers (benchmarks/README.md)"
)
STRAY = (
    "two clients that share a topic of one site and one of another put the two into one group, and with different "
    "topics per client that happens to popular ones; a client's topics drawn with repetition are fewer and nearer"
)
RELAYED = (
    "a request climbs through every server between, for with the paper's shortcuts events can wait for each other for "
    "ever; so servers in the middle forward what others began"
)


def gap(results: StudyRows, column: str, more: float, less: float, **where: Any) -> Estimate:
    return difference(
        results.by_seed(column, shape=more, **where), results.by_seed(column, shape=less, **where)
    )
