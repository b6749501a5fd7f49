"""MQTT 5, against a real Mosquitto."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from paho.mqtt import publish

import external_checks as checks
import tidings
from external_brokers import MosquittoBroker, free_port
from external_checks import WAIT_S, EveryService, Make, numbers, run, take
from live_network import until
from tidings.core.events.topics import TopicPattern
from tidings.drivers.adapters.mqtt import NAMES, mqtt_service, topic_filter
from tidings.drivers.adapters.mqtt_client import misplaced
from topic_strategies import PATTERNS, TOPICS

UNBOUNDED = "allow_anonymous true\nmax_queued_messages 0\n"
"""By default Mosquitto drops what a reader is more than 1,000 messages behind."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MosquittoBroker]:
    with MosquittoBroker(tmp_path_factory.mktemp("mosquitto"), config=UNBOUNDED) as broker:
        yield broker  # type: ignore[misc]


@pytest.fixture
def make(request: pytest.FixtureRequest, server: MosquittoBroker) -> Make:
    """Each test has topics of its own."""
    space = "".join(character if character.isalnum() else "-" for character in request.node.name)

    def make(**options: Any) -> Any:
        return mqtt_service(server.url, **{"prefix": space, **options})

    return make


def break_connection(bus: Any) -> None:
    """As a network does it, with no word to the broker."""
    bus.keeper.session._client.socket().shutdown(2)


# --- What every service does


class TestEveryService(EveryService):
    many = 1_000


