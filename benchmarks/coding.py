"""Measures how fast events are coded and decoded: tidings, numba, galois (docs/internals/epidemic.md).

    python benchmarks/coding.py [--quick] [--json]

A generation is 16 blocks of 1,472 bytes. Encoding makes 16 combinations of them; decoding recovers the blocks from
these, including the work on the coefficients. tidings decodes with the Decoder that brokers use, which eliminates as
blocks arrive; numba's matrix is inverted by tidings. Rates are of one core, in processor time. Each contender's result
is first checked against the blocks.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from random import Random
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from tidings.core.events.event import make_publication
from tidings.core.overlay.epidemic import galois_field
from tidings.core.overlay.epidemic.assemblies import Assemblies
from tidings.core.overlay.epidemic.blocks import Assembly
from tidings.core.overlay.epidemic.galois_field import combine_many, invert_matrix
from tidings.core.overlay.epidemic.messages import Carried, Fragment
from tidings.core.overlay.epidemic.network_coding import Decoder

SIZE = 16
BLOCK_BYTES = 1_472
GENERATION_BYTES = SIZE * BLOCK_BYTES
SECONDS = 2.0
SLICES = 5

Rows = list[bytes]
Code = Callable[[Rows, Rows], Rows]
"""Maps coefficients and rows to rows."""


def seconds_each(work: Callable[[], object], seconds: float) -> float:
    """Return the processor time of one call, from the fastest of a few slices, which other work disturbed least."""
    work()
    best = float("inf")
    for _ in range(SLICES):
        done, started = 0, time.process_time()
        while (spent := time.process_time() - started) < seconds / SLICES:
            work()
            done += 1
        best = min(best, spent / done)
    return best


def decode(matrix: Rows, coded: Rows) -> Rows:
    """Decode as a broker does."""
    decoder = Decoder(len(matrix), len(coded[0]))
    for vector, data in zip(matrix, coded, strict=True):
        decoder.add_coded(vector, data)
    return decoder.blocks()


def numba_contender() -> tuple[Code, Code]:
    import numba

    table = np.frombuffer(b"".join(galois_field.TIMES), dtype=np.uint8).reshape(256, 256)

    @numba.njit  # type: ignore[untyped-decorator]
    def multiply(matrix: Any, rows: Any, out: Any) -> None:
        for i in range(matrix.shape[0]):
            for j in range(matrix.shape[1]):
                times = table[matrix[i, j]]
                for byte in range(rows.shape[1]):
                    out[i, byte] ^= times[rows[j, byte]]

    def product(matrix: Rows, rows: Rows) -> Rows:
        out = np.zeros((len(matrix), len(rows[0])), dtype=np.uint8)
        multiply(array(matrix), array(rows), out)
        return [row.tobytes() for row in out]

    return product, lambda matrix, coded: product(invert_matrix(matrix), coded)


def galois_contender() -> tuple[Code, Code]:
    import galois

    field = galois.GF(2**8, irreducible_poly=galois_field.POLYNOMIAL)

    def product(matrix: Rows, rows: Rows) -> Rows:
        return [row.tobytes() for row in field(array(matrix)) @ field(array(rows))]

    def decoded(matrix: Rows, coded: Rows) -> Rows:
        return [row.tobytes() for row in np.linalg.inv(field(array(matrix))) @ field(array(coded))]

    return product, decoded


def array(rows: Rows) -> Any:
    return np.frombuffer(b"".join(rows), dtype=np.uint8).reshape(len(rows), -1)


def contenders() -> dict[str, tuple[Code, Code] | None]:
    """Return how each encodes and decodes; None for one that is not installed."""
    found: dict[str, tuple[Code, Code] | None] = {"tidings": (combine_many, decode)}
    for name, make in (("numba", numba_contender), ("galois", galois_contender)):
        try:
            found[name] = make()
        except ImportError:
            found[name] = None
    return found


def independent(random: Random) -> Rows:
    """Return the coefficients of as many independent combinations as there are blocks."""
    decoder, matrix = Decoder(SIZE, 1), list[bytes]()
    while not decoder.complete:
        vector = random.randbytes(SIZE)
        if decoder.add_coded(vector, b"\0"):
            matrix.append(vector)
    return matrix


def measure(encoder: Code, decoder: Code, seconds: float) -> dict[str, float]:
    """Return MB/s of the payload."""
    random = Random(1)
    blocks, matrix = [random.randbytes(BLOCK_BYTES) for _ in range(SIZE)], independent(random)
    coded = encoder(matrix, blocks)
    if decoder(matrix, coded) != blocks:
        sys.exit("the decoded blocks differ from the encoded ones")
    work = {"encode": lambda: encoder(matrix, blocks), "decode": lambda: decoder(matrix, coded)}
    return {name: GENERATION_BYTES / seconds_each(run, seconds) / 1e6 for name, run in work.items()}


def measure_events(seconds: float) -> dict[str, float]:
    """Return microseconds per event of one generation, for cutting it into fragments and for assembling it."""
    random = Random(2)
    publication = make_publication("source", 1, 1, "/a/b", {"x": 1}, random.randbytes(GENERATION_BYTES), 1)
    carried = Carried("origin", ((b"12345678", 1, 1),), (), "", publication)
    whole = Assembly.of(carried, BLOCK_BYTES)

    def sent(redundancy: int) -> list[Fragment]:
        return whole.fragments(random, redundancy=redundancy, route=(), by="")

    def received(fragments: list[Fragment]) -> Carried:
        assemblies = Assemblies(10**6, 10**6, 10**9)
        for fragment in fragments:
            assembly = assemblies.add("sender", fragment, 0)
        assert assembly is not None
        return assembly.carried("")

    plain, two_lost = sent(0), sent(2)[2:]
    work: dict[str, Callable[[], object]] = {
        "cut": lambda: Assembly.of(carried, BLOCK_BYTES).fragments(random, route=(), by=""),
        "fragments again": lambda: sent(0),
        "fragments again, 2 redundant": lambda: sent(2),
        "put together": lambda: received(plain),
        "put together, 2 lost and 2 redundant": lambda: received(two_lost),
    }
    return {name: seconds_each(run, seconds) * 1e6 for name, run in work.items()}


def run(seconds: float) -> dict[str, Any]:
    rates: dict[str, dict[str, float] | None] = {}
    for name, pair in contenders().items():
        rates[name] = None if pair is None else measure(*pair, seconds)
    return {"mb_per_second": rates, "event_us": measure_events(seconds)}


def report(result: dict[str, Any], console: Console) -> None:
    table = Table(title=f"MB/s, {SIZE} x {BLOCK_BYTES:,} bytes")
    for column in ("contender", "encode", "decode"):
        table.add_column(column, justify="left" if column == "contender" else "right")
    for name, rates in result["mb_per_second"].items():
        cells = (
            ["not installed"] * 2 if rates is None else [f"{rates[key]:,.0f}" for key in ("encode", "decode")]
        )
        table.add_row(name, *cells)
    console.print(table)
    table = Table(title=f"an event of {GENERATION_BYTES:,} bytes")
    table.add_column("what")
    table.add_column("us", justify="right")
    for name, spent in result["event_us"].items():
        table.add_row(name, f"{spent:,.0f}")
    console.print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="short runs")
    parser.add_argument("--json", action="store_true", help="print the numbers as JSON")
    options = parser.parse_args()
    result = run(0.3 if options.quick else SECONDS)
    if options.json:
        print(json.dumps(result, indent=2))
    else:
        report(result, Console(width=120))


if __name__ == "__main__":
    main()
