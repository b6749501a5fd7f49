"""`tidings demo`: a network of processes that is broken and mended before your eyes, then simulated ones."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidings.cli.shared.exits import ExitCode
from tidings.cli.shared.options import Json, option
from tidings.cli.shared.output import print_json, print_line, print_table, progress_bar

Values = dict[str, float | str]
"""Of the keys that a scenario's text leaves open."""

if TYPE_CHECKING:
    from tidings.cli.shared.demo_archive import ArchiveResult
    from tidings.cli.shared.demo_live import LiveResult

LOSSES: tuple[Values, ...] = (
    {"mode": "best-effort", "loss": 0.0},
    {"mode": "best-effort", "loss": 0.03},
    {"mode": "best-effort", "loss": 0.1},
    {"mode": "epidemic", "loss": 0.1},
)
LOSSY = """
seed = 3
duration_s = 10.0
settle_s = 10.0

[network]
delay_ms = {{ kind = "lognormal", median = 12, sigma = 0.5 }}
loss = {{ kind = "bernoulli", rate = {loss} }}
duplicate = 0.02
reorder = 0.05

[overlay]
mode = "{mode}"
shape = {{ kind = "random", brokers = 20, degree = 4 }}

[workload]
publishers = 4
subscribers = 40
topics = 10
topics_per_subscriber = 3
rate_hz = 10.0
"""
"""Links that lose, repeat and overtake."""

MODES: tuple[Values, ...] = ({"mode": "best-effort"}, {"mode": "guaranteed"})
BROKEN = """
seed = 5
duration_s = 20.0
settle_s = 20.0

[network]
delay_ms = {{ kind = "lognormal", median = 12, sigma = 0.5 }}

[overlay]
mode = "{mode}"
delta = 2
shape = {{ kind = "tree", brokers = 20, degree = 3 }}

[workload]
publishers = 4
subscribers = 40
topics = 10
topics_per_subscriber = 3
rate_hz = 10.0

[[fault]]
kind = "crash"
at_s = 3.0
until_s = 8.0
nodes = ["b1", "b4"]

[[fault]]
kind = "partition"
at_s = 6.0
until_s = 12.0
groups = [["b2", "b6", "b7"], ["b0", "b3", "b8", "b9"]]

[[fault]]
kind = "crash"
at_s = 13.0
until_s = 17.0
nodes = ["b0"]
state = "lost"
"""
"""Two brokers crash, the network is split, the root loses its disk."""

ORDERS: tuple[Values, ...] = ({"order": "none"}, {"order": "total"})
ORDERED = """
seed = 7
duration_s = 10.0
settle_s = 20.0

[network]
delay_ms = {{ kind = "lognormal", median = 12, sigma = 0.5 }}

[overlay]
mode = "guaranteed"
shape = {{ kind = "tree", brokers = 7, degree = 3 }}

[ordering]
servers = [
    {{ node = "b1", topics = ["/t0", "/t1", "/t2"] }},
    {{ node = "b2", topics = ["/t3", "/t4", "/t5"] }},
]

[workload]
publishers = 4
subscribers = 12
topics = 6
topics_per_subscriber = 4
rate_hz = 20.0
order = "{order}"

[[fault]]
kind = "crash"
at_s = 4.0
until_s = 8.0
nodes = ["b1"]
state = "lost"
"""
"""One of the two sequencers loses its disk; its standby goes on."""

Brokers = Annotated[int, option("--brokers", min=4, max=50, help="How many processes.")]
Seconds = Annotated[float, option("--seconds", min=0.5, max=3600.0, help="How long is published in all.")]

Spark = Annotated[bool, option("--spark/--no-spark", help="Read the archive with Spark, too.")]


def demo(brokers: Brokers = 5, seconds: Seconds = 6.0, spark: Spark = True, json: Json = False) -> None:
    """Run a network, kill a broker, start it again, and count what arrived."""
    from tidings.cli.shared import demo_archive
    from tidings.cli.shared.demo_live import LiveDemo
    from tidings.cli.shared.running import run

    tell = (lambda line: None) if json else print_line
    live = run(LiveDemo(brokers, seconds / 3, tell, quiet=json).play())
    if not json:
        show_live(live)
    simulated = simulate(LOSSY, LOSSES, quiet=json)
    broken = simulate(BROKEN, MODES, quiet=json)
    ordered = simulate(ORDERED, ORDERS, quiet=json)
    if not json:
        show_simulated(simulated)
        show_broken(broken)
        show_ordered(ordered)
    tell("A recorder keeps an archive; it is killed twice while events are published ...")
    archived = demo_archive.play(spark=spark)
    as_claimed = (
        live.as_claimed
        and nothing_lost(simulated[-1])
        and nothing_lost(broken[-1])
        and one_order(ordered[-1])
        and archived.as_claimed
    )
    if json:
        fields = {"live": live_fields(live), "simulated": simulated, "broken": broken, "ordered": ordered}
        print_json({**fields, "archived": asdict(archived), "as_claimed": as_claimed})
    else:
        show_archived(archived)
    if not as_claimed:
        raise typer.Exit(ExitCode.CHECK_FAILED)


