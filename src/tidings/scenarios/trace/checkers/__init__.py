"""Checks guarantees over the trace of any run, with one checker for each.

Checkers know nothing of the protocols: they read only the trace tables. Tests, the simulator and the audits on Spark
share them. Read `once`, `per_source`, `gaps`, `total`, then `causal`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from tidings.core.errors import TraceError
from tidings.scenarios.trace.checkers.causal import CAUSAL_ORDER, causal_order
from tidings.scenarios.trace.checkers.gaps import AGREEMENT, GAP_FREE, agreement, gap_free
from tidings.scenarios.trace.checkers.once import EXACTLY_ONCE, exactly_once
from tidings.scenarios.trace.checkers.per_source import FIFO, fifo
from tidings.scenarios.trace.checkers.total import TOTAL_ORDER, total_order
from tidings.scenarios.trace.reader import Trace
from tidings.scenarios.trace.verdict import Verdict, Witness

__all__ = [
    "GUARANTEED",
    "GUARANTEES",
    "PROMISES",
    "Check",
    "Verdict",
    "Witness",
    "agreement",
    "causal_order",
    "check_all",
    "exactly_once",
    "fifo",
    "gap_free",
    "promised",
    "promised_checks",
    "run_check",
    "total_order",
]

GUARANTEES: Mapping[str, Callable[[Trace], Verdict]] = {
    EXACTLY_ONCE: exactly_once,
    FIFO: fifo,
    GAP_FREE: gap_free,
    TOTAL_ORDER: total_order,
    CAUSAL_ORDER: causal_order,
    AGREEMENT: agreement,
}
"""Guarantee -> checker, in the order of reports."""

PROMISES: Mapping[str, frozenset[str]] = {
    FIFO: frozenset({"fifo"}),
    TOTAL_ORDER: frozenset({"total", "causal"}),
    CAUSAL_ORDER: frozenset({"causal"}),
}
"""Guarantee -> the subscription orders that promise it."""

_ORDERED: Mapping[str, Callable[..., Verdict]] = {
    FIFO: fifo,
    TOTAL_ORDER: total_order,
    CAUSAL_ORDER: causal_order,
}


GUARANTEED = "guaranteed"
"""The mode that promises FIFO and no gaps, whatever order a subscription has."""
# Total order keeps a source's order within each topic, not across topics.
_FIFO_WHEN_GUARANTEED = frozenset({"none", "fifo", "causal"})


class Check(NamedTuple):
    """Names a guarantee to check, over the subscriptions with one of `orders` (None: over all)."""

    guarantee: str
    orders: frozenset[str] | None = None
    confirmed_only: bool = False


def promised_checks(
    orders: Iterable[str], mode: str | None = None, *, publisher_killed: bool = False
) -> list[Check]:
    """Return the checks of what the subscriptions' `orders` promise, and of what the network's mode promises beyond.

    Exactly once is always among them. If a publisher was killed, only confirmed events must arrive: its unconfirmed
    ones may be lost with it.
    """
    asked = frozenset(orders)
    ordered = [Check(name, of) for name, of in PROMISES.items() if asked & of]
    if mode != GUARANTEED:
        return [Check(EXACTLY_ONCE), *ordered]
    ordered = [check for check in ordered if check.guarantee != FIFO]
    fifo_too = Check(FIFO, _FIFO_WHEN_GUARANTEED)
    return [Check(EXACTLY_ONCE), fifo_too, *ordered, Check(GAP_FREE, None, publisher_killed)]


def promised(trace: Trace) -> list[str]:
    """Return the guarantees that the subscriptions' orders promise; exactly once is always among them."""
    return [check.guarantee for check in promised_checks(trace.coded.subscriptions.order)]


def check_all(trace: Trace, guarantees: Iterable[str] | None = None) -> list[Verdict]:
    """Check the named guarantees over all subscriptions.

    Without names, check what was promised, each over the subscriptions to which it was promised.
    """
    if guarantees is None:
        return [run_check(trace, check) for check in promised_checks(trace.coded.subscriptions.order)]
    names = list(guarantees)
    for name in names:
        if name not in GUARANTEES:
            raise TraceError(f"unknown guarantee {name!r}; known: {', '.join(GUARANTEES)}")
    return [GUARANTEES[name](trace) for name in names]


def run_check(trace: Trace, check: Check) -> Verdict:
    if check.guarantee in _ORDERED:
        return _ORDERED[check.guarantee](trace, orders=check.orders)
    if check.guarantee == GAP_FREE:
        return gap_free(trace, confirmed_only=check.confirmed_only)
    return GUARANTEES[check.guarantee](trace)
