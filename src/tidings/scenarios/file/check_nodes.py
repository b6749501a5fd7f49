"""Checks a scenario's names: every node's name is unique, and every name that a key refers to exists."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tidings.core.errors import ScenarioError
from tidings.scenarios.file.archives import ARCHIVE_PREFIX
from tidings.scenarios.file.decode import listed, number
from tidings.scenarios.file.links import unordered
from tidings.scenarios.file.order_nodes import NODE_PREFIX
from tidings.scenarios.file.ordering import plan_ordering
from tidings.scenarios.file.schema import (
    Fault,
    LinkFault,
    LossFault,
    PartitionFault,
    Publisher,
    Scenario,
    SubscriberTable,
)
from tidings.scenarios.file.topology import Topology, neighbours
from tidings.scenarios.file.workload import publisher_names, subscriber_names


@dataclass(frozen=True, slots=True)
class Nodes:
    """Holds every node of a scenario: the brokers (none in mode peers), and for each name the place that gives it."""

    brokers: Sequence[str]
    places: dict[str, str]

    @classmethod
    def of(cls, scenario: Scenario, brokers: Sequence[str]) -> Nodes:
        places: dict[str, str] = {}
        for name in brokers:
            _claim(places, name, "overlay.edges", "a broker")
        if scenario.workload is not None:
            for name in publisher_names(scenario.workload):
                _claim(places, name, "[workload]", "a publisher of [workload]")
            for name in subscriber_names(scenario.workload):
                _claim(places, name, "[workload]", "a subscriber of [workload]")
        elif scenario.overlay.mode == "peers":
            _claim_participants(places, scenario)
        else:
            _claim_clients(places, scenario, frozenset(brokers))
        return cls(brokers, places)

    def check(self, name: str, path: str) -> None:
        if name not in self.places:
            raise ScenarioError(f"{path}: there is no node '{name}'; {self.summary()}")

    def summary(self) -> str:
        """List the names that exist, for a message about one that does not."""
        clients = [name for name, place in self.places.items() if place != "a broker"]
        return "; ".join(
            [*broker_summary(self.brokers), *([f"clients: {listed(clients)}"] if clients else [])]
        )


def broker_summary(brokers: Sequence[str]) -> list[str]:
    if not brokers:
        return []
    if len(brokers) > 2 and brokers[-1] == f"b{len(brokers) - 1}":
        return [f"brokers: {brokers[0]} to {brokers[-1]}"]
    return [f"brokers: {listed(brokers)}"]


def _claim(places: dict[str, str], name: str, path: str, place: str) -> None:
    for prefix in (NODE_PREFIX, ARCHIVE_PREFIX):
        if name.startswith(prefix):
            raise ScenarioError(f"{path}: '{name}': node names must not start with '{prefix}'")
    if name in places:
        raise ScenarioError(f"{path}: duplicate node id '{name}', already the name of {places[name]}")
    places[name] = place


def _claim_clients(places: dict[str, str], scenario: Scenario, brokers: frozenset[str]) -> None:
    """Claim the clients' names; a publisher and a subscriber of one name at one broker are one client."""
    seats: dict[str, str] = {}
    publishers = {publisher.name for publisher in scenario.publishers}
    for path, client in _clients(scenario):
        if isinstance(client, SubscriberTable) and client.name in publishers:
            _check_shared(client, seats[client.name], places, path)
            publishers.discard(client.name)
        else:
            _claim(places, client.name, f"{path}.name", path)
        seats[client.name] = client.at
        if client.at not in brokers:
            known = "; ".join(broker_summary([name for name, place in places.items() if place == "a broker"]))
            raise ScenarioError(f"{path}.at: there is no broker '{client.at}'; {known}")


def _check_shared(client: SubscriberTable, seat: str, places: dict[str, str], path: str) -> None:
    if client.at != seat:
        raise ScenarioError(
            f"{path}.at: '{client.name}' is also {places[client.name]}, at '{seat}'; a client that publishes "
            f"and subscribes has one broker, not '{client.at}' too"
        )


def _claim_participants(places: dict[str, str], scenario: Scenario) -> None:
    """Claim the names of mode peers, where a participant may publish and subscribe, and `at` names participants."""
    seats: dict[str, str] = {}
    publishers = {publisher.name for publisher in scenario.publishers}
    for path, client in _clients(scenario):
        shared = isinstance(client, SubscriberTable) and client.name in publishers
        if shared and seats.get(client.name) == client.at:
            publishers.discard(client.name)
        else:
            _claim(places, client.name, f"{path}.name", path)
        seats[client.name] = client.at
    for path, client in _clients(scenario):
        places.setdefault(client.at, path)


def _clients(scenario: Scenario) -> Iterable[tuple[str, Publisher | SubscriberTable]]:
    for index, publisher in enumerate(scenario.publishers):
        yield f"publisher[{index}]", publisher
    for index, subscriber in enumerate(scenario.subscribers):
        yield f"subscriber[{index}]", subscriber


def _check_host(name: str, nodes: Nodes, path: str) -> None:
    nodes.check(name, path)
    if nodes.brokers and nodes.places[name] != "a broker":
        known = "; ".join(broker_summary(nodes.brokers))
        raise ScenarioError(f"{path}: '{name}' is {nodes.places[name]}, not a broker; {known}")


