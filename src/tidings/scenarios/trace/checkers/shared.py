"""Checks durable subscriptions and groups: every event is done exactly once, and repetitions are marked.

Each time that a broker sends an event is an attempt. The trace has those that an application saw, so numbers may be
left out: an attempt that was under way when its client died was seen by nobody. A client that was paused may show what
it holds after somebody else got that as a later attempt. So attempts are compared by number and, but for those to one
client, not by time.

In a *calm* run nothing fails but clients that crash, and nobody gives events back. There an event comes again only
because its holder went away: nobody gets what somebody who is still there was shown, and each attempt after the first
needs somebody who had left. That may have been before the event was published: a broker learns of it later.
"""

from __future__ import annotations

import numpy as np

from tidings.scenarios.trace.checkers.by_value import overtaken_rows, values
from tidings.scenarios.trace.checkers.leases import lease_rules
from tidings.scenarios.trace.checkers.rules import BrokenRule, Key, found_by_rules
from tidings.scenarios.trace.checkers.steady import KEPT, STEADY, excused, never_owed, scattered_rows
from tidings.scenarios.trace.coded import NEVER, Array, Coded, highest_before, segment_starts
from tidings.scenarios.trace.demand import demand
from tidings.scenarios.trace.reader import Trace
from tidings.scenarios.trace.shares import DURABLE, GROUP
from tidings.scenarios.trace.verdict import Found, Verdict, Witness, verdict_of

__all__ = ["DURABLE", "GROUP", "durable", "find_wrong_shares", "group"]

ORDERED = frozenset({"fifo", "causal", "total"})
"""The orders of subscriptions that hold across redelivery. Across publishers, a source has its order on each topic."""


def durable(
    trace: Trace, *, confirmed_only: bool = False, complete: bool = True, calm: bool = False
) -> Verdict:
    """Check that every event that a durable subscription is owed (see `trace.demand`) is done exactly once.

    An event may be delivered again only as a higher attempt, and only if no lower one was done. With an order, what
    comes again comes in the order of its source, before what is newer. What is not done may wait if nobody is attached
    at the end. Unless `complete`, nothing needs to be done: for a run in which a broker lost
    what it kept. In a `calm` run nothing comes again but what somebody held who went away.

    A durable subscription ends when its lease is over, and not before; then the next one of the name begins with new
    events (see `leases`).

    `counts` has how many events were `expected`, how many of these are `done`, and how many deliveries are `repeated`.
    """
    found = find_wrong_shares(trace.coded, DURABLE, confirmed_only, complete, calm=calm)
    return verdict_of(DURABLE, [found])


def group(
    trace: Trace,
    *,
    confirmed_only: bool = False,
    complete: bool = True,
    members: str = KEPT,
    calm: bool = False,
) -> Verdict:
    """Check that every event that a group is owed is done by exactly one member, as for `durable`.

    With `group_by`, events of a source with equal values are delivered in the order of their sequence numbers, as far
    as they are done (see `by_value`).

    A group ends with its lease, as a durable subscription does.

    `members` says what the network promises (`steady`): without a guarantee, one member gets each event, and all events
    of a value, while members neither join nor leave.
    """
    found = find_wrong_shares(trace.coded, GROUP, confirmed_only, complete, members, calm)
    return verdict_of(GROUP, [found])


def find_wrong_shares(
    coded: Coded,
    kind: str,
    confirmed_only: bool = False,
    complete: bool = True,
    members: str = KEPT,
    calm: bool = False,
) -> Found:
    accounts = coded.own[coded.subscriptions.shares.of_kind(kind)[coded.own]]
    of_kind = coded.known & (coded.in_group if kind == GROUP else coded.durable)
    done_keys = coded.keys_of(of_kind & (coded.done != NEVER))
    owed = demand(coded, confirmed_only=confirmed_only, accounts=accounts, arrived=done_keys)
    rows = _by_attempt(coded, np.flatnonzero(of_kind))
    missing = owed.missing if complete else owed.missing[:0]
    if members != KEPT:
        missing = missing[~never_owed(coded, missing)]
    broken = [_undone(coded, rows, missing), *_wrong_rows(coded, rows, members)]
    if calm and members == KEPT:
        broken += _unexplained(coded, rows)
    if kind == DURABLE:
        broken.append(
            _of_rows(coded, "comes again after a later one of its source", _out_of_place(coded, rows))
        )
    if kind == GROUP and members == KEPT:
        overtaken = _by_attempt(coded, overtaken_rows(coded))
        broken.append(_of_rows(coded, "comes after a later one of its source with the same value", overtaken))
    elif kind == GROUP and members == STEADY:
        scattered = _by_attempt(coded, scattered_rows(coded, *values(coded, rows)))
        broken.append(_of_rows(coded, "has a value of which another member got events", scattered))
    if members == KEPT:
        broken += lease_rules(coded, accounts, rows)
    repeated = int(np.count_nonzero(coded.attempt[rows] > 1))
    counts = {"expected": owed.expected, "done": owed.delivered, "repeated": repeated}
    return found_by_rules(broken)._replace(counts=counts)


def _by_attempt(coded: Coded, rows: Array) -> Array:
    """Return the deliveries by share, event, attempt and time."""
    columns = (coded.position, coded.at, coded.attempt, coded.event, coded.account)
    order = np.lexsort([column[rows] for column in columns])
    sorted_rows: Array = rows[order]
    return sorted_rows


