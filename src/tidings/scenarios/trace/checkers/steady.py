"""What groups promise in networks without a guarantee: one member for each event, while nothing changes.

Brokers choose by who the members are, and learn of a change one after the other. Meanwhile an event may go to two
members or to none. So an event counts if nobody joined or left between its publication and its delivery.
"""

from __future__ import annotations

import numpy as np

from tidings.scenarios.trace.coded import NEVER, Array, Coded, Mask, segment_starts

KEPT = "kept"
"""A network with a guarantee, or an unknown one: an event that is delivered again is another attempt."""
STEADY = "steady"
"""A network without a guarantee, in which nothing failed."""
UNSTEADY = "unsteady"
"""The same with failures: brokers may disagree about who the members are."""

SETTLE_NS = 5_000_000_000
"""How long the news that a member has left may travel, repetitions of lost messages included."""


def steady_stretch(coded: Coded, account: Array, since: Array, until: Array) -> Array:
    """Return the number of the stretch without a change of the group's members that has all of `since` to `until`; -1
    if there is none."""
    shares = coded.subscriptions.shares
    found = np.full(len(account), -1, dtype=np.int64)
    for group in np.unique(account).tolist():
        mine, members = account == group, np.flatnonzero(shares.account == group)
        asked, accepted, left = (each[members] for each in (shares.requested, shares.joined, shares.left))
        left = left[left != NEVER]
        starts = np.concatenate([asked, left])
        ends = np.concatenate([np.where(accepted == NEVER, asked, accepted), left + SETTLE_NS])
        order = np.argsort(starts, kind="stable")
        latest_end = np.append(np.iinfo(np.int64).min, np.maximum.accumulate(ends[order]))
        begun = np.searchsorted(starts[order], until[mine], side="right")
        found[mine] = np.where(latest_end[begun] < since[mine], begun, -1)
    return found


def excused(coded: Coded, rows: Array, members: str) -> Mask:
    """Return which of these deliveries may be repetitions of deliveries to other members."""
    if members == KEPT or not len(rows):
        return np.zeros(len(rows), dtype=np.bool_)
    elsewhere = coded.in_group[rows] & ~np.isin(rows, _own_repetitions(coded))
    if members == STEADY:
        published = coded.events.at[coded.event[rows]]
        elsewhere &= steady_stretch(coded, coded.account[rows], published, coded.at[rows]) < 0
    return elsewhere


def _own_repetitions(coded: Coded) -> Array:
    """Return the deliveries of events that the same member had before."""
    rows = np.flatnonzero(coded.known & coded.in_group)
    key = coded.subscription[rows] * len(coded.events) + coded.event[rows]
    order = np.lexsort((coded.position[rows], key))
    again: Array = rows[order][~segment_starts(key[order])]
    return again


def never_owed(coded: Coded, missing: Array) -> Mask:
    """Return which missing events, `account * events + event`, were under way when members joined or left."""
    account, event = np.divmod(missing, max(len(coded.events), 1))
    published = coded.events.at[event]
    return steady_stretch(coded, account, published, published + SETTLE_NS) < 0


def scattered_rows(coded: Coded, rows: Array, value: Array) -> Array:
    """Return the deliveries whose value another member got first, without a change of members in between."""
    published = coded.events.at[coded.event[rows]]
    stretch = steady_stretch(coded, coded.account[rows], published, coded.at[rows])
    rows, value, stretch = rows[stretch >= 0], value[stretch >= 0], stretch[stretch >= 0]
    order = np.lexsort((coded.at[rows], stretch, value, coded.account[rows]))
    rows, value, stretch = rows[order], value[order], stretch[order]
    label = np.unique(np.stack([coded.account[rows], value, stretch]), axis=1, return_inverse=True)[1]
    starts = segment_starts(label.reshape(-1).astype(np.int64))
    first = rows[np.flatnonzero(starts)][np.cumsum(starts) - 1] if len(rows) else rows
    scattered: Array = rows[coded.subscription[rows] != coded.subscription[first]]
    return scattered
