"""Runs a scenario in virtual time and writes its trace and summary."""

from __future__ import annotations

import gc
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import Any

from tidings.core.errors import ScenarioError
from tidings.core.events.event import Publication
from tidings.core.kernel import Node
from tidings.core.overlay.epidemic.blocks import plan as plan_blocks
from tidings.core.overlay.epidemic.broker import EpidemicBroker
from tidings.core.overlay.epidemic.messages import (
    Ask,
    Carried,
    Fragment,
    HighWater,
    HighWaterTaken,
    LinkCount,
    Offer,
    Solicit,
)
from tidings.core.overlay.guaranteed.messages import Forward
from tidings.drivers.virtual.brokers import BrokerMaker
from tidings.drivers.virtual.network import SimulatedNetwork
from tidings.drivers.virtual.node import SimulatedNode
from tidings.scenarios.file.brokers import broker_specs, recovery_settings
from tidings.scenarios.file.expand import RunPlan, expand
from tidings.scenarios.file.modes import check_available
from tidings.scenarios.file.order_nodes import order_node
from tidings.scenarios.file.schema import CrashFault, Scenario
from tidings.scenarios.file.times import NS_PER_S, nanoseconds
from tidings.scenarios.file.topology import labels, parents
from tidings.scenarios.summary import summary_of, write_summary
from tidings.scenarios.trace.traffic_kinds import traffic_kind
from tidings.scenarios.trace.writer import TraceWriter
from tidings.scenarios.virtual.archive import SimulatedArchive
from tidings.scenarios.virtual.clients import SimulatedPublisher, SimulatedSubscriber
from tidings.scenarios.virtual.faults import schedule_fault
from tidings.scenarios.virtual.make_clients import ClientMaker
from tidings.scenarios.virtual.sequencers import RunOrdering
from tidings.scenarios.virtual.share_subscriber import SimulatedShareSubscriber
from tidings.scenarios.virtual.tally import Tally

Progress = Callable[[float], None]
"""Called now and then with the share of virtual time that has passed."""

PROGRESS_STEPS = 200
DATA = (Publication, Forward, Carried, Fragment)
"""Messages that carry an event, or a block of one."""
GOSSIP = (Offer, Ask, Solicit, HighWater, HighWaterTaken, LinkCount)


