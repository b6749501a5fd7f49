"""Processes without brokers in virtual time: what the campaign and tests of topic membership and broadcast share.

network = PeersNetwork(["a", "b", "c"], {"/t": ["a", "b", "c"]})
network.run(1.0)
network.publish("a", "/t")
network.run(2.0)
assert network.shown["b"] == ["a:1"]
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from tidings.core.events.event import make_publication
from tidings.core.events.run import singles
from tidings.core.facts import Misbehaviour, ViewChanged
from tidings.core.kernel import Node
from tidings.core.overlay.peers.channels import BodyCodec
from tidings.core.overlay.peers.messages import Cast
from tidings.core.overlay.peers.participant import Participant
from tidings.core.wire import codec
from tidings.drivers.virtual.network import SimulatedNetwork
from tidings.drivers.virtual.node import Emit, SimulatedNode
from tidings.scenarios.file.links import LinkSpec
from tidings.scenarios.file.schema import BernoulliLoss, ConstantDelay, NoLoss
from tidings.scenarios.file.times import NS_PER_S

Heal = Callable[[], None]


class WireCodec(BodyCodec):
    size_of = staticmethod(codec.encoded_size)
    encode = staticmethod(codec.encode)
    decode = staticmethod(codec.decode)


class PeersNetwork:
    """`topics` has the members of each topic, among `names`. Anybody may publish. `cut` names who never hears whom."""

    def __init__(
        self,
        names: Sequence[str],
        topics: Mapping[str, Sequence[str]],
        *,
        delay_ms: float = 5.0,
        loss: float = 0.0,
        duplicate: float = 0.0,
        reorder: float = 0.0,
        cut: Sequence[tuple[str, str]] = (),
        seed: int = 1,
    ) -> None:
        self.names = list(names)
        self.topics = topics
        self.shown: dict[str, list[str]] = {name: [] for name in names}
        """What each process was shown, in that order, in all its lives."""
        self.views: dict[str, list[ViewChanged]] = {name: [] for name in names}
        self.complaints: list[str] = []
        self._published: dict[tuple[str, int], int] = {}
        lossy = BernoulliLoss(rate=loss) if loss else NoLoss()
        spec = LinkSpec(ConstantDelay(value=delay_ms), lossy, duplicate, reorder, 0.0)
        self.network = SimulatedNetwork(seed, lambda left, right: spec)
        never = {frozenset(pair) for pair in cut}
        self.network.sever(lambda left, right: frozenset((left, right)) in never)
        for name in names:
            self.network.add(name, self._make, self._on_fact(name))
        self.network.start()

    def _make(self, node: SimulatedNode) -> Node:
        name = node.node

        def deliver(message: Cast) -> None:
            self.shown[name] += [f"{each.source}:{each.sequence}" for each in singles(message.stretch)]

        participant = Participant(node, WireCodec(), deliver, incarnation=node.now + 1)
        for topic, members in self.topics.items():
            if name in members:
                participant.membership.take_part(topic, ((topic,), None))
                participant.membership.watch_view(topic)
        for other in self.names:
            participant.membership.meet(other)
        return participant

    def _on_fact(self, name: str) -> Emit:
        def on_fact(fact: object) -> None:
            if isinstance(fact, ViewChanged):
                self.views[name].append(fact)
            elif isinstance(fact, Misbehaviour):
                self.complaints.append(f"{name}: {fact.peer}: {fact.what}")

        return on_fact

    # --- The script

    @property
    def now_s(self) -> float:
        return self.network.schedule.now / NS_PER_S

    def run(self, until_s: float) -> None:
        self.network.run(int(until_s * NS_PER_S))

    def participant(self, name: str) -> Participant:
        protocol = self.network.nodes[name].protocol
        assert isinstance(protocol, Participant)
        return protocol

    def publish(self, name: str, topic: str, payload: bytes = b"") -> str:
        """Broadcast an event; return its id."""
        participant = self.participant(name)
        life = participant.membership.own.incarnation
        sequence = self._published[name, life] = self._published.get((name, life), 0) + 1
        now = self.network.schedule.now
        participant.broadcast.broadcast(
            topic, make_publication(name, life, sequence, topic, {}, payload, now)
        )
        return f"{name}:{sequence}"

    def split(self, *groups: Sequence[str]) -> Heal:
        """Let no message pass between groups; return what heals that."""
        group_of = {name: number for number, group in enumerate(groups) for name in group}

        def severed(left: str, right: str) -> bool:
            return group_of.get(left) != group_of.get(right)

        self.network.sever(severed)
        return lambda: self.network.mend(severed)

    # --- How it is

    def is_up(self, name: str) -> bool:
        return self.network.nodes[name].up

    def view(self, name: str, topic: str) -> tuple[tuple[str, ...], bool]:
        """Return the members that a process last reported, and whether its view is stable."""
        fact = next(fact for fact in reversed(self.views[name]) if fact.topic == topic)
        return fact.members, fact.stable

    def kept_bytes(self, name: str) -> int:
        """Return what a process keeps because somebody may lack it."""
        return self.participant(name).broadcast.kept_bytes

    def traffic(self) -> dict[str, tuple[int, int]]:
        """Return how many messages of each class were sent, and their bytes."""
        total: dict[str, tuple[int, int]] = {}
        for link in self.network.links.values():
            for kind, traffic in link.traffic().items():
                messages, size_bytes = total.get(kind.__name__, (0, 0))
                total[kind.__name__] = (messages + traffic.messages, size_bytes + traffic.size_bytes)
        return total
