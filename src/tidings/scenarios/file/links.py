"""Decides delay, loss and bandwidth between two nodes.

Later layers override earlier ones: [network], a [[link]] between two sites, a [[link]] between two nodes. The link
between a client and its broker has no delay and no loss, unless a [[link]] names the two, or the two different
sites that list them. A sequencer is placed beside its broker in the same way. Its links to clients and other
sequencers are its broker's links to them, or to the brokers beside them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from tidings.scenarios.file.order_nodes import host_of, is_order_node
from tidings.scenarios.file.schema import ConstantDelay, Delay, LinkTable, Loss, Network, NoLoss, ScenarioSite

NodePair = tuple[str, str]


@dataclass(frozen=True, slots=True)
class LinkSpec:
    """Describes what happens to messages between two nodes, in both directions."""

    delay_ms: Delay
    loss: Loss
    duplicate: float
    reorder: float
    bandwidth_mbps: float


LOCAL = LinkSpec(ConstantDelay(value=0.0), NoLoss(), 0.0, 0.0, 0.0)
"""The link between a client and its broker."""


def link_spec(network: Network) -> LinkSpec:
    return LinkSpec(
        network.delay_ms, network.loss, network.duplicate, network.reorder, network.bandwidth_mbps
    )


def overridden(spec: LinkSpec, link: LinkTable) -> LinkSpec:
    """Return `spec` with the link's values in place of its own."""
    keys = ("delay_ms", "loss", "duplicate", "reorder", "bandwidth_mbps")
    return replace(spec, **{key: value for key in keys if (value := getattr(link, key)) is not None})


def unordered(left: str, right: str) -> NodePair:
    return (left, right) if left <= right else (right, left)


def site_of_nodes(sites: Sequence[ScenarioSite], seats: Mapping[str, str]) -> dict[str, str]:
    """Return the site of each node that has one: the site that lists it, or else its broker's (for a client)."""
    listed = {node: site.name for site in sites for node in site.nodes}
    beside = {client: listed[broker] for client, broker in seats.items() if broker in listed}
    return beside | listed


class Links:
    """Finds the link between any two nodes. `seats` maps clients to their brokers."""

    __slots__ = ("_default", "_listed_sites", "_node_links", "_seats", "_site_links", "_site_specs", "_sites")

    def __init__(
        self,
        network: Network,
        links: Sequence[LinkTable],
        sites: Sequence[ScenarioSite],
        seats: Mapping[str, str],
    ) -> None:
        names = {site.name for site in sites}
        self._default = link_spec(network)
        self._seats = seats
        self._sites = site_of_nodes(sites, seats)
        self._listed_sites = {node: site.name for site in sites for node in site.nodes}
        self._node_links = {unordered(*link.between): link for link in links if link.between[0] not in names}
        self._site_links = {unordered(*link.between): link for link in links if link.between[0] in names}
        self._site_specs = {pair: overridden(self._default, link) for pair, link in self._site_links.items()}

    def between(self, left: str, right: str) -> LinkSpec:
        """Return the link between two nodes, given in either order."""
        if is_order_node(left) or is_order_node(right):
            return self._between_hosts(left, right)
        if self._seats.get(left) == right or self._seats.get(right) == left:
            spec = self._between_client_and_broker(left, right)
        else:
            sites = unordered(self._sites.get(left, ""), self._sites.get(right, ""))
            spec = self._site_specs.get(sites, self._default)
        link = self._node_links.get(unordered(left, right))
        return spec if link is None else overridden(spec, link)

    def _between_hosts(self, left: str, right: str) -> LinkSpec:
        """Return the link of a sequencer with any node."""
        left, right = host_of(left), host_of(right)
        seats = self._seats.get(left, left), self._seats.get(right, right)
        if seats[0] == seats[1]:
            return LOCAL if left == right else self.between(left, right)
        sites = unordered(self._sites.get(left, ""), self._sites.get(right, ""))
        spec = self._site_specs.get(sites, self._default)
        link = self._node_links.get(unordered(left, right)) or self._node_links.get(unordered(*seats))
        return spec if link is None else overridden(spec, link)

    def _between_client_and_broker(self, left: str, right: str) -> LinkSpec:
        left_site, right_site = self._listed_sites.get(left, ""), self._listed_sites.get(right, "")
        link = self._site_links.get(unordered(left_site, right_site))
        return LOCAL if link is None or left_site == right_site else overridden(LOCAL, link)
