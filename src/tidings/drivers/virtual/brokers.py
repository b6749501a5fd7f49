"""Makes the brokers of a simulated network, anew after every crash."""

from __future__ import annotations

from collections.abc import Mapping

from tidings.core.overlay.brokers import AnyBroker, BrokerSpec, make_broker
from tidings.core.overlay.matching import Matcher
from tidings.drivers.virtual.node import SimulatedNode


class BrokerMaker:
    """Makes brokers from their specs, for `SimulatedNetwork.add`. All of them share one matcher."""

    def __init__(self, specs: Mapping[str, BrokerSpec]) -> None:
        self.specs = specs
        self.matcher = Matcher()
        self._started_once: set[str] = set()

    def __call__(self, node: SimulatedNode) -> AnyBroker:
        first = node.node not in self._started_once
        self._started_once.add(node.node)
        return make_broker(
            self.specs[node.node],
            node,
            incarnation=node.now + 1,  # differs after every restart; 0 means 'never heard of'
            open_store=node.open_store,
            new=first,
            matcher=self.matcher,
        )
