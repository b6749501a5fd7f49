"""The values of one kind that an attribute may have, cut into regions for which constraints are judged as a whole.

Cut values `c0 < c1 < ...` divide an ordered kind into regions: the gap below `c0`, the point `c0`, the gap between `c0`
and `c1`, and so on; gaps are even, points odd. At a point, a constraint holds or fails. In a gap it may also do either,
depending on the value ('doubt'); it does exactly if it refers to a value strictly inside the gap.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tidings.core.filters.matching.shapes import Shape


class Domain:
    """The cuts of one kind; `rows[region]` is the region's row in the attribute's bit matrix.

    NaN has no place in the order of the cuts. Its row is `nan_row`, in which every shape is in doubt.
    """

    __slots__ = ("cuts", "max_cuts", "nan_row", "points", "row_array", "rows")

    def __init__(self, row: int, max_cuts: int, nan_row: int | None = None) -> None:
        self.cuts: list[Any] = []
        self.max_cuts = max_cuts
        self.rows = [row]
        self.nan_row = nan_row
        self.row_array = np.array(self.rows)
        self.points: dict[Any, int] = {}

    def row_of(self, value: Any) -> int:
        """Return the row of the region that contains `value`."""
        row = self.points.get(value)
        if row is not None:
            return row
        if self.nan_row is not None and value != value:
            return self.nan_row
        return self.rows[2 * bisect_left(self.cuts, value)]

    def region_of(self, value: Any) -> int:
        place = bisect_left(self.cuts, value)
        return 2 * place + (value in self.points)

    def contains(self, gap: int, value: Any) -> bool:
        """Return True if `value` lies strictly inside the gap, given by its region number."""
        place = gap // 2
        above = place == 0 or self.cuts[place - 1] < value
        return above and (place == len(self.cuts) or value < self.cuts[place])

    def insert_cut(self, gap: int, value: Any, point_row: int, right_row: int) -> None:
        """Divide a gap; the part below `value` keeps its row."""
        self.cuts.insert(gap // 2, value)
        self.rows[gap + 1 : gap + 1] = [point_row, right_row]
        self.row_array = np.array(self.rows)
        self.points[value] = point_row

    def remove_cut(self, place: int) -> tuple[int, int]:
        """Join the gaps around a cut into the left one; return the rows of the point and of the right gap."""
        del self.points[self.cuts.pop(place)]
        point_row, right_row = self.rows[2 * place + 1 : 2 * place + 3]
        del self.rows[2 * place + 1 : 2 * place + 3]
        self.row_array = np.array(self.rows)
        return point_row, right_row

    def judge(self, shape: Shape) -> tuple[range | list[int], list[int]]:
        """Return the regions in which the shape may hold, and those of them in doubt."""
        if shape.values is not None:
            regions = list(dict.fromkeys(map(self.region_of, shape.values)))
            return regions, [region for region in regions if not region & 1]
        first, last = 0, 2 * len(self.cuts)
        doubts = []
        if shape.low is not None:
            first = self.region_of(shape.low)
            if first & 1:
                first += shape.low_open
            else:
                doubts.append(first)
        if shape.high is not None:
            last = self.region_of(shape.high)
            if last & 1:
                last -= shape.high_open
            elif last not in doubts:
                doubts.append(last)
        if shape.excluded:
            return self._without(range(first, last + 1), doubts, shape.excluded)
        return range(first, last + 1), [region for region in doubts if first <= region <= last]

    def _without(
        self, run: range, doubts: list[int], excluded: tuple[Any, ...]
    ) -> tuple[list[int], list[int]]:
        """Exclude values from a run of regions: remove their points, and doubt their gaps."""
        removed = dict.fromkeys(map(self.region_of, excluded))
        doubts = list(dict.fromkeys([*doubts, *(region for region in removed if not region & 1)]))
        regions = [region for region in run if not (region & 1 and region in removed)]
        return regions, [region for region in doubts if region in run]

    def rows_of(self, regions: range | list[int]) -> NDArray[np.int64]:
        if isinstance(regions, range):
            return self.row_array[regions.start : max(regions.start, regions.stop)]
        return self.row_array[regions]
