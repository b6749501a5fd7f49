"""Ordered durable subscriptions at a real broker, with real sequencers that come, go, and change their minds."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

import tidings
from live_network import until
from live_ordering import Hosts, played
from tidings.bus.bus import Bus
from tidings.core.errors import SubscriptionRefused
from tidings.core.ordering.layout import Layout, ServerPlacement
from tidings.drivers.address import Address
from tidings.drivers.processes.brokers import free_addresses
from tidings.drivers.sockets.broker import BrokerServer
from tidings.drivers.sockets.guaranteed import GuaranteedSettings


def layout(*topics: str, causal: bool = True) -> Layout:
    return Layout([ServerPlacement("q0", topics)], causal=causal)


class Broker:
    """A broker that can be stopped as by kill -9, and started again over its disk."""

    def __init__(self, data: Path, sequencers: list[Address]) -> None:
        self.address = free_addresses(["b0"])["b0"]
        self.reports: list[str] = []
        self._data = data
        self.sequencers = sequencers
        self._new = True
        self.server: BrokerServer

    async def start(self) -> None:
        settings = GuaranteedSettings((0,), {}, data=self._data, new=self._new)
        self.server = BrokerServer(
            "b0",
            self.address,
            mode="guaranteed",
            guaranteed=settings,
            sequencers=self.sequencers,
            emit=lambda fact: self.reports.append(getattr(fact, "reason", "")),
        )
        self._new = False
        await self.server.start()

    def rows(self) -> Any:
        return self.server.status()["durable"]

    def row(self) -> Any:
        (found,) = self.rows()
        return found

    def client(self, name: str, sequencer: Address) -> Bus:
        return tidings.connect(f"tidings://{self.address}", name=name, sequencer=str(sequencer))  # type: ignore[return-value]


@asynccontextmanager
async def started(data: Path, sequencers: list[Address]) -> AsyncIterator[Broker]:
    broker = Broker(data, sequencers)
    await broker.start()
    try:
        yield broker
    finally:
        await broker.server.stop()


async def read(stream: Any, count: int) -> list[tuple[int, int]]:
    events = [await stream.get(20) for _ in range(count)]
    return [(event.attributes["n"], event.attempt) for event in events]


@played
async def test_it_outlives_its_broker_which_connects_to_the_sequencers_by_itself(tmp_path: Path) -> None:
    async with (
        Hosts(layout("/**"), tmp_path / "order") as hosts,
        started(tmp_path, [hosts["q0"].address]) as broker,
        broker.client("p", hosts["q0"].address) as bus,
    ):
        async with bus.subscribe("/a", "/b", order="total", durable="billing") as stream:
            for number in range(4):
                await bus.publish(("/a", "/b")[number % 2], {"n": number})
            assert await read(stream, 2) == [(0, 1), (1, 1)]
            waiting = [await bus.publish("/a", {"n": number}, wait=False) for number in (4, 5)]
            await broker.server.stop()
            await broker.start()
            for receipt in waiting:
                await receipt
            assert await read(stream, 4) == [(2, 1), (3, 1), (4, 1), (5, 1)]
        await broker.server.stop()
        await broker.start()
        await bus.publish("/b", {"n": 6})  # nobody is attached
        assert "sequencers_connected" in broker.server.status()
        async with bus.subscribe("/a", "/b", order="total", durable="billing") as stream:
            assert await read(stream, 1) == [(6, 1)]
            assert stream.subscription.order == "total"


@played
async def test_sequencers_that_cannot_be_reached_are_named_and_found_later(tmp_path: Path) -> None:
    hosts = Hosts(layout("/**"), tmp_path / "order")
    hosts.addresses |= free_addresses(["q0"])
    where = hosts.addresses["q0"]
    async with started(tmp_path, [where]) as broker:
        alone = tidings.connect(f"tidings://{broker.address}", name="c").without_order()
        alone._check_order = lambda subscription: None  # type: ignore[method-assign]
        async with alone as bus:
            with pytest.raises(SubscriptionRefused, match=f"cannot reach the sequencer at .*{where.port}"):
                async with bus.subscribe("/a", order="total", durable="billing"):
                    pass
        async with hosts, broker.client("p", where) as bus:
            async with bus.subscribe("/a", order="total", durable="billing") as stream:
                await bus.publish("/a", {"n": 1})
                assert await read(stream, 1) == [(1, 1)]


@played
async def test_a_broker_that_was_told_of_no_sequencers_says_so(tmp_path: Path) -> None:
    async with (
        Hosts(layout("/**")) as hosts,
        started(tmp_path, []) as broker,
        broker.client("c", hosts["q0"].address) as bus,
    ):
        with pytest.raises(
            SubscriptionRefused, match=r"broker b0 knows of none: start it with .*--sequencers"
        ):
            async with bus.subscribe("/a", order="total", durable="billing"):
                pass


@played
async def test_a_broker_that_is_not_told_of_them_after_a_restart_keeps_what_it_has(tmp_path: Path) -> None:
    async with Hosts(layout("/**"), tmp_path / "order") as hosts:
        where = hosts["q0"].address
        async with started(tmp_path, [where]) as broker, broker.client("c", where) as bus:
            for name in ("one", "two"):
                async with bus.subscribe("/a", order="total", durable=name):
                    pass
            await bus.publish("/a", {"n": 1})
            await until(lambda: all(row["waiting"] for row in broker.rows()), what=broker.rows)
            await broker.server.stop()
            broker.reports.clear()
            broker.sequencers = []
            await broker.start()
            assert sum("knows of none" in reason for reason in broker.reports) == 2
            await bus.publish("/a", {"n": 2})
            async with bus.subscribe("/a", order="total", durable="one") as stream:
                assert await read(stream, 1) == [(1, 1)]
            await broker.server.stop()
            broker.sequencers = [where]
            await broker.start()
            async with bus.subscribe("/a", order="total", durable="two") as stream:
                assert await read(stream, 2) == [(1, 1), (2, 1)]


@played
async def test_what_a_layout_does_not_provide_is_refused(tmp_path: Path) -> None:
    async with (
        Hosts(layout("/a", causal=False)) as hosts,
        started(tmp_path, [hosts["q0"].address]) as broker,
        broker.client("c", hosts["q0"].address) as bus,
    ):
        with pytest.raises(SubscriptionRefused, match="provides total order, not causal order"):
            async with bus.subscribe("/a", order="causal", durable="billing"):
                pass
        with pytest.raises(SubscriptionRefused, match="/b: events on these topics may be unordered"):
            async with bus.subscribe("/b", order="total", durable="billing"):
                pass
        bus._check_order = lambda subscription: None  # type: ignore[attr-defined] - as an older client
        with pytest.raises(SubscriptionRefused, match="provides total order, not causal order"):
            async with bus.subscribe("/a", order="causal", durable="billing"):
                pass


@played
async def test_sequencers_with_another_layout_end_the_order_and_it_is_joined_anew(tmp_path: Path) -> None:
    """The topics of the order changed, and so did its numbers: whatever waits stays, the gap is reported, and a new
    client goes on."""
    async with Hosts(layout("/**")) as hosts, started(tmp_path, [hosts["q0"].address]) as broker:
        where = hosts["q0"].address
        async with broker.client("one", where) as bus:
            async with bus.subscribe("/a", order="total", durable="billing"):
                pass
            await bus.publish("/a", {"n": 1})
            await until(lambda: broker.row()["waiting"] == 1, what=broker.row)
        await hosts.kill("q0")
        await hosts.start("q0", layout=layout("/a", "/**"))
        await until(lambda: any("joined anew" in reason for reason in broker.reports), what=broker.row)
        await until(lambda: broker.row()["waits_for"] == "", what=broker.row)
        async with broker.client("two", where) as bus:
            await bus.publish("/a", {"n": 2})
            async with bus.subscribe("/a", order="total", durable="billing") as stream:
                assert await read(stream, 2) == [(1, 1), (2, 1)]
