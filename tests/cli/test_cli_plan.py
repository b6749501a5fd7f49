"""What `tidings plan` says of sources that are no tables, and which files of a directory it reads."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tidings.cli.main import run


def refused(capsys: pytest.CaptureFixture[str], source: object) -> str:
    assert run(["plan", str(source)]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    return err.removeprefix("tidings: ").rstrip("\n")


@pytest.mark.parametrize("name", ["nofile", "nofile.csv", "nofile.xlsx"])
def test_a_file_that_is_not_there(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert refused(capsys, tmp_path / name) == f"no such file: {tmp_path / name}"


def test_a_directory_without_tables_is_not_searched(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "below").mkdir()
    (tmp_path / "below" / "unrelated.sh").write_text("true\n")
    pq.write_table(pa.table({"x": [1]}), tmp_path / "below" / "unrelated.parquet")
    reason = "is neither a table nor a trace: the directory has no Parquet files"
    assert refused(capsys, tmp_path) == f"{tmp_path} {reason}"


def test_a_directory_is_its_parquet_files_and_nothing_else(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for site, client in (("eu", "a"), ("us", "b")):
        (tmp_path / f"site={site}").mkdir()
        part = tmp_path / f"site={site}" / "part-0.parquet"
        pq.write_table(pa.table({"client": [client], "topic": ["/t"]}), part)
    pq.write_table(pa.table({"client": ["c"], "topic": ["/t"]}), tmp_path / "_hidden.parquet")
    (tmp_path / "notes.txt").write_text("no table")
    assert run(["plan", str(tmp_path), "--json"]) == 0
    assert '"sites": {"eu": 1, "us": 1}' in capsys.readouterr().out
