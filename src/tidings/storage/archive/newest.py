"""Finds the newest row of each topic, from the end of an archive backwards.

A sealed segment never changes, so the last offset of each of its topics is found once, from the one column that has
the topics. With a filter, the newest selected row of a topic need not be its newest one: then rows are tried one by
one, from the last, where a topic has none yet.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from tidings.core.errors import ArchiveTrimmed
from tidings.core.events.subscription import Interest
from tidings.storage.archive.rows import decode_attributes

if TYPE_CHECKING:
    from tidings.storage.archive.reader import ArchiveReader

STEP_ROWS = 100_000
"""How many rows that are not sealed are looked at together."""
SKIPPED_ROWS = 32_768
"""Fewer rows between two that are wanted are read: a row group is decoded as a whole."""
MAX_KEPT_TOPICS = 1_000_000
"""Of all segments together; the least recently used are found again."""


class NewestRows:
    def __init__(self, reader: ArchiveReader) -> None:
        self._reader = reader
        self._kept: OrderedDict[tuple[int, int, str], dict[str, int]] = OrderedDict()
        """First and last offset and hash of a segment -> the last offset of each of its topics."""
        self._kept_topics = 0

    def offsets(self, interest: Interest, stop: int) -> list[int]:
        """Return the newest offset before `stop` of each topic, ascending."""
        found: dict[str, int] = {}
        wanted = len(interest.topics) if all(topic.exact for topic in interest.topics) else None
        try:
            for start, end, key in self._ranges(stop):
                last = self._last_of(start, end, key)
                if interest.pattern is None:
                    self._merge(found, interest, last)
                elif any(topic not in found and interest.has_topic(topic) for topic in last):
                    self._try(found, interest, start, end)
                if len(found) == wanted:
                    break
        except ArchiveTrimmed:
            pass  # retention removed what is older while we looked
        return sorted(found.values())

    def _ranges(self, stop: int) -> Iterator[tuple[int, int, tuple[int, int, str] | None]]:
        """Yield ranges of offsets, the newest first; a whole segment has a key."""
        first, _ = self._reader.bounds()
        segments = self._reader.segments()
        sealed = segments[-1].last + 1 if segments else first
        while stop > sealed:
            start = max(sealed, stop - STEP_ROWS)
            yield start, stop, None
            stop = start
        for segment in reversed(segments):
            if segment.first < stop:
                is_whole = segment.last < stop
                key = (segment.first, segment.last, segment.sha256) if is_whole else None
                yield segment.first, min(segment.last + 1, stop), key

    def _last_of(self, start: int, end: int, key: tuple[int, int, str] | None) -> dict[str, int]:
        kept = None if key is None else self._kept.get(key)
        if kept is None:
            kept = {}
            for batch in self._reader.read(start, end, columns=["topic"]):
                kept |= _last_offsets(batch)
            if key is not None:
                self._keep(key, kept)
        elif key is not None:
            self._kept.move_to_end(key)
        return kept

    def _keep(self, key: tuple[int, int, str], last: dict[str, int]) -> None:
        self._kept[key] = last
        self._kept_topics += len(last)
        while self._kept_topics > MAX_KEPT_TOPICS and len(self._kept) > 1:
            _, oldest = self._kept.popitem(last=False)
            self._kept_topics -= len(oldest)

    def _merge(self, found: dict[str, int], interest: Interest, last: dict[str, int]) -> None:
        for topic, offset in last.items():
            if topic not in found and interest.has_topic(topic):
                found[topic] = offset

    def _try(self, found: dict[str, int], interest: Interest, start: int, end: int) -> None:
        """Try the rows, the last first, except those of topics that have one."""
        assert interest.pattern is not None
        matches, has_topic = interest.pattern.matches, interest.has_topic
        hidden: set[str] = set()
        for batch in reversed(list(self._reader.read(start, end, columns=["topic", "packed"]))):
            offset = batch.column("offset")[0].as_py()
            topics = batch.column("topic").to_pylist()
            packed = batch.column("packed")
            for row in range(batch.num_rows - 1, -1, -1):
                topic = topics[row]
                if topic in found or topic in hidden:
                    continue
                if not has_topic(topic):
                    hidden.add(topic)
                elif matches({**decode_attributes(packed[row].as_py()), "topic": topic}):
                    found[topic] = offset + row


def _last_offsets(batch: pa.RecordBatch) -> dict[str, int]:
    """Return the last offset of each topic of the batch."""
    coded = batch.column("topic").dictionary_encode()
    codes = coded.indices.to_numpy()
    first = batch.column("offset")[0].as_py()
    seen, from_behind = np.unique(codes[::-1], return_index=True)
    topics = coded.dictionary.to_pylist()
    return {
        topics[code]: first + len(codes) - 1 - int(index)
        for code, index in zip(seen, from_behind, strict=True)
    }


def rows_at(
    read: Callable[[int, int], Iterator[pa.RecordBatch]], offsets: Sequence[int]
) -> Iterator[pa.RecordBatch]:
    """Yield the rows with these ascending offsets."""
    position = 0
    while position < len(offsets):
        last = offsets[-1] + 1
        for batch in read(offsets[position], last):
            first = batch.column("offset")[0].as_py()
            end = first + batch.num_rows
            here = position
            while here < len(offsets) and offsets[here] < end:
                here += 1
            if here > position:
                yield batch.take(pa.array([offset - first for offset in offsets[position:here]]))
                position = here
            if here < len(offsets) and offsets[here] >= end + SKIPPED_ROWS:
                break  # do not read what lies between
