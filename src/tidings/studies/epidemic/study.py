"""Compares the epidemic paper's algorithms: what they deliver, at what cost and with what latency.

The paper has no figures of its own ('the reader is redirected' to a report): its claims are those of sections 2.2, 4.2
and 5. One point is one run of one algorithm.
"""

from __future__ import annotations

from collections import Counter

import numpy as np
import pyarrow as pa

from tidings.core.overlay.epidemic.messages import Ask, HighWater, HighWaterTaken, Offer, Solicit
from tidings.scenarios.file.schema import BernoulliLoss, LossFault, NoLoss, Scenario
from tidings.studies.epidemic.claims import claims
from tidings.studies.epidemic.panels import panels
from tidings.studies.epidemic.points import PARAMETERS, base_of, points
from tidings.studies.epidemic.runs import ALGORITHMS, epidemic_scenario
from tidings.studies.estimates import StudyRows
from tidings.studies.recovery_runs import BrokerTraffic, Played, play
from tidings.studies.study import Panel, PaperClaim, Point, Row, Study

ROUNDS = (Offer, Ask, Solicit)
HOUSEKEEPING = (HighWater, HighWaterTaken)
"""Messages of ours that reveal the loss of an event when no other follows it."""
BURST_LOSS, BURST_SHARE = 0.3, 0.2
"""The loss rate in a burst, and the burst's share of the time."""
MEASURED = pa.schema(
    [
        ("expected", pa.int64()),
        ("delivered", pa.float64()),
        ("recovered", pa.float64()),
        ("overhead", pa.float64()),
        ("gossip_per_broker_s", pa.float64()),
        ("resting_gossip_per_broker_s", pa.float64()),
        ("housekeeping_per_broker_s", pa.float64()),
        ("mean_ms", pa.float64()),
        ("recovery_ms", pa.float64()),
        ("recovery_p99_ms", pa.float64()),
        ("origin_answers", pa.float64()),
        ("peak_load", pa.float64()),
    ]
)


class Epidemic(Study):
    name = "epidemic"
    title = "Epidemic recovery of lost events: push, subscriber pull, publisher pull, combined"
    schema = pa.schema([*PARAMETERS, *MEASURED])

    def points(self, quick: bool) -> list[Point]:
        return points(quick)

    def run(self, point: Point) -> list[Row]:
        return [{**{name: point[name] for name in PARAMETERS.names}, **measured(point)}]

    def panels(self, table: pa.Table, quick: bool) -> list[Panel]:
        return panels(StudyRows(table), base_of(quick))

    def claims(self, table: pa.Table, quick: bool) -> list[PaperClaim]:
        return claims(StudyRows(table), base_of(quick))

    def cost(self, point: Point) -> float:
        """Estimate by rounds of gossip; a round of push has the most messages."""
        rounds = 1e3 * (point["start_s"] / 4 + point["publish_s"] + point["settle_s"]) / point["interval_ms"]
        weight = {"none": 0.0, "push": 2.4, "subscriber pull": 1.8}.get(point["algorithm"], 1.0)
        return float(0.17 + weight * rounds * point["brokers"] / 15_000)


STUDY = Epidemic()


def measured(point: Point) -> Row:
    start_s, brokers = point["start_s"], point["brokers"]
    published_s = start_s + point["publish_s"]
    end_s = published_s + point["settle_s"]
    played = play(scenario_of(point), (start_s, published_s, end_s - 1.0, end_s))
    started, ended, resting, last = played.counts
    summary, late_ms = played.summary, played.gossip_latency_ms()
    missing = round(summary["expected"] * (1.0 - summary["delivery_ratio"]))
    origin_answers, peak_load = load(played)
    publishing = ended.since(started)
    return {
        "expected": summary["expected"],
        "delivered": summary["delivery_ratio"],
        "recovered": len(late_ms) / (len(late_ms) + missing) if len(late_ms) + missing else None,
        "overhead": summary["overhead"],
        "gossip_per_broker_s": gossip(publishing) / brokers / point["publish_s"],
        "resting_gossip_per_broker_s": gossip(last.since(resting)) / brokers,
        "housekeeping_per_broker_s": publishing.messages_of(HOUSEKEEPING) / brokers / point["publish_s"],
        "mean_ms": summary["latency_ms"]["mean"],
        "recovery_ms": float(late_ms.mean()) if len(late_ms) else None,
        "recovery_p99_ms": float(np.percentile(late_ms, 99)) if len(late_ms) else None,
        "origin_answers": origin_answers,
        "peak_load": peak_load,
    }


def gossip(counts: BrokerTraffic) -> int:
    """Count digests, requests, and the events that they brought."""
    return counts.messages_of(ROUNDS) + counts.brought


def load(played: Played) -> tuple[float | None, float | None]:
    """Return the share of answers that publishers' brokers gave, and what the busiest broker sent relative to the
    mean."""
    simulation = played.simulation
    homes = frozenset(publisher.at for publisher in simulation.plan.publishers)
    answers: Counter[str] = Counter()
    for broker in simulation.epidemic_brokers:
        answers[broker.name] += broker.gossip.sent
    sent = Counter(answers)
    for (source, _), link in simulation.network.links.items():
        sent[source] += sum(counted.messages for kind, counted in link.traffic().items() if kind in ROUNDS)
    if not answers.total():
        return None, None
    mean = sent.total() / len(simulation.plan.topology.brokers)
    return sum(answers[home] for home in homes) / answers.total(), max(sent.values()) / mean


def scenario_of(point: Point) -> Scenario:
    keys = {name: point[name] for name in ("interval_ms", "buffer_events", "cache_policy", "adaptive")}
    shape = {
        name: point[name]
        for name in ("seed", "brokers", "patterns", "patterns_per_broker", "used_patterns", "publishers")
    }
    times = {name: point[name] for name in ("start_s", "publish_s", "settle_s")}
    loss = BernoulliLoss(rate=point["loss"]) if point["loss"] else NoLoss()
    faults: tuple[LossFault, ...] = ()
    if point["bursts"]:
        at_s = point["start_s"] + 0.4 * point["publish_s"]
        faults = (LossFault(at_s=at_s, until_s=at_s + BURST_SHARE * point["publish_s"], rate=BURST_LOSS),)
    return epidemic_scenario(
        {**ALGORITHMS[point["algorithm"]], **keys}, loss, faults=faults, **shape, **times
    )