def test_garbage_is_skipped(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    service: Any = make()
    host, port = service.target.address

    async def send(body: bytes) -> None:
        topic = f"{service.prefix}/a"
        await asyncio.to_thread(publish.single, topic, body, qos=1, hostname=host, port=port)

    run(lambda: checks.check_garbage(make, send, caplog))


def test_a_slow_reader_is_counted(make: Make) -> None:
    run(lambda: checks.check_slow_reader_is_counted(make, 300))


def test_the_broker_restarts_under_load(tmp_path: Path) -> None:
    """With persistence, and stopped in an orderly way, it keeps the sessions and what waits in them."""
    with MosquittoBroker(tmp_path, config=UNBOUNDED) as broker:

        def make(**options: Any) -> Any:
            return mqtt_service(broker.url, **options)

        run(lambda: checks.check_restart(make, broker.stop, broker.start, nothing_lost=True))


def test_the_broker_crashes_under_load_and_keeps_nothing(tmp_path: Path) -> None:
    with MosquittoBroker(tmp_path, config=UNBOUNDED, persistent=False) as broker:

        def make(**options: Any) -> Any:
            return mqtt_service(broker.url, **options)

        run(lambda: checks.check_restart(make, broker.kill, broker.start, nothing_lost=False))


# --- Sessions


def test_a_client_that_was_away_gets_what_it_missed(make: Make) -> None:
    async def test() -> None:
        async with make() as publisher, make() as reader, reader.subscribe("/a/**", order="fifo") as stream:
            await publisher.publish("/a", {"n": 0})
            assert numbers(await take(stream, 1)) == [0]
            break_connection(reader)
            await publisher.publish_many((f"/a/{n}", {"n": n}, b"") for n in range(1, 100))
            assert numbers(await take(stream, 99)) == list(range(1, 100))
            await until(lambda: reader.reconnections == 1, WAIT_S)

    run(test)


def test_a_subscription_that_ends_while_the_client_is_away_ends_at_the_broker(make: Make) -> None:
    async def test() -> None:
        async with make() as publisher, make() as reader, reader.subscribe("/kept") as kept:
            gone = reader.subscribe("/gone")
            await gone.__aenter__()
            break_connection(reader)
            await until(lambda: reader.keeper.session is None, WAIT_S)
            await gone.__aexit__(None, None, None)
            await until(lambda: reader.reconnections == 1, WAIT_S)
            before = reader.received
            await publisher.publish("/gone")
            await publisher.publish("/kept", {"n": 1})
            assert numbers(await take(kept, 1)) == [1]
            assert reader.received == before + 1

    run(test)


def test_filters_that_two_subscriptions_share(make: Make) -> None:
    async def test() -> None:
        async with make() as bus, bus.subscribe("/a") as one:
            async with bus.subscribe("/a") as two:
                await bus.publish("/a", {"n": 1})
                assert numbers(await take(one, 1)) == numbers(await take(two, 1)) == [1]
            await bus.publish("/a", {"n": 2})
            assert numbers(await take(one, 1)) == [2]

    run(test)


def test_what_the_broker_retains_is_from_before(make: Make) -> None:
    async def test() -> None:
        service: Any = make()
        host, port = service.target.address
        topic = f"{service.prefix}/a"
        await asyncio.to_thread(publish.single, topic, b"old", qos=1, retain=True, hostname=host, port=port)
        async with service as bus, bus.subscribe("/a") as stream:
            await bus.publish("/a", {"n": 1})
            assert numbers(await take(stream, 1)) == [1]
            assert bus.garbage == 0

    run(test)


def test_two_clients_with_one_name_do_not_disturb_each_other(make: Make) -> None:
    async def test() -> None:
        async with make(name="me") as one, one.subscribe("/a") as stream, make(name="me") as two:
            first, second = await one.publish("/a"), await two.publish("/a")
            assert [event.id for event in await take(stream, 2)] == [first, second]
            assert one.reconnections == two.reconnections == 0

    run(test)


# --- Names


@given(TOPICS)
def test_a_name_has_one_topic_and_a_topic_one_name(topic: str) -> None:
    name = NAMES.name("tidings", topic)
    assert NAMES.topic("tidings", name) == topic
    assert not set(name) & set("+#\0") and all(name.split("/"))


@given(TOPICS, TOPICS)
def test_different_topics_have_different_names(one: str, other: str) -> None:
    assert (NAMES.name("tidings", one) == NAMES.name("tidings", other)) == (one == other)


@given(PATTERNS, TOPICS)
def test_a_filter_selects_what_the_pattern_selects(pattern: str, topic: str) -> None:
    chosen = topic_filter("p/q", TopicPattern(pattern))
    assert selects(chosen.split("/"), NAMES.name("p/q", topic).split("/")) == TopicPattern(pattern).matches(
        topic
    )


def selects(chosen: list[str], name: list[str]) -> bool:
    """As the standard has it (MQTT 5.0, 4.7.1)."""
    if chosen == ["#"]:
        return True
    if not chosen or not name:
        return chosen == name
    return chosen[0] in ("+", name[0]) and selects(chosen[1:], name[1:])


# --- Errors


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("mqtt", "must start with mqtt://"),
        ("mqtts://x", "must start with mqtt://"),
        ("mqtt://:1883", "the host is missing"),
        ("mqtt://host:99999", "the port must be a number"),
        ("mqtt://host/path", "unexpected text after the address"),
        ("mqtt://host?x=1", "unexpected text after the address"),
    ],
)
def test_bad_urls(url: str, problem: str) -> None:
    with pytest.raises(tidings.ConnectionFailed, match=problem):
        mqtt_service(url)


def test_bad_options() -> None:
    for options in ({"prefix": "a/#"}, {"prefix": ""}, {"session_s": -1}, {"session_s": 2**32}):
        with pytest.raises(tidings.ConnectionFailed):
            mqtt_service("mqtt://127.0.0.1", **options)  # type: ignore[arg-type]


def test_an_unreachable_broker() -> None:
    port = free_port()
    run(
        lambda: checks.check_unreachable(
            lambda **options: mqtt_service(f"mqtt://127.0.0.1:{port}", **options)
        )
    )


def test_a_broker_that_says_nothing() -> None:
    async def test() -> None:
        writers: list[asyncio.StreamWriter] = []
        silent = await asyncio.start_server(lambda reader, writer: writers.append(writer), "127.0.0.1", 0)
        port = silent.sockets[0].getsockname()[1]
        with pytest.raises(tidings.ConnectionFailed, match="did not answer"):
            async with mqtt_service(f"mqtt://127.0.0.1:{port}", timeout_s=0.3):
                pass
        for writer in writers:
            writer.close()
        silent.close()

    run(test)


