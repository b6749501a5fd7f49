"""Remarks beside verdicts and numbers: above all, why deliveries may be missing although every guarantee holds."""

from __future__ import annotations

from collections.abc import Sequence

from tidings.scenarios.trace.checkers import GUARANTEED
from tidings.scenarios.trace.checkers.gaps import GAP_FREE
from tidings.scenarios.trace.checkers.shared import DURABLE, GROUP
from tidings.scenarios.trace.origin import Origin
from tidings.scenarios.trace.verdict import Verdict
from tidings.spark.audit.metrics import Missing, Quantities

WITHOUT_DELIVERY = {
    "best-effort": "Mode best-effort does not promise delivery: lost events are not repaired",
    "epidemic": "Mode epidemic repairs losses by gossip, but does not promise delivery",
}


def remarks_of(
    origin: Origin,
    verdicts: Sequence[Verdict],
    quantities: Quantities,
    subscriptions: int,
    never_accepted: int,
) -> list[str]:
    metrics, missing = quantities.metrics, quantities.missing
    remarks = []
    if not metrics.published and not metrics.delivered:
        remarks.append("nothing was published and nothing delivered")
    if not quantities.exact:
        remarks.append("p50 and p99 of all deliveries are up to 0.1 % too low")
    if never_accepted:
        remarks.append(
            f"{never_accepted:,} of {subscriptions:,} subscriptions were never accepted: no deliveries were expected"
        )
    if origin.recorder is not None:
        remarks.append(
            f"recorded by {origin.recorder} only: events that never reached it are not in the trace, so the delivery "
            "ratio says nothing about the network"
        )
    if missing.deliveries:
        remarks.append(
            f"{missing.deliveries:,} of {metrics.expected:,} expected deliveries did not arrive"
            + _why(origin.mode, verdicts, missing)
        )
    return remarks


def _why(mode: str | None, verdicts: Sequence[Verdict], missing: Missing) -> str:
    gaps = next((verdict for verdict in verdicts if verdict.guarantee == GAP_FREE), None)
    shared = any(verdict.guarantee in (DURABLE, GROUP) for verdict in verdicts)
    if gaps is not None:
        excused = missing.deliveries - gaps.violations
        owed = f"{gaps.violations:,}" if gaps.violations else "none"
        reasons = _reasons(missing.in_flight, excused - missing.in_flight, shared=shared)
        return f"; {owed} of these are gaps. Not required: {reasons}" if excused else ""
    reasons = _reasons(missing.in_flight, missing.unconfirmed, shared=shared)
    not_checked = (f" (among them {reasons})" if reasons else "") + ". No verdict covers that"
    if mode in WITHOUT_DELIVERY:
        return f"{not_checked}. {WITHOUT_DELIVERY[mode]}"
    if mode == GUARANTEED:
        return f"{not_checked}, although the mode was {mode}: check it with --mode guaranteed"
    return f"{not_checked}: the trace does not record its mode. If it was guaranteed, check it with --mode guaranteed"


def _reasons(in_flight: int, unconfirmed: int, *, shared: bool) -> str:
    ended = "the subscription was cancelled" + (" or nobody was attached any more" if shared else "")
    parts = [
        f"{in_flight:,} on their way when {ended}" if in_flight else "",
        f"{unconfirmed:,} never confirmed to their publisher" if unconfirmed else "",
    ]
    return " and ".join(filter(None, parts))
