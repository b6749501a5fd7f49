"""Plans total and causal order: which servers number which topics, on which nodes, and for which subscribers.

A server is placed beside a broker, on a node of its own named `order:` plus the broker's name. Its standby and its
witness are placed beside other brokers. Without `ordering.servers`, one server beside the first broker numbers all
published topics, provided that a subscriber asks for an order.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from tidings.core.errors import ScenarioError, TopicError
from tidings.core.events.topics import EVERYTHING, TopicPattern
from tidings.core.ordering.layout import Layout, ServerPlacement
from tidings.core.ordering.messages import MAX_TOPICS
from tidings.core.ordering.subscriber import Patience
from tidings.scenarios.file.decode import shown
from tidings.scenarios.file.order_nodes import order_node
from tidings.scenarios.file.schema import Ordering, Scenario, Server, SubscriberTable
from tidings.scenarios.file.times import NS_PER_MS

ORDERS = ("causal", "total")
DEFAULT_TTL_MS = 1000.0
"""The longest that an event is held back over a service that may lose the event it waits for."""
MAX_SERVERS = 256


@dataclass(frozen=True, slots=True)
class PlannedServer:
    """Names the brokers beside a server, its standby and its witness; without a standby there is no witness."""

    broker: str
    topics: tuple[str, ...]
    standby: str | None
    witness: str | None


@dataclass(frozen=True, slots=True)
class PlannedOrdering:
    """Describes a run's ordering. `buffer_events` 0: the service is lossless. Above 0: events wait at most `ttl_ms`."""

    servers: tuple[PlannedServer, ...]
    causal: bool
    buffer_events: int
    ttl_ms: float

    @property
    def brokers(self) -> tuple[str, ...]:
        """All brokers with a sequencer's node beside them, in the order in which they first appear."""
        found: dict[str, None] = {}
        for server in self.servers:
            named = (server.broker, server.standby, server.witness)
            found.update(dict.fromkeys(broker for broker in named if broker is not None))
        return tuple(found)

    @property
    def patience(self) -> Patience | None:
        return Patience(self.buffer_events, round(self.ttl_ms * NS_PER_MS)) if self.buffer_events else None

    def layout(self) -> Layout:
        def node_beside(broker: str | None) -> str:
            return "" if broker is None else order_node(broker)

        return Layout(
            [
                ServerPlacement(
                    server.broker,
                    server.topics,
                    node=node_beside(server.broker),
                    standby=node_beside(server.standby),
                    witness=node_beside(server.witness),
                )
                for server in self.servers
            ],
            causal=self.causal,
        )


def plan_ordering(scenario: Scenario, brokers: Sequence[str]) -> PlannedOrdering | None:
    """Return the plan; None if nothing is ordered, or if there are no brokers to place servers beside."""
    table = scenario.ordering
    orders = _orders(scenario)
    if not brokers or not (table.servers or orders & {*ORDERS}):
        return None
    servers = table.servers or (Server(node=brokers[0], topics=_published_topics(scenario)),)
    places = {broker: place for place, broker in enumerate(brokers)}
    return PlannedOrdering(
        servers=tuple(_planned_server(server, brokers, places[server.node]) for server in servers),
        causal=table.causal or "causal" in orders or table.buffer_events > 0,
        buffer_events=table.buffer_events,
        ttl_ms=table.ttl_ms or DEFAULT_TTL_MS,
    )


def _orders(scenario: Scenario) -> set[str]:
    if scenario.workload is not None:
        return {scenario.workload.order} if scenario.workload.subscribers else set()
    return {subscriber.order for subscriber in scenario.subscribers}


def _planned_server(server: Server, brokers: Sequence[str], place: int) -> PlannedServer:
    standby, witness = server.standby, server.witness
    if standby is None and witness is None and len(brokers) > 2:
        standby, witness = (brokers[(place + step) % len(brokers)] for step in (1, 2))
    return PlannedServer(server.node, server.topics, standby, witness)


def _published_topics(scenario: Scenario) -> tuple[str, ...]:
    topics = {topic for _, topic in _publications(scenario)}
    return tuple(sorted(topics, key=natural)) or (EVERYTHING.text,)


def natural(topic: str) -> tuple[tuple[str | int, ...], str]:
    """Return a sort key that puts /t2 before /t10."""
    parts = re.split(r"([0-9]+)", topic)
    return tuple(int(part) if position % 2 else part for position, part in enumerate(parts)), topic


