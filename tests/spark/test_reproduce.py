"""`tidings reproduce`: points run once, go on after a failure, and end in figures and verdicts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import typer
from typer.testing import CliRunner

from tidings.cli.reproduce import reproduce
from tidings.cli.shared.exits import ExitCode, exit_code_of
from tidings.core.errors import PipelineError
from tidings.studies import study as studies
from tidings.studies.keeping import keep, kept, key_of
from tidings.studies.ordering.study import STUDY, OrderingStudy, site_point
from tidings.studies.plots import draw
from tidings.studies.report import readme, verdict_line, write_report
from tidings.studies.runner import Failure, Outcome
from tidings.studies.study import Panel, PaperClaim, Point, load_study

PANEL = Panel(
    "fig7", "A title", "x", "y", {"a": [(1, 2.0), (2, 3.0, 0.5)]}, paper={"a": [(1, 2.5)]}, figure="fig 7"
)


class Small(OrderingStudy):
    """Runs for real, in workers that know it as the ordering study; says little."""

    def __init__(self, seeds: list[Any]) -> None:
        self.seeds = seeds

    def points(self, quick: bool) -> list[Point]:
        variant = {"speed": "tidings", "precedence": "identifiers", "drawn": "different"}
        small = {"clients": 50, "topics": 50, "duration_s": 0.2, "warm_up_s": 0.0}
        return [{**site_point(variant, 0.901, 500, 3, seed, quick), **small} for seed in self.seeds]

    def panels(self, table: pa.Table, quick: bool) -> list[Panel]:
        return [PANEL]

    def claims(self, table: pa.Table, quick: bool) -> list[PaperClaim]:
        return [PaperClaim("fig 7", "there are rows", "some", str(table.num_rows), table.num_rows > 0)]


def command(*arguments: str) -> Any:
    app = typer.Typer()
    app.command()(reproduce)
    return CliRunner().invoke(app, arguments)


@pytest.mark.spark
@pytest.mark.xdist_group("spark")
@pytest.mark.usefixtures("spark")
def test_points_run_once_and_failed_ones_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen: list[Any] = [1, 2, "no seed"]
    monkeypatch.setattr(studies, "load_study", lambda name: Small(chosen))
    first = command("ordering", "--quick", "--out", str(tmp_path))
    assert first.exit_code == ExitCode.CHECK_FAILED, first.output
    assert "3 runs, 0 of them from earlier, 1 failed" in first.stdout
    assert "'seed': 'no seed'" in first.stderr and "Traceback" not in first.output
    directory = tmp_path / "ordering"
    assert "Traceback" in (directory / "failures.txt").read_text()
    assert not (directory / "claims.json").exists()

    chosen[2] = 3
    second = command("ordering", "--quick", "--out", str(tmp_path), "--json")
    assert second.exit_code == ExitCode.OK, second.output
    (told,) = json.loads(second.stdout)
    assert (told["points"], told["kept"], told["failed"]) == (3, 2, 0)
    assert json.loads((directory / "claims.json").read_text())["claims"][0]["measured"] == "3"
    assert pq.read_table(directory / "results.parquet")["seed"].to_pylist() == [1, 2, 3]
    assert sorted(path.name for path in directory.iterdir()) == [
        "README.md",
        "claims.json",
        "fig7.png",
        "fig7.svg",
        "points",
        "results.parquet",
    ]

    monkeypatch.setattr("tidings.studies.runner.run_due", None)  # nothing is left to run
    third = command("ordering", "--quick", "--out", str(tmp_path))
    assert "ordering fig 7: holds: there are rows: 3 (paper: some)" in third.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [([], "expected ordering"), (["ordering", "--all"], "not allowed with --all"), (["--quick"], "--all")],
)
def test_what_to_run_must_be_said_once(arguments: list[str], message: str) -> None:
    ended = command(*arguments)
    assert ended.exit_code == ExitCode.BAD_INPUT
    assert message in ended.stderr


@pytest.mark.parametrize(
    ("name", "hint"), [("ordring", "did you mean 'ordering'?"), ("xyz", "known reproductions: ordering,")]
)
def test_an_unknown_name_gets_the_nearest(name: str, hint: str) -> None:
    with pytest.raises(PipelineError) as caught:
        load_study(name)
    assert hint in str(caught.value)
    assert exit_code_of(caught.value) is ExitCode.BAD_INPUT


def test_a_result_is_kept_for_its_point_and_version_alone(tmp_path: Path) -> None:
    newer = Small([1])
    newer.version = STUDY.version + 1
    point = Small([1]).points(True)[0]
    keys = {
        key_of(STUDY, point),
        key_of(newer, point),
        key_of(STUDY, {**point, "seed": 2}),
        key_of(STUDY, {**point, "shape": 0.5}),
    }
    assert len(keys) == 4
    assert key_of(STUDY, dict(reversed(point.items()))) in keys
    path = tmp_path / "kept.json"
    assert kept(path) is None
    keep(path, {"rows": [{"x": 1}], "cpu_s": 0.1})
    assert kept(path) == {"rows": [{"x": 1}], "cpu_s": 0.1}
    path.write_bytes(path.read_bytes()[:-3])
    assert kept(path) is None
    assert [found.name for found in tmp_path.iterdir()] == ["kept.json"]


def test_a_drawing_leaves_out_what_an_axis_has_no_place_for(tmp_path: Path) -> None:
    places = [(0.0, 1.0), (1.0, 0.0), (1.0, float("nan")), (2.0, 3.0, 0.1)]
    panel = Panel("log", "T", "x", "y", {"a": places, "empty": []}, log_x=True, log_y=True)
    words = Panel("words", "T", "x", "y", {"a": [("one", 1.0), ("two", 2.0)]})
    for each in (panel, words, PANEL):
        paths = draw(each, tmp_path)
        before = [path.read_bytes() for path in paths]
        assert [path.read_bytes() for path in draw(each, tmp_path)] == before
        assert before[0].startswith(b"\x89PNG") and b"<svg" in before[1]


def test_the_report_has_each_figure_with_its_claims(tmp_path: Path) -> None:
    (tmp_path / "ordering").mkdir()
    outcome = Outcome(Small([]), STUDY.schema.empty_table(), 0, 0, (), 0.0)
    report = write_report(outcome, tmp_path, quick=True)
    assert verdict_line(report, report.claims[0]).startswith(
        "ordering fig 7: does not hold: there are rows: 0"
    )
    text = readme(report, True)
    assert text.index("## Fig 7") < text.index("![A title](fig7.png)") < text.index("**no**")
    failed = Outcome(Small([]), STUDY.schema.empty_table(), 1, 0, (Failure({}, "E: no\nTraceback"),), 0.0)
    assert not write_report(failed, tmp_path, quick=True).complete
    assert failed.failures[0].reason == "E: no"
