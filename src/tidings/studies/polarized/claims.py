"""What the polarized paper claims about its schemes (figures 1 to 3, section IV), checked against our runs."""

from __future__ import annotations

from collections.abc import Callable

from tidings.studies.estimates import above, below, both, claimed, difference, estimate
from tidings.studies.polarized.cost_claims import COST_CLAIMS
from tidings.studies.polarized.curves import Curves
from tidings.studies.polarized.measures import (
    NARROW,
    PGW,
    RANDOM_PULL,
    RANDOM_PUSH,
    WDPG,
    WIDE,
    WRPG,
    fanouts,
    reliability,
    success_gain,
    successes,
)
from tidings.studies.study import PaperClaim


def claims(curves: Curves) -> list[PaperClaim]:
    return [claim(curves) for claim in CLAIMS]


def utility_is_low(curves: Curves) -> PaperClaim:
    push = estimate(list(curves.by_seed("push_utility", RANDOM_PUSH, 2).values()))
    pull = estimate(list(curves.by_seed("pull_utility", RANDOM_PULL, 2).values()))
    return claimed(
        "fig 1",
        "few gossip messages are useful",
        "U has a low value",
        f"at fanout 2: push {push.text(3)}, pull {pull.text(3)}",
        both(below(push, 0.5), below(pull, 0.5)),
        note="'low' is read as less than half",
    )


def utility_falls(curves: Curves) -> PaperClaim:
    falls = {}
    for scheme, column in ((RANDOM_PUSH, "push_utility"), (RANDOM_PULL, "pull_utility")):
        least, most = curves.fanouts(scheme)[0], curves.fanouts(scheme)[-1]
        falls[scheme] = difference(
            curves.by_seed(column, scheme, least), curves.by_seed(column, scheme, most)
        )
    details = ", ".join(f"{scheme.name} by {fall.text(3)}" for scheme, fall in falls.items())
    return claimed(
        "fig 1",
        "utility falls as the fanout grows",
        "further decreases when fanout is increased",
        f"from the smallest to the largest fanout: {details}",
        both(*(above(fall) for fall in falls.values())),
    )


def topology_beats_loss(curves: Curves) -> PaperClaim:
    by_loss = [scheme for scheme in curves.schemes() if scheme.weights == "loss"]
    gains = {found: success_gain(curves, found._replace(weights="topology"), found) for found in by_loss}
    details = ", ".join(f"{found.name} {gain.text(4)}" for found, gain in gains.items())
    return claimed(
        "fig 2(a)",
        "weights by topology give a higher success than weights by loss rates",
        "topology-based is higher",
        f"topology minus loss: {details}",
        both(*(above(gain) for gain in gains.values())),
        why="all links have the same loss rate here, so both kinds of weights prefer the same brokers",
        note="brokers know the true loss rates",
    )


def wdpg_below_random(curves: Curves) -> PaperClaim:
    gain = success_gain(curves, WDPG, RANDOM_PUSH)
    return claimed(
        "fig 2(a)",
        "WDPG has a lower success than random selection",
        "lower",
        successes(curves, (WDPG, RANDOM_PUSH), 6),
        below(gain),
    )


def wrpg_below_random(curves: Curves) -> PaperClaim:
    gain = success_gain(curves, WRPG, RANDOM_PUSH)
    return claimed(
        "fig 2(a)",
        "WRPG also has a lower success than random selection",
        "lower",
        f"difference {gain.text(4)}; {successes(curves, (WRPG, RANDOM_PUSH), 4)}",
        below(gain),
        why="a weighted draw still reaches the upper brokers often enough",
    )


def pgw_beats_wdpg(curves: Curves) -> PaperClaim:
    gain = success_gain(curves, PGW, WDPG)
    return claimed(
        "fig 2(b)",
        "PGW needs less fanout than WDPG",
        "the window lowers the fanout",
        f"{successes(curves, (PGW, WDPG), 6)}; {fanouts(curves, (PGW, WDPG))}",
        above(gain),
    )


def pgw_not_better_than_random(curves: Curves) -> PaperClaim:
    return claimed(
        "fig 2(b)",
        "PGW is not a considerable improvement over random selection",
        "not considerable",
        fanouts(curves, (PGW, RANDOM_PUSH)),
        above(curves.fanout_ratio(PGW, RANDOM_PUSH), 0.9),
        note=reliability(curves),
    )


def three_pg_needs_least(curves: Curves) -> PaperClaim:
    ratios = [
        curves.fanout_ratio(scheme, other)
        for scheme in (NARROW, WIDE)
        for other in (RANDOM_PUSH, RANDOM_PULL)
    ]
    return claimed(
        "fig 2(c)",
        "3PG needs less fanout for complete reliability than random selection",
        "lower",
        fanouts(curves, (NARROW, WIDE, RANDOM_PUSH, RANDOM_PULL)),
        both(*(below(ratio, 1.0) for ratio in ratios)),
        note=reliability(curves),
    )


def narrow_window_costs_success(curves: Curves) -> PaperClaim:
    gain = success_gain(curves, WIDE, NARROW)
    return claimed(
        "fig 2(c)",
        "a smaller window lowers the success of 3PG",
        "lower",
        successes(curves, (WIDE, NARROW), 2),
        above(gain),
    )


def push_tolerates_more(curves: Curves) -> PaperClaim:
    return claimed(
        "fig 3",
        "random push needs less fanout than random pull",
        "lower",
        fanouts(curves, (RANDOM_PUSH, RANDOM_PULL)),
        below(curves.fanout_ratio(RANDOM_PUSH, RANDOM_PULL), 1.0),
        note=reliability(curves),
    )


def push_costs_and_hurries(curves: Curves) -> PaperClaim:
    overhead = curves.goal_ratio("overhead", RANDOM_PUSH, RANDOM_PULL)
    latency = curves.goal_ratio("mean_ms", RANDOM_PUSH, RANDOM_PULL)
    return claimed(
        "fig 3",
        "push is expensive and fast, pull cheap and slow",
        "the opposite of each other",
        f"push relative to pull at {curves.goal}: {overhead.text()} times the overhead, {latency.text(2)} times the"
        " mean latency",
        both(above(overhead, 1.0), below(latency, 1.0)),
        note=reliability(curves),
    )


def three_pg_is_between(curves: Curves) -> PaperClaim:
    against_push, against_pull = (
        {column: curves.goal_ratio(column, NARROW, other) for column in ("overhead", "mean_ms")}
        for other in (RANDOM_PUSH, RANDOM_PULL)
    )
    return claimed(
        "fig 3",
        "3PG is the trade-off: cheaper than push, faster than pull",
        "an optimal trade-off",
        f"window .25 at {curves.goal}: overhead {against_push['overhead'].text(2)} of push's, mean latency"
        f" {against_pull['mean_ms'].text(2)} of pull's",
        both(below(against_push["overhead"], 1.0), below(against_pull["mean_ms"], 1.0)),
        note=reliability(curves),
    )


CLAIMS: tuple[Callable[[Curves], PaperClaim], ...] = (
    utility_is_low,
    utility_falls,
    topology_beats_loss,
    wdpg_below_random,
    wrpg_below_random,
    pgw_beats_wdpg,
    pgw_not_better_than_random,
    three_pg_needs_least,
    narrow_window_costs_success,
    *COST_CLAIMS,
    push_tolerates_more,
    push_costs_and_hurries,
    three_pg_is_between,
)
