"""Converts rows of an archive to Spark's, in Arrow, without a Python object per row unless a filter needs one."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidings.core.errors import ArchiveCorrupt
from tidings.core.events.event import RESERVED_ATTRIBUTE
from tidings.core.events.text import attribute_value
from tidings.core.events.topics import TopicPattern
from tidings.core.filters.language.filter import Filter

KEY_ATTRIBUTE = "key"
NANOSECONDS_PER_US = 1_000
MATCHED_TOPICS = 65_536

TEXT_MAP = pa.map_(pa.string(), pa.string())
HEADER = pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])
HEADERS = pa.list_(pa.field("element", HEADER))
ORDER = pa.struct(
    [
        pa.field("topic", pa.string()),
        pa.field("number", pa.int64()),
        pa.field("after", pa.map_(pa.string(), pa.int64())),
    ]
)
COLUMNS = pa.schema(
    [
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("topic", pa.string()),
        pa.field("partition", pa.int32()),
        pa.field("offset", pa.int64()),
        pa.field("timestamp", pa.timestamp("us", "UTC")),
        pa.field("headers", HEADERS),
        pa.field("source", pa.string()),
        pa.field("sequence", pa.int64()),
        pa.field("attributes", TEXT_MAP),
        pa.field("order", ORDER),
        pa.field("attempt", pa.int32()),
    ]
)
"""Exactly the Arrow types that Spark derives from the source's schema: it accepts no others."""

READ_COLUMNS = ("offset", "source", "sequence", "topic", "attributes", "payload", "published_ns", "order")
"""The columns of an archive that Spark is shown."""


def spark_batch(
    batch: pa.RecordBatch, partition: int, *, headers: bool = False, attempts: pa.Array | None = None
) -> pa.RecordBatch:
    """Convert a batch of the archive's rows to Spark's. Headers are null unless requested: they cost most. `attempts`:
    how often each event was delivered, this time included; None: once."""
    attributes = batch.column("attributes")
    borders, names, texts = _entries(attributes)
    published_us = pc.divide(batch.column("published_ns"), pa.scalar(NANOSECONDS_PER_US))
    arrays = [
        _keys(borders, names, texts),
        batch.column("payload"),
        batch.column("topic"),
        pa.repeat(pa.scalar(partition, pa.int32()), batch.num_rows),
        batch.column("offset"),
        published_us.view(pa.timestamp("us", "UTC")),
        _headers(borders, names, texts) if headers else pa.nulls(batch.num_rows, HEADERS),
        batch.column("source"),
        batch.column("sequence"),
        attributes.cast(TEXT_MAP),
        batch.column("order").cast(ORDER),
        pa.repeat(pa.scalar(1, pa.int32()), batch.num_rows) if attempts is None else attempts,
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=COLUMNS)


def raw_bytes(texts: pa.Array) -> pa.Array:
    """Return attributes' texts as bytes: a string or bytes as it is, anything else as its text.

    Only values in quotes or written as X'..' (events/text.py) differ from their text; without any, nothing is copied.
    """
    plain = texts.cast(pa.binary())
    odd = pc.fill_null(pc.or_(pc.starts_with(texts, '"'), pc.starts_with(texts, "X'")), False)
    if not pc.any(odd).as_py():
        return plain
    written = texts.filter(odd).dictionary_encode()
    values = [attribute_value(text) for text in written.dictionary.to_pylist()]
    raw = [value if isinstance(value, bytes) else str(value).encode() for value in values]
    return pc.replace_with_mask(plain, odd, pa.array(raw, pa.binary()).take(written.indices))


def _entries(attributes: pa.MapArray) -> tuple[pa.Array, pa.Array, pa.Array]:
    """Return where each event's attributes begin, the names of all attributes, and their texts."""
    borders = attributes.offsets
    first, end = borders[0].as_py(), borders[-1].as_py()  # a slice still has all entries
    names, texts = attributes.keys.slice(first, end - first), attributes.items.slice(first, end - first)
    return pc.subtract(borders, pa.scalar(first, pa.int32())), names, texts


def _keys(borders: pa.Array, names: pa.Array, texts: pa.Array) -> pa.Array:
    """Return the value of each event's attribute `key`, null where it has none."""
    events = len(borders) - 1
    entries = np.flatnonzero(pc.equal(names, KEY_ATTRIBUTE).to_numpy(zero_copy_only=False))
    if not len(entries):
        return pa.nulls(events, pa.binary())
    chosen = np.full(events, -1, dtype=np.int64)
    chosen[np.searchsorted(borders.to_numpy(), entries, side="right") - 1] = np.arange(len(entries))
    values = raw_bytes(texts.take(pa.array(entries)))
    return values.take(pa.array(chosen, mask=chosen < 0))


def _headers(borders: pa.Array, names: pa.Array, texts: pa.Array) -> pa.Array:
    """Return the same entries as lists of headers."""
    entries = pa.StructArray.from_arrays([names, raw_bytes(texts)], fields=list(HEADER))
    return pa.ListArray.from_arrays(borders, entries, type=HEADERS)


class RowSelection:
    """Selects rows by topic (None: all) and by a tidings filter over the typed attributes."""

    def __init__(self, topics: tuple[TopicPattern, ...] | None, where: str | None) -> None:
        self._topics = topics
        self._matches_topic = lru_cache(MATCHED_TOPICS)(self._match_topic)
        self._pattern = None
        if where is not None:
            self._pattern = Filter(where).pattern

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns to read from an archive."""
        return READ_COLUMNS if self._pattern is None else (*READ_COLUMNS, "packed")

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        if self._topics is not None:
            batch = _kept(batch, self._topic_flags(batch.column("topic")))
        if self._pattern is not None and batch.num_rows:
            batch = _kept(batch, pa.array(self._pattern_flags(batch), pa.bool_()))
        return batch

    def _topic_flags(self, topics: pa.Array) -> pa.Array:
        encoded = topics.dictionary_encode()
        matching = [self._matches_topic(topic) for topic in encoded.dictionary.to_pylist()]
        return pa.array(matching, pa.bool_()).take(encoded.indices)

    def _match_topic(self, topic: str) -> bool:
        return any(pattern.matches(topic) for pattern in self._topics or ())

    def _pattern_flags(self, batch: pa.RecordBatch) -> Iterator[bool]:
        assert self._pattern is not None
        matches = self._pattern.matches
        columns = (batch.column(name).to_pylist() for name in ("offset", "topic", "packed"))
        for offset, topic, packed in zip(*columns, strict=True):
            try:
                attributes = _decode(packed)
            except (msgspec.MsgspecError, UnicodeError) as error:
                raise ArchiveCorrupt(f"cannot decode the attributes at offset {offset}: {error}") from None
            attributes[RESERVED_ATTRIBUTE] = topic
            yield matches(attributes)


_decode = msgspec.msgpack.Decoder(dict[str, Any]).decode


def _kept(batch: pa.RecordBatch, flags: pa.Array) -> pa.RecordBatch:
    return batch if pc.all(flags).as_py() else batch.filter(flags)
