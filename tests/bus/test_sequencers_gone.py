"""Sequencers that refuse us for good: whoever asks for an order is told why, at once; and where they are looked for."""

from __future__ import annotations

import asyncio

import pytest

import tidings
from live_ordering import Hosts
from ordered_clients import TIMEOUT_S, numbers, run, take
from tidings.bus import host
from tidings.bus.connected_sequencers import ConnectedSequencing
from tidings.bus.embedded import Embedded, local_bus
from tidings.core.ordering.layout import Layout, ServerPlacement
from tidings.drivers.address import SEQUENCER_PORT, Address

DIFFER = r"sequencer q0 refused the connection: the layouts of topics differ.*/a"


def layout(*topics: str) -> Layout:
    return Layout([ServerPlacement("q0", topics)])


def test_after_another_layout_a_new_subscription_is_told_so_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "SUBSCRIBE_TIMEOUT_S", 2.0)  # or it would wait for that

    async def scenario(network: Embedded) -> None:
        async with Hosts(layout("/**")) as hosts:
            client = tidings.OrderedService(
                local_bus(network.network, "b1", "c"),
                lambda: ConnectedSequencing([hosts["q0"].address], "c", token="", tls=None, timeout_s=5.0),
            )
            async with (
                client,
                client.subscribe("/a", order="total") as stream,
                client.subscribe("/b") as plain,
            ):
                await client.publish("/a", {"n": 0})
                assert numbers(await take(stream, 1)) == [0]
                await hosts.kill("q0")
                await hosts.start("q0", layout=layout("/a", "/**"))
                with pytest.raises(tidings.OrderError, match=DIFFER):
                    await stream.get(TIMEOUT_S)
                for _ in range(2):
                    with pytest.raises(tidings.OrderError, match=DIFFER):
                        await client.publish("/a", {"n": 1})
                    with pytest.raises(tidings.OrderError, match=DIFFER):
                        await client.subscribe("/x", order="total").__aenter__()
                assert (await client.status())["ordering"]["subscriptions"].keys() == {stream.subscription.id}
                async with client.subscribe("/c"):  # what needs no order goes on
                    pass
                await network.publish("/b", {"n": 2})
                assert numbers(await take(plain, 1)) == [2]

    run(scenario, mode="guaranteed")


@pytest.mark.parametrize("text", ["127.0.0.1", "tidings://127.0.0.1", "127.0.0.1:"])
def test_an_address_of_a_sequencer_without_a_port_has_that_of_sequencers(text: str) -> None:
    async def asked() -> object:
        found = tidings.connect(sequencer=[text, "[::1]:7000"])._find_order()
        assert isinstance(found, ConnectedSequencing)
        return found._addresses

    assert Address().port != SEQUENCER_PORT
    assert asyncio.run(asked()) == [
        Address("127.0.0.1", SEQUENCER_PORT),
        Address("::1", 7000),
    ]
