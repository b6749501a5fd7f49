"""The plots of the study of epidemic recovery."""

from __future__ import annotations

from tidings.studies.epidemic.points import RECOVERING, Base, where
from tidings.studies.epidemic.runs import ALGORITHMS
from tidings.studies.estimates import StudyRows
from tidings.studies.study import Panel, Place

SECTION = "section 5"
SHARE = "delivered, share of the expected deliveries"
GOSSIP = "gossip messages per broker and second"


def panels(results: StudyRows, base: Base) -> list[Panel]:
    return [
        *over_loss(results, base),
        *over_buffer_and_interval(results, base),
        over_subscribers(results, base),
        over_brokers(results, base),
    ]


def over_loss(results: StudyRows, base: Base) -> list[Panel]:
    x_label = "share of messages lost on a link"

    def lines(column: str) -> dict[str, list[Place]]:
        return {
            name: [*results.series("loss", column, **where(base, "loss", algorithm=name))]
            for name in ALGORITHMS
        }

    return [
        Panel("delivered_loss", "Delivery over loss", x_label, SHARE, lines("delivered"), figure=SECTION),
        Panel(
            "overhead_loss",
            "Messages between brokers per event over loss",
            x_label,
            "messages per event",
            lines("overhead"),
            log_y=True,
            figure=SECTION,
        ),
        Panel(
            "gossip_loss",
            "Gossip while events are published: pull is reactive",
            x_label,
            GOSSIP,
            lines("gossip_per_broker_s"),
            figure="section 2.2",
        ),
        Panel(
            "latency_loss",
            "Latency of recovered events",
            x_label,
            "mean latency of recovered events, ms",
            lines("recovery_ms"),
            figure="section 2.2",
        ),
    ]


def over_buffer_and_interval(results: StudyRows, base: Base) -> list[Panel]:
    def lines(x: str, y: str) -> dict[str, list[Place]]:
        return {name: [*results.series(x, y, **where(base, x, algorithm=name))] for name in RECOVERING}

    buffer, interval = "buffer, events", "gossip interval, ms"
    return [
        Panel(
            "delivered_buffer",
            "Delivery over buffer size",
            buffer,
            SHARE,
            lines("buffer_events", "delivered"),
            log_x=True,
            figure=SECTION,
        ),
        Panel(
            "delivered_interval",
            "Delivery over gossip interval",
            interval,
            SHARE,
            lines("interval_ms", "delivered"),
            log_x=True,
            figure=SECTION,
        ),
        Panel(
            "gossip_interval",
            "Gossip over gossip interval",
            interval,
            GOSSIP,
            lines("interval_ms", "gossip_per_broker_s"),
            log_x=True,
            log_y=True,
            figure=SECTION,
        ),
    ]


def over_subscribers(results: StudyRows, base: Base) -> Panel:
    per_pattern = base["brokers"] / base["patterns"]
    series: dict[str, list[Place]] = {}
    for name in RECOVERING:
        found = results.series(
            "patterns_per_broker", "recovered", **where(base, "patterns_per_broker", algorithm=name)
        )
        series[name] = [(x * per_pattern, y, error) for x, y, error in found]
    return Panel(
        "recovered_subscribers",
        "Recovery over the number of subscribers of a pattern",
        "subscribers per pattern",
        "recovered, share of the deliveries that the tree lost",
        series,
        log_x=True,
        figure=SECTION,
    )


def over_brokers(results: StudyRows, base: Base) -> Panel:
    free = ("brokers", "patterns", "used_patterns", "publishers")
    series: dict[str, list[Place]] = {}
    for name in ("push", "combined pull"):
        chosen = where(base, *free, algorithm=name)
        sizes = results.distinct("brokers", **chosen)
        series[name] = []
        for brokers in sizes:
            patterns = base["patterns"] * brokers // base["brokers"]
            at = {**chosen, "brokers": brokers, "patterns": patterns, "used_patterns": patterns}
            found = results.mean("gossip_per_broker_s", **at)
            series[name].append((brokers, found.mean, found.half))
    return Panel(
        "gossip_brokers",
        "Gossip over the number of brokers, at the same load per broker",
        "brokers",
        GOSSIP,
        series,
        figure="section 2.2",
    )
