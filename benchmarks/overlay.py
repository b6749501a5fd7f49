"""Measures what the guaranteed overlay costs and what it keeps up, in the simulator (partitions paper, section IX).

    python benchmarks/overlay.py [--only NAME] [--quick] [--full] [--json]

- cost: messages and bytes between brokers per delivery, without failures and with delta brokers down, against the
  tree's minimum (one message over each link that leads to a subscriber) and against best-effort in the same run.
- recovery: how much later than usual the first event arrives that is published after a failure on its path.
- memory: the time and memory that one broker needs for many subscriptions with different filters.
- figure10: 100 % matching, 17 % of the brokers crash: what is delivered while they are down, and at the end.
- growth: the cost of a publication as the number of publications, or of matching subscriptions, grows.

Deliveries are computed from trace tables, never from the state of brokers. Times are virtual or CPU time; other load on
the machine changes the latter by some 20 %.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from output import table_of
from overlay_cost import cost
from overlay_growth import growth
from overlay_memory import memory
from overlay_recovery import CHAIN, recovery
from overlay_runs import DELTA, simulate
from rich.console import Console

from tidings.studies.partitions.expected import CONNECTED, DELIVERY_BROKERS, DELIVERY_FAILURES
from tidings.studies.partitions.runs import FAILED_SHARE, during_failures, figure_10_scenario

PAPER = ("", "~89", "~93", "97")
"""By delta: 'about 3 % lower than expected' for 3, 'steps of about 4 %' from 3 to 1."""


class Figure10(NamedTuple):
    """% of the pairs of an event published during the failures and a subscriber at a live broker."""

    degree: int
    brokers: int
    failed: int
    delta: int
    pairs: int
    delivered: float
    bound: float
    mean_bound: float | None
    paper: str
    certified: float
    guarantees_hold: bool
    cpu_s: float


def figure_10(scale: float, *, full: bool) -> Iterator[Figure10]:
    brokers, rounds = (DELIVERY_BROKERS, 4 if full else 2) if scale == 1 else (60, 1)
    for degree in (3, 7) if full else (3,):
        for delta in range(4):
            yield figure_10_point(brokers, degree, delta, rounds=rounds)


def figure_10_point(brokers: int, degree: int, delta: int, *, rounds: int = 1, seed: int = 1) -> Figure10:
    run = simulate(figure_10_scenario(brokers, degree, delta, rounds, seed))
    found = during_failures(run.trace, delta)
    return Figure10(
        degree,
        brokers,
        round(FAILED_SHARE * brokers),
        delta,
        found.pairs,
        found.delivered,
        found.bound,
        CONNECTED[degree, DELIVERY_FAILURES][delta] if brokers == DELIVERY_BROKERS else None,
        PAPER[delta],
        found.certified,
        found.guarantees_hold,
        run.cpu_s,
    )


# --- The command

Section = Callable[[float, bool], Iterator[Any]]

SECTIONS: dict[str, tuple[str, Section]] = {
    "cost": ("between brokers, per delivery (40 brokers, delta 2)", lambda scale, _: cost(scale)),
    "recovery": (
        f"the first event after a failure, ms above usual (chain of {CHAIN}, delta {DELTA})",
        lambda scale, _: recovery(scale),
    ),
    "memory": ("a broker with many subscriptions, each", lambda scale, _: memory(scale)),
    "figure10": (
        "% delivered while brokers are down, and of everything certified at the end",
        lambda scale, full: figure_10(scale, full=full),
    ),
    "growth": (
        "CPU us above that of an idle network (40 brokers, delta 2)",
        lambda scale, _: growth(scale),
    ),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--only", choices=SECTIONS, help="run only this measurement")
    parser.add_argument("--quick", action="store_true", help="a tenth of the events and a smaller figure 10")
    parser.add_argument(
        "--full", action="store_true", help="also run figure 10 with degree 7, and more rounds"
    )
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    if arguments.quick and arguments.full:
        parser.error("--quick and --full exclude each other")
    results: dict[str, list[dict[str, Any]]] = {}
    console = Console()
    for name, (title, section) in SECTIONS.items():
        if arguments.only not in (None, name):
            continue
        rows = list(section(0.1 if arguments.quick else 1.0, arguments.full))
        results[name] = [row._asdict() for row in rows]
        if not arguments.json:
            console.print(table_of(f"{name}: {title}", rows))
    if arguments.json:
        print(json.dumps(results, indent=2))


if __name__ == "__main__":
    main()
