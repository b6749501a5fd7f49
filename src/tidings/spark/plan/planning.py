"""Plans an order before it is rolled out: from a table of subscriptions, what stamps will cost, and a layout.

Sequencing groups and the sizes of timestamps follow from the subscriptions; `ordering.placement` chooses where topics
are numbered and in which precedence. Without a master everything is counted in this process (spark/plan/local.py), with
one on Spark (spark/plan/on_spark.py), with the same result.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tidings.core.errors import PipelineError, TopicError
from tidings.core.events.topics import check_topic
from tidings.core.ordering.layout import Layout, ServerPlacement
from tidings.core.ordering.placement import Placement
from tidings.drivers.address import Address
from tidings.drivers.sockets.ordering_links import check_layout_size
from tidings.spark.plan.counts import Flags, Ints
from tidings.spark.plan.entries import PlanEntries
from tidings.spark.plan.local import CountedSubscriptions, count_here
from tidings.spark.plan.placement import demand_of, placements
from tidings.spark.plan.sites import PlannedSite, PlannedSites, standby_of, witness_of
from tidings.spark.plan.sizes import Floats, SizeQuantiles, sizes_of
from tidings.spark.plan.tables import STDIN, flat_rows, kind_of, read_table
from tidings.spark.plan.trace import read_trace, trace_directory
from tidings.spark.tasks import Progress

BY_SUBSCRIBERS = "subscribers"
BY_PUBLICATIONS = "publications"
COUNTING = 0.7
"""The approximate share of counting in the work; the rest is the placement."""


@dataclass(frozen=True)
class PlanRequest:
    """What to plan. `weights` None: those of the source, or subscribers. `rest`: `/**` is ordered, too."""

    threshold: int = 2
    sites: PlannedSites | None = None
    weights: Mapping[str, float] | None = None
    rest: bool = False
    master: str | None = None
    progress: Progress = lambda share: None


@dataclass(frozen=True)
class OrderPlan:
    source: str
    threshold: int
    counted: CountedSubscriptions
    groups: Flags
    weights: Floats
    weighted_by: str
    placements: Mapping[str, Placement[int]]
    notes: tuple[str, ...]

    @property
    def entries(self) -> PlanEntries:
        return self.counted.entries

    @property
    def sites(self) -> PlannedSites:
        return self.counted.sites

    @property
    def planned(self) -> Placement[int]:
        return self.placements["planned"]

    @property
    def stamp_entries(self) -> Ints:
        """The number of entries in the stamps of each topic: one per other topic of the group."""
        return np.asarray(self.groups.sum(axis=1, dtype=np.int64))

    @property
    def sizes(self) -> dict[str, SizeQuantiles | None]:
        """The sizes of stamps where every topic counts once, and where it counts by how much is published on it."""
        entries = self.stamp_entries
        return {
            "topics": sizes_of(entries, np.ones(len(entries))),
            "publications": sizes_of(entries, self.weights),
        }

    def layout(self) -> tuple[Layout, dict[str, Address]] | None:
        """Return the layout to start sequencers with; None if there is nothing to number."""
        servers = self.planned.servers()
        if not servers:
            return None
        places = [
            _place(self.sites.listed[site], tuple(self.entries.texts[number] for number in numbers))
            for site, numbers in servers
        ]
        layout = Layout(places, causal=self.threshold == 1)
        check_layout_size(layout)
        return layout, self.sites.nodes(site for site, _ in servers)

    def summary(self) -> dict[str, Any]:
        """Return everything but the groups, for programs."""
        counts = self.counted.counts
        return {
            "source": self.source,
            "order": "causal" if self.threshold == 1 else "total",
            "threshold": self.threshold,
            "clients": int(counts.clients.sum()),
            "topics": len(self.entries),
            "subscriptions": int(counts.subscribers.sum()),
            "weighted_by": self.weighted_by,
            "sites": dict(zip(self.sites.names, counts.clients.tolist(), strict=True)),
            "entries_per_stamp": {
                by: None if sizes is None else asdict(sizes) for by, sizes in self.sizes.items()
            },
            "placements": {
                name: {
                    "local": placed.local,
                    "crossings": placed.crossings,
                    "servers": len(placed.servers()),
                }
                for name, placed in self.placements.items()
            },
            "servers": [
                {
                    "site": self.sites.names[site],
                    "topics": [self.entries.texts[number] for number in numbers],
                }
                for site, numbers in self.planned.servers()
            ],
            "notes": list(self.notes),
        }


def _place(site: PlannedSite, topics: tuple[str, ...]) -> ServerPlacement:
    return ServerPlacement(site.name, topics, standby=standby_of(site), witness=witness_of(site))


def make_plan(source: str, request: PlanRequest) -> OrderPlan:
    """Plan for the table or the trace at a path; PipelineError says what is wrong, and where."""
    of_client = {} if request.sites is None else request.sites.of_client
    directory = trace_directory(Path(source))
    if directory is not None:
        trace = read_trace(directory, of_client)
        return plan_rows(source, trace.flat, request, weights=trace.weights)
    if request.master is not None and Path(source) != STDIN:
        return _plan_on_spark(source, None, request, None)
    kind_of(source)  # errors name the source as given, even if it is not a path
    flat = flat_rows(source, read_table(Path(source)), of_client)
    return plan_rows(source, flat, request)


def plan_rows(
    source: str, flat: Any, request: PlanRequest, *, weights: Mapping[str, float] | None = None
) -> OrderPlan:
    """Plan for rows as of `tables.flat_rows`; the source's weights apply if the request has none."""
    if request.master is not None:
        return _plan_on_spark(source, flat, request, weights)
    counted = count_here(
        source,
        flat,
        request.sites,
        rest=request.rest,
        progress=lambda share: request.progress(COUNTING * share),
    )
    return plan_counted(source, counted, request, weights)


