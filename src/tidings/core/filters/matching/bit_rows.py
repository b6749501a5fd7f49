"""Rows of bits, one bit per slot, that grow in both directions: the memory of the match index.

Each row is a pair: `fails` has the bits of the slots whose constraint fails in the row's region, `doubts` those of the
slots that the region alone does not decide. Rows are contiguous, so that a scan runs at the speed of memory; setting a
slot's bits is a strided write down one column.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Words = NDArray[np.uint64]
Slots = NDArray[np.int64]
Flags = NDArray[np.bool_]
RowView = tuple[int, Words, Words, Words | None]
"""One row: the number of failing slots, their bits in the first words, in all words, and the bits in doubt, if any."""

WORD_BITS = 64
ALL_ONES = np.uint64(2**64 - 1)
# Operands are arrays: numpy takes twice as long to convert a Python number as to shift a few words by it.
ONES: Words = np.array(ALL_ONES)
ZERO: Words = np.array(np.uint64(0))
WORD_SHIFT: Slots = np.array(6)
OFFSET_MASK: Slots = np.array(63)
_BIT: Words = np.left_shift(np.uint64(1), np.arange(WORD_BITS, dtype=np.uint64))
_BITS: list[np.uint64] = list(_BIT)
_NOT_BITS: list[np.uint64] = list(~_BIT)


def bit_of(slot: int) -> np.uint64:
    return _BITS[slot & 63]


def not_bit_of(slot: int) -> np.uint64:
    return _NOT_BITS[slot & 63]


def set_bits(row: Words, slots: Slots) -> None:
    np.bitwise_or.at(row, slots >> 6, _BIT[slots & 63])


def decode(bits: Words) -> Slots:
    """Return the places of all set bits, counted from the first bit of the first word."""
    return np.unpackbits(bits.view(np.uint8), None, None, "little").view(np.bool_).nonzero()[0]


def bits_at(bits: Words, words: Slots, offsets: Slots) -> Flags:
    """Return whether the bit at each (word, offset) is set."""
    return is_bit_set(bits[words], offsets)


def is_bit_set(words: Words, offsets: Slots) -> Flags:
    """Return, for each word, whether the bit at its offset is set."""
    flags: Flags = (words & _BIT[offsets]) != ZERO
    return flags


def widened(rows: Words, words: int, middle: int) -> Words:
    """Return a copy with `words` words in each row: zeros are inserted at the word `middle`."""
    wide = np.zeros((*rows.shape[:-1], words), np.uint64)
    wide[..., :middle] = rows[..., :middle]
    wide[..., words - rows.shape[-1] + middle :] = rows[..., middle:]
    return wide


class BitRows:
    """The rows of one attribute. Row 0 exists from the start; freed rows are reused."""

    __slots__ = ("_free", "count", "doubt_counts", "doubts", "fail_counts", "fails", "views")

    def __init__(self, words: int) -> None:
        self.count = 1
        self.fails: Words = np.zeros((4, words), np.uint64)
        self.doubts: Words = np.zeros((4, words), np.uint64)
        self.fail_counts = np.zeros(4, np.int64)
        self.doubt_counts = np.zeros(4, np.int64)
        self._free: list[int] = []
        self.views: dict[int, RowView] = {}
        """The results of `view` since the last change."""

    def view(self, row: int, head: int) -> RowView:
        """Return the row, cached until the next change; only after a change may `head` differ from the last call."""
        view = self.views.get(row)
        if view is None:
            fails = self.fails[row]
            doubts = self.doubts[row] if self.doubt_counts[row] else None
            view = self.views[row] = (int(self.fail_counts[row]), fails[:head], fails, doubts)
        return view

    def changed(self) -> None:
        """Drop cached views; the caller wrote to rows or counts directly, or is changing the head."""
        self.views.clear()

    @property
    def size_bytes(self) -> int:
        return self.fails.nbytes + self.doubts.nbytes

    def copy_of(self, row: int) -> int:
        """Return a new row with the content of `row`."""
        self.views.clear()
        new = self._free.pop() if self._free else self._append()
        for table in (self.fails, self.doubts, self.fail_counts, self.doubt_counts):
            table[new] = table[row]
        return new

    def release(self, row: int) -> None:
        self._free.append(row)

    def widen(self, words: int, middle: int) -> None:
        self.views.clear()
        self.fails = widened(self.fails, words, middle)
        self.doubts = widened(self.doubts, words, middle)

    def _append(self) -> int:
        if self.count == len(self.fails):
            more = self.count // 2
            self.fails = np.concatenate([self.fails, np.zeros((more, self.fails.shape[1]), np.uint64)])
            self.doubts = np.concatenate([self.doubts, np.zeros((more, self.doubts.shape[1]), np.uint64)])
            self.fail_counts = np.concatenate([self.fail_counts, np.zeros(more, np.int64)])
            self.doubt_counts = np.concatenate([self.doubt_counts, np.zeros(more, np.int64)])
        self.count += 1
        return self.count - 1

    def set_column(self, slot: int, possible: NDArray[np.int64] | list[int], doubtful: list[int]) -> None:
        """Mark a slot as failing in every row but the `possible` ones, and in doubt in the `doubtful` of these."""
        self.views.clear()
        column = np.full(len(self.fails), bit_of(slot), np.uint64)
        column[possible] = 0
        self.fails[:, slot >> 6] |= column
        self.fail_counts += 1
        self.fail_counts[possible] -= 1
        if doubtful:
            self.doubts[doubtful, slot >> 6] |= bit_of(slot)
            self.doubt_counts[doubtful] += 1

    def clear_column(self, slot: int) -> None:
        self.views.clear()
        word, shift = slot >> 6, np.uint64(slot & 63)
        one = np.uint64(1)
        for bits, counts in ((self.fails, self.fail_counts), (self.doubts, self.doubt_counts)):
            column = bits[:, word]
            counts -= ((column >> shift) & one).astype(np.int64)
            column &= not_bit_of(slot)

    def join(self, left: int, point: int, right: int) -> None:
        """Make `left` the row of all three regions: slots fail or hold where they do so in all, else are in doubt."""
        self.views.clear()
        fails, doubts = self.fails, self.doubts
        decided_against = fails[left] & fails[point] & fails[right]
        doubts[left] = self._joined_doubts(left, point, right)
        fails[left] = decided_against
        self.fail_counts[left] = int(np.bitwise_count(decided_against).sum())
        self.doubt_counts[left] = int(np.bitwise_count(doubts[left]).sum())

    def joined_doubt_count(self, left: int, point: int, right: int) -> int:
        return int(np.bitwise_count(self._joined_doubts(left, point, right)).sum())

    def _joined_doubts(self, left: int, point: int, right: int) -> Words:
        fails, doubts = self.fails, self.doubts
        all_fail = fails[left] & fails[point] & fails[right]
        any_else = fails[left] | fails[point] | fails[right] | doubts[left] | doubts[right]
        joined: Words = any_else & ~all_fail
        return joined
