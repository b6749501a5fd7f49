"""Faults of sequencers: cuts, black holes while they last, after which all goes on; and disks that are lost."""

from __future__ import annotations

import asyncio
from pathlib import Path

from live_network import until
from live_ordering import REPLICATED, Hosts, OrderedUser, Service, played
from tidings.core.ordering.layout import Layout, ServerPlacement
from tidings.drivers.sockets.sequencer import SequencerHost


def linked(host: SequencerHost, *peers: str) -> bool:
    return {*peers} <= host._links.keys()


@played
async def test_a_client_that_is_cut_off_waits_until_the_cut_is_healed() -> None:
    async with Hosts(Layout([ServerPlacement("main", ("/a",), node="n1")])) as hosts:
        service = Service()
        async with (
            OrderedUser(hosts["n1"].address, "cut", service) as cut,
            OrderedUser(hosts["n1"].address, "other", service) as other,
        ):
            key = await cut.subscribe(0)
            silenced = hosts["n1"]._links["cut"].session
            hosts["n1"].cut(["cut"])
            cut.publish(0, "first")
            other.publish(0, "second")
            await other.published()
            assert cut.module.unpublished == 1
            assert linked(hosts["n1"], "cut")  # it stands as it did
            hosts["n1"].cut([])
            assert silenced.ended.done()
            await cut.published()
            assert cut.shown(key) == ["second", "first"]


@played
async def test_who_dials_while_it_is_cut_off_is_not_answered() -> None:
    async with Hosts(Layout([ServerPlacement("main", ("/a",), node="n1")])) as hosts:
        hosts["n1"].cut(["late"])
        service = Service()
        user = OrderedUser(hosts["n1"].address, "late", service)
        opening = asyncio.create_task(user.connection.open(15.0))
        await until(lambda: bool(hosts["n1"].host.black_holes.sessions))
        assert not opening.done()
        assert not linked(hosts["n1"], "late")
        hosts["n1"].cut(["somebody else"])
        assert not hosts["n1"].host.black_holes.sessions
        opening.cancel()
        await asyncio.gather(opening, return_exceptions=True)


@played
async def test_a_standby_takes_over_from_one_that_is_cut_off_and_takes_it_in_again(tmp_path: Path) -> None:
    async with Hosts(REPLICATED, tmp_path) as hosts:
        await hosts.in_step()
        active, standby = ("n1", "n2") if hosts.role("n1") == "active" else ("n2", "n1")
        hosts[active].cut([standby, "n3"])
        hosts[standby].cut([active])
        hosts["n3"].cut([active])
        await until(lambda: hosts.role(standby) == "active")
        for name in hosts.running:
            hosts[name].cut([])
        await until(lambda: linked(hosts[active], standby, "n3"))
        await hosts.in_step()
        assert hosts.role(standby) == "active"


@played
async def test_a_host_that_stops_while_it_is_cut_off_leaves_no_connection() -> None:
    async with Hosts(Layout([ServerPlacement("main", ("/a",), node="n1")])) as hosts:
        async with OrderedUser(hosts["n1"].address, "cut", Service()) as user:
            session = hosts["n1"]._links["cut"].session
            hosts["n1"].cut(["cut"])
            await hosts.kill("n1")
            assert session.ended.done()
            await until(lambda: not any(user.connection.nodes.values()))


@played
async def test_a_server_that_lost_its_disk_and_has_no_standby_does_not_begin_anew(tmp_path: Path) -> None:
    async with Hosts(Layout([ServerPlacement("main", ("/a",), node="n1")]), tmp_path / "kept") as hosts:
        await hosts.kill("n1")
        await hosts.start("n1", first=False)
        assert hosts.role("n1") == "active"
        await hosts.kill("n1")
        await hosts.start("n1", first=False, data=tmp_path / "empty")
        assert hosts.role("n1") == "lost"
        await hosts.kill("n1")
        await hosts.start("n1", data=tmp_path / "another")
        assert hosts.role("n1") == "active"
