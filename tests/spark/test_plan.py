"""Plans: groups against the sequencers' own, entries against the layout, placements against an independent count."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from breadth import examples
from tidings.core.errors import PipelineError
from tidings.core.events.topics import TopicPattern
from tidings.core.ordering.groups import SequencingGroups
from tidings.core.ordering.layout import Layout
from tidings.core.ordering.placement import PlacementDemand, measured, place
from tidings.scenarios.trace.reader import Trace
from tidings.scenarios.trace.tables import NodeRow, PublishedRow, SubscribedRow
from tidings.spark.plan import counts as plan_counts
from tidings.spark.plan import placement as plan_placement
from tidings.spark.plan.entries import PlanEntries
from tidings.spark.plan.planning import OrderPlan, PlanRequest, make_plan, plan_rows
from tidings.spark.plan.sites import PlannedSite, PlannedSites
from tidings.spark.plan.sizes import SizeQuantiles, histogram, sizes_of

SITES = ("east", "north", "west")
EXACT = [f"/t{number}" for number in range(8)]
MIXED = ["/a", "/a/b", "/a/c", "/b", "/b/b", "/a/*", "/*/b", "/a/**", "/**", "/c/**"]
Client = tuple[int, list[str]]


def clients_with(topics: Sequence[str]) -> st.SearchStrategy[list[Client]]:
    wanted = st.lists(st.sampled_from(topics), min_size=1, max_size=4, unique=True)
    return st.lists(st.tuples(st.integers(0, len(SITES) - 1), wanted), max_size=20)


def flat(clients: Sequence[Client]) -> pa.Table:
    rows = [(f"c{number}", topic, SITES[site]) for number, (site, of) in enumerate(clients) for topic in of]
    kind = pa.schema(
        [("row", pa.int64()), ("client", pa.string()), ("topic", pa.string()), ("site", pa.string())]
    )
    return pa.Table.from_pylist(
        [
            {"row": row, "client": client, "topic": topic, "site": site}
            for row, (client, topic, site) in enumerate(rows, 1)
        ],
        schema=kind,
    )


def planned(clients: Sequence[Client], threshold: int = 2, **options: bool) -> OrderPlan:
    sites = PlannedSites(tuple(map(PlannedSite, SITES)))
    return plan_rows("table", flat(clients), PlanRequest(threshold, sites, **options))


def layout_of(plan: OrderPlan) -> Layout:
    made = plan.layout()
    assert made is not None
    return made[0]


# --- Groups


@pytest.mark.parametrize("topics", [EXACT, MIXED], ids=["topics", "patterns"])
@pytest.mark.parametrize("threshold", [1, 2])
def test_the_groups_are_those_that_the_sequencers_keep_under_the_planned_layout(
    topics: list[str], threshold: int
) -> None:
    @given(clients_with(topics).filter(bool), st.booleans())
    @settings(max_examples=examples(80))
    def check(clients: list[Client], rest: bool) -> None:
        plan = planned(clients, threshold, rest=rest)
        layout = layout_of(plan)
        assert layout.threshold == threshold
        kept = SequencingGroups(range(len(layout.topics)), threshold)
        for _, of in clients:
            kept.change(set(), {*layout.ranks_for(map(TopicPattern, of))}, ())
        assert [plan.entries.texts[number] for number in plan.planned.topics] == list(layout.topics)
        for rank, number in enumerate(plan.planned.topics):
            mine = {plan.entries.texts[other] for other in np.flatnonzero(plan.groups[number])}
            assert mine == {layout.topics[other] for other in kept.members(rank)}

    check()


@given(clients_with(MIXED))
@settings(max_examples=examples(50))
def test_blocks_of_clients_add_up(clients: list[Client]) -> None:
    whole = planned(clients)
    before = plan_counts.BLOCK_CLIENTS
    plan_counts.BLOCK_CLIENTS = 3
    try:
        parts = planned(clients)
    finally:
        plan_counts.BLOCK_CLIENTS = before
    assert parts.summary() == whole.summary()
    assert (parts.counted.counts.pairs == whole.counted.counts.pairs).all()


def test_a_pair_of_one_client_is_a_group_for_causal_order_alone() -> None:
    clients: list[Client] = [(0, ["/t0", "/t1"]), (0, ["/t1", "/t2"]), (1, ["/t1", "/t2"])]
    assert planned(clients, 2).stamp_entries.tolist() == [0, 1, 1]
    assert planned(clients, 1).stamp_entries.tolist() == [1, 2, 1]


def test_a_client_that_is_listed_twice_counts_once() -> None:
    table = pa.concat_tables([flat([(0, ["/t0", "/t1"])])] * 2)
    plan = plan_rows("table", table, PlanRequest(2))
    assert plan.stamp_entries.tolist() == [0, 0]
    assert plan.summary()["clients"] == 1


# --- Entries


@given(st.lists(st.sampled_from(MIXED), unique=True, min_size=1), st.randoms())
@settings(max_examples=examples(100))
def test_no_entry_stands_before_one_that_it_covers(texts: list[str], random: object) -> None:
    entries = PlanEntries(texts)
    order = list(range(len(entries)))
    random.shuffle(order)  # type: ignore[attr-defined]
    ranked = [entries.patterns[number] for number in entries.with_patterns_behind(order)]
    assert sorted(pattern.text for pattern in ranked) == sorted(texts)
    for rank, pattern in enumerate(ranked):
        assert not any(pattern.covers(later) for later in ranked[rank + 1 :])


@given(clients_with(MIXED).filter(bool), st.sampled_from(["/a", "/a/b", "/a/x", "/x/b", "/c/d/e", "/x"]))
@settings(max_examples=examples(100))
def test_weights_go_where_the_layout_would_number_the_topic(clients: list[Client], topic: str) -> None:
    plan = planned(clients)
    layout, entry = layout_of(plan), plan.entries.entry_of(topic)
    rank = layout.rank_of(topic)
    assert (None if entry is None else plan.entries.texts[entry]) == (
        None if rank is None else layout.entry(rank)
    )


def test_more_topics_than_a_layout_has_are_refused() -> None:
    with pytest.raises(PipelineError, match=r"4,097 topics, but an order has at most 4,096"):
        PlanEntries(f"/t{number}" for number in range(4097))


# --- Placements


@given(clients_with(EXACT).filter(bool), st.sampled_from([1, 2]))
@settings(max_examples=examples(100))
def test_the_plan_places_as_the_placement_does(clients: list[Client], threshold: int) -> None:
    plan = planned(clients, threshold)
    expected = place(plan.entries.texts, clients, len(SITES), threshold=threshold)
    assert tuple(plan.entries.texts[number] for number in plan.planned.topics) == expected.topics
    assert plan.planned.sites == expected.sites
    assert plan.planned.local == pytest.approx(expected.local)
    assert plan.planned.crossings == pytest.approx(expected.crossings)


@given(clients_with(MIXED).filter(bool), st.sampled_from([1, 2]))
@settings(max_examples=examples(100))
def test_a_site_has_its_entries_in_one_piece(clients: list[Client], threshold: int) -> None:
    plan = planned(clients, threshold)
    for name in ("planned", "identifiers"):
        sites = plan.placements[name].sites
        assert sum(one != other for one, other in pairwise(sites)) == len({*sites}) - 1
    for placed in plan.placements.values():
        assert sorted(placed.topics) == list(range(len(plan.entries)))
        assert 0 <= placed.local <= 1 and placed.crossings >= 0


def demand_of(interest: list[list[int]], groups: list[tuple[int, int]]) -> PlacementDemand:
    members = np.zeros((len(interest), len(interest)), dtype=np.bool_)
    for one, other in groups:
        members[one, other] = members[other, one] = True
    counts = plan_counts.SubscriptionCounts(
        np.diag(np.sum(interest, axis=1)), np.array(interest), np.zeros(len(interest[0]), dtype=np.int64)
    )
    return plan_placement.demand_of(counts, members, np.ones(len(interest)))


def test_crossings_by_hand() -> None:
    """Four topics at sites 0 1 0 1; topics 0 and 3 are a group, and everybody is at site 0."""
    demand = demand_of([[1, 0]] * 4, [(0, 3), (0, 2)])
    chained = measured(demand, range(4), [0, 1, 0, 1])
    # Topic 1: there and back. Topic 2: up two servers. Topic 3: there, and up three.
    assert chained.is_local == (True, True, False, False)
    assert (chained.local, chained.crossings) == (0.5, (0 + 2 + 2 + (1 + 3)) / 4)
    straight = measured(demand, range(4), [0, 1, 0, 1], straight=True)
    assert straight.is_local == (True, True, True, False)
    assert (straight.local, straight.crossings) == (0.75, (0 + 2 + 0 + (1 + 1)) / 4)


def test_a_plan_is_better_than_the_naive_ones_where_sites_have_their_own_topics() -> None:
    """By identifier, topics of all sites mix; two strays put a rare topic of each site into another's group."""
    clients: list[Client] = []
    for site in range(3):
        own = [f"/t{site}", f"/t{site + 3}"]
        clients += [(site, own)] * 20 + [(site, [own[0], f"/t{6 + (site + 1) % 3}"])] * 2
    found = planned(clients).placements
    assert found["planned"].local > max(found["identifiers"].local, found["popularity"].local)
    assert found["planned"].crossings < min(found["identifiers"].crossings, found["popularity"].crossings)


