"""Simulates five sites of sequencers in virtual time (paper ordering, sections 5.1 and 5.4).

The servers and publishers are the product's own. A link within a site takes 10 ± 2 ms, one between sites 100 ± 10 ms;
links of the chain, and from a publisher to a server, keep their order. A server handles one message at a time, for as
long as `Speed` says, because virtual time has no processors.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

import msgspec

from tidings.core.errors import PipelineError
from tidings.core.events.timestamp import Timestamp
from tidings.core.kernel import Node, RandomSource, Send, TimerName
from tidings.core.messages import Message
from tidings.core.ordering.messages import ChangeSubscription, Create, CreateRelay, EventStamps, WalkDone
from tidings.core.ordering.publisher import EventStamped, OrderedPublisher
from tidings.core.ordering.server.server import SequencerServer
from tidings.core.ordering.stamps import Chain
from tidings.drivers.virtual.schedule import Schedule

NS_PER_MS = 1_000_000
NS_PER_S = 1_000_000_000
SHORT_MS = (10.0, 2.0)
LONG_MS = (100.0, 10.0)
NEVER_NS = 10**6 * NS_PER_S
"""Nothing is lost here, so nothing is resent."""


@dataclass(frozen=True, slots=True)
class Speed:
    """How long a server takes in virtual time, and how its publishers ask."""

    message_ns: int
    entry_ns: int
    one_by_one: bool
    """A publisher waits for each answer before it asks again."""

    def of(self, message: Message, server: SequencerServer) -> int:
        match message:
            case Create():
                return self.message_ns + self.entry_ns * (1 + len(server.groups.members(message.topic)))
            case CreateRelay():
                return self.message_ns + self.entry_ns * (1 + len(message.index))
            case _:  # acknowledgements, which the paper's prototype lacks
                return 0 if self.one_by_one else self.message_ns


SPEEDS = {
    # Live: 85 us of the busiest of five servers in a chain for a request of 40 entries (benchmarks/README.md, 11,800
    # per CPU second), including disk and wire. An entry: 0.06 us to encode and decode and 0.03 us to fill in, measured
    # without sockets; 0.12 allows for what is encoded twice.
    "tidings": Speed(80_000, 120, one_by_one=False),
    # Fitted to the paper, not measured: of 0.9, 0.95, 1 and 1.15 ms, 1 ms gives 'more than 4,000' stamps per second
    # with the peak at 5,000 requests. That its 1,000 clients wait for each answer is a guess that fits 'less than 300
    # ms'.
    "prototype": Speed(1_000_000, 0, one_by_one=True),
}


@dataclass(slots=True)
class StampRequest:
    rank: int
    server: str
    near: bool
    """The server is at the publisher's site."""
    asked_at: int = 0
    answered_at: int = 0
    stamp: Timestamp | None = None

    @property
    def entries(self) -> int:
        return 0 if self.stamp is None else 1 + len(self.stamp.index)


