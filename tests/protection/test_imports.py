"""What documents and examples import can be imported, and every string that names a module of ours names one."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest

import tidings
from golden import check_golden, golden_lines

ROOT = Path(__file__).parents[2]
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
EXAMPLES = sorted((ROOT / "examples").rglob("*.py"))
IMPORT = re.compile(
    r"^\s*(?:from (tidings[\w.]*) import (\([^)]*\)|[^\n#]+)|import (tidings[\w.]*))", re.MULTILINE
)
BLOCK = re.compile(r"^```\w*\n(.*?)^```", re.MULTILINE | re.DOTALL)
RUN_MODULE = re.compile(r"-m (tidings(?:\.\w+)+)")
MODULE_NAME = re.compile(r"(tidings(?:\.\w+){2,})(?::\w+)?")
PROMISED = [
    *("tidings", "tidings.testing", "tidings.sync", "tidings.scenarios.trace.checkers"),
    *("tidings.drivers.adapters.nats", "tidings.drivers.adapters.mqtt", "tidings.drivers.adapters.redis"),
]
FORMER = [
    *("tidings.archive events_of", "tidings.trace.checkers check_all", "tidings.trace.reader Trace"),
    *("tidings.services.nats nats_service", "tidings.services.mqtt mqtt_service"),
    *("tidings.services.redis redis_service", "tidings.net.address Address"),
    *("tidings.net.sequencer SequencerHost", "tidings.protocol.sequencing.layout single"),
]
"""Where these were when documents named them last."""
FILE = "imports.txt"


def imports_in(text: str) -> Iterator[str]:
    """`module` and `module name` of every import."""
    for module, names, alone in IMPORT.findall(text):
        yield module or alone
        for name in re.findall(r"(\w+)(?: as \w+)?", names):
            yield f"{module} {name}"


def documented() -> list[str]:
    texts = [block for path in DOCUMENTS for block in BLOCK.findall(path.read_text(encoding="utf-8"))]
    texts += [path.read_text(encoding="utf-8") for path in EXAMPLES]
    return sorted({*PROMISED, *(found for text in texts for found in imports_in(text))})


def check_module(name: str, attribute: str = "") -> None:
    module = import_module(name)
    if attribute and not hasattr(module, attribute):
        import_module(f"{name}.{attribute}")


def test_the_documented_imports_are_those_of_before() -> None:
    check_golden(FILE, documented())


@pytest.mark.parametrize("wanted", golden_lines(FILE))
def test_a_documented_import_works(wanted: str) -> None:
    check_module(*wanted.split())


@pytest.mark.parametrize("wanted", FORMER)
def test_a_former_path_leads_to_the_same_module(wanted: str) -> None:
    name, attribute = wanted.split()
    former = import_module(name)
    assert hasattr(former, attribute)
    assert former is import_module(former.__name__), "there are not two of it"
    assert former.__name__ != name
    assert former.__spec__ is not None
    assert former.__spec__.name == former.__name__


def test_a_path_that_never_was_is_not_found() -> None:
    for name in ("tidings.services.nothing", "tidings.nothing"):
        with pytest.raises(ModuleNotFoundError):
            import_module(name)


def test_the_package_offers_what_it_offered() -> None:
    check_golden("all.txt", tidings.__all__)
    for name in tidings.__all__:
        assert hasattr(tidings, name), name


def strings_of(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def named_modules() -> dict[str, Path]:
    """In strings of the code that are one, and where `python -m` runs it; with a file that says so."""
    found: dict[str, Path] = {}
    code = [path for folder in ("src", "benchmarks") for path in sorted((ROOT / folder).rglob("*.py"))]
    for path in code:
        for text in strings_of(path):
            if match := MODULE_NAME.fullmatch(text):
                found[match[1]] = path
    for path in (*code, *DOCUMENTS, ROOT / "Makefile"):
        found |= dict.fromkeys(RUN_MODULE.findall(path.read_text(encoding="utf-8")), path)
    return found


def test_every_string_that_names_a_module_names_one() -> None:
    named = named_modules()
    assert {"tidings.cli.main", "tidings.lab.spark_campaign", "tidings.studies.ordering.study"} <= set(named)
    for name, path in named.items():
        assert find_spec(name) is not None, f"{path.relative_to(ROOT)} names {name}, which is no module"


def test_the_script_is_there() -> None:
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["scripts"]
    for script in scripts.values():
        module, _, attribute = script.partition(":")
        check_module(module, attribute)
