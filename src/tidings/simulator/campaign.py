"""Random scenarios for the guaranteed overlay, run by the thousand: each seed is one network with its faults.

A run has two phases. While faults come and go, the monitor asserts the invariants (simulator/invariants.py). Then
everything is healed, and the network must come to rest, with nothing lost, repeated or out of order. A seed
replays its run exactly.
"""

from __future__ import annotations

import argparse
import gc
import sys
import traceback
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random

from tidings.scenario.expand import expand
from tidings.scenario.load import parse_scenario
from tidings.simulator.faults import NS_PER_S
from tidings.simulator.invariants import InvariantError, OverlayMonitor, unsettled
from tidings.simulator.memory_trace import MemoryWriter
from tidings.simulator.newcomers import schedule_newcomers
from tidings.simulator.random_scenarios import random_scenario
from tidings.simulator.run import Simulation
from tidings.trace.checkers import exactly_once, fifo, gap_free
from tidings.trace.reader import Trace

CHECK_NS = NS_PER_S // 4
"""How often the monitor looks at everything."""
SEEDS_PER_BLOCK = 20
NEWCOMERS_EVERY = 4
"""In one run of so many brokers join while it lasts."""


# --- Runs


@dataclass(frozen=True, slots=True)
class CampaignResult:
    """What one seed did; it failed if there are problems."""

    seed: int
    problems: tuple[str, ...]
    published: int
    delivered: int
    steps: int

    @property
    def failed(self) -> bool:
        return bool(self.problems)

    def __str__(self) -> str:
        lines = [f"seed {self.seed}: {'failed' if self.failed else 'passed'}", *self.problems]
        if self.failed:
            lines.append(f"replay: {replay_command(self.seed)}")
        return "\n    ".join(lines)


def replay_command(seed: int) -> str:
    return f"python -m tidings.simulator.campaign --seeds {seed}:{seed + 1} --monitor --keep campaign-{seed}"


def run_seed(seed: int, monitor: bool = True) -> CampaignResult:
    """Runs the scenario of that seed, without touching a disk; whatever goes wrong is among the problems."""
    writer = MemoryWriter()
    simulation = Simulation(expand(parse_scenario(random_scenario(seed))), writer)
    watch = OverlayMonitor(simulation.network) if monitor else None
    if seed % NEWCOMERS_EVERY == 1:
        schedule_newcomers(
            simulation, Random(f"{seed}:newcomers"), watch.watch if watch is not None else lambda node: None
        )
    collecting = gc.isenabled()
    gc.disable()  # as `Simulation.run` does, and for its reason
    try:
        problems = tuple(_run(simulation, writer, watch))
    except InvariantError as error:
        problems = (str(error),)
    except Exception:  # whatever a protocol raises is a finding, and the other seeds go on
        problems = (traceback.format_exc(limit=-4).strip(),)
    finally:
        if collecting:
            gc.enable()
    return CampaignResult(seed, problems, *writer.counts, simulation.network.schedule.steps)


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
        yield writer.unanswered() or unsettled(network) or "it was quiet, and is not any more"
    yield from verdicts(writer.trace())


def _rest_ns(simulation: Simulation) -> int:
    """Until when to look on although all is quiet: one run in sixteen has to stay so for long."""
    long_rest = simulation.plan.scenario.seed % 16 == 0
    return simulation.duration_ns + (40 * NS_PER_S if long_rest else 0)


def verdicts(trace: Trace) -> Iterator[str]:
    """What the checkers object to."""
    return (
        str(verdict) for verdict in (exactly_once(trace), fifo(trace), gap_free(trace)) if not verdict.holds
    )


# --- Many


def run_block(seeds: range, monitor: bool) -> list[CampaignResult]:
    return [run_seed(seed, monitor) for seed in seeds]


def blocks(seeds: range, size: int = SEEDS_PER_BLOCK) -> list[range]:
    return [seeds[start : start + size] for start in range(0, len(seeds), size)]


def run_seeds(seeds: range, *, jobs: int, monitor: bool) -> Iterator[CampaignResult]:
    """All results, in order."""
    run = partial(run_block, monitor=monitor)
    if jobs == 1:
        for seed in seeds:
            yield run_seed(seed, monitor)
        return
    with ProcessPoolExecutor(jobs) as pool:
        for results in pool.map(run, blocks(seeds)):
            yield from results


def parse_seeds(text: str) -> range:
    """`A:B`: from A to before B."""
    low, colon, high = text.partition(":")
    if not colon or not low.isdecimal() or not high.isdecimal() or int(low) >= int(high):
        raise argparse.ArgumentTypeError(f"{text!r} is not A:B with 0 <= A < B")
    return range(int(low), int(high))


def _keep(directory: Path, result: CampaignResult) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    (directory / f"seed-{result.seed}.toml").write_text(random_scenario(result.seed), encoding="utf-8")
    (directory / f"seed-{result.seed}.txt").write_text(f"{result}\n", encoding="utf-8")


def report(results: Iterable[CampaignResult], total: int, keep: Path | None) -> int:
    """Prints progress and failures; the number of these."""
    failures = published = delivered = 0
    for done, result in enumerate(results, start=1):
        published += result.published
        delivered += result.delivered
        if result.failed:
            failures += 1
            print(result, flush=True)
        if keep is not None and (result.failed or total == 1):
            _keep(keep, result)
        if done % 100 == 0 or done == total:
            print(
                f"{done}/{total} seeds, {failures} failed, {published} published, {delivered} delivered",
                file=sys.stderr,
                flush=True,
            )
    return failures


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tidings.simulator.campaign", description=__doc__)
    parser.add_argument("--seeds", type=parse_seeds, required=True, metavar="A:B", help="from A to before B")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="processes")
    parser.add_argument("--monitor", action="store_true", help="assert the invariants while a run goes on")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="write the scenarios of failing seeds there")
    options = parser.parse_args(arguments)
    results = run_seeds(options.seeds, jobs=max(options.jobs, 1), monitor=options.monitor)
    return 1 if report(results, len(options.seeds), options.keep) else 0


if __name__ == "__main__":
    raise SystemExit(main())
