"""Makes the clients of a run: plain or with an order, and one node for a publisher and a subscriber of one name."""

from __future__ import annotations

from collections.abc import Iterable

from tidings.scenario.expand import PlannedSubscriber
from tidings.scenario.ordering import ORDERS
from tidings.scenario.schema import Publisher
from tidings.simulator.client_node import SharedFacts, SimulatedClient
from tidings.simulator.clients import SimulatedPublisher, SimulatedSubscriber
from tidings.simulator.network import SimulatedNetwork
from tidings.simulator.ordered_clients import OrderedPublisher, OrderedSubscriber
from tidings.simulator.sequencers import RunOrdering
from tidings.simulator.tally import Tally
from tidings.trace.writer import TraceWriter


class ClientMaker:
    def __init__(
        self,
        network: SimulatedNetwork,
        writer: TraceWriter,
        tally: Tally,
        end_ns: int,
        ordering: RunOrdering | None,
        *,
        reliable: bool,
    ) -> None:
        self._network = network
        self._writer = writer
        self._tally = tally
        self._end_ns = end_ns
        self._ordering = ordering
        self._reliable = reliable
        self._shared: dict[str, tuple[SimulatedClient, SharedFacts]] = {}

    def share(self, publishers: Iterable[Publisher], subscribers: Iterable[PlannedSubscriber]) -> None:
        """Those of one name get one node."""
        names = {subscriber.name for subscriber in subscribers}
        for publisher in publishers:
            if publisher.name in names:
                facts = SharedFacts()
                client = SimulatedClient(
                    self._network,
                    publisher.name,
                    publisher.at,
                    facts,
                    reliable=self._reliable,
                    publishes=True,
                    layout=None if self._ordering is None else self._ordering.layout,
                    patience=None if self._ordering is None else self._ordering.patience,
                )
                self._shared[publisher.name] = client, facts

    def subscriber(self, plan: PlannedSubscriber) -> SimulatedSubscriber:
        client, facts = self._shared.get(plan.name, (None, None))
        made: SimulatedSubscriber
        if self._ordering is None or plan.order not in ORDERS:
            made = SimulatedSubscriber(
                self._network, plan, self._writer, self._tally, reliable=self._reliable, client=client
            )
        else:
            made = OrderedSubscriber(
                self._network,
                plan,
                self._writer,
                self._tally,
                self._ordering,
                reliable=self._reliable,
                client=client,
            )
        if facts is not None:
            facts.subscriber = made.on_fact
        return made

    def publisher(self, plan: Publisher, blocks: int) -> SimulatedPublisher:
        client, facts = self._shared.get(plan.name, (None, None))
        made: SimulatedPublisher
        if self._ordering is None:
            made = SimulatedPublisher(
                self._network,
                plan,
                self._end_ns,
                self._writer,
                self._tally,
                reliable=self._reliable,
                blocks=blocks,
                client=client,
            )
        else:
            made = OrderedPublisher(
                self._network,
                plan,
                self._end_ns,
                self._writer,
                self._tally,
                self._ordering,
                reliable=self._reliable,
                blocks=blocks,
                client=client,
            )
        if facts is not None:
            facts.publisher = made.on_fact
        return made
