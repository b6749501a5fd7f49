"""Streaming queries that publish what is in files of numbers, one file in each batch."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from broker_thread import BrokerThread
from tidings.core.events.event import Event

SECONDS = 100
ROWS = 40
"""Of one file, which is one batch."""


def add_files(directory: Path, *numbers: int) -> None:
    directory.mkdir(exist_ok=True)
    for number in numbers:
        lines = (f"{number * ROWS + row}\n" for row in range(ROWS))
        path = directory / f"{number:03}.txt"
        path.write_text("".join(lines))
        os.utime(path, (number, number))  # Spark takes the oldest first


def start(session: Any, files: Path, checkpoint: Path, broker: BrokerThread, **options: str) -> Any:
    lines = session.readStream.option("maxFilesPerTrigger", 1).text(str(files))
    writer = lines.writeStream.format("tidings").queryName("numbers")
    writer = writer.options(url=broker.url, topic="/numbers", checkpointLocation=str(checkpoint), **options)
    return writer.trigger(availableNow=True).start()


def finish(query: Any) -> None:
    assert query.awaitTermination(SECONDS), "the query did not end"


def forget_last_commit(checkpoint: Path) -> int:
    """As if the driver had died between the last task and its commit: that batch is run again."""
    commits = checkpoint / "commits"
    last = max(int(path.name) for path in commits.iterdir() if path.name.isdigit())
    (commits / str(last)).unlink()
    (commits / f".{last}.crc").unlink(missing_ok=True)
    return last


def numbers(events: list[Event]) -> list[int]:
    return [int(event.payload) for event in events]
