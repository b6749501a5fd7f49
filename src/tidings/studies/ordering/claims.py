"""What the ordering paper claims in figures 7 to 14, checked against our runs; the sizes are here."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import pyarrow as pa

from tidings.studies.estimates import StudyRows, above, both, claimed, difference, sure, within
from tidings.studies.ordering.cases import PAPER_COUNT, READING, TOLERANCE
from tidings.studies.ordering.load import GEOGRAPHIC, SHAPES, SPRAY, TOPICS
from tidings.studies.ordering.panels import PAPER_SIZE, PATTERNS
from tidings.studies.ordering.rate_claims import latency, throughput
from tidings.studies.ordering.site_claims import (
    latency_over_subscriptions,
    outgoing,
    throughput_over_subscriptions,
)
from tidings.studies.study import PaperClaim


def claims_of(table: pa.Table) -> list[PaperClaim]:
    results = StudyRows(table)
    return [
        *sizes(results),
        *latency(results),
        *throughput(results),
        *outgoing(results),
        *latency_over_subscriptions(results),
        *throughput_over_subscriptions(results),
    ]


def sizes(results: StudyRows) -> Iterator[PaperClaim]:
    claim = partial(claimed, "fig 7")
    at = partial(results.mean, "size_mean", part="sizes")
    for shape in SHAPES:
        found, paper = at(shape=shape, topics_per_client=10), PAPER_SIZE[shape]
        over_events = results.mean("size_over_events", part="sizes", shape=shape, topics_per_client=10).mean
        yield claim(
            f"{PATTERNS[shape]}: the mean size at 10 topics per client is of the order of that number",
            f"{paper:.0f} entries",
            f"{found.text()}",
            within(found, paper * (1 - TOLERANCE), paper * (1 + TOLERANCE)),
            note=f"{READING}; every topic counts once; weighted by events of the same popularity the mean is "
            f"{over_events:.0f}",
        )
    ones = [at(shape=shape, topics_per_client=1).mean for shape in SHAPES]
    yield claim(
        "no entries at one topic per client",
        "0",
        f"{max(ones):g}",
        sure(max(ones) == 0),
        note="the topic's own entry is not counted",
    )
    yield smaller_when_skewed(results)
    yield flattening(results)


def smaller_when_skewed(results: StudyRows) -> PaperClaim:
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
        "a more skewed popularity gives smaller timestamps",
        "0.901 below 0.349",
        f"smaller by at least {less[least].mean:.2g} entries, at {counts[0]} to {counts[-1]} topics per client",
        both(*(above(found) for found in less.values())),
    )


def flattening(results: StudyRows) -> PaperClaim:
    verdicts, details = [], []
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
        details.append(f"{PATTERNS[shape]}: " + ", ".join(f"{mean:.0f}" for mean in means))
    return claimed(
        "fig 7",
        "both curves flatten towards their maximum as clients have more topics",
        "asymptotic",
        f"{'; '.join(details)} at {', '.join(map(str, counts))} topics per client",
        both(*verdicts),
    )
