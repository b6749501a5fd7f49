"""`tidings examples`: lists the scenarios and programs that come with tidings, and copies them."""

from __future__ import annotations

import ast
import shutil
import tomllib
from pathlib import Path
from typing import Annotated

import typer

import tidings
from tidings.cli.shared.options import Json, option
from tidings.cli.shared.output import print_json, print_line

FOLDERS = {"examples": "*.py", "scenarios": "*.toml"}
"""Folder names in the repository and in the installed package, with the files to list."""
LINE = 90
"""Characters per line; a longer sentence is cut at its colon."""

Names = Annotated[
    list[str] | None,
    typer.Argument(metavar="NAME", help="Copy these. Without a name: list them.", show_default=False),
]
Everything = Annotated[bool, option("--all", help="Copy all of them.")]
Out = Annotated[Path, option("--out", "-o", metavar="DIR", help="Where the copies go.")]
Force = Annotated[bool, option("--force", help="Replace files that are there.")]


def examples(
    names: Names = None,
    everything: Everything = False,
    out: Out = Path("."),
    force: Force = False,
    json: Json = False,
) -> None:
    """List the scenarios and example programs that come with tidings, or copy them."""
    if everything and names:
        raise typer.BadParameter("names or --all, not both", param_hint="NAME")
    root = bundle()
    there = files_below(root)
    if names or everything:
        wanted = (
            there if everything else with_what_they_name(root, [find(name, there) for name in names or ()])
        )
        copy(root, wanted, out, force=force)
        if json:
            print_json({"copied": [str(out / name) for name in wanted]})
        else:
            for name in wanted:
                print_line(str(out / name))
        return
    listed = {name: about((root / name).read_text(encoding="utf-8"), name) for name in there}
    if json:
        print_json([{"name": name, "about": told} for name, told in listed.items()])
        return
    width = max(map(len, listed))
    for name, told in listed.items():
        print_line(f"{name:{width}}  {told}")


def bundle() -> Path:
    """Return the directory with the folders: inside the package, or at the top of a checkout."""
    package = Path(tidings.__file__).parent
    bundled = package / "bundled"
    return bundled if bundled.is_dir() else package.parents[1]


def files_below(root: Path) -> list[str]:
    """Return the files by their paths in the repository."""
    found = [path for folder, kind in FOLDERS.items() for path in sorted((root / folder).rglob(kind))]
    if not found:
        raise tidings.TidingsError(f"the examples are missing below {root}: install tidings again")
    return [path.relative_to(root).as_posix() for path in found]


def find(name: str, there: list[str]) -> str:
    """Find a file by its path, its name, or its name without the suffix."""
    if name in there:
        return name
    found = [path for path in there if name in (Path(path).name, Path(path).stem)]
    if len(found) == 1:
        return found[0]
    hint = f"which? {' or '.join(found)}" if found else "'tidings examples' lists what there is"
    raise typer.BadParameter(f"{name!r}: {hint}", param_hint="NAME")


def with_what_they_name(root: Path, names: list[str]) -> list[str]:
    """Add the scenarios that sweeps refer to: a sweep is useless without its scenario."""
    wanted = dict.fromkeys(names)
    for name in names:
        if name.endswith(".toml"):
            named = tomllib.loads((root / name).read_text(encoding="utf-8")).get("scenario")
            if isinstance(named, str):
                other = (root / name).parent / named
                wanted[other.resolve().relative_to(root.resolve()).as_posix()] = None
    return list(wanted)


def copy(root: Path, names: list[str], out: Path, *, force: bool) -> None:
    """Copy all files, or none if one would replace an existing file."""
    in_the_way = [str(out / name) for name in names if (out / name).exists()]
    if in_the_way and not force:
        raise tidings.TidingsError(f"already there: {', '.join(in_the_way)} (--force replaces them)")
    for name in names:
        (out / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(root / name, out / name)


def about(text: str, name: str) -> str:
    """Return the first sentence of the file's docstring or opening comment."""
    if name.endswith(".py"):
        opening = (ast.get_docstring(ast.parse(text)) or "").partition("\n\n")[0]
    else:
        lines = text.splitlines()
        end = next((place for place, line in enumerate(lines) if not line.startswith("# ")), len(lines))
        opening = " ".join(line.removeprefix("# ") for line in lines[:end])
    sentence = " ".join(opening.split()).partition(". ")[0].rstrip(".")
    return sentence if len(sentence) <= LINE else sentence.partition(":")[0]
