"""Claims of the ordering paper about bandwidth between sites and the number of subscriptions: figures 11 to 14."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tidings.studies.estimates import (
    ClaimVerdict,
    Estimate,
    StudyRows,
    above,
    below,
    both,
    claimed,
    difference,
    estimate,
    sure,
)
from tidings.studies.ordering.cases import (
    FITTED,
    LITERAL,
    NEGLIGIBLE_PERCENT,
    PEAK_RATE,
    PLACED,
    PROTOTYPE,
    RELAYED,
    REPEATED,
    STRAY,
    TEN,
    TOLERANCE,
    USUAL,
    VIRTUAL,
    gap,
)
from tidings.studies.ordering.load import GEOGRAPHIC, SPRAY
from tidings.studies.study import PaperClaim


def outgoing(results: StudyRows) -> Iterator[PaperClaim]:
    literal = {"shape": GEOGRAPHIC, **LITERAL, **USUAL}
    sent, began = by_server(results, "outgoing", **literal), by_server(results, "climbing", **literal)
    repeated = by_server(results, "outgoing", shape=GEOGRAPHIC, **REPEATED, **USUAL)
    details = f"{shares(sent)} of the bytes and {shares(began)} of the requests to each; "
    details += f"with topics drawn with repetition {shares(repeated)} of the bytes"
    yield claimed(
        "fig 11",
        "geographic: only servers 4 and 5 forward timestamps; 3 hardly any, 1 and 2 none",
        "0, 0, ~0, some, some",
        details,
        both(
            *(below(found, NEGLIGIBLE_PERCENT) for found in sent[:3]),
            *(above(found, NEGLIGIBLE_PERCENT) for found in sent[3:]),
        ),
        why=f"{RELAYED}; {STRAY}",
    )
    yield claimed(
        "fig 11",
        "geographic: only timestamps for topics of servers 4 and 5 need other servers",
        "servers 4 and 5",
        shares(began) + " of the requests to each",
        both(
            *(below(found, NEGLIGIBLE_PERCENT) for found in began[:3]),
            *(above(found, NEGLIGIBLE_PERCENT) for found in began[3:]),
        ),
        why=STRAY,
    )
    yield more_with_spray(results)


def by_server(results: StudyRows, column: str, **where: Any) -> list[Estimate]:
    return [results.mean(f"{column}_{server}", **where) for server in range(1, 6)]


def shares(found: list[Estimate]) -> str:
    return ", ".join(f"{each.mean:.0f}" for each in found) + " %"


def more_with_spray(results: StudyRows) -> PaperClaim:
    gaps = [
        gap(results, f"outgoing_{server}", SPRAY, GEOGRAPHIC, **LITERAL, **USUAL) for server in range(1, 6)
    ]
    first = results.mean("outgoing_1", shape=SPRAY, **LITERAL, **USUAL).mean
    sent = by_server(results, "outgoing", shape=SPRAY, **LITERAL, **USUAL)
    repeated = by_server(results, "outgoing", shape=SPRAY, **REPEATED, **USUAL)
    return claimed(
        "fig 12",
        "spray-and-diffuse: every server but the first forwards considerably more than with geographic popularity",
        "considerably higher",
        f"{shares(sent)} of the bytes, {shares(gaps[1:])} points more at servers 2 to 5; "
        f"with topics drawn with repetition {shares(repeated)}",
        both(sure(first == 0), *(above(found, NEGLIGIBLE_PERCENT) for found in gaps[1:])),
        why=f"the geographic pattern forwards more than in the paper: {STRAY}",
    )


def counts_of(results: StudyRows) -> list[int]:
    return [
        count
        for count in results.distinct("topics_per_client", **LITERAL, rate_per_s=PEAK_RATE)
        if count >= TEN["topics_per_client"]
    ]


def growth(
    results: StudyRows, column: str, shape: float, chosen: dict[str, Any]
) -> tuple[Estimate, Estimate, Estimate]:
    """Return the estimate with 10 topics per client, with the most, and their difference."""
    last = counts_of(results)[-1]
    where = {"shape": shape, **chosen, "rate_per_s": PEAK_RATE}
    least, most = (results.by_seed(column, **where, topics_per_client=count) for count in (10, last))
    shared = sorted(least.keys() & most.keys())
    means = [estimate([found[seed] for seed in shared]) for found in (least, most)]
    return means[0], means[1], difference(most, least)


def steady(least: Estimate, more: Estimate) -> ClaimVerdict:
    """Check that a value changed by at most a tenth."""
    margin = TOLERANCE * least.mean
    return both(above(more, -margin), below(more, margin))


def latency_over_subscriptions(results: StudyRows) -> Iterator[PaperClaim]:
    last = counts_of(results)[-1]
    details = {}
    for name, chosen in (("different", LITERAL), ("repeated", REPEATED), ("placed", PLACED)):
        least, most, more = growth(results, "latency_mean_ms", GEOGRAPHIC, chosen)
        details[name] = f"{least.mean:.0f} to {most.mean:.0f} ms"
        if name == "different":
            verdict = steady(least, more)
    yield claimed(
        "fig 13",
        "geographic: the number of subscriptions does not affect latency",
        "no impact",
        f"{details['different']} from 10 to {last} topics per client; with topics drawn with repetition "
        f"{details['repeated']}, placed {details['placed']}",
        verdict,
        why=f"{STRAY}; the more topics per client, the more certain",
        note=VIRTUAL,
    )
    least, most, more = growth(results, "latency_mean_ms", SPRAY, LITERAL)
    yield claimed(
        "fig 13",
        "spray-and-diffuse: more subscriptions mean more sites per timestamp and a longer latency",
        "grows",
        f"{least.mean:.0f} to {most.mean:.0f} ms from 10 to {last} topics per client",
        above(more),
        note=VIRTUAL,
    )


def throughput_over_subscriptions(results: StudyRows) -> Iterator[PaperClaim]:
    last = counts_of(results)[-1]
    for shape, text, paper in (
        (GEOGRAPHIC, "geographic: the number of subscriptions does not affect throughput", "no impact"),
        (SPRAY, "spray-and-diffuse: more subscriptions mean a lower throughput", "falls"),
    ):
        least, most, more = growth(results, "throughput_per_s", shape, PROTOTYPE)
        own = [found.mean for found in growth(results, "throughput_per_s", shape, LITERAL)[:2]]
        yield claimed(
            "fig 14",
            text,
            paper,
            f"{least.mean:.0f} to {most.mean:.0f} timestamps/s from 10 to {last} topics per client; "
            f"at the speed of tidings {own[0]:.0f} to {own[1]:.0f} of {PEAK_RATE:,}",
            steady(least, more) if shape == GEOGRAPHIC else below(more),
            why=STRAY,
            note=FITTED,
        )
