"""Checks expiry: no event is shown after it has expired."""

from __future__ import annotations

import numpy as np

from tidings.scenarios.trace.coded import NEVER, Coded
from tidings.scenarios.trace.reader import Trace
from tidings.scenarios.trace.verdict import Case, Found, Verdict, Witness, first_cases, verdict_of

EXPIRY = "expiry"


def expiry(trace: Trace) -> Verdict:
    """Check that no delivery comes after its event's `expires_ns`; the instant itself is in time."""
    return verdict_of(EXPIRY, [find_expired(trace.coded)])


def find_expired(coded: Coded) -> Found:
    # The appended value stands for events that were never published (-1).
    expires_at = np.append(coded.events.expires_at, NEVER)[coded.event]
    late = np.flatnonzero(coded.at > expires_at)

    def describe(row: int) -> Case:
        event_id, name, position = coded.event_id(row), coded.subscriber_name(row), int(coded.position[row])
        late_ns = int(coded.at[row] - expires_at[row])
        text = f"event {event_id} at position {position} of subscriber {name} is shown {late_ns} ns after it expired"
        return Case((coded.number(row),), Witness(text, (event_id,), (name,), (position,)))

    return Found(len(late), first_cases(late.tolist(), describe))
