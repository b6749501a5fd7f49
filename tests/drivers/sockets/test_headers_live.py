"""Headers over real sockets, as a module that orders events asks for them: a wide subscription and a narrow one."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from live_network import TRANSPORTS, User, until
from tidings.core.events.event import BARE, make_publication
from tidings.core.events.run import stamped
from tidings.core.events.subscription import Subscription
from tidings.core.events.timestamp import Timestamp
from tidings.core.facts import Delivered, SubscriptionAccepted
from tidings.drivers.address import Address, Transport
from tidings.drivers.processes.brokers import free_addresses
from tidings.drivers.sockets.broker import BrokerServer
from tidings.drivers.sockets.guaranteed import GuaranteedSettings

pytestmark = pytest.mark.timeout(60)

EVENTS = 60
WIDE = Subscription("W", ("/a/**",), headers=True)
NARROW = Subscription("N", ("/a/**",), "number >= 40")


def play(main: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        await asyncio.wait_for(main(), 50)

    asyncio.run(bounded())


async def subscribe(user: User, *subscriptions: Subscription) -> None:
    for subscription in subscriptions:
        user.connection.client.subscribe(subscription)
        await until(lambda name=subscription.id: SubscriptionAccepted(name) in user.facts)  # type: ignore[misc]


def ask_again(user: User, up: bool) -> None:
    if up:
        for subscription in (NARROW, WIDE):
            user.connection.client.subscribe(subscription)


def publish(user: User, numbers: range) -> None:
    for number in numbers:
        session, now = user.connection.client.session, user.connection.now
        made = make_publication(
            *session.identity, session.reserve(), "/a/b", {"number": number}, b"payload", now
        )
        session.publish_stretch(stamped(made, 9, Timestamp(0, number + 1)))


def whole(user: User, subscription: str) -> list[tuple[int, bool]]:
    """What a subscription was shown, by its stamp, and whether with everything that belongs to it."""
    found = []
    for fact in user.facts:
        if isinstance(fact, Delivered) and fact.subscription == subscription:
            event = fact.stretch.event()
            assert fact.stretch.stamp is not None
            number = fact.stretch.stamp.number - 1
            is_header = fact.stretch.kind == BARE
            assert event.attributes == ({} if is_header else {"number": number})
            assert event.payload == (b"" if is_header else b"payload")
            found.append((number, not is_header))
    return found


def check(both: User, narrow: User) -> None:
    assert whole(both, "W") == [(number, number >= 40) for number in range(EVENTS)]
    assert whole(both, "N") == whole(narrow, "N") == [(number, True) for number in range(40, EVENTS)]


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_best_effort(transport: Transport) -> None:
    async def main() -> None:
        b2 = BrokerServer("b2", neighbours={"b1": Address(port=1)}, transport=transport)
        await b2.start()
        b1 = BrokerServer("b1", neighbours={"b2": b2.address}, transport=transport)
        await b1.start()
        async with (
            User(b2.address, "both", transport) as both,
            User(b2.address, "narrow", transport) as narrow,
            User(b1.address, "writer", transport) as writer,
        ):
            await subscribe(both, NARROW, WIDE)
            await subscribe(narrow, NARROW)
            publish(writer, range(EVENTS))
            await until(lambda: len(whole(both, "W")) == EVENTS and len(whole(narrow, "N")) == EVENTS - 40)
            check(both, narrow)
        await b1.stop()
        await b2.stop()

    play(main)


def test_guaranteed_through_a_restart_of_the_broker_with_its_data(tmp_path: Path) -> None:
    """What is published while the subscribers' broker is away comes after it is back, each as it was asked for."""
    addresses = free_addresses(["b0", "b1"])
    labels = {"b0": (0,), "b1": (0, 0)}

    async def start(name: str, *, new: bool) -> BrokerServer:
        peer = "b1" if name == "b0" else "b0"
        settings = GuaranteedSettings(labels[name], {peer: labels[peer]}, delta=1, data=tmp_path, new=new)
        server = BrokerServer(
            name, addresses[name], {peer: addresses[peer]}, mode="guaranteed", guaranteed=settings
        )
        await server.start()
        return server

    async def main() -> None:
        b0, b1 = await start("b0", new=True), await start("b1", new=True)
        async with (
            User(addresses["b1"], "both") as both,
            User(addresses["b1"], "narrow") as narrow,
            User(addresses["b0"], "writer") as writer,
        ):
            await subscribe(both, NARROW, WIDE)
            await subscribe(narrow, NARROW)
            publish(writer, range(20))
            await until(lambda: len(whole(both, "W")) == 20)
            await b1.stop()
            publish(writer, range(20, 50))
            b1 = await start("b1", new=False)
            publish(writer, range(50, EVENTS))
            await until(lambda: writer.confirmed == EVENTS, 30)
            await until(
                lambda: len(whole(both, "W")) == EVENTS and len(whole(narrow, "N")) == EVENTS - 40, 30
            )
            check(both, narrow)
            assert both.links.count((True, "")) == 2, "the client came back by itself"
        await b0.stop()
        await b1.stop()

    play(main)


def test_guaranteed_a_client_that_starts_anew_goes_on_where_it_was(tmp_path: Path) -> None:
    """Its broker keeps the subscriptions, and what came for them, while there is no client."""
    address = free_addresses(["b0"])["b0"]

    async def main() -> None:
        settings = GuaranteedSettings((0,), {}, delta=1, data=tmp_path, new=True)
        server = BrokerServer("b0", address, {}, mode="guaranteed", guaranteed=settings)
        await server.start()
        async with User(address, "writer") as writer:
            async with User(address, "both") as first:
                await subscribe(first, NARROW, WIDE)
                publish(writer, range(20))
                await until(lambda: len(whole(first, "W")) == 20)
            publish(writer, range(20, EVENTS))
            await until(lambda: writer.confirmed == EVENTS)
            second = User(address, "both")
            # Before anything comes over the connection: what the broker has kept comes at once.
            second.connection._on_connection = lambda up, reason: ask_again(second, up)
            async with second:
                await until(lambda: len(whole(second, "W")) == EVENTS - 20)
                assert whole(second, "W") == [(number, number >= 40) for number in range(20, EVENTS)]
                assert whole(second, "N") == [(number, True) for number in range(40, EVENTS)]
        await server.stop()

    play(main)
