"""Converts a scenario file's seconds to a run's nanoseconds since its start."""

from __future__ import annotations

NS_PER_S = 1_000_000_000
NS_PER_MS = 1_000_000


def nanoseconds(seconds: float) -> int:
    return round(seconds * NS_PER_S)
