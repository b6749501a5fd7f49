"""What the demo asks Spark."""

from __future__ import annotations

from pathlib import Path

import pytest

from source_archives import make_archive
from tidings.cli.shared import demo_archive
from tidings.spark.demo import distinct_rows

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("spark")]


@pytest.mark.usefixtures("spark")
def test_events_are_counted_once(tmp_path: Path) -> None:
    assert distinct_rows(make_archive(tmp_path / "archive", [30, 20])) == 50


def test_without_java_the_demo_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    rows, why = demo_archive._rows_on_spark(tmp_path)
    assert rows is None
    assert "apt-get install" in why
