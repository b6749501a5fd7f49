"""Kills workers and brokers at random under load, as real processes, and checks that every event is done by one worker.

Five brokers, eight workers of two groups at all of them, two publishers. Whoever is killed (kill -9) comes back soon.
It is a scenario, run in wall time; the checkers are those of the simulator.

    python -m tidings.lab.chaos --seconds 600
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random

from tidings.drivers.sockets.loop import run
from tidings.scenarios.checking import verdicts
from tidings.scenarios.file.load import parse_scenario
from tidings.scenarios.live.run import run_live

MODULE = "tidings.lab.chaos"
BROKERS = 5
WORKERS = 8
SETTLE_S = 25.0
QUIET_S = 2.0
"""Before the first kill, and after the last: then everybody is attached."""


def chaos_scenario(seed: int, duration_s: float) -> str:
    """Return a scenario of kills that lasts so long, and then settles."""
    random = Random(f"chaos:{seed}")
    parts = [
        f"seed = {seed}\nduration_s = {duration_s}\nsettle_s = {SETTLE_S}\n",
        f'[overlay]\nmode = "guaranteed"\nshape = {{ kind = "random", brokers = {BROKERS}, degree = 3 }}\n',
        *_publishers(),
        *_workers(random),
        *_kills(random, duration_s),
    ]
    return "\n".join(parts)


def _publishers() -> Iterator[str]:
    for number in range(2):
        yield (
            f'[[publisher]]\nname = "p{number}"\nat = "b{number}"\ntopics = ["/jobs/a", "/jobs/b"]\n'
            "rate_hz = 100.0\nstart_s = 1.0\n"
            'attributes = { x = { kind = "int", low = 0, high = 9 } }\n'
        )


def _workers(random: Random) -> Iterator[str]:
    for number in range(WORKERS):
        group = "ab"[number % 2]
        by = 'group_by = "x"\n' if group == "b" else ""
        yield (
            f'[[subscriber]]\nname = "w{number}"\nat = "b{number % BROKERS}"\ntopics = ["/jobs/{group}"]\n'
            f'group = "{group}"\n{by}max_unacked = {random.choice((1, 8, 64))}\n'
            f'work_ms = {{ kind = "uniform", low = 0, high = {random.choice((2, 10))} }}\n'
        )


def _kills(random: Random, duration_s: float) -> Iterator[str]:
    """One kill after the other; nobody is killed again before it is back."""
    names = [f"w{number}" for number in range(WORKERS)] + [f"b{number}" for number in range(BROKERS)]
    back_at = dict.fromkeys(names, 0.0)
    at = QUIET_S
    while at < duration_s - QUIET_S:
        name = random.choice([name for name in names if back_at[name] < at])
        until = min(at + random.choice((0.1, 0.5, 2.0)), duration_s)
        back_at[name] = until + 0.5
        yield f'[[fault]]\nkind = "crash"\nnodes = ["{name}"]\nat_s = {at:.2f}\nuntil_s = {until:.2f}\n'
        at += random.uniform(0.3, 1.5)


def run_chaos(seed: int, duration_s: float, out: Path) -> list[str]:
    """Run it, and return what is wrong with its trace in `out`."""
    scenario = parse_scenario(chaos_scenario(seed, duration_s))
    run(run_live(scenario, out, lambda share: None, lambda notice: None))
    return [str(verdict) for verdict in verdicts(scenario, out, virtual=False) if not verdict.holds]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog=f"python -m {MODULE}", description=__doc__)
    parser.add_argument("--seconds", type=float, default=20.0, help="how long to kill (default: 20)")
    parser.add_argument("--seed", type=int, default=1, help="of the kills (default: 1)")
    parser.add_argument("--out", type=Path, help="keep the trace in this directory")
    options = parser.parse_args(arguments)
    if options.seconds < 3 * QUIET_S:
        parser.error(f"--seconds: at least {3 * QUIET_S:g}, not {options.seconds:g}")
    with tempfile.TemporaryDirectory(prefix="tidings-chaos-") as directory:
        problems = run_chaos(options.seed, options.seconds, options.out or Path(directory))
    for problem in problems:
        print(problem)
    kills = chaos_scenario(options.seed, options.seconds).count("[[fault]]")
    print(f"seed {options.seed}: {kills} kills in {options.seconds:g} s, {len(problems)} broken promises")
    if problems:
        print(f"again: python -m {MODULE} --seed {options.seed} --seconds {options.seconds:g}")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
