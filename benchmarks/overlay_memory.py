"""What one broker needs for many subscriptions with different filters; for benchmarks/overlay.py."""

from __future__ import annotations

import gc
import tempfile
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from itertools import islice
from multiprocessing import get_context
from os import sysconf
from pathlib import Path
from time import process_time
from typing import NamedTuple

from quiet_port import QuietPort

from tidings.core.messages import Message
from tidings.core.overlay.guaranteed.broker import DEFAULT_WINDOW, GuaranteedBroker
from tidings.core.overlay.guaranteed.messages import (
    Activate,
    Covered,
    Greeting,
    Record,
    Records,
    RecordsTaken,
    Sync,
)
from tidings.storage.disk_store import DiskStore

BATCH = 500


class Memory(NamedTuple):
    """One broker between two others; `taking` is all that it does until everybody has the records."""

    subscriptions: int
    resident_bytes: float
    stored_bytes: float
    taking_us: float


def memory(scale: float) -> Iterator[Memory]:
    """Measure each size in a process of its own: memory that was used and freed before would hide what is used."""
    for size in (round(10_000 * scale), round(100_000 * scale)):
        with ProcessPoolExecutor(1, get_context("spawn")) as process:
            yield process.submit(take_subscriptions, size).result()


def take_subscriptions(size: int) -> Memory:
    with tempfile.TemporaryDirectory() as directory:
        store = DiskStore(Path(directory) / "store")
        peers = QuietPeers()
        broker = GuaranteedBroker(
            peers,
            (0, 0),
            {"above": ((0,), ""), "below": ((0, 0, 0), "")},
            store,
            delta=0,
            incarnation=1,
            new=True,
        )
        peers.connect(broker)
        for record in distinct_records(1):  # what is created only once does not count
            broker.receive("above", Records((record,)))
        peers.answer(broker)
        gc.collect()
        before_bytes, began = resident_bytes(), process_time()
        coming = distinct_records(size, first=1)
        while records := tuple(islice(coming, BATCH)):
            broker.receive("above", Records(records))
            peers.answer(broker)
        cpu_s, used_bytes = process_time() - began, resident_bytes() - before_bytes
        if len(broker.log) != size + 1:
            raise SystemExit(f"memory: the broker has {len(broker.log)} records of {size + 1}")
        stored = store.size_bytes("log") / size
        store.close()
    return Memory(size, used_bytes / size, stored, 1e6 * cpu_s / size)


def distinct_records(size: int, first: int = 0) -> Iterator[Record]:
    for number in range(first, first + size):
        text = f"price > {number} AND kind = 'k{number % 50}'"
        yield Record(f"b{number % 100}/1/{number}", f"b{number % 100}", (0, 1, number % 100), ("/a",), text)


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * sysconf("SC_PAGE_SIZE")


class QuietPeers(QuietPort):
    """The Port of a broker whose peers only answer as the protocol demands."""

    def __init__(self) -> None:
        super().__init__("here")
        self._answers: list[tuple[str, Message]] = []

    def connect(self, broker: GuaranteedBroker) -> None:
        broker.start()
        for peer, label in (("above", (0,)), ("below", (0, 0, 0))):
            broker.link_up(peer)
            broker.receive(peer, Greeting(label, 0, 1, DEFAULT_WINDOW))
            broker.receive(peer, Activate((), (), True))
        self.answer(broker)

    def answer(self, broker: GuaranteedBroker) -> None:
        while self._answers:
            answers, self._answers = self._answers, []
            for peer, message in answers:
                broker.receive(peer, message)

    def send(self, to: str, message: Message) -> None:
        if isinstance(message, Activate) and message.last:
            self._answers.append((to, Sync((), True)))
        elif isinstance(message, Records):
            ids = tuple(record.id for record in message.records)
            self._answers.append((to, RecordsTaken(ids, ())))
            self._answers.append((to, Covered(ids, False, (((0, 0, 0), True, True),))))
