"""An ordered reader of real brokers that goes to another one misses what waited at the old one, and nothing else."""

from __future__ import annotations

import asyncio

import pytest

import tidings
from live_ordering import Hosts, played
from tidings.core.client import ordered
from tidings.core.ordering.layout import Layout, ServerPlacement
from tidings.drivers.processes.brokers import free_addresses
from tidings.drivers.sockets.broker import BrokerServer
from tidings.drivers.sockets.guaranteed import GuaranteedSettings
from tidings.scenarios.file.schema import ChainShape, Overlay
from tidings.scenarios.file.topology import build_topology, neighbourhoods

LAYOUT = Layout([ServerPlacement("main", ("/**",), node="n1")])
TIMEOUT_S = 30.0


@played
async def test_an_ordered_reader_moves_and_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ordered, "DOUBT_NS", 1_000_000_000)
    topology = build_topology(Overlay(mode="guaranteed", shape=ChainShape(brokers=3)), 0)
    addresses = free_addresses(topology.brokers)
    servers: dict[str, BrokerServer] = {}
    for name, labels in neighbourhoods(topology, 2).items():
        around = {peer: label for peer, label in labels.items() if peer != name}
        servers[name] = BrokerServer(
            name,
            addresses[name],
            {peer: addresses[peer] for peer in around},
            mode="guaranteed",
            guaranteed=GuaranteedSettings(labels[name], around, delta=1, new=True),
        )
        await servers[name].start()
    hosts = Hosts(LAYOUT)
    sequencer = str((await hosts.start("n1")).address)
    both = f"tidings://{addresses['b0']},{addresses['b1']}"
    async with (
        tidings.connect(both, name="moving", sequencer=sequencer) as moving,
        tidings.connect(f"tidings://{addresses['b2']}", name="p", sequencer=sequencer) as publisher,
        moving.subscribe("/t", order="total") as stream,
    ):
        for n in range(10):
            await publisher.publish("/t", {"n": n})
        shown = [(await stream.get(TIMEOUT_S)).attributes["n"] for _ in range(10)]
        await servers["b0"].stop()
        for n in range(10, 60):
            await publisher.publish("/t", {"n": n})
            await asyncio.sleep(0.05)
        while shown[-1] != 59:
            shown.append((await stream.get(TIMEOUT_S)).attributes["n"])
        assert shown == sorted({*shown})
        assert 60 - len(shown) == sum(gap.count for gap in stream.gaps if "did not arrive" in gap.reason)
    await servers["b1"].stop()
    await servers["b2"].stop()
    await hosts.kill("n1")
