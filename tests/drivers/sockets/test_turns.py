"""Persist before send, live: one commit for the handlers of a turn, and nothing leaves before it, or if it fails."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from live_network import User, until
from live_ordering import Hosts, OrderedUser, Service, played
from tidings.cli.shared.running import first_of
from tidings.core.errors import StoreError
from tidings.core.events.subscription import Subscription
from tidings.core.facts import SubscriptionAccepted
from tidings.core.ordering.layout import single
from tidings.drivers.address import Address
from tidings.drivers.sockets.broker import BrokerServer
from tidings.drivers.sockets.guaranteed import GuaranteedSettings
from tidings.drivers.sockets.node_host import NodeHost
from tidings.drivers.sockets.stream import StreamSession
from tidings.drivers.sockets.turns import Turns
from tidings.storage.disk_store import DiskStore

pytestmark = pytest.mark.timeout(60)
ONE = single("n1", ("/a", "/b"))


class Watched:
    """Counts what stores do, and what leaves while something waits."""

    def __init__(self) -> None:
        self.stores: list[DiskStore] = []
        self.writes = self.commits = self.sent = self.too_early = 0
        self.fails = False


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Watched:
    seen = Watched()
    init, write, commit, leave = DiskStore.__init__, DiskStore.write, DiskStore.commit, StreamSession.write

    def make(self: DiskStore, *arguments: Any, **named: Any) -> None:
        init(self, *arguments, **named)
        seen.stores.append(self)

    def count_write(self: DiskStore, changes: Any) -> None:
        seen.writes += 1
        write(self, changes)

    def count_commit(self: DiskStore) -> None:
        if self._pending and seen.fails:
            raise StoreError(f"{self.path}: disk I/O error")
        seen.commits += bool(self._pending)
        commit(self)

    def look(self: StreamSession, chunk: bytes | bytearray) -> None:
        if isinstance(self.host, NodeHost):
            seen.sent += 1
            seen.too_early += any(store._pending for store in seen.stores)
        leave(self, chunk)

    monkeypatch.setattr(DiskStore, "__init__", make)
    monkeypatch.setattr(DiskStore, "write", count_write)
    monkeypatch.setattr(DiskStore, "commit", count_commit)
    monkeypatch.setattr(StreamSession, "write", look)
    return seen


async def publish_some(hosts: Hosts, events: int) -> None:
    service, address = Service(), hosts["n1"].address
    async with OrderedUser(address, "x", service) as x, OrderedUser(address, "y", service) as y:
        key = await x.subscribe(0, 1)
        for number in range(events):
            x.publish(number % 2, f"x{number}")
            y.publish(0, f"y{number}")
        await until(lambda: len(x.shown(key)) == 2 * events)


@played
async def test_a_sequencer_commits_before_it_sends(tmp_path: Path, watched: Watched) -> None:
    async with Hosts(ONE, tmp_path) as hosts:
        await publish_some(hosts, 50)
    assert watched.sent > 5 and watched.commits > 3
    assert watched.commits <= watched.writes
    assert watched.too_early == 0


@played
async def test_a_driver_that_does_not_commit_first_is_seen(
    tmp_path: Path, watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Planted: the turn is committed, but not before something leaves."""
    monkeypatch.setattr(NodeHost, "persist", lambda self: True)
    monkeypatch.setattr(Turns, "open", lambda self: asyncio.get_running_loop().call_later(0.05, self.persist))
    async with Hosts(ONE, tmp_path) as hosts:
        await publish_some(hosts, 5)
    assert watched.too_early > 0


@played
async def test_a_turn_has_one_commit(tmp_path: Path, watched: Watched) -> None:
    turns = Turns(lambda error: None)
    store = turns.store = DiskStore(tmp_path / "store", on_pending=turns.open)
    for number in range(5):
        asyncio.get_running_loop().call_soon(store.write, [("log", b"%d" % number, b"")])
    acts: list[int] = []
    await until(lambda: watched.commits > 0)
    turns.after(lambda: acts.append(watched.commits))
    await until(lambda: bool(acts))
    assert (watched.writes, watched.commits, acts) == (5, 1, [1])
    store.close()


def server_in(data: Path) -> BrokerServer:
    settings = GuaranteedSettings((1,), {}, data=data, new=True)
    return BrokerServer("b0", Address(port=0), mode="guaranteed", guaranteed=settings)


@played
async def test_a_broker_whose_commit_fails_says_nothing_more_and_stops(
    tmp_path: Path, watched: Watched, caplog: pytest.LogCaptureFixture
) -> None:
    server = server_in(tmp_path)
    await server.start()
    living = asyncio.create_task(first_of(asyncio.Event().wait(), server.failed()))
    async with User(server.address, "reader") as reader:
        await reader.subscribe("first", "/a/**")
        watched.fails = True
        reader.connection.client.subscribe(Subscription("second", ("/b/**",), None))
        with pytest.raises(StoreError, match="disk I/O error"):
            await living
        await until(lambda: not server._sessions)
        assert SubscriptionAccepted("second") not in reader.facts
        assert "stopping b0: " in caplog.text
    await server.stop()
    watched.fails = False
    again = server_in(tmp_path)
    await again.start()
    assert again.status()["subscriptions"] == 1, "what was not committed is not there"
    await again.stop()


@played
async def test_a_sequencer_whose_commit_fails_gives_no_number(tmp_path: Path, watched: Watched) -> None:
    service = Service()
    async with Hosts(ONE, tmp_path) as hosts:
        async with OrderedUser(hosts["n1"].address, "x", service) as x:
            await x.subscribe(0)
            watched.fails = True
            x.publish(0, "lost")
            with pytest.raises(StoreError, match="disk I/O error"):
                await hosts["n1"].failed()
            assert service.stamps == []
            await hosts.kill("n1")
            watched.fails = False
            await hosts.start("n1")
            await x.published()
    assert service.stamps == [(0, 1)]
