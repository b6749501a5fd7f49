"""Makes the brokers of a simulated network, anew after every crash."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from tidings.core.ordering.layout import Layout
from tidings.core.overlay.brokers import AnyBroker, BrokerSpec, make_broker
from tidings.core.overlay.guaranteed.broker import GuaranteedBroker
from tidings.core.overlay.matching import Matcher
from tidings.drivers.virtual.node import SimulatedNode


class BrokerMaker:
    """Makes brokers from their specs, for `SimulatedNetwork.add`. All of them share one matcher."""

    def __init__(self, specs: Mapping[str, BrokerSpec]) -> None:
        self.specs = specs
        self.matcher = Matcher()
        self.layout: Layout | None = None
        """That of the network's sequencers; None: there are none."""
        self.want_order: Callable[[], None] = lambda: None
        """Called when a broker wants an order."""
        self.on_made: Callable[[AnyBroker], None] = lambda broker: None
        """Called with each broker before it starts."""
        self._started_once: set[str] = set()

    def __call__(self, node: SimulatedNode) -> AnyBroker:
        first = node.node not in self._started_once
        self._started_once.add(node.node)
        broker = make_broker(
            self.specs[node.node],
            node,
            incarnation=node.now + 1,  # differs after every restart; 0 means 'never heard of'
            open_store=node.open_store,
            new=first,
            matcher=self.matcher,
        )
        if isinstance(broker, GuaranteedBroker) and self.layout is not None:
            broker.ordered_shares.find = partial(self._find_order, broker, self.layout)
        self.on_made(broker)
        return broker

    def _find_order(self, broker: GuaranteedBroker, layout: Layout) -> None:
        self.want_order()
        broker.ordered_shares.order_here(layout)
