"""Decides which segments an archive removes."""

from __future__ import annotations

from collections.abc import Sequence

from tidings.storage.archive.facts import ArchiveSettings, Segment

SECOND_NS = 1_000_000_000


def count_removable(
    segments: Sequence[Segment],
    settings: ArchiveSettings,
    *,
    now_ns: int,
    size_bytes: int,
    held_from: int | None,
) -> int:
    """Return how many of these segments, oldest first, an archive of `size_bytes` may remove.

    What consumers still need (from `held_from` on) stays.
    """
    count = 0
    for segment in segments:
        held = held_from is not None and segment.last >= held_from
        if held or not (_is_old(segment, settings, now_ns) or _is_too_much(size_bytes, settings)):
            break
        size_bytes -= segment.size_bytes
        count += 1
    return count


def expired_before_ns(now_ns: int, age_s: float) -> int:
    return now_ns - int(age_s * SECOND_NS)


def _is_old(segment: Segment, settings: ArchiveSettings, now_ns: int) -> bool:
    if settings.retain_s is None:
        return False
    return segment.last_notified_ns < expired_before_ns(now_ns, settings.retain_s)


def _is_too_much(size_bytes: int, settings: ArchiveSettings) -> bool:
    return settings.retain_bytes is not None and size_bytes > settings.retain_bytes
