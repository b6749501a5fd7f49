"""What the ordering paper says of its figures 7 to 14, and whether the results bear it out."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import pyarrow as pa

from tidings.spark.reproduce.estimates import (
    Estimate,
    Results,
    Verdict,
    above,
    below,
    both,
    claimed,
    difference,
    sure,
    within,
)
from tidings.spark.reproduce.ordering_load import GEOGRAPHIC, SHAPES, SPRAY, TOPICS
from tidings.spark.reproduce.ordering_panels import PAPER_SIZE, PATTERNS
from tidings.spark.reproduce.study import Claim

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
    "servers slowed down to 1 ms per message, the one number fitted to the paper's peak; clients ask one by one, and "
    "their topics are drawn with repetition"
)
STRAY = (
    "two clients that share a topic of one site and one of another put the two into one group, and with different "
    "topics per client that happens to popular ones; a client's topics drawn with repetition are fewer and nearer"
)
RELAYED = (
    "a request climbs through every server between, without which stamps deadlock (S1 of the design's errata), so that "
    "servers in the middle forward what others began"
)
Found = Iterator[Claim]


def claims_of(table: pa.Table) -> list[Claim]:
    results = Results(table)
    return [
        *sizes(results),
        *latency(results),
        *throughput(results),
        *outgoing(results),
        *latency_over_subscriptions(results),
        *throughput_over_subscriptions(results),
    ]


def sizes(results: Results) -> Found:
    said = partial(claimed, "fig 7")
    at = partial(results.mean, "size_mean", part="sizes")
    for shape in SHAPES:
        found, paper = at(shape=shape, topics_per_client=10), PAPER_SIZE[shape]
        over_events = results.mean("size_over_events", part="sizes", shape=shape, topics_per_client=10).mean
        yield said(
            f"{PATTERNS[shape]}: the mean size at 10 topics per client, of the order of that number",
            f"{paper:.0f} entries",
            f"{found.text()}",
            within(found, paper * (1 - TOLERANCE), paper * (1 + TOLERANCE)),
            note=f"every topic counts once; where events follow the same popularity, their mean is {over_events:.0f}",
        )
    ones = [at(shape=shape, topics_per_client=1).mean for shape in SHAPES]
    yield said(
        "no entries at one topic per client",
        "0",
        f"{max(ones):g}",
        sure(max(ones) == 0),
        note="own entry not counted",
    )
    yield smaller_when_skewed(results)
    yield flattening(results)


def smaller_when_skewed(results: Results) -> Claim:
    counts = [
        count for count in results.distinct("topics_per_client", part="sizes") if 1 < count <= PAPER_COUNT
    ]
    by_seed = partial(results.by_seed, "size_mean", part="sizes")
    less = {
        count: difference(
            by_seed(shape=SPRAY, topics_per_client=count), by_seed(shape=GEOGRAPHIC, topics_per_client=count)
        )
        for count in counts
    }
    least = min(counts, key=lambda count: less[count].mean)
    return claimed(
        "fig 7",
        "the more skewed popularity makes smaller timestamps",
        "0.901 below 0.349",
        f"smaller by {less[least].mean:.2g} entries or more, at {counts[0]} to {counts[-1]} topics per client",
        both(*(above(found) for found in less.values())),
    )


def flattening(results: Results) -> Claim:
    verdicts, told = [], []
    counts = results.distinct("topics_per_client", part="sizes")[-4:]
    for shape in SHAPES:
        means = [
            results.mean("size_mean", part="sizes", shape=shape, topics_per_client=count).mean
            for count in counts
        ]
        slopes = [
            (high - low) / (more - less)
            for low, high, less, more in zip(means, means[1:], counts, counts[1:], strict=False)
        ]
        verdicts.append(sure(slopes == sorted(slopes, reverse=True) and means[-1] > (1 - TOLERANCE) * TOPICS))
        told.append(f"{PATTERNS[shape]}: " + ", ".join(f"{mean:.0f}" for mean in means))
    return claimed(
        "fig 7",
        "both curves flatten towards their maximum as clients have more topics",
        "asymptotic",
        f"{'; '.join(told)} at {', '.join(map(str, counts))} topics per client",
        both(*verdicts),
    )


def latency(results: Results) -> Found:
    said = partial(claimed, "fig 9")
    rates = [rate for rate in results.distinct("rate_per_s", **LITERAL) if rate <= TOP_RATE]
    under = partial(worst_over, results, "latency_mean_ms", rates, shape=GEOGRAPHIC, **TEN)
    ours, repeated, slow, placed = (under(**chosen) for chosen in (LITERAL, REPEATED, PROTOTYPE, PLACED))
    yield said(
        f"geographic: mean latency stays small up to {TOP_RATE:,} events/s",
        f"less than {MAX_LATENCY_MS:.0f} ms",
        f"at most {ours.text(0, ' ms')}; topics drawn with repetition {repeated.mean:.0f} ms, "
        f"placed {placed.mean:.0f} ms",
        below(ours, MAX_LATENCY_MS),
        note=VIRTUAL,
    )
    yield said(
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
    yield said(
        "geographic: most timestamps are made within one server",
        "most",
        f"{local.text(0, ' %')}; topics drawn with repetition {others[0]:.0f} %, placed {others[1]:.0f} %",
        above(local, 50.0),
        why=STRAY,
    )
    near = results.mean("near_percent", shape=GEOGRAPHIC, **LITERAL, **USUAL)
    yield said("geographic: most requests take a short link", "most", near.text(0, " %"), above(near, 50.0))


def worst_over(results: Results, column: str, rates: list[int], **where: Any) -> Estimate:
    """The estimate at the rate with the highest mean."""
    return max(
        (results.mean(column, rate_per_s=rate, **where) for rate in rates), key=lambda found: found.mean
    )


def pattern_gap(results: Results, rates: list[int]) -> Claim:
    gaps = [
        gap(results, "latency_mean_ms", SPRAY, GEOGRAPHIC, **LITERAL, **TEN, rate_per_s=rate)
        for rate in rates
    ]
    repeated = gap(results, "latency_mean_ms", SPRAY, GEOGRAPHIC, **REPEATED, **USUAL)
    least = min(gaps, key=lambda found: found.mean)
    return claimed(
        "fig 9",
        "spray-and-diffuse takes longer, for it involves long links",
        "higher at every rate",
        f"longer by {least.text(0, ' ms')} or more; topics drawn with repetition {repeated.mean:.0f} ms",
        both(*map(above, gaps)),
        note=VIRTUAL,
    )


def gap(results: Results, column: str, more: float, less: float, **where: Any) -> Estimate:
    return difference(
        results.by_seed(column, shape=more, **where), results.by_seed(column, shape=less, **where)
    )


def throughput(results: Results) -> Found:
    said = partial(claimed, "fig 10")
    found = results.mean("throughput_per_s", shape=GEOGRAPHIC, **LITERAL, **USUAL)
    fastest = worst_over(
        results,
        "throughput_per_s",
        results.distinct("rate_per_s", **LITERAL),
        shape=GEOGRAPHIC,
        **LITERAL,
        **TEN,
    )
    yield said(
        f"geographic: fed with {PEAK_RATE:,} requests/s, the servers make more than {PAPER_PEAK:,} timestamps/s",
        f"more than {PAPER_PEAK:,}",
        f"{found.text(0)}, and {fastest.mean:.0f} when fed with more",
        above(found, PAPER_PEAK),
        note=f"{VIRTUAL}; what is asked for in time, not what limits them",
    )
    for shape in reversed(SHAPES):
        yield peak(results, shape)
    less = gap(results, "throughput_per_s", GEOGRAPHIC, SPRAY, **PROTOTYPE, **USUAL)
    yield said(
        "geographic makes more than spray-and-diffuse",
        "best with geographic popularity",
        f"more by {less.text(0, '/s')}",
        above(less),
        note=f"{FITTED}; at the speed of tidings both make what they are asked for",
    )


def peak(results: Results, shape: float) -> Claim:
    rates = [rate for rate in results.distinct("rate_per_s", **PROTOTYPE) if rate <= TOP_RATE]
    means = {
        rate: results.mean("throughput_per_s", shape=shape, **PROTOTYPE, **TEN, rate_per_s=rate).mean
        for rate in rates
    }
    highest = max(means.values())
    below_peak = max(mean for rate, mean in means.items() if rate < PEAK_RATE)
    return claimed(
        "fig 10",
        f"{PATTERNS[shape]}: the peak is at {PEAK_RATE:,} requests/s",
        f"peak at {PEAK_RATE:,}",
        ", ".join(f"{mean:.0f} at {rate:,}" for rate, mean in means.items()),
        sure(below_peak < means[PEAK_RATE] and means[PEAK_RATE] > (1 - TOLERANCE) * highest),
        why="the servers are at their limit before, and stay there",
        note=f"{FITTED}; queues here lose nothing, so that throughput stays where it is beyond the peak",
    )


def outgoing(results: Results) -> Found:
    literal = {"shape": GEOGRAPHIC, **LITERAL, **USUAL}
    sent, began = by_server(results, "outgoing", **literal), by_server(results, "climbing", **literal)
    repeated = by_server(results, "outgoing", shape=GEOGRAPHIC, **REPEATED, **USUAL)
    told = f"{shares(sent)} of the bytes; of the requests made to each {shares(began)}; "
    told += f"topics drawn with repetition {shares(repeated)} of the bytes"
    yield claimed(
        "fig 11",
        "geographic: only servers 4 and 5 send timestamps on; 3 hardly, 1 and 2 not at all",
        "0, 0, ~0, some, some",
        told,
        both(
            *(below(found, NEGLIGIBLE_PERCENT) for found in sent[:3]),
            *(above(found, NEGLIGIBLE_PERCENT) for found in sent[3:]),
        ),
        why=f"{RELAYED}; {STRAY}",
    )
    yield claimed(
        "fig 11",
        "geographic: it is the topics of servers 4 and 5 whose timestamps need other servers",
        "servers 4 and 5",
        shares(began) + " of the requests made to each",
        both(
            *(below(found, NEGLIGIBLE_PERCENT) for found in began[:3]),
            *(above(found, NEGLIGIBLE_PERCENT) for found in began[3:]),
        ),
        why=STRAY,
    )
    yield more_with_spray(results)


def by_server(results: Results, column: str, **where: Any) -> list[Estimate]:
    return [results.mean(f"{column}_{server}", **where) for server in range(1, 6)]


def shares(found: list[Estimate]) -> str:
    return ", ".join(f"{each.mean:.0f}" for each in found) + " %"


def more_with_spray(results: Results) -> Claim:
    gaps = [
        gap(results, f"outgoing_{server}", SPRAY, GEOGRAPHIC, **LITERAL, **USUAL) for server in range(1, 6)
    ]
    first = results.mean("outgoing_1", shape=SPRAY, **LITERAL, **USUAL).mean
    sent = by_server(results, "outgoing", shape=SPRAY, **LITERAL, **USUAL)
    repeated = by_server(results, "outgoing", shape=SPRAY, **REPEATED, **USUAL)
    return claimed(
        "fig 12",
        "spray-and-diffuse: every server but the first sends on considerably more than with geographic popularity",
        "considerably higher",
        f"{shares(sent)} of the bytes, more by {shares(gaps[1:])} points at servers 2 to 5; "
        f"topics drawn with repetition {shares(repeated)}",
        both(sure(first == 0), *(above(found, NEGLIGIBLE_PERCENT) for found in gaps[1:])),
        why=f"the geographic pattern sends on more than in the paper: {STRAY}",
    )


def counts_of(results: Results) -> list[int]:
    return [
        count
        for count in results.distinct("topics_per_client", **LITERAL, rate_per_s=PEAK_RATE)
        if count >= TEN["topics_per_client"]
    ]


def growth(
    results: Results, column: str, shape: float, chosen: dict[str, Any]
) -> tuple[Estimate, Estimate, Estimate]:
    """With 10 topics per client, with the most, and how much more that is."""
    last = counts_of(results)[-1]
    where = {"shape": shape, **chosen, "rate_per_s": PEAK_RATE}
    least, most = (results.by_seed(column, **where, topics_per_client=count) for count in (10, last))
    at = partial(results.mean, column, **where)
    return at(topics_per_client=10), at(topics_per_client=last), difference(most, least)


def steady(least: Estimate, more: Estimate) -> Verdict:
    """Changed by no more than a tenth."""
    margin = TOLERANCE * least.mean
    return both(above(more, -margin), below(more, margin))


def latency_over_subscriptions(results: Results) -> Found:
    last = counts_of(results)[-1]
    told = {}
    for name, chosen in (("different", LITERAL), ("repeated", REPEATED), ("placed", PLACED)):
        least, most, more = growth(results, "latency_mean_ms", GEOGRAPHIC, chosen)
        told[name] = f"{least.mean:.0f} to {most.mean:.0f} ms"
        if name == "different":
            verdict = steady(least, more)
    yield claimed(
        "fig 13",
        "geographic: the number of subscriptions does not matter for latency",
        "no impact",
        f"{told['different']} from 10 to {last} topics per client; drawn with repetition {told['repeated']}, "
        f"placed {told['placed']}",
        verdict,
        why=f"{STRAY}; the more topics per client, the surer",
        note=VIRTUAL,
    )
    least, most, more = growth(results, "latency_mean_ms", SPRAY, LITERAL)
    yield claimed(
        "fig 13",
        "spray-and-diffuse: more subscriptions, more sites for a timestamp, longer latency",
        "grows",
        f"{least.mean:.0f} to {most.mean:.0f} ms from 10 to {last} topics per client",
        above(more),
        note=VIRTUAL,
    )


def throughput_over_subscriptions(results: Results) -> Found:
    last = counts_of(results)[-1]
    for shape, text, paper in (
        (GEOGRAPHIC, "geographic: the number of subscriptions does not matter for throughput", "no impact"),
        (SPRAY, "spray-and-diffuse: more subscriptions, lower throughput", "falls"),
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
