"""The studies of partitions, epidemic recovery and polarized gossip: tiny runs, and verdicts on invented results.

For the verdicts every point of the quick version is answered by a formula. One set of formulas behaves as the papers
say, and every claim holds; then one thing at a time is turned around, and the claim that speaks of it must fall.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from math import exp, log
from typing import Any

import pyarrow as pa
import pytest

from tidings.studies.epidemic import claims as epidemic_claims
from tidings.studies.epidemic.points import QUICK
from tidings.studies.epidemic.runs import ALGORITHMS
from tidings.studies.estimates import (
    Estimate,
    StudyRows,
    above,
    below,
    both,
    claimed,
    difference,
    estimate,
    inside,
    pooled,
    resampled,
    sure,
    within,
)
from tidings.studies.partitions import claims as partitions_claims
from tidings.studies.polarized import claims as polarized_claims
from tidings.studies.polarized.curves import TREE, Curves, Scheme
from tidings.studies.polarized.study import curves_of
from tidings.studies.study import Point, Row, load_study

NAMES = ("partitions", "epidemic", "polarized")
Model = Callable[[Point], dict[str, Any]]


# --- Estimates


def test_an_interval_is_that_of_students_t() -> None:
    found = estimate([1.0, 2.0, 3.0])
    assert (found.mean, found.low, found.high) == pytest.approx((2.0, 2 - 2.484, 2 + 2.484), abs=1e-3)
    assert estimate([5.0] * 4) == Estimate(5.0, 5.0, 5.0)


def test_one_run_alone_decides_nothing() -> None:
    alone = estimate([7.0])
    assert above(alone).undecided and below(alone).undecided and not above(alone).holds
    assert "nan" not in alone.text() and alone.half == 0.0


def test_a_verdict_needs_the_whole_interval() -> None:
    assert above(Estimate(1.0, 0.5, 1.5)).holds
    assert not above(Estimate(1.0, -0.5, 2.5)).holds and above(Estimate(1.0, -0.5, 2.5)).undecided
    assert not above(Estimate(-1.0, -1.5, -0.5)).undecided
    assert below(Estimate(-1.0, -1.5, -0.5)).holds
    assert within(Estimate(0.25, 0.0, 0.9), 0.15, 0.35).holds
    assert within(Estimate(0.5, 0.3, 0.7), 0.15, 0.35).undecided
    assert not inside(Estimate(0.25, 0.0, 0.9), 0.15, 0.35).holds
    assert both(sure(True), above(Estimate(1.0, -1.0, 3.0))).undecided
    assert not both(sure(False), above(Estimate(1.0, -1.0, 3.0))).undecided


def test_runs_are_compared_seed_by_seed() -> None:
    """What differs between seeds far more than between the two hides nothing."""
    left = {1: 10.1, 2: 20.1, 3: 30.1, 9: 0.0}
    right = {1: 10.0, 2: 20.0, 3: 30.0}
    assert above(difference(left, right)).holds
    assert pooled([(left, right), (right, left)]).mean == pytest.approx(0.0)


def test_a_resampled_interval_is_the_same_every_time() -> None:
    values = {1: 1.0, 2: 2.0, 3: 3.0, 4: 6.0}

    def total(seeds: Any) -> float:
        return float(sum(values[seed] for seed in seeds))

    found = resampled(total, [1, 2, 3, 4])
    assert found == resampled(total, [1, 2, 3, 4])
    assert found.low < found.mean == 12.0 < found.high


def test_an_undecided_claim_says_so() -> None:
    claim = claimed("fig 1", "text", "paper", "measured", above(Estimate(1.0, -1.0, 3.0)), why="because")
    assert not claim.holds
    assert claim.undecided and "too few runs to decide" in claim.why and "because" not in claim.why
    known = claimed("fig 1", "text", "paper", "measured", sure(False), why="because", note="here")
    assert known.why == "here; because" and known.measured == "measured"
    assert claimed("fig 1", "text", "paper", "measured", sure(True), why="because").why == ""


# --- Points


@pytest.mark.parametrize("quick", [True, False])
@pytest.mark.parametrize("name", NAMES)
def test_points_are_plain_and_different(name: str, quick: bool) -> None:
    study = load_study(name)
    points = study.points(quick)
    texts = {json.dumps(point, sort_keys=True) for point in points}
    assert len(texts) == len(points) > 100
    assert [json.loads(json.dumps(point)) for point in points] == points
    assert all(study.cost(point) > 0 for point in points)


@pytest.mark.parametrize(("name", "budget_s"), [("partitions", 60), ("epidemic", 120), ("polarized", 180)])
def test_the_quick_version_is_thought_to_keep_its_budget(name: str, budget_s: float) -> None:
    study = load_study(name)
    assert sum(study.cost(point) for point in study.points(True)) < budget_s


# --- Tiny runs


def rows_of(name: str, point: Point) -> list[Row]:
    study = load_study(name)
    rows = study.run(point)
    assert rows == study.run(point), "a pure function of the point"
    return pa.Table.from_pylist(rows, schema=study.schema).to_pylist()


def test_partitions_on_a_small_graph() -> None:
    graph = {"brokers": 40, "fanout": 3, "failures": 8}
    sampled = rows_of("partitions", {"kind": "graph", **graph, "seed": 1, "runs": 200})
    exact = rows_of("partitions", {"kind": "exact", **graph})
    for found, wanted in zip(sampled, exact, strict=True):
        assert found["value"] == pytest.approx(wanted["value"], abs=5.0)
    sessions = rows_of("partitions", {"kind": "sessions", **graph, "delta": 3, "seed": 1, "runs": 3})
    assert sessions[-1]["value"] == 1.0, "the last of the distribution"
    sizes = rows_of("partitions", {"kind": "neighbours", "brokers": 40, "fanout": 3})
    assert [row["value"] for row in sizes if row["quantity"] == "max"] == [3, 9, 21, 39]


def test_partitions_in_the_simulator() -> None:
    point = {"kind": "simulation", "brokers": 20, "fanout": 3, "failures": 4, "seed": 1, "rounds": 1}
    found = {row["quantity"]: row["value"] for row in rows_of("partitions", {**point, "delta": 1})}
    assert found["delivered"] == found["bound"]
    assert found["certified"] == 100.0 and found["guarantees_hold"] == 1.0


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_epidemic_runs(algorithm: str) -> None:
    tiny = {
        "brokers": 8,
        "patterns": 4,
        "used_patterns": 4,
        "publishers": 2,
        "start_s": 4.0,
        "publish_s": 0.4,
    }
    point = {**QUICK, **tiny, "settle_s": 2.0, "interval_ms": 100.0, "algorithm": algorithm, "seed": 1}
    (row,) = rows_of("epidemic", point)
    assert row["expected"] > 20
    if algorithm == "none":
        assert row["recovered"] == row["gossip_per_broker_s"] == 0.0 and row["recovery_ms"] is None
    else:
        assert row["recovered"] > 0.2 and row["recovery_ms"] > 20 and row["gossip_per_broker_s"] > 0
        assert 0 <= row["origin_answers"] <= 1 <= row["peak_load"]


def test_epidemic_bursts_lose_and_nothing_else_does() -> None:
    tiny = {"brokers": 8, "patterns": 4, "used_patterns": 4, "publishers": 2, "start_s": 4.0, "settle_s": 2.0}
    point = {**QUICK, **tiny, "algorithm": "none", "loss": 0.0, "seed": 1}
    (quiet,) = rows_of("epidemic", point)
    (burst,) = rows_of("epidemic", {**point, "bursts": True})
    assert burst["delivered"] < quiet["delivered"] == 1.0


@pytest.mark.parametrize("scheme", [TREE, "push random", "pull random", "3PG .25"])
def test_polarized_runs(scheme: str) -> None:
    fanout = 0 if scheme == TREE else 2
    point = {"scheme": scheme, "weights": "topology", "redundancy": 0, "fanout": fanout, "seed": 1}
    (row,) = rows_of("polarized", {**point, "events": 2, "block_bytes": 64})
    assert 0.3 < row["success"] <= 1.0
    assert (row["push_utility"] is None) == (scheme in (TREE, "pull random"))
    assert row["overhead"] > (30 if scheme == TREE else 42)


def test_polarized_runs_by_loss_know_the_rates() -> None:
    """All links lose the same, so that the deepest brokers are preferred, as by topology."""
    point = {"scheme": "push WDPG", "redundancy": 0, "fanout": 4, "seed": 1, "events": 6, "block_bytes": 64}
    by_loss, by_topology = (
        rows_of("polarized", {**point, "weights": kind})[0] for kind in ("loss", "topology")
    )
    assert by_loss["success"] == pytest.approx(by_topology["success"], abs=0.05)


# --- The fanout for a goal


def curve(misses: dict[int, float], goal: float) -> Curves:
    rows = [
        {"scheme": TREE if fanout == 0 else "push random", "weights": "topology", "redundancy": 0}
        | {"fanout": fanout, "seed": 1, "events": 1000, "success": 1 - missed, "overhead": 10.0 * fanout}
        for fanout, missed in misses.items()
    ]
    return Curves(StudyRows(pa.Table.from_pylist(rows)), goal)


def test_the_fanout_for_a_goal_is_between_the_measured_ones() -> None:
    found = curve({0: 0.4, 2: 0.04, 4: 0.004}, 0.99)
    wanted = 2 + 2 * log(4) / log(10)
    push = Scheme("push random")
    assert found.fanout_for_goal(push, [1]) == pytest.approx(wanted)
    assert found.at_goal("overhead", push, [1]) == pytest.approx(10 * wanted)


def test_a_goal_may_be_out_of_reach_or_need_no_gossip() -> None:
    assert curve({0: 0.4, 2: 0.04}, 0.99).fanout_for_goal(Scheme("push random"), [1]) == float("inf")
    assert not curve({0: 0.4, 2: 0.04}, 0.99).reaches_goal(Scheme("push random"))
    assert curve({0: 0.001, 2: 0.0}, 0.99).fanout_for_goal(Scheme("push random"), [1]) == 0.0
    assert curve({0: 0.4, 2: 0.0}, 0.99).reaches_goal(Scheme("push random")), "nothing missed is not log(0)"


# --- Worlds in which the papers are right


def epidemic_world(point: Point) -> dict[str, Any]:
    name, loss, interval_ms = point["algorithm"], point["loss"], point["interval_ms"]
    small, slow = point["buffer_events"] < 100, interval_ms > 100
    shares = {
        "none": 0.0,
        "subscriber pull": {1: 0.4, 2: 0.6, 6: 0.85}[point["patterns_per_broker"] % 6 or 6],
    }
    recovered = shares.get(name, 0.98) * (0.5 if small else 1.0)
    recovered *= 0.6 if slow and not point["adaptive"] else 1.0
    recovered *= 1.3 if point["cache_policy"] != "fifo" else 1.0
    tree = 0.93 if point["bursts"] else 1 - 3.5 * loss
    quiet = loss == 0 and not point["bursts"]
    pulled = 0.0 if quiet or name == "none" else 10.0
    gossip = 90.0 * 60.0 / interval_ms if name == "push" else pulled
    late = {"push": 800.0 * point["used_patterns"] / QUICK["patterns"]}.get(name, 500.0)
    return {
        "expected": 600,
        "delivered": tree + (1 - tree) * recovered,
        "recovered": None if quiet else recovered,
        "overhead": 7.0 if name == "none" else 10.0,
        "gossip_per_broker_s": gossip,
        "resting_gossip_per_broker_s": gossip,
        "housekeeping_per_broker_s": 20.0,
        "mean_ms": 100.0,
        "recovery_ms": None if quiet or name == "none" else late,
        "recovery_p99_ms": None,
        "origin_answers": 0.4,
        "peak_load": 1.5,
    }


NEEDED = {
    ("push random", 0): 4.0,
    ("pull random", 0): 5.0,
    ("push WDPG", 0): 14.0,
    ("push WRPG", 0): 4.8,
    ("push PGW .25", 0): 7.2,
    ("3PG .25", 0): 3.6,
    ("3PG 1", 0): 2.4,
    ("push random", 2): 3.0,
    ("pull random", 2): 3.75,
    ("push WRPG", 2): 2.9,
    ("push PGW .25", 2): 4.3,
    ("3PG .25", 2): 2.7,
}
"""The fanout for .99, by scheme and redundancy."""


def polarized_world(point: Point) -> dict[str, Any]:
    name, fanout, redundancy = point["scheme"], point["fanout"], point["redundancy"]
    tree = 0.12 if redundancy else 0.36
    needed = NEEDED.get((name, redundancy), 1.0) * (1.2 if point["weights"] == "loss" else 1.0)
    overhead = {"pull random": 29 + 4 * fanout, "3PG .25": 37 + 17 * fanout, "3PG 1": 37 + 48 * fanout}
    weighted = 3.0 if name in ("push WDPG", "push WRPG", "push PGW .25") else 0.0
    latency = {"pull random": 330 - 10 * fanout, "3PG .25": 235 - 6 * fanout}.get(
        name, 125 - 2 * fanout - weighted
    )
    return {
        "success": 1 - tree * exp(-fanout * log(tree / 0.01) / needed),
        "overhead": overhead.get(name, 37.0 + 40 * fanout) + (40.0 if redundancy else 0.0),
        "mean_ms": latency - (30.0 if redundancy else 0.0),
        "std_ms": latency / 3,
        "p99_ms": 3.0 * latency,
        "push_utility": 0.2 - 0.015 * fanout,
        "pull_utility": 0.22 - 0.02 * fanout,
    }


def partitions_world(point: Point) -> dict[str, Any]:
    """Of a simulation: what is delivered, which is what is reachable."""
    reached = {0: 30.0, 1: 89.0, 2: 93.0, 3: 98.0}[point["delta"]]
    return {"delivered": reached, "bound": reached, "certified": 100.0, "guarantees_hold": 1.0}


def table_of(name: str, model: Model) -> pa.Table:
    study = load_study(name)
    rows: list[Row] = []
    for point in study.points(True):
        rows += partitions_rows(point, model) if name == "partitions" else [invented(point, model)]
    known = set(study.schema.names)
    return pa.Table.from_pylist([{k: v for k, v in row.items() if k in known} for row in rows], study.schema)


def invented(point: Point, model: Model) -> Row:
    """A little different for every seed."""
    measured = model(point)
    noise = 1 + 1e-4 * (point["seed"] - 2.5)
    return {
        **point,
        **{name: value * noise if isinstance(value, float) else value for name, value in measured.items()},
    }


def partitions_rows(point: Point, model: Model) -> list[Row]:
    """What can be counted is counted, and random failures are taken to come to the same."""
    if point["kind"] == "simulation":
        return [{**point, "quantity": name, "value": value} for name, value in model(point).items()]
    if point["kind"] == "graph":
        exact = counted("exact", point["brokers"], point["fanout"], point["failures"])
        drift = 1e-4 * (point["seed"] - 3)
        return [{**row, **point, "delta": row["delta"], "value": row["value"] + drift} for row in exact]
    if point["kind"] == "sessions":
        return load_study("partitions").run({**point, "runs": 2})
    return counted(point["kind"], point["brokers"], point["fanout"], point.get("failures", 0))


@cache
def counted(kind: str, brokers: int, fanout: int, failures: int) -> list[Row]:
    point = {"kind": kind, "brokers": brokers, "fanout": fanout, "failures": failures}
    return load_study("partitions").run(point)


def changed(model: Model, change: Callable[[Point, dict[str, Any]], dict[str, Any]]) -> Model:
    def world(point: Point) -> dict[str, Any]:
        measured = model(point)
        return {**measured, **change(point, measured)}

    return world


@pytest.mark.parametrize(("name", "model"), [("epidemic", epidemic_world), ("polarized", polarized_world)])
def test_where_the_paper_is_right_every_claim_holds(name: str, model: Model) -> None:
    found = load_study(name).claims(table_of(name, model), True)
    assert len({claim.text for claim in found}) == len(found) >= 16
    assert [(claim.text, claim.measured) for claim in found if not claim.holds] == []


def test_where_the_partitions_paper_is_right_only_its_steps_do_not_hold() -> None:
    """The graph itself says so: no protocol could have them."""
    claims = load_study("partitions").claims(table_of("partitions", partitions_world), True)
    (steps,) = (claim for claim in claims if not claim.holds)
    assert steps.text.startswith("from delta 3 to 2") and "18.4" in steps.measured


def worse_than_none(point: Point, row: dict[str, Any]) -> dict[str, Any]:
    return {"delivered": 0.2} if point["algorithm"] == "subscriber pull" else {}


EPIDEMIC_FLIPS = {
    "delivery_rises": worse_than_none,
    "pull_is_reactive": lambda p, row: {"gossip_per_broker_s": 1.0},
    "pull_converges_faster": lambda p, row: {"recovery_ms": 900.0} if p["algorithm"] != "push" else {},
    "load_stays": lambda p, row: {"gossip_per_broker_s": 3.0 * p["brokers"]},
    "load_is_even": lambda p, row: {"peak_load": 5.0},
    "publisher_is_spared": lambda p, row: {"origin_answers": 0.9},
    "overhead_is_limited": lambda p, row: {"overhead": 90.0} if p["algorithm"] == "push" else {},
    "few_subscribers_hurt_pull": lambda p, row: {"recovered": 0.9},
    "combined_overcomes_it": lambda p, row: {"recovered": 0.4},
    "patterns_slow_push": lambda p, row: {"recovery_ms": 800.0},
    "idle_patterns_do_not": lambda p, row: {"recovery_ms": 40.0 * p["patterns"]},
    "larger_buffers_help": lambda p, row: {"delivered": 0.9},
    "buffers_for_rounds": lambda p, row: {"delivered": 0.5} if p["interval_ms"] > 100 else {},
    "cache_policies_help": lambda p, row: {"delivered": 0.7} if p["cache_policy"] == "random" else {},
    "reactive_is_cheaper_in_bursts": lambda p, row: (
        {"gossip_per_broker_s": 300.0} if p["algorithm"] != "push" else {}
    ),
    "adapting_saves": lambda p, row: {"resting_gossip_per_broker_s": 90.0},
}


@pytest.mark.parametrize("name", EPIDEMIC_FLIPS)
def test_an_epidemic_claim_falls_where_the_runs_say_otherwise(name: str) -> None:
    table = table_of("epidemic", changed(epidemic_world, EPIDEMIC_FLIPS[name]))
    claim = getattr(epidemic_claims, name)(epidemic_claims.Runs(StudyRows(table), QUICK))
    assert not claim.holds, claim.measured


def like(other: str) -> Callable[[Point, dict[str, Any]], dict[str, Any]]:
    """All schemes do as this one."""
    return lambda point, row: {} if point["scheme"] == TREE else polarized_world({**point, "scheme": other})


def uncoded(point: Point, row: dict[str, Any]) -> dict[str, Any]:
    return polarized_world({**point, "redundancy": 0})


POLARIZED_FLIPS = {
    "utility_is_low": lambda p, row: {"push_utility": 0.9},
    "utility_falls": lambda p, row: {"pull_utility": 0.1 + 0.01 * p["fanout"]},
    "topology_beats_loss": lambda p, row: polarized_world({**p, "weights": "topology"}),
    "wdpg_below_random": like("push random"),
    "wrpg_below_random": like("push random"),
    "pgw_beats_wdpg": like("push WDPG"),
    "pgw_not_better_than_random": lambda p, row: {"success": 1.0} if "PGW" in p["scheme"] else {},
    "three_pg_needs_least": like("push random"),
    "narrow_window_costs_success": like("3PG 1"),
    "overhead_grows": lambda p, row: {"overhead": 99.0},
    "others_cost_no_less": lambda p, row: {"overhead": 50.0} if "WRPG" in p["scheme"] else {},
    "three_pg_costs_half_of_push": like("push random"),
    "three_pg_costs_twice_pull": like("pull random"),
    "narrow_window_saves": like("3PG 1"),
    "reliable_is_faster": lambda p, row: {"mean_ms": 100.0 + p["fanout"]},
    "weights_are_faster": like("push random"),
    "wide_window_as_fast_as_push": lambda p, row: {"mean_ms": 200.0} if p["scheme"] == "3PG 1" else {},
    "wide_window_is_faster": lambda p, row: {"std_ms": 40.0},
    "coding_saves_a_quarter": uncoded,
    "coding_saves_more": uncoded,
    "coding_saves_all": uncoded,
    "coding_is_faster": uncoded,
    "coding_costs_what_it_saves": lambda p, row: {"overhead": 400.0} if p["redundancy"] else {},
    "push_tolerates_more": lambda p, row: {"success": 1.0} if p["scheme"] == "pull random" else {},
    "push_costs_and_hurries": like("pull random"),
    "three_pg_is_between": like("push random"),
}


POLARIZED_CLAIMS = {claim.__name__: claim for claim in polarized_claims.CLAIMS}


@pytest.mark.parametrize("name", POLARIZED_FLIPS)
def test_a_polarized_claim_falls_where_the_runs_say_otherwise(name: str) -> None:
    table = table_of("polarized", changed(polarized_world, POLARIZED_FLIPS[name]))
    claim = POLARIZED_CLAIMS[name](curves_of(table, True))
    assert not claim.holds, claim.measured


PARTITIONS_FLIPS = {
    "everything_reachable_is_delivered": {"delivered": 70.0},
    "delta_3_delivers": {"delivered": 90.0},
    "nothing_is_lost_for_ever": {"guarantees_hold": 0.0},
}
"""The other claims are of the graph, which is counted."""


@pytest.mark.parametrize("name", PARTITIONS_FLIPS)
def test_a_partitions_claim_falls_where_the_runs_say_otherwise(name: str) -> None:
    table = table_of("partitions", changed(partitions_world, lambda point, row: PARTITIONS_FLIPS[name]))
    claim = getattr(partitions_claims, name)(StudyRows(table))
    assert not claim.holds, claim.measured


def test_every_claim_has_its_counterexample() -> None:
    assert {claim.__name__ for claim in epidemic_claims.CLAIMS} == set(EPIDEMIC_FLIPS)
    assert set(POLARIZED_CLAIMS) == set(POLARIZED_FLIPS)


@pytest.mark.parametrize(
    ("name", "model"),
    [("partitions", partitions_world), ("epidemic", epidemic_world), ("polarized", polarized_world)],
)
def test_panels(name: str, model: Model) -> None:
    study = load_study(name)
    panels = study.panels(table_of(name, model), True)
    names = [panel.name for panel in panels]
    assert len(set(names)) == len(names) >= 9
    for panel in panels:
        assert panel.figure and panel.x_label and panel.y_label
        drawn = [place for places in panel.series.values() for place in places]
        assert len(drawn) >= 4, panel.name
        assert all(place[1] == place[1] for place in drawn), panel.name
    figures = {panel.figure for panel in panels}
    wanted = {
        "partitions": {"fig 9", "fig 10", "fig 11", "fig 12"},
        "epidemic": {"section 2.2", "section 5"},
        "polarized": {"fig 1", *(f"fig 2({letter})" for letter in "abcdefghi")},
    }
    assert figures == wanted[name]
