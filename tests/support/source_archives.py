"""Real archives with events that are told apart by their offsets, for the tests of `format("tidings")`."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from tidings.core.events.event import Event
from tidings.storage.archive.archive import Archive, ArchiveSettings

BEGAN_NS = 1_700_000_000_000_000_000
STEP_NS = 1_000_000_000
TOPICS = ("/news/bbc", "/news/afp", "/sport")


def event(number: int) -> Event:
    """The event that has this offset: everything in it follows from the number."""
    attributes = {"size": number, "key": f"k{number % 10}"} if number % 2 else {"size": number}
    return Event(
        source=f"p{number % 4}",
        incarnation=0,
        sequence=number // 4 + 1,
        topic=TOPICS[number % 3],
        published_at=published_ns(number),
        attributes=attributes,
        payload=b"payload %d" % number,
    )


def published_ns(number: int) -> int:
    return BEGAN_NS + number * STEP_NS


def append(archive: Archive, count: int) -> None:
    first = archive.bounds().end
    numbers = range(first, first + count)
    archive.append([event(number) for number in numbers], published_ns(first))


def make_archive(directory: Path, counts: Iterable[int], **settings: object) -> Path:
    """An archive whose appends were of so many events each; all but the last are sealed after it."""
    with Archive.open(directory, ArchiveSettings(**settings)) as archive:  # type: ignore[arg-type]
        for at, count in enumerate(counts):
            if at:
                archive.seal()
            append(archive, count)
    return directory


def extend(directory: Path, count: int) -> None:
    with Archive.open(directory) as archive:
        append(archive, count)
