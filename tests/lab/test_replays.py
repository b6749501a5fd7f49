"""A seed replays its run exactly: alone in a fresh process under another hash seed, and after others in one process."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from random import Random
from types import ModuleType

import pytest

from tidings.lab import campaign, epidemic_campaign, order_campaign, share_campaign
from tidings.scenarios.trace.memory import MemoryWriter

RUNS = [
    (campaign, (2, 5, 17)),
    (epidemic_campaign, (0, 1, 3)),
    (order_campaign, (0, 42, 13)),
    (share_campaign, (1, 2, 7)),
]
"""With crash points, runs, newcomers, and subscribers that resume."""


def fingerprint(module: ModuleType, seed: int) -> str:
    """Of all rows of the trace, what went wrong, and how many steps it took."""
    made: list[MemoryWriter] = []

    def make() -> MemoryWriter:
        made.append(MemoryWriter())
        return made[0]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "MemoryWriter", make)
        result = module.run_seed(seed)
    trace = made[0].trace()
    tables = [table.to_pylist() for table in (trace.published, trace.subscribed, trace.delivered)]
    assert tables[-1], "nothing was delivered"
    return hashlib.sha256(repr((result, tables)).encode()).hexdigest()


ALONE = """
import importlib, sys
sys.path.insert(0, sys.argv[1])
from test_replays import fingerprint
print(fingerprint(importlib.import_module(sys.argv[2]), int(sys.argv[3])))
"""


def alone(module: ModuleType, seed: int, hash_seed: str) -> str:
    command = [sys.executable, "-c", ALONE, os.path.dirname(__file__), module.__name__, str(seed)]
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240, check=True)
    return done.stdout.strip()


@pytest.mark.parametrize(("module", "seeds"), RUNS, ids=lambda value: getattr(value, "__name__", ""))
def test_a_seed_is_one_run_alone_and_after_others(module: ModuleType, seeds: tuple[int, ...]) -> None:
    *others, last = [fingerprint(module, seed) for seed in seeds]
    assert alone(module, seeds[-1], "4242") == last
    assert len({*others, last}) == len(seeds)


def test_what_leaks_from_one_run_into_the_next_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: runs of events are drawn from one generator for all seeds."""
    shared = Random(1)
    monkeypatch.setattr(order_campaign, "Random", lambda seed: shared)
    assert fingerprint(order_campaign, 13) != fingerprint(order_campaign, 13)
