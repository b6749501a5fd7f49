"""Random linear network coding of one generation: blocks, their combinations, and combinations of those.

A generation is `size` blocks. A coded block is a combination of them over GF(2^8) and travels with its
coefficients. Any `size` independent ones give the blocks back, and whoever holds some can make new ones
without decoding.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from tidings.core.overlay.epidemic.galois_field import (
    TIMES,
    add,
    combine,
    combine_many,
    invert,
    invert_matrix,
)

MAX_SIZE = 255


class Draws(Protocol):
    """The part of a seeded generator that coding needs."""

    def randrange(self, start: int, stop: int | None = None, /) -> int: ...


class Decoder:
    """What is held of one generation: to decode it, and to make new combinations of it.

    Coefficients are eliminated as blocks arrive, the data are multiplied once, when all is there. A plain block
    that comes before any coded one costs no arithmetic at all. A plain block shorter than `block_bytes` stands
    for itself with zeros behind it.

    Each innovative block settles one more column, its pivot. A plain block that comes first settles its own, and
    that column is no longer looked at. Any other leaves a row, which is 1 in its pivot's column and 0 in those of
    the rows before it: going through the rows in their order brings all settled columns out of a vector.
    """

    __slots__ = ("_open", "_plain", "_received", "_rows", "_vectors", "block_bytes", "rank", "size")

    def __init__(self, size: int, block_bytes: int) -> None:
        if not 1 <= size <= MAX_SIZE or block_bytes < 1:
            raise ValueError(f"a generation of {size} blocks of {block_bytes} bytes")
        self.size = size
        self.block_bytes = block_bytes
        self.rank = 0
        self._plain: list[bytes | None] = [None] * size
        self._received: list[bytes | None] = [None] * size
        """The data of innovative blocks, as they came, by pivot."""
        self._vectors: dict[int, bytes] = {}
        """Their coefficients, by pivot; none where it is the pivot's own plain block."""
        self._rows: dict[int, bytes] = {}
        self._open = (1 << 8 * size) - 1
        """Ones in the columns that are looked at."""

    @property
    def complete(self) -> bool:
        return self.rank == self.size

    @property
    def missing(self) -> int:
        """How many more innovative blocks are needed."""
        return self.size - self.rank

    def add_plain(self, index: int, data: bytes) -> bool:
        """Take the block `index` itself; True if it says something new."""
        if not 0 <= index < self.size or len(data) > self.block_bytes:
            raise ValueError(f"block {index} of {len(data)} bytes in {self.size} of {self.block_bytes}")
        if self.rank == self.size or self._plain[index] is not None:
            return False
        self._plain[index] = data
        if index in self._rows:  # coded blocks have settled this column
            return self._eliminate(_unit(index, self.size), data)
        self._received[index] = data
        self._open &= ~(0xFF << 8 * index)
        self.rank += 1
        return True

    def add_coded(self, coefficients: bytes, data: bytes) -> bool:
        """Take a combination of the blocks; True if it says something new."""
        if len(coefficients) != self.size or len(data) != self.block_bytes:
            raise ValueError(
                f"{len(coefficients)} coefficients and {len(data)} bytes for {self.size} of {self.block_bytes}"
            )
        if not any(coefficients):
            raise ValueError("all coefficients are zero")
        return self.rank < self.size and self._eliminate(coefficients, data)

    def _eliminate(self, vector: bytes, data: bytes) -> bool:
        """Bring the settled columns out of the vector; what is left, if anything, settles one more."""
        rest = int.from_bytes(vector, "little")
        for pivot, row in self._rows.items():
            if constant := rest >> 8 * pivot & 0xFF:
                rest ^= int.from_bytes(row.translate(TIMES[constant]), "little")
        rest &= self._open
        if not rest:
            return False
        pivot = ((rest & -rest).bit_length() - 1) // 8
        row = rest.to_bytes(self.size, "little")
        self._rows[pivot] = row.translate(TIMES[invert(row[pivot])])
        self._vectors[pivot] = vector
        self._received[pivot] = data
        self.rank += 1
        return True

    def plain(self, index: int) -> bytes | None:
        """The block `index`, as it was added or decoded; None if it cannot be had."""
        if self.rank == self.size:
            self._decode()
        return self._plain[index]

    def plain_mask(self) -> bytes:
        """Bit i of byte i // 8 is set if `plain(i)` is there."""
        complete = self.rank == self.size
        return _mask((i for i, own in enumerate(self._plain) if complete or own is not None), self.size)

    def settled_mask(self) -> bytes:
        """The same for the blocks that need not be sent: these others, plain, complete the generation.

        It has as many bits as the rank; without coded blocks it is `plain_mask`.
        """
        return _mask((i for i, own in enumerate(self._received) if own is not None), self.size)

    def blocks(self) -> list[bytes]:
        """All blocks at full length; ValueError unless the generation is complete."""
        if self.rank < self.size:
            raise ValueError(f"{self.missing} of {self.size} blocks are missing")
        self._decode()
        return [self._padded(own) for own in self._plain if own is not None]

    def recode(self, random: Draws) -> tuple[bytes, bytes]:
        """Coefficients and data of a random combination of all that is held, never of nothing."""
        return self.recode_many(1, random)[0]

    def recode_many(self, count: int, random: Draws) -> list[tuple[bytes, bytes]]:
        """Several of them: making them together is cheaper."""
        if not self.rank:
            raise ValueError("nothing is held that could be combined")
        pivots = [pivot for pivot, own in enumerate(self._received) if own is not None]
        # What is held is independent: only the zero line, which is not drawn, combines it to nothing.
        matrix = [random.randrange(1, 256**self.rank).to_bytes(self.rank, "little") for _ in range(count)]
        data = combine_many(matrix, [self._padded(own) for own in self._received if own is not None])
        return [(self._vector(pivots, line), result) for line, result in zip(matrix, data, strict=True)]

    def _vector(self, pivots: list[int], line: bytes) -> bytes:
        """The coefficients, of the generation's blocks, of a combination of what was received."""
        vector = bytearray(self.size)
        coded = []
        for pivot, constant in zip(pivots, line, strict=True):
            if pivot in self._vectors:
                coded.append((constant, self._vectors[pivot]))
            else:
                vector[pivot] = constant
        if not coded:
            return bytes(vector)
        constants, vectors = zip(*coded, strict=True)
        return add(bytes(vector), combine(constants, vectors))

    def _decode(self) -> None:
        """Compute the blocks that did not come plain; from then on all are as if they had."""
        if not self._vectors:
            return
        lacking = [index for index, own in enumerate(self._plain) if own is None]
        rows = [self._padded(own) for own in self._received if own is not None]
        matrix = [self._vectors.get(pivot) or _unit(pivot, self.size) for pivot in range(self.size)]
        inverse = invert_matrix(matrix)
        lines = [inverse[index] for index in lacking]
        for index, block in zip(lacking, combine_many(lines, rows), strict=True):
            self._plain[index] = block
        self._received = list(self._plain)
        self._vectors = {}
        self._rows = {}

    def _padded(self, data: bytes) -> bytes:
        return data.ljust(self.block_bytes, b"\0")


def _unit(index: int, size: int) -> bytes:
    vector = bytearray(size)
    vector[index] = 1
    return bytes(vector)


def _mask(indices: Iterable[int], size: int) -> bytes:
    return sum(1 << index for index in indices).to_bytes((size + 7) // 8, "little")
