"""The schemes of polarized gossip that claims compare, and texts for what was measured."""

from __future__ import annotations

from collections.abc import Sequence

from tidings.studies.estimates import Estimate, pooled
from tidings.studies.polarized.curves import Curves, Scheme

RANDOM_PUSH, RANDOM_PULL = Scheme("push random"), Scheme("pull random")
WDPG, WRPG, PGW = Scheme("push WDPG"), Scheme("push WRPG"), Scheme("push PGW .25")
NARROW, WIDE = Scheme("3PG .25"), Scheme("3PG 1")
REDUNDANCY = 2
"""One of the paper's 1 to 4; the plots compare this one, too."""
USUAL_GOAL = 0.999


def coded(scheme: Scheme) -> Scheme:
    return scheme._replace(redundancy=REDUNDANCY)


def shared_fanouts(curves: Curves, left: Scheme, right: Scheme) -> list[int]:
    return [fanout for fanout in curves.fanouts(left) if fanout in curves.fanouts(right)]


def success_gain(curves: Curves, left: Scheme, right: Scheme) -> Estimate:
    """Estimate left minus right, over all fanouts that both were run with."""
    pairs = [
        (curves.by_seed("success", left, fanout), curves.by_seed("success", right, fanout))
        for fanout in shared_fanouts(curves, left, right)
    ]
    return pooled(pairs)


def successes(curves: Curves, schemes: Sequence[Scheme], fanout: int) -> str:
    details = [f"{scheme} {curves.mean('success', scheme, fanout):.3f}" for scheme in schemes]
    return f"success at fanout {fanout}: {', '.join(details)}"


def fanouts(curves: Curves, schemes: Sequence[Scheme]) -> str:
    details = [f"{scheme} {curves.fanout_for_goal(scheme, curves.seeds):.1f}" for scheme in schemes]
    return f"fanout for {curves.goal}: {', '.join(details)}".replace("inf", "not reached")


def reliability(curves: Curves) -> str:
    """Return the note of claims about complete reliability in the reduced version."""
    return "" if curves.goal >= USUAL_GOAL else f"'complete' means {curves.goal} in this reduced version"


def reduction(curves: Curves, scheme: Scheme) -> Estimate:
    return curves.saved_by_coding(scheme, REDUNDANCY)


def percent(share: Estimate) -> str:
    return f"{Estimate(100 * share.mean, 100 * share.low, 100 * share.high).text(0)} %"


def off_goal(curves: Curves, reduced: str, complete: str = "") -> str:
    return reduced if curves.goal < USUAL_GOAL else complete
