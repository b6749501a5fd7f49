"""One measurement: servers, readers, publishers; what they did and what it cost."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from live.board import Board
from live.job import Job
from live.processes import Worker, cpu_seconds, workers
from live.system import Served
from live.systems import system_of

SETTLE_S = 0.5
"""For subscriptions to reach every broker, and for servers to finish starting."""

Figures = dict[str, float]
Scale = Callable[[int], int]
"""Maps the number of events of a full run to that of this run."""


class Load(NamedTuple):
    """Events from publishers to readers on one topic."""

    events: int
    publishers: int = 1
    readers: int = 1
    rate: int = 0
    where: str | None = None
    connections: int = 1
    batch: int = 2048
    topic: str = "/bench/events"


@contextmanager
def servers(system: str, brokers: int = 1) -> Iterator[Served]:
    """Run fresh servers, with nothing on disk."""
    with (
        tempfile.TemporaryDirectory(prefix="live-") as directory,
        system_of(system).serve(Path(directory), brokers) as served,
    ):
        yield served


def measure(system: str, load: Load, *, brokers: int = 1) -> Figures:
    with servers(system, brokers) as served:
        return run(system, served, load)


def run(system: str, served: Served, load: Load) -> Figures:
    with Streaming.opened(system, served, load) as stream:
        time.sleep(SETTLE_S)
        before_s = cpu_seconds(served.pids.values())
        stream.go()
        figures = stream.figures()
        used_s = cpu_seconds(served.pids.values()) - before_s
        figures["server_cpu_us"] = 1e6 * used_s / figures["sent"]
        return figures


class Streaming:
    """The client processes of one load."""

    def __init__(self, readers: Sequence[Worker], publishers: Sequence[Worker]) -> None:
        self._readers = readers
        self._publishers = publishers

    @classmethod
    @contextmanager
    def opened(cls, system: str, served: Served, load: Load) -> Iterator[Streaming]:
        """Open the clients: readers are subscribed and publishers connected."""
        with tempfile.TemporaryDirectory(prefix="live-") as directory:
            path = Path(directory) / "board"
            Board.make(path, load.readers, load.publishers)
            common: dict[str, Any] = {"system": system, "board": str(path), "topic": load.topic}
            common |= {"readers": load.readers, "publishers": load.publishers, "rate": load.rate}
            reading = [
                Job(
                    role="read", url=served.url_out, slot=slot, events=load.events, where=load.where, **common
                )
                for slot in range(load.readers)
            ]
            publishing = [
                Job(
                    role="publish",
                    url=served.url_in,
                    slot=load.readers + number,
                    events=load.events // load.publishers,
                    connections=load.connections,
                    batch=load.batch,
                    **common,
                )
                for number in range(load.publishers)
            ]
            with workers(reading) as readers, workers(publishing) as publishers:
                yield cls(readers, publishers)

    def go(self) -> None:
        for worker in self._publishers:
            worker.go_on()

    def published(self) -> Figures:
        """Wait until everything is published."""
        heard = [worker.hear() for worker in self._publishers]
        sent = sum(found["sent"] for found in heard)
        return {
            "began_at": min(found["began_at"] for found in heard),
            "sent": sent,
            "offered_per_s": sum(found["offered_per_s"] for found in heard),
            "publisher_cpu_us": 1e6 * sum(found["cpu_s"] for found in heard) / sent,
        }

    def figures(self) -> Figures:
        """Wait until everything is published, and read or lost."""
        figures = self.published()
        began_at = figures.pop("began_at")
        read = [worker.hear() for worker in self._readers]
        arrived = sum(found["count"] for found in read)
        took_s = (max(found["last_at"] for found in read) - began_at) / 1e9 if arrived else float("inf")
        figures["events_per_s"] = arrived / took_s
        figures["lost"] = figures["sent"] * len(read) - arrived
        figures["subscriber_cpu_us"] = 1e6 * sum(found["cpu_s"] for found in read) / max(1, arrived)
        for name in ("p50_us", "p99_us"):
            if all(name in found for found in read):
                figures[name] = max(found[name] for found in read)
        return figures
