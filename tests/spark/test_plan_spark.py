"""Plans on a real Spark: the same as in one process, and the same mistakes found."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tidings.core.errors import PipelineError
from tidings.spark.plan import on_spark as plan_spark
from tidings.spark.plan.planning import OrderPlan, PlanRequest, make_plan, plan_rows
from tidings.spark.plan.sites import PlannedSite, PlannedSites
from tidings.spark.plan.tables import flat_rows

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("spark")]

MASTER = "local[2,3]"
TOPICS = [*(f"/t{number}" for number in range(30)), "/a/b", "/a/*", "/a/**", "/*/b"]
SITES = ("east", "west", "south")


def random_table(clients: int, seed: int) -> pa.Table:
    """Rows of a client are far from each other, some come twice."""
    random = Random(seed)
    rows = [
        {"client": f"c{number}", "topic": topic, "site": SITES[number % len(SITES)]}
        for number in range(clients)
        for topic in random.choices(TOPICS, weights=range(len(TOPICS), 0, -1), k=5)
    ]
    random.shuffle(rows)
    return pa.Table.from_pylist(rows)


def same(one: OrderPlan, other: OrderPlan) -> None:
    for name in ("pairs", "interest", "clients"):
        assert np.array_equal(getattr(one.counted.counts, name), getattr(other.counted.counts, name)), name
    assert one.entries.texts == other.entries.texts
    assert one.summary() == other.summary()


def test_spark_counts_what_one_process_counts(
    tmp_path: Path,
    spark: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(plan_spark, "STRIPE_BYTES", 8 * 37 * 5)  # several stripes, the last one shorter
    table = random_table(300, 1)
    path = tmp_path / "rows.parquet"
    path.mkdir()
    for part in range(3):
        pq.write_table(table.slice(part * 500, 500), path / f"part-{part}.parquet")
    here = make_plan(str(path), PlanRequest(rest=True))
    assert here.groups.any() and len(here.entries) == len(TOPICS) + 1
    same(here, make_plan(str(path), PlanRequest(rest=True, master=MASTER)))


def test_lists_of_topics_sites_from_elsewhere_and_rows_that_are_here(tmp_path: Path, spark: Any) -> None:
    table = random_table(20, 7)
    rows = table.to_pylist()
    lines = [{"subscriber": row["client"], "topics": [row["topic"]]} for row in rows]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    listed = str(tmp_path / "rows.jsonl")
    sites = PlannedSites(tuple(map(PlannedSite, SITES)), {row["client"]: row["site"] for row in rows})
    same(
        make_plan(listed, PlanRequest(sites=sites)),
        make_plan(listed, PlanRequest(sites=sites, master=MASTER)),
    )
    flat = flat_rows("table", table)
    same(plan_rows("table", flat, PlanRequest()), plan_rows("table", flat, PlanRequest(master=MASTER)))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("client,theme\na,/x\n", "missing column topic; the columns are client, theme"),
        ("client,topic\na,/x\nb,x\n", "a row of client 'b': topic pattern 'x' must start with '/'"),
        ("client,topic\na,/x\nb,\n", "a row of client 'b': the topic is missing"),
        ("client,topic\na,/x\n,/x\n", "a row with topic '/x' has no client"),
        ('client,topics\na,"/t,/u"\n', "column 'topics' is string, not a list"),
        ("client,topic,topics\na,/x,/y\n", "has the columns 'topic' and 'topics'"),
        ("client,topic,site\na,/x,east\na,/y,west\n", "client 'a' is at site 'west' and at 'east'"),
        ("client,topic,site\na,/x,east\nb,/x,\nc,/x,west\n", "client 'b' has no site"),
    ],
)
def test_mistakes_on_spark(text: str, reason: str, tmp_path: Path, spark: Any) -> None:
    path = tmp_path / "table.csv"
    path.write_text(text)
    with pytest.raises(PipelineError) as caught:
        make_plan(str(path), PlanRequest(master=MASTER))
    assert reason in str(caught.value)
    assert str(path) in str(caught.value)


def test_an_empty_client_and_a_second_site_on_spark(tmp_path: Path, spark: Any) -> None:
    path = tmp_path / "table.jsonl"
    path.write_text('{"client": "", "topic": "/x"}\n')
    with pytest.raises(PipelineError, match="a row with topic '/x' has no client"):
        make_plan(str(path), PlanRequest(master=MASTER))
    path.write_text(
        "".join(
            json.dumps({"client": client, "topic": "/x", "site": site}) + "\n"
            for client, site in (("a", "east"), ("b", "west"), ("c", "east"))
        )
    )
    sites = PlannedSites(tuple(map(PlannedSite, SITES)), {"a": "east", "c": "west"})
    with pytest.raises(PipelineError) as caught:
        make_plan(str(path), PlanRequest(sites=sites, master=MASTER))
    assert str(caught.value) == (f"{path}: client 'c' is at site 'east', but the --sites file says 'west'")


def test_unknown_sites_and_missing_files_on_spark(tmp_path: Path, spark: Any) -> None:
    path = tmp_path / "table.csv"
    path.write_text("client,topic,site\na,/x,east\n")
    with pytest.raises(PipelineError, match="client 'a': site 'east' is not listed; known sites: north"):
        make_plan(str(path), PlanRequest(sites=PlannedSites((PlannedSite("north"),)), master=MASTER))
    with pytest.raises(PipelineError, match=r"cannot read .*missing.csv as csv: .*PATH_NOT_FOUND"):
        make_plan(str(tmp_path / "missing.csv"), PlanRequest(master=MASTER))


def test_an_empty_table_on_spark(tmp_path: Path, spark: Any) -> None:
    path = tmp_path / "table.csv"
    path.write_text("client,topic\n")
    same(make_plan(str(path), PlanRequest()), make_plan(str(path), PlanRequest(master=MASTER)))
