"""How long timestamps are: entries for other topics, over topics and over publications."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

Floats = np.ndarray[Any, np.dtype[np.float64]]
Ints = np.ndarray[Any, np.dtype[np.int64]]
QUANTILES = (0.5, 0.9, 0.99)


@dataclass(frozen=True)
class SizeQuantiles:
    """Sizes of stamps; a quantile is the smallest size that at least this share of stamps does not exceed."""

    minimum: int
    mean: float
    p50: int
    p90: int
    p99: int
    maximum: int


def sizes_of(entries: Ints, weights: Floats) -> SizeQuantiles | None:
    """Return the sizes of stamps with these entries, weighted; None if there are none."""
    counted = weights > 0
    if not counted.any():
        return None
    sizes, shares = entries[counted], weights[counted]
    order = np.argsort(sizes, kind="stable")
    reached = np.cumsum(shares[order]) / shares.sum()
    # Rounding may keep a share from being reached: then the last one counts.
    places = np.minimum(np.searchsorted(reached, np.array(QUANTILES) - 1e-12), len(order) - 1)
    p50, p90, p99 = sizes[order][places].tolist()
    mean = float(sizes @ shares / shares.sum())
    return SizeQuantiles(int(sizes.min()), mean, p50, p90, p99, int(sizes.max()))


def histogram(entries: Ints, weights: Floats) -> list[tuple[int, int, float]]:
    """Return (entries, topics with that many, their weight), ascending."""
    found, which = np.unique(entries, return_inverse=True)
    topics = np.bincount(which, minlength=len(found))
    weight = np.bincount(which, weights=weights, minlength=len(found))
    return list(zip(found.tolist(), topics.tolist(), weight.tolist(), strict=True))
