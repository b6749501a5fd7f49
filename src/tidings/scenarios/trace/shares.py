"""Which rows of `subscribed` are one subscription: the attachments to a durable subscription, the members of a group.

They share one account, that of the row that was accepted first: it is accepted with that, ends when one of them was
cancelled, and is owed each event once. A name that is used again after its cancellation is another share. So is one
with another `life`: the lease of the one before was over.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

DURABLE, GROUP = "durable", "group"
NEW = "new"
"""The start of a subscription that gets no history, as has one without a start."""


class SharedSubscriptions:
    """Holds for each row of `subscribed` what share it belongs to. Plain subscriptions have an account of their own."""

    def __init__(
        self, subscribed: Any, requested: Array, accepted: Array, cancelled: Array, gone: Array, never: int
    ) -> None:
        """`gone` says when the subscriber of each row crashed for good, if it did."""
        rows = len(requested)
        self._never = never
        self._groups: list[str | None] = subscribed["share_of"].to_pylist()
        self._durables: list[str | None] = subscribed["durable"].to_pylist()
        self.group_by: list[str | None] = subscribed["group_by"].to_pylist()
        self.account: Array = np.arange(rows)
        """The row of each row's share that was accepted first."""
        self.attachment: Array = np.zeros(rows, dtype=np.int64)
        """Numbers the rows of a share from 0, as they were requested."""
        self.accepted, self.cancelled = accepted.copy(), cancelled.copy()
        """As of the share; only its account is accepted."""
        self.requested, self.joined, self.left = requested, accepted, cancelled
        """As of the row itself: when it asked, was accepted, and left."""
        self.group: Mask = np.array([name is not None for name in self._groups], dtype=np.bool_)
        named = np.array([name is not None for name in self._durables], dtype=np.bool_)
        self.durable: Mask = named & ~self.group
        self.lives: list[str | None] = subscribed["life"].to_pylist()
        self.keep_for: Array = np.asarray(
            subscribed["keep_for_ns"].fill_null(never).to_numpy(), dtype=np.int64
        )
        """How long a row's share is kept while nobody is attached."""
        self.next: Array = np.full(rows, -1)
        """The account of the next share of the name, by account; -1 if none is known."""
        self.over: Mask = np.zeros(rows, dtype=np.bool_)
        """Whether the row's share ended with its lease: what waited is lost."""
        self.ended: Mask = cancelled != never
        """Whether nobody is there at the end to whom events could be delivered: cancelled, or all have left."""
        self.starts = [None if start == NEW else start for start in subscribed["start"].to_pylist()]
        if self.any:
            detached = np.asarray(subscribed["detached_ns"].fill_null(never).to_numpy(), dtype=np.int64)
            detached = np.where(detached == never, gone, detached)
            self.left = np.minimum(cancelled, detached)
            for of_name in self._named(requested, cancelled):
                shares = [sorted(each, key=self.joined.__getitem__) for each in of_name]
                for members in shares:
                    self._join(np.array(members), detached)
                for before, after in pairwise(shares) if self.lives[shares[0][0]] is not None else ():
                    self.next[before[0]] = after[0]
                    self.over[before] = self.ended[before] = True

    @property
    def any(self) -> bool:
        return bool(self.group.any() or self.durable.any())

    def name(self, row: int) -> str:
        """Return what reports call the share of a row; empty for a plain subscription."""
        if self.group[row]:
            return f"{GROUP} {self._groups[row]}"
        return f"{DURABLE} {self._durables[row]}" if self.durable[row] else ""

    def of_kind(self, kind: str) -> Mask:
        return self.group if kind == GROUP else self.durable

    def _named(self, requested: Array, cancelled: Array) -> Iterator[list[list[int]]]:
        """Yield, for each name, the rows of each of its shares, in turn."""
        of_name: dict[str, list[int]] = {}
        for row in np.argsort(requested, kind="stable").tolist():
            if name := self.name(row):
                of_name.setdefault(name, []).append(row)
        for rows in of_name.values():
            if any(self.lives[row] is not None for row in rows):
                yield self._by_life(rows)
            else:
                yield [*self._by_cancellation(rows, requested, cancelled)]

    def _by_cancellation(self, rows: list[int], requested: Array, cancelled: Array) -> Iterator[list[int]]:
        """Who attaches after a cancellation belongs to the next share of the name."""
        life: list[int] = []
        ends = self._never
        for row in rows:
            if life and requested[row] >= ends:
                yield life
                life, ends = [], self._never
            life.append(row)
            ends = min(ends, int(cancelled[row]))
        yield life

    def _by_life(self, rows: list[int]) -> list[list[int]]:
        """Who was never attached asked for the share that was accepted next, or is the last."""
        lives: dict[str, list[int]] = {}
        for row in rows:
            if (life := self.lives[row]) is not None:
                lives.setdefault(life, []).append(row)
        ends = {life: int(self.cancelled[members].min()) for life, members in lives.items()}
        begins = {life: int(self.joined[members].min()) for life, members in lives.items()}
        order = sorted(lives, key=lambda life: (ends[life], begins[life]))
        for row in rows:
            if self.lives[row] is None:
                asked = self.requested[row]
                lives[next((life for life in order if begins[life] >= asked), order[-1])].append(row)
        return [lives[life] for life in order]

    def _join(self, rows: Array, detached: Array) -> None:
        account = rows[0]
        accepted, cancelled = self.accepted[rows], self.cancelled[rows].min()
        live = (accepted != self._never) & (detached[rows] == self._never)
        self.account[rows] = account
        self.attachment[rows[np.argsort(self.requested[rows], kind="stable")]] = np.arange(len(rows))
        self.cancelled[rows] = cancelled
        self.ended[rows] = cancelled != self._never or not live.any()
        self.accepted[rows] = self._never
        self.accepted[account] = accepted.min()

    def families(self, subscriber: Array, subscribers: int) -> Array:
        """Return for each subscriber the lowest with whom it shares something, also by way of others."""
        family = np.arange(subscribers)
        if not self.any:
            return family
        changed = True
        while changed:
            lowest = np.full(len(self.account), subscribers, dtype=np.int64)
            np.minimum.at(lowest, self.account, family[subscriber])
            joined = family.copy()
            np.minimum.at(joined, subscriber, lowest[self.account])
            joined = joined[joined]
            changed = bool((joined != family).any())
            family = joined
        return family
