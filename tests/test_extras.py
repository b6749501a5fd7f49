"""What is said where an extra is missing, and that the table of extras is that of pyproject.toml."""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from typer.main import get_command

import tidings
from command import tidings as command
from tidings.cli.main import NEEDS, app
from tidings.core.errors import ConnectionFailed, MissingExtra, PipelineError
from tidings.extras import EXTRAS, PACKAGES, is_installed, need
from tidings.spark.format.sink_publishing import SinkTarget

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def packages_of(extra: str) -> set[str]:
    """With those of the extras that it takes in."""
    found: set[str] = set()
    for line in PROJECT["optional-dependencies"][extra]:
        requirement = Requirement(line)
        if requirement.name == "tidings":
            found.update(*map(packages_of, requirement.extras))
        else:
            found.add(requirement.name)
    return found


@pytest.mark.parametrize("extra", EXTRAS)
def test_an_extra_brings_what_is_asked_for(extra: str) -> None:
    assert {PACKAGES.get(module, module) for module in EXTRAS[extra]} <= packages_of(extra)


def test_all_is_all() -> None:
    others = set(PROJECT["optional-dependencies"]) - {"all", "dev"}
    assert packages_of("all") == set().union(*map(packages_of, others))
    assert others == set(EXTRAS)


def test_verbs_with_an_extra_are_verbs() -> None:
    assert NEEDS.keys() <= get_command(app).commands.keys()  # type: ignore[attr-defined]
    assert set(NEEDS.values()) <= set(EXTRAS)


def test_one_two_and_three_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    need("nothing", "sim")
    for module, said in (
        ("scipy", "sim needs scipy: pip"),
        ("pyarrow", "sim needs pyarrow and scipy: pip"),
        ("numpy", "sim needs numpy, pyarrow and scipy: pip"),
    ):
        monkeypatch.setitem(sys.modules, module, None)
        with pytest.raises(MissingExtra) as told:
            need("sim", "sim")
        assert str(told.value).startswith(said)
        assert str(told.value).endswith("pip install 'tidings[sim]'")
    assert isinstance(told.value, ImportError)
    assert isinstance(told.value, tidings.TidingsError)
    with pytest.raises(PipelineError, match="a plot needs scipy"):
        need("a plot", "spark", "scipy", error=PipelineError)


def test_a_directory_of_the_name_is_no_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "some_library").mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    assert not is_installed("some_library")
    (tmp_path / "some_library" / "__init__.py").touch()
    assert is_installed("some_library")


def test_a_verb_says_so_as_json_too(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    done = command("get", tmp_path, "--json")
    assert done.returncode == 2
    assert done.stderr == '{"error": "get needs pyarrow: pip install \'tidings[archive]\'"}\n'


def test_the_check_of_a_total_order_names_scipy(monkeypatch: pytest.MonkeyPatch) -> None:
    import numpy as np

    from tidings.scenarios.trace.checkers.total import components

    monkeypatch.setitem(sys.modules, "scipy", None)
    edges = (np.zeros(1, np.int64), np.zeros(1, np.int64))
    with pytest.raises(MissingExtra, match=r"needs scipy: pip install 'tidings\[sim\]'"):
        components(edges, 1)


@pytest.mark.parametrize(
    ("url", "module"), [("nats://h", "nats"), ("mqtt://h", "paho"), ("redis://h", "redis")]
)
def test_an_option_of_spark_names_the_extra(url: str, module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    extra = url.partition(":")[0]
    with pytest.raises(PipelineError, match=rf"^option url: .* needs .*: pip install 'tidings\[{extra}\]'"):
        SinkTarget(url).check()
    with pytest.raises(ConnectionFailed):
        tidings.connect(url)


def test_the_manual_says_which_verb_needs_which_extra() -> None:
    rows = (ROOT / "docs" / "install.md").read_text(encoding="utf-8").splitlines()
    row_of = {extra: next(row for row in rows if f"`tidings[{extra}]`" in row) for extra in EXTRAS}
    for verb, extra in NEEDS.items():
        assert f"`{verb}" in row_of[extra] or f"`tidings {verb}`" in row_of[extra], verb
