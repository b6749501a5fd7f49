"""Decodes parsed TOML into the schema's structs; a mistake is reported in one line that names the key.

`inspect_value` walks the values along the schema's types before `msgspec` builds the structs. The walk knows what
msgspec's errors lack: the path to a key inside tables of any name, the keys of each kind, the nearest known word.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from functools import cache
from typing import Any

import msgspec
from msgspec import inspect

from tidings.core.errors import ScenarioError
from tidings.scenarios.file.schema import Scenario

SHOWN_CHARACTERS = 60
SHOWN_NAMES = 20


def decode_scenario(document: dict[str, Any]) -> Scenario:
    """Return the scenario in a parsed TOML document; raise ScenarioError (without the file's name) if it is invalid."""
    inspect_value(_scenario_type(), document, "")
    try:
        return msgspec.convert(document, Scenario)
    except msgspec.ValidationError as error:
        raise ScenarioError(str(error)) from None


@cache
def _scenario_type() -> inspect.Type:
    return inspect.type_info(Scenario)


def inspect_value(expected: inspect.Type, value: object, path: str) -> None:
    """Raise ScenarioError unless `value` is what the schema expects at `path`."""
    match expected:
        case inspect.StructType():
            _inspect_table(expected, value, path)
        case inspect.UnionType():
            _inspect_union(expected, value, path)
        case inspect.VarTupleType():
            _inspect_array(expected, value, path)
        case inspect.TupleType():
            _inspect_fixed_array(expected, value, path)
        case inspect.DictType():
            for key, item in _table(value, path).items():
                if not key:
                    raise ScenarioError(f"{path}: a name must not be empty")
                inspect_value(expected.value_type, item, join(path, key))
        case inspect.Metadata():
            inspect_value(expected.type, value, path)
            if expected.extra == {"printable": True} and not str(value).isprintable():
                raise ScenarioError(f"{path}: {shown(value)} contains an unprintable character")
        case inspect.LiteralType():
            _inspect_word(expected.values, value, path)
        case _:
            _inspect_scalar(expected, value, path)


def _inspect_table(expected: inspect.StructType, value: object, path: str) -> None:
    table = _table(value, path)
    fields = {item.encode_name: item for item in expected.fields}
    known = [*([expected.tag_field] if expected.tag_field else []), *fields]
    for key in table:
        if key not in known:
            raise ScenarioError(_unknown_key(key, known, path))
    for name, item in fields.items():
        if name in table:
            inspect_value(item.type, table[name], join(path, name))
        elif item.required:
            raise ScenarioError(f"missing key '{name}' in {place(path)}")


def _inspect_union(expected: inspect.UnionType, value: object, path: str) -> None:
    options = [option for option in expected.types if not isinstance(option, inspect.NoneType)]
    kinds = [option for option in options if isinstance(option, inspect.StructType) and option.tag_field]
    if kinds:
        _inspect_kinded(kinds, value, path)
    elif len(options) == 1:
        inspect_value(options[0], value, path)
    else:
        _inspect_any_scalar(options, value, path)


def _inspect_kinded(kinds: list[inspect.StructType], value: object, path: str) -> None:
    """Inspect a table whose `kind` selects the struct."""
    names = [str(kind.tag) for kind in kinds]
    if not isinstance(value, dict):
        example = f'{{ kind = "{names[0]}", ... }}'
        raise ScenarioError(f"{path}: must be a table such as {example}, not {shown(value)}")
    if "kind" not in value:
        raise ScenarioError(f"missing key 'kind' in {place(path)}; known kinds: {', '.join(names)}")
    if value["kind"] not in names:
        raise ScenarioError(f"{join(path, 'kind')}: {_not_one_of(value['kind'], names)}")
    chosen = kinds[names.index(value["kind"])]
    for key in value:
        takers = [str(kind.tag) for kind in kinds if any(item.encode_name == key for item in kind.fields)]
        if takers and chosen.tag not in takers:
            raise ScenarioError(
                f"key '{key}' in {place(path)} belongs to kind {quoted(takers)}, not to kind '{chosen.tag}'; "
                f"known keys: {', '.join(['kind', *(item.encode_name for item in chosen.fields)])}"
            )
    inspect_value(chosen, value, path)


def _inspect_any_scalar(options: list[inspect.Type], value: object, path: str) -> None:
    """Inspect a value of one of several scalar types, as the type that it has in the file."""
    kinds: dict[type, type[inspect.Type]] = {
        bool: inspect.BoolType,
        int: inspect.IntType,
        float: inspect.FloatType,
        str: inspect.StrType,
    }
    wanted = kinds.get(type(value))
    for option in options:
        if wanted is not None and isinstance(option, wanted):
            inspect_value(option, value, path)
            return
    raise ScenarioError(f"{path}: must be a string, a number or a boolean, not {shown(value)}")


def _inspect_array(expected: inspect.VarTupleType, value: object, path: str) -> None:
    items = _array(value, path)
    if expected.min_length is not None and len(items) < expected.min_length:
        few = f"needs at least {expected.min_length} entries, not {len(items)}"
        raise ScenarioError(f"{path}: {'must not be empty' if expected.min_length == 1 else few}")
    if expected.max_length is not None and len(items) > expected.max_length:
        raise ScenarioError(f"{path}: needs at most {expected.max_length} entries, not {len(items)}")
    for index, item in enumerate(items):
        inspect_value(expected.item_type, item, f"{path}[{index}]")


def _inspect_fixed_array(expected: inspect.TupleType, value: object, path: str) -> None:
    items = _array(value, path)
    if len(items) != len(expected.item_types):
        raise ScenarioError(f"{path}: needs exactly {len(expected.item_types)} names, not {len(items)}")
    for index, (kind, item) in enumerate(zip(expected.item_types, items, strict=True)):
        inspect_value(kind, item, f"{path}[{index}]")


def _inspect_word(words: Sequence[object], value: object, path: str) -> None:
    if not isinstance(value, str) or value not in words:
        raise ScenarioError(f"{path}: {_not_one_of(value, [str(word) for word in words])}")


def _not_one_of(value: object, names: Sequence[str]) -> str:
    near = nearest(value, names)
    return f"{shown(value)} is not one of {', '.join(names)}" + (f"; did you mean '{near}'?" if near else "")


def _inspect_scalar(expected: inspect.Type, value: object, path: str) -> None:
    match expected:
        case inspect.BoolType():
            if not isinstance(value, bool):
                raise ScenarioError(f"{path}: must be true or false, not {shown(value)}")
        case inspect.IntType():
            if not isinstance(value, int) or isinstance(value, bool):
                # `shown` would print 7.0 as 7, and the message would make no sense.
                written = str(value) if isinstance(value, float) else shown(value)
                raise ScenarioError(f"{path}: must be a whole number, not {written}")
            _inspect_bounds(expected, value, path)
        case inspect.FloatType():
            if not isinstance(value, int | float) or isinstance(value, bool):
                raise ScenarioError(f"{path}: must be a number, not {shown(value)}")
            if isinstance(value, int) and abs(value) >= 2**63:
                raise ScenarioError(f"{path}: must fit in 64 bits")
            if not math.isfinite(value):
                raise ScenarioError(f"{path}: must be a finite number, not {value}")
            _inspect_bounds(expected, value, path)
        case inspect.StrType():
            _inspect_text(expected, value, path)
        case inspect.CustomType():  # a path
            _inspect_text(inspect.StrType(min_length=1), value, path)


def _inspect_bounds(expected: inspect.IntType | inspect.FloatType, value: float, path: str) -> None:
    if expected.gt is not None and not value > expected.gt:
        raise ScenarioError(f"{path}: must be above {number(expected.gt)}, not {shown(value)}")
    if expected.ge is not None and not value >= expected.ge:
        raise ScenarioError(f"{path}: must be at least {number(expected.ge)}, not {shown(value)}")
    if expected.lt is not None and not value < expected.lt:
        raise ScenarioError(f"{path}: must be below {number(expected.lt)}, not {shown(value)}")
    if expected.le is not None and not value <= expected.le:
        raise ScenarioError(f"{path}: must be at most {number(expected.le)}, not {shown(value)}")


def _inspect_text(expected: inspect.StrType, value: object, path: str) -> None:
    if not isinstance(value, str):
        raise ScenarioError(f"{path}: must be a string, not {shown(value)}")
    if expected.min_length is not None and len(value) < expected.min_length:
        raise ScenarioError(f"{path}: must not be empty")
    if expected.max_length is not None and len(value) > expected.max_length:
        raise ScenarioError(f"{path}: must not be longer than {expected.max_length} characters")


def _table(value: object, path: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ScenarioError(f"{path}: must be a table, not {shown(value)}")
    return value


def _array(value: object, path: str) -> list[Any]:
    if isinstance(value, dict) and "." not in path and "[" not in path:
        raise ScenarioError(f"[{path}]: must be an array of tables; write [[{path}]]")
    if not isinstance(value, list):
        raise ScenarioError(f"{path}: must be an array, not {shown(value)}")
    return value


def join(path: str, key: str) -> str:
    """Return the path to `key` in the table at `path`; quote keys that TOML requires to be quoted."""
    bare = key.replace("_", "").replace("-", "")
    text = key if bare.isascii() and bare.isalnum() and len(key) <= SHOWN_CHARACTERS else shown(key)
    return f"{path}.{text}" if path else text


def place(path: str) -> str:
    """Return how a message names the table at `path`."""
    if not path:
        return "the top level"
    return path if "." in path or "[" in path else f"[{path}]"


def _unknown_key(key: str, known: list[str], path: str) -> str:
    where = "at the top level" if not path else f"in {place(path)}"
    near = nearest(key, known)
    hint = f"did you mean '{near}'?" if near else f"known keys: {', '.join(known)}"
    return f"unknown key {shown(key)} {where}; {hint}"


def nearest(word: object, known: Sequence[str]) -> str | None:
    near = get_close_matches(word[:SHOWN_CHARACTERS], known, n=1) if isinstance(word, str) else []
    return near[0] if near else None


def listed(names: Sequence[str]) -> str:
    more = len(names) - SHOWN_NAMES
    return ", ".join(names[:SHOWN_NAMES]) + (f" and {more} more" if more > 0 else "")


def quoted(names: Iterable[str]) -> str:
    return ", ".join(f"'{name}'" for name in names)


def number(value: float) -> str:
    """Format a number as a user would write it: 10 rather than 10.0, 100000 rather than 1e+05."""
    return str(int(value)) if float(value).is_integer() and abs(value) < 1e16 else str(value)


def shown(value: object) -> str:
    """Format a value of the file for a message: short and on one line."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int) and abs(value) >= 2**64:
        return "a number of more than 64 bits"
    if isinstance(value, int | float):
        return number(value) if math.isfinite(value) else str(value)
    if isinstance(value, str):
        return repr(value if len(value) <= SHOWN_CHARACTERS else value[:SHOWN_CHARACTERS] + "...")
    if isinstance(value, dict):
        return "a table"
    return "an array" if isinstance(value, list) else "a date or time"
