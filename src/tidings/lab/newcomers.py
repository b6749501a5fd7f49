"""Lets brokers join a simulated network while it runs, each with a publisher and a subscriber of its own."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from tidings.core.facts import JoinAnswered
from tidings.core.kernel import Node
from tidings.core.overlay.brokers import BrokerSpec, make_broker
from tidings.core.overlay.guaranteed.membership import JoiningBroker
from tidings.core.overlay.matching import Matcher
from tidings.core.overlay.modes import GUARANTEED
from tidings.drivers.virtual.node import SimulatedNode
from tidings.scenarios.file.expand import PlannedSubscriber
from tidings.scenarios.file.faults import forgetful_nodes
from tidings.scenarios.file.schema import Publisher
from tidings.scenarios.file.timeline import Step
from tidings.scenarios.file.times import NS_PER_S, nanoseconds
from tidings.scenarios.simulate import Simulation
from tidings.scenarios.virtual.make_clients import ClientMaker

Watch = Callable[[SimulatedNode], None]


def schedule_newcomers(simulation: Simulation, random: Random, watch: Watch) -> None:
    """Schedule one to three newcomers at random times. `watch` is called with each node before it starts.

    None joins below a broker that loses its disk in this run. Such a broker could forget the newcomer before anybody
    else has heard of it, and give its label away again.
    """
    forgetful = forgetful_nodes(simulation.plan.faults)
    parents = [name for name in simulation.plan.topology.brokers if name not in forgetful]
    for number in range(random.randint(1, 3)):
        if parents:
            at_s = random.uniform(0.5, 0.7 * simulation.plan.scenario.duration_s)
            newcomer = Newcomer(simulation, f"new{number}", random.choice(parents), watch)
            simulation.network.schedule.at(nanoseconds(at_s), newcomer.arrive)
            if random.random() < 0.5:
                parents.append(newcomer.name)


class Newcomer:
    def __init__(self, simulation: Simulation, name: str, parent: str, watch: Watch) -> None:
        self.name = name
        self._simulation = simulation
        self._parent = parent
        self._watch = watch
        self._matcher = Matcher()
        self._answer: JoinAnswered | None = None

    def arrive(self, _first: object, _second: object) -> None:
        network = self._simulation.network
        if self._parent not in network.nodes:
            return  # the parent is itself a newcomer that has not joined yet
        node = network.add(self.name, self._make, self._on_fact)
        self._watch(node)
        node.start()
        now_s = network.schedule.now / NS_PER_S
        self._add_clients(now_s)

    def _make(self, node: SimulatedNode) -> Node:
        if self._answer is None:
            return JoiningBroker(node, self._parent)
        around = self._answer.neighbours
        spec = BrokerSpec(
            GUARANTEED,
            {peer: address for peer, (_, address) in around.items()},
            self._answer.label,
            {peer: label for peer, (label, _) in around.items()},
            delta=self._answer.delta,
            window=self._simulation.plan.scenario.overlay.window,
        )
        return make_broker(
            spec, node, incarnation=node.now + 1, open_store=node.open_store, matcher=self._matcher
        )

    def _on_fact(self, fact: object) -> None:
        if isinstance(fact, JoinAnswered) and self._answer is None:
            self._answer = fact
            schedule = self._simulation.network.schedule
            schedule.at(schedule.now, self._take_place)  # later: the protocol is in the middle of a handler

    def _take_place(self, _first: object, _second: object) -> None:
        network = self._simulation.network
        network.crash(self.name, keep_state=True)
        network.restart(self.name)

    def _add_clients(self, now_s: float) -> None:
        simulation = self._simulation
        network, writer, tally = simulation.network, simulation.writer, simulation.tally
        topics = ("/a", "/b")
        publisher = Publisher(name=f"{self.name}-p", at=self.name, topics=topics, rate_hz=5.0, start_s=now_s)
        timeline = (Step(now_s + 0.1, topics),)
        subscriber = PlannedSubscriber(f"{self.name}-s", self.name, None, "none", timeline)
        maker = ClientMaker(network, writer, tally, simulation.duration_ns, reliable=True)
        maker.publisher(publisher)
        maker.subscriber(subscriber)
        for client in (publisher.name, subscriber.name):
            node = network.nodes[client]
            self._watch(node)
            node.start()
