"""The ordering study: its load, its sites in virtual time, and what its claims are computed from."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tidings.core.ordering.groups import SequencingGroups
from tidings.core.ordering.stamps import Chain
from tidings.studies.ordering.load import (
    GEOGRAPHIC,
    SPRAY,
    draw_different,
    draw_in_order,
    entries_by_topic,
    pareto,
)
from tidings.studies.ordering.runs import Setting, run_sites
from tidings.studies.ordering.sites import NS_PER_MS, SPEEDS, SimulatedSites
from tidings.studies.ordering.study import STUDY, site_point, size_rows
from tidings.studies.study import PaperClaim

SMALL = Setting(
    shape=GEOGRAPHIC,
    topics=50,
    clients=50,
    topics_per_client=4,
    precedence="identifiers",
    drawn="different",
    speed="tidings",
    rate_per_s=1000,
    duration_s=1.5,
    warm_up_s=0.5,
    seed=1,
)


# --- Load


@pytest.mark.parametrize("threshold", [1, 2])
@pytest.mark.parametrize("seed", range(5))
def test_entries_are_those_of_the_groups(seed: int, threshold: int) -> None:
    drawn = draw_in_order(pareto(0.5, 30), 40, 6, np.random.default_rng(seed))
    groups = SequencingGroups(range(30), threshold)
    for topics in drawn.tolist():
        groups.change(frozenset(), frozenset(topics), ())
    expected = [len(groups.members(topic)) for topic in range(30)]
    assert entries_by_topic(drawn, 30, threshold).tolist() == expected


def test_topics_are_drawn_once_each_and_popular_ones_first() -> None:
    drawn = draw_different(pareto(0.9, 20), 500, 20, np.random.default_rng(1))
    assert all(sorted(topics) == list(range(20)) for topics in drawn)
    first = [topics[0] for topics in drawn]
    assert first.count(0) > first.count(1) > first.count(5)


def test_nobody_shares_a_pair_at_one_topic_per_client() -> None:
    rows = size_rows({"part": "sizes", "shape": 0.349, "clients": 200, "topics": 40, "seed": 1})
    assert [row["topics_per_client"] for row in rows] == [1, 2, 5, 10, 20]
    means = [row["size_mean"] for row in rows]
    assert means[0] == 0 and means == sorted(means) and means[-1] <= 39


# --- Sites


def test_a_run_is_a_function_of_its_setting() -> None:
    assert run_sites(SMALL) == run_sites(SMALL)
    assert run_sites(SMALL) != run_sites(dataclasses.replace(SMALL, seed=2))


def test_numbers_of_a_topic_follow_each_other_and_every_request_has_one() -> None:
    chain = Chain([f"site {site}" for site in range(5)], [0, 2, 4, 6, 8], 10)
    sites = SimulatedSites(chain, [0, 1, 2, 3, 4], SPEEDS["tidings"], seed=1)
    for client in range(5):
        sites.subscribe(client, [client, 5, 9])
    requests = [(number * NS_PER_MS, number % 5, number % 10) for number in range(300)]
    sites.run(requests)
    numbers = defaultdict(list)
    for request in sites.requests:
        assert request.stamp is not None
        numbers[request.stamp.topic].append(request.stamp.number)
    assert {topic: sorted(found) for topic, found in numbers.items()} == {
        topic: list(range(1, 31)) for topic in range(10)
    }
    # All five share 5 and 9; each of the others is shared by nobody else.
    assert {request.entries for request in sites.requests if request.rank in (5, 9)} == {2}
    assert {request.entries for request in sites.requests if request.rank not in (5, 9)} == {1}


def test_one_topic_per_client_needs_one_server_alone() -> None:
    found = run_sites(dataclasses.replace(SMALL, topics_per_client=1))
    assert (found.hops, found.local_percent, found.entries) == (0, 100, 1)
    assert found.outgoing_percent == [0] * 5 == found.climbing_percent
    # 20 ms from and to a server of the same site, 200 ms otherwise.
    near = found.near_percent / 100
    assert found.latency_mean_ms == pytest.approx(20 * near + 200 * (1 - near), rel=0.1)


def test_only_servers_below_the_first_send_on() -> None:
    found = run_sites(dataclasses.replace(SMALL, shape=SPRAY, topics_per_client=10))
    assert found.outgoing_percent[0] == 0 and min(found.outgoing_percent[1:]) > 0
    assert 0 < found.local_percent < 100 and found.hops > 0


def test_servers_make_what_they_can_and_those_who_ask_one_by_one_wait() -> None:
    crowded = dataclasses.replace(SMALL, topics_per_client=1, rate_per_s=4000, duration_s=1.0)
    ours, slow = run_sites(crowded), run_sites(dataclasses.replace(crowded, speed="prototype"))
    assert ours.throughput_per_s == pytest.approx(4000, rel=0.05)
    # 50 clients, one request each.
    assert slow.throughput_per_s == pytest.approx(50 / (slow.latency_mean_ms / 1000), rel=0.1)


# --- Claims and panels, from results made up


def canned(**changed: float) -> pa.Table:
    """The quick points as the paper has them; `changed` multiplies a column of the geographic pattern."""
    rows: list[dict[str, Any]] = []
    for point in STUDY.points(True):
        if point["part"] == "sizes":
            rows += canned_sizes(point)
        else:
            rows.append(canned_site(point))
    for row in rows:
        for column, factor in changed.items():
            if row["shape"] == GEOGRAPHIC and row.get(column) is not None:
                row[column] *= factor
    return pa.Table.from_pylist(rows, schema=STUDY.schema)


def canned_sizes(point: dict[str, Any]) -> list[dict[str, Any]]:
    means = {1: 0.0, 2: 2.0, 5: 10.0, 10: 46.0, 20: 150.0, 50: 500.0, 100: 800.0, 200: 920.0, 500: 990.0}
    if point["shape"] == GEOGRAPHIC:
        means |= {2: 1.0, 5: 5.0, 10: 17.0, 20: 60.0, 50: 300.0, 100: 550.0, 200: 750.0, 500: 950.0}
    return [
        {
            **{name: point[name] for name in ("part", "shape", "seed")},
            "topics_per_client": count,
            "subscriptions": count * point["clients"],
            "size_mean": mean * (1 + 1e-4 * point["seed"]),
            "size_deviation": mean / 2,
            "size_over_events": mean * 3,
        }
        for count, mean in means.items()
    ]


def canned_site(point: dict[str, Any]) -> dict[str, Any]:
    geographic, slow = point["shape"] == GEOGRAPHIC, point["speed"] == "prototype"
    jitter = 1 + 1e-3 * point["seed"]
    many = point["topics_per_client"]
    limit = (4200 if geographic else 3500 - 30 * (many - 10)) if slow else 10**6
    sent = [0, 0, 0.1, 20, 30] if geographic else [0, 60, 70, 80, 90]
    found = {
        "latency_mean_ms": (30 if geographic else 200 + 2 * many) * jitter,
        "latency_p99_ms": 600.0,
        "throughput_per_s": min(point["rate_per_s"], limit) * jitter,
        "local_percent": (95 if geographic else 50) * jitter,
        "near_percent": (99 if geographic else 90) * jitter,
        "hops": 0.1,
        "entries": 50.0,
        "busiest_percent": 10.0,
    }
    for what in ("outgoing", "climbing"):
        found |= {f"{what}_{server}": share * jitter for server, share in enumerate(sent, start=1)}
    shown = {name: point[name] for name in STUDY.schema.names if name in point}
    return {**shown, "subscriptions": point["clients"] * many, **found}


def failing(table: pa.Table) -> list[PaperClaim]:
    return [claim for claim in STUDY.claims(table, True) if not claim.holds]


def test_results_like_the_papers_bear_out_every_claim() -> None:
    claims = STUDY.claims(canned(), True)
    assert [claim for claim in claims if not claim.holds] == []
    assert {claim.figure for claim in claims} == {f"fig {n}" for n in (7, 9, 10, 11, 12, 13, 14)}


@pytest.mark.parametrize(
    ("column", "factor", "figures"),
    [
        ("size_mean", 1.5, {"fig 7"}),
        ("size_mean", 10.0, {"fig 7"}),
        ("latency_mean_ms", 20.0, {"fig 9"}),
        ("local_percent", 0.3, {"fig 9"}),
        ("near_percent", 0.3, {"fig 9"}),
        ("throughput_per_s", 0.5, {"fig 10"}),
        ("outgoing_3", 300.0, {"fig 11"}),
        ("climbing_4", 0.0, {"fig 11"}),
        ("outgoing_5", 2.95, {"fig 12"}),
    ],
)
def test_a_result_unlike_the_papers_is_told(column: str, factor: float, figures: set[str]) -> None:
    told = failing(canned(**{column: factor}))
    assert figures <= {claim.figure for claim in told}
    assert len(told) <= 3, [claim.text for claim in told]


def test_latency_that_grows_with_subscriptions_is_told() -> None:
    table = canned()
    grown = pa.array(
        value * (1 if value is None or count <= 10 else 3) if value is not None else None
        for value, count in zip(
            table["latency_mean_ms"].to_pylist(), table["topics_per_client"].to_pylist(), strict=True
        )
    )
    position = table.schema.get_field_index("latency_mean_ms")
    told = failing(table.set_column(position, table.schema.field(position), grown))
    assert [(claim.figure, "geographic" in claim.text) for claim in told] == [("fig 13", True)]


def test_servers_at_their_limit_before_the_papers_peak_are_told() -> None:
    rows = canned().to_pylist()
    for row in rows:
        if row["speed"] == "prototype" and row["shape"] == SPRAY and row["topics_per_client"] == 10:
            row["throughput_per_s"] = min(row["throughput_per_s"], 2000)
            row["throughput_per_s"] += row["rate_per_s"] == 5000  # hardly a peak
    told = failing(pa.Table.from_pylist(rows, schema=STUDY.schema))
    assert ("fig 10", True) in [(claim.figure, "spray" in claim.text) for claim in told]
    assert any("from 2,500 requests/s on" in claim.why for claim in told)


def test_every_figure_has_a_panel_with_places_in_it() -> None:
    panels = STUDY.panels(canned(), True)
    assert {panel.figure for panel in panels} == {f"fig {n}" for n in range(7, 15)}
    assert len({panel.name for panel in panels}) == len(panels)
    assert all(places for panel in panels for places in panel.series.values())
    assert all(panel.series for panel in panels)


def test_points_are_all_different_and_the_full_study_has_more() -> None:
    quick, full = STUDY.points(True), STUDY.points(False)
    for points in (quick, full):
        assert len({str(point) for point in points}) == len(points)
        assert all(STUDY.cost(point) > 0 for point in points)
    assert len(full) > 4 * len(quick)


def test_a_point_gives_rows_of_the_schema() -> None:
    variant = {"speed": "tidings", "precedence": "placed", "drawn": "different"}
    point = site_point(variant, GEOGRAPHIC, 500, 3, seed=1, quick=True) | {"clients": 50, "topics": 50}
    table = pa.Table.from_pylist(STUDY.run(point), schema=STUDY.schema)
    assert table.num_rows == 1 and table["subscriptions"].to_pylist() == [150]
    assert all(table[name].null_count == 0 for name in table.column_names if not name.startswith("size_"))
