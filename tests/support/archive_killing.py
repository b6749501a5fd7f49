"""Processes that write an archive until they are killed, and what must be true afterwards.

They are forked from a server that has imported everything, so that starting one takes no time.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable, Sequence
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

from apart import context
from archive_events import kept_numbers, make_events
from tidings.storage import database, files
from tidings.storage.archive import Archive, ArchiveReader, ArchiveSettings, archive
from tidings.storage.archive.packing import Packed

WAIT_S = 60
MAX_BATCHES = 5_000
"""A process that nobody kills ends by itself."""
SETTINGS = ArchiveSettings(segment_rows=40, retain_bytes=40_000)
FIRST, LAST = 1, 30
"""Events in a batch."""


class Told:
    """A file in which the writer says what it does: the end of a batch that it tries, and that it is there."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def tell(self, done: bool, end: int) -> None:
        with self.path.open("ab", buffering=0) as file:
            file.write(f"{'done' if done else 'trying'} {end}\n".encode())

    def read(self) -> tuple[int, int]:
        """The ends of the last batch that was there, and of the last that was tried."""
        ends = {"done": 0, "trying": 0}
        lines = self.path.read_text().splitlines() if self.path.exists() else []
        for line in lines:
            word, end = line.split()
            ends[word] = int(end)
        return ends["done"], max(ends.values())

    def size(self) -> int:
        return self.path.stat().st_size if self.path.exists() else 0


class Killed(Archive):
    """Its process dies when it reaches a point for the so-manieth time."""

    point = ""
    times = 0

    def _reached(self, point: str) -> None:
        if point == self.point:
            self.times -= 1
            if self.times == 0:
                os.kill(os.getpid(), signal.SIGKILL)


class Halving(Killed):
    """Planted: half of a batch is there before the other half."""

    def _insert(self, packed: Sequence[Packed], marks: Any) -> int:
        first = super()._insert(packed[: len(packed) // 2], {})
        time.sleep(0.01)
        super()._insert(packed[len(packed) // 2 :], marks)
        return first


def write(directory: Path, told: Path, kind: str, seed: int, point: str, times: int) -> None:
    draw = random.Random(seed)
    writer = (Halving if kind == "halving" else Killed).open(directory, SETTINGS)
    writer.point, writer.times = point, times
    end = writer.bounds().end
    for _ in range(MAX_BATCHES):
        start, end = end, end + draw.randint(FIRST, LAST)
        Told(told).tell(False, end)
        if kind == "hasty":  # planted: it says so too early
            Told(told).tell(True, end)
            time.sleep(0.01)
        writer.append(make_events(start, end - start), time.time_ns(), marks={"end": end})
        Told(told).tell(True, end)


def make_and_die(directory: Path, step: str) -> None:
    """Die while a new archive is made, right before `step`."""

    def die(*_: object) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    module = next(module for module in (archive, database, files) if hasattr(module, step))
    setattr(module, step, die)
    Archive.open(directory)


def hold(directory: Path, told: Path) -> None:
    """Keep an archive open until killed."""
    with Archive.open(directory):
        Told(told).tell(True, 1)
        time.sleep(WAIT_S)


def start(run: Callable[..., None], *arguments: object) -> ForkServerProcess:
    process = context.Process(target=run, args=arguments, daemon=True)
    process.start()
    return process


def wait_killed(process: ForkServerProcess) -> None:
    process.join(WAIT_S)
    assert process.exitcode == -signal.SIGKILL, f"the process ended with {process.exitcode}"


def wait_told(told: Told, process: ForkServerProcess, size: int) -> None:
    """Until the process has said more than `size` bytes."""
    deadline = time.monotonic() + WAIT_S
    while told.size() <= size:
        assert process.is_alive() and time.monotonic() < deadline, "the writer does not write"
        time.sleep(0.002)


def check_after_kill(directory: Path, told: Told) -> None:
    """All that was told as done is there, contiguous, once; at most one batch more, whole. AssertionError."""
    done, tried = told.read()
    with ArchiveReader(directory) as reader:  # before a writer has cleaned up
        check_kept(reader, done, tried)
    with Archive.open(directory, SETTINGS) as writer, ArchiveReader(directory) as reader:
        check_kept(reader, done, tried)
        assert writer.marks() == ({"end": writer.bounds().end} if writer.bounds().end else {})
        assert reader.verify() == []
        listed = [segment.path.name for segment in reader.segments()]
        assert sorted(path.name for path in (directory / "segments").iterdir()) == listed
        told.tell(True, writer.bounds().end)


def check_kept(reader: ArchiveReader, done: int, tried: int) -> None:
    first, end = reader.bounds()
    assert end in (done, tried), f"it ends at {end}, was told to end at {done}, and {tried} was tried"
    assert kept_numbers(reader) == list(range(first, end))
