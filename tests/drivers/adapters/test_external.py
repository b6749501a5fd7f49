"""What the services over existing brokers share, by itself and with whatever server shows it best."""

import asyncio
import subprocess
import sys
from pathlib import Path
from random import Random
from typing import Any

import pytest
from redis.asyncio import Redis

import tidings
from external_brokers import NatsBroker, RedisBroker
from external_checks import WAIT_S, numbers, run, take
from live_network import until
from tidings.bus.receipts import Batch
from tidings.core.events.event import make_publication
from tidings.core.events.subscription import Order, Subscription
from tidings.drivers.adapters import outgoing as external_outgoing
from tidings.drivers.adapters.incoming import FETCH_EVENTS, MAX_HELD_BYTES, MAX_HELD_EVENTS, Incoming, Pace
from tidings.drivers.adapters.mqtt import mqtt_service
from tidings.drivers.adapters.nats import nats_service
from tidings.drivers.adapters.outgoing import Outgoing
from tidings.drivers.adapters.redis import redis_service
from tidings.drivers.adapters.session import parse_url

# --- Publications under way


async def publish(outgoing: Outgoing, count: int, batch: Batch, payload: bytes = b"") -> None:
    for _ in range(count):
        await outgoing.publish("/a", {}, payload, batch)
        batch.published += 1


def test_a_new_connection_begins_with_the_oldest() -> None:
    async def test() -> None:
        outgoing, batch = Outgoing("me", 0, 60.0), Batch()
        await publish(outgoing, 10, batch)
        assert [each.sequence for each in await outgoing.next_batch()] == list(range(1, 11))
        for sequence in (1, 2, 5):
            outgoing.confirm(sequence)
        outgoing.rewind()
        await publish(outgoing, 1, batch)
        assert [each.sequence for each in await outgoing.next_batch()] == [3, 4, 6, 7, 8, 9, 10, 11]
        outgoing.confirm_up_to(10)
        outgoing.fail(11, "for a reason")
        outgoing.confirm(11)
        await batch.settled()
        assert (batch.published, batch.failed, len(outgoing)) == (11, 1, 0)
        assert (outgoing.confirmed, outgoing.failed) == (10, 1)

    run(test)


