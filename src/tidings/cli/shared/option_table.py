"""Declares options once: a field of an `Options` class is a verb's flag, an environment variable and a key of its file.

The flag overrides the variable, the variable overrides the file, the file overrides the default.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin, get_type_hints

from msgspec import Meta, Struct

from tidings.cli.shared.options import option

Kind = TypeVar("Kind", bound="Options")


class Options(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of a verb's options. What neither a flag nor the file gives is None, False or empty. Paths in a file
    are relative to it. A field without a `Flag` is only a key of the file."""


@dataclass(frozen=True, kw_only=True)
class Flag:
    """Describes a field's flag."""

    help: str
    name: str = ""
    """Empty: the field's name."""
    metavar: str | None = None
    given_as: Any = None
    """The type of the flag's value, if it is not the field's."""
    parse: Callable[[Any], Any] = lambda given: given
    """Converts the flag's value to the field's."""
    envvar: str | None = None
    """None: named as for all flags."""
    panel: str | None = None
    """The heading in the help."""


class _Field:
    def __init__(self, key: str, hint: Any, flag: Flag) -> None:
        self.key = key
        self.flag = flag
        self.name = flag.name or f"--{key.replace('_', '-')}"
        self.type, self.bounds = _bare(hint)
        self.is_path = self.type is Path

    def parameter(self) -> inspect.Parameter:
        flag, bounds = self.flag, self.bounds
        declared = option(
            self.name,
            help=flag.help,
            metavar=flag.metavar,
            envvar=flag.envvar,
            min=bounds.ge,
            max=bounds.le,
            rich_help_panel=flag.panel,
        )
        kind = flag.given_as or (list[str] if get_origin(self.type) is tuple else self.type)
        hint = kind if kind is bool else Union[kind, None]  # noqa: UP007 - `|` takes no Literal
        default = False if kind is bool else None
        # Typer names a parameter after its flag, and the environment variable after the parameter.
        parameter = self.name.removeprefix("--").replace("-", "_")
        return inspect.Parameter(
            parameter, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[hint, declared]
        )


def _bare(hint: Any) -> tuple[Any, Meta]:
    """Return a field's type without None, and the bounds of its values."""
    bounds = Meta()
    while get_origin(hint) in (Annotated, Union, UnionType):
        if get_origin(hint) is Annotated:
            hint, *extras = get_args(hint)
            bounds = next((extra for extra in extras if isinstance(extra, Meta)), bounds)
            continue
        kinds = [kind for kind in get_args(hint) if kind is not NoneType]
        if len(kinds) > 1:
            return str, bounds  # one of several scalars: text until it is parsed
        (hint,) = kinds
    return hint, bounds


def _fields(kind: type[Options]) -> Iterator[_Field]:
    """Yield a verb's own fields before those that it shares with other verbs."""
    hints = get_type_hints(kind, include_extras=True)
    for owner in kind.__mro__:
        for key in vars(owner).get("__annotations__", ()):
            hint = hints.pop(key, None)
            for flag in get_args(hint)[1:]:
                if isinstance(flag, Flag):
                    yield _Field(key, hint, flag)


def verb(name: str, kind: type[Kind], act: Callable[..., None]) -> Callable[..., None]:
    """Return the command of that name, with the flags of `kind`, then the parameters of `act` after the first."""
    fields = {field.parameter().name: field for field in _fields(kind)}
    _, *own = inspect.signature(act, eval_str=True).parameters.values()
    parameters = [*(field.parameter() for field in fields.values())]
    parameters += [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in own]

    def command(**given: Any) -> None:
        rest = {name: given.pop(name) for name in list(given) if name not in fields}
        values = {
            fields[name].key: fields[name].flag.parse(value)
            for name, value in given.items()
            if _is_given(value)
        }
        act(kind(**values), **rest)

    command.__name__ = name
    command.__doc__ = act.__doc__
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return command


def _is_given(value: object) -> bool:
    return value is not None and value is not False and value not in ((), [])


def given_flags(options: Options) -> list[str]:
    """Return the flags that were given."""
    return [field.name for field in _fields(type(options)) if _is_given(getattr(options, field.key))]


def over(given: Kind, file: Options, beside: Path) -> Kind:
    """Return the flags' values, and for the rest those of the file, which is in the directory `beside`."""
    values: dict[str, Any] = {}
    for field in _fields(type(given)):
        value = getattr(given, field.key)
        if not _is_given(value) and hasattr(file, field.key):
            value = getattr(file, field.key)
            if field.is_path and value is not None:
                value = beside / value
        values[field.key] = value
    return type(given)(**values)
