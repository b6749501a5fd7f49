"""Counts how many clients have both of two topics, for all pairs at once: one matrix product over (client x topic).

The clients' sites are further columns of the matrix, so the same product also counts each site's clients, and how many
of them have each topic. Products of blocks of clients are added up: block by block here, partition by partition on
Spark (spark/plan/on_spark.py). Counts of a block are exact in float32, their sums are integers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from tidings.spark.plan.entries import PlanEntries
from tidings.spark.tasks import Progress

Ints = np.ndarray[Any, np.dtype[np.int64]]
Flags = np.ndarray[Any, np.dtype[np.bool_]]
BLOCK_CLIENTS = 4096
"""Far below 2 ** 24, up to which float32 counts exactly."""


@dataclass(frozen=True)
class SubscriptionCounts:
    """What planning needs to know about all subscriptions."""

    pairs: Ints
    """[entry, entry]: clients that have both; on the diagonal, the subscribers of an entry."""
    interest: Ints
    """[entry, site]: subscribers."""
    clients: Ints
    """[site]: clients."""

    @property
    def subscribers(self) -> Ints:
        return np.diagonal(self.pairs)

    def groups(self, threshold: int) -> Flags:
        """Return [entry, entry]: whether the second is in the sequencing group of the first."""
        found: Flags = self.pairs >= threshold
        np.fill_diagonal(found, False)
        return found


class SubscriptionTally:
    """Adds up the subscriptions of clients; each client is added whole and once."""

    def __init__(self, entries: PlanEntries, sites: int) -> None:
        self._entries = entries
        self._sites = sites
        width = len(entries) + sites
        self.sums: Ints = np.zeros((width, width), dtype=np.int64)

    def add(self, clients: Ints, topics: Ints, sites: Ints, progress: Progress = lambda share: None) -> None:
        """Add clients: client `clients[i]`, ascending from 0, has entry `topics[i]`; client c is at site `sites[c]`."""
        starts = range(0, len(sites), BLOCK_CLIENTS)
        cuts = np.searchsorted(clients, [*starts, len(sites)])
        for number, start in enumerate(starts):
            rows = slice(cuts[number], cuts[number + 1])
            self._add_block(clients[rows] - start, topics[rows], sites[start : start + BLOCK_CLIENTS])
            progress((number + 1) / len(starts))

    def _add_block(self, clients: Ints, topics: Ints, sites: Ints) -> None:
        matrix = np.zeros((len(sites), len(self.sums)), dtype=np.float32)
        matrix[clients, topics] = 1
        self._widen(matrix, clients, topics)
        matrix[np.arange(len(sites)), len(self._entries) + sites] = 1
        self.sums += np.rint(matrix.T @ matrix).astype(np.int64)

    def _widen(self, matrix: Any, clients: Ints, topics: Ints) -> None:
        """Give clients with a pattern every entry that overlaps with one of their topics."""
        wild = np.unique(clients[self._entries.wild[topics]])
        if len(wild):
            count = len(self._entries)
            overlaps = self._entries.overlaps.astype(np.float32)
            matrix[wild, :count] = matrix[wild, :count] @ overlaps > 0

    def counts(self) -> SubscriptionCounts:
        return counts_of(self.sums, len(self._entries))


def counts_of(sums: Ints, entries: int) -> SubscriptionCounts:
    return SubscriptionCounts(
        pairs=sums[:entries, :entries].copy(),
        interest=sums[:entries, entries:].copy(),
        clients=np.diagonal(sums)[entries:].copy(),
    )
