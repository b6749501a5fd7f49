"""Which guarantees an audit checks, and over which subscriptions: the choices of `trace.checkers` as data."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from typing import NamedTuple

from tidings.core.errors import PipelineError
from tidings.scenarios.trace.checkers import GUARANTEES, PROMISES, promised_by
from tidings.scenarios.trace.checkers.causal import CAUSAL_ORDER
from tidings.scenarios.trace.checkers.gaps import AGREEMENT, GAP_FREE
from tidings.scenarios.trace.checkers.per_source import FIFO
from tidings.scenarios.trace.checkers.total import TOTAL_ORDER

GUARANTEED = "guaranteed"
MODES = ("asked", GUARANTEED)
# Total order alone keeps the order of a source on each topic, not among topics.
_FIFO_WHEN_GUARANTEED = frozenset({"none", "fifo", "causal"})


class Check(NamedTuple):
    """One guarantee, over the subscriptions that asked for one of `orders` (None: over all)."""

    guarantee: str
    orders: frozenset[str] | None = None
    confirmed_only: bool = False


def checks_of(
    orders: Iterable[str], names: Sequence[str] = (), mode: str = MODES[0], *, publisher_killed: bool = False
) -> list[Check]:
    """The named guarantees over all subscriptions; without names what the `orders` asked for, and `mode` promises.

    What a publisher had not got confirmed when it was killed went with it.
    """
    if names:
        return [Check(known_guarantee(name)) for name in dict.fromkeys(names)]
    asked = [Check(name, PROMISES.get(name)) for name in promised_by(orders)]
    if mode != GUARANTEED:
        return asked
    once, *others = asked
    others = [check for check in others if check.guarantee != FIFO]
    return [once, Check(FIFO, _FIFO_WHEN_GUARANTEED), *others, Check(GAP_FREE, None, publisher_killed)]


def known_guarantee(name: str) -> str:
    """The name, if there is such a guarantee; PipelineError with the nearest that there is."""
    if name in GUARANTEES:
        return name
    near = get_close_matches(name, GUARANTEES, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(GUARANTEES)}"
    raise PipelineError(f"there is no guarantee {name!r}; {hint}")


ACROSS_SUBSCRIBERS = frozenset({TOTAL_ORDER, CAUSAL_ORDER, AGREEMENT})
"""What cannot be told from one subscriber alone."""
