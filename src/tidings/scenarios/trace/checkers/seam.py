"""Checks the seam: a subscription with a start gets history, then live events, with no gap or repetition between them.

An archive may begin later than a source did, so the events of a source are owed from the first that arrived. With start
"last" that holds for each topic, of which history has the newest event. A durable subscription or a group counts once,
with the start of who attached first; for it, an event arrives when somebody is done with it.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tidings.scenarios.trace.checkers.once import repeated_rows, repetitions
from tidings.scenarios.trace.checkers.rules import BrokenRule, found_by_rules
from tidings.scenarios.trace.coded import NEVER, Array, Coded, index_in_sorted
from tidings.scenarios.trace.demand import windows
from tidings.scenarios.trace.reader import Trace
from tidings.scenarios.trace.verdict import Found, Verdict, Witness, verdict_of

SEAM = "seam"
EARLIEST, LAST = "earliest", "last"


def seam(trace: Trace, *, confirmed_only: bool = False, whole: bool = False) -> Verdict:
    """Check that the events of each source are contiguous, from the first that a subscription with a start got.

    That is up to the last that it got and, while it lasts, up to its acceptance: `gap_free` checks what follows. With
    `whole`, start "earliest" begins with the first event of each source: the archive keeps everything.
    """
    return verdict_of(SEAM, [find_seams(trace.coded, confirmed_only, whole)])


def find_seams(coded: Coded, confirmed_only: bool = False, whole: bool = False) -> Found:
    starts = coded.subscriptions.shares.starts
    accounts = [row for row in coded.own.tolist() if starts[row] and coded.subscriptions.account[row] == row]
    missing = np.concatenate(
        [np.empty(0, dtype=np.int64), *_gaps(coded, accounts, confirmed_only=confirmed_only, whole=whole)]
    )
    repeated = repeated_rows(coded)
    repeated = repeated[np.isin(coded.account[repeated], np.array(accounts, dtype=np.int64))]

    def describe(rule: str, key: int) -> Witness:
        row, event = divmod(key, len(coded.events))
        event_id = coded.events.name(event)
        name = coded.subscriptions.subscriber_names[coded.subscriptions.subscriber[row]]
        text = f"event {event_id}, selected by {coded.subscriptions.describe_account(row)}, {rule}"
        return Witness(text, (event_id,), (name,))

    return found_by_rules(
        [
            BrokenRule("is missing between history and live events", missing, describe, lambda key: (key,)),
            repetitions(coded, "is delivered again at the seam", repeated),
        ]
    )


def _gaps(coded: Coded, accounts: list[int], *, confirmed_only: bool, whole: bool) -> Iterator[Array]:
    """Yield the keys of what each of these accounts lacks."""
    _, ends = windows(coded)
    size = len(coded.events)
    shares = coded.subscriptions.shares
    done = coded.keys_of(coded.known & (coded.durable | coded.in_group) & (coded.done != NEVER))
    for row in accounts:
        is_share = bool(shares.durable[row] or shares.group[row])
        arrived = done if is_share else coded.delivered_keys
        low, high = np.searchsorted(arrived, (row * size, (row + 1) * size))
        start = str(coded.subscriptions.shares.starts[row])
        selected = coded.interests.selected(int(coded.interests.of_subscription[row]))
        wanted = selected[: np.searchsorted(selected, ends[row])]
        lacking = _lacking(coded, row, wanted, arrived[low:high] - row * size, start, whole=whole)
        lacking = lacking[coded.events.expires_at[lacking] == NEVER]
        if is_share and coded.subscriptions.ended[row]:  # what somebody has waits for the next one
            under_way = index_in_sorted(coded.delivered_keys, lacking + row * size) >= 0
            lacking = lacking[~(under_way | bool(shares.group[row]))]
        if confirmed_only:
            lacking = lacking[coded.events.confirmed_at[lacking] != NEVER]
        yield lacking + row * size


def _lacking(coded: Coded, row: int, wanted: Array, got: Array, start: str, *, whole: bool) -> Array:
    """Return which of the wanted events lie between the first and the last that this account got of their source."""
    events = coded.events
    stream = events.source * (events.topics + 1) + (events.topic + 1 if start == LAST else 0)
    first = np.full(len(events.source_names) * (events.topics + 1), len(events), dtype=np.int64)
    last = np.full(len(first), -1, dtype=np.int64)
    np.minimum.at(first, stream[got], got)
    np.maximum.at(last, stream[got], got)
    if whole and start == EARLIEST:
        first[:] = -1
    subscriptions = coded.subscriptions
    accepted = int(subscriptions.accepted[row])
    until = (
        int(np.searchsorted(events.at, accepted)) if accepted != NEVER and not subscriptions.ended[row] else 0
    )
    lacking = np.setdiff1d(wanted, got, assume_unique=True)
    mine = stream[lacking]
    between = (lacking > first[mine]) & ((lacking < last[mine]) | (lacking < until))
    found: Array = lacking[between]
    return found
