"""Checks that durable subscriptions and groups end with their leases, and then for good.

A share is kept for `keep_for_ns` after the last one has gone. A trace shows that it had ended when the next one of the
name has another life. Then nobody can have been attached for as long as that before. While brokers or links fail,
brokers may lose sight of clients that did not leave, so a fault counts as the beginning of an absence; and after a
fault the share may be kept longer. A share without `keep_for_ns` does not end.
"""

from __future__ import annotations

import numpy as np

from tidings.scenarios.trace.checkers.rules import BrokenRule
from tidings.scenarios.trace.coded import NEVER, Array, Coded
from tidings.scenarios.trace.disturbances import RECOVERY_NS
from tidings.scenarios.trace.verdict import Witness

NS_PER_S = 1e9
ON_THE_WAY_NS = 10_000_000_000
"""An event that is on its way for longer than this, while nothing fails, has been somewhere else."""


def lease_rules(coded: Coded, accounts: Array, rows: Array) -> list[BrokenRule]:
    """Return who broke the rules among these accounts and deliveries of durable subscriptions or groups."""
    shares = coded.subscriptions.shares
    accounts = accounts[shares.account[accounts] == accounts]
    early = [account for account in accounts.tolist() if _ended_early(coded, account)]
    late = [row for account in accounts.tolist() for row in _attached_late(coded, account)]
    return [
        _of_subscriptions(coded, "ended although its lease was not over", early),
        _of_subscriptions(coded, "was attached to after its lease was over", late),
        _too_old(coded, rows),
    ]


def _members(coded: Coded, account: int) -> Array:
    return np.flatnonzero(coded.subscriptions.shares.account == account)


def _ended_early(coded: Coded, account: int) -> bool:
    """Return whether somebody was attached less than a lease before the next share was there."""
    shares, disturbances = coded.subscriptions.shares, coded.subscriptions.disturbances
    if shares.next[account] < 0:
        return False
    there = int(coded.subscriptions.accepted[shares.next[account]])
    members = _members(coded, account)
    keep_for = int(shares.keep_for[members].min())
    last = -1
    for row in members[shares.joined[members] < there].tolist():
        joined, left = int(shares.joined[row]), min(int(shares.left[row]), there)
        name = coded.subscriptions.subscriber_names[coded.subscriptions.subscriber[row]]
        # `left` is also when the share was cancelled, which is not known better than by this.
        last = max(last, joined, disturbances.before(left, name))
    return there != NEVER and last >= 0 and there - last < keep_for


def _attached_late(coded: Coded, account: int) -> list[int]:
    """Return who was attached to the share long after its lease, or after the next one was there."""
    shares, disturbances = coded.subscriptions.shares, coded.subscriptions.disturbances
    members = _members(coded, account)
    attached = [row for row in members.tolist() if shares.lives[row] is not None]
    keep_for = int(shares.keep_for[members].max())
    following = int(shares.next[account])
    there = int(coded.subscriptions.accepted[following]) if following >= 0 else NEVER
    found = []
    for row in attached:
        asked = int(shares.requested[row])
        left = int(shares.left[members[shares.requested[members] < asked]].max(initial=-1))
        was_there = any(shares.requested[other] < asked for other in attached)
        gone = was_there and left < asked and keep_for != NEVER
        if asked > there or (gone and asked > disturbances.after(left, asked) + RECOVERY_NS + keep_for):
            found.append(row)
    return found


def _too_old(coded: Coded, rows: Array) -> BrokenRule:
    """Find events that were published long before anybody asked for the share: the one before had kept them."""
    shares = coded.subscriptions.shares
    begins = np.full(len(shares.account), np.iinfo(np.int64).min)
    for account in shares.next[shares.next >= 0].tolist():
        begins[account] = shares.requested[_members(coded, account)].min()
    candidates = rows[coded.events.at[coded.event[rows]] < begins[coded.account[rows]]]
    after = coded.subscriptions.disturbances.after
    old = [
        row
        for row, at, begin in zip(
            candidates.tolist(),
            coded.events.at[coded.event[candidates]].tolist(),
            begins[coded.account[candidates]].tolist(),
            strict=True,
        )
        if after(at, begin) + ON_THE_WAY_NS < begin
    ]

    def describe(rule: str, row: int) -> Witness:
        event_id, subscriber, position = (
            coded.event_id(row),
            coded.subscriber_name(row),
            int(coded.position[row]),
        )
        share = shares.name(int(coded.subscription[row]))
        text = f"event {event_id} of {share}, at position {position} of subscriber {subscriber}, {rule}"
        return Witness(text, (event_id,), (subscriber,), (position,))

    def place(row: int) -> tuple[int, ...]:
        return (int(coded.account[row]), int(coded.event[row]), int(coded.position[row]))

    return BrokenRule(
        "was kept by the one before, which had ended", np.array(old, dtype=np.int64), describe, place
    )


def _of_subscriptions(coded: Coded, rule: str, found: list[int]) -> BrokenRule:
    def describe(rule: str, row: int) -> Witness:
        subscriptions = coded.subscriptions
        shares, name = subscriptions.shares, subscriptions.subscriber_names[subscriptions.subscriber[row]]
        life, keep_for = shares.lives[row], int(shares.keep_for[row])
        kept = "without a limit" if keep_for == NEVER else f"for {keep_for / NS_PER_S:g} s"
        text = f"{shares.name(row)} (life {life}, kept {kept}) {rule}: see {subscriptions.describe(row)}"
        return Witness(text, (), (name,))

    return BrokenRule(rule, np.array(found, dtype=np.int64), describe, lambda row: (row,))
