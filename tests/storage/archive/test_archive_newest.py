"""The newest row of each topic, against a twin that looks at all rows; and what it costs."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tidings.core.events.event import Event
from tidings.core.events.subscription import make_interest
from tidings.storage.archive import Archive, ArchiveReader, ArchiveSettings, events_of
from tidings.storage.archive.newest import NewestRows


def newest(
    reader: ArchiveReader, *topics: str, where: str | None = None, stop: int | None = None
) -> list[int]:
    end = reader.bounds().end if stop is None else stop
    batches = list(reader.newest(make_interest(topics, where), end))
    offsets = [offset for batch in batches for offset in batch.column("offset").to_pylist()]
    numbers = [event.attributes["n"] for batch in batches for event in events_of(batch)]
    assert numbers == offsets
    return offsets


@pytest.mark.parametrize("seed", range(8))
def test_against_a_twin(tmp_path: Path, seed: int) -> None:
    draw = random.Random(seed)
    topics = [f"/{draw.choice('ab')}/{number}" for number in range(draw.choice((1, 5, 40)))]
    rows: list[str] = []
    with Archive.open(tmp_path, ArchiveSettings(segment_rows=draw.choice((7, 50, 400)))) as archive:
        for _ in range(draw.randint(1, 30)):
            batch = [draw.choice(topics) for _ in range(draw.randint(1, 60))]
            archive.append(
                [Event("p", 0, n + 1, topic, n, {"n": n}, b"") for n, topic in enumerate(batch, len(rows))], 1
            )
            rows += batch
    with ArchiveReader(tmp_path) as reader:
        for _ in range(20):
            patterns = tuple(draw.sample([*topics, "/a/*", "/**", "/b/*", "/none"], 1))
            below = draw.choice((None, draw.randint(0, len(rows))))
            stop = draw.randint(0, len(rows))
            where = None if below is None else f"n < {below} AND topic <> '/a/0'"
            interest = make_interest(patterns, None)
            last: dict[str, int] = {}
            for n, topic in enumerate(rows[:stop]):
                hidden = below is not None and (n >= below or topic == "/a/0")
                if interest.has_topic(topic) and not hidden:
                    last[topic] = n
            assert newest(reader, *patterns, where=where, stop=stop) == sorted(last.values())


def test_what_was_trimmed_is_no_more(tmp_path: Path) -> None:
    with Archive.open(tmp_path, ArchiveSettings(segment_rows=10, retain_bytes=1)) as archive:
        for first in range(0, 35, 5):
            events = [Event("p", 0, n + 1, f"/{n}", n, {"n": n}, b"") for n in range(first, first + 5)]
            archive.append(events, 1)
        archive.maintain()
        first, end = archive.bounds()
    assert 0 < first < end
    with ArchiveReader(tmp_path) as reader:
        assert newest(reader) == list(range(first, end))
        assert newest(reader, "/0") == []


def test_a_segment_is_looked_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the second time on, the cost is that of the topics: the rows of segments are not read for them."""
    with Archive.open(tmp_path, ArchiveSettings(segment_rows=1_000)) as archive:
        for first in range(0, 10_000, 500):
            events = [Event("p", 0, n + 1, f"/{n % 10}", n, {"n": n}, b"") for n in range(first, first + 500)]
            archive.append(events, 1)
        archive.seal()
    with ArchiveReader(tmp_path) as reader:
        looked: list[int] = []
        last_of = NewestRows._last_of

        def counted(self: NewestRows, start: int, end: int, key: object) -> dict[str, int]:
            looked.append(start)
            return last_of(self, start, end, key)  # type: ignore[arg-type]

        monkeypatch.setattr(NewestRows, "_last_of", counted)
        assert newest(reader, "/3") == [9_993]
        assert looked == [9_000]  # nothing older, once each topic asked for has been found
        assert newest(reader) == list(range(9_990, 10_000))
        read: list[object] = []
        reading = ArchiveReader.read

        def traced(self: ArchiveReader, *arguments: object, **options: object) -> object:
            read.append(options.get("columns"))
            return reading(self, *arguments, **options)  # type: ignore[arg-type]

        monkeypatch.setattr(ArchiveReader, "read", traced)
        assert newest(reader) == list(range(9_990, 10_000))
        assert read == [None]  # the rows that it returns, and no column of topics
