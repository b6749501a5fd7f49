"""Makes the clients of a simulated run; a publisher and a subscriber of one name share a node."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tidings.core.events.subscription import make_interest
from tidings.core.events.topics import EVERYTHING
from tidings.drivers.virtual.network import SimulatedNetwork
from tidings.scenarios.file.arrivals import arrivals
from tidings.scenarios.file.expand import PlannedSubscriber
from tidings.scenarios.file.schema import Publisher
from tidings.scenarios.trace.writer import TraceWriter
from tidings.scenarios.virtual.archive import SimulatedArchive
from tidings.scenarios.virtual.client_node import SimulatedClient
from tidings.scenarios.virtual.clients import SimulatedPublisher, SimulatedSubscriber
from tidings.scenarios.virtual.sequencers import RunOrdering
from tidings.scenarios.virtual.share_subscriber import SimulatedShareSubscriber
from tidings.scenarios.virtual.share_tally import ShareTally
from tidings.scenarios.virtual.tally import Tally


class ClientMaker:
    def __init__(
        self,
        network: SimulatedNetwork,
        writer: TraceWriter,
        tally: Tally,
        end_ns: int,
        ordering: RunOrdering | None = None,
        archives: Mapping[str, SimulatedArchive] = {},
        *,
        reliable: bool,
    ) -> None:
        """`archives`: by broker."""
        self._archives = archives
        self._network = network
        self._writer = writer
        self._tally = tally
        self._end_ns = end_ns
        self._ordering = ordering
        self._reliable = reliable
        self._shared: dict[str, SimulatedClient] = {}
        self._share_tallies: dict[str, ShareTally] = {}
        """By the names of durable subscriptions and groups."""

    def share(self, publishers: Iterable[Publisher], subscribers: Iterable[PlannedSubscriber]) -> None:
        """Make the nodes that a publisher and a subscriber of one name share."""
        plans = {subscriber.name: subscriber for subscriber in subscribers}
        for publisher in publishers:
            if publisher.name in plans:
                holds_shares = plans[publisher.name].share is not None
                client = self._make(publisher, publishes=True, holds_shares=holds_shares)
                self._shared[publisher.name] = client

    def subscriber(self, plan: PlannedSubscriber) -> SimulatedSubscriber | SimulatedShareSubscriber:
        share = plan.share
        if share is not None:
            publishes = share.dead_letter is not None
            client = self._shared.get(plan.name) or self._make(plan, publishes=publishes, holds_shares=True)
            counts = self._share_tallies.get(share.name)
            if counts is None:
                interest = make_interest(plan.timeline[0].topics or (EVERYTHING.text,), plan.filter)
                counts = ShareTally(self._tally, self._writer, interest, share.keep_for_ns)
                self._share_tallies[share.name] = counts
            return SimulatedShareSubscriber(
                client, plan, self._writer, self._tally, counts, self._ordering, self._network.seed
            )
        client = self._shared.get(plan.name) or self._make(plan, publishes=False)
        archive = None if plan.start == "new" else self._archives[plan.at]
        return SimulatedSubscriber(client, plan, self._writer, self._tally, self._ordering, archive)

    def publisher(self, plan: Publisher, blocks: int = 1) -> SimulatedPublisher:
        client = self._shared.get(plan.name) or self._make(plan, publishes=True)
        due = arrivals(plan, self._network.seed, self._end_ns)
        return SimulatedPublisher(client, plan, due, self._writer, self._tally, self._ordering, blocks)

    def _make(
        self, plan: Publisher | PlannedSubscriber, *, publishes: bool, holds_shares: bool = False
    ) -> SimulatedClient:
        return SimulatedClient(
            self._network,
            plan.name,
            plan.at,
            reliable=self._reliable,
            publishes=publishes,
            holds_shares=holds_shares,
            layout=None if self._ordering is None else self._ordering.layout,
            patience=None if self._ordering is None else self._ordering.patience,
        )
