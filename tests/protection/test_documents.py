"""The manual says everything: each public name, each flag of each verb, each key of a scenario; and nothing untrue."""

from __future__ import annotations

import ast
import inspect
import os
import re
import shlex
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest
from msgspec.structs import fields

import tidings
import tidings.sync
import tidings.testing
from command_docs import BLOCK, COMMANDS, options_of, with_tables
from tidings.scenarios.file import schema

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = [*sorted(DOCS.rglob("*.md")), ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
CLI = DOCS / "cli.md"
REWRITE = "REWRITE_GOLDEN=1 python -m pytest tests/protection/test_documents.py"
FENCED = re.compile(r"^ *```(\w*)\n(.*?)^ *```", re.MULTILINE | re.DOTALL)
REFERENCED = re.compile(r"^::: ([\w.]+)", re.MULTILINE)


def read(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def blocks(page: Path, language: str) -> list[str]:
    return [text for kind, text in FENCED.findall(read(page)) if kind == language]


# --- Names of the API

REFERENCE = {name for page in DOCS.glob("api*.md") for name in REFERENCED.findall(read(page))}


def own_names(module: ModuleType) -> list[str]:
    """What a module defines for users: classes and functions, also those that wrap others."""
    return [
        f"{module.__name__}.{name}"
        for name, value in vars(module).items()
        if not name.startswith("_") and (inspect.isclass(value) or inspect.isfunction(value))
        if value.__module__ == module.__name__ or hasattr(value, "__wrapped__")
    ]


def imported_names() -> list[str]:
    """What the manual's programs import of tidings, beyond what `tidings` itself offers."""
    found = set()
    for page in PAGES:
        for text in blocks(page, "python"):
            for node in ast.walk(parsed(text)):
                if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("tidings."):
                    found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return sorted(found)


def parsed(text: str) -> ast.AST:
    return compile(text, "block", "exec", ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)


PUBLIC = [
    *(f"tidings.{name}" for name in tidings.__all__ if name != "__version__"),
    *own_names(tidings.sync),
    *own_names(tidings.testing),
]


def found(name: str) -> object:
    """A name of a module, or of a class in one."""
    owner, _, last = name.rpartition(".")
    try:
        return getattr(import_module(owner), last)
    except ModuleNotFoundError:
        return getattr(found(owner), last)


@pytest.mark.parametrize("name", PUBLIC)
def test_a_public_name_is_documented(name: str) -> None:
    assert name in REFERENCE, f"docs/api.md has no '::: {name}'"
    undocumented = [name] if not inspect.getdoc(found(name)) else members_without_text(found(name))
    assert not undocumented, f"{name}: without a docstring: {', '.join(undocumented)}"


def members_without_text(owner: object) -> list[str]:
    """Methods and properties that the reference would show bare."""
    if not inspect.isclass(owner):
        return []
    shown = {
        name: value
        for name, value in vars(owner).items()
        if not name.startswith("_")
        and (inspect.isfunction(value) or isinstance(value, property | classmethod | staticmethod))
    }
    return [name for name in shown if not inspect.getdoc(getattr(owner, name))]


def test_names_that_programs_of_the_manual_import_exist_and_are_in_the_reference() -> None:
    names = imported_names()
    assert names
    for name in names:
        found(name)
        assert name in REFERENCE, f"docs/api.md has no '::: {name}'"


def test_the_reference_names_only_what_there_is() -> None:
    for name in REFERENCE:
        found(name)


# --- Flags of the verbs


def test_the_flags_of_every_verb_are_in_the_manual() -> None:
    page = read(CLI)
    assert {found["verb"] for found in BLOCK.finditer(page)} == set(COMMANDS)
    right = with_tables(page)
    if os.environ.get("REWRITE_GOLDEN"):
        CLI.write_text(right, encoding="utf-8")
        pytest.skip("docs/cli.md was written")
    assert page == right, f"docs/cli.md has other flags than the commands. If these are right: {REWRITE}"


@pytest.mark.parametrize("verb", COMMANDS)
def test_every_flag_says_what_it_means(verb: str) -> None:
    assert COMMANDS[verb].help
    assert [given.name for given in COMMANDS[verb].params if not (given.help or "").strip()] == []


def commands_in(page: Path) -> list[list[str]]:
    """Every `tidings ...` of the page's console blocks, as words."""
    lines = [
        line
        for language in ("console", "sh", "")
        for text in blocks(page, language)
        for line in text.replace("\\\n", " ").splitlines()
    ]
    indented = (
        re.findall(r"^    (tidings [a-z].*)", read(page), re.MULTILINE) if page.name == "README.md" else []
    )
    said = [line.strip().removeprefix("$ ") for line in lines] + indented
    calls = [
        call
        for line in said
        for call in re.findall(r"(?:^|[|&] *)(tidings [a-z][^|&]*|tidings [a-z].*)", line)
    ]
    return [shlex.split(call, comments=True) for call in calls if not call.startswith("tidings: ")]


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_commands_of_the_manual_exist(page: Path) -> None:
    for words in commands_in(page):
        command = COMMANDS.get(words[1]) or COMMANDS.get(" ".join(words[1:3]))
        assert command is not None, words
        flags = {word.partition("=")[0] for word in words[2:] if re.match(r"--?[a-z]", word)}
        assert flags <= options_of(command), words


# --- Programs and keys


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_programs_of_the_manual_are_python(page: Path) -> None:
    for text in blocks(page, "python"):
        parsed(text)


def tables_of_scenarios() -> list[type]:
    return [
        value
        for value in vars(schema).values()
        if inspect.isclass(value)
        and issubclass(value, schema.Table)
        and value not in (schema.Table, schema.Kinded)
    ]


@pytest.mark.parametrize("table", tables_of_scenarios(), ids=lambda table: table.__name__)
def test_every_key_of_a_scenario_is_in_the_manual(table: type) -> None:
    page = read(DOCS / "scenarios.md")
    keys = [key.encode_name for key in fields(table)]
    assert [key for key in keys if f"`{key}`" not in page and f"[{key}]" not in page] == []


# --- Drawings


def test_every_image_is_shown_and_every_shown_image_is_there() -> None:
    shown = {Path(name).name for page in PAGES for name in re.findall(r"\(([\w/.-]+\.svg)\)", read(page))}
    assert shown == {path.name for path in (DOCS / "images").glob("*.svg")}


def labels(chart: Path) -> list[str]:
    return re.findall(r"<text[^>]*>([^<]*)</text>", read(chart))


def test_charts_show_the_numbers_of_the_benchmarks(tmp_path: Path) -> None:
    subprocess.run(
        [sys.executable, ROOT / "scripts" / "figures.py", tmp_path], check=True, capture_output=True
    )
    drawn = sorted(tmp_path.glob("*.svg"))
    assert drawn
    for chart in drawn:
        assert labels(DOCS / "images" / chart.name) == labels(chart), "run python scripts/figures.py"


def test_the_manual_builds_without_warnings(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    done = subprocess.run(build, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "api" / "index.html").exists()
