"""Scenario files count seconds, runs count nanoseconds since their start."""

from __future__ import annotations

NS_PER_S = 1_000_000_000
NS_PER_MS = 1_000_000


def nanoseconds(seconds: float) -> int:
    return round(seconds * NS_PER_S)
