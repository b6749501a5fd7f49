"""How `tidings demo` ends and what it prints, for results that a sound network does not give."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from command import tidings
from tidings.demo import play
from tidings.demo.archives import ArchivesResult
from tidings.demo.result import DemoResult, FaultResult, SubscriberResult
from tidings.demo.story import Story
from tidings.scenarios.trace.verdict import Verdict, Witness

WITNESS = "event shop-rome:7 is missing"
GOOD = DemoResult(
    published=12,
    subscribers=[SubscriberResult("ledger", "oslo2", "Oslo", "total", "everything", 12, 12, 0, 0, 9.5, 80.0)],
    faults=[FaultResult("Killed b1.", "b1 killed", "crash", "b1", 3.0, 6.2, 4, 2, 0.5)],
    verdicts=[Verdict("gap_free", True, 0)],
    archives=ArchivesResult({"oslo2": 12, "paris2": 12}, 12, [], on_spark=False, why_not="no Java here"),
    order_given_by={"server": "oslo1"},
    sites={},
    timeline=[],
    out="",
    report="/somewhere/report.html",
)
BAD = msgspec.structs.replace(GOOD, verdicts=[Verdict("gap_free", False, 1, [Witness(WITNESS)])])


def end_with(monkeypatch: pytest.MonkeyPatch, result: DemoResult) -> None:
    async def nothing(story: Story) -> dict[str, Any]:
        return {}

    monkeypatch.setattr(Story, "play", nothing)
    monkeypatch.setattr(play, "conclude", lambda *_, **__: result)


def test_what_holds_is_told_with_who_got_what_and_where_the_report_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    end_with(monkeypatch, GOOD)
    done = tidings("demo", "--out", tmp_path)
    assert done.returncode == 0, done.stderr
    assert "Nothing was lost" in done.stdout
    assert "12 and 12 of 12" in done.stdout
    assert "3 to 6 s" in done.stdout
    assert "beside oslo1" in done.stdout
    assert done.stdout.count("left out") == 1 and "no Java here" in done.stdout
    assert done.stdout.splitlines()[-1].endswith("/somewhere/report.html")


def test_a_guarantee_that_does_not_hold_ends_it_with_1(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    end_with(monkeypatch, BAD)
    done = tidings("demo", "--out", tmp_path)
    assert done.returncode == 1
    assert "VIOLATED" in done.stdout and WITNESS in done.stdout
    assert "Nothing was lost" not in done.stdout


def test_json_is_one_object_and_has_the_verdict(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    end_with(monkeypatch, BAD)
    done = tidings("demo", "--out", tmp_path, "--json")
    assert done.returncode == 1
    found = json.loads(done.stdout)
    assert found["holds"] is False
    assert found["archives"]["holds"] is True
    assert found["verdicts"][0]["witnesses"][0]["text"] == WITNESS
