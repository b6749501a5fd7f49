"""The plots of the study of polarized gossip: figures 1 and 2 of the paper."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite

from tidings.studies.estimates import estimate
from tidings.studies.polarized.curves import TREE, Curves, Scheme
from tidings.studies.study import Panel, Place

FANOUT = "fanout"
SUCCESS = "success rate"
EXPECTED: dict[str, list[Place]] = {
    "push random": [(1, 0.851), (2, 0.946), (3, 0.982), (4, 0.993), (6, 0.9995), (8, 0.99994)],
    "pull random": [(1, 0.836), (2, 0.928), (3, 0.972), (4, 0.988), (6, 0.998), (8, 0.9993)],
    "3PG .25": [(1, 0.800), (2, 0.931), (3, 0.985), (4, 0.997), (6, 0.9997), (8, 0.99996)],
    "3PG 1": [(1, 0.933), (2, 0.996), (3, 0.9994)],
}
"""From an independent model of the same experiment: the paper's curves are not in its text."""


def panels(curves: Curves) -> list[Panel]:
    names = [scheme.name for scheme in curves.schemes() if scheme.weights == "topology"]
    randoms = ["push random", "pull random"]
    coded = [scheme for r in curves.redundancies() for scheme in curves.schemes(r)]
    return [
        utility(curves),
        success(curves, "success_weights", "Random and weighted selection", "fig 2(a)", weighted(curves)),
        success(
            curves, "success_pgw", "PGW", "fig 2(b)", of(names, "push random", "push WDPG", "push PGW .25")
        ),
        success(curves, "success_3pg", "3PG", "fig 2(c)", of(names, *randoms, "3PG .25", "3PG 1")),
        against_model(curves),
        two_bars(curves, "overhead", "Overhead", "datagrams relative to those published", "fig 2(d)"),
        two_bars(curves, "mean_ms", "Mean latency", "ms", "fig 2(e)"),
        two_bars(curves, "std_ms", "Standard deviation of latency", "ms", "fig 2(f)"),
        with_coding(curves, "fanout", "Fanout for complete reliability", "fanout", "fig 2(g)"),
        with_coding(curves, "mean_ms", "Mean latency at complete reliability", "ms", "fig 2(h)"),
        with_coding(curves, "overhead", "Overhead at complete reliability", "datagrams", "fig 2(i)"),
        success(curves, "success_coded", "With coding", "fig 2(g)", coded),
    ]


def of(known: Sequence[str], *names: str) -> list[Scheme]:
    return [Scheme(name) for name in names if name in known]


def weighted(curves: Curves) -> list[Scheme]:
    return [scheme for scheme in curves.schemes() if scheme.name in ("push random", "push WDPG", "push WRPG")]


def line(curves: Curves, column: str, scheme: Scheme) -> list[Place]:
    found = []
    for fanout in curves.fanouts(scheme):
        mean = estimate(list(curves.by_seed(column, scheme, fanout).values()))
        if mean.mean == mean.mean:
            found.append((float(fanout), mean.mean, mean.half))
    return [*found]


def utility(curves: Curves) -> Panel:
    series = {
        "push random": line(curves, "push_utility", Scheme("push random")),
        "pull random": line(curves, "pull_utility", Scheme("pull random")),
    }
    return Panel("utility", "Utility of random gossip", FANOUT, "U", series, figure="fig 1")


def success(curves: Curves, name: str, title: str, figure: str, schemes: Sequence[Scheme]) -> Panel:
    series = {}
    for scheme in schemes:
        tree = curves.by_seed("success", Scheme(TREE, scheme.redundancy), 0)
        start: list[Place] = [(0.0, estimate(list(tree.values())).mean)]
        series[str(scheme)] = start + line(curves, "success", scheme)
    return Panel(name, f"Success over fanout: {title}", FANOUT, SUCCESS, series, figure=figure)


def against_model(curves: Curves) -> Panel:
    """Plot what is missed, which shows more than what is delivered."""
    series: dict[str, list[Place]] = {}
    for name, expected in EXPECTED.items():
        series[name] = [(place[0], 1 - place[1]) for place in line(curves, "success", Scheme(name))]
        series[f"{name}, model"] = [(place[0], 1 - place[1]) for place in expected]
    title = "Against an independent model of the same experiment"
    return Panel("missed", title, FANOUT, "share missed", series, log_y=True, figure="fig 2(c)")


def two_bars(curves: Curves, column: str, title: str, y_label: str, figure: str) -> Panel:
    """Compare a fanout of 2 with the one for complete reliability, as the paper does."""
    at_2: list[Place] = []
    at_goal: list[Place] = []
    for scheme in curves.schemes():
        if scheme.weights == "topology":
            at_2.append((scheme.name, curves.mean(column, scheme, 2)))
            reached = curves.at_goal(column, scheme, curves.seeds)
            if isfinite(reached):
                at_goal.append((scheme.name, reached))
    series = {"fanout 2": at_2, f"success {curves.goal}": at_goal}
    return Panel(f"{column}_schemes", title, "scheme", y_label, series, figure=figure)


def with_coding(curves: Curves, column: str, title: str, y_label: str, figure: str) -> Panel:
    series: dict[str, list[Place]] = {}
    for redundancy in (0, *curves.redundancies()):
        places: list[Place] = []
        for scheme in curves.schemes(redundancy):
            reached = (
                curves.fanout_for_goal(scheme, curves.seeds)
                if column == "fanout"
                else curves.at_goal(column, scheme, curves.seeds)
            )
            if scheme.weights == "topology" and isfinite(reached):
                places.append((scheme.name, reached))
        series[f"{redundancy} redundant blocks"] = places
    return Panel(f"{column}_coded", title, "scheme", y_label, series, figure=figure)
