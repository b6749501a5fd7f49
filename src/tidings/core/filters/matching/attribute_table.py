"""The table of one attribute: for each region of its values, the slots that fail there.

An event's value selects one row, and the rows of all its attributes together leave the slots that may match. The
regions follow the constraints: where too many slots are in doubt, a gap is cut at the value that most of them refer to
(so a frequent equality gets its own point) or at the median. Cuts that have become useless are removed, so that there
are at most `MAX_CUTS` however many constraints there are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np

from tidings.core.filters.language.predicates import ValueKind
from tidings.core.filters.matching.bit_rows import BitRows, decode, set_bits
from tidings.core.filters.matching.shapes import Shape
from tidings.core.filters.matching.shelf import TYPES_OF_KIND
from tidings.core.filters.matching.value_domain import Domain

MAX_CUTS = {ValueKind.NUMBER: 64, ValueKind.STRING: 128, ValueKind.BYTES: 128, ValueKind.BOOLEAN: 2}
"""Bounds settle doubts about numbers in bulk. Doubts about texts are settled one by one, so texts get more cuts."""

MIN_DOUBTS = 24
"""A gap with fewer slots in doubt is never cut: checking them one by one costs less."""

UNASKED_ROW = 0
"""The row of values of a kind that no constraint requires."""


class AttributeTable:
    """Slots with one constraint each. `domains` is by Python type, to distinguish True from 1, which are equal."""

    __slots__ = ("_cut_above", "_shape_at", "domains", "rows")

    def __init__(self, words: int, shape_at: Callable[[int], Shape]) -> None:
        """`shape_at(slot)` returns the shape with which the slot was added."""
        self.rows = BitRows(words)
        self.domains: dict[type, Domain] = {}
        self._shape_at = shape_at
        self._cut_above: dict[int, int] = {}

    def add(self, slot: int, kind: ValueKind, shape: Shape) -> None:
        domain = self.domain(kind)
        regions, doubts = domain.judge(shape)
        possible = domain.rows_of(regions)
        doubtful = [domain.rows[region] for region in doubts]
        if domain.nan_row is not None:
            possible = np.append(possible, domain.nan_row)
            doubtful.append(domain.nan_row)
        self.rows.set_column(slot, possible, doubtful)
        for region in sorted(doubts, reverse=True):
            self._maybe_cut(domain, region)

    def add_null(self, slot: int) -> None:
        """Add a slot that requires the attribute to be NULL."""
        self.rows.set_column(slot, [], [])

    def domain(self, kind: ValueKind) -> Domain:
        types = TYPES_OF_KIND[kind]
        domain = self.domains.get(types[0])
        if domain is None:
            nan_row = self.rows.copy_of(UNASKED_ROW) if float in types else None
            domain = Domain(self.rows.copy_of(UNASKED_ROW), MAX_CUTS[kind], nan_row)
            self.domains.update(dict.fromkeys(types, domain))
        return domain

    def _maybe_cut(self, domain: Domain, gap: int) -> None:
        row = domain.rows[gap]
        doubts = int(self.rows.doubt_counts[row])
        # Each cut costs two rows of memory; an attribute that few slots constrain is not worth many cuts.
        least = max(MIN_DOUBTS, self.rows.fails.shape[1] // 8)
        if doubts <= self._cut_above.get(row, least):
            return
        if len(domain.cuts) >= domain.max_cuts:
            gap = self._make_room(domain, gap, doubts // 2)
        if len(domain.cuts) < domain.max_cuts:
            self._cut(domain, gap)
        else:
            self._cut_above[row] = 2 * doubts

    def _make_room(self, domain: Domain, gap: int, most_doubts: int) -> int:
        """Remove the least useful cut, if that leaves few doubts; return the new number of `gap`."""
        rows, best, best_doubts = domain.rows, -1, most_doubts
        for place in range(len(domain.cuts)):
            if 2 * place == gap or 2 * place + 2 == gap:
                continue
            doubts = self.rows.joined_doubt_count(*rows[2 * place : 2 * place + 3])
            if doubts < best_doubts:
                best, best_doubts = place, doubts
        if best < 0:
            return gap
        self.rows.join(*rows[2 * best : 2 * best + 3])
        for row in domain.remove_cut(best):
            self.rows.release(row)
            self._cut_above.pop(row, None)
        return gap - 2 if 2 * best < gap else gap

    def _cut(self, domain: Domain, gap: int) -> None:
        """Divide a gap in three and judge again the slots that were in doubt there."""
        left = domain.rows[gap]
        slots = decode(self.rows.doubts[left])
        shapes = [self._shape_at(slot) for slot in slots.tolist()]
        point, right = self.rows.copy_of(left), self.rows.copy_of(left)
        domain.insert_cut(gap, _best_cut(domain, gap, shapes), point, right)
        failing: list[list[int]] = [[], [], []]
        doubting: list[list[int]] = [[], [], []]
        for slot, shape in zip(slots.tolist(), shapes, strict=True):
            regions, doubts = domain.judge(shape)
            for part in range(3):
                if gap + part in doubts:
                    doubting[part].append(slot)
                elif gap + part not in regions:
                    failing[part].append(slot)
        for part, row in enumerate((left, point, right)):
            self._rewrite(row, failing[part], doubting[part])

    def _rewrite(self, row: int, failing: list[int], doubting: list[int]) -> None:
        rows = self.rows
        rows.doubts[row] = 0
        set_bits(rows.doubts[row], np.array(doubting, np.int64))
        set_bits(rows.fails[row], np.array(failing, np.int64))
        rows.doubt_counts[row] = len(doubting)
        rows.fail_counts[row] += len(failing)
        rows.changed()
        self._cut_above.pop(row, None)


def _best_cut(domain: Domain, gap: int, shapes: list[Shape]) -> Any:
    """Return the commonest reference inside the gap if it is at least an eighth of all there, else the median."""
    inside = [value for shape in shapes for value in shape.references() if domain.contains(gap, value)]
    value, count = Counter(inside).most_common(1)[0]
    if 8 * count >= len(inside):
        return value
    return sorted(inside)[len(inside) // 2]