def _publications(scenario: Scenario) -> Iterator[tuple[str, str]]:
    """Yield every topic that is published, with the path to the key that says so."""
    if scenario.workload is not None:
        if scenario.workload.publishers:
            yield from (("workload.topics", f"/t{rank}") for rank in range(scenario.workload.topics))
        return
    for index, publisher in enumerate(scenario.publishers):
        for position, topic in enumerate(publisher.topics):
            yield f"publisher[{index}].topics[{position}]", topic
    for index, subscriber in enumerate(scenario.subscribers):
        if subscriber.dead_letter is not None:
            yield f"subscriber[{index}].dead_letter", subscriber.dead_letter


# --- Checks


def check_ordering(scenario: Scenario, brokers: Sequence[str]) -> None:
    """Raise ScenarioError for the first mistake in [ordering]; `check_servers` has checked that nodes are brokers."""
    for index, server in enumerate(scenario.ordering.servers):
        _check_topics(scenario.ordering, index)
        _check_replicas(server, f"ordering.servers[{index}]", brokers)
    planned = plan_ordering(scenario, brokers)
    if planned is None:
        return
    if len(planned.servers) > MAX_SERVERS:
        raise ScenarioError(f"ordering.servers: at most {MAX_SERVERS} servers, not {len(planned.servers)}")
    entries = [topic for server in planned.servers for topic in server.topics]
    if len(entries) > MAX_TOPICS:
        raise ScenarioError(
            f"ordering.servers: at most {MAX_TOPICS} topics can be ordered, not {len(entries)}; "
            'use patterns such as "/t/**"'
        )
    if scenario.ordering.servers:
        _check_all_listed(scenario, [TopicPattern(entry) for entry in entries])


def _check_topics(table: Ordering, index: int) -> None:
    path = f"ordering.servers[{index}].topics"
    earlier = {
        topic: f"ordering.servers[{number}].topics"
        for number, server in enumerate(table.servers[:index])
        for topic in server.topics
    }
    for position, topic in enumerate(table.servers[index].topics):
        try:
            TopicPattern(topic)
        except TopicError as error:
            raise ScenarioError(f"{path}[{position}]: {error}") from None
        if topic in earlier:
            raise ScenarioError(f"{path}[{position}]: '{topic}' is already in {earlier[topic]}")
        earlier[topic] = path


def _check_replicas(server: Server, path: str, brokers: Sequence[str]) -> None:
    named = {"node": server.node}
    for key, broker in (("standby", server.standby), ("witness", server.witness)):
        if broker is None:
            continue
        if broker in named.values():
            other = next(name for name, value in named.items() if value == broker)
            raise ScenarioError(
                f"{path}.{key}: '{broker}' is already its {other}; node, standby and witness must be different brokers"
            )
        named[key] = broker
    if len(named) == 2:
        given = "standby" if "standby" in named else "witness"
        lacking = "witness" if given == "standby" else "standby"
        raise ScenarioError(f"{path}.{given}: requires a {lacking}, too")


def _check_all_listed(scenario: Scenario, entries: Sequence[TopicPattern]) -> None:
    exact = {entry.text for entry in entries if entry.exact}
    wild = [entry for entry in entries if not entry.exact]
    unlisted = [
        (path, topic)
        for path, topic in _publications(scenario)
        if topic not in exact and not any(entry.matches(topic) for entry in wild)
    ]
    if not unlisted:
        return
    for who, order, patterns in _ordered_interests(scenario):
        for path, topic in unlisted:
            if any(pattern.matches(topic) for pattern in patterns):
                raise ScenarioError(
                    f"{path}: {shown(topic)} matches no topic of ordering.servers, but {who} subscribes to it "
                    f'with order "{order}"'
                )


def _ordered_interests(scenario: Scenario) -> Iterator[tuple[str, str, tuple[TopicPattern, ...]]]:
    workload = scenario.workload
    if workload is not None:
        if workload.order in ORDERS and workload.subscribers:
            yield "[workload]", workload.order, (EVERYTHING,)
        return
    for subscriber in scenario.subscribers:
        if subscriber.order in ORDERS:
            patterns = tuple(TopicPattern(text) for text in _patterns(subscriber))
            yield f"subscriber '{subscriber.name}'", subscriber.order, patterns


def _patterns(subscriber: SubscriberTable) -> Iterable[str]:
    """Yield every pattern that it ever subscribes to."""
    yield from subscriber.topics or (EVERYTHING.text,)
    for change in subscriber.changes:
        yield from change.add
