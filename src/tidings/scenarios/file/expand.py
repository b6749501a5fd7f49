"""Expands a scenario to the plan of its run: the tree and every client, link and fault, spelled out.

The simulator and the live runner start from the same plan. `expand` takes a scenario that has passed
`check_scenario`, as `load_scenario` and `parse_scenario` return it. `modes` decides which modes run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tidings.scenarios.file.archives import PlannedArchive, archive_seats, plan_archives
from tidings.scenarios.file.faults import PlannedFault, plan_faults
from tidings.scenarios.file.links import Links, site_of_nodes
from tidings.scenarios.file.ordering import PlannedOrdering, plan_ordering
from tidings.scenarios.file.schema import Order, Publisher, Scenario, Start, SubscriberTable
from tidings.scenarios.file.shares import PlannedShare, plan_share
from tidings.scenarios.file.timeline import Step, subscription_timeline
from tidings.scenarios.file.topology import Topology, build_topology
from tidings.scenarios.file.workload import generate_clients


@dataclass(frozen=True, slots=True)
class PlannedSubscriber:
    """Describes a subscriber and its subscriptions over time; the first step is its first subscription."""

    name: str
    at: str
    filter: str | None
    order: Order
    timeline: tuple[Step, ...]
    share: PlannedShare | None = None
    """Its durable subscription or group."""
    start: Start = "new"


@dataclass(frozen=True, slots=True)
class RunPlan:
    """Holds all that a run needs. `sites` maps nodes to their sites; a client's is its broker's unless listed."""

    scenario: Scenario
    topology: Topology
    publishers: tuple[Publisher, ...]
    subscribers: tuple[PlannedSubscriber, ...]
    links: Links
    faults: tuple[PlannedFault, ...]
    sites: Mapping[str, str]
    ordering: PlannedOrdering | None = None
    """Which servers number which topics; None if nothing is ordered."""
    archives: tuple[PlannedArchive, ...] = ()
    """What brokers keep for subscribers that start with history."""

    @property
    def seats(self) -> dict[str, str]:
        """Each client's broker."""
        seats = {publisher.name: publisher.at for publisher in self.publishers}
        return seats | {subscriber.name: subscriber.at for subscriber in self.subscribers}


def expand(scenario: Scenario) -> RunPlan:
    """Return the plan of a checked scenario; the same scenario and seed give the same plan in any process."""
    topology = build_topology(scenario.overlay, scenario.seed)
    publishers, subscribers = _clients(scenario, topology)
    seats = {publisher.name: publisher.at for publisher in publishers}
    seats |= {subscriber.name: subscriber.at for subscriber in subscribers}
    sites = site_of_nodes(scenario.sites, seats)
    ordering = plan_ordering(scenario, topology.brokers)
    archives = plan_archives(subscribers)
    return RunPlan(
        scenario=scenario,
        topology=topology,
        publishers=publishers,
        subscribers=tuple(
            _planned_subscriber(subscriber, index) for index, subscriber in enumerate(subscribers)
        ),
        links=Links(scenario.network, scenario.links, scenario.sites, seats | archive_seats(archives)),
        faults=plan_faults(scenario, sites, seats, ordering),
        sites=sites,
        ordering=ordering,
        archives=archives,
    )


def _clients(
    scenario: Scenario, topology: Topology
) -> tuple[tuple[Publisher, ...], tuple[SubscriberTable, ...]]:
    if scenario.workload is None:
        return scenario.publishers, scenario.subscribers
    return generate_clients(scenario.workload, topology.brokers, scenario.seed)


def _planned_subscriber(subscriber: SubscriberTable, index: int) -> PlannedSubscriber:
    return PlannedSubscriber(
        name=subscriber.name,
        at=subscriber.at,
        filter=subscriber.filter,
        order=subscriber.order,
        timeline=subscription_timeline(subscriber, f"subscriber[{index}]"),
        share=plan_share(subscriber),
        start=subscriber.start,
    )
