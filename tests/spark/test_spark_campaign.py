"""The campaign on a real Spark: every seed once, with the result that it has anywhere else."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tidings.lab.campaign import replay_command, run_seed
from tidings.lab.seeds import CampaignResult

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("spark")]

SEEDS = range(7, 19)


@pytest.mark.usefixtures("spark")
def test_a_campaign_on_spark_agrees_with_one_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tidings.lab import spark_campaign as campaign

    monkeypatch.setattr(campaign, "SEEDS_PER_TASK", 5)
    summary = campaign.run_campaign(SEEDS, "local[2]", tmp_path)
    rows = sorted(pq.read_table(tmp_path / "seeds").to_pylist(), key=lambda found: found["seed"])
    expected = [campaign.row(run_seed(seed)) for seed in SEEDS]
    assert rows == expected
    assert summary.seeds == len(SEEDS)
    assert summary.failed == sum(found["failed"] for found in expected)
    assert summary.published == sum(found["published"] for found in expected)
    assert summary.delivered == sum(found["delivered"] for found in expected)
    failed = [found["seed"] for found in pq.read_table(tmp_path / "failures").to_pylist()]
    assert failed == [found["seed"] for found in expected if found["failed"]]
    assert len(list((tmp_path / "seeds").glob("part-*.parquet"))) == 3


@pytest.mark.usefixtures("spark")
def test_a_campaign_of_durable_subscriptions_on_spark(tmp_path: Path) -> None:
    from tidings.lab import spark_campaign as campaign
    from tidings.lab.share_campaign import VARIANTS, run_in_turn

    summary = campaign.run_campaign(range(8), "local[2]", tmp_path, "shares")
    rows = sorted(pq.read_table(tmp_path / "seeds").to_pylist(), key=lambda found: found["seed"])
    results = [campaign.row(run_in_turn(seed)) for seed in range(8)]
    assert [found["delivered"] for found in rows] == [found["delivered"] for found in results]
    assert summary.failed == 0
    assert [found["seed"] for found in rows] == [number // len(VARIANTS) for number in range(8)]


def test_a_failure_comes_with_the_command_that_replays_it() -> None:
    from tidings.lab import spark_campaign as campaign

    result = CampaignResult(3, ("something is wrong",), 5, 4, 100, replay_command(3))
    assert campaign.row(result)["replay"] == replay_command(3)
    summary = campaign.Summary(10, 1, 50, 40, (replay_command(3),))
    assert str(summary) == f"10 seeds, 1 failed, 50 published, 40 delivered\n{replay_command(3)}"
