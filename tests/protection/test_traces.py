"""The same scenario and seed give the same trace, row by row, as when the golden files were written.

A line is one table of one scenario: so a failure tells deliveries that changed from mere traffic.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from command import process_of_tidings
from golden import GOLDEN, check_golden, golden_lines
from tidings.lab.epidemic_scenarios import epidemic_scenario
from tidings.lab.order_scenarios import order_scenario
from tidings.lab.random_scenarios import random_scenario
from tidings.scenarios.file.expand import expand
from tidings.scenarios.file.load import load_scenario, parse_scenario
from tidings.scenarios.file.schema import Scenario
from tidings.scenarios.simulate import Simulation
from tidings.scenarios.trace.writer import TraceWriter

SHIPPED = sorted((Path(__file__).parents[2] / "scenarios").glob("*.toml"))
MAX_SUBSCRIBERS = 60
"""Large workloads (thousand, workload) are cut down to so many: mostly their subscriptions take the time."""
SEEDS = range(6)
GENERATORS = {"guaranteed": random_scenario, "epidemic": epidemic_scenario, "ordering": order_scenario}


def trace_lines(name: str, scenario: Scenario, out: Path) -> Iterator[str]:
    with TraceWriter(out / name) as writer:
        simulation = Simulation(expand(scenario), writer)
        simulation.run()
        simulation.close()
    yield f"{name} trace {writer.sha256}"
    for table, sha256 in writer.table_sha256.items():
        yield f"{name} {table} {sha256[:16]}"


def shipped(path: Path) -> Scenario:
    scenario = load_scenario(path)
    workload = scenario.workload
    if workload is None or workload.subscribers <= MAX_SUBSCRIBERS:
        return scenario
    fewer = msgspec.structs.replace(workload, subscribers=MAX_SUBSCRIBERS)
    return msgspec.structs.replace(scenario, workload=fewer)


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_a_shipped_scenario(path: Path, tmp_path: Path) -> None:
    check_golden(f"traces/{path.stem}.txt", trace_lines(path.stem, shipped(path), tmp_path))


@pytest.mark.parametrize(("kind", "generate"), GENERATORS.items(), ids=GENERATORS)
def test_random_scenarios(kind: str, generate: Callable[[int], str], tmp_path: Path) -> None:
    lines = [
        line
        for seed in SEEDS
        for line in trace_lines(f"{kind}-{seed}", parse_scenario(generate(seed)), tmp_path)
    ]
    check_golden(f"traces/random_{kind}.txt", lines)


@pytest.mark.parametrize("hash_seed", ["0", "4711"])
def test_the_hash_seed_does_not_matter(hash_seed: str, tmp_path: Path) -> None:
    path = next(path for path in SHIPPED if path.stem == "partitions")
    done = process_of_tidings("sim", path, "--out", tmp_path / "out", "--json", PYTHONHASHSEED=hash_seed)
    sha256 = msgspec.json.decode(done.stdout)["trace_sha256"]
    assert f"partitions trace {sha256}" in golden_lines("traces/partitions.txt")


def test_no_scenario_is_gone() -> None:
    kept = {path.stem for path in (GOLDEN / "traces").glob("*.txt")}
    assert kept <= {path.stem for path in SHIPPED} | {f"random_{kind}" for kind in GENERATORS}