class SimulatedSites:
    """A server at each site, the publishers, and the network between them."""

    def __init__(self, chain: Chain, site_of_client: Sequence[int], speed: Speed, seed: int) -> None:
        self.chain = chain
        self.schedule = Schedule()
        self.requests: list[StampRequest] = []
        self.relays = 0
        self.sent_on_bytes = dict.fromkeys(chain.servers, 0)
        self.answered_bytes = dict.fromkeys(chain.servers, 0)
        self.busy_ns = dict.fromkeys(chain.servers, 0)
        self.speed = speed
        self._random = Random(f"{seed}:delays")
        self._site_of = {f"client {n}": f"site {site}" for n, site in enumerate(site_of_client)}
        self._site_of.update({server: server for server in chain.servers})
        self._free_at = dict.fromkeys(chain.servers, 0)
        self._last_at: dict[tuple[str, str], int] = {}
        self.servers = {
            name: SequencerServer(SitePort(name, self), chain, threshold=2) for name in chain.servers
        }
        self._nodes = {name: Node([server]) for name, server in self.servers.items()}
        self.clients = [
            StudyPublisher(f"client {number}", f"site {site}", self)
            for number, site in enumerate(site_of_client)
        ]
        self._by_name = {client.port.node: client for client in self.clients}
        self._walks: deque[tuple[str, str, Message]] | None = deque()
        """Messages to handle at once while clients subscribe; None afterwards."""

    # --- Before it begins

    def subscribe(self, client: int, ranks: list[int]) -> None:
        """Subscribe at once and at no cost: these figures are not about the cost of subscribing."""
        assert self._walks is not None
        name = f"client {client}"
        change = ChangeSubscription((name, 0), 1, tuple(ranks), ())
        self._walks.append((self.chain.server_of(ranks[-1]), name, change))
        while self._walks:
            to, sender, message = self._walks.popleft()
            if to in self._nodes:
                self._nodes[to].receive(sender, message)

    # --- In virtual time

    def run(self, requests: Sequence[tuple[int, int, int]]) -> None:
        """Run requests (time, client, topic's rank), sorted by time, until all have their stamps."""
        self._walks = None
        due = deque(requests)
        while due:
            at, client, rank = due.popleft()
            self.schedule.run(at)
            self.clients[client].want(rank)
        while self.schedule.next_at is not None:
            self.schedule.run(self.schedule.next_at)
        missing = sum(request.stamp is None for request in self.requests)
        if missing or len(self.requests) != len(requests):
            raise PipelineError(f"{missing} of {len(self.requests)} requests got no stamp")

    def send(self, sender: str, to: str, message: Message) -> None:
        if self._walks is not None:
            self._walks.append((to, sender, message))
            return
        self._count(sender, message)
        near = self._site_of[sender] == self._site_of[to]
        mean_ms, deviation_ms = SHORT_MS if near else LONG_MS
        delay_ms = max(0.0, self._random.gauss(mean_ms, deviation_ms))
        at = self.schedule.now + round(delay_ms * NS_PER_MS)
        if to in self._nodes:
            at = max(at, self._last_at.get((sender, to), 0))
            self._last_at[sender, to] = at
            self.schedule.at(at, self._arrive, (to, sender), message)
        else:
            self.schedule.at(at, self._by_name[to].receive, sender, message)

    def _count(self, sender: str, message: Message) -> None:
        match message:
            case CreateRelay():
                self.relays += 1
                self.sent_on_bytes[sender] += stamp_bytes(message)
            case EventStamps():
                self.answered_bytes[sender] += stamp_bytes(message)
            case WalkDone():
                raise PipelineError("a client subscribed after the start")

    def outgoing_share(self, server: str) -> float:
        sent_on = self.sent_on_bytes[server]
        return sent_on / max(sent_on + self.answered_bytes[server], 1)

    def _arrive(self, way: tuple[str, str], message: Message) -> None:
        server = way[0]
        cost_ns = self.speed.of(message, self.servers[server])
        self.busy_ns[server] += cost_ns
        self._free_at[server] = max(self._free_at[server], self.schedule.now) + cost_ns
        self.schedule.at(self._free_at[server], self._handle, way, message)

    def _handle(self, way: tuple[str, str], message: Message) -> None:
        to, sender = way
        self._nodes[to].receive(sender, message)


def stamp_bytes(message: CreateRelay | EventStamps) -> int:
    """Return the size of a stamp, which is that of a run's header."""
    return len(
        msgspec.msgpack.encode((0, Timestamp(message.topic, message.base, message.index, message.values), 0))
    )


class StudyPublisher:
    """A publisher; `SimulatedSites.requests` has its requests in the order in which they were made."""

    def __init__(self, name: str, site: str, sites: SimulatedSites) -> None:
        self.port = SitePort(name, sites, self._on_fact)
        self._publisher = OrderedPublisher(self.port, sites.chain, repeat_ns=NEVER_NS)
        self._sites = sites
        self._waiting: deque[StampRequest] = deque()
        self._asked = 0
        self._site = site

    def want(self, rank: int) -> None:
        server = self._sites.chain.server_of(rank)
        self._waiting.append(StampRequest(rank, server, near=server == self._site))
        self._ask()

    def receive(self, sender: str, message: Message) -> None:
        assert isinstance(message, EventStamps)
        self._publisher.on_event_stamps(sender, message)

    def _ask(self) -> None:
        while self._waiting and not (self._sites.speed.one_by_one and self._asked):
            request = self._waiting.popleft()
            request.asked_at = self._sites.schedule.now
            self._asked += 1
            self._sites.requests.append(request)
            if not self._publisher.publish(request.rank, request):
                raise PipelineError(
                    "a publisher's queue is full: the load is far above what the servers can handle"
                )

    def _on_fact(self, fact: object) -> None:
        assert isinstance(fact, EventStamped) and isinstance(fact.event, StampRequest)
        request = fact.event
        request.answered_at, request.stamp = self._sites.schedule.now, fact.stamp
        self._asked -= 1
        self._publisher.published(fact.receipt)
        self._ask()


class SitePort:
    """The port of a server or a client; no timer ever fires."""

    def __init__(self, node: str, sites: SimulatedSites, on_fact: Any = None) -> None:
        self.node = node
        self.random: RandomSource = Random(0)
        self._sites = sites
        self._on_fact = on_fact

    @property
    def now(self) -> int:
        return self._sites.schedule.now

    def send(self, to: str, message: Message) -> None:
        self._sites.send(self.node, to, message)

    def sender(self, to: str) -> Send:
        return lambda message: self.send(to, message)

    def set_timer(self, name: TimerName, at: int) -> None:
        pass

    def cancel_timer(self, name: TimerName) -> None:
        pass

    def emit(self, fact: object) -> None:
        if self._on_fact is None:
            raise PipelineError(f"{self.node}: {fact}")
        self._on_fact(fact)
