"""A plan for a network that runs: its sequencers tell who has which topics."""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import Any

import pytest

from live_network import until
from live_ordering import Hosts, OrderedUser, Service, played
from tidings.bus.connect import connect
from tidings.bus.host import ApplicationHost
from tidings.core.errors import ConnectionFailed, PipelineError
from tidings.core.ordering.layout import Layout, ServerPlacement
from tidings.drivers.address import Address
from tidings.drivers.sockets import sequencer
from tidings.drivers.sockets.broker import BrokerServer
from tidings.spark.plan.live import fetch_rows
from tidings.spark.plan.planning import OrderPlan, PlanRequest, plan_rows
from tidings.spark.plan.sites import PlannedSite, PlannedSites

LAYOUT = Layout(
    [
        ServerPlacement("high", ("/a", "/b"), node="n1", standby="n2", witness="n3"),
        ServerPlacement("low", ("/c/**",), node="n2"),
    ],
    causal=False,
)
AT = {"one": "east", "two": "west"}


def bus_at(url: str) -> ApplicationHost:
    return connect(url, timeout_s=10.0)


async def planned(address: Address) -> OrderPlan:
    url = f"tidings://{address}"
    sites = PlannedSites((PlannedSite("east"), PlannedSite("west")), AT)
    return plan_rows(url, await fetch_rows(url, bus_at, AT), PlanRequest(sites=sites))


async def subscribed(stack: AsyncExitStack, hosts: Hosts) -> None:
    service = Service()
    one = await stack.enter_async_context(OrderedUser(list(hosts.addresses.values()), "one", service))
    two = await stack.enter_async_context(OrderedUser(list(hosts.addresses.values()), "two", service))
    await one.subscribe(0, 2)
    await one.subscribe(1)
    await two.subscribe(0, 2)


@played
async def test_a_plan_from_any_sequencer_and_from_a_broker_that_knows_one() -> None:
    async with AsyncExitStack() as stack:
        hosts = await stack.enter_async_context(Hosts(LAYOUT))
        await hosts.in_step("high")
        await subscribed(stack, hosts)
        broker = BrokerServer("b", sequencers=[hosts.addresses["n3"]])
        await broker.start()
        stack.push_async_callback(broker.stop)
        for address in (*hosts.addresses.values(), broker.address):
            plan = await planned(address)
            assert plan.entries.texts == ("/a", "/b", "/c/**")
            assert plan.stamp_entries.tolist() == [1, 0, 1]
            assert plan.summary()["sites"] == {"east": 2, "west": 1}
        await hosts.kill("n1")
        with pytest.raises(ConnectionFailed):
            await planned(hosts.addresses["n2"])


@played
async def test_too_many_subscriptions_for_a_status_are_told_as_such() -> None:
    before = sequencer.MAX_SUBSCRIPTIONS_TOLD
    sequencer.MAX_SUBSCRIPTIONS_TOLD = 1
    try:
        async with AsyncExitStack() as stack:
            hosts = await stack.enter_async_context(Hosts(LAYOUT))
            await hosts.in_step("high")
            await subscribed(stack, hosts)
            told: list[Any] = []

            def counted() -> bool:
                told[:] = [hosts[name].status()["subscriptions"] for name in hosts.running]
                return 2 in told

            await until(counted, what=lambda: told)
            with pytest.raises(
                PipelineError, match=r"sequencer n2 has 2 subscriptions, too many for its status"
            ):
                await planned(hosts.addresses["n1"])
    finally:
        sequencer.MAX_SUBSCRIPTIONS_TOLD = before


@played
async def test_a_network_without_an_order_has_nothing_to_tell() -> None:
    broker = BrokerServer("b")
    await broker.start()
    try:
        with pytest.raises(PipelineError, match="has no sequencers"):
            await planned(broker.address)
    finally:
        await broker.stop()
