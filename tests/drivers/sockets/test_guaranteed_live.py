"""Guaranteed brokers over real sockets: nothing lost, nothing twice, in order, whatever breaks in between."""

from __future__ import annotations

import asyncio
import os
import random
import socket
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from live_network import User, until
from tidings.core.client.reliable_session import ReliableClient
from tidings.core.errors import ConnectionFailed, StoreCorrupt, StoreError, StoreFull
from tidings.core.events.subscription import Subscription
from tidings.core.facts import Misbehaviour, SubscriptionAccepted, SubscriptionProgress
from tidings.core.messages import PROTOCOL_VERSION, Hello, Refused, Subscribe, Welcome
from tidings.core.overlay.guaranteed.broker import GuaranteedBroker
from tidings.core.overlay.guaranteed.messages import Attach
from tidings.core.wire.codec import decode, encode
from tidings.core.wire.frames import FrameReader, frame
from tidings.drivers.address import Address
from tidings.drivers.processes.brokers import free_addresses
from tidings.drivers.sockets import session as session_module
from tidings.drivers.sockets.broker import BrokerServer
from tidings.drivers.sockets.guaranteed import GuaranteedSettings, store_path
from tidings.drivers.sockets.handshake import CROSSING
from tidings.scenarios.file.schema import ChainShape, Overlay, StarShape
from tidings.scenarios.file.topology import Topology, build_topology, neighbourhoods

pytestmark = pytest.mark.timeout(100)