def show_live(live: LiveResult) -> None:
    rows = [
        (
            reader.at,
            reader.where or "everything",
            sum(reader.expected.values()),
            sum(reader.arrived.values()),
            reader.missed("outage"),
            reader.missed("before") + reader.missed("after"),
            reader.duplicates,
        )
        for reader in live.readers
    ]
    columns = ("at", "filter", "expected", "arrived", "missed in outage", "else", "twice")
    print_table(f"{live.published:,} events published, each subscriber's share", columns, rows)
    if live.as_claimed:
        print_line(
            f"While {live.killed} was down ({live.outage_s:.1f} s), events that had to pass it were lost; "
            "all others arrived, once."
        )
        print_line("This is mode best-effort: nothing is repaired afterwards. Mode guaranteed is below.")
    else:
        print_line(
            "This is not as it should be: events were missed that had no dead broker on their way, or came twice."
        )


def live_fields(live: LiveResult) -> dict[str, Any]:
    return {
        "killed": live.killed,
        "outage_s": round(live.outage_s, 3),
        "resumed_s": round(live.resumed_s, 3),
        "published": live.published,
        "subscribers": [
            {
                "at": reader.at,
                "filter": reader.where,
                "expected": reader.expected,
                "arrived": reader.arrived,
                "unexplained": reader.unexplained,
                "duplicates": reader.duplicates,
            }
            for reader in live.readers
        ],
    }


def simulate(text: str, variants: Sequence[Values], *, quiet: bool) -> list[dict[str, Any]]:
    """The summaries of one scenario with the values of each variant."""
    from tidings.scenarios.file.load import parse_scenario
    from tidings.scenarios.simulate import run_scenario
    from tidings.scenarios.trace.checkers import total_order
    from tidings.scenarios.trace.reader import Trace

    summaries = []
    with tempfile.TemporaryDirectory(prefix="tidings-demo-") as directory:
        for values in variants:
            scenario = parse_scenario(text.format(**values), name="demo")
            told = ", ".join(f"{key} = {value}" for key, value in values.items())
            with progress_bar(f"simulating {told}", quiet=quiet) as progress:
                summary = run_scenario(scenario, Path(directory), progress)
            if "order" in values:
                summary["inversions"] = total_order(Trace.read(Path(directory))).violations
            summaries.append({**values, **summary})
    return summaries


def nothing_lost(summary: dict[str, Any]) -> bool:
    lost = summary["delivery_ratio"] < 1.0
    return not (lost or summary["duplicates"] or summary["out_of_order"])


def show_broken(summaries: list[dict[str, Any]]) -> None:
    rows = [
        (
            summary["mode"],
            summary["expected"],
            f"{summary['delivery_ratio']:.2%}",
            summary["duplicates"],
            f"{summary['latency_ms']['p50']:.0f} / {summary['latency_ms']['p99']:.0f} ms",
        )
        for summary in summaries
    ]
    columns = ("mode", "expected", "delivered of these", "duplicates", "latency p50 / p99")
    print_table(
        "Simulated: 20 brokers; two crash, the network is split, the root loses its disk", columns, rows
    )
    if nothing_lost(summaries[-1]):
        print_line(
            "In mode guaranteed everything arrived, once and in order; what could not pass arrived later."
        )
    else:
        print_line("This is not as it should be: mode guaranteed must not lose, repeat or reorder.")


def one_order(summary: dict[str, Any]) -> bool:
    return nothing_lost(summary) and not summary["inversions"]


def show_ordered(summaries: list[dict[str, Any]]) -> None:
    rows = [
        (
            summary["order"],
            f"{summary['delivery_ratio']:.2%}",
            summary["inversions"],
            f"{summary['latency_ms']['p50']:.0f} / {summary['latency_ms']['p99']:.0f} ms",
        )
        for summary in summaries
    ]
    columns = ("order", "delivered of expected", "inversions", "latency p50 / p99")
    print_table("Simulated: 12 subscribers of overlapping topics; a sequencer loses its disk", columns, rows)
    if one_order(summaries[-1]):
        print_line("With order total no two subscribers saw any two events in different orders.")
    else:
        print_line("This is not as it should be: order total must show everybody the same order.")


def show_archived(archived: ArchiveResult) -> None:
    rows = [
        ("published", archived.published),
        ("recorders killed", archived.kills),
        ("in the archive", archived.recorded),
        ("of these different", archived.distinct),
        ("read by Spark", "-" if archived.rows_on_spark is None else archived.rows_on_spark),
    ]
    print_table("Live: a guaranteed network, a recorder that is killed", ("what", "events"), rows)
    if archived.as_claimed:
        print_line("Every event is in the archive, once and in order.")
    else:
        print_line("This is not as it should be: the archive must have every event, once and in order.")
    if archived.rows_on_spark is None:
        print_line(f"Spark did not read it: {archived.why}")


def show_simulated(summaries: list[dict[str, Any]]) -> None:
    rows = [
        (
            summary["mode"],
            f"{summary['loss']:.0%}",
            summary["published"],
            summary["expected"],
            f"{summary['delivery_ratio']:.2%}",
            summary["duplicates"],
            f"{summary['latency_ms']['p50']:.0f} / {summary['latency_ms']['p99']:.0f} ms",
        )
        for summary in summaries
    ]
    columns = (
        "mode",
        "loss per link",
        "published",
        "expected",
        "delivered of these",
        "duplicates",
        "latency p50 / p99",
    )
    print_table("Simulated: 20 brokers, links that lose, repeat and overtake", columns, rows)
    print_line("What links lose adds up over the way; yet no application sees an event twice.")
    if nothing_lost(summaries[-1]):
        print_line("In mode epidemic brokers gossip about what they miss, and all of it arrives.")
    else:
        print_line("This is not as it should be: gossip must repair these losses.")
    print_line("(A subscription counts from when it is accepted, which takes longer over worse links.)")
