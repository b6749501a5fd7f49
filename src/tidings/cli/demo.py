"""`tidings demo`: a network of processes that is broken and mended before your eyes, then a simulated lossy one."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidings.cli.exits import ExitCode
from tidings.cli.options import Json, option
from tidings.cli.output import print_json, print_line, print_table, progress_bar

if TYPE_CHECKING:
    from tidings.cli.demo_live import LiveResult

LOSSES = (0.0, 0.01, 0.03)
LOSSY = """
seed = 3
duration_s = 10.0
settle_s = 3.0

[network]
delay_ms = {{ kind = "lognormal", median = 12, sigma = 0.5 }}
loss = {{ kind = "bernoulli", rate = {loss} }}
duplicate = 0.02
reorder = 0.05

[overlay]
mode = "best-effort"
shape = {{ kind = "random", brokers = 20, degree = 4 }}

[workload]
publishers = 4
subscribers = 40
topics = 10
topics_per_subscriber = 3
rate_hz = 10.0
"""
"""Links that lose, repeat and overtake."""

Brokers = Annotated[int, option("--brokers", min=4, max=50, help="How many processes.")]
Seconds = Annotated[float, option("--seconds", min=0.5, max=3600.0, help="How long is published in all.")]


def demo(brokers: Brokers = 5, seconds: Seconds = 6.0, json: Json = False) -> None:
    """Run a network, kill a broker, start it again, and count what arrived."""
    from tidings.cli.demo_live import LiveDemo
    from tidings.cli.running import run

    tell = (lambda line: None) if json else print_line
    live = run(LiveDemo(brokers, seconds / 3, tell, quiet=json).play())
    if not json:
        show_live(live)
    simulated = simulate(quiet=json)
    if json:
        print_json({"live": live_fields(live), "simulated": simulated, "as_claimed": live.as_claimed})
    else:
        show_simulated(simulated)
    if not live.as_claimed:
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
        print_line("This is mode best-effort, the only one of this version: nothing is repaired afterwards.")
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


def simulate(*, quiet: bool) -> list[dict[str, Any]]:
    """The summaries of one scenario under several rates of loss."""
    from tidings.scenario.load import parse_scenario
    from tidings.simulator.run import run_scenario

    summaries = []
    with tempfile.TemporaryDirectory(prefix="tidings-demo-") as directory:
        for loss in LOSSES:
            scenario = parse_scenario(LOSSY.format(loss=loss), name="demo")
            with progress_bar(f"simulating a loss of {loss:.0%}", quiet=quiet) as progress:
                summary = run_scenario(scenario, Path(directory), progress)
            summaries.append({"loss": loss, **summary})
    return summaries


def show_simulated(summaries: list[dict[str, Any]]) -> None:
    rows = [
        (
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
        "loss per link",
        "published",
        "expected",
        "delivered of these",
        "duplicates",
        "latency p50 / p99",
    )
    print_table("Simulated: 20 brokers, links that lose, repeat and overtake", columns, rows)
    print_line("What links lose adds up over the way; yet no application sees an event twice.")
    print_line("(A subscription counts from when it is accepted, which takes longer over worse links.)")
