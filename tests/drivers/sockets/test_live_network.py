"""Brokers and clients over real sockets: they deliver, come back, and do not hold each other up."""

from __future__ import annotations

import asyncio
import socket
import time
import tracemalloc
from collections.abc import Awaitable, Callable

import pytest

from live_network import TRANSPORTS, User, until
from tidings.core.events.subscription import Subscription
from tidings.core.facts import (
    Delivered,
    NotificationsDropped,
    PublicationFailed,
    SubscriptionCancelled,
    SubscriptionFailed,
)
from tidings.core.messages import PROTOCOL_VERSION, Hello, Ping, Subscribe
from tidings.core.wire.codec import encode
from tidings.core.wire.frames import frame
from tidings.drivers.address import Address, Transport
from tidings.drivers.sockets import udp
from tidings.drivers.sockets.broker import BrokerServer
from tidings.drivers.sockets.loop import loop_factory
from tidings.drivers.sockets.session import End

pytestmark = pytest.mark.timeout(60)


async def pair(transport: Transport) -> tuple[BrokerServer, BrokerServer]:
    """b1 dials b2: the lower name does."""
    b2 = BrokerServer("b2", neighbours={"b1": Address(port=1)}, transport=transport)
    await b2.start()
    b1 = BrokerServer("b1", neighbours={"b2": b2.address}, transport=transport)
    await b1.start()
    return b1, b2


def sessions(server: BrokerServer) -> list[str]:
    found = server.status()["sessions"]
    assert isinstance(found, list)
    return sorted(session["peer"] for session in found)


