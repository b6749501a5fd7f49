"""Measures what recovery of lost events delivers, at what cost and latency (papers epidemic and polarized).

    python benchmarks/recovery.py [--only NAME] [--quick] [--json]

- algorithms: delivered share, overhead and latency of each algorithm on one workload, with 100 brokers and 1 to 20 %
  loss in bursts of 1 and 10.
- polarized: the fanout and the overhead with which each scheme of the polarized paper delivers 99.9 % at 10 % loss per
  link, against `auto`. The goal is less overhead than the paper's best scheme needs for that.
- growth: what a broker sends, computes and stores as the network grows from 10 to 1,000 brokers.
- coding: MB/s of encoding and decoding (benchmarks/coding.py), beside the figures of the design.
- live: ten brokers over UDP on loopback that lose a tenth: delivered share, and added latency.

All but the last two are simulated with one seed: deliveries and messages are the same every time, CPU time is not.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import coding
from output import progress, table_of
from recovery_algorithms import algorithms
from recovery_growth import growth
from recovery_live import live
from recovery_polarized import polarized, verdict
from rich.console import Console

DESIGN_MB_PER_S: dict[str, tuple[float, float | None]] = {
    "tidings": (36.0, 29.0),
    "numba": (156.0, None),
    "galois": (24.0, 4.0),
}
"""Encoding and decoding, from the design page on recovery; numba has one figure there."""


class Coding(NamedTuple):
    """MB/s; None if it is not installed or the design has no figure."""

    contender: str
    encode: float | None
    design_encode: float | None
    decode: float | None
    design_decode: float | None


def coding_rates(quick: bool) -> Iterator[Coding]:
    progress("coding")
    measured = coding.run(0.2 if quick else coding.SECONDS)["mb_per_second"]
    for name, rates in measured.items():
        encode, decode = (None, None) if rates is None else (rates["encode"], rates["decode"])
        design_encode, design_decode = DESIGN_MB_PER_S.get(name, (None, None))
        yield Coding(name, encode, design_encode, decode, design_decode)


class Section(NamedTuple):
    title: str
    measure: Callable[[bool], Iterator[Any]]
    verdict: Callable[[Sequence[Any]], str] | None = None


SECTIONS = {
    "algorithms": Section(
        "70 patterns, 250 events/s, 100 brokers (quick: 40); seen until 10 s after the last event (auto at 1 s: 45 s)",
        algorithms,
    ),
    "polarized": Section(
        "the smallest fanout for 99.9 % at 10 % loss per link; ternary tree of 40, 16 blocks",
        polarized,
        verdict,
    ),
    "growth": Section("auto, per broker (and second), at 5 % loss", growth),
    "coding": Section("MB/s, 16 x 1,472 bytes", coding_rates),
    "live": Section("10 brokers over UDP on loopback, auto", live),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", choices=SECTIONS, help="run only this measurement")
    parser.add_argument("--quick", action="store_true", help="fewer events, cases and brokers")
    parser.add_argument("--json", action="store_true", help="print the numbers as JSON")
    options = parser.parse_args()
    results: dict[str, Any] = {}
    console = Console(width=180)
    for name, section in SECTIONS.items():
        if options.only not in (None, name):
            continue
        rows = list(section.measure(options.quick))
        results[name] = [row._asdict() for row in rows]
        if not options.json:
            console.print(table_of(f"{name}: {section.title}", rows))
        if section.verdict is not None:
            results[f"{name}_verdict"] = section.verdict(rows)
            if not options.json:
                console.print(results[f"{name}_verdict"])
    if options.json:
        print(json.dumps(results, indent=2))


if __name__ == "__main__":
    main()
