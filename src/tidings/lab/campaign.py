"""Runs random scenarios for the guaranteed overlay by the thousand: each seed is one network with its faults.

A run has two phases. While faults come and go, the monitor asserts the invariants (lab/invariants.py). Then everything
is healed, and the network must come to rest, with nothing lost, duplicated or out of order. A seed replays its run
exactly.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from random import Random

from tidings.drivers.virtual.crash_points import CrashPoints
from tidings.lab.invariants import InvariantError, OverlayMonitor
from tidings.lab.newcomers import schedule_newcomers
from tidings.lab.quiet import unsettled
from tidings.lab.random_scenarios import random_scenario
from tidings.lab.seeds import CampaignResult, problems_of, run_command, seeds_parser
from tidings.scenarios.file.expand import expand
from tidings.scenarios.file.load import parse_scenario
from tidings.scenarios.file.times import NS_PER_S
from tidings.scenarios.simulate import Simulation
from tidings.scenarios.trace.checkers import exactly_once, fifo, gap_free
from tidings.scenarios.trace.memory import MemoryWriter
from tidings.scenarios.trace.reader import Trace

CHECK_NS = NS_PER_S // 4
"""How often the monitor checks the whole network."""
NEWCOMERS_EVERY = 4
"""In one of this many runs, brokers join the network."""
RUNS_EVERY = 2
"""In one of this many runs, events are published in runs, and clients take runs whole."""
RUNS = (1, 1, 2, 3, 8)
CRASH_POINTS_EVERY = 4
"""In one of this many runs, brokers crash before they commit or before they send."""


def replay_command(seed: int) -> str:
    return f"python -m tidings.lab.campaign --seeds {seed}:{seed + 1} --monitor --keep campaign-{seed}"


def run_seed(seed: int, monitor: bool = True) -> CampaignResult:
    """Run the scenario of that seed without touching a disk; whatever goes wrong is among the problems."""
    writer = MemoryWriter()
    simulation = Simulation(expand(parse_scenario(random_scenario(seed))), writer)
    if seed % CRASH_POINTS_EVERY == 2:
        CrashPoints(simulation.network, simulation.plan.topology.brokers, simulation.duration_ns)
    watch = OverlayMonitor(simulation.network) if monitor else None
    if seed % NEWCOMERS_EVERY == 1:
        schedule_newcomers(
            simulation, Random(f"{seed}:newcomers"), watch.watch if watch is not None else lambda node: None
        )
    if seed % RUNS_EVERY:
        _in_runs(simulation, Random(f"{seed}:runs"))
    problems = problems_of(lambda: _run(simulation, writer, watch), InvariantError)
    steps = simulation.network.schedule.steps
    return CampaignResult(seed, problems, *writer.counts, steps, replay_command(seed))


def _in_runs(simulation: Simulation, random: Random) -> None:
    for publisher in simulation.publishers:
        publisher.together = lambda: random.choice(RUNS)
    for subscriber in simulation.subscribers:
        subscriber.client.on_start.append(subscriber.take_runs)


def _run(simulation: Simulation, writer: MemoryWriter, watch: OverlayMonitor | None) -> Iterator[str]:
    network = simulation.network
    network.start()
    quiet = False
    for until in range(CHECK_NS, simulation.end_ns + 1, CHECK_NS):
        network.run(until)
        if watch is not None:
            watch.check()
        if until > simulation.duration_ns:
            quiet = writer.unanswered() is None and unsettled(network) is None
            if quiet and until > _rest_ns(simulation):
                break
    if not quiet:
        yield writer.unanswered() or unsettled(network) or "the network became quiet too late"
    yield from verdicts(writer.trace())


def _rest_ns(simulation: Simulation) -> int:
    """Return until when the run continues although it is quiet: one in sixteen must stay quiet for long."""
    long_rest = simulation.plan.scenario.seed % 16 == 0
    return simulation.duration_ns + (40 * NS_PER_S if long_rest else 0)


def verdicts(trace: Trace) -> Iterator[str]:
    """Return the verdicts of checkers that find violations."""
    return (
        str(verdict) for verdict in (exactly_once(trace), fifo(trace), gap_free(trace)) if not verdict.holds
    )


def main(arguments: Sequence[str] | None = None) -> int:
    parser = seeds_parser("tidings.lab.campaign", __doc__)
    parser.add_argument("--monitor", action="store_true", help="assert the invariants during a run")
    options = parser.parse_args(arguments)
    return run_command(options, partial(run_seed, monitor=options.monitor), random_scenario)


if __name__ == "__main__":
    raise SystemExit(main())
