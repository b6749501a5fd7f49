"""Epidemic brokers over real sockets: what is lost between them comes all the same, once; and who is ignored."""

from __future__ import annotations

import asyncio
import logging
import random
import socket
import sys
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from breadth import examples
from live_network import EpidemicBrokers, User, known_to, until
from tidings.core.errors import ConnectionFailed
from tidings.core.events.event import Publication, check_publication, make_publication
from tidings.core.events.run import Run, RunMaker, singles
from tidings.core.facts import Delivered
from tidings.core.messages import PROTOCOL_VERSION, Hello, Message, Ping, Refused
from tidings.core.overlay.epidemic.messages import Ask, Carried, Fragment, HighWater, Offer, Solicit
from tidings.core.overlay.epidemic.settings import Algorithm, RecoverySettings
from tidings.core.overlay.labels import label_text
from tidings.core.wire.codec import decode, encode, encode_publications
from tidings.core.wire.frames import frame
from tidings.drivers.address import Address
from tidings.drivers.sockets.broker import BrokerServer
from tidings.drivers.sockets.epidemic import (
    DatagramRouter,
    EpidemicSettings,
    is_gossip,
    loopback_peer,
    unpinned,
)
from tidings.drivers.sockets.listening import Listener
from tidings.drivers.sockets.loop import loop_factory
from tidings.drivers.sockets.outbox import DATAGRAM_MAX_BYTES
from tidings.drivers.sockets.udp import DatagramEndpoint, Peer
from tidings.scenarios.file.schema import BernoulliLoss, GilbertLoss, Loss

pytestmark = pytest.mark.timeout(60)

FIVE = (None, 0, 0, 1, 1)
"""The parents of b0 to b4."""
CHAIN = (None, 0, 1)
BERNOULLI = BernoulliLoss(rate=0.1)
GILBERT = GilbertLoss(rate=0.1, burst=3)


def play(main: Callable[[], Awaitable[None]], *, uvloop: bool = False) -> None:
    with asyncio.Runner(loop_factory=loop_factory() if uvloop else None) as runner:
        runner.run(asyncio.wait_for(main(), 50))  # type: ignore[arg-type]


def recovery(algorithm: Algorithm = "auto") -> RecoverySettings:
    """Ten rounds a second, or more: tests do not wait long. So many rounds pass soon, and none gives up."""
    return RecoverySettings(algorithm=algorithm, interval_ns=100_000_000, max_attempts=10_000)


def carried(sequence: int, by: str = "push", payload: bytes = b"") -> Carried:
    publication = make_publication("w", 0, sequence, "/a/b", {"number": sequence}, payload, 1)
    return Carried("b2", (), (), by, publication)


async def publish(writer: User, count: int, size_bytes: int = 10) -> None:
    """Not all in one turn: a network has to have its turns, too."""
    for number in range(count):
        writer.publish(number, size_bytes=size_bytes)
        if number % 5 == 4:
            await asyncio.sleep(0.005)


async def arrived(readers: list[User], count: int) -> None:
    await until(
        lambda: all(len(reader.numbers) >= count for reader in readers),
        seconds=30,
        what=lambda: {
            reader.connection.name: sorted(set(range(count)) - set(reader.numbers))  # type: ignore[arg-type]
            for reader in readers
        },
    )


class Readers:
    """A writer at b2 and readers at b0, b3 and b4."""

    def __init__(self, brokers: EpidemicBrokers) -> None:
        self.writer = User(brokers[2].address, "writer")
        self.readers = [User(brokers[number].address, f"reader{number}") for number in (0, 3, 4)]
        self._brokers = brokers
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Readers:
        for user in (self.writer, *self.readers):
            await self._stack.enter_async_context(user)
        for reader in self.readers:
            await reader.subscribe("all", "/a/**")
        await self._brokers.acquainted()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    @property
    def recovered(self) -> int:
        return sum(len(reader.recovered_by) for reader in self.readers)

    def check_once(self, count: int) -> None:
        for reader in self.readers:
            assert sorted(reader.numbers) == list(range(count)), reader.connection.name  # type: ignore[type-var]


# --- What is lost comes all the same


