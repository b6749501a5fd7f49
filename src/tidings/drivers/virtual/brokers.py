"""The brokers of a simulated network, made anew in each of their lives."""

from __future__ import annotations

from collections.abc import Mapping

from tidings.core.overlay.brokers import AnyBroker, BrokerSpec, make_broker
from tidings.core.overlay.matching import Matcher
from tidings.drivers.virtual.node import SimulatedNode


class BrokerMaker:
    """Given to the network as what makes its nodes. All that it makes share one matcher."""

    def __init__(self, specs: Mapping[str, BrokerSpec]) -> None:
        self.specs = specs
        self.matcher = Matcher()
        self._lived: set[str] = set()

    def __call__(self, node: SimulatedNode) -> AnyBroker:
        first = node.node not in self._lived
        self._lived.add(node.node)
        return make_broker(
            self.specs[node.node],
            node,
            incarnation=node.now + 1,  # it tells its lives apart; 0 means 'never heard of'
            open_store=node.open_store,
            new=first,
            matcher=self.matcher,
        )
