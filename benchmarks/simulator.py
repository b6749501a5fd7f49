"""Measures simulated message deliveries per second and core, against the same scenario on SimPy.

    python benchmarks/simulator.py [--quick] [--json]

First a chain, where nearly every message is a publication between brokers; then trees with publishers and
subscribers on topics, where one message in three is a publish, a confirmation or a notification. Tracing is on.
SimPy gets the easier task: routes are computed beforehand, and there is no trace, no duplicate detection and no
subscription protocol. The cost is also measured for growing numbers of messages and brokers, to show that it is linear.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

from compared import compared
from rich.console import Console
from rich.table import Table

from tidings.scenarios.file.expand import RunPlan, expand
from tidings.scenarios.file.load import parse_scenario
from tidings.scenarios.file.topology import neighbours
from tidings.scenarios.simulate import PROGRESS_STEPS, Simulation
from tidings.scenarios.trace.writer import TraceWriter

simpy = compared("simpy")

SCENARIO = """
seed = 1
duration_s = {duration_s}
settle_s = 2.0
[network]
delay_ms = {delay}
[overlay]
mode = "best-effort"
shape = {{ kind = "tree", brokers = {brokers}, degree = 4 }}
[workload]
publishers = 10
subscribers = {subscribers}
topics = 10
topics_per_subscriber = 1
rate_hz = {rate_hz}
"""
CONSTANT = '{ kind = "constant", value = 10 }'
NORMAL = '{ kind = "normal", mean = 10, std = 2 }'


CHAIN = """
seed = 1
duration_s = {duration_s}
settle_s = 2.0
[overlay]
mode = "best-effort"
shape = {{ kind = "chain", brokers = 100 }}
[[publisher]]
name = "p0"
at = "b0"
rate_hz = 2000
[[subscriber]]
name = "s0"
at = "b99"
"""


def plan_of(brokers: int, rate_hz: float, duration_s: float, delay: str = CONSTANT) -> RunPlan:
    text = SCENARIO.format(
        brokers=brokers, subscribers=brokers // 2, rate_hz=rate_hz, duration_s=duration_s, delay=delay
    )
    return expand(parse_scenario(text))


def messages_of(simulation: Simulation) -> int:
    return sum(
        traffic.messages for link in simulation.network.links.values() for traffic in link.traffic().values()
    )


def run_tidings(plan: RunPlan) -> dict[str, float]:
    """Measure the whole run and its best slice: other load on the machine disturbs a long run more than a slice."""
    slices: list[tuple[int, float]] = []
    with tempfile.TemporaryDirectory() as directory, TraceWriter(Path(directory)) as writer:
        simulation = Simulation(plan, writer)
        began_cpu, began = process_time(), perf_counter()
        schedule = simulation.network.schedule
        simulation.run(lambda share: slices.append((schedule.steps, process_time())))
        cpu_s, wall_s = process_time() - began_cpu, perf_counter() - began
        messages = messages_of(simulation)
        simulation.close()
    scenario = plan.scenario
    publishing = int(PROGRESS_STEPS * scenario.duration_s / (scenario.duration_s + scenario.settle_s))
    width = PROGRESS_STEPS // 20
    messages_per_step = messages / slices[-1][0]
    rates = [
        messages_per_step
        * (slices[end][0] - slices[end - width][0])
        / (slices[end][1] - slices[end - width][1])
        for end in range(2 * width, publishing, width)
    ]
    return {
        "messages": messages,
        "cpu_s": cpu_s,
        "wall_s": wall_s,
        "per_s": messages / cpu_s,
        "best_slice": max(rates),
    }


def run_simpy(plan: RunPlan) -> dict[str, float]:
    """Run the scenario on SimPy: every broker and client is a process with a store, every message a put after a
    timeout."""
    environment = simpy.Environment()
    network = SimpyNetwork(environment, plan)
    began = process_time()
    environment.run(until=plan.scenario.duration_s + 2.0)
    cpu_s = process_time() - began
    return {"messages": network.messages, "cpu_s": cpu_s, "per_s": network.messages / cpu_s}


class SimpyNetwork:
    def __init__(self, environment: simpy.Environment, plan: RunPlan) -> None:
        self.environment = environment
        self.messages = 0
        self.delay_s = 0.01
        self.around = neighbours(plan.topology)
        self.stores = {name: simpy.Store(environment) for name in plan.topology.brokers}
        self.clients = {subscriber.name: simpy.Store(environment) for subscriber in plan.subscribers}
        self.local: dict[str, dict[str, list[str]]] = {name: {} for name in plan.topology.brokers}
        for subscriber in plan.subscribers:
            for topic in subscriber.timeline[0].topics or ():
                self.local[subscriber.at].setdefault(topic, []).append(subscriber.name)
        self.wanted = self.interest_by_direction(plan)
        for name in plan.topology.brokers:
            environment.process(self.broker(name))
        for name in self.clients:
            environment.process(self.client(name))
        for publisher in plan.publishers:
            environment.process(self.publisher(publisher, plan))

    def interest_by_direction(self, plan: RunPlan) -> dict[tuple[str, str], frozenset[str]]:
        """Return (from, to) -> topics wanted on the side of `to`: leaves first, then the root's view."""
        from tidings.scenarios.file.topology import parents

        parent_of = parents(plan.topology)
        order = list(parent_of)
        own = {name: frozenset(self.local[name]) for name in order}
        below: dict[str, frozenset[str]] = {}
        for name in reversed(order):
            children = [peer for peer in self.around[name] if peer != parent_of[name]]
            below[name] = own[name].union(*(below[child] for child in children))
        wanted: dict[tuple[str, str], frozenset[str]] = {}
        above: dict[str, frozenset[str]] = {order[0]: frozenset()}
        for name in order:
            children = [peer for peer in self.around[name] if peer != parent_of[name]]
            for child in children:
                wanted[name, child] = below[child]
                others = (below[other] for other in children if other != child)
                above[child] = own[name].union(above[name], *others)
                wanted[child, name] = above[child]
        return wanted

    def publisher(self, publisher: Any, plan: RunPlan) -> Any:
        from random import Random

        random = Random(publisher.name)
        for _ in range(int(publisher.rate_hz * plan.scenario.duration_s)):
            yield self.environment.timeout(random.expovariate(publisher.rate_hz))
            self.messages += 1
            self.stores[publisher.at].put((publisher.name, random.choice(publisher.topics)))

    def carry(self, store: simpy.Store, item: tuple[str, str]) -> Any:
        yield self.environment.timeout(self.delay_s)
        store.put(item)

    def broker(self, name: str) -> Any:
        store, around, local = self.stores[name], self.around[name], self.local[name]
        while True:
            sender, topic = yield store.get()
            for peer in around:
                if peer != sender and topic in self.wanted[name, peer]:
                    self.messages += 1
                    self.environment.process(self.carry(self.stores[peer], (name, topic)))
            for client in local.get(topic, ()):
                self.messages += 1
                self.clients[client].put((name, topic))

    def client(self, name: str) -> Any:
        store = self.clients[name]
        while True:
            yield store.get()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="a tenth of the messages")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    scale = 0.1 if arguments.quick else 1.0
    duration_s = 20.0 * scale
    results: list[dict[str, Any]] = []

    def add(name: str, brokers: int, rate_hz: float, delay: str = CONSTANT) -> None:
        results.append(
            {"run": name, "brokers": brokers, **run_tidings(plan_of(brokers, rate_hz, duration_s, delay))}
        )

    chain = expand(parse_scenario(CHAIN.format(duration_s=duration_s / 4)))
    results.append({"run": "tidings, a chain: routing alone", "brokers": 100, **run_tidings(chain)})
    add("tidings, 100 brokers", 100, 200)
    plan = plan_of(100, 200, duration_s)
    results.append({"run": "SimPy, 100 brokers", "brokers": 100, **run_simpy(plan)})
    add("tidings, twice the messages", 100, 400)
    add("tidings, normal delays", 100, 200, NORMAL)
    add("tidings, 1,000 brokers", 1000, 50)
    ratio = results[1]["per_s"] / results[2]["per_s"]
    if arguments.json:
        print(json.dumps({"results": results, "ratio_to_simpy": ratio}, indent=2))
        return
    table = Table(title="simulated message deliveries per second of one core")
    for column in ("run", "messages", "CPU s", "per CPU s", "best twentieth"):
        table.add_column(column, justify="left" if column == "run" else "right")
    for result in results:
        best = f"{result['best_slice']:,.0f}" if "best_slice" in result else ""
        table.add_row(
            result["run"],
            f"{result['messages']:,.0f}",
            f"{result['cpu_s']:.1f}",
            f"{result['per_s']:,.0f}",
            best,
        )
    console = Console()
    console.print(table)
    console.print(f"tidings / SimPy: {ratio:.1f}x")


if __name__ == "__main__":
    main()
