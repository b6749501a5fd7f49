"""Grid files: which points they have, and one clear line for each mistake, with the point."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidings.core.errors import ScenarioError
from tidings.spark.sweep.driver import run_ids
from tidings.spark.sweep.grid import MAX_RUNS, Grid, load_grid
from tidings.spark.sweep.paths import join_path, placed, split_path
from tidings.spark.sweep.toml_text import toml_text

SCENARIOS = Path(__file__).parents[2] / "scenarios"
SMALL = """
[scenario]
duration_s = 2.0
overlay = { mode = "best-effort", shape = { kind = "chain", brokers = 3 } }
publisher = [{ name = "p0", at = "b0" }, { name = "p.1", at = "b1" }]
subscriber = [{ name = "s0", at = "b2" }]
"""


def grid_of(tmp_path: Path, text: str) -> Grid:
    path = tmp_path / "grid.toml"
    path.write_text(text)
    return load_grid(path)


def problem_of(tmp_path: Path, text: str) -> str:
    with pytest.raises(ScenarioError) as raised:
        run_ids(grid_of(tmp_path, text))
    message = str(raised.value)
    assert "\n" not in message
    assert message.startswith(f"{tmp_path / 'grid.toml'}: ")
    return message.removeprefix(f"{tmp_path / 'grid.toml'}: ")


def values_of(grid: Grid) -> list[dict[str, object]]:
    return [{join_path(path): value for path, value in grid.values(point)} for point in range(grid.points)]


def test_a_grid_is_the_product_of_its_lists_the_last_changing_fastest(tmp_path: Path) -> None:
    grid = grid_of(
        tmp_path,
        SMALL
        + """
        [grid]
        "recovery.fanout" = [1, 2]
        network.reorder = [0.0, 0.5]
        [[zip]]
        duration_s = [1, 2, 3]
        settle_s = [3, 2, 1]
        """,
    )
    assert grid.parameters == ["recovery.fanout", "network.reorder", "duration_s", "settle_s"]
    assert values_of(grid) == [
        {"recovery.fanout": fanout, "network.reorder": reorder, "duration_s": long, "settle_s": 4 - long}
        for fanout in (1, 2)
        for reorder in (0.0, 0.5)
        for long in (1, 2, 3)
    ]
    scenario = grid.scenario(7)
    assert scenario.recovery.fanout == 2
    assert (scenario.network.reorder, scenario.duration_s, scenario.settle_s) == (0.0, 2, 2)


def test_entries_of_arrays_go_by_name_or_by_place(tmp_path: Path) -> None:
    grid = grid_of(
        tmp_path,
        SMALL
        + """
        [grid]
        "publisher.p0.rate_hz" = [3]
        "publisher.1.count" = [4]
        'publisher."p.1".rate_hz' = [5]
        "subscriber.s0.changes" = [[{ at_s = 1.0, add = ["/a"] }]]
        """,
    )
    first, second = grid.scenario(0).publishers
    assert (first.rate_hz, second.count, second.rate_hz) == (3, 4, 5)
    assert grid.scenario(0).subscribers[0].changes[0].add == ("/a",)
    assert grid.parameters[2] == 'publisher."p.1".rate_hz'


def test_a_whole_table_comes_before_a_key_in_it(tmp_path: Path) -> None:
    grid = grid_of(
        tmp_path,
        SMALL
        + """
        [grid]
        "overlay.shape.brokers" = [3, 4]
        "overlay.shape" = [{ kind = "star" }, { kind = "random", degree = 2 }]
        """,
    )
    shapes = [grid.scenario(point).overlay.shape for point in range(4)]
    assert [(type(shape).__name__, shape.brokers) for shape in shapes if shape is not None] == [
        ("StarShape", 3),
        ("RandomShape", 3),
        ("StarShape", 4),
        ("RandomShape", 4),
    ]


@pytest.mark.parametrize(
    ("seeds", "expected"),
    [
        ("", [7]),
        ("seeds = 3", [0, 1, 2]),
        ("seeds = [5, -1]", [5, -1]),
        ("seeds = { first = 10, count = 2 }", [10, 11]),
        ("seeds = { count = 2 }", [0, 1]),
    ],
)
def test_seeds(tmp_path: Path, seeds: str, expected: list[int]) -> None:
    grid = grid_of(tmp_path, seeds + SMALL)
    assert list(grid.seeds) == expected
    assert len(run_ids(grid)) == len(expected)


def test_the_path_of_a_scenario_counts_from_the_grid_file(tmp_path: Path) -> None:
    (tmp_path / "below").mkdir()
    (tmp_path / "base.toml").write_text(SMALL.replace("[scenario]\n", "seed = 11\n"))
    path = tmp_path / "below" / "grid.toml"
    path.write_text('scenario = "../base.toml"\n')
    grid = load_grid(path)
    assert (grid.points, grid.parameters, grid.seeds) == (1, [], [11])
    assert grid.label(0) == "point 0"
    assert grid.scenario(0).seed == 11


def test_the_shipped_grids_are_good() -> None:
    paths = sorted((SCENARIOS / "sweeps").glob("*.toml"))
    assert paths
    for path in paths:
        grid = load_grid(path)
        assert len(set(run_ids(grid))) == grid.points * len(grid.seeds)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "missing key 'scenario': the path of a scenario file, or a table [scenario]"),
        ("scenario = 3", "scenario: must be a path or a table, not 3"),
        ("sede = 3" + SMALL, "unknown key 'sede' at the top level; did you mean 'seeds'?"),
        ("seeds = 0" + SMALL, "seeds: must be a whole number of at least 1, not 0"),
        ("seeds = []" + SMALL, "seeds: must not be empty"),
        ("seeds = true" + SMALL, "seeds: must be a number, a list or a table, not true or false"),
        ("seeds = 'a'" + SMALL, "seeds: must be a number, a list or a table, not 'a'"),
        ("seeds = [1, 1.5]" + SMALL, "seeds[1]: must be a whole number, not 1.5"),
        ("seeds = [1, 2, 1]" + SMALL, "seeds: 1 is listed twice"),
        ("seeds = { cuont = 3 }" + SMALL, "unknown key 'cuont' in seeds; did you mean 'count'?"),
        ("seeds = { first = 3 }" + SMALL, "missing key 'count' in seeds"),
        (
            "seeds = { first = 9223372036854775807, count = 2 }" + SMALL,
            "seeds.count: the last seed must have at most 64 bits",
        ),
        ("grid = 3" + SMALL, "grid: must be a table, not 3"),
        (SMALL + "[grid]\nduration_s = 3", "grid.duration_s: must be an array of values, not 3"),
        (SMALL + "[grid]\nduration_s = []", "grid.duration_s: must not be empty"),
        (SMALL + "[grid]\nduration_s = [1, 1]", "grid.duration_s: 1 is listed twice"),
        (SMALL + '[grid]\n"a..b" = [1]', "grid: 'a..b' is not a dotted key such as network.loss.rate"),
        (
            SMALL + "[grid]\nseed = [1]",
            "grid.seed: set seeds at the top level, as seeds = [1, 2, 3]",
        ),
        (
            SMALL + "[grid]\nduration_s = [1]\n[[zip]]\nduration_s = [2]",
            "zip[0].duration_s: duration_s already has values elsewhere in the grid",
        ),
        (SMALL + "[zip]\nduration_s = [2]", "[zip]: must be an array of tables: write [[zip]]"),
        (
            SMALL + "[[zip]]\nduration_s = [2]\nsettle_s = [2, 3]",
            "zip[0]: the lists must have the same length: duration_s has 1, settle_s has 2",
        ),
        (SMALL + "[[zip]]", "zip[0]: has no keys"),
        (
            SMALL + "[grid]\nrecovery.fanot = [1]",
            "point 0 (recovery.fanot = 1): unknown key 'fanot' in [recovery]; did you mean 'fanout'?",
        ),
        (
            SMALL + "[grid]\nduration_s = [1, 2]\nnetwork.reorder = [0.5, 1.5]",
            "point 1 (duration_s = 1, network.reorder = 1.5): network.reorder: must be at most 1, not 1.5",
        ),
        (
            SMALL + '[grid]\n"publisher.P0.rate_hz" = [1]',
            "point 0 (publisher.P0.rate_hz = 1): publisher.P0.rate_hz: publisher has no entry named 'P0'; "
            "names: p0, p.1",
        ),
        (
            SMALL + '[grid]\n"publisher.2.rate_hz" = [1]',
            "point 0 (publisher.2.rate_hz = 1): publisher.2.rate_hz: publisher has 2 entries, counted from 0",
        ),
        (
            SMALL + '[grid]\n"duration_s.low" = [1]',
            "point 0 (duration_s.low = 1): duration_s.low: duration_s is 2, not a table",
        ),
        (
            SMALL + '[grid]\n"overlay.mode" = ["peers"]',
            'point 0 (overlay.mode = peers): overlay.mode: "peers" is not yet available; '
            'available: "best-effort", "guaranteed", "epidemic"',
        ),
        (
            SMALL + "[grid]\nduration_s = [1, 1.0]",
            "point 1 (duration_s = 1.0) is the same scenario as point 0 (duration_s = 1)",
        ),
    ],
)
def test_a_mistake_is_told_in_one_line(tmp_path: Path, text: str, message: str) -> None:
    assert problem_of(tmp_path, text) == message


def test_too_many_runs(tmp_path: Path) -> None:
    text = f"seeds = {MAX_RUNS}" + SMALL + "[grid]\nduration_s = [1, 2]"
    assert problem_of(tmp_path, text) == (
        "2 points with 1,000,000 seeds are 2,000,000 runs; at most 1,000,000 are allowed"
    )
    assert "at most 1,000,000 runs" in problem_of(tmp_path, f"seeds = {MAX_RUNS + 1}" + SMALL)


def test_a_scenario_file_that_is_none(tmp_path: Path) -> None:
    missing = problem_of(tmp_path, 'scenario = "none.toml"')
    assert missing == f"scenario: {tmp_path / 'none.toml'}: no such file"
    (tmp_path / "bad.toml").write_text("x = ")
    bad = problem_of(tmp_path, 'scenario = "bad.toml"')
    assert bad.startswith(f"scenario: {tmp_path / 'bad.toml'}: not valid TOML: ")


def test_a_run_is_known_by_its_scenario_and_its_seed_wherever_they_come_from(tmp_path: Path) -> None:
    two = run_ids(grid_of(tmp_path, "seeds = [1, 2]" + SMALL + "[grid]\nsettle_s = [5, 6]"))
    more = run_ids(grid_of(tmp_path, "seeds = [3, 2]" + SMALL + "[grid]\nsettle_s = [4, 6, 5]"))
    assert len({*two, *more}) == 4 + 6 - 2
    assert two[1] == more[5] and two[3] == more[3]  # settle_s 5 and 6 with seed 2
    assert all(re.fullmatch("[0-9a-f]{20}", run_id) for run_id in two)


NAMES = st.text(st.characters(exclude_characters='"', exclude_categories=("Cs", "Cc")), min_size=1).filter(
    lambda name: name == name.strip()
)
SCALARS = st.one_of(
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False),
    st.text(st.characters(exclude_categories=("Cs",))),
)
KEYS = st.text(st.characters(exclude_categories=("Cs",)))
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(KEYS, inner, max_size=3)),
    max_leaves=8,
)


@given(st.lists(NAMES, min_size=1, max_size=4))
def test_a_path_is_read_as_it_is_written(names: list[str]) -> None:
    assert split_path(join_path(tuple(names))) == tuple(names)


@given(st.dictionaries(KEYS, VALUES, max_size=5))
def test_a_document_survives_toml(document: dict[str, object]) -> None:
    assert tomllib.loads(toml_text(document)) == document


def test_the_document_stays_as_it_is() -> None:
    document = {"a": {"b": [{"name": "x", "c": 1}]}}
    changed = placed(document, [(("a", "b", "x", "c"), 2), (("d", "e"), 3)])
    assert changed == {"a": {"b": [{"name": "x", "c": 2}]}, "d": {"e": 3}}
    assert document == {"a": {"b": [{"name": "x", "c": 1}]}}
