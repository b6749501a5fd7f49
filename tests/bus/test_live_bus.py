"""`tidings.connect` against real brokers on loopback."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

import tidings
from tidings.drivers.address import Address, Transport, url
from tidings.drivers.sockets.broker import BrokerServer


@asynccontextmanager
async def pair(transport: Transport = "tcp") -> AsyncIterator[tuple[BrokerServer, BrokerServer]]:
    """Two neighbouring brokers."""
    right = BrokerServer("b1", neighbours={"b0": Address(port=1)}, transport=transport)
    await right.start()
    left = BrokerServer("b0", neighbours={"b1": right.address}, transport=transport)
    await left.start()
    try:
        yield left, right
    finally:
        await left.stop()
        await right.stop()


def run(test: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(60):
            await test()

    asyncio.run(bounded())


@pytest.mark.parametrize("transport", ["tcp", "udp"])
def test_events_cross_two_brokers(transport: Transport) -> None:
    async def test() -> None:
        async with pair(transport) as (left, right):
            publisher = tidings.connect(url(left.address, transport))
            subscriber = tidings.connect(url(right.address, transport))
            async with publisher, subscriber, subscriber.subscribe("/a/**", where="x > 1") as stream:
                for x in range(4):
                    await publisher.publish("/a/b", {"x": x}, b"payload")
                seen = [await stream.get(timeout_s=10) for _ in range(2)]
                assert [event.attributes["x"] for event in seen] == [2, 3]
                assert {event.payload for event in seen} == {b"payload"}
                status = await subscriber.status()
                assert status["broker"] == "b1"
                assert status["subscriptions"] == 1

    run(test)


def test_a_stream_goes_on_after_its_broker_restarted() -> None:
    async def test() -> None:
        first = BrokerServer("b0")
        await first.start()
        bus = tidings.connect(url(first.address))
        async with bus, bus.subscribe("/a") as stream:
            await bus.publish("/a", {"n": 1})
            assert (await stream.get(timeout_s=10)).attributes == {"n": 1}
            await first.stop()
            with pytest.raises(tidings.NotConfirmed):
                await bus.publish("/a", {"n": 2})
            second = BrokerServer("b0", first.address)
            await second.start()
            while True:
                try:
                    await bus.publish("/a", {"n": 3})
                    event = await stream.get(timeout_s=0.5)
                    break
                except (tidings.NotConfirmed, TimeoutError):
                    await asyncio.sleep(0.05)
            assert event.attributes == {"n": 3}
            await second.stop()

    run(test)


def test_a_client_whose_name_another_took_is_told() -> None:
    async def test() -> None:
        broker = BrokerServer("b0")
        await broker.start()
        async with tidings.connect(url(broker.address), name="me") as one, one.subscribe("/a") as stream:
            async with tidings.connect(url(broker.address), name="me") as two:
                with pytest.raises(tidings.ConnectionFailed, match="another connection took the name"):
                    await stream.get(timeout_s=10)
                await two.publish("/a")
                with pytest.raises(tidings.NotConfirmed):
                    await one.publish("/a")
                with pytest.raises(tidings.ConnectionFailed, match="another connection took the name"):
                    async with one.subscribe("/b"):
                        pass
        await broker.stop()

    run(test)


def test_publish_many_confirms_all_or_says_how_many_not() -> None:
    async def test() -> None:
        broker = BrokerServer("b0")
        await broker.start()
        async with tidings.connect(url(broker.address)) as bus, bus.subscribe() as stream:
            assert await bus.publish_many(("/a", {"n": n}, b"") for n in range(25_000)) == 25_000
            numbers = [(await stream.get(timeout_s=10)).attributes["n"] for _ in range(25_000)]
            assert numbers == list(range(25_000))
            await broker.stop()
            with pytest.raises(tidings.NotConfirmed, match="10 of 10 publications"):
                await bus.publish_many(("/a", {}, b"") for _ in range(10))

    run(test)


def test_an_invalid_filter_or_order_never_reaches_the_broker() -> None:
    async def test() -> None:
        async with tidings.embedded(brokers=1) as bus:
            with pytest.raises(tidings.FilterError, match="position 4"):
                bus.subscribe("/a", where="x = = 1")
            with pytest.raises(tidings.TopicError):
                bus.subscribe("a")
            with pytest.raises(ValueError, match="is not one of none, fifo, causal, total"):
                bus.subscribe("/a", order="best")

    run(test)