def play(main: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        await asyncio.wait_for(main(), 50)

    asyncio.run(bounded())


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("uvloop", [False, True], ids=["asyncio", "uvloop"])
def test_two_brokers_deliver_between_their_clients(transport: Transport, uvloop: bool) -> None:
    async def main() -> None:
        b1, b2 = await pair(transport)
        async with (
            User(b2.address, "reader", transport) as reader,
            User(b1.address, "writer", transport) as writer,
        ):
            await reader.subscribe("all", "/a/**")
            await reader.subscribe("few", "/a/*", where="number >= 90")
            for number in range(100):
                writer.publish(number)
                writer.publish(number, "/b/b")
            await until(lambda: len(reader.numbers) == 110 and writer.confirmed == 200)
            by_subscription: dict[str, list[object]] = {}
            for fact in reader.facts:
                if isinstance(fact, Delivered):
                    number = fact.stretch.event().attributes["number"]
                    by_subscription.setdefault(fact.subscription, []).append(number)
            assert by_subscription == {"all": list(range(100)), "few": list(range(90, 100))}
            reader.connection.client.unsubscribe("all")
            await until(lambda: SubscriptionCancelled("all") in reader.facts)
            writer.publish(50)
            writer.publish(95)
            await until(lambda: len(reader.numbers) == 111)
            assert reader.links == writer.links == [(True, "")]
        await until(lambda: sessions(b1) == ["b2"] and sessions(b2) == ["b1"])
        await b1.stop()
        await b2.stop()

    factory = loop_factory() if uvloop else None
    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(asyncio.wait_for(main(), 50))


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_filter_that_is_wrong_is_refused_with_its_reason(transport: Transport) -> None:
    async def main() -> None:
        server = BrokerServer("b", transport=transport)
        await server.start()
        async with User(server.address, "c", transport) as user:
            user.connection.client.subscribe(Subscription("s", ("/a",), "number >"))
            await until(lambda: any(isinstance(fact, SubscriptionFailed) for fact in user.facts))
        await server.stop()

    play(main)


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_broker_that_restarts_is_found_again(transport: Transport, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(udp, "PING_SECONDS", 0.1)
    monkeypatch.setattr(udp, "SILENT_SECONDS", 0.5)

    async def main() -> None:
        b1, b2 = await pair(transport)
        async with (
            User(b2.address, "reader", transport) as reader,
            User(b1.address, "writer", transport) as writer,
        ):
            await reader.subscribe("all", "/a/**")
            writer.publish(1)
            await until(lambda: reader.numbers == [1])
            await b2.stop()
            await until(lambda: reader.links[-1][0] is False and "reader" not in sessions(b1))
            again = BrokerServer("b2", b2.address, {"b1": Address(port=1)}, transport=transport)
            await again.start()
            await until(lambda: reader.links[-1] == (True, "") and len(reader.links) >= 3)
            await until(lambda: sessions(b1) == ["b2", "writer"])
            number = 100
            while 100 not in reader.numbers:  # the subscription takes its way through the network again
                writer.publish(100)
                await asyncio.sleep(0.02)
            assert set(reader.numbers) == {1, number}
            await again.stop()
        await b1.stop()

    play(main)


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_publishing_without_a_connection_fails_with_the_reason(
    transport: Transport, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(udp, "PING_SECONDS", 0.1)
    monkeypatch.setattr(udp, "SILENT_SECONDS", 0.5)

    async def main() -> None:
        server = BrokerServer("b", transport=transport)
        await server.start()
        async with User(server.address, "c", transport) as user:
            await server.stop()
            await until(lambda: len(user.links) == 2)
            user.publish(1)
            await until(lambda: any(isinstance(fact, PublicationFailed) for fact in user.facts))
            failed = next(fact for fact in user.facts if isinstance(fact, PublicationFailed))
            assert failed.sequence == 1
            assert "there is no connection to tidings" in failed.reason

    play(main)


def test_an_event_too_large_for_a_datagram_fails_by_name() -> None:
    async def main() -> None:
        server = BrokerServer("b", transport="udp")
        await server.start()
        async with User(server.address, "c", "udp") as user:
            user.publish(1, size_bytes=70_000)
            user.publish(2, size_bytes=50_000)
            await until(lambda: user.confirmed == 1)
            failed = [fact for fact in user.facts if isinstance(fact, PublicationFailed)]
            assert [fact.sequence for fact in failed] == [1]
            assert "UDP carries at most 60000" in failed[0].reason
        await server.stop()

    play(main)


def test_a_large_event_goes_over_tcp() -> None:
    async def main() -> None:
        b1, b2 = await pair("tcp")
        async with User(b2.address, "reader") as reader, User(b1.address, "writer") as writer:
            await reader.subscribe("all", "/a/**")
            for number in range(8):
                writer.publish(number, size_bytes=1_000_000)
            await until(lambda: reader.numbers == list(range(8)))
        await b1.stop()
        await b2.stop()

    play(main)


def stuck_subscriber(address: Address) -> socket.socket:
    """A client that subscribes and then never reads."""
    peer = socket.create_connection(address)
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    subscribe = encode(Subscribe("all", ("/a/**",), None, "none"))
    peer.sendall(frame(encode(Hello(PROTOCOL_VERSION, "stuck", "client"))) + frame(subscribe))
    return peer


def test_a_client_that_does_not_read_costs_the_others_nothing() -> None:
    """The reader gets everything; what waits for the stuck client is bounded, what is dropped counted."""
    limit_bytes = 512 * 1024
    events, size_bytes = 6_000, 2_000

    async def main() -> None:
        server = BrokerServer("b", buffer_limit_bytes=limit_bytes)
        await server.start()
        stuck = await asyncio.to_thread(stuck_subscriber, server.address)
        async with User(server.address, "reader") as reader, User(server.address, "writer") as writer:
            await reader.subscribe("all", "/a/**")
            await until(lambda: server.status()["subscriptions"] == 2)
            tracemalloc.start()
            for number in range(events):
                writer.publish(number, size_bytes=size_bytes)
                if number % 50 == 0:
                    await writer.connection.drain()
                    await until(lambda n=number: len(reader.facts) > n - 100)  # type: ignore[misc]
                    reader.facts[:] = [None] * len(reader.facts)
            await until(lambda: len(reader.facts) == events + 1)
            held_bytes = tracemalloc.get_traced_memory()[0]
            tracemalloc.stop()
            boxes = {session.peer: session.outbox for session in server._sessions}
            assert boxes["reader"].dropped == 0
            assert boxes["stuck"].dropped > events / 4
            assert boxes["stuck"].size_bytes <= limit_bytes + 100_000
            assert held_bytes < 8_000_000 < events * size_bytes
        await asyncio.to_thread(stuck.close)
        await server.stop()

    play(main)


def test_a_slow_client_is_told_what_it_missed() -> None:
    async def main() -> None:
        server = BrokerServer("b", buffer_limit_bytes=200_000)
        await server.start()
        async with User(server.address, "slow") as slow, User(server.address, "writer") as writer:
            await slow.subscribe("all", "/a/**")
            transport = slow.connection._session._transport  # type: ignore[union-attr]
            transport.pause_reading()
            for number in range(3_000):
                writer.publish(number, size_bytes=5_000)
                if number % 20 == 0:
                    await writer.connection.drain()
                    await until(lambda n=number: writer.confirmed > n - 200)  # type: ignore[misc]
            await until(lambda: writer.confirmed == 3_000)
            transport.resume_reading()

            def dropped() -> int:
                return sum(fact.count for fact in slow.facts if isinstance(fact, NotificationsDropped))

            await until(lambda: len(slow.numbers) + dropped() == 3_000)
            assert dropped() > 0
            writer.publish(-1)
            await until(lambda: slow.numbers[-1] == -1)
        await server.stop()

    play(main)


def test_a_client_that_publishes_faster_than_the_loop_turns_is_told() -> None:
    async def main() -> None:
        server = BrokerServer("b")
        await server.start()
        async with User(server.address, "c", buffer_limit_bytes=1_000_000) as user:
            for number in range(3_000):  # no await: nothing can leave
                user.publish(number, size_bytes=1_000)
            failures = [fact for fact in user.facts if isinstance(fact, PublicationFailed)]
            assert failures == []  # not from inside publish
            await until(lambda: user.confirmed + len(user.facts) >= 3_000)
            failures = [fact for fact in user.facts if isinstance(fact, PublicationFailed)]
            await until(lambda: user.confirmed + len(failures) == 3_000)
            assert 0 < len(failures) < 3_000
            assert "not sent: " in failures[0].reason
        await server.stop()

    play(main)


# --- Datagrams


def test_a_lost_welcome_is_repeated_and_a_new_life_replaces_the_old() -> None:
    async def main() -> None:
        server = BrokerServer("b", transport="udp")
        await server.start()
        loop = asyncio.get_running_loop()
        with socket.socket(type=socket.SOCK_DGRAM) as peer:
            peer.setblocking(False)
            peer.connect(server.address)
            hello = encode(Hello(PROTOCOL_VERSION, "c", "client"))
            for _ in range(2):
                peer.send(hello)
                assert (await loop.sock_recv(peer, 65536))[1] == 2  # a Welcome
            first = next(iter(server._sessions))
            peer.send(encode(Ping(1)))
            assert (await loop.sock_recv(peer, 65536))[1] == 5  # a Pong
            assert next(iter(server._sessions)) is first
            peer.send(hello)
            assert (await loop.sock_recv(peer, 65536))[1] == 2
            assert next(iter(server._sessions)) is not first
            assert sessions(server) == ["c"]
            peer.send(b"\xc1")
            assert (await loop.sock_recv(peer, 65536))[1] == 3  # Refused
            assert sessions(server) == []
            peer.send(b"\xc1")
            await until(lambda: server._endpoint.strangers == 1)  # type: ignore[union-attr]
        await server.stop()

    play(main)


def play_impatiently(
    monkeypatch: pytest.MonkeyPatch, main: Callable[[BrokerServer], Awaitable[None]]
) -> None:
    """With a broker over UDP, and a silence of .3 seconds is one."""
    monkeypatch.setattr(udp, "PING_SECONDS", 0.05)
    monkeypatch.setattr(udp, "SILENT_SECONDS", 0.3)

    async def with_a_broker() -> None:
        server = BrokerServer("b", transport="udp")
        await server.start()
        await main(server)
        await server.stop()

    play(with_a_broker)


def test_a_silent_datagram_client_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main(server: BrokerServer) -> None:
        async with User(server.address, "alive", "udp"):
            with socket.socket(type=socket.SOCK_DGRAM) as peer:
                peer.connect(server.address)
                peer.send(encode(Hello(PROTOCOL_VERSION, "silent", "client")))
                await until(lambda: sessions(server) == ["alive", "silent"])
                await until(lambda: sessions(server) == ["alive"])
            await asyncio.sleep(0.5)
            assert sessions(server) == ["alive"]

    play_impatiently(monkeypatch, main)


def test_a_process_that_stands_still_takes_nobody_for_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main(server: BrokerServer) -> None:
        async with User(server.address, "alive", "udp"):
            ended: list[End] = []
            monkeypatch.setattr(udp.DatagramSession, "end", lambda session, end: ended.append(end))
            time.sleep(0.6)  # noqa: ASYNC251 - the loop itself stands still, and both ends with it
            await asyncio.sleep(0.2)
            assert ended == []
            monkeypatch.undo()

    play_impatiently(monkeypatch, main)
