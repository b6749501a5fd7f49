"""Which guarantees an audit checks: those named, or those promised."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from difflib import get_close_matches

from tidings.core.errors import PipelineError
from tidings.scenarios.trace.checkers import GUARANTEES, Check, promised_checks
from tidings.scenarios.trace.checkers.causal import CAUSAL_ORDER
from tidings.scenarios.trace.checkers.gaps import AGREEMENT
from tidings.scenarios.trace.checkers.total import TOTAL_ORDER
from tidings.scenarios.trace.shares import SharedSubscriptions

ASKED = "asked"
"""As the mode: check only what the subscriptions asked for."""


def checks_of(
    orders: Iterable[str],
    names: Sequence[str] = (),
    mode: str | None = None,
    *,
    publisher_killed: bool = False,
    shares: SharedSubscriptions | None = None,
    expiring: bool = False,
    calm: bool = False,
) -> list[Check]:
    """Return the named guarantees over all subscriptions; without names, the promised ones (`promised_checks`)."""
    if names:
        return [Check(known_guarantee(name)) for name in dict.fromkeys(names)]
    return promised_checks(
        orders, mode, publisher_killed=publisher_killed, shares=shares, expiring=expiring, calm=calm
    )


def known_guarantee(name: str) -> str:
    """Return the name if there is such a guarantee; PipelineError suggests the nearest."""
    if name in GUARANTEES:
        return name
    near = get_close_matches(name, GUARANTEES, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"known guarantees: {', '.join(GUARANTEES)}"
    raise PipelineError(f"unknown guarantee {name!r}; {hint}")


ACROSS_SUBSCRIBERS = frozenset({TOTAL_ORDER, CAUSAL_ORDER, AGREEMENT})
"""Guarantees that one subscriber alone cannot show."""
