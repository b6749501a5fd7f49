"""The guarantees, each checked once, over the trace of any run.

The checkers know nothing of the protocols: they read the trace tables alone. Tests, simulator and the audits
on Spark use these same functions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from tidings.core.errors import TraceError
from tidings.scenarios.trace.checkers.causal import CAUSAL_ORDER, causal_order
from tidings.scenarios.trace.checkers.gaps import AGREEMENT, GAP_FREE, agreement, gap_free
from tidings.scenarios.trace.checkers.once import EXACTLY_ONCE, exactly_once
from tidings.scenarios.trace.checkers.per_source import FIFO, fifo
from tidings.scenarios.trace.checkers.total import TOTAL_ORDER, total_order
from tidings.scenarios.trace.reader import Trace
from tidings.scenarios.trace.verdict import Verdict, Witness

__all__ = [
    "GUARANTEES",
    "PROMISES",
    "Verdict",
    "Witness",
    "agreement",
    "causal_order",
    "check_all",
    "exactly_once",
    "fifo",
    "gap_free",
    "promised",
    "promised_by",
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
"""Every checker by the name of its guarantee, in the order of reports."""

PROMISES: Mapping[str, frozenset[str]] = {
    FIFO: frozenset({"fifo"}),
    TOTAL_ORDER: frozenset({"total", "causal"}),
    CAUSAL_ORDER: frozenset({"causal"}),
}
"""Which orders of a subscription promise a guarantee of order."""

_ORDERED: Mapping[str, Callable[..., Verdict]] = {
    FIFO: fifo,
    TOTAL_ORDER: total_order,
    CAUSAL_ORDER: causal_order,
}


def promised(trace: Trace) -> list[str]:
    """The guarantees that the subscriptions asked for by their order; exactly once is always among them."""
    return promised_by(trace.coded.subscriptions.order)


def promised_by(orders: Iterable[str]) -> list[str]:
    asked = frozenset(orders)
    return [
        name for name in GUARANTEES if name == EXACTLY_ONCE or (name in PROMISES and asked & PROMISES[name])
    ]


def check_all(trace: Trace, guarantees: Iterable[str] | None = None) -> list[Verdict]:
    """Checks the named guarantees over all subscriptions.

    Without names: what was promised, each only over the subscriptions that it was promised to.
    """
    if guarantees is None:
        return [_check_promised(trace, name) for name in promised(trace)]
    names = list(guarantees)
    for name in names:
        if name not in GUARANTEES:
            raise TraceError(f"there is no guarantee {name!r}; known are {', '.join(GUARANTEES)}")
    return [GUARANTEES[name](trace) for name in names]


def _check_promised(trace: Trace, name: str) -> Verdict:
    if name in _ORDERED:
        return _ORDERED[name](trace, orders=PROMISES[name])
    return GUARANTEES[name](trace)