def test_one_site_has_nothing_to_cross() -> None:
    table = flat([(0, ["/t0", "/t1"])] * 3).drop_columns(["site"])
    plan = plan_rows(
        "table", table.append_column("site", pa.nulls(table.num_rows, pa.string())), PlanRequest()
    )
    assert plan.sites.names == ("s0",)
    assert {(placed.local, placed.crossings) for placed in plan.placements.values()} == {(1.0, 0.0)}


# --- Sizes


@pytest.mark.parametrize(
    ("entries", "weights", "expected"),
    [
        ([], [], None),
        ([3], [0.0], None),
        ([3], [2.0], SizeQuantiles(3, 3.0, 3, 3, 3, 3)),
        ([5, 0, 1, 2], [1.0] * 4, SizeQuantiles(0, 2.0, 1, 5, 5, 5)),
        ([0, 10], [9.0, 1.0], SizeQuantiles(0, 1.0, 0, 0, 10, 10)),
        ([7, 0, 9], [1.0, 3.0, 0.0], SizeQuantiles(0, 1.75, 0, 7, 7, 7)),
        (list(range(1, 101)), [1.0] * 100, SizeQuantiles(1, 50.5, 50, 90, 99, 100)),
    ],
)
def test_sizes(entries: list[int], weights: list[float], expected: SizeQuantiles | None) -> None:
    assert sizes_of(np.array(entries, dtype=np.int64), np.array(weights)) == expected


