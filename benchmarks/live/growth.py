"""Measures how the cost of tidings grows, and a broker's memory."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager

from live.job import Job
from live.measure import SETTLE_S, Figures, Load, Scale, Streaming, run, servers
from live.processes import resident_bytes, workers
from live.system import Served

CLIENTS_PER_PROCESS = 2_500
PUBLISHED_TOGETHER = 50
SUBSCRIPTIONS_PER_CLIENT = 10_000


def publishers(count: int, system: str, scale: Scale) -> Figures:
    """Measure `count` connections in one process that publish in turns, in the same batches for any count."""
    with servers(system) as served:
        return run(system, served, Load(scale(100_000), connections=count, batch=PUBLISHED_TOGETHER))


def other_subscriptions(count: int, system: str, scale: Scale) -> Figures:
    """Measure an event beside subscriptions that do not select it; each has a topic of its own."""
    total = scale(count)
    clients = -(-total // SUBSCRIPTIONS_PER_CLIENT)
    with servers(system) as served:
        before_bytes = resident_bytes(served.pids.values())
        with held(system, served, topic="/other", connections=clients, subscriptions=total):
            grown_bytes = resident_bytes(served.pids.values()) - before_bytes
            figures = run(system, served, Load(scale(100_000)))
    figures["bytes_each"] = grown_bytes / total
    return figures


def unread_events(system: str, scale: Scale) -> Figures:
    """Measure events whose reader does not read."""
    load = Load(scale(1_000_000), readers=0)
    with servers(system) as served:
        with held(system, served, topic=load.topic, connections=1, subscriptions=1):
            time.sleep(SETTLE_S)
            before_bytes = resident_bytes(served.pids.values())
            with Streaming.opened(system, served, load) as stream:
                stream.go()
                figures = stream.published()
                after_bytes = resident_bytes(served.pids.values())
    return {
        "memory_mb": after_bytes / 1e6,
        "bytes_each": (after_bytes - before_bytes) / load.events,
        "publisher_cpu_us": figures["publisher_cpu_us"],
        "offered_per_s": figures["offered_per_s"],
    }


def idle_clients(system: str, scale: Scale) -> Figures:
    count = scale(10_000)
    processes = -(-count // CLIENTS_PER_PROCESS)
    with servers(system) as served:
        before_bytes = resident_bytes(served.pids.values())
        with held(system, served, connections=count // processes, processes=processes):
            after_bytes = resident_bytes(served.pids.values())
    return {"memory_mb": after_bytes / 1e6, "bytes_each": (after_bytes - before_bytes) / count}


@contextmanager
def held(
    system: str,
    served: Served,
    *,
    topic: str = "/none",
    connections: int,
    subscriptions: int = 0,
    processes: int = 1,
) -> Iterator[None]:
    """Hold clients with subscriptions that they never read, in processes of their own."""
    job = Job(
        system=system,
        role="hold",
        url=served.url_out,
        board=os.devnull,
        slot=0,
        readers=0,
        publishers=0,
        topic=topic,
        connections=connections,
        subscriptions=subscriptions,
    )
    with workers([job] * processes):
        yield
