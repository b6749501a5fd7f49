"""Holds what campaigns of random runs share: a seed's result, blocks of seeds, the report and the command."""

from __future__ import annotations

import argparse
import gc
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

SEEDS_PER_BLOCK = 20


@dataclass(frozen=True, slots=True)
class CampaignResult:
    """The result of one seed, which failed if there are problems. `replay` is the command that runs it again."""

    seed: int
    problems: tuple[str, ...]
    published: int
    delivered: int
    steps: int
    replay: str = ""

    @property
    def failed(self) -> bool:
        return bool(self.problems)

    def __str__(self) -> str:
        lines = [f"seed {self.seed}: {'failed' if self.failed else 'passed'}", *self.problems]
        if self.failed:
            lines.append(f"replay: {self.replay}")
        return "\n    ".join(lines)


RunSeed = Callable[[int], CampaignResult]


def problems_of(run: Callable[[], Iterable[str]], violation: type[Exception]) -> tuple[str, ...]:
    """Return the problems that a run reports, or the `violation` that ended it.

    Any other exception of a protocol is a finding, too, and must not stop the other seeds.
    """
    collecting = gc.isenabled()
    gc.disable()  # for the same reason as in `Simulation.run`
    try:
        return tuple(run())
    except violation as error:
        return (str(error),)
    except Exception:
        return (traceback.format_exc(limit=-4).strip(),)
    finally:
        if collecting:
            gc.enable()


def blocks(seeds: range, size: int = SEEDS_PER_BLOCK) -> list[range]:
    return [seeds[start : start + size] for start in range(0, len(seeds), size)]


def run_block(seeds: range, run_seed: RunSeed) -> list[CampaignResult]:
    return [run_seed(seed) for seed in seeds]


def run_seeds(seeds: range, run_seed: RunSeed, *, jobs: int) -> Iterator[CampaignResult]:
    """Yield all results, in order."""
    if jobs == 1:
        yield from map(run_seed, seeds)
        return
    with ProcessPoolExecutor(jobs) as pool:
        for results in pool.map(partial(run_block, run_seed=run_seed), blocks(seeds)):
            yield from results


def parse_seeds(text: str) -> range:
    """Return the range of `A:B`, without B."""
    low, colon, high = text.partition(":")
    if not colon or not low.isdecimal() or not high.isdecimal() or int(low) >= int(high):
        raise argparse.ArgumentTypeError(f"expected A:B with 0 <= A < B, not {text!r}")
    return range(int(low), int(high))


def seeds_parser(module: str, description: str | None) -> argparse.ArgumentParser:
    """Return a parser with the options that all campaigns have."""
    parser = argparse.ArgumentParser(prog=f"python -m {module}", description=description)
    parser.add_argument("--seeds", type=parse_seeds, required=True, metavar="A:B", help="from A to B - 1")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="processes to use")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="write the scenarios of failed seeds to DIR")
    return parser


def run_command(options: argparse.Namespace, run_seed: RunSeed, scenario: Callable[[int], str]) -> int:
    """Run the campaign that the options describe; return the exit code."""
    results = run_seeds(options.seeds, run_seed, jobs=max(options.jobs, 1))
    return 1 if report(results, len(options.seeds), options.keep, scenario) else 0


def report(
    results: Iterable[CampaignResult], total: int, keep: Path | None, scenario: Callable[[int], str]
) -> int:
    """Print progress and failures; return the number of failures."""
    failures = published = delivered = 0
    for done, result in enumerate(results, start=1):
        published += result.published
        delivered += result.delivered
        if result.failed:
            failures += 1
            print(result, flush=True)
        if keep is not None and (result.failed or total == 1):
            _keep(keep, result, scenario(result.seed))
        if done % 100 == 0 or done == total:
            print(
                f"{done}/{total} seeds, {failures} failed, {published} published, {delivered} delivered",
                file=sys.stderr,
                flush=True,
            )
    return failures


def _keep(directory: Path, result: CampaignResult, scenario: str) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    (directory / f"seed-{result.seed}.toml").write_text(scenario, encoding="utf-8")
    (directory / f"seed-{result.seed}.txt").write_text(f"{result}\n", encoding="utf-8")
