"""Runs a scenario of the guaranteed overlay in the simulator; for benchmarks/overlay.py."""

from __future__ import annotations

import tempfile
from pathlib import Path
from time import process_time
from typing import NamedTuple

from tidings.scenarios.file.expand import expand
from tidings.scenarios.file.schema import Scenario
from tidings.scenarios.simulate import Simulation
from tidings.scenarios.trace.reader import Trace
from tidings.scenarios.trace.writer import TraceWriter

DELTA = 2


class Run(NamedTuple):
    """A simulated scenario: its trace, and the CPU time that it took."""

    trace: Trace
    cpu_s: float
    publishing_cpu_s: float
    """Since the first publication was due, without subscribing."""


def simulate(scenario: Scenario) -> Run:
    start_s = min(publisher.start_s for publisher in scenario.publishers)
    quiet_share = start_s / (scenario.duration_s + scenario.settle_s)
    with tempfile.TemporaryDirectory() as directory:
        with TraceWriter(Path(directory)) as writer:
            simulation = Simulation(expand(scenario), writer)
            began = started = process_time()

            def look(share: float) -> None:
                nonlocal started
                if share < quiet_share:
                    started = process_time()

            simulation.run(look)
            ended = process_time()
            simulation.close()
        return Run(Trace.read(directory), ended - began, ended - started)