def test_the_histogram_has_every_topic_once() -> None:
    assert histogram(np.array([2, 0, 2]), np.array([1.0, 5.0, 0.5])) == [(0, 1, 5.0), (2, 2, 1.5)]


# --- Traces


def subscribed(
    name: str, topics: list[str], start: int | None, end: int | None = None, order: str = "total"
) -> SubscribedRow:
    return SubscribedRow(name, f"{name}-{start}", topics, None, order, 0, start, end)


def write_trace(directory: Path, trace: Trace) -> None:
    for name in ("subscribed", "published", "nodes"):
        pq.write_table(getattr(trace, name), directory / f"{name}.parquet")


def test_a_trace_is_planned_for_its_busiest_moment(tmp_path: Path) -> None:
    trace = Trace.from_rows(
        subscribed=[
            subscribed("one", ["/a", "/b"], 10, 20),
            subscribed("one", ["/a", "/c"], 20),
            subscribed("two", ["/a", "/c"], 15),
            subscribed("three", ["/c"], 30, 40),
            subscribed("late", ["/z"], 50, 60),
            subscribed("never", ["/z"], None),
            subscribed("unordered", ["/z"], 5, order="none"),
        ],
        published=[PublishedRow(f"p:{n}", "p", n, "/a" if n < 3 else "/q", [], 1, n) for n in range(4)],
        nodes=[
            NodeRow("b0", "broker", site="east"),
            NodeRow("b1", "broker", site="west"),
            NodeRow("one", "subscriber", "b0"),
            NodeRow("two", "subscriber", "b0", site="west"),
            NodeRow("three", "subscriber", "b1"),
        ],
    )
    write_trace(tmp_path, trace)
    for source in (tmp_path, tmp_path / "subscribed.parquet"):
        plan = make_plan(str(source), PlanRequest())
        assert plan.entries.texts == ("/a", "/c")
        assert plan.summary()["sites"] == {"east": 1, "west": 2}
        assert plan.stamp_entries.tolist() == [1, 1]
        assert plan.weights.tolist() == [3.0, 0.0]
        assert plan.notes == ("topics left out because they have publications but no subscriber: 1",)


def test_a_trace_with_an_order_that_nobody_knows_is_refused(tmp_path: Path) -> None:
    rows = [subscribed("one", ["/a"], 1), subscribed("two", ["/a"], 1, order="Total")]
    write_trace(tmp_path, Trace.from_rows(subscribed=rows))
    with pytest.raises(PipelineError, match="row 2 has order 'Total'; known: none, fifo, causal, total"):
        make_plan(str(tmp_path), PlanRequest())


def test_a_trace_is_planned_for_other_sites_than_those_of_its_run(tmp_path: Path) -> None:
    nodes = [NodeRow("one", "subscriber", site="east"), NodeRow("two", "subscriber", site="east")]
    rows = [subscribed(name, ["/a"], 1) for name in ("one", "two")]
    write_trace(tmp_path, Trace.from_rows(subscribed=rows, nodes=nodes))
    sites = PlannedSites((PlannedSite("east"), PlannedSite("west")), {"two": "west"})
    assert make_plan(str(tmp_path), PlanRequest(sites=sites)).summary()["sites"] == {"east": 1, "west": 1}


def test_a_trace_without_sites_and_without_order_is_planned_for_all(tmp_path: Path) -> None:
    rows = [subscribed("one", [], 1, order="fifo"), subscribed("two", ["/a"], 1, order="none")]
    write_trace(tmp_path, Trace.from_rows(subscribed=rows))
    plan = make_plan(str(tmp_path), PlanRequest(threshold=1))
    assert plan.entries.texts == ("/**", "/a")
    assert plan.sites.names == ("s0",)