def play(main: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        await asyncio.wait_for(main(), 90)

    asyncio.run(bounded())


def chain(brokers: int) -> Topology:
    return build_topology(Overlay(mode="guaranteed", shape=ChainShape(brokers=brokers)), 0)


def star(brokers: int) -> Topology:
    return build_topology(Overlay(mode="guaranteed", shape=StarShape(brokers=brokers)), 0)


class Network:
    """Guaranteed brokers of one topology in this process; `async with` starts and ends them all."""

    def __init__(self, topology: Topology, data: Path | None = None, delta: int = 1, **settings: Any) -> None:
        self.addresses = free_addresses(topology.brokers)
        self.facts: dict[str, list[object]] = {name: [] for name in topology.brokers}
        self.servers: dict[str, BrokerServer] = {}
        self._around = neighbourhoods(topology, delta + 1)
        self._deltas = dict.fromkeys(topology.brokers, delta)
        self._data = data
        self._settings = settings

    def make(self, name: str, **changes: Any) -> BrokerServer:
        labels = dict(self._around[name])
        label = labels.pop(name)
        settings = GuaranteedSettings(
            label, labels, delta=self._deltas[name], data=self._data, new=True, **self._settings
        )
        return BrokerServer(
            name,
            self.addresses[name],
            {peer: self.addresses[peer] for peer in labels},
            mode="guaranteed",
            guaranteed=settings._replace(**changes),
            emit=self.facts[name].append,
        )

    async def start(self, *names: str, **changes: Any) -> None:
        for name in names:
            self.servers[name] = self.make(name, **changes)
            await self.servers[name].start()

    async def stop(self, name: str) -> None:
        await self.servers.pop(name).stop()

    async def __aenter__(self) -> Network:
        await self.start(*self._around)
        return self

    async def __aexit__(self, *_: object) -> None:
        for name in list(self.servers):
            await self.stop(name)

    def __getitem__(self, name: str) -> BrokerServer:
        return self.servers[name]

    def user(self, name: str, *at: str, **options: Any) -> User:
        addresses = [self.addresses[broker] for broker in at]
        return User(addresses if len(at) > 1 else addresses[0], name, **options)  # type: ignore[arg-type]


def sessions(server: BrokerServer) -> list[str]:
    return sorted(session.peer for session in server._sessions)


def node(server: BrokerServer) -> GuaranteedBroker:
    assert isinstance(server._node, GuaranteedBroker)
    return server._node


def test_a_chain_of_brokers_delivers_in_order_and_confirms() -> None:
    async def main() -> None:
        async with (
            Network(chain(4)) as network,
            network.user("reader", "b3") as reader,
            network.user("near", "b0") as near,
            network.user("writer", "b0") as writer,
        ):
            assert isinstance(writer.connection.client, ReliableClient)
            await reader.subscribe("all", "/a/**")
            await near.subscribe("few", "/a/**", where="number >= 1990")
            for number in range(2_000):
                writer.publish(number, size_bytes=200)
            await until(lambda: writer.confirmed == 2_000)
            assert reader.numbers == list(range(2_000))
            assert near.numbers == list(range(1_990, 2_000))
            assert sessions(network["b1"]) == ["b0", "b2"]
            assert not node(network["b1"]).delivery.queue

    play(main)


def test_large_events_do_not_break_the_connection() -> None:
    """More waits to leave than the buffer's limit, and the peer reads all the while."""

    async def main() -> None:
        async with (
            Network(chain(2)) as network,
            network.user("reader", "b1") as reader,
            network.user("writer", "b0", buffer_limit_bytes=1_000_000) as writer,
        ):
            for server in network.servers.values():
                for session in server._sessions:
                    session.outbox.policy = session.outbox.policy._replace(limit_bytes=1_000_000)
            await reader.subscribe("all", "/a/**")
            for number in range(60):
                writer.publish(number, size_bytes=900_000)
            await until(lambda: reader.numbers == list(range(60)), 60)
            assert reader.links == writer.links == [(True, "")]

    play(main)


@pytest.mark.parametrize("stopped", ["b0", "b1", "b2"])
def test_a_broker_that_restarts_with_its_data_loses_nothing(stopped: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with (
            Network(chain(3), tmp_path) as network,
            network.user("reader", "b2") as reader,
            network.user("writer", "b0") as writer,
        ):
            await reader.subscribe("all", "/a/**")
            for number in range(600):
                writer.publish(number)
                if number == 200:
                    await network.stop(stopped)
                elif number == 400:
                    await network.start(stopped, new=False)
                elif number % 20 == 0:
                    await asyncio.sleep(0.01)
            await until(lambda: writer.confirmed == 600 and len(reader.numbers) >= 600, 60)
            assert reader.numbers == list(range(600))

    play(main)


def test_brokers_that_restart_again_and_again_lose_nothing(tmp_path: Path) -> None:
    generator = random.Random(7)

    async def main() -> None:
        async with (
            Network(star(4), tmp_path) as network,
            network.user("reader", "b2") as reader,
            network.user("other", "b3") as other,
            network.user("writer", "b1") as writer,
        ):
            await reader.subscribe("all", "/a/**")
            await other.subscribe("all", "/a/**")
            for number in range(500):
                writer.publish(number)
                if number % 100 == 50:
                    name = generator.choice(["b0", "b1", "b2"])
                    await network.stop(name)
                    await asyncio.sleep(generator.random())
                    await network.start(name, new=False)
                await asyncio.sleep(0.002)
            await until(lambda: writer.confirmed == 500, 60)
            await until(lambda: len(reader.numbers) >= 500 and len(other.numbers) >= 500, 60)
            assert reader.numbers == other.numbers == list(range(500))

    play(main)


def test_the_network_goes_on_while_a_broker_in_its_middle_is_away() -> None:
    async def main() -> None:
        async with (
            Network(chain(4)) as network,
            network.user("reader", "b3") as reader,
            network.user("writer", "b0") as writer,
        ):
            await reader.subscribe("all", "/a/**")
            await network.stop("b1")
            for number in range(50):
                writer.publish(number)
            await until(lambda: reader.numbers == list(range(50)) and writer.confirmed == 50, 30)
            assert "b2" in sessions(network["b0"])

    play(main)


def damage(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2 : len(content) // 2 + 64] = bytes(64)
    content[4096:4160] = bytes(64)
    path.write_bytes(content)


def test_a_damaged_store_is_refused_and_recovered_when_told_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with Network(chain(3), tmp_path) as network:
            async with network.user("reader", "b2") as reader, network.user("writer", "b0") as writer:
                await reader.subscribe("all", "/a/**")
                await network.stop("b1")
                damage(store_path(tmp_path, "b1"))
                with pytest.raises(StoreCorrupt, match="--recover") as caught:
                    await network.start("b1")
                assert "b1.db" in str(caught.value)
                assert "\n" not in str(caught.value)
                writer.publish(1)
                await network.start("b1", recover=True)
                assert "b1.db.damaged-1" in os.listdir(tmp_path)
                writer.publish(2)
                await until(lambda: reader.numbers == [1, 2], 30)
                await until(lambda: not node(network["b1"]).subscriptions.recovering, 30)
                async with network.user("third", "b1") as third:
                    third.publish(3)
                    await until(lambda: reader.numbers == [1, 2, 3], 30)
                    await until(lambda: third.confirmed == 1)

    play(main)
    assert "kept as" in caplog.text


def test_damage_that_shows_only_at_the_start_is_recovered_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with Network(chain(2), tmp_path) as network:
            await network.stop("b1")
            start, starts = GuaranteedBroker.start, []

            def fail_once(self: GuaranteedBroker) -> None:
                start(self)
                starts.append(self)
                if len(starts) == 1:
                    raise StoreCorrupt("a publication does not decode")

            monkeypatch.setattr(GuaranteedBroker, "start", fail_once)
            await network.start("b1", recover=True)
            assert len(starts) == 2
            await until(lambda: sessions(network["b1"]) == ["b0"])
            monkeypatch.setattr(GuaranteedBroker, "start", start)

    play(main)


def test_the_data_of_another_broker_are_refused(tmp_path: Path) -> None:
    async def main() -> None:
        network = Network(chain(2), tmp_path)
        await network.start("b0")
        other = network.make("b0")
        other.host.address = Address(port=0)
        with pytest.raises(StoreError, match="in use by another broker"):
            await other.start()
        await network.stop("b0")
        store_path(tmp_path, "b0").rename(store_path(tmp_path, "b1"))
        with pytest.raises(StoreError, match=r"cannot start b1: the data .* name b0, not b1"):
            await network.start("b1")
        (tmp_path / "file").write_text("")
        with pytest.raises(StoreError, match="cannot use"):
            await network.start("b0", data=tmp_path / "file" / "below")

    play(main)


def test_settings_that_make_no_sense_are_refused() -> None:
    settings = GuaranteedSettings((0,), {"b1": (0, 0)})
    around = {"b1": Address(port=1)}
    for mode, given, neighbours in (
        ("best-effort", settings, around),
        ("guaranteed", None, around),
        ("guaranteed", settings, {}),
        ("guaranteed", settings._replace(labels={}), around),
        ("guaranteed", settings._replace(window=0), around),
    ):
        with pytest.raises(ValueError, match=r"go together|no address|no label|at least 1"):
            BrokerServer("b0", Address(port=0), neighbours, mode=mode, guaranteed=given)

    async def main() -> None:
        far = settings._replace(labels={"b1": (0, 0, 0, 0, 0)})
        server = BrokerServer("b0", Address(port=0), around, mode="guaranteed", guaranteed=far)
        with pytest.raises(StoreError, match="beyond the reach"):
            await server.start()
        server = BrokerServer(
            "b0", Address(port=0), around, mode="guaranteed", guaranteed=settings, transport="udp"
        )
        with pytest.raises(ConnectionFailed, match="requires TCP"):
            await server.start()

    play(main)


def test_brokers_of_different_delta_refuse_each_other_with_the_reason(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main() -> None:
        network = Network(chain(2))
        await network.start("b0", delta=1)
        await network.start("b1", delta=3)

        def told(name: str) -> bool:
            return any(isinstance(fact, Misbehaviour) for fact in network.facts[name])

        await until(lambda: told("b0") or told("b1"))
        await asyncio.sleep(1.0)
        found = [fact for name in ("b0", "b1") for fact in network.facts[name]]
        complaints = [fact for fact in found if isinstance(fact, Misbehaviour)]
        assert len(complaints) < 40, "they dial without a pause"
        for name in ("b0", "b1"):
            assert not node(network[name]).sessions.established("b1" if name == "b0" else "b0")
            await network.stop(name)

    play(main)
    assert "they must agree" in caplog.text
    assert caplog.text.count("b1 has delta = 3, b0 has delta = 1") <= 3


def test_brokers_of_different_modes_refuse_each_other(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        network = Network(chain(2))
        await network.start("b1")
        plain = BrokerServer("b0", network.addresses["b0"], {"b1": network.addresses["b1"]})
        await plain.start()
        await until(lambda: plain.host.refusals > 0 and network["b1"].host.refusals > 0)
        await plain.stop()
        await network.stop("b1")

    play(main)
    assert "runs in mode 'best-effort', not 'guaranteed'" in caplog.text


class Peer:
    """A broker made of a bare connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self.frames = FrameReader()

    @classmethod
    async def dial(cls, address: Address, name: str) -> Peer:
        peer = cls(*await asyncio.open_connection(*address))
        peer.send(Hello(PROTOCOL_VERSION, name, "broker", "guaranteed"))
        return peer

    def send(self, message: Any) -> None:
        self.writer.write(frame(encode(message)))

    async def first(self) -> Any:
        while True:
            data = await self.reader.read(65_536)
            assert data, "the connection was closed"
            for body in self.frames.feed(data):
                return decode(bytes(body))[0]


@pytest.mark.parametrize(("other", "taken"), [("b0", True), ("b2", False)])
def test_of_crossing_dials_that_of_the_lower_name_survives(other: str, taken: bool) -> None:
    """The peer is played by hand: what the broker does with its Hello depends on the names alone."""

    async def main() -> None:
        peers: asyncio.Queue[Peer] = asyncio.Queue()

        async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            peers.put_nowait(Peer(reader, writer))

        listening = await asyncio.start_server(accept, "127.0.0.1", 0)
        address = Address("127.0.0.1", listening.sockets[0].getsockname()[1])
        settings = GuaranteedSettings((0,), {other: (0, 0)}, delta=1, new=True)
        server = BrokerServer("b1", Address(port=0), {other: address}, mode="guaranteed", guaranteed=settings)
        await server.start()
        theirs = await peers.get()  # the broker's dial is opening: its Hello is not answered yet
        assert (await theirs.first()).node == "b1"
        ours = await Peer.dial(server.address, other)
        answer = await ours.first()
        if taken:
            assert isinstance(answer, Welcome)
            assert await theirs.reader.read() == b""  # the broker's own dial ended
        else:
            assert answer == Refused(CROSSING)
            theirs.send(Welcome(PROTOCOL_VERSION, other, "guaranteed"))
            await until(lambda: sessions(server) == [other])
            late = await Peer.dial(server.address, other)  # it crossed, and arrives after the Welcome
            assert await late.first() == Refused(CROSSING)
            late.writer.close()
        await until(lambda: sessions(server) == [other])
        assert peers.empty()
        for peer in (ours, theirs):
            peer.writer.close()
        await server.stop()
        listening.close()

    play(main)


@pytest.mark.parametrize("attempt", range(5))
def test_crossing_dials_end_in_one_connection(attempt: int) -> None:
    async def main() -> None:
        network = Network(chain(3), delta=1)
        servers = [network.make(name) for name in ("b0", "b1", "b2")]
        await asyncio.gather(*(server.start() for server in servers))
        ends = (servers[0], servers[2])
        await until(lambda: all(node(server).sessions.established("b1") for server in ends))
        await until(lambda: sessions(servers[1]) == ["b0", "b2"])
        await asyncio.gather(*(server.stop() for server in servers))

    play(main)


def test_a_peer_that_lost_the_connection_takes_its_place_again() -> None:
    async def main() -> None:
        settings = GuaranteedSettings((0,), {"a": (0, 0)}, delta=1, new=True)
        around = {"a": free_addresses(["a"])["a"]}
        server = BrokerServer("b", Address(port=0), around, mode="guaranteed", guaranteed=settings)
        await server.start()
        first = await Peer.dial(server.address, "a")
        assert isinstance(await first.first(), Welcome)
        standing = server._port.sessions["a"]
        second = await Peer.dial(server.address, "a")
        assert isinstance(await second.first(), Welcome)
        assert sessions(server) == ["a"]
        assert server._port.sessions["a"] is not standing
        for peer in (first, second):
            peer.writer.close()
        await server.stop()

    play(main)


def test_a_client_that_takes_nothing_holds_up_nobody_and_loses_nothing() -> None:
    events = 3_000

    async def main() -> None:
        async with (
            Network(chain(2), window=64) as network,
            network.user("slow", "b1", acknowledges=False) as slow,
            network.user("fast", "b1") as fast,
            network.user("writer", "b0") as writer,
        ):
            await slow.subscribe("all", "/a/**")
            await fast.subscribe("all", "/a/**")
            for number in range(events):
                writer.publish(number)
                if number % 100 == 0:
                    await asyncio.sleep(0)
            await until(lambda: fast.numbers == list(range(events)), 60)
            await until(lambda: writer.confirmed == events, 60)
            assert slow.numbers == list(range(64))
            shown = 0
            while len(slow.numbers) < events:
                await until(lambda n=shown: len(slow.numbers) > n)  # type: ignore[misc]
                shown = len(slow.numbers)
                slow.finish()
            assert slow.numbers == list(range(events))
            assert slow.links == [(True, "")]

    play(main)


def test_a_client_that_does_not_read_is_disconnected_and_holds_up_nobody(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(session_module, "STALL_SECONDS", 0.3)
    events = 1_500

    async def main() -> None:
        network = Network(chain(1))
        server = network.make("b0", window=4_096)
        server._client_policy = server._client_policy._replace(limit_bytes=1_000_000)
        await server.start()
        peer = await asyncio.to_thread(socket.create_connection, server.address)
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        for message in (
            Hello(PROTOCOL_VERSION, "stuck", "client"),
            Attach(1, False),
            Subscribe("all", ("/a/**",), None, "none"),
        ):
            await asyncio.to_thread(peer.sendall, frame(encode(message)))
        async with network.user("reader", "b0") as reader, network.user("writer", "b0") as writer:
            await reader.subscribe("all", "/a/**")
            for number in range(events):
                writer.publish(number, size_bytes=20_000)
                if number % 50 == 0:
                    await writer.connection.drain()
            await until(lambda: reader.numbers == list(range(events)), 60)
            await until(lambda: sessions(server) == ["reader", "writer"], 30)
            await until(lambda: writer.confirmed == events, 60)
        await asyncio.to_thread(peer.close)
        await server.stop()

    play(main)


def test_what_is_cut_off_comes_after_the_healing() -> None:
    async def main() -> None:
        async with (
            Network(chain(3)) as network,
            network.user("reader", "b2") as reader,
            network.user("writer", "b0") as writer,
        ):
            await reader.subscribe("all", "/a/**")
            writer.publish(0)
            await until(lambda: reader.numbers == [0])
            network["b0"].cut({"b1", "b2"})
            for number in range(1, 30):
                writer.publish(number)
            await until(lambda: not node(network["b0"]).sessions.established("b1"), 20)
            await until(lambda: writer.confirmed == 30, 20)  # parked at b0
            assert reader.numbers == [0]
            network["b0"].cut(frozenset())
            assert not network["b0"].host.black_holes.sessions
            await until(lambda: reader.numbers == list(range(30)), 30)
            await until(lambda: sessions(network["b0"]) == ["b1", "writer"])

    play(main)


def test_a_cut_off_client_is_shown_everything_after_the_healing() -> None:
    async def main() -> None:
        async with (
            Network(chain(2)) as network,
            network.user("reader", "b1") as reader,
            network.user("writer", "b0") as writer,
        ):
            await reader.subscribe("all", "/a/**")
            network["b1"].cut({"reader"})
            for number in range(20):
                writer.publish(number)
            await until(lambda: writer.confirmed == 20, 20)
            late = network.user("late", "b1", connect_timeout_seconds=0.3)
            network["b1"].cut({"reader", "late"})
            with pytest.raises(ConnectionFailed, match="no answer in time"):
                await late.connection.open()
            assert reader.numbers == []
            network["b1"].cut({"late"})
            await until(lambda: reader.numbers == list(range(20)), 20)
            network["b1"].cut(())
            await late.connection.open()
            await late.connection.close()

    play(main)


def test_a_disk_that_is_full_ends_the_session_and_not_the_broker(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with Network(chain(2), tmp_path) as network:
            store = network["b1"].host.turns.store
            assert store is not None
            await until(lambda: node(network["b1"]).sessions.established("b0"))
            write = store.write
            full = True

            def refuse(changes: Sequence[Any]) -> None:
                if full:
                    raise StoreFull("b1.db: no room to write")
                write(changes)

            store.write = refuse  # type: ignore[method-assign]
            async with network.user("reader", "b0") as reader, network.user("writer", "b1") as writer:
                reader.connection.client.subscribe(Subscription("all", ("/a/**",), None))
                await until(lambda: "no room to write" in caplog.text)
                full = False
                await until(lambda: SubscriptionAccepted("all") in reader.facts, 30)
                writer.publish(1)
                await until(lambda: reader.numbers == [1] and writer.confirmed == 1, 30)

    play(main)
    assert caplog.text.count("no room to write") == 1


def test_a_client_moves_to_another_broker() -> None:
    async def main() -> None:
        async with (
            Network(chain(3)) as network,
            network.user("reader", "b2") as reader,
            network.user("writer", "b0", "b1") as writer,
        ):
            await reader.subscribe("all", "/a/**")
            writer.publish(0)
            await until(lambda: writer.confirmed == 1)
            assert writer.connection.broker == "b0"
            await network.stop("b0")
            for number in range(1, 20):
                writer.publish(number)
            await until(lambda: writer.confirmed == 20, 30)
            assert writer.connection.broker == "b1"
            await until(lambda: reader.numbers == list(range(20)), 30)

    play(main)


def test_a_client_of_several_addresses_takes_the_first_that_answers() -> None:
    async def main() -> None:
        async with Network(chain(1)) as network:
            nowhere = free_addresses(["nowhere"])["nowhere"]
            async with User([nowhere, network.addresses["b0"]], "c") as user:  # type: ignore[arg-type]
                assert user.connection.broker == "b0"
            with pytest.raises(ConnectionFailed, match="cannot reach"):
                await User([nowhere, nowhere], "d").connection.open()  # type: ignore[arg-type]

    play(main)


def test_a_subscription_tells_who_does_not_know_it_yet() -> None:
    async def main() -> None:
        network = Network(chain(3))
        await network.start("b0", "b1")
        async with network.user("reader", "b1") as reader:
            reader.connection.client.subscribe(Subscription("all", ("/a/**",), None))

            def progress() -> list[SubscriptionProgress]:
                return [fact for fact in reader.facts if isinstance(fact, SubscriptionProgress)]

            await until(lambda: bool(progress()), 20)
            assert any("b2" in text for text in progress()[0].uncovered)
            await network.start("b2")
            await until(lambda: SubscriptionAccepted("all") in reader.facts, 20)
        for name in ("b0", "b1", "b2"):
            await network.stop(name)

    play(main)


def joiner(network: Network, name: str, data: Path, join: Address | None, **options: Any) -> BrokerServer:
    network.addresses |= free_addresses([name])
    settings = GuaranteedSettings(None, {}, data=data, join=join, **options)
    return BrokerServer(name, network.addresses[name], mode="guaranteed", guaranteed=settings)


def test_a_broker_joins_a_running_network_comes_back_to_its_place_and_leaves(tmp_path: Path) -> None:
    async def main() -> None:
        async with Network(chain(3), tmp_path / "net") as network, network.user("reader", "b0") as reader:
            await reader.subscribe("all", "/a/**")
            server = joiner(network, "b9", tmp_path / "b9", network.addresses["b2"])
            await server.start()
            assert node(server).neighbourhood.label == (0, 0, 0, 0)
            assert node(server).delta == 1
            async with network.user("writer", "b9") as writer:
                for number in range(5):
                    writer.publish(number)
                await until(lambda: reader.numbers == [0, 1, 2, 3, 4])
                await server.stop()
                for number in range(5, 10):
                    writer.publish(number)
                server = joiner(network, "b9", tmp_path / "b9", None)
                server.host.address = writer.connection._addresses[0]
                await server.start()
                assert node(server).neighbourhood.label == (0, 0, 0, 0)
                await until(lambda: reader.numbers == list(range(10)))
            await server.leave()
            await server.stop()
            await until(lambda: "b9" not in node(network["b2"]).neighbourhood)
            again = joiner(network, "b9", tmp_path / "again", network.addresses["b2"])
            with pytest.raises(ConnectionFailed, match="has left this network"):
                await again.start()

    play(main)


def test_who_cannot_join_hears_why(tmp_path: Path) -> None:
    async def main() -> None:
        async with Network(chain(2), tmp_path / "net") as network:
            with pytest.raises(ConnectionFailed, match=r"cannot join at .*: there is a broker named b0 at 0"):
                await joiner(network, "b0", tmp_path / "x", network.addresses["b1"]).start()
            nobody = free_addresses(["x"])["x"]
            with pytest.raises(ConnectionFailed, match=r"cannot join at .*: connection refused"):
                await joiner(network, "b8", tmp_path / "y", nobody).start()
            with pytest.raises(StoreError, match="has no place in the tree"):
                await joiner(network, "b8", tmp_path / "z", None).start()
            with pytest.raises(ConnectionFailed, match="b0 cannot leave: b1"):
                await network["b0"].leave()

    play(main)
