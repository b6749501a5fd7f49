"""The measurements: the rate of a group with a filled queue, waiting at half of what it can do, and a killed worker."""

from __future__ import annotations

import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from live.processes import Worker, workers

from work.job import Job, Note, Notes
from work.system import system_of

MODULE = "work.process"
AHEAD = {0: 256, 1: 16, 10: 2}
"""Milliseconds of work -> how many events a worker has besides the one it works on; the same for every system."""
IDLE_EVENTS = 200_000
"""Events without work; fewer for slow systems would not change the rate."""
BUSY_S = 3.0
"""How long a group with work should take, if all its workers always have some."""
PACED_S = 3.0
MAX_PACE = 1_000.0
KILL_WORKERS, KILL_WORK_MS, KILL_S = 4, 10, 6.0
TIMEOUT_S = 120.0

Figures = dict[str, float]
Scale = Callable[[float], int]
"""Maps the number of events of a full run to that of this run."""


class Group(NamedTuple):
    """The processes of one measurement."""

    publisher: Worker
    members: Sequence[Worker]
    notes: Sequence[Notes]

    def publish(self) -> None:
        self.publisher.go_on()

    def published(self) -> None:
        self.publisher.hear()

    def join(self) -> None:
        for member in self.members:
            member.go_on()

    def joined(self) -> None:
        for member in self.members:
            member.hear()

    def wait_for(self, events: int) -> None:
        """Wait until so many were done, repetitions included."""
        ends_at = time.monotonic() + TIMEOUT_S
        while (done := sum(notes.done for notes in self.notes)) < events:
            if time.monotonic() > ends_at:
                raise TimeoutError(f"{done} of {events} events were done within {TIMEOUT_S:.0f} s")
            time.sleep(0.005)


@contextmanager
def group(system: str, members: int, work_ms: int, events: int, *, rate: float = 0) -> Iterator[Group]:
    """Start a fresh server, its queue, and the processes; nobody has joined or published yet."""
    with (
        tempfile.TemporaryDirectory(prefix="work-") as directory,
        system_of(system).serve(Path(directory)) as url,
    ):
        paths = [Path(directory) / f"notes{number}" for number in range(members)]
        notes = [Notes.make(path, events) for path in paths]
        common = {"work_ms": work_ms, "ahead": AHEAD[work_ms], "rate": rate}
        working = [
            Job(system=system, role="work", url=url, notes=str(path), **common)  # type: ignore[arg-type]
            for path in paths
        ]
        publishing = [Job(system=system, role="publish", url=url, events=events, rate=rate)]
        with workers(publishing, MODULE) as publishers, workers(working, MODULE) as started:
            yield Group(publishers[0], started, notes)


def measure(system: str, members: int, work_ms: int, scale: Scale) -> Figures:
    return {
        "events_per_s": measure_rate(system, members, work_ms, scale),
        "p99_waiting_ms": measure_waiting(system, members, work_ms, scale),
    }


def measure_rate(system: str, members: int, work_ms: int, scale: Scale) -> float:
    events = scale(members * BUSY_S * 1000 / work_ms if work_ms else IDLE_EVENTS)
    with group(system, members, work_ms, events) as running:
        running.publish()
        running.published()
        running.join()
        running.wait_for(events)
        notes = [note for each in running.notes for note in each]
        check_all_done(notes, events)
        took_ns = max(note.done_at for note in notes) - min(note.began_at for note in notes)
        return events / (took_ns / 1e9)


def measure_waiting(system: str, members: int, work_ms: int, scale: Scale) -> float:
    """Return the 99th percentile, in ms, of the time from publishing an event to a worker that begins with it."""
    rate = min(MAX_PACE, 0.5 * members * 1000 / work_ms) if work_ms else MAX_PACE
    events = scale(rate * PACED_S)
    with group(system, members, work_ms, events, rate=rate) as running:
        running.join()
        running.joined()
        running.publish()
        running.published()
        running.wait_for(events)
        notes = [note for each in running.notes for note in each]
        check_all_done(notes, events)
        waited = sorted(note.began_at - note.published_at for note in notes)
        return waited[int(0.99 * (len(waited) - 1))] / 1e6


def measure_kill(system: str, scale: Scale) -> Figures:
    """Kill one of four workers in the middle of its work, with a filled queue."""
    events = scale(KILL_WORKERS * KILL_S * 1000 / KILL_WORK_MS)
    with group(system, KILL_WORKERS, KILL_WORK_MS, events) as running:
        running.publish()
        running.published()
        running.join()
        running.wait_for(events // 4)
        victim = running.members[0]
        killed_at = time.monotonic_ns()
        victim.kill()
        wait_for_all(running, events)
        return figures_of_kill(
            list(running.notes[0]), [n for each in running.notes[1:] for n in each], killed_at, events
        )


def wait_for_all(running: Group, events: int) -> None:
    ends_at = time.monotonic() + TIMEOUT_S
    while True:
        done = {note.number for each in running.notes for note in each if note.done_at}
        if len(done) == events:
            return
        if time.monotonic() > ends_at:
            raise TimeoutError(f"{events - len(done)} events were never done after a worker was killed")
        time.sleep(0.1)


def figures_of_kill(dead: Sequence[Note], others: Sequence[Note], killed_at: int, events: int) -> Figures:
    """Return which share of the events was begun twice, and how long an event that the dead worker had begun took to be
    begun by another one."""
    begun = Counter(note.number for note in (*dead, *others))
    held = {note.number for note in dead if not note.done_at}
    again = [note.began_at - killed_at for note in others if note.number in held]
    figures = {
        "repeated_percent": 100 * sum(count > 1 for count in begun.values()) / events,
        "held": float(len(held)),
    }
    if again:
        figures["redelivered_ms"] = max(again) / 1e6
    return figures


def check_all_done(notes: Sequence[Note], events: int) -> None:
    done = {note.number for note in notes if note.done_at}
    if len(done) < events:
        raise ValueError(f"{events - len(done)} events were never done")
