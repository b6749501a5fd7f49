"""Counts the subscriptions of a table in this process: checked, coded, and counted with numpy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidings.core.errors import PipelineError
from tidings.spark.plan.counts import Ints, SubscriptionCounts, SubscriptionTally
from tidings.spark.plan.entries import PlanEntries
from tidings.spark.plan.sites import PlannedSites, found_sites, no_site, unknown_site
from tidings.spark.plan.tables import check_topics
from tidings.spark.tasks import Progress


@dataclass(frozen=True)
class CountedSubscriptions:
    """What both ways of counting return."""

    entries: PlanEntries
    sites: PlannedSites
    counts: SubscriptionCounts


def count_here(
    where: str,
    flat: pa.Table,
    sites: PlannedSites | None,
    *,
    rest: bool = False,
    progress: Progress = lambda share: None,
) -> CountedSubscriptions:
    """Count rows as of `tables.flat_rows`. Without `sites`, those that the rows name."""
    entries = PlanEntries(check_topics(where, flat), rest=rest)
    flat = flat.combine_chunks()
    known = sites or found_sites(pc.unique(flat.column("site")).drop_null().to_pylist())
    clients = pc.dictionary_encode(flat.column("client")).combine_chunks()
    codes = _ints(clients.indices)
    at = _site_of_clients(where, flat, codes, known)
    topics = _ints(pc.index_in(flat.column("topic"), value_set=pa.array(entries.texts, pa.string())))
    order = np.argsort(codes, kind="stable")
    tally = SubscriptionTally(entries, len(known.listed))
    tally.add(codes[order], topics[order], at, progress)
    return CountedSubscriptions(entries, known, tally.counts())


def _site_of_clients(where: str, flat: pa.Table, clients: Ints, sites: PlannedSites) -> Ints:
    """Return the site of each client, by code; PipelineError names the row with an unknown, second or missing site."""
    names = flat.column("site")
    if sites.default is not None:
        names = pc.fill_null(names, sites.default)
    codes = pc.index_in(names, value_set=pa.array(sites.names, pa.string()))
    if codes.null_count:
        place = pc.indices_nonzero(pc.is_null(codes))[0].as_py()
        row, client, site = (flat.column(name)[place].as_py() for name in ("row", "client", "site"))
        if site is None:
            raise no_site(f"{where}: row {row}", client)
        raise unknown_site(f"{where}: row {row}", site, sites)
    coded = _ints(codes)
    first = np.zeros(int(clients.max(initial=-1)) + 1, dtype=np.int64)
    first[clients[::-1]] = coded[::-1]  # written in reverse: a client's first row wins
    other = np.flatnonzero(first[clients] != coded)
    if len(other):
        place = int(other[0])
        row, client = (flat.column(name)[place].as_py() for name in ("row", "client"))
        one, two = sites.names[first[clients[place]]], sites.names[coded[place]]
        raise PipelineError(
            f"{where}: row {row}: client {client!r} is at site {two!r}, but an earlier row says {one!r}"
        )
    return first


def _ints(column: Any) -> Ints:
    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    return np.asarray(array.cast(pa.int64()).to_numpy(zero_copy_only=False), dtype=np.int64)
