"""Runs random scenarios with total and causal order by the hundred: each seed is one network with its faults.

Whatever happens, no two subscribers see two events in different orders, none sees an event before one that caused it
(order causal), and nothing is delivered twice. Once all faults are over, and if nothing was lost for good, every
confirmed event reaches all that are owed it, every subscription is accepted, and nothing waits any more. On a
guaranteed network this includes killed subscribers: they resume, unless a broker lost its disk. Every active server
has its standby in step, if its witness has its disk. A seed replays its run exactly.

These may be lost for good: a server that loses its disk while no standby is in step; the order itself, if the witness
loses its disk as well and a server counts anew; and events, over a lossy service (`buffer_events` above 0).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from random import Random

from tidings.core.client.session import DRAIN_NS
from tidings.core.ordering.subscriber import OrderedSubscriber
from tidings.drivers.virtual.crash_points import CrashPoints
from tidings.lab.order_scenarios import order_scenario
from tidings.lab.seeds import CampaignResult, problems_of, run_command, seeds_parser
from tidings.scenarios.file.expand import expand
from tidings.scenarios.file.faults import forgetful_nodes
from tidings.scenarios.file.load import parse_scenario
from tidings.scenarios.file.times import NS_PER_S
from tidings.scenarios.simulate import Simulation
from tidings.scenarios.trace.checkers import causal_order, exactly_once, fifo, gap_free, total_order
from tidings.scenarios.trace.memory import MemoryWriter
from tidings.scenarios.trace.reader import Trace

CHECK_NS = NS_PER_S
FIRST_LOOK_NS = 15 * NS_PER_S
"""After the workload; by then, servers have given up a publisher that crashed at its end."""
LOOKS = 3
"""The run ends once it was at rest this many times in a row: nobody knows to wait for an event published last."""
MODULE = "tidings.lab.order_campaign"
CRASH_POINTS_EVERY = 4
"""In one of this many runs, brokers and sequencers crash before they commit or before they send."""
RUNS = (1, 1, 1, 2, 3, 8)
"""How many events are published together, in every second run."""
ORDERED = frozenset({"causal", "total"})
CUT_OFF_NS = DRAIN_NS // 2
"""A cancelled subscription stays for DRAIN_NS, half of which covers an event's travel time. If a publisher is further
behind and events overtake each other, some arrive in time while earlier ones do not."""


def replay_command(seed: int) -> str:
    return f"python -m {MODULE} --seeds {seed}:{seed + 1} --keep order-{seed}"


def run_seed(seed: int) -> CampaignResult:
    """Run the scenario of that seed without touching a disk; whatever goes wrong is among the problems."""
    writer = MemoryWriter()
    simulation = Simulation(expand(parse_scenario(order_scenario(seed))), writer)
    random = Random(f"{seed}:runs")
    for publisher in simulation.publishers if seed % 2 else ():
        publisher.together = lambda: random.choice(RUNS)
    if seed % CRASH_POINTS_EVERY == 2:
        CrashPoints(simulation.network, keepers(simulation), simulation.duration_ns)
    if seed % CRASH_POINTS_EVERY > 1:
        CrashPoints(simulation.network, resuming(simulation), simulation.duration_ns)
    problems = problems_of(partial(_run, simulation, writer), AssertionError)
    steps = simulation.network.schedule.steps
    return CampaignResult(seed, problems, *writer.counts, steps, replay_command(seed))


def keepers(simulation: Simulation) -> list[str]:
    """Return the nodes with a store, unless events must not be lost and best effort would lose them in a crash."""
    ordering = simulation.ordering
    if ordering is None or not (simulation.guaranteed or ordering.patience):
        return []
    brokers = simulation.plan.topology.brokers if simulation.guaranteed else ()
    return [*brokers, *(node.name for node in ordering.nodes)]


def resuming(simulation: Simulation) -> list[str]:
    """Return the subscribers that keep a bookmark at their broker."""
    clients = [subscriber.client for subscriber in simulation.subscribers]
    return [client.node.node for client in clients if client.resumes]


def _run(simulation: Simulation, writer: MemoryWriter) -> Iterator[str]:
    network = simulation.network
    network.start()
    looks = 0
    for until in range(CHECK_NS, simulation.end_ns + 1, CHECK_NS):
        network.run(until)
        if until >= simulation.duration_ns + FIRST_LOOK_NS:
            looks = 0 if any(unfinished(simulation, writer)) else looks + 1
        if looks == LOOKS:
            break
    yield from unfinished(simulation, writer)
    for publisher in simulation.publishers:
        publisher.close()
    yield from verdicts(simulation, writer.trace())
    if simulation.ordering is not None:
        yield from simulation.ordering.misbehaviour


def verdicts(simulation: Simulation, trace: Trace) -> Iterator[str]:
    """Yield the verdicts of checkers that find violations."""
    found = [exactly_once(trace)]
    if simulation.guaranteed:
        found.append(fifo(trace, orders=frozenset({"none", "fifo"})))
    if not may_count_anew(simulation):
        found.append(total_order(trace, orders=ORDERED))
        found.append(causal_order(trace, orders=frozenset({"causal"})))
    if loses_nothing(simulation):
        cut_off_ns = None if simulation.guaranteed else CUT_OFF_NS
        found.append(gap_free(trace, confirmed_only=True, cut_off_ns=cut_off_ns))
    yield from (str(verdict) for verdict in found if not verdict.holds)


def loses_nothing(simulation: Simulation) -> bool:
    """Return whether every event is owed: the service is lossless, and no server is lost."""
    ordering = simulation.plan.ordering
    if ordering is not None and ordering.buffer_events:
        return False
    return not may_count_anew(simulation) and may_be_lost(simulation).isdisjoint(without_a_voice(simulation))


def may_count_anew(simulation: Simulation) -> set[str]:
    """Return the servers that lost two disks, of both replicas, or of one and the witness: they may count anew."""
    ordering, lost = simulation.plan.ordering, forgetful_nodes(simulation.plan.faults)
    servers = () if ordering is None else ordering.servers
    return {
        server.broker for server in servers if len({server.broker, server.standby, server.witness} & lost) > 1
    }


def may_be_lost(simulation: Simulation) -> set[str]:
    """Return the servers whose disk was lost while no standby was in step: their state may be gone."""
    return set() if simulation.ordering is None else simulation.ordering.lost_alone


def without_a_voice(simulation: Simulation) -> list[str]:
    if simulation.ordering is None:
        return []
    servers = simulation.ordering.summary()["servers"]
    return [name for name, server in servers.items() if server["status"] != "active"]


def out_of_step(simulation: Simulation) -> list[str]:
    """Return the servers whose standby is not in step, except those whose witness lost its disk: it grants nothing."""
    planned, lost = simulation.plan.ordering, forgetful_nodes(simulation.plan.faults)
    if planned is None or simulation.ordering is None:
        return []
    without = {server.broker for server in planned.servers if server.witness in lost}
    return [name for name in simulation.ordering.alone if name not in without]


def unfinished(simulation: Simulation, writer: MemoryWriter) -> Iterator[str]:
    """Yield what a healed network should have finished."""
    excused = may_be_lost(simulation) | may_count_anew(simulation)
    silent = [name for name in without_a_voice(simulation) if name not in excused]
    if silent:
        yield f"no active replica: {', '.join(silent)}"
    alone = out_of_step(simulation)
    if alone:
        yield f"no standby is in step with {', '.join(alone)}"
    if not loses_nothing(simulation):
        return
    unanswered = writer.unanswered()
    if unanswered is not None and "was never accepted" in unanswered:
        yield unanswered
    if simulation.ordering is not None:
        yield from simulation.ordering.broken
        yield from () if forgetful_nodes(simulation.plan.faults) else simulation.ordering.not_resumed
        for subscriber in ordered_subscribers(simulation):
            yield from simulation.ordering.mistaken(subscriber)
    waiting = [publisher.waiting for publisher in simulation.publishers]
    waiting += [subscriber.waiting for subscriber in simulation.subscribers]
    yield from filter(None, waiting)


def ordered_subscribers(simulation: Simulation) -> Iterator[OrderedSubscriber]:
    """Yield the ordered subscribers as the servers know them."""
    for subscriber in simulation.subscribers:
        module = subscriber.client.module
        yield from () if module is None else module.subscribers


def main(arguments: Sequence[str] | None = None) -> int:
    options = seeds_parser(MODULE, __doc__).parse_args(arguments)
    return run_command(options, run_seed, order_scenario)


if __name__ == "__main__":
    raise SystemExit(main())