@pytest.mark.parametrize("loss", [BERNOULLI, GILBERT], ids=["bernoulli", "gilbert"])
@pytest.mark.parametrize(("count", "size_bytes"), [(100, 10), (12, 50_000)], ids=["small", "large"])
@pytest.mark.parametrize("uvloop", [False, True], ids=["asyncio", "uvloop"])
def test_all_events_arrive_once_though_brokers_lose_a_tenth(
    loss: Loss, count: int, size_bytes: int, uvloop: bool
) -> None:
    async def main() -> None:
        async with EpidemicBrokers(FIVE, recovery(), loss=loss) as brokers, Readers(brokers) as users:
            await publish(users.writer, count, size_bytes)
            await arrived(users.readers, count)
            assert users.recovered > 0
            users.check_once(count)
            assert users.writer.confirmed == count
            for reader in users.readers:
                facts = [fact for fact in reader.facts if isinstance(fact, Delivered)]
                assert all(fact.stretch.event().payload == bytes(size_bytes) for fact in facts)
            assert any(server.status()["lost_on_purpose"] for server in brokers.servers)

    play(main, uvloop=uvloop)


def test_without_recovery_some_are_missing() -> None:
    async def main() -> None:
        async with (
            EpidemicBrokers(FIVE, recovery("none"), loss=BERNOULLI) as brokers,
            Readers(brokers) as users,
        ):
            count = 200
            await publish(users.writer, count)
            await until(lambda: users.writer.confirmed == count)
            # What is published later and arrives came after all that was published before, or that is lost.
            for number in range(count, count + 100):
                users.writer.publish(number)
                await asyncio.sleep(0.002)
            await until(lambda: all(max(reader.numbers) >= count for reader in users.readers))  # type: ignore[type-var]
            for reader in users.readers:
                early = [number for number in reader.numbers if number < count]  # type: ignore[operator]
                assert len(early) == len(set(early)) < count
            assert users.recovered == 0

    play(main)


@pytest.mark.parametrize("algorithm", ["subscriber-pull", "publisher-pull", "combined", "push+pull"])
def test_every_pull_recovers_everything(algorithm: Algorithm) -> None:
    async def main() -> None:
        async with (
            EpidemicBrokers(FIVE, recovery(algorithm), loss=BERNOULLI) as brokers,
            Readers(brokers) as users,
        ):
            await publish(users.writer, 60)
            await arrived(users.readers, 60)
            users.check_once(60)
            names = {by for reader in users.readers for by in reader.recovered_by}
            possible = {
                "combined": {"subscriber-pull", "publisher-pull"},
                "push+pull": {"push", "subscriber-pull"},
            }
            assert names
            assert names <= possible.get(algorithm, {algorithm})

    play(main)


def test_brokers_without_labels_get_them_from_their_neighbours() -> None:
    async def main() -> None:
        async with EpidemicBrokers(FIVE, recovery(), loss=BERNOULLI, labelled=False) as brokers:

            def labels() -> list[object]:
                return [server.status()["label"] for server in brokers.servers]

            await until(lambda: None not in labels(), what=labels)
            found = labels()
            assert found[0] == label_text((0,))
            assert len(set(found)) == 5
            assert all(str(found[child]).startswith(f"{found[1]}.") for child in (3, 4))

    play(main)


def test_a_broker_that_restarts_elsewhere_is_reached_there() -> None:
    """b2 comes back with another port: b0, two links away, learns where it is now."""

    async def main() -> None:
        async with EpidemicBrokers(CHAIN, recovery()) as brokers:
            await brokers.acquainted()
            old = brokers[2].address
            await brokers[2].stop()
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as taken:
                taken.bind(old)  # so that it gets another
                # b1 dials b2 where it was: let the later name be the one that is dialled from now on.
                again = BrokerServer(
                    "b2", neighbours=brokers[2].neighbours, mode="epidemic", epidemic=brokers.settings(2)
                )
                await again.start()
                brokers.servers[2] = again
                assert again.address != old
                await brokers[1].stop()
                middle = BrokerServer(
                    "b1",
                    brokers[1].address,
                    {"b0": brokers[0].address, "b2": again.address},
                    mode="epidemic",
                    epidemic=brokers.settings(1),
                )
                await middle.start()
                brokers.servers[1] = middle
                post = brokers[0]._router
                assert post is not None
                await until(
                    lambda: "b2" in post.sinks and post.sinks["b2"].peer == tuple(again.address),
                    what=lambda: {name: box.peer for name, box in post.sinks.items()},
                )

    play(main)


