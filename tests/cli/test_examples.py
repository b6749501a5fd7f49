"""`tidings examples`, in a checkout; tests/test_wheel.py tries it as it is installed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from command import tidings
from tidings.cli.examples import about, bundle

ROOT = Path(__file__).parents[2]


def names() -> list[str]:
    kept = [*(ROOT / "examples").glob("*.py"), *(ROOT / "scenarios").rglob("*.toml")]
    return sorted(str(path.relative_to(ROOT)) for path in kept)


def test_the_list_has_a_line_for_each() -> None:
    lines = tidings("examples").stdout.splitlines()
    assert [line.split()[0] for line in lines] == names()
    assert all(len(line.split()) > 3 for line in lines), "each says what it is"
    listed = json.loads(tidings("examples", "--json").stdout)
    assert [item["name"] for item in listed] == names()
    assert all(item["about"] for item in listed)


def test_a_copy_is_found_by_path_name_or_stem_and_is_the_same(tmp_path: Path) -> None:
    for number, name in enumerate(("scenarios/chain.toml", "chain.toml", "chain")):
        out = tmp_path / str(number)
        done = tidings("examples", name, "--out", out)
        assert (done.returncode, done.stdout) == (0, f"{out}/scenarios/chain.toml\n")
        copied = out / "scenarios" / "chain.toml"
        assert copied.read_bytes() == (ROOT / "scenarios" / "chain.toml").read_bytes()
        assert [path for path in out.rglob("*") if path.is_file()] == [copied]


def test_a_sweep_brings_the_scenario_that_it_names(tmp_path: Path) -> None:
    done = tidings("examples", "loss", "--out", tmp_path, "--json")
    copied = [str(tmp_path / "scenarios" / name) for name in ("sweeps/loss.toml", "epidemic.toml")]
    assert json.loads(done.stdout) == {"copied": copied}
    assert all(Path(path).is_file() for path in copied)


def test_nothing_is_replaced_unless_asked(tmp_path: Path) -> None:
    mine = tmp_path / "scenarios" / "chain.toml"
    mine.parent.mkdir()
    mine.write_text("mine")
    done = tidings("examples", "--all", "--out", tmp_path)
    assert done.returncode == 2
    assert done.stderr == f"tidings: already there: {mine} (--force replaces them)\n"
    assert mine.read_text() == "mine"
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == [mine], "and nothing else is copied"
    assert tidings("examples", "--all", "--out", tmp_path, "--force").returncode == 0
    assert mine.read_bytes() == (ROOT / "scenarios" / "chain.toml").read_bytes()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("nothing", "'nothing': 'tidings examples' lists what there is"),
        ("lossy", "'lossy': which? examples/lossy.py or scenarios/lossy.toml"),
        ("chain --all", "names or --all, not both"),
        ("../pyproject.toml", "'../pyproject.toml': 'tidings examples' lists what there is"),
    ],
)
def test_what_is_not_there_or_unclear_is_told(arguments: str, said: str, tmp_path: Path) -> None:
    done = tidings("examples", *arguments.split(), "--out", tmp_path)
    assert done.returncode == 2
    assert said in done.stderr
    assert not list(tmp_path.iterdir())


def test_an_install_without_its_examples_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert bundle() == ROOT
    monkeypatch.setattr("tidings.cli.examples.bundle", lambda: tmp_path)
    done = tidings("examples")
    assert done.returncode == 2
    assert "install tidings again" in done.stderr


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("a.py", '"""One thing. Run: it"""', "One thing"),
        ("a.py", '"""One\nthing.\n\nMore."""', "One thing"),
        ("a.toml", "# One\n# thing. Another.\n#\n# More\n", "One thing"),
        ("a.toml", f"# Short: {'long ' * 30}\nseed = 1\n", "Short"),
    ],
)
def test_what_it_is_in_one_line(name: str, text: str, said: str) -> None:
    assert about(text, name) == said