PERMISSIONS = """
allow_anonymous true
acl_file {directory}/acl
max_packet_size 2000
"""


def test_permissions_and_limits(tmp_path: Path) -> None:
    (tmp_path / "acl").write_text("topic readwrite tidings/open/#\n")
    with MosquittoBroker(tmp_path, config=PERMISSIONS.format(directory=tmp_path)) as broker:

        async def test() -> None:
            async with mqtt_service(broker.url) as bus, bus.subscribe("/open/**") as stream:
                with pytest.raises(tidings.NotConfirmed, match="refused it: Not authorized"):
                    await bus.publish("/closed")
                with pytest.raises(tidings.NotConfirmed, match="1 of 2 publications"):
                    await bus.publish_many([("/closed", {}, b""), ("/open/b", {"n": 1}, b"")])
                with pytest.raises(tidings.NotConfirmed, match="the broker takes at most 2000"):
                    await bus.publish("/open/a", {}, bytes(2_000))
                await bus.publish("/open/a", {"n": 2}, bytes(1_000))
                assert numbers(await take(stream, 2)) == [1, 2]

        run(test)


def test_a_message_above_a_limit_that_the_broker_does_not_tell_fails_alone(tmp_path: Path) -> None:
    """Mosquitto refuses it with a reason that paho ends the connection over; all others share that connection."""
    with MosquittoBroker(tmp_path, config="allow_anonymous true\nmessage_size_limit 2000\n") as broker:

        async def test() -> None:
            async with mqtt_service(broker.url) as bus, bus.subscribe("/a") as stream:
                sizes = [3_000 if n % 3 == 1 else 10 for n in range(90)]  # more than it takes at a time
                published = await asyncio.gather(
                    *(bus.publish("/a", {"n": n}, bytes(size)) for n, size in enumerate(sizes)),
                    return_exceptions=True,
                )
                small = [n for n, size in enumerate(sizes) if size == 10]
                for n, outcome in enumerate(published):
                    assert isinstance(outcome, tidings.EventId if n in small else tidings.NotConfirmed)
                    assert n in small or str(outcome).endswith("the broker refused it: Packet too large")
                assert numbers(await take(stream, len(small))) == small
                assert bus.reconnections == 0

        run(test)


@pytest.mark.parametrize(
    ("code", "said"),
    [
        (0x00, ""),
        (0x10, ""),  # nobody has subscribed
        (0x7F, ""),
        (0x87, ""),  # not authorized: paho knows it
        (0x95, "Packet too large"),
        (0x96, "Message rate too high"),
        (0xFE, "reason code 0xfe"),
    ],
)
def test_failures_that_the_standard_does_not_have_in_a_puback(code: int, said: str) -> None:
    assert misplaced(code) == said


def test_wrong_credentials(tmp_path: Path) -> None:
    (tmp_path / "passwords").write_text("")
    config = f"allow_anonymous false\npassword_file {tmp_path}/passwords\n"
    with MosquittoBroker(tmp_path, config=config) as broker:

        async def test() -> None:
            for user in ("", "me:secret@"):
                with pytest.raises(
                    tidings.ConnectionFailed, match=r"refused the connection: (Not authorized|Bad user)"
                ) as caught:
                    async with mqtt_service(f"mqtt://{user}127.0.0.1:{broker.port}"):
                        pass
                assert "secret" not in str(caught.value)

        run(test)


def test_what_is_not_confirmed_in_time_fails(tmp_path: Path) -> None:
    with MosquittoBroker(tmp_path) as broker:

        async def test() -> None:
            async with mqtt_service(broker.url, retry_s=0.5) as bus:
                broker.kill()
                with pytest.raises(tidings.NotConfirmed, match=r"not confirmed within 0.5 s"):
                    await bus.publish("/a")

        run(test)
