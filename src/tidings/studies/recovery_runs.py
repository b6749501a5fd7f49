"""Simulates runs in mode epidemic and measures them, for the studies of lost events and for benchmarks."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from time import process_time
from typing import Any, NamedTuple

import numpy as np

from tidings.core.errors import PipelineError
from tidings.core.overlay.epidemic.messages import (
    Announce,
    DirectoryDigest,
    DirectoryVersions,
    LabelAsk,
    LabelGiven,
)
from tidings.scenarios.file.expand import expand
from tidings.scenarios.file.schema import Scenario
from tidings.scenarios.file.times import nanoseconds
from tidings.scenarios.simulate import Simulation
from tidings.scenarios.trace.memory import MemoryWriter
from tidings.scenarios.trace.reader import Trace

DIRECTORY = (Announce, DirectoryDigest, DirectoryVersions, LabelAsk, LabelGiven)


class _Writer(MemoryWriter):
    """Keeps the trace in memory; the summary wants a hash, which is left empty."""

    sha256 = ""


class BrokerTraffic(NamedTuple):
    """What brokers have sent to each other so far, by class of message, and the CPU time spent.

    `brought`: events and blocks that were sent by gossip, not by the tree.
    """

    messages: Counter[type]
    size_bytes: Counter[type]
    brought: int
    cpu_s: float

    def since(self, before: BrokerTraffic) -> BrokerTraffic:
        return BrokerTraffic(
            self.messages - before.messages,
            self.size_bytes - before.size_bytes,
            self.brought - before.brought,
            self.cpu_s - before.cpu_s,
        )

    def messages_of(self, kinds: Collection[type]) -> int:
        return sum(self.messages[kind] for kind in kinds)

    def bytes_of(self, kinds: Collection[type]) -> int:
        return sum(self.size_bytes[kind] for kind in kinds)


class Played(NamedTuple):
    summary: dict[str, Any]
    trace: Trace
    simulation: Simulation
    counts: tuple[BrokerTraffic, ...]
    """Traffic at each of the marks."""

    def gossip_latency_ms(self) -> np.ndarray[Any, np.dtype[np.float64]]:
        """Return the latencies of deliveries that came by gossip."""
        published_at = dict(zip(*self._columns("published", "event_id", "at_ns"), strict=True))
        rows = zip(*self._columns("delivered", "event_id", "at_ns", "recovered_by"), strict=True)
        late_ns = [at_ns - published_at[event] for event, at_ns, recovered_by in rows if recovered_by]
        return np.array(late_ns, dtype=np.float64) / 1e6

    def all_subscribed_by(self, at_s: float) -> bool:
        accepted = self.trace.subscribed["accepted_ns"].to_pylist()
        return all(at is not None and at <= nanoseconds(at_s) for at in accepted)

    def _columns(self, table: str, *names: str) -> list[list[Any]]:
        rows = getattr(self.trace, table)
        return [rows[name].to_pylist() for name in names]


def play(
    scenario: Scenario,
    marks_s: Sequence[float] = (),
    prepare: Callable[[Simulation], None] = lambda simulation: None,
) -> Played:
    """Simulate the whole run, counting traffic at the marks. `prepare` is called after the brokers have started."""
    writer = _Writer()
    simulation = Simulation(expand(scenario), writer)
    network = simulation.network
    counts: list[BrokerTraffic] = []
    collecting = gc.isenabled()
    gc.disable()  # as Simulation.run does
    try:
        network.start()
        prepare(simulation)
        for mark_s in marks_s:
            network.run(nanoseconds(mark_s))
            counts.append(counts_between_brokers(simulation))
        network.run(simulation.end_ns)
    finally:
        if collecting:
            gc.enable()
    summary = simulation.close()
    if summary["duplicates"]:
        raise PipelineError(f"{summary['duplicates']} events were delivered twice")
    return Played(summary, writer.trace(), simulation, tuple(counts))


def counts_between_brokers(simulation: Simulation) -> BrokerTraffic:
    messages: Counter[type] = Counter()
    size_bytes: Counter[type] = Counter()
    brokers = frozenset(simulation.plan.topology.brokers)
    for (source, target), link in simulation.network.links.items():
        if source in brokers and target in brokers:
            for kind, traffic in link.traffic().items():
                messages[kind] += traffic.messages
                size_bytes[kind] += traffic.size_bytes
    brought = sum(broker.gossip.sent for broker in simulation.epidemic_brokers)
    return BrokerTraffic(messages, size_bytes, brought, process_time())