def _wrong_rows(coded: Coded, rows: Array, members: str) -> list[BrokenRule]:
    """`rows` are those of `_by_attempt`."""
    attempt, done = coded.attempt[rows], coded.done[rows]
    key = coded.account[rows] * len(coded.events) + coded.event[rows]
    unmarked = ~(segment_starts(key) | segment_starts(attempt))
    done_before = highest_before(key, (done != NEVER).astype(np.int64)) == 1
    repeats = ~excused(coded, rows, members)
    unmarked, done_before = unmarked & repeats, done_before & repeats
    rules = {
        "has an attempt below 1": attempt < 1,
        "was acknowledged before it was delivered": done < coded.at[rows],
        "is a repetition without a mark: it was delivered with this attempt before": unmarked,
        "is delivered again although it was done": done_before & (done == NEVER),
        "is done again": done_before & (done != NEVER),
    }
    found = [_of_rows(coded, rule, rows[mask]) for rule, mask in rules.items()]
    return [*found, _of_rows(coded, "comes after a later attempt to the same client", _backward(coded, rows))]


def _backward(coded: Coded, rows: Array) -> Array:
    """Return the deliveries whose client had seen a later attempt of the event before, in the same attachment."""
    key = coded.subscription[rows] * len(coded.events) + coded.event[rows]
    order = np.lexsort((coded.position[rows], key))
    rank = np.unique(coded.attempt[rows][order], return_inverse=True)[1].astype(np.int64)
    backward = rank < highest_before(key[order], rank)
    return _by_attempt(coded, rows[order][backward])


def _out_of_place(coded: Coded, rows: Array) -> Array:
    """Return the repetitions that an ordered subscription shows to a new client after a later event of the source.

    What a client gave back comes again to itself, so only the first delivery of an event to each client counts. The
    very first one is for the checkers of the orders.
    """
    subscriptions, events = coded.subscriptions, coded.events
    rows = rows[subscriptions.with_orders(ORDERED)[coded.subscription[rows]] & ~coded.out_of_order[rows]]
    rows = rows[np.lexsort((coded.position[rows], coded.subscription[rows]))]
    rows = rows[np.sort(np.unique(_keys(coded, coded.subscription, rows), return_index=True)[1])]
    key = _keys(coded, coded.account, rows)
    order = np.lexsort((coded.turn[rows], key))
    is_again = np.empty(len(rows), dtype=np.bool_)
    is_again[order] = ~segment_starts(key[order])

    event = coded.event[rows]
    by_topic = subscriptions.with_orders(ORDERED - {"fifo"})[coded.subscription[rows]]
    topic = np.where(by_topic, events.topic[event] + 1, 0)
    streams = np.stack([coded.subscription[rows], events.source[event], topic])
    stream = np.unique(streams, axis=1, return_inverse=True)[1].reshape(-1).astype(np.int64)
    order = np.argsort(stream, kind="stable")
    rank = events.sequence_rank[event[order]]
    late = order[rank < highest_before(stream[order], rank)]
    return _by_attempt(coded, rows[late[is_again[late]]])


def _keys(coded: Coded, of: Array, rows: Array) -> Array:
    keys: Array = of[rows] * len(coded.events) + coded.event[rows]
    return keys


def _unexplained(coded: Coded, rows: Array) -> list[BrokenRule]:
    """Return the repetitions that no departure explains; `rows` are those of `_by_attempt`."""
    left, attempt, at = coded.subscriptions.shares.left, coded.attempt[rows], coded.at[rows]
    key = coded.account[rows] * len(coded.events) + coded.event[rows]
    again = np.flatnonzero(~segment_starts(key) & segment_starts(attempt))
    held = again[left[coded.subscription[rows[again - 1]]] > at[again]]
    return [
        _of_rows(coded, "comes again although its holder before had not gone away", rows[held]),
        _of_rows(coded, "is marked although too few holders went away", rows[_overmarked(coded, rows)]),
    ]


def _overmarked(coded: Coded, rows: Array) -> Array:
    """Return which deliveries had more attempts before than holders had left."""
    shares = coded.subscriptions.shares
    account, attempt, at = coded.account[rows], coded.attempt[rows], coded.at[rows]
    found = [np.empty(0, dtype=np.int64)]
    for share in np.unique(account[attempt > 1]).tolist():
        mine = np.flatnonzero((attempt > 1) & (account == share))
        gone = np.searchsorted(np.sort(shares.left[shares.account == share]), at[mine], side="right")
        found.append(mine[gone < attempt[mine] - 1])
    return np.sort(np.concatenate(found))


def _of_rows(coded: Coded, rule: str, rows: Array) -> BrokenRule:
    def describe(rule: str, row: int) -> Witness:
        event_id, subscriber = coded.event_id(row), coded.subscriber_name(row)
        position, share = int(coded.position[row]), _share(coded, row)
        text = (
            f"event {event_id}, attempt {coded.attempt[row]} of {share}, at position {position} of subscriber "
            f"{subscriber}, {rule}"
        )
        return Witness(text, (event_id,), (subscriber,), (position,))

    def place(row: int) -> Key:
        columns = (coded.account, coded.event, coded.attempt, coded.at, coded.position)
        return (*(int(column[row]) for column in columns), coded.number(row))

    return BrokenRule(rule, rows, describe, place)


def _undone(coded: Coded, rows: Array, missing: Array) -> BrokenRule:
    def describe(rule: str, key: int) -> Witness:
        account, event = divmod(key, len(coded.events))
        event_id = coded.events.name(event)
        mine = rows[(coded.account[rows] == account) & (coded.event[rows] == event)]
        who = tuple(coded.subscriber_name(row) for row in mine)
        seen = f"delivered to {', '.join(who)}" if who else "never delivered"
        share = coded.subscriptions.shares.name(account)
        return Witness(f"event {event_id} of {share} {rule}: {seen}", (event_id,), who)

    return BrokenRule("was never done", missing, describe, lambda key: (key,))


def _share(coded: Coded, row: int) -> str:
    return coded.subscriptions.shares.name(int(coded.subscription[row]))
