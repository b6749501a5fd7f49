"""The workloads against other systems: rates, latencies, filters, brokers in a row, fairness, an archive."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import tidings
from live.growth import idle_clients, other_subscriptions, publishers, unread_events
from live.job import FILTER
from live.measure import SETTLE_S, Figures, Load, Scale, Streaming, measure, run, servers
from live.processes import cpu_seconds
from live.systems import BEST_EFFORT, EVENTS_SHARE, GUARANTEED, OWN, SYSTEMS

LATENCY_RATE = 2_000
BESIDE_RATE = 50_000
ARCHIVE_TIMEOUT_S = 300.0


class Workload(NamedTuple):
    name: str
    systems: Iterable[str]
    measure: Callable[[str, Scale], Figures]


def rate(
    system: str,
    scale: Scale,
    *,
    events: int = 400_000,
    publishers: int = 1,
    readers: int = 1,
    where: str | None = None,
    brokers: int = 1,
) -> Figures:
    share = scale(int(events * EVENTS_SHARE.get(system, 1.0)) // publishers)
    return measure(system, Load(share * publishers, publishers, readers, where=where), brokers=brokers)


def latency(system: str, scale: Scale) -> Figures:
    return measure(system, Load(scale(20_000), rate=LATENCY_RATE))


def fairness(system: str, scale: Scale) -> Figures:
    """Measure a slow stream alone, then beside a fast one at the same broker."""
    slow = Load(scale(20_000), rate=LATENCY_RATE, topic="/bench/slow")
    seconds = slow.events / LATENCY_RATE + 2
    fast = Load(int(seconds * BESIDE_RATE), rate=BESIDE_RATE, topic="/bench/fast")
    with servers(system) as served:
        alone = run(system, served, slow)
        with (
            Streaming.opened(system, served, fast) as beside,
            Streaming.opened(system, served, slow) as stream,
        ):
            time.sleep(SETTLE_S)
            beside.go()
            time.sleep(1.0)
            stream.go()
            figures = stream.figures()
            stretch = beside.figures()
    return {
        "p50_us": figures["p50_us"],
        "p99_us": figures["p99_us"],
        "p99_alone_us": alone["p99_us"],
        "beside_per_s": stretch["events_per_s"],
        "lost": figures["lost"] + stretch["lost"],
    }


def archive(system: str, scale: Scale) -> Figures:
    """Measure whether `tidings record` keeps up; an event counts once it is in the archive, on disk."""
    load = Load(scale(500_000), readers=0)
    with tempfile.TemporaryDirectory(prefix="live-") as directory, servers(system) as served:
        place = Path(directory) / "archive"
        command = [sys.executable, "-m", "tidings.cli.main", "record", served.url_out, load.topic]
        process = subprocess.Popen([*command, "-a", str(place), "--json"], stdout=subprocess.PIPE, text=True)
        try:
            assert process.stdout is not None
            if not process.stdout.readline():
                raise ChildProcessError("the recorder did not start")
            with Streaming.opened(system, served, load) as stream, tidings.ArchiveReader(place) as reader:
                pids = (*served.pids.values(), process.pid)
                before_s = [cpu_seconds([pid]) for pid in pids]
                began = time.monotonic()
                stream.go()
                published = stream.published()
                kept = wait_for(reader, load.events)
                took_s = time.monotonic() - began
                *at_servers, at_recorder = (
                    cpu_seconds([pid]) - before for pid, before in zip(pids, before_s, strict=True)
                )
        finally:
            process.terminate()
            process.communicate(timeout=60)
    return {
        "events_per_s": kept / took_s,
        "lost": load.events - kept,
        "server_cpu_us": 1e6 * sum(at_servers) / load.events,
        "subscriber_cpu_us": 1e6 * at_recorder / load.events,
        "publisher_cpu_us": published["publisher_cpu_us"],
    }


def wait_for(reader: tidings.ArchiveReader, events: int) -> int:
    ends_at = time.monotonic() + ARCHIVE_TIMEOUT_S
    while (kept := reader.bounds().end) < events and time.monotonic() < ends_at:
        time.sleep(0.02)
    return kept


WORKLOADS = (
    Workload("one to one", SYSTEMS, rate),
    Workload("one to ten", SYSTEMS, partial(rate, events=100_000, readers=10)),
    Workload("ten to one", SYSTEMS, partial(rate, publishers=10)),
    Workload("one to one, filter", OWN, partial(rate, where=FILTER)),
    Workload("one to ten, filter", OWN, partial(rate, events=100_000, readers=10, where=FILTER)),
    Workload("three brokers in a row", OWN, partial(rate, events=200_000, brokers=3)),
    Workload("latency", SYSTEMS, latency),
    Workload("fairness", SYSTEMS, fairness),
    Workload("archive", (GUARANTEED,), archive),
    *(
        Workload(f"publishers {count:,}", (BEST_EFFORT, GUARANTEED), partial(publishers, count))
        for count in (1, 10, 100, 1_000)
    ),
    *(
        Workload(
            f"other subscriptions {count:,}", (BEST_EFFORT, GUARANTEED), partial(other_subscriptions, count)
        )
        for count in (1, 1_000, 100_000)
    ),
    Workload("unread events", (GUARANTEED,), unread_events),
    Workload("idle clients", (BEST_EFFORT, GUARANTEED), idle_clients),
)