class Simulation:
    """Runs a plan in virtual time: `run` advances it, `close` returns its summary."""

    def __init__(self, plan: RunPlan, writer: TraceWriter) -> None:
        check_available(plan.scenario.overlay.mode, "overlay.mode")
        self.plan = plan
        self.writer = writer
        self.tally = Tally()
        self.guaranteed = plan.scenario.overlay.mode == "guaranteed"
        self.network = SimulatedNetwork(plan.scenario.seed, plan.links.between, streams=self.guaranteed)
        self.duration_ns = nanoseconds(plan.scenario.duration_s)
        self.end_ns = self.duration_ns + nanoseconds(plan.scenario.settle_s)
        recovery = recovery_settings(plan.scenario.recovery)
        self.brokers = BrokerMaker(broker_specs(plan.topology, plan.scenario.overlay, recovery))
        self.epidemic_brokers: list[EpidemicBroker] = []
        """Every incarnation of every broker, for its counts."""
        for name in self.brokers.specs:
            self.network.add(name, self._make_broker)
        self.ordering: RunOrdering | None = None
        if plan.ordering is not None:
            self.ordering = RunOrdering(self.network, plan.ordering, reliable=self.guaranteed)
            self.brokers.layout = self.ordering.layout
        self.archives = {
            archive.broker: SimulatedArchive(self.network, archive, self.ordering)
            for archive in plan.archives
        }
        self.subscribers, self.publishers = self._add_clients()
        for fault in plan.faults:
            schedule_fault(self.network, fault)
            for name in fault.nodes if isinstance(fault.fault, CrashFault) else ():
                if name in self.archives:
                    self.archives[name].crash_with(fault)
        self._write_static_tables()

    def _add_clients(
        self,
    ) -> tuple[list[SimulatedSubscriber | SimulatedShareSubscriber], list[SimulatedPublisher]]:
        maker = ClientMaker(
            self.network,
            self.writer,
            self.tally,
            self.duration_ns,
            self.ordering,
            self.archives,
            reliable=self.guaranteed,
        )
        maker.share(self.plan.publishers, self.plan.subscribers)
        # Subscribers first: a request in the instant of a publication counts as earlier.
        subscribers = [maker.subscriber(subscriber) for subscriber in self.plan.subscribers]
        publishers = [
            maker.publisher(publisher, self._blocks(publisher.size_bytes))
            for publisher in self.plan.publishers
        ]
        return subscribers, publishers

    def _blocks(self, payload_bytes: int) -> int:
        """Return how many blocks an event is cut into; the overhead is relative to these."""
        if self.plan.scenario.overlay.mode != "epidemic":
            return 1
        return sum(plan_blocks(payload_bytes, self.plan.scenario.recovery.block_bytes))

    def _make_broker(self, node: SimulatedNode) -> Node:
        broker = self.brokers(node)
        if isinstance(broker, EpidemicBroker):
            self.epidemic_brokers.append(broker)
        if node.node in self.archives:
            self.archives[node.node].watch(broker)
        return broker

    def _write_static_tables(self) -> None:
        write_nodes(self.plan, self.writer)
        for fault in self.plan.faults:
            self.writer.faults(fault.kind, fault.target, fault.at_ns, fault.until_ns)

    def run(self, progress: Progress | None = None) -> None:
        # Reference counts free what a run allocates; repeated collections would only cost time.
        collecting = gc.isenabled()
        gc.disable()
        try:
            self.network.start()
            for step in range(1, PROGRESS_STEPS + 1):
                self.network.run(self.end_ns * step // PROGRESS_STEPS)
                if progress is not None:
                    progress(step / PROGRESS_STEPS)
        finally:
            if collecting:
                gc.enable()
        for subscriber in self.subscribers:
            if subscriber.failure is not None:
                raise ScenarioError(subscriber.failure)

    def close(self) -> dict[str, Any]:
        """Write the rest of the trace; return the summary without the wall time."""
        for publisher in self.publishers:
            publisher.close()
        messages, size_bytes, data, gossip = self._write_traffic()
        self.writer.close()
        tally = self.tally
        rest = {
            "overhead": (data + gossip) / tally.blocks if tally.blocks else 0.0,
            "recovered": tally.recovered,
            "gossip_messages": gossip + self._recovered_messages(),
            "utility": self._utility(),
            "messages": messages,
            "bytes": size_bytes,
            "steps": self.network.schedule.steps,
            "virtual_s": self.end_ns / NS_PER_S,
            "trace_sha256": self.writer.sha256,
        }
        if self.ordering is not None:
            rest["ordering"] = self.ordering.summary()
        return summary_of(self.plan, tally.metrics(), rest)

    def _recovered_messages(self) -> int:
        """Return how many events and blocks gossip sent, as opposed to the tree."""
        return sum(broker.gossip.sent for broker in self.epidemic_brokers)

    def _utility(self) -> dict[str, float | None]:
        """Return the share of pushes that brought something new, and of pulls that were answered."""
        brokers = [broker.gossip for broker in self.epidemic_brokers]
        pushes, pulls = sum(part.pushes for part in brokers), sum(part.pulls for part in brokers)
        return {
            "push": sum(part.useful_pushes for part in brokers) / pushes if pushes else None,
            "pull": sum(part.useful_pulls for part in brokers) / pulls if pulls else None,
        }

    def _write_traffic(self) -> tuple[int, int, int, int]:
        """Return all messages, all bytes and, between brokers, messages with events or blocks and gossip messages."""
        messages = size_bytes = data = gossip = 0
        brokers = frozenset(self.plan.topology.brokers)
        for (source, target), link in sorted(self.network.links.items()):
            for kind, traffic in sorted(link.traffic().items(), key=lambda item: traffic_kind(item[0])):
                self.writer.traffic(
                    traffic_kind(kind),
                    source,
                    target,
                    traffic.messages,
                    traffic.size_bytes,
                    traffic.dropped,
                )
                messages += traffic.messages
                size_bytes += traffic.size_bytes
                if source in brokers and target in brokers:
                    data += traffic.messages if kind in DATA else 0
                    gossip += traffic.messages if kind in GOSSIP else 0
        return messages, size_bytes, data, gossip


def write_nodes(plan: RunPlan, writer: TraceWriter) -> None:
    """Write the table of nodes, for simulated and live runs."""
    parent_of, label_of = parents(plan.topology), labels(plan.topology)
    for name in plan.topology.brokers:
        writer.nodes(name, "broker", parent_of[name], label_of[name], plan.sites.get(name))
    for name in () if plan.ordering is None else plan.ordering.brokers:
        writer.nodes(order_node(name), "sequencer", name, None, plan.sites.get(name))
    for archive in plan.archives:
        writer.nodes(archive.node, "archive", archive.broker, None, plan.sites.get(archive.broker))
    publishers = {publisher.name for publisher in plan.publishers}
    both = {subscriber.name for subscriber in plan.subscribers if subscriber.name in publishers}
    for publisher in plan.publishers:
        kind = "client" if publisher.name in both else "publisher"
        writer.nodes(publisher.name, kind, publisher.at, None, plan.sites.get(publisher.name))
    for subscriber in plan.subscribers:
        if subscriber.name not in both:
            writer.nodes(subscriber.name, "subscriber", subscriber.at, None, plan.sites.get(subscriber.name))


def run_scenario(scenario: Scenario, out: Path, progress: Progress | None = None) -> dict[str, Any]:
    """Run the scenario, write `out/*.parquet` and `out/summary.json`, and return the summary."""
    plan = expand(scenario)
    check_available(scenario.overlay.mode, "overlay.mode")
    began_at = perf_counter()
    with TraceWriter(out) as writer:
        simulation = Simulation(plan, writer)
        simulation.run(progress)
        summary = simulation.close()
    return write_summary(out, summary, began_at)
