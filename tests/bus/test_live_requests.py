"""Requests over real sockets, in one process, without `async`, and over existing brokers."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

import tidings
import tidings.sync
from external_brokers import ExternalBroker, MosquittoBroker, NatsBroker, RedisBroker
from tidings.core.events.event import Event
from tidings.core.events.payload import TypedPayload
from tidings.drivers.address import Address, Transport, url
from tidings.drivers.sockets.broker import BrokerServer
from tidings.drivers.sockets.guaranteed import GuaranteedSettings
from tidings.scenarios.file.schema import Mode

WAIT_S = 60.0


def run(test: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(WAIT_S):
            await test()

    asyncio.run(bounded())


async def shout(event: Event) -> str:
    if not event.payload:
        raise ValueError("say something")
    return event.text.upper()


async def check(asker: tidings.EventService, bus: tidings.EventService, *, knows: bool = True) -> None:
    """Ask in every way; a service that `knows` says at once that nobody is there."""
    if knows:
        with pytest.raises(tidings.NoResponder):
            await asker.request("/shout", timeout=WAIT_S)
    else:
        with pytest.raises(TimeoutError):
            await asker.request("/shout", timeout=0.2)
    async with bus.serve("/shout", shout) as server:
        assert (await asker.request("/shout", {"n": 1}, "hello", timeout=WAIT_S)).text == "HELLO"
        with pytest.raises(tidings.RequestFailed, match=r"^ValueError: say something$"):
            await asker.request("/shout", timeout=WAIT_S)
        replies = await asyncio.gather(
            *(asker.request("/shout", payload=f"n{number}", timeout=WAIT_S) for number in range(100))
        )
        assert [reply.text for reply in replies] == [f"N{number}" for number in range(100)]
        assert server.answered == 101


@pytest.mark.parametrize("transport", ["tcp", "udp"])
def test_over_sockets(transport: Transport) -> None:
    async def test() -> None:
        right = BrokerServer("b1", neighbours={"b0": Address(port=1)}, transport=transport)
        await right.start()
        left = BrokerServer("b0", neighbours={"b1": right.address}, transport=transport)
        await left.start()
        try:
            async with (
                tidings.connect(url(left.address, transport)) as asker,
                tidings.connect(url(right.address, transport)) as bus,
            ):
                await check(asker, bus)
        finally:
            await left.stop()
            await right.stop()

    run(test)


def test_over_sockets_of_a_guaranteed_broker_with_a_disk(tmp_path: Path) -> None:
    async def test() -> None:
        broker = BrokerServer(
            "b0", mode="guaranteed", guaranteed=GuaranteedSettings((), {}, data=tmp_path, new=True)
        )
        await broker.start()
        try:
            async with (
                tidings.connect(url(broker.address)) as asker,
                tidings.connect(url(broker.address)) as bus,
            ):
                await check(asker, bus)
                async with bus.serve("/shout", shout, group="shouting"):
                    assert (await asker.request("/shout", payload="a", timeout=WAIT_S)).text == "A"
        finally:
            await broker.stop()

    run(test)


@pytest.mark.parametrize("mode", ["best-effort", "guaranteed", "epidemic"])
def test_in_one_process(mode: Mode) -> None:
    async def test() -> None:
        async with tidings.embedded(3, mode=mode) as asker, asker.connect() as bus:
            await check(asker, bus)

    run(test)


def test_a_request_is_confirmed_even_if_nothing_else_is_sent() -> None:
    async def test() -> None:
        broker = BrokerServer("b0")
        await broker.start()
        try:
            async with tidings.connect(url(broker.address)) as bus, bus.subscribe("/shout"):
                for _ in range(3):
                    assert await bus.publish("/shout", {}, TypedPayload(b"", request="1"))
                    assert await bus.publish("/shout", {}, b"plain")
        finally:
            await broker.stop()

    run(test)


def test_the_connection_is_lost_while_an_answer_is_awaited() -> None:
    async def test() -> None:
        broker = BrokerServer("b0")
        await broker.start()
        async with tidings.connect(url(broker.address)) as bus, bus.subscribe("/shout"):
            asking = asyncio.create_task(bus.request("/shout", timeout=1))
            await asyncio.sleep(0.1)
            await broker.stop()
            with pytest.raises((TimeoutError, tidings.NotConfirmed)):
                await asking
            with pytest.raises(tidings.NotConfirmed, match="no connection"):
                await bus.request("/shout", timeout=WAIT_S)

    run(test)


# --- Without async


def test_without_async_handlers_run_in_threads_and_may_use_the_bus() -> None:
    with tidings.sync.embedded(brokers=3) as bus:
        with pytest.raises(tidings.NoResponder):
            bus.request("/double")

        def double(event: Event) -> str:
            assert threading.current_thread().name.startswith("tidings-serve")
            return 2 * bus.request("/shout", payload=event.payload, timeout=WAIT_S).text

        def shout_now(event: Event) -> str:
            if not event.payload:
                raise ValueError("say something")
            return event.text.upper()

        for bad in ({"handler": "double"}, {"handler": double, "concurrency": 0}):
            with pytest.raises(ValueError, match=r"(handler|concurrency) must be"):
                bus.serve("/double", **bad)  # type: ignore[arg-type]
        with bus.serve("/double", double) as server, bus.serve("/shout", shout_now):
            assert bus.request("/double", {}, "ab", timeout=WAIT_S).text == "ABAB"
            with pytest.raises(tidings.RequestFailed, match="say something"):
                bus.request("/double", timeout=WAIT_S)
            server.wait(timeout_s=0.01)
            assert (server.answered, server.failed) == (1, 1)
        with pytest.raises(tidings.NoResponder):
            bus.request("/double", timeout=WAIT_S)
    with pytest.raises(tidings.ConnectionFailed):
        bus.request("/double")
    with pytest.raises(tidings.ConnectionFailed):
        bus.serve("/double", double)


# --- Over existing brokers


@pytest.mark.parametrize(
    ("make", "knows"),
    [
        pytest.param(NatsBroker, True, id="nats"),
        pytest.param(lambda directory: NatsBroker(directory, jetstream=True), False, id="jetstream"),
        pytest.param(MosquittoBroker, False, id="mqtt"),
        pytest.param(RedisBroker, False, id="redis"),
    ],
)
def test_over_existing_brokers(tmp_path: Path, make: Callable[[Path], ExternalBroker], knows: bool) -> None:
    async def test() -> None:
        with make(tmp_path) as server:
            async with tidings.connect(server.url) as asker, tidings.connect(server.url) as bus:
                await check(asker, bus, knows=knows)
                async with bus.serve("/shared", shout, group="shouting"):
                    assert (await asker.request("/shared", payload=b"hi", timeout=10)).payload == b"HI"

    run(test)