def test_a_broker_that_comes_back_at_once_is_dialled_again_before_any_silence(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """b0 dials b1; nothing but b1's own word can tell it that the session is gone."""
    monkeypatch.setattr("tidings.drivers.sockets.udp.SILENT_SECONDS", 1_000.0)

    async def main() -> None:
        async with EpidemicBrokers((None, 0), recovery()) as brokers:
            async with (
                User(brokers[0].address, "writer") as writer,
                User(brokers[1].address, "reader") as reader,
            ):
                await reader.subscribe("r", "/a/**")
                old = brokers[1]
                await old.stop()
                neighbours = {"b0": brokers[0].address}
                brokers.servers[1] = BrokerServer(
                    "b1", old.address, neighbours, mode="epidemic", epidemic=brokers.settings(1)
                )
                await brokers[1].start()
                await until(lambda: reader.links[-1] == (True, "") and len(reader.links) >= 3)
                for number in range(1_000):  # the subscription takes its way through the network again
                    if reader.numbers:
                        break
                    writer.publish(number)
                    await asyncio.sleep(0.02)
                assert reader.numbers

    play(main)


def test_a_hello_that_comes_before_the_broker_is_ready_is_answered_later(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    listen = BrokerServer._listen

    async def listen_and_wait(server: BrokerServer) -> None:
        await listen(server)
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as early:
            early.sendto(encode(Hello(PROTOCOL_VERSION, "b0", "broker", "epidemic")), server.address)
        await asyncio.sleep(0.1)

    async def main() -> None:
        async with EpidemicBrokers((None, 0), recovery()) as brokers:
            await until(lambda: all(server.status()["sessions"] for server in brokers.servers))
            assert brokers[1].host.refusals == 0

    monkeypatch.setattr(BrokerServer, "_listen", listen_and_wait)
    play(main)
    assert "Traceback" not in caplog.text


def test_who_is_cut_off_gets_nothing_and_catches_up_when_it_is_healed() -> None:
    async def main() -> None:
        async with EpidemicBrokers(CHAIN, recovery()) as brokers:
            async with (
                User(brokers[0].address, "writer") as writer,
                User(brokers[1].address, "near") as near,
                User(brokers[2].address, "far") as far,
            ):
                await near.subscribe("n", "/a/**")
                await far.subscribe("f", "/a/**")
                await brokers.acquainted()
                await publish(writer, 5)
                await arrived([near, far], 5)
                for number in (0, 1):
                    brokers[number].cut(["b2"])
                brokers[2].cut(["b0", "b1"])
                for number in range(5, 25):
                    writer.publish(number)
                await arrived([near], 25)
                await asyncio.sleep(0.5)  # several rounds of gossip
                assert far.numbers == list(range(5))
                for server in brokers.servers:
                    server.cut([])
                await arrived([far], 25)
                assert sorted(far.numbers) == list(range(25))  # type: ignore[type-var]

    play(main)


# --- Once, whatever the network does


def test_datagrams_that_come_twice_show_no_event_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything is sent twice at once, and all but the handshakes again at the end."""
    said: list[tuple[DatagramEndpoint, bytes, Peer]] = []
    write = DatagramEndpoint.write

    def write_twice(endpoint: DatagramEndpoint, chunk: bytes | bytearray, peer: Peer) -> None:
        said.append((endpoint, bytes(chunk), peer))
        write(endpoint, chunk, peer)
        write(endpoint, chunk, peer)

    async def main() -> None:
        async with EpidemicBrokers(FIVE, recovery(), loss=BERNOULLI) as brokers, Readers(brokers) as users:
            await publish(users.writer, 40)
            await publish_large(users.writer, 40, 3)
            await arrived(users.readers, 43)
            for endpoint, chunk, peer in said.copy():
                if not isinstance(decode(chunk)[0], Hello | Refused):
                    write(endpoint, chunk, peer)
            users.writer.publish(43)
            await arrived(users.readers, 44)
            users.check_once(44)

    monkeypatch.setattr(DatagramEndpoint, "write", write_twice)
    play(main)


async def publish_large(writer: User, first: int, count: int) -> None:
    for number in range(first, first + count):
        writer.publish(number, size_bytes=20_000)
        await asyncio.sleep(0.01)


def test_what_fits_into_no_datagram_is_counted_and_stops_nothing() -> None:
    async def main() -> None:
        async with EpidemicBrokers(CHAIN, recovery()) as brokers:
            async with (
                User(brokers[0].address, "writer") as writer,
                User(brokers[2].address, "far") as far,
            ):
                await far.subscribe("f", "/a/**")
                await brokers.acquainted()
                for broker in ("b1", "b2"):  # a neighbour, and one that is none
                    brokers[0]._port.send(broker, carried(99, payload=bytes(DATAGRAM_MAX_BYTES)))
                writer.publish(1)
                await until(lambda: far.numbers == [1])
                status: dict[str, Any] = brokers[0].status()
                [session] = [one for one in status["sessions"] if one["peer"] == "b1"]
                assert (session["oversize"], status["datagrams"]["oversize"]) == (1, 1)

    play(main)


# --- Who is ignored


def test_strangers_are_counted_and_change_nothing() -> None:
    strange: list[Message] = [
        carried(99),
        carried(98, by=""),
        Offer("b1", b"", (("w", 0, ((1, 50),)),), "push"),
        Ask((("writer", 0, ((1, 50),)),), (), "push"),
        Solicit("b1", b"", (), (), (), "subscriber-pull"),
        Ping(1),
    ]
    generator = random.Random(1)
    garbage = [generator.randbytes(size) for size in (0, 1, 2, 50, 1_000, 60_000)]

    async def main() -> None:
        async with EpidemicBrokers(CHAIN, recovery()) as brokers:
            async with (
                User(brokers[0].address, "writer") as writer,
                User(brokers[2].address, "far") as far,
                User(brokers[0].address, "near") as near,
            ):
                await near.subscribe("n", "/a/**")
                await far.subscribe("f", "/a/**")
                await brokers.acquainted()

                def strangers() -> object:
                    return brokers[0].status()["datagrams"]["strangers"]  # type: ignore[index]

                before = strangers()
                assert isinstance(before, int)
                with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
                    sent = [*map(encode, strange), *garbage]
                    for datagram in sent:
                        stranger.sendto(datagram, brokers[0].address)
                    await until(lambda: strangers() == before + len(sent), what=strangers)
                    stranger.setblocking(False)
                    with pytest.raises(BlockingIOError):
                        stranger.recv(1)  # nobody answered
                await publish(writer, 10)
                await arrived([near, far], 10)
                assert sorted(near.numbers) == sorted(far.numbers) == list(range(10))  # type: ignore[type-var]

    play(main)


def test_garbage_from_a_neighbour_ends_the_session_and_it_comes_back() -> None:
    async def main() -> None:
        async with EpidemicBrokers((None, 0), recovery()) as brokers:
            async with (
                User(brokers[0].address, "writer") as writer,
                User(brokers[1].address, "reader") as reader,
            ):
                await reader.subscribe("r", "/a/**")
                endpoint = brokers[0]._endpoint
                assert endpoint is not None
                endpoint.write(b"\xc1garbage", tuple(brokers[1].address))
                await until(lambda: brokers[1].host.bad_frames == 1)
                await publish(writer, 10)
                await arrived([reader], 10)
                assert sorted(reader.numbers) == list(range(10))  # type: ignore[type-var]

    play(main)


@pytest.mark.parametrize("epidemic_dials", [False, True])
def test_brokers_of_another_mode_are_refused(epidemic_dials: bool, caplog: pytest.LogCaptureFixture) -> None:
    def make(name: str, epidemic: bool, around: dict[str, Address]) -> BrokerServer:
        if epidemic:
            given = EpidemicSettings(label=(0,))
            return BrokerServer(name, neighbours=around, mode="epidemic", epidemic=given)
        return BrokerServer(name, neighbours=around, transport="udp")

    async def main() -> None:
        b2 = make("b2", not epidemic_dials, {"b1": Address(port=1)})
        await b2.start()
        b1 = make("b1", epidemic_dials, {"b2": b2.address})
        await b1.start()
        await until(lambda: b2.host.refusals >= 2)  # it goes on trying
        assert b1.status()["sessions"] == b2.status()["sessions"] == []
        await b1.stop()
        await b2.stop()

    with caplog.at_level(logging.WARNING):
        play(main)
    theirs, ours = ("epidemic", "best-effort")[:: 1 if epidemic_dials else -1]
    assert f"b2 runs in mode '{ours}', not '{theirs}'" in caplog.text


def test_clients_come_by_streams_and_brokers_by_datagrams() -> None:
    async def main() -> None:
        async with EpidemicBrokers(CHAIN, recovery()) as brokers:
            await brokers.acquainted()
            with pytest.raises(ConnectionFailed, match="clients use TCP and brokers use UDP"):
                await User(brokers[0].address, "c", "udp").connection.open()
            reader, writer = await asyncio.open_connection(*brokers[0].address)
            writer.write(frame(encode(Hello(PROTOCOL_VERSION, "b1", "broker", "epidemic"))))
            answer = await reader.read()
            assert b"clients use TCP and brokers use UDP" in answer
            writer.close()
            for name in ("b0", "b1", "b2"):
                with pytest.raises(ConnectionFailed, match=f"the name '{name}' belongs to a broker"):
                    await User(brokers[0].address, name).connection.open()
            assert brokers[0].host.refusals == 5
            assert known_to(brokers[0]) == ["b1", "b2"]

    play(main)


# --- Where it listens


def test_streams_and_datagrams_share_one_port_number(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[int] = []
    listen = Listener.to_datagrams

    async def listen_late(listener: Listener, address: Address) -> Address:
        tried.append(address.port)
        if len(tried) == 1:  # somebody else has it
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as taken:
                taken.bind(address)
                return await listen(listener, address)
        return await listen(listener, address)

    async def main() -> None:
        server = BrokerServer("b0", mode="epidemic", epidemic=EpidemicSettings(label=(0,)))
        await server.start()
        assert server._endpoint is not None
        assert server.address == server._endpoint.address
        assert tried == [tried[0], server.address.port]
        async with User(server.address, "c") as user:
            user.publish(1)
            await until(lambda: user.confirmed == 1)
        await server.stop()

    monkeypatch.setattr(Listener, "to_datagrams", listen_late)
    play(main)


def test_a_port_that_is_asked_for_and_taken_is_named() -> None:
    async def main() -> None:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as taken:
            taken.bind(("127.0.0.1", 0))
            address = Address(*taken.getsockname())
            server = BrokerServer("b0", address, mode="epidemic", epidemic=EpidemicSettings())
            with pytest.raises(ConnectionFailed) as caught:
                await server.start()
            assert str(caught.value) == f"cannot listen on {address}: the port is in use"
            with socket.socket() as probe:  # nothing is left of the attempt
                probe.setsockopt(
                    socket.SOL_SOCKET, socket.SO_REUSEADDR, 1
                )  # others may connect from that port
                probe.bind(address)

    play(main)


def test_settings_that_make_no_sense_are_refused() -> None:
    for mode, given_settings in (("best-effort", EpidemicSettings()), ("epidemic", None)):
        with pytest.raises(ValueError, match="mode 'epidemic' requires its settings"):
            BrokerServer("b0", mode=mode, epidemic=given_settings)

    async def main() -> None:
        public = Address("0.0.0.0", 0)
        server = BrokerServer("b0", public, mode="epidemic", epidemic=EpidemicSettings())
        with pytest.raises(ConnectionFailed, match=r"a TLS certificate|not encrypted yet"):
            await server.start()
        server = BrokerServer("b0", mode="epidemic", epidemic=EpidemicSettings(), transport="udp")
        with pytest.raises(ConnectionFailed, match="mode 'epidemic' requires TCP, not udp"):
            await server.start()
        far = {"b1": Address("192.0.2.1", 7400)}
        server = BrokerServer("b0", neighbours=far, mode="epidemic", epidemic=EpidemicSettings())
        with pytest.raises(ConnectionFailed, match=r"cannot connect to 192\.0\.2\.1:7400"):
            await server.start()

    play(main)


# --- Datagrams without a session


class FakeEndpoint:
    """Takes what is written."""

    def __init__(self, *, is_ipv6: bool = False) -> None:
        self.is_ipv6 = is_ipv6
        self.paused = False
        self.strangers = 0
        self.written: list[tuple[bytes, Peer]] = []
        self.take_sessionless: Callable[[Peer, bytes], bool] = lambda peer, datagram: False

    def write(self, chunk: bytes, peer: Peer) -> None:
        self.written.append((chunk, peer))


def make_post(endpoint: FakeEndpoint) -> tuple[DatagramRouter, list[tuple[str, Message]]]:
    heard: list[tuple[str, Message]] = []
    post = DatagramRouter(endpoint, ("near",), lambda broker, message: heard.append((broker, message)))  # type: ignore[arg-type]
    return post, heard


def test_who_is_known_is_sent_to_and_heard() -> None:
    endpoint = FakeEndpoint()
    post, heard = make_post(endpoint)
    peer = ("127.0.0.1", 7)
    digest = Offer("far", b"", (), "push")
    assert not endpoint.take_sessionless(peer, encode(digest))
    post.learn("far", "127.0.0.1:7")
    post.sinks["far"].send(digest)
    assert endpoint.written == [(encode(digest), peer)]
    assert endpoint.take_sessionless(peer, encode(digest))
    assert heard == [("far", digest)]
    assert not endpoint.take_sessionless(peer, encode(Hello(PROTOCOL_VERSION, "far", "broker")))
    post.learn("near", "127.0.0.1:8")
    assert list(post.sinks) == ["far"]
    post.learn("far", "")
    assert not post.sinks
    assert not endpoint.take_sessionless(peer, encode(digest))


def test_what_is_no_gossip_is_not_taken_from_who_is_no_neighbour() -> None:
    endpoint = FakeEndpoint()
    post, heard = make_post(endpoint)
    post.learn("far", "127.0.0.1:7")
    refused: list[bytes] = [
        encode(carried(1, by="")),
        encode(HighWater(())),
        encode(Ping(1)),
        b"",
        b"\xc1",
    ]
    for datagram in refused:
        assert endpoint.take_sessionless(("127.0.0.1", 7), datagram)
    assert heard == []
    assert post.ignored == len(refused)
    assert endpoint.take_sessionless(("127.0.0.1", 7), encode(carried(1, by="push")))
    assert [broker for broker, _ in heard] == ["far"]


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (carried(1, by="push"), True),
        (carried(1, by=""), False),
        (Offer("b", b"", (), ""), True),
        (Ask((), (), ""), True),
        (Solicit("b", b"", (), (), (), ""), True),
        (Ping(1), False),
        (make_publication("p", 0, 1, "/a", {}, b"", 0), False),
    ],
)
def test_what_gossip_is(message: Message, expected: bool) -> None:
    assert is_gossip(message) is expected


def test_a_block_of_the_tree_is_no_gossip() -> None:
    header = ("p", 0, 1, "/a", 0, b"\x80", 2_000, b"8 bytes.", 1_000)
    for by in ("", "push"):
        block = Fragment("b0", (), (), by, *header, 0, b"", 1, bytes(1_000), 0)
        assert is_gossip(block) is bool(by)


def test_what_cannot_leave_is_counted() -> None:
    endpoint = FakeEndpoint()
    post, _ = make_post(endpoint)
    post.learn("far", "127.0.0.1:7")
    send = post.sinks["far"].send
    send(carried(1, payload=bytes(DATAGRAM_MAX_BYTES)))
    endpoint.paused = True
    send(carried(2))
    endpoint.paused = False
    post.cut = {"far"}
    send(carried(3))
    endpoint.take_sessionless(("127.0.0.1", 7), encode(carried(4)))
    post.cut = ()
    send(carried(5))
    assert [decode(chunk)[0].stretch.first for chunk, _ in endpoint.written] == [5]  # type: ignore[union-attr]
    assert (post.oversize, post.dropped, post.sent, post.received, post.ignored) == (1, 1, 1, 0, 1)


@pytest.mark.parametrize(
    ("text", "ipv6", "peer"),
    [
        ("127.0.0.1:7", False, ("127.0.0.1", 7)),
        ("127.1.2.3:65535", False, ("127.1.2.3", 65_535)),
        ("[::1]:7", True, ("::1", 7, 0, 0)),
        ("[0:0:0:0:0:0:0:1]:7", True, ("::1", 7, 0, 0)),
        ("[::1]:7", False, None),
        ("127.0.0.1:7", True, None),
        ("127.0.0.1:0", False, None),
        ("127.0.0.1", False, None),
        ("localhost:7", False, None),
        ("192.0.2.1:7", False, None),
        ("0.0.0.0:7", False, None),
        ("127.0.0.1:99999", False, None),
        ("", False, None),
        (":7", False, None),
    ],
)
def test_only_numbers_of_this_machine_are_addresses(text: str, ipv6: bool, peer: Peer | None) -> None:
    assert loopback_peer(text, ipv6=ipv6) == peer


PLACES = ("127.0.0.1:1", "127.0.0.1:2", "127.0.0.1:3", "", "192.0.2.1:1", "nonsense")


@settings(max_examples=examples(200))
@given(st.lists(st.tuples(st.sampled_from("abcd"), st.sampled_from(PLACES)), max_size=30))
def test_a_broker_is_where_it_was_learned_to_be_last(learned: list[tuple[str, str]]) -> None:
    endpoint = FakeEndpoint()
    post, heard = make_post(endpoint)
    places: dict[str, str] = {}
    for broker, place in learned:
        post.learn(broker, place)
        places[broker] = place
    reachable = {broker: place for broker, place in places.items() if place.startswith("127.")}
    assert {broker: f"{box.peer[0]}:{box.peer[1]}" for broker, box in post.sinks.items()} == reachable
    digest = encode(Ask((), (), "push"))
    for place in PLACES[:3]:
        heard.clear()
        host, _, port = place.partition(":")
        taken = endpoint.take_sessionless((host, int(port)), digest)
        assert taken == bool(heard)
        assert all(reachable[broker] == place for broker, _ in heard)
        if list(reachable.values()).count(place) == 1 and sum(at == place for _, at in learned) == 1:
            assert taken


@settings(max_examples=examples(300))
@given(st.binary(max_size=200))
def test_whatever_the_bytes_nothing_is_raised(datagram: bytes) -> None:
    endpoint = FakeEndpoint()
    post, heard = make_post(endpoint)
    post.learn("far", "127.0.0.1:7")
    endpoint.take_sessionless(("127.0.0.1", 7), datagram)
    assert post.received == len(heard)


def test_no_more_brokers_are_known_than_there_may_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidings.drivers.sockets.epidemic.MAX_KNOWN", 3)
    post, _ = make_post(FakeEndpoint())
    for number in range(10):
        post.learn(f"x{number}", f"127.0.0.1:{number + 1}")
    assert list(post.sinks) == ["x0", "x1", "x2"]
    post.learn("x1", "127.0.0.1:50")  # who is known may move
    assert post.sinks["x1"].peer == ("127.0.0.1", 50)


def test_a_publication_that_is_kept_does_not_hold_what_was_read() -> None:
    made = [make_publication("p", 0, number, "/a", {"x": number}, bytes(10), 0) for number in range(50)]
    body = encode_publications([publication.raw for publication in made])
    free = sys.getrefcount(body)
    [first, *_] = decode(body)
    check_publication(first)  # type: ignore[arg-type]
    assert sys.getrefcount(body) > free
    kept = unpinned(first)  # type: ignore[arg-type]
    del first, _
    assert sys.getrefcount(body) == free
    assert isinstance(kept, Publication)
    assert (kept.id, kept.decoded, kept.raw) == (made[0].id, {"x": 0, "topic": "/a"}, made[0].raw)


def test_nor_does_a_run_or_what_is_cut_out_of_it() -> None:
    maker = RunMaker("p", 0)
    for number in range(50):
        maker.add(number, "/a", {"x": number}, bytes(10), 0)
    (made,) = maker.take_all()
    body = encode_publications([made.raw])
    free = sys.getrefcount(body)
    (run,) = decode(body)
    assert isinstance(run, Run)
    assert run.check() == []
    pieces = unpinned(run).split(200)  # type: ignore[union-attr]
    del run
    assert sys.getrefcount(body) == free
    assert [event for piece in pieces for event in singles(piece)][49].attributes() == {
        "x": 49,
        "topic": "/a",
    }
