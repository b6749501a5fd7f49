"""Random linear network coding of one generation: blocks, their combinations, and combinations of those.

A generation has `size` blocks. A coded block is a combination of them over GF(2^8) and travels with its coefficients.
Any `size` independent ones give the blocks back, and a broker that has some can make new ones without decoding.
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
    """Holds the blocks of one generation, decodes it, and makes new combinations.

    Coefficients are eliminated as blocks arrive; the data are multiplied once, when the generation is complete. A plain
    block that comes before any coded one costs no arithmetic. A plain block shorter than `block_bytes` counts as padded
    with zeros.

    Each innovative block settles one more column, its pivot. A plain block that comes first settles its own column,
    which we then ignore. Any other block leaves a row, which is 1 in its pivot's column and 0 in the pivots of the rows
    before it: going through the rows in order eliminates all settled columns from a vector.
    """

    __slots__ = ("_open", "_plain", "_received", "_rows", "_vectors", "block_bytes", "rank", "size")

    def __init__(self, size: int, block_bytes: int) -> None:
        if not 1 <= size <= MAX_SIZE or block_bytes < 1:
            raise ValueError(f"a generation cannot have {size} blocks of {block_bytes} bytes")
        self.size = size
        self.block_bytes = block_bytes
        self.rank = 0
        self._plain: list[bytes | None] = [None] * size
        self._received: list[bytes | None] = [None] * size
        """The data of innovative blocks, as they came, by pivot."""
        self._vectors: dict[int, bytes] = {}
        """Their coefficients by pivot, except where the block is the pivot's own plain block."""
        self._rows: dict[int, bytes] = {}
        self._open = (1 << 8 * size) - 1
        """All ones in the columns that no plain block has settled."""

    @property
    def complete(self) -> bool:
        return self.rank == self.size

    @property
    def missing(self) -> int:
        """How many more innovative blocks are needed."""
        return self.size - self.rank

    def add_plain(self, index: int, data: bytes) -> bool:
        """Add the plain block `index`; return True if it is innovative."""
        if not 0 <= index < self.size or len(data) > self.block_bytes:
            raise ValueError(
                f"block {index} of {len(data)} bytes does not fit {self.size} blocks of {self.block_bytes}"
            )
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
        """Add a combination of the blocks; return True if it is innovative."""
        if len(coefficients) != self.size or len(data) != self.block_bytes:
            raise ValueError(
                f"{len(coefficients)} coefficients and {len(data)} bytes do not fit "
                f"{self.size} blocks of {self.block_bytes}"
            )
        if not any(coefficients):
            raise ValueError("all coefficients are zero")
        return self.rank < self.size and self._eliminate(coefficients, data)

    def _eliminate(self, vector: bytes, data: bytes) -> bool:
        """Eliminate the settled columns from the vector; what is left, if anything, settles one more."""
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
        """Return the block `index` as added or decoded; None if it is not available."""
        if self.rank == self.size:
            self._decode()
        return self._plain[index]

    def plain_mask(self) -> bytes:
        """Return a mask: bit i % 8 of byte i // 8 is set if `plain(i)` is available."""
        complete = self.rank == self.size
        return _mask((i for i, own in enumerate(self._plain) if complete or own is not None), self.size)

    def settled_mask(self) -> bytes:
        """Return the mask of blocks that need not be sent: the others, sent plain, complete the generation.

        It has as many bits set as the rank; without coded blocks it equals `plain_mask`.
        """
        return _mask((i for i, own in enumerate(self._received) if own is not None), self.size)

    def blocks(self) -> list[bytes]:
        """Return all blocks, padded to full length; raise ValueError unless the generation is complete."""
        if self.rank < self.size:
            raise ValueError(f"{self.missing} of {self.size} blocks are missing")
        self._decode()
        return [self._padded(own) for own in self._plain if own is not None]

    def recode(self, random: Draws) -> tuple[bytes, bytes]:
        """Return coefficients and data of a random combination, never zero, of all that is held."""
        return self.recode_many(1, random)[0]

    def recode_many(self, count: int, random: Draws) -> list[tuple[bytes, bytes]]:
        """Return several of them; making them together is cheaper."""
        if not self.rank:
            raise ValueError("there are no blocks to combine")
        pivots = [pivot for pivot, own in enumerate(self._received) if own is not None]
        # What is held is independent, so only the zero line, which is never drawn, would give a zero combination.
        matrix = [random.randrange(1, 256**self.rank).to_bytes(self.rank, "little") for _ in range(count)]
        data = combine_many(matrix, [self._padded(own) for own in self._received if own is not None])
        return [(self._vector(pivots, line), result) for line, result in zip(matrix, data, strict=True)]

    def _vector(self, pivots: list[int], line: bytes) -> bytes:
        """Express a combination of what was received by coefficients of the generation's blocks."""
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
        """Compute the blocks that did not come plain; from then on, all count as plain."""
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
