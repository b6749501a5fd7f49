"""The grid file of a sweep: a scenario, the values of its keys, and the seeds (docs/sweeps.md).

Nothing here needs Spark. Points are numbered in the order of the file, the last key changing fastest. A point is built
on demand, so that a grid takes no more memory than its file.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path as FilePath
from typing import Any

from tidings.core.errors import ScenarioError
from tidings.scenarios.file.check import check_scenario
from tidings.scenarios.file.decode import decode_scenario, join, nearest, shown
from tidings.scenarios.file.modes import check_available
from tidings.scenarios.file.schema import Scenario
from tidings.scenarios.file.text_file import parse_toml, read_text
from tidings.spark.sweep.paths import Path, join_path, placed, split_path

MAX_RUNS = 1_000_000
KNOWN_KEYS = ("scenario", "seeds", "grid", "zip")
KNOWN_SEED_KEYS = ("first", "count")
SEED_LIMIT = 2**63
DEFAULT_SEED = 7
LABEL_CHARACTERS = 60

Values = tuple[tuple[Path, Any], ...]


@dataclass(frozen=True, slots=True)
class Axis:
    """Keys that change together; `rows` holds their values at each step."""

    paths: tuple[Path, ...]
    rows: tuple[tuple[Any, ...], ...]


@dataclass(frozen=True, slots=True)
class Grid:
    """The grid; `document` is the scenario without the grid's values."""

    name: str
    document: Mapping[str, Any]
    axes: tuple[Axis, ...]
    seeds: Sequence[int]

    @property
    def points(self) -> int:
        return math.prod(len(axis.rows) for axis in self.axes)

    @property
    def parameters(self) -> list[str]:
        return [join_path(path) for axis in self.axes for path in axis.paths]

    def values(self, point: int) -> Values:
        """Return the values of the grid's keys at a point."""
        chosen: list[tuple[Path, Any]] = []
        for axis in reversed(self.axes):
            point, step = divmod(point, len(axis.rows))
            chosen[:0] = zip(axis.paths, axis.rows[step], strict=True)
        return tuple(chosen)

    def label(self, point: int) -> str:
        """Return the point as messages name it: its number and its values."""
        values = ", ".join(f"{join_path(path)} = {value_text(value)}" for path, value in self.values(point))
        return f"point {point} ({values})" if values else f"point {point}"

    def scenario(self, point: int) -> Scenario:
        """Return the checked scenario at the point, with the first seed; ScenarioError names the point."""
        try:
            return scenario_at(self.document, self.values(point), self.seeds[0])
        except ScenarioError as error:
            raise type(error)(f"{self.name}: {self.label(point)}: {error}") from None


def document_at(document: Mapping[str, Any], values: Values, seed: int) -> dict[str, Any]:
    return {**placed(document, values), "seed": seed}


def scenario_at(document: Mapping[str, Any], values: Values, seed: int) -> Scenario:
    scenario = decode_scenario(document_at(document, values, seed))
    check_scenario(scenario)
    check_available(scenario.overlay.mode, "overlay.mode")
    return scenario


def value_text(value: Any) -> str:
    """Format a value on one short line."""
    if isinstance(value, str):
        return value if len(value) <= LABEL_CHARACTERS else f"{value[:LABEL_CHARACTERS]}..."
    text = canonical(value)
    return text if len(text) <= LABEL_CHARACTERS else f"{text[:LABEL_CHARACTERS]}..."


def canonical(value: Any) -> str:
    """Return the same text for equal values."""
    return json.dumps(value, sort_keys=True, ensure_ascii=False, default=str)


def load_grid(path: FilePath) -> Grid:
    """Load a grid; ScenarioError names the file and the key. The points are not checked yet."""
    text = read_text(path)
    try:
        return _grid_of(parse_toml(text), path)
    except ScenarioError as error:
        raise ScenarioError(f"{path}: {error}") from None


def _grid_of(document: dict[str, Any], path: FilePath) -> Grid:
    _check_keys(document, KNOWN_KEYS, "at the top level")
    base = _base(document, path.parent)
    axes = tuple(_axes(document))
    seeds = _seeds(document.get("seeds"), base.get("seed", DEFAULT_SEED))
    grid = Grid(str(path), base, axes, seeds)
    runs = grid.points * len(seeds)
    if runs > MAX_RUNS:
        raise ScenarioError(
            f"{grid.points:,} points with {len(seeds):,} seeds are {runs:,} runs; at most {MAX_RUNS:,} are allowed"
        )
    return grid


def _check_keys(table: Mapping[str, Any], known: Sequence[str], where: str) -> None:
    for key in table:
        if key not in known:
            near = nearest(key, known)
            hint = f"did you mean '{near}'?" if near else f"known keys: {', '.join(known)}"
            raise ScenarioError(f"unknown key {shown(key)} {where}; {hint}")


