"""The tables of flags in docs/cli.md: made from the commands themselves, so that they cannot say anything else."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from typer.main import get_command

from tidings.cli.main import app


def commands_of(group: Any, path: str = "") -> dict[str, Any]:
    """All commands by what users type: `sub`, `context add`."""
    found: dict[str, Any] = {}
    for name, command in group.commands.items():
        beneath = getattr(command, "commands", None)
        found |= {path + name: command} if beneath is None else commands_of(command, f"{path}{name} ")
    return found


COMMANDS = commands_of(get_command(app))
BLOCK = re.compile(r"<!-- flags of (?P<verb>[a-z ]+) -->\n(?P<table>.*?)<!-- end -->", re.DOTALL)
NAMES = {int: "N", float: "X", str: "TEXT", Path: "PATH"}


def flag_table(command: Any) -> str:
    """A row for each argument and option, with its value, meaning and default."""
    rows = ["| flag | meaning |", "| --- | --- |"]
    rows += [f"| {_flag(given)} | {_meaning(given)} |" for given in command.params if not _hidden(given)]
    return "".join(f"{row}\n" for row in rows)


def options_of(command: Any) -> set[str]:
    return {
        name
        for given in command.params
        for name in (*given.opts, *given.secondary_opts)
        if name.startswith("-") and not _hidden(given)
    } | {"--help", "-h"}


def _hidden(given: Any) -> bool:
    return bool(getattr(given, "hidden", False))


def _flag(given: Any) -> str:
    if not given.opts[0].startswith("-"):
        return f"`{_in_code(given.metavar or given.name.upper())}`"
    names = [*sorted(given.opts, key=len), *given.secondary_opts]
    value = "" if getattr(given, "is_flag", False) else f" {_in_code(_value(given))}"
    return (
        ", ".join(f"`{name}`" for name in names[:-1]) + (", " if names[:-1] else "") + f"`{names[-1]}{value}`"
    )


def _value(given: Any) -> str:
    if given.metavar:
        return str(given.metavar)
    annotation = given.type_descriptor.annotation
    if get_origin(annotation) is list:
        annotation = get_args(annotation)[0]
    if get_origin(annotation) is Literal:
        return "|".join(str(word) for word in get_args(annotation))
    return NAMES.get(annotation, "TEXT")


def _meaning(given: Any) -> str:
    text = _escaped(" ".join((given.help or "").split()))
    notes = []
    if given.required:
        notes.append("Required.")
    if getattr(given, "multiple", False) and "epeat" not in text:
        notes.append("Repeatable.")
    if given.default not in (None, False, "", (), []) and "efault:" not in text:
        default = given.opts[0] if given.default is True else given.default
        notes.append(f"Default: `{_in_code(str(default))}`.")
    return " ".join([text, *notes])


def _escaped(text: str) -> str:
    """As Markdown has it in a cell of a table, outside of what stands in backticks."""
    parts = text.replace("|", "\\|").split("`")
    parts[::2] = [part.replace("*", "\\*").replace("<", "&lt;") for part in parts[::2]]
    return "`".join(parts)


def _in_code(text: str) -> str:
    return text.replace("|", "\\|")


def with_tables(page: str) -> str:
    """The page with each table as it should be."""

    def table(found: re.Match[str]) -> str:
        return f"<!-- flags of {found['verb']} -->\n{flag_table(COMMANDS[found['verb']])}<!-- end -->"

    return BLOCK.sub(table, page)
