"""Runs a live scenario's sequencers: one process with a disk beside each broker that has a replica or a witness."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tidings.bus.connect import connect
from tidings.core.errors import TidingsError
from tidings.core.ordering.layout import ServerPlacement
from tidings.drivers.address import Address
from tidings.drivers.processes.brokers import BrokerProcess
from tidings.drivers.processes.layout_file import layout_text
from tidings.drivers.processes.sequencers import LAYOUT_FILE, SequencerProcess
from tidings.scenarios.file.order_nodes import order_node
from tidings.scenarios.file.ordering import PlannedOrdering
from tidings.scenarios.live.facts import OrderingWork
from tidings.scenarios.summary import ordering_summary, status_of

LOOK_S = 0.1

Statuses = Mapping[str, dict[str, Any]]
"""Each node's status; empty if it did not answer."""


class LiveOrdering:
    """Holds the sequencer processes. `addresses` includes the sequencers' nodes; `services` has the brokers' URLs."""

    def __init__(
        self,
        planned: PlannedOrdering,
        addresses: Mapping[str, Address],
        services: Mapping[str, str],
        data: Path,
    ) -> None:
        self.layout = planned.layout()
        self.statuses: Statuses = {}
        """The statuses at the end of the run."""
        self._planned = planned
        self._addresses = {order_node(broker): addresses[order_node(broker)] for broker in planned.brokers}
        self._disks = {
            order_node(broker): data / "ordering" / str(number)
            for number, broker in enumerate(planned.brokers)
        }
        layout_file = data / LAYOUT_FILE
        layout_file.write_text(layout_text(self.layout, self._addresses), encoding="utf-8")
        self.processes = {
            order_node(broker): SequencerProcess(
                order_node(broker),
                addresses[order_node(broker)],
                layout_file,
                self._disks[order_node(broker)],
                services[broker],
            )
            for broker in planned.brokers
        }

    @property
    def work(self) -> OrderingWork:
        """What client processes need to know."""
        return OrderingWork(self.layout.text, self._addresses, self._planned.patience)

    def lose_disk(self, name: str) -> None:
        shutil.rmtree(self._disks[name], ignore_errors=True)
        self.processes[name].lost_its_disk = True

    async def until_ready(self) -> None:
        """Wait until every server has an active replica, and a standby in step if it has a standby."""
        ready = False
        while not ready:
            await asyncio.sleep(LOOK_S)
            ready = self.is_ready(await self.ask())

    def is_ready(self, statuses: Statuses) -> bool:
        return all(self._is_served(place, statuses) for place in self.layout.servers)

    def _is_served(self, place: ServerPlacement, statuses: Statuses) -> bool:
        replicas = self._replicas(place, statuses).values()
        roles = [replica["role"] for replica in replicas]
        if not place.standby:
            return roles == ["active"]
        in_step = [replica.get("standby") == "in step" for replica in replicas if replica["role"] == "active"]
        return sorted(roles) == ["active", "standby"] and all(in_step)

    @staticmethod
    def _replicas(place: ServerPlacement, statuses: Statuses) -> dict[str, dict[str, Any]]:
        return {
            name: status["servers"][place.name]
            for name, status in statuses.items()
            if place.name in status.get("servers", {})
        }

    async def ask(self) -> Statuses:
        found = await asyncio.gather(*map(process_status, self.processes.values()))
        return dict(zip(self.processes, found, strict=True))

    def summary(self, stamped: int, entries: int, broken: list[str]) -> dict[str, Any]:
        """Return the same fields as the simulator; None for what is not counted in wall time."""
        servers = {place.name: self._server_summary(place) for place in self.layout.servers}
        return ordering_summary(self.layout, stamped, entries, None, broken, servers)

    def _server_summary(self, place: ServerPlacement) -> dict[str, Any]:
        replicas = self._replicas(place, self.statuses)
        roles = {name: str(replica["role"]) for name, replica in replicas.items()}
        return {"status": status_of(roles), "roles": roles, "numbers": None, "no_ops": None}


async def process_status(process: BrokerProcess | SequencerProcess) -> dict[str, Any]:
    """Return the process's status; empty if it does not answer."""
    try:
        async with connect(process.url).without_order() as service:
            return await service.status()
    except TidingsError:
        return {}
