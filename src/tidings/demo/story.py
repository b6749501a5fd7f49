"""Runs the demo's scenario live, with recorders beside the network."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tidings.demo.archives import RECORDED_AT, recording, until_recorded
from tidings.demo.scene import NS_PER_S, Scene
from tidings.recording.recorder import Recorder
from tidings.scenarios.file.faults import PlannedFault
from tidings.scenarios.live.ledger import RunLedger
from tidings.scenarios.live.observer import Observer
from tidings.scenarios.live.processes import client_groups
from tidings.scenarios.live.run import run_live

SCENARIO = Path(__file__).with_name("demo.toml")
TRACE = "trace"
ARCHIVES = "archives"


class Story(Observer):
    """Keeps the scene up to date while the scenario runs."""

    def __init__(self, scene: Scene, out: Path) -> None:
        self.scene = scene
        self._out = out
        self._ledger: RunLedger | None = None
        self._recorders: dict[str, Recorder] = {}

    async def play(self) -> dict[str, Any]:
        """Write the trace and the archives below `out`; return the summary of the run."""
        plan, scene = self.scene.plan, self.scene
        brokers, sequencers, clients = map(
            len, (plan.topology.brokers, scene.sequencers, client_groups(plan))
        )
        scene.tell(
            f"Starting {brokers + sequencers + clients} processes: {brokers} brokers on "
            f"{len(scene.brokers_of_sites)} sites, {sequencers} sequencers, {clients} clients."
        )
        return await run_live(plan.scenario, self._out / TRACE, lambda share: None, scene.tell, observer=self)

    @asynccontextmanager
    async def beside(self, brokers: Mapping[str, str], sequencers: Sequence[str]) -> AsyncIterator[None]:
        self.scene.tell(
            f"The network is up. {len(RECORDED_AT)} recorders archive all events, on {len(RECORDED_AT)} sites."
        )
        async with recording(
            self._out / ARCHIVES, self.scene.ordered_topics, brokers, sequencers
        ) as self._recorders:
            yield
            await until_recorded(self._recorders, self.scene.published)
            self._look()

    def on_start(self, ledger: RunLedger) -> None:
        self._ledger = ledger
        publishers = self.scene.plan.publishers
        rate_hz = sum(publisher.rate_hz for publisher in publishers)
        self.scene.tell(
            f"{len(publishers)} publishers start: {rate_hz:g} events a second, numbered in one order.", 0
        )

    def on_tick(self, now_ns: int) -> None:
        self.scene.now_s = now_ns / NS_PER_S
        self._look()

    def on_fault(self, planned: PlannedFault, at_ns: int) -> None:
        self._look()
        self.scene.strike(planned, at_ns)

    def on_repair(self, planned: PlannedFault, at_ns: int) -> None:
        self._look()
        self.scene.repair(planned, at_ns)

    def on_published(self, at_ns: int) -> None:
        self._look()
        scene = self.scene
        scene.tell(
            f"All {scene.published:,} events are published; {scene.waiting:,} deliveries are under way.",
            at_ns,
        )

    def on_settled(self, at_ns: int) -> None:
        self._look()
        self.scene.tell(f"The network has settled; {self.scene.waiting:,} deliveries are missing.", at_ns)

    def _look(self) -> None:
        if self._ledger is not None:
            self.scene.published = self._ledger.published
            self.scene.progress = self._ledger.progress()
        self.scene.archived = {broker: recorder.recorded for broker, recorder in self._recorders.items()}
        self.scene.on_change()