def _plan_on_spark(
    source: str, flat: Any | None, request: PlanRequest, weights: Mapping[str, float] | None
) -> OrderPlan:
    from tidings.spark.plan.on_spark import count_on_spark, read_frame
    from tidings.spark.session import spark_session

    with spark_session(request.master, app="tidings plan") as session:
        if flat is None:
            rows = read_frame(session, source, request.sites)
        else:
            rows = session.createDataFrame(flat.select(["client", "topic", "site"]))
        counted = count_on_spark(source, rows, request.sites, rest=request.rest)
    return plan_counted(source, counted, request, weights)


def plan_counted(
    source: str,
    counted: CountedSubscriptions,
    request: PlanRequest,
    weights: Mapping[str, float] | None = None,
) -> OrderPlan:
    if request.threshold not in (1, 2):
        raise PipelineError(f"threshold {request.threshold} must be 1 (causal order) or 2 (total order)")
    entries, counts = counted.entries, counted.counts
    notes = [] if len(entries) else ["no subscriptions: there is nothing to plan"]
    published = request.weights if request.weights is not None else weights
    if published is None:
        weighted_by, of_entries = BY_SUBSCRIBERS, counts.subscribers.astype(np.float64)
    else:
        weighted_by = BY_PUBLICATIONS
        of_entries, left_out = _weights(entries, published)
        if left_out:
            notes.append(f"topics left out because they have publications but no subscriber: {left_out:,}")
    request.progress(COUNTING)
    groups = counts.groups(request.threshold)
    demand = demand_of(counts, groups, of_entries)
    if len(entries.behind()):
        notes.append(
            f"patterns moved to the end because they overlap with other entries: {len(entries.behind()):,}"
        )
    return OrderPlan(
        source,
        request.threshold,
        counted,
        groups,
        of_entries,
        weighted_by,
        placements(entries, demand),
        tuple(notes),
    )


def _weights(entries: PlanEntries, published: Mapping[str, float]) -> tuple[Floats, int]:
    """Return the weight of each entry, and how many topics belong to none."""
    found = np.zeros(len(entries))
    left_out = 0
    for topic, weight in published.items():
        entry = _entry_of(entries, topic)
        if entry is None:
            left_out += weight > 0
        else:
            found[entry] += weight
    return found, left_out


def _entry_of(entries: PlanEntries, topic: str) -> int | None:
    """Return the entry that a weight is for: it may name an entry, even a pattern, or a topic."""
    if topic in entries.number_of:
        return entries.number_of[topic]
    try:
        return entries.entry_of(check_topic(topic))
    except TopicError as error:
        raise PipelineError(f"weights: {error}") from None
