"""Checks the rules between a scenario's keys: names, times, bounds that take two values, topics, filters.

`check_scenario` raises ScenarioError for the first mistake, with the path to the key and the names involved.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from tidings.core.errors import AttributeValueError, FilterError, ScenarioError, TopicError
from tidings.core.events.event import check_attributes, check_not_reserved, make_publication
from tidings.core.events.topics import TopicPattern, check_topic
from tidings.core.filters.language.predicates import Scalar
from tidings.scenarios.file.arrivals import lifetime_ns, scenario_payload
from tidings.scenarios.file.check_nodes import (
    Nodes,
    check_before_end,
    check_faults,
    check_links,
    check_neighbours,
    check_servers,
    check_sites,
)
from tidings.scenarios.file.check_shares import check_shares
from tidings.scenarios.file.check_starts import check_starts
from tidings.scenarios.file.decode import join, number
from tidings.scenarios.file.ordering import check_ordering
from tidings.scenarios.file.schema import (
    Attribute,
    BoolAttribute,
    ChoiceAttribute,
    Delay,
    FloatAttribute,
    GilbertLoss,
    IntAttribute,
    Loss,
    Overlay,
    Publisher,
    Scenario,
    SubscriberTable,
    TreeShape,
    UniformDelay,
    Workload,
)
from tidings.scenarios.file.timeline import subscription_timeline
from tidings.scenarios.file.topology import build_topology
from tidings.scenarios.file.workload import topics_per_subscriber


def check_scenario(scenario: Scenario) -> None:
    """Raise ScenarioError for the first mistake; a scenario that passes can be expanded."""
    _check_distributions(scenario)
    _check_overlay(scenario.overlay)
    if scenario.workload is not None:
        _check_workload(scenario, scenario.workload)
    topology = build_topology(scenario.overlay, scenario.seed)
    nodes = Nodes.of(scenario, topology.brokers)
    for index, publisher in enumerate(scenario.publishers):
        _check_publisher(publisher, scenario.duration_s, f"publisher[{index}]")
    checked_filters: set[str] = set()
    for index, subscriber in enumerate(scenario.subscribers):
        _check_subscriber(subscriber, f"subscriber[{index}]", checked_filters)
        _check_before_close(subscriber, scenario, f"subscriber[{index}].subscribe_at_s")
    check_shares(scenario)
    check_starts(scenario)
    check_servers(scenario, nodes)
    check_ordering(scenario, nodes.brokers)
    check_sites(scenario, nodes)
    check_links(scenario, nodes)
    check_faults(scenario, nodes)
    check_neighbours(scenario, topology)


def _check_distributions(scenario: Scenario) -> None:
    _check_delay(scenario.network.delay_ms, "network.delay_ms")
    _check_loss(scenario.network.loss, "network.loss")
    for index, link in enumerate(scenario.links):
        if link.delay_ms is not None:
            _check_delay(link.delay_ms, f"link[{index}].delay_ms")
        if link.loss is not None:
            _check_loss(link.loss, f"link[{index}].loss")


def _check_delay(delay: Delay, path: str) -> None:
    if isinstance(delay, UniformDelay):
        _check_range(delay.low, delay.high, path)


def _check_loss(loss: Loss, path: str) -> None:
    """Check that the rate is possible: between two bursts of mean length b, at least one message gets through."""
    if isinstance(loss, GilbertLoss) and loss.rate > loss.burst / (loss.burst + 1):
        raise ScenarioError(
            f"{path}: bursts of {number(loss.burst)} messages allow a rate of at most "
            f"{loss.burst / (loss.burst + 1):.4g}, not {number(loss.rate)}"
        )


def _check_range(low: float, high: float, path: str) -> None:
    if low > high:
        raise ScenarioError(f"{path}: low ({number(low)}) is above high ({number(high)})")


def _check_overlay(overlay: Overlay) -> None:
    if overlay.shape is not None and overlay.edges is not None:
        raise ScenarioError("[overlay]: give either shape or edges, not both")
    shape = overlay.shape
    if isinstance(shape, TreeShape) and shape.degree is not None and shape.children is not None:
        raise ScenarioError("overlay.shape: give either degree or children, not both")


def _check_workload(scenario: Scenario, workload: Workload) -> None:
    listed = [("publisher", scenario.publishers), ("subscriber", scenario.subscribers)]
    for name, clients in listed:
        if clients:
            raise ScenarioError(
                f"[workload] replaces [[publisher]] and [[subscriber]]: remove it or [[{name}]]"
            )
    if topics_per_subscriber(workload) > workload.topics:
        raise ScenarioError(
            f"workload.topics_per_subscriber: must be at most topics ({workload.topics}), "
            f"not {workload.topics_per_subscriber}"
        )


def _check_publisher(publisher: Publisher, duration_s: float, path: str) -> None:
    check_before_end(publisher.start_s, duration_s, f"{path}.start_s")
    _check_topics(publisher.topics, f"{path}.topics")
    for name, attribute in publisher.attributes.items():
        _check_attribute(name, attribute, join(f"{path}.attributes", name))
    _check_largest_event(publisher, path)


def _check_largest_event(publisher: Publisher, path: str) -> None:
    """Reject events that are too large or have too many attributes here, before the run meets them."""
    topic = max(publisher.topics, key=len)
    attributes: dict[str, Scalar] = {
        name: _largest_value(attribute) for name, attribute in publisher.attributes.items()
    }
    try:
        payload = scenario_payload(bytes(publisher.size_bytes), 2**62, lifetime_ns(publisher))
        make_publication(publisher.name, 0, 0, topic, attributes, payload, 0)
    except AttributeValueError as error:
        raise ScenarioError(f"{path}: {error}") from None


def _largest_value(attribute: Attribute) -> bool | int | float | str:
    """Return the value with the longest encoding, or nearly so."""
    match attribute:
        case IntAttribute():
            return max(attribute.low, attribute.high, key=abs)
        case FloatAttribute():
            return attribute.high
        case ChoiceAttribute():
            return max(attribute.values, key=lambda value: len(str(value)))
        case BoolAttribute():
            return True


def _check_attribute(name: str, attribute: Attribute, path: str) -> None:
    samples = attribute.values if isinstance(attribute, ChoiceAttribute) else (None,)
    try:
        for value in samples:
            check_not_reserved((name,))
            check_attributes({name: value})
    except AttributeValueError as error:
        raise ScenarioError(f"{path}: {error}") from None
    if isinstance(attribute, IntAttribute | FloatAttribute):
        _check_range(attribute.low, attribute.high, path)
    if isinstance(attribute, FloatAttribute) and not math.isfinite(attribute.high - attribute.low):
        raise ScenarioError(f"{path}: the range from low to high is too wide for a float")


def _check_subscriber(subscriber: SubscriberTable, path: str, checked_filters: set[str]) -> None:
    _check_patterns(subscriber.topics or (), f"{path}.topics")
    for index, change in enumerate(subscriber.changes):
        _check_patterns(change.add, f"{path}.changes[{index}].add")
        _check_patterns(change.remove, f"{path}.changes[{index}].remove")
    if subscriber.filter is not None and subscriber.filter not in checked_filters:
        _check_filter(subscriber.filter, f"{path}.filter")
        checked_filters.add(subscriber.filter)
    if subscriber.work_ms is not None:
        _check_delay(subscriber.work_ms, f"{path}.work_ms")
    subscription_timeline(subscriber, path)


def _check_before_close(subscriber: SubscriberTable, scenario: Scenario, path: str) -> None:
    """Allow subscriptions while the network settles: nothing is published, but events under way may still arrive."""
    end_s = scenario.duration_s + scenario.settle_s
    if subscriber.subscribe_at_s >= end_s:
        raise ScenarioError(
            f"{path}: must be before the end of the run (duration_s + settle_s = {number(round(end_s, 9))}), "
            f"not {number(subscriber.subscribe_at_s)}"
        )


def _check_filter(sql: str, path: str) -> None:
    # Imported here: scenarios without filters need not load the filter language.
    from tidings.core.filters.language.filter import Filter

    try:
        Filter(sql)
    except FilterError as error:
        raise ScenarioError(f"{path}: {' '.join(str(error).splitlines())}") from None


def _check_topics(topics: Iterable[str], path: str) -> None:
    for index, topic in enumerate(topics):
        try:
            check_topic(topic)
        except TopicError as error:
            raise ScenarioError(f"{path}[{index}]: {error}") from None


def _check_patterns(patterns: Iterable[str], path: str) -> None:
    for index, pattern in enumerate(patterns):
        try:
            TopicPattern(pattern)
        except TopicError as error:
            raise ScenarioError(f"{path}[{index}]: {error}") from None
