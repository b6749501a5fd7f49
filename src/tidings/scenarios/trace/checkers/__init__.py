"""Checks guarantees over the trace of any run, with one checker for each.

Checkers know nothing of the protocols: they read only the trace tables. Tests, the simulator and the audits on Spark
share them. Read `once`, `per_source`, `gaps`, `expiry`, `total`, `causal`, then `shared` (durable subscriptions and
groups) and `seam`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from tidings.core.errors import TraceError
from tidings.scenarios.trace.checkers.causal import CAUSAL_ORDER, causal_order
from tidings.scenarios.trace.checkers.expiry import EXPIRY, expiry
from tidings.scenarios.trace.checkers.gaps import AGREEMENT, GAP_FREE, agreement, gap_free
from tidings.scenarios.trace.checkers.once import EXACTLY_ONCE, exactly_once
from tidings.scenarios.trace.checkers.per_source import FIFO, fifo
from tidings.scenarios.trace.checkers.seam import SEAM, seam
from tidings.scenarios.trace.checkers.shared import DURABLE, GROUP, durable, group
from tidings.scenarios.trace.checkers.steady import KEPT, STEADY, UNSTEADY
from tidings.scenarios.trace.checkers.total import TOTAL_ORDER, total_order
from tidings.scenarios.trace.reader import Trace
from tidings.scenarios.trace.shares import SharedSubscriptions
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
    "durable",
    "exactly_once",
    "expiry",
    "fifo",
    "gap_free",
    "group",
    "promised",
    "promised_checks",
    "run_check",
    "seam",
    "total_order",
]

GUARANTEES: Mapping[str, Callable[[Trace], Verdict]] = {
    EXACTLY_ONCE: exactly_once,
    FIFO: fifo,
    GAP_FREE: gap_free,
    TOTAL_ORDER: total_order,
    CAUSAL_ORDER: causal_order,
    AGREEMENT: agreement,
    DURABLE: durable,
    GROUP: group,
    SEAM: seam,
    EXPIRY: expiry,
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
_CONFIRMED: Mapping[str, Callable[..., Verdict]] = {GAP_FREE: gap_free, SEAM: seam}

GUARANTEED = "guaranteed"
"""The mode that promises FIFO and no gaps, whatever order a subscription has."""
BEST_EFFORT = "best-effort"
UNKEPT = (BEST_EFFORT, "epidemic")
"""The modes of tidings in which groups keep nothing."""
# Total order keeps a source's order within each topic, not across topics.
_FIFO_WHEN_GUARANTEED = frozenset({"none", "fifo", "causal"})


class Check(NamedTuple):
    """Names a guarantee to check, over the subscriptions with one of `orders` (None: over all).

    Unless `complete`, events may be lost, but not repeated. `members` says what groups promise (`steady`).
    `calm`: durable subscriptions and groups deliver again only what somebody held who went away (`shared`).
    """

    guarantee: str
    orders: frozenset[str] | None = None
    confirmed_only: bool = False
    complete: bool = True
    members: str = KEPT
    calm: bool = False


def promised_checks(
    orders: Iterable[str],
    mode: str | None = None,
    *,
    publisher_killed: bool = False,
    shares: SharedSubscriptions | None = None,
    expiring: bool = False,
    fails: bool = True,
    loses: bool = True,
    calm: bool = False,
) -> list[Check]:
    """Return the checks of what the subscriptions' `orders` promise, and of what the network's mode promises beyond.

    `shares` tells which of them are durable, in groups, or have a start. Exactly once is always among the checks. If a
    publisher was killed, only confirmed events must arrive: its unconfirmed ones may be lost with it. `expiring`: some
    events have a time to expire. Without a guarantee, what groups promise depends on whether anything `fails`, and
    whether the links lose messages. `calm`: nothing fails but clients that crash, in virtual time.
    """
    checks = _promised(orders, mode, publisher_killed, shares, expiring)
    if mode not in UNKEPT:
        return [check._replace(calm=calm and check.guarantee in (DURABLE, GROUP)) for check in checks]
    members = UNSTEADY if fails else STEADY
    lossless = mode == BEST_EFFORT and not fails and not loses
    return [
        check._replace(members=members, complete=check.complete or (check.guarantee == GROUP and lossless))
        for check in checks
    ]


def _promised(
    orders: Iterable[str],
    mode: str | None,
    publisher_killed: bool,
    shares: SharedSubscriptions | None,
    expiring: bool,
) -> list[Check]:
    of_shares = [] if shares is None else _of_shares(shares, mode, publisher_killed)
    in_time = [Check(EXPIRY)] if expiring else []
    return [*_of_orders(frozenset(orders), mode, publisher_killed), *in_time, *of_shares]


def _of_orders(asked: frozenset[str], mode: str | None, publisher_killed: bool) -> list[Check]:
    ordered = [Check(name, of) for name, of in PROMISES.items() if asked & of]
    if mode != GUARANTEED:
        return [Check(EXACTLY_ONCE), *ordered]
    ordered = [check for check in ordered if check.guarantee != FIFO]
    fifo_too = Check(FIFO, _FIFO_WHEN_GUARANTEED)
    return [Check(EXACTLY_ONCE), fifo_too, *ordered, Check(GAP_FREE, None, publisher_killed)]


def _of_shares(shares: SharedSubscriptions, mode: str | None, publisher_killed: bool) -> list[Check]:
    """A durable subscription and a start promise delivery in themselves; groups exist without it, too."""
    found = []
    if shares.durable.any():
        found.append(Check(DURABLE, None, publisher_killed))
    if shares.group.any():
        found.append(Check(GROUP, None, publisher_killed, mode == GUARANTEED))
    if any(shares.starts):
        found.append(Check(SEAM, None, publisher_killed))
    return found


def promised(trace: Trace) -> list[str]:
    """Return the guarantees that the subscriptions promise; exactly once is always among them."""
    return [check.guarantee for check in _promised_checks(trace)]


def _promised_checks(trace: Trace) -> list[Check]:
    subscriptions = trace.coded.subscriptions
    return promised_checks(
        subscriptions.order, shares=subscriptions.shares, expiring=trace.coded.events.any_expire
    )


def check_all(trace: Trace, guarantees: Iterable[str] | None = None) -> list[Verdict]:
    """Check the named guarantees over all subscriptions.

    Without names, check what was promised, each over the subscriptions to which it was promised.
    """
    if guarantees is None:
        return [run_check(trace, check) for check in _promised_checks(trace)]
    names = list(guarantees)
    for name in names:
        if name not in GUARANTEES:
            raise TraceError(f"unknown guarantee {name!r}; known: {', '.join(GUARANTEES)}")
    return [GUARANTEES[name](trace) for name in names]


def run_check(trace: Trace, check: Check) -> Verdict:
    if check.guarantee in _ORDERED:
        return _ORDERED[check.guarantee](trace, orders=check.orders)
    if check.guarantee == EXACTLY_ONCE:
        return exactly_once(trace, members=check.members)
    if check.guarantee == GROUP:
        return group(
            trace,
            confirmed_only=check.confirmed_only,
            complete=check.complete,
            members=check.members,
            calm=check.calm,
        )
    if check.guarantee == DURABLE:
        return durable(trace, confirmed_only=check.confirmed_only, calm=check.calm)
    if check.guarantee in _CONFIRMED:
        return _CONFIRMED[check.guarantee](trace, confirmed_only=check.confirmed_only)
    return GUARANTEES[check.guarantee](trace)