@pytest.mark.parametrize("payload_bytes", [0, 100_000])
def test_what_is_under_way_is_bounded(payload_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(external_outgoing, "MAX_UNCONFIRMED", 100)
    monkeypatch.setattr(external_outgoing, "MAX_UNCONFIRMED_BYTES", 1_000_000)

    async def test() -> None:
        outgoing, batch = Outgoing("me", 0, 60.0), Batch()
        task = asyncio.create_task(publish(outgoing, 300, batch, bytes(payload_bytes)))
        confirmed = most = 0
        while confirmed < 300:
            await until(lambda: len(outgoing) > 0)
            for _ in range(20):
                await asyncio.sleep(0)
            most = max(most, len(outgoing))
            confirmed = outgoing.unconfirmed()[0].sequence
            outgoing.confirm(confirmed)
        await task
        assert most == (10 if payload_bytes else 100)

    run(test)


def test_what_has_expired_is_not_sent_any_more() -> None:
    async def test() -> None:
        outgoing, batch = Outgoing("me", 0, 0.01), Batch()
        await publish(outgoing, 3, batch)
        await batch.settled()
        assert isinstance(batch.first_error, tidings.NotConfirmed) and batch.failed == 3
        outgoing._retry_s = 60.0
        await publish(outgoing, 1, Batch())
        assert [each.sequence for each in await outgoing.next_batch()] == [4]

    run(test)


# --- Subscriptions


def test_repetitions_and_late_events() -> None:
    """Against a twin that remembers everything."""
    random = Random(1)
    shown: list[tidings.Event] = []
    incoming = Incoming(Subscription("s", ("/a",), "even", Order.FIFO), shown.append, paced=False)
    publications = [
        make_publication(source, 0, n, random.choice(("/a", "/b")), {"even": n % 2 == 0}, b"", 0)
        for source in ("p", "q")
        for n in range(1, 200)
    ]
    expected: list[tuple[str, int, bool]] = []
    for publication in random.choices(publications, k=2_000):
        incoming.offer(publication)
        known = [(source, n) for source, n, _ in expected]
        source, n = publication.source, publication.sequence
        if publication.topic == "/a" and n % 2 == 0 and (source, n) not in known:
            late = any(n < other for by, other in known if by == source)
            expected.append((source, n, late))
    assert [(event.source, event.sequence, event.out_of_order) for event in shown] == expected
    assert any(late for _, _, late in expected) and incoming.duplicates > 0


def test_what_a_slow_reader_holds_is_bounded() -> None:
    for size_bytes in (10, 1_000_000):
        pace = Pace(bounded=True)
        held = 0
        while pace.room():
            batch = pace.room()
            assert 1 <= batch <= FETCH_EVENTS
            for _ in range(batch):
                pace.handed(size_bytes)
            held += batch
        assert held <= MAX_HELD_EVENTS
        assert size_bytes == 10 or held * size_bytes <= MAX_HELD_BYTES + FETCH_EVENTS * size_bytes
        assert not pace.open
        for _ in range(held):
            pace.taken()
        assert pace.open
        pace.taken()  # once too often does no harm


# --- Libraries and URLs


@pytest.mark.parametrize(
    ("library", "service", "url", "extra"),
    [
        ("nats", nats_service, "nats://host", "nats"),
        ("paho", mqtt_service, "mqtt://host", "mqtt"),
        ("redis", redis_service, "redis://host", "redis"),
    ],
)
def test_a_missing_library_is_named(
    library: str, service: Any, url: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(
        tidings.ConnectionFailed, match=rf"^{extra}:// needs .*: pip install 'tidings\[{extra}\]'"
    ):
        service(url)


def test_the_libraries_are_imported_where_they_are_needed() -> None:
    code = (
        "import sys, tidings;"
        "from tidings.drivers.adapters import mqtt, nats, redis;"
        "tidings.connect; print(*{name.partition('.')[0] for name in sys.modules})"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"nats", "paho", "redis"} & set(result.stdout.split())


def test_urls() -> None:
    target = parse_url("x://a%40b:p%3Aq@[::1]:12/3", ("x",), 1, with_path=True)
    assert (target.user, target.password, target.path) == ("a@b", "p:q", "/3")
    assert tuple(target.address) == ("::1", 12)
    assert target.server == "x://[::1]:12/3"
    assert tuple(parse_url("x://host", ("x",), 99).address) == ("host", 99)
    assert parse_url("x://token@host", ("x",), 99).password is None


# --- Connections that come and go


def test_a_subscription_while_the_server_is_away(tmp_path: Path) -> None:
    with NatsBroker(tmp_path) as server:

        async def test() -> None:
            async with nats_service(server.url) as bus:
                server.kill()
                await until(lambda: bus.keeper.live is None, WAIT_S)
                stream = bus.subscribe("/a")
                asking = asyncio.create_task(stream.__aenter__())
                unsure = asyncio.create_task(bus.publish("/b"))
                await asyncio.sleep(0.1)
                assert not asking.done() and not unsure.done()
                server.start()
                await asking
                await unsure
                await bus.publish("/a", {"n": 1})
                assert numbers(await take(stream, 1)) == [1]
                assert (await bus.status())["reconnections"] == 1

        run(test)


def test_closing_while_the_server_is_away(tmp_path: Path) -> None:
    with NatsBroker(tmp_path) as server:

        async def test() -> None:
            async with nats_service(server.url) as bus:
                server.kill()
                unsure = asyncio.create_task(bus.publish("/a"))
                asking = asyncio.create_task(bus.subscribe("/a").__aenter__())
                await asyncio.sleep(0.1)
            with pytest.raises(tidings.NotConfirmed, match="the connection was closed"):
                await unsure
            with pytest.raises(tidings.ConnectionFailed, match="the connection was closed"):
                await asking

        run(test)


def test_a_publisher_that_is_cancelled(tmp_path: Path) -> None:
    with RedisBroker(tmp_path, durable=False) as server:

        async def test() -> None:
            async with redis_service(server.url) as bus, bus.subscribe("/a") as stream:
                tasks = [asyncio.create_task(bus.publish("/a", {"n": n})) for n in range(100)]
                await asyncio.sleep(0)
                for task in tasks:
                    task.cancel()
                assert all(
                    isinstance(each, BaseException)
                    for each in await asyncio.gather(*tasks, return_exceptions=True)
                )
                await bus.publish("/a", {"n": 100})
                assert numbers(await take(stream, 101)) == list(range(101))  # it was on its way

        run(test)


def test_a_server_that_refuses_us_later(tmp_path: Path) -> None:
    """Nobody waits for ever, and nobody tries for ever."""
    with RedisBroker(tmp_path, options=["--requirepass", "old"], durable=False) as server:

        async def test() -> None:
            async with (
                redis_service(f"redis://:old@127.0.0.1:{server.port}") as bus,
                bus.subscribe("/a") as stream,
            ):
                redis = Redis(port=server.port, password="old")
                await redis.config_set("requirepass", "new")
                await redis.client_kill_filter(_type="normal", skipme=False)
                await redis.aclose()
                with pytest.raises(tidings.ConnectionFailed, match="refused the connection"):
                    await stream.get(timeout_s=WAIT_S)
                with pytest.raises(tidings.ConnectionFailed, match="refused the connection"):
                    await bus.publish("/a")

        run(test)
