"""Arithmetic in GF(2^8) with the polynomial 0x11D, on rows of bytes (recovery.md, Coding).

A row is multiplied by a constant with `bytes.translate` and added with an XOR of large integers: 30 MB/s
without any dependency. Products of a matrix with long rows go to ISA-L where that is installed, which is
twenty times as fast; both give the same bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Literal

from tidings.structures.isal import IsaL, load

POLYNOMIAL = 0x11D
Backend = Literal["isa-l", "python"]

_MIN_NATIVE_WORK = 4_000
"""A call into the library costs more than it saves where there is less to do; see `_work`."""

_forced: Backend | None = None


def _multiplication_table() -> tuple[bytes, ...]:
    """For each constant the table for `bytes.translate` that multiplies by it."""
    double = bytes((a << 1) ^ (POLYNOMIAL if a & 0x80 else 0) for a in range(256))
    unit = bytes(range(256))
    table = [bytes(256), unit]
    for constant in range(2, 256):
        row = table[constant >> 1].translate(double)
        table.append(add(row, unit) if constant & 1 else row)
    return tuple(table)


def add(a: bytes, b: bytes) -> bytes:
    """The sum of two rows, which is also their difference."""
    if len(a) != len(b):
        raise ValueError(f"rows of {len(a)} and {len(b)} bytes cannot be added")
    return (int.from_bytes(a, "little") ^ int.from_bytes(b, "little")).to_bytes(len(a), "little")


TIMES = _multiplication_table()
_INVERSE = bytes((0, *(TIMES[a].index(1) for a in range(1, 256))))


def multiply(a: int, b: int) -> int:
    return TIMES[a][b]


def invert(a: int) -> int:
    """The element whose product with `a` is 1."""
    if a == 0:
        raise ZeroDivisionError("0 has no inverse")
    return _INVERSE[a]


def scale(row: bytes, constant: int) -> bytes:
    return row.translate(TIMES[constant])


def combine(coefficients: Sequence[int], rows: Sequence[bytes]) -> bytes:
    """The sum of the rows, each multiplied by its coefficient."""
    return combine_many((bytes(coefficients),), rows)[0]


def combine_many(matrix: Sequence[bytes], rows: Sequence[bytes]) -> list[bytes]:
    """The product of a matrix with the rows: one combination of them for each line of coefficients."""
    _check(matrix, rows)
    if not matrix:
        return []
    if _forced != "python" and _work(matrix, rows) >= _MIN_NATIVE_WORK:
        library = _library()
        if library is not None:
            return library.combine_many(matrix, rows)
    return _combine_many(matrix, rows)


def _work(matrix: Sequence[bytes], rows: Sequence[bytes]) -> int:
    """What the product costs in Python, measured in bytes: starting on a row is as long as 100 of them."""
    return len(matrix) * len(rows) * (len(rows[0]) + 100) if rows[0] else 0


def _check(matrix: Sequence[bytes], rows: Sequence[bytes]) -> None:
    """ValueError unless the lengths agree: the library reads memory by them."""
    if not rows:
        raise ValueError("there are no rows to combine")
    width, count = len(rows[0]), len(rows)
    for row in rows:
        if len(row) != width:
            raise ValueError(f"rows of {width} and {len(row)} bytes cannot be combined")
    for line in matrix:
        if len(line) != count:
            raise ValueError(f"{len(line)} coefficients for {count} rows")


def _combine_many(matrix: Sequence[bytes], rows: Sequence[bytes]) -> list[bytes]:
    width = len(rows[0])
    results = []
    for line in matrix:
        total = 0
        for constant, row in zip(line, rows, strict=True):
            if constant:
                total ^= int.from_bytes(row.translate(TIMES[constant]), "little")
        results.append(total.to_bytes(width, "little"))
    return results


def invert_matrix(matrix: Sequence[bytes]) -> list[bytes]:
    """The inverse of a square matrix; ValueError if it has none."""
    if not matrix or any(len(line) != len(matrix) for line in matrix):
        raise ValueError(f"a matrix of {len(matrix)} lines that is not square")
    library = _library() if _forced != "python" else None
    result = _invert_matrix(matrix) if library is None else library.invert_matrix(matrix)
    if result is None:
        raise ValueError("the lines of the matrix are not independent")
    return result


def _invert_matrix(matrix: Sequence[bytes]) -> list[bytes] | None:
    """Gauss-Jordan elimination on the matrix with the unit matrix beside it."""
    size = len(matrix)
    rows = [line + bytes(i) + b"\1" + bytes(size - i - 1) for i, line in enumerate(matrix)]
    for column in range(size):
        chosen = next((i for i in range(column, size) if rows[i][column]), None)
        if chosen is None:
            return None
        rows[column], rows[chosen] = rows[chosen], rows[column]
        pivot = rows[column] = scale(rows[column], invert(rows[column][column]))
        for i, row in enumerate(rows):
            if i != column and row[column]:
                rows[i] = add(row, scale(pivot, row[column]))
    return [row[size:] for row in rows]


@cache
def _library() -> IsaL | None:
    """ISA-L, if it is there and agrees with us."""
    library = load()
    if library is None:
        return None
    matrix, rows = (bytes((1, 2, 0)), bytes((255, 7, 142)), b"\0\0\3"), (TIMES[3], TIMES[29], TIMES[200])
    agrees = library.combine_many(matrix, rows) == _combine_many(matrix, rows)
    agrees = agrees and library.invert_matrix(matrix) == _invert_matrix(matrix)
    return library if agrees else None


def backend() -> Backend:
    """Who multiplies long rows."""
    return "python" if _forced == "python" or _library() is None else "isa-l"


def force_backend(name: Backend | None) -> None:
    """For tests and benchmarks: use this one; None: the best again. RuntimeError if it is not there."""
    global _forced
    if name == "isa-l" and _library() is None:
        raise RuntimeError("ISA-L is not installed")
    _forced = name