def check_servers(scenario: Scenario, nodes: Nodes) -> None:
    hosts: dict[str, int] = {}
    for index, server in enumerate(scenario.ordering.servers):
        for key in ("node", "standby", "witness"):
            name = getattr(server, key)
            if name is not None:
                _check_host(name, nodes, f"ordering.servers[{index}].{key}")
        if server.node in hosts:
            earlier = f"ordering.servers[{hosts[server.node]}]"
            raise ScenarioError(f"ordering.servers[{index}].node: '{server.node}' is already in {earlier}")
        hosts[server.node] = index


def check_sites(scenario: Scenario, nodes: Nodes) -> None:
    names: dict[str, int] = {}
    homes: dict[str, str] = {}
    for index, site in enumerate(scenario.sites):
        if site.name in names:
            raise ScenarioError(
                f"site[{index}].name: '{site.name}' is already the name of site[{names[site.name]}]"
            )
        if site.name in nodes.places:
            raise ScenarioError(
                f"site[{index}].name: '{site.name}' is already the name of {nodes.places[site.name]}"
            )
        names[site.name] = index
        for position, node in enumerate(site.nodes):
            path = f"site[{index}].nodes[{position}]"
            nodes.check(node, path)
            if node in homes:
                raise ScenarioError(f"{path}: '{node}' is already in site '{homes[node]}'")
            homes[node] = site.name


def check_links(scenario: Scenario, nodes: Nodes) -> None:
    earlier: dict[tuple[str, str], int] = {}
    for index, link in enumerate(scenario.links):
        _check_between(link.between, scenario, nodes, f"link[{index}].between", inside_site=True)
        pair = unordered(*link.between)
        if pair in earlier:
            raise ScenarioError(
                f"link[{index}].between: '{pair[0]}' and '{pair[1]}' already have link[{earlier[pair]}]"
            )
        earlier[pair] = index


def _check_between(
    between: tuple[str, str], scenario: Scenario, nodes: Nodes, path: str, *, inside_site: bool
) -> None:
    """Require two different sites or nodes. `inside_site` also allows one site twice: the links inside it."""
    sites = [site.name for site in scenario.sites]
    for position, name in enumerate(between):
        if name not in nodes.places and name not in sites:
            known = "; ".join([nodes.summary(), *([f"sites: {listed(sites)}"] if sites else [])])
            raise ScenarioError(f"{path}[{position}]: there is no node or site '{name}'; {known}")
    if (between[0] in sites) != (between[1] in sites):
        raise ScenarioError(
            f"{path}: '{between[0]}' and '{between[1]}' are a site and a node; give two sites or two nodes"
        )
    if between[0] == between[1] and not (inside_site and between[0] in sites):
        raise ScenarioError(f"{path}: '{between[0]}' is listed twice")


def check_neighbours(scenario: Scenario, topology: Topology) -> None:
    """Reject links between brokers that never exchange messages: in best effort, all that are not neighbours.

    This applies only to `edges`. In a generated shape, neighbours may depend on the seed or on the point of a sweep,
    so a link that has no effect in one run may have one in the next.
    """
    overlay = scenario.overlay
    if overlay.mode != "best-effort" or overlay.edges is None:
        return
    if plan_ordering(scenario, topology.brokers) is not None:
        return  # sequencers beside any two brokers may use the link between these brokers
    around = neighbours(topology)
    links = [(f"link[{index}]", link.between) for index, link in enumerate(scenario.links)]
    for index, fault in enumerate(scenario.faults):
        if isinstance(fault, LinkFault):
            links.append((f"fault[{index}]", fault.between))
    for path, (left, right) in links:
        if left in around and right in around and right not in around[left]:
            raise ScenarioError(
                f"{path}.between: '{left}' and '{right}' are not neighbours, so in mode best-effort this link has no "
                f"effect; neighbours of '{left}': {listed(around[left])}"
            )


def check_faults(scenario: Scenario, nodes: Nodes) -> None:
    for index, fault in enumerate(scenario.faults):
        path = f"fault[{index}]"
        _check_fault_times(fault, scenario.duration_s, path)
        match fault:
            case LossFault():
                pass
            case LinkFault():
                _check_between(fault.between, scenario, nodes, f"{path}.between", inside_site=False)
            case PartitionFault():
                _check_groups(fault, nodes, f"{path}.groups")
            case _:
                _check_once(fault.nodes, nodes, f"{path}.nodes")


def _check_fault_times(fault: Fault, duration_s: float, path: str) -> None:
    check_before_end(fault.at_s, duration_s, f"{path}.at_s")
    if fault.until_s is not None and fault.until_s <= fault.at_s:
        raise ScenarioError(
            f"{path}.until_s: must be after at_s ({number(fault.at_s)}), not {number(fault.until_s)}"
        )


def check_before_end(at_s: float, duration_s: float, path: str) -> None:
    if at_s >= duration_s:
        raise ScenarioError(
            f"{path}: must be before the end of duration_s ({number(duration_s)}), not {number(at_s)}"
        )


def _check_once(names: Sequence[str], nodes: Nodes, path: str) -> None:
    seen: set[str] = set()
    for position, name in enumerate(names):
        nodes.check(name, f"{path}[{position}]")
        if name in seen:
            raise ScenarioError(f"{path}[{position}]: '{name}' is listed twice")
        seen.add(name)


def _check_groups(fault: PartitionFault, nodes: Nodes, path: str) -> None:
    groups: dict[str, int] = {}
    for index, group in enumerate(fault.groups):
        for position, name in enumerate(group):
            nodes.check(name, f"{path}[{index}][{position}]")
            if name in groups:
                raise ScenarioError(
                    f"{path}[{index}][{position}]: '{name}' is already in groups[{groups[name]}]"
                )
            groups[name] = index