def _base(document: Mapping[str, Any], directory: FilePath) -> Mapping[str, Any]:
    """Return the scenario's document: a table here, or a file relative to this file's directory."""
    given = document.get("scenario")
    match given:
        case None:
            raise ScenarioError("missing key 'scenario': the path of a scenario file, or a table [scenario]")
        case dict():
            return given
        case str():
            path = directory / given
            try:
                return parse_toml(read_text(path))
            except ScenarioError as error:
                reason = str(error)
                where = "" if str(path) in reason else f"{path}: "
                raise ScenarioError(f"scenario: {where}{reason}") from None
        case _:
            raise ScenarioError(f"scenario: must be a path or a table, not {shown(given)}")


def _axes(document: Mapping[str, Any]) -> Iterator[Axis]:
    seen: set[Path] = set()
    for key, path, values in _keys(document.get("grid", {}), "grid", seen):
        _check_different([(value,) for value in values], key)
        yield Axis((path,), tuple((value,) for value in values))
    zips = document.get("zip", [])
    if not isinstance(zips, list):
        raise ScenarioError("[zip]: must be an array of tables: write [[zip]]")
    for index, table in enumerate(zips):
        yield _zipped(table, f"zip[{index}]", seen)


def _zipped(table: Any, where: str, seen: set[Path]) -> Axis:
    keys = list(_keys(table, where, seen))
    if not keys:
        raise ScenarioError(f"{where}: has no keys")
    lengths = {len(values) for _key, _path, values in keys}
    if len(lengths) > 1:
        sizes = ", ".join(f"{join_path(path)} has {len(values)}" for _key, path, values in keys)
        raise ScenarioError(f"{where}: the lists must have the same length: {sizes}")
    rows = tuple(zip(*(values for _key, _path, values in keys), strict=True))
    _check_different(rows, where)
    return Axis(tuple(path for _key, path, _values in keys), rows)


def _keys(table: Any, where: str, seen: set[Path]) -> Iterator[tuple[str, Path, list[Any]]]:
    """Yield each key that has a list: where it is, its path in the scenario, and the list. Dotted keys may be
    quoted."""
    if not isinstance(table, dict):
        raise ScenarioError(f"{where}: must be a table, not {shown(table)}")
    yield from _flat(table, where, (), seen)


def _flat(
    table: dict[str, Any], where: str, above: Path, seen: set[Path]
) -> Iterator[tuple[str, Path, list[Any]]]:
    for key, value in table.items():
        here = join(where, key)
        try:
            path = above + split_path(key)
        except ScenarioError as error:
            raise ScenarioError(f"{where}: {error}") from None
        if isinstance(value, dict):
            yield from _flat(value, here, path, seen)
            continue
        if not isinstance(value, list):
            raise ScenarioError(f"{here}: must be an array of values, not {shown(value)}")
        if not value:
            raise ScenarioError(f"{here}: must not be empty")
        if path == ("seed",):
            raise ScenarioError(f"{here}: set seeds at the top level, as seeds = [1, 2, 3]")
        if path in seen:
            raise ScenarioError(f"{here}: {join_path(path)} already has values elsewhere in the grid")
        seen.add(path)
        yield here, path, value


def _check_different(rows: Sequence[tuple[Any, ...]], where: str) -> None:
    seen: set[str] = set()
    for row in rows:
        text = canonical(row)
        if text in seen:
            raise ScenarioError(f"{where}: {', '.join(map(value_text, row))} is listed twice")
        seen.add(text)


def _seeds(given: Any, own: Any) -> Sequence[int]:
    """Return the seeds: `5` is 0 to 4, a list is as it is, `{ first, count }` is a range; by default, the scenario's
    own."""
    match given:
        case None:
            return [own]
        case bool():
            raise ScenarioError("seeds: must be a number, a list or a table, not true or false")
        case int():
            return _seed_range(0, given, "seeds")
        case list():
            for index, seed in enumerate(given):
                _check_whole(seed, -SEED_LIMIT, f"seeds[{index}]")
            if not given:
                raise ScenarioError("seeds: must not be empty")
            _check_different([(seed,) for seed in given], "seeds")
            return list(given)
        case dict():
            _check_keys(given, KNOWN_SEED_KEYS, "in seeds")
            if "count" not in given:
                raise ScenarioError("missing key 'count' in seeds")
            _check_whole(given["count"], 1, "seeds.count")
            _check_whole(given.get("first", 0), -SEED_LIMIT, "seeds.first")
            return _seed_range(given.get("first", 0), given["count"], "seeds.count")
        case _:
            raise ScenarioError(f"seeds: must be a number, a list or a table, not {shown(given)}")


def _seed_range(first: int, count: int, where: str) -> range:
    _check_whole(count, 1, where)
    if count > MAX_RUNS:
        raise ScenarioError(f"{where}: {count:,} seeds are too many; at most {MAX_RUNS:,} runs are allowed")
    if first + count > SEED_LIMIT:
        raise ScenarioError(f"{where}: the last seed must have at most 64 bits")
    return range(first, first + count)


def _check_whole(value: Any, least: int, where: str) -> None:
    if not isinstance(value, int) or isinstance(value, bool):
        raise ScenarioError(f"{where}: must be a whole number, not {shown(value)}")
    if not least <= value < SEED_LIMIT:
        bounds = "of at most 64 bits" if least < 0 else f"of at least {least}"
        raise ScenarioError(f"{where}: must be a whole number {bounds}, not {shown(value)}")
