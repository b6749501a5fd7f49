"""NATS, core and JetStream, against a real server."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nats
import pytest
from hypothesis import given
from nats.js import api

import external_checks as checks
import tidings
from external_brokers import NatsBroker, free_port
from external_checks import WAIT_S, EveryService, Make, missed_by, numbers, run, take
from live_network import until
from tidings.core.events.topics import TopicPattern
from tidings.drivers.adapters.nats import NAMES, disjoint_subjects, nats_service, subjects
from tidings.drivers.adapters.nats_pull import message_numbers
from tidings.drivers.adapters.nats_reader import StreamEnds, StreamPosition
from topic_strategies import PATTERNS, TOPICS

KINDS = ("core", "jetstream")


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, NatsBroker]]:
    directories = {kind: tmp_path_factory.mktemp(f"nats-{kind}") for kind in KINDS}
    with (
        NatsBroker(directories["core"]) as core,
        NatsBroker(directories["jetstream"], jetstream=True) as jetstream,
    ):
        yield {"core": core, "jetstream": jetstream}  # type: ignore[dict-item]


@pytest.fixture(params=KINDS)
def make(request: pytest.FixtureRequest, servers: dict[str, NatsBroker]) -> Make:
    return maker(servers[request.param], request.node.name)


@pytest.fixture
def make_jetstream(request: pytest.FixtureRequest, servers: dict[str, NatsBroker]) -> Make:
    return maker(servers["jetstream"], request.node.name)


def maker(server: NatsBroker, test: str) -> Make:
    """Each test has subjects and a stream of its own."""
    space = "".join(character if character.isalnum() else "-" for character in test)

    def make(**options: Any) -> Any:
        own = {"prefix": space, "stream": space, "max_bytes": 64 * 1024 * 1024}
        return nats_service(server.url, **{**own, **options})

    return make


# --- What every service does


class TestEveryService(EveryService):
    many = 3_000


def test_garbage_is_skipped(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> None:
        service: Any = make()
        other = await nats.connect(f"nats://{service.target.address}")

        async def send(body: bytes) -> None:
            await other.publish(f"{service.prefix}.a", body)
            await other.flush()
            await asyncio.sleep(0.02)  # its flush is none: the next one shall not be overtaken

        await checks.check_garbage(make, send, caplog)
        await other.close()

    run(test)


def test_a_slow_reader_of_core_nats_is_counted(servers: dict[str, NatsBroker]) -> None:
    run(lambda: checks.check_slow_reader_is_counted(maker(servers["core"], "slow"), 500))


def test_a_slow_reader_of_jetstream_loses_nothing(make_jetstream: Make) -> None:
    run(lambda: checks.check_slow_reader_loses_nothing(make_jetstream, 4_000))


@pytest.mark.parametrize("kind", KINDS)
def test_the_server_restarts_under_load(kind: str, tmp_path: Path) -> None:
    with NatsBroker(tmp_path, jetstream=kind == "jetstream") as server:

        def make(**options: Any) -> Any:
            return nats_service(server.url, **options)

        async def test() -> None:
            kept = kind == "jetstream"
            await checks.check_restart(make, server.kill, server.start, nothing_lost=kept)

        run(test)


# --- Names


@given(TOPICS)
def test_a_subject_has_one_topic_and_a_topic_one_subject(topic: str) -> None:
    subject = NAMES.name("tidings", topic)
    assert NAMES.topic("tidings", subject) == topic
    tokens = subject.split(".")
    assert all(tokens) and not set(subject) & set("*> \t\r\n")
    assert len(tokens) == 1 + topic.count("/")


@given(TOPICS, TOPICS)
def test_different_topics_have_different_subjects(one: str, other: str) -> None:
    assert (NAMES.name("tidings", one) == NAMES.name("tidings", other)) == (one == other)


@given(PATTERNS, TOPICS)
def test_subjects_select_what_the_pattern_selects(pattern: str, topic: str) -> None:
    found = [selects(subject, NAMES.name("p.q", topic)) for subject in subjects("p.q", TopicPattern(pattern))]
    assert any(found) == TopicPattern(pattern).matches(topic)


def selects(pattern: str, subject: str) -> bool:
    """As the documentation of NATS has it."""
    mine, theirs = pattern.split("."), subject.split(".")
    if mine[-1] == ">":
        return len(theirs) >= len(mine) and selects(".".join(mine[:-1]), ".".join(theirs[: len(mine) - 1]))
    return len(mine) == len(theirs) and all(a in ("*", b) for a, b in zip(mine, theirs, strict=True))


def test_a_subject_that_no_topic_has() -> None:
    for subject in ("tidings.%2e", "tidings.a%20", "tidings.a%", "tidings.a%41"):
        topic = NAMES.topic("tidings", subject)
        assert topic is None or NAMES.name("tidings", topic) == subject
    assert NAMES.topic("tidings", "other.a") is None


@pytest.mark.parametrize(
    ("topics", "expected"),
    [
        (("/a", "/b/**"), ["t.a", "t.b", "t.b.>"]),
        (("/a/*", "/*/b"), ["t.>"]),
        (("/a/*", "/b/*"), ["t.a.*", "t.b.*"]),
        (("/a/**", "/*/b/c"), ["t.>"]),
        ((), ["t.>"]),
        (tuple(f"/{n}" for n in range(1_000, 3_000)), [f"t.{n}" for n in range(1_000, 3_000)]),
        (tuple(f"/{n}/**" for n in range(1_000, 1_300)), ["t.>"]),  # 90 000 comparisons
    ],
)
def test_a_consumer_gets_no_overlapping_subjects(topics: tuple[str, ...], expected: list[str]) -> None:
    interest = tidings.core.events.subscription.Subscription("s", topics).interest()
    assert disjoint_subjects("t", interest.topics) == expected


def test_the_numbers_of_a_message() -> None:
    assert message_numbers("$JS.ACK.S.C.1.20.3.1700000000.0") == (20, 3, 1)
    assert message_numbers("$JS.ACK.domain.hash.S.C.1.20.3.1700000000.0.token") == (20, 3, 1)


# --- Errors


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("nats//x", "must start with nats:// or nats\\+jetstream://"),
        ("redis://x", "must start with nats://"),
        ("nats://", "the host is missing"),
        ("nats://host:port", "the port must be a number"),
        ("nats://host/path", "unexpected text after the address"),
        ("nats://[::1", "is not"),
    ],
)
def test_bad_urls(url: str, problem: str) -> None:
    with pytest.raises(tidings.ConnectionFailed, match=problem):
        nats_service(url)


def test_bad_options() -> None:
    for options in ({"prefix": "a.*"}, {"prefix": ""}, {"stream": "a.b"}, {"max_bytes": 0}, {"max_age_s": 0}):
        with pytest.raises(tidings.ConnectionFailed):
            nats_service("nats://127.0.0.1", **options)  # type: ignore[arg-type]


def test_a_password_is_never_shown() -> None:
    with pytest.raises(tidings.ConnectionFailed) as caught:
        nats_service("nats://me:secret@host:port")
    assert "secret" not in str(caught.value)
    assert "secret" not in nats_service("nats://me:secret@host").server


def test_an_unreachable_server() -> None:
    port = free_port()
    run(
        lambda: checks.check_unreachable(
            lambda **options: nats_service(f"nats://127.0.0.1:{port}", **options)
        )
    )


def test_a_server_that_says_nothing() -> None:
    async def test() -> None:
        writers: list[asyncio.StreamWriter] = []
        silent = await asyncio.start_server(lambda reader, writer: writers.append(writer), "127.0.0.1", 0)
        port = silent.sockets[0].getsockname()[1]
        with pytest.raises(tidings.ConnectionFailed):
            async with nats_service(f"nats://127.0.0.1:{port}", timeout_s=0.3):
                pass
        for writer in writers:
            writer.close()
        silent.close()

    run(test)


def test_jetstream_is_missing(servers: dict[str, NatsBroker]) -> None:
    async def test() -> None:
        with pytest.raises(tidings.ConnectionFailed, match="does not have JetStream enabled"):
            async with nats_service(servers["core"].url, jetstream=True):
                pass

    run(test)


AUTHORIZATION = """
authorization {
    users = [
        { user: all, password: right }
        { user: some, password: right, permissions: {
            publish: ["tidings.open.>", "_INBOX.>"],
            subscribe: ["tidings.open", "tidings.open.>", "_INBOX.>"] } }
    ]
}
"""


def test_credentials_and_permissions(tmp_path: Path) -> None:
    with NatsBroker(tmp_path, config=AUTHORIZATION) as server:

        async def test() -> None:
            address = f"127.0.0.1:{server.port}"
            for wrong in (f"nats://{address}", f"nats://all:wrong@{address}"):
                with pytest.raises(tidings.ConnectionFailed, match="refused the connection"):
                    async with nats_service(wrong):
                        pass
            async with nats_service(f"nats://some:right@{address}") as bus:
                with pytest.raises(tidings.SubscriptionRefused, match=r"(?i)permissions violation"):
                    async with bus.subscribe("/closed"):
                        pass
                with pytest.raises(tidings.NotConfirmed, match=r"(?i)permissions violation"):
                    await bus.publish("/Closed")
                async with bus.subscribe("/open/**") as stream:
                    await bus.publish("/open/a", {"n": 1})
                    assert numbers(await take(stream, 1)) == [1]

        run(test)


def test_a_message_that_is_longer_than_the_server_takes(tmp_path: Path) -> None:
    with NatsBroker(tmp_path, config="max_payload: 1000\n") as server:

        async def test() -> None:
            async with nats_service(server.url) as bus:
                with pytest.raises(tidings.NotConfirmed, match="the server accepts at most 1000"):
                    await bus.publish("/a", {}, bytes(1_000))
                await bus.publish("/a", {}, bytes(800))

        run(test)


def test_what_is_not_confirmed_in_time_fails(tmp_path: Path) -> None:
    with NatsBroker(tmp_path) as server:

        async def test() -> None:
            async with nats_service(server.url, retry_s=0.5) as bus:
                server.kill()
                with pytest.raises(tidings.NotConfirmed, match=r"not confirmed within 0.5 s"):
                    await bus.publish("/a")
                with pytest.raises(tidings.NotConfirmed, match="10 of 10 publications"):
                    await bus.publish_many(("/a", {}, b"") for _ in range(10))
                assert not (await bus.status())["connected"]

        run(test)


# --- The stream


def test_a_stream_of_others_is_not_taken(make_jetstream: Make) -> None:
    async def test() -> None:
        service: Any = make_jetstream()
        other = await nats.connect(f"nats://{service.target.address}")
        await other.jetstream().add_stream(api.StreamConfig(name=service.stream, subjects=["elsewhere.>"]))
        with pytest.raises(tidings.ConnectionFailed, match=r"has the subjects elsewhere.>"):
            async with service:
                pass
        await other.close()

    run(test)


def test_a_reader_that_the_bound_overtakes_is_told(make_jetstream: Make) -> None:
    async def test() -> None:
        async with make_jetstream(max_bytes=400_000) as bus, bus.subscribe("/a") as stream:
            await bus.publish_many(("/a", {"n": n}, bytes(1000)) for n in range(2_000))
            seen = numbers(await take(stream, 1))
            while len(seen) < 2_000:
                try:
                    seen += numbers([await stream.get(timeout_s=2.0)])
                except TimeoutError:
                    break
            lost = set(range(2_000)) - set(seen)
            assert lost and seen == sorted(seen)
            await until(lambda: stream.missed > 0, WAIT_S)
            told = {number for missed in missed_by(stream) for number in range(missed.first, missed.last + 1)}
            assert {n + 1 for n in lost} <= told  # the stream counts from 1
            assert {missed.source for missed in missed_by(stream)} == {bus.stream}  # type: ignore[attr-defined]

    run(test)


def test_a_reader_goes_on_when_its_consumer_is_gone(make_jetstream: Make) -> None:
    async def test() -> None:
        async with make_jetstream() as bus, bus.subscribe("/a") as stream:
            service: Any = bus
            other = await nats.connect(f"nats://{service.target.address}")
            for n in range(3):
                await bus.publish("/a", {"n": n})
                for consumer in await other.jetstream().consumers_info(service.stream):
                    await other.jetstream().delete_consumer(service.stream, consumer.name)
            await bus.publish("/a", {"n": 3})
            assert numbers(await take(stream, 4)) == [0, 1, 2, 3]
            assert stream.missed == 0
            await other.close()

    run(test)


def test_a_reader_is_told_when_the_stream_is_gone(make_jetstream: Make) -> None:
    async def test() -> None:
        async with make_jetstream() as bus, bus.subscribe("/a") as stream:
            service: Any = bus
            await bus.publish("/a", {"n": 0})
            assert numbers(await take(stream, 1)) == [0]
            other = await nats.connect(f"nats://{service.target.address}")
            await other.jetstream().delete_stream(service.stream)
            await bus.publish("/a", {"n": 1})  # no stream takes it: the next connection makes one
            await bus.publish("/a", {"n": 2})
            assert numbers(await take(stream, 2)) == [1, 2]
            assert stream.missed == 1
            await other.close()

    run(test)


def test_consumers_go_with_their_subscriptions(make_jetstream: Make) -> None:
    async def test() -> None:
        service: Any = make_jetstream()
        other = await nats.connect(f"nats://{service.target.address}")
        async with service as bus:
            async with bus.subscribe("/a"), bus.subscribe("/b"):
                assert len(await other.jetstream().consumers_info(service.stream)) == 2
            assert not await other.jetstream().consumers_info(service.stream)
            await bus.subscribe("/c").__aenter__()
        assert not await other.jetstream().consumers_info(service.stream)
        await other.close()

    run(test)


def test_core_and_jetstream_see_each_other(servers: dict[str, NatsBroker]) -> None:
    async def test() -> None:
        url = f"nats://127.0.0.1:{servers['jetstream'].port}"
        core, kept = (
            nats_service(url, prefix="both"),
            nats_service(url, jetstream=True, prefix="both", stream="B"),
        )
        async with kept, core, kept.subscribe("/a") as one, core.subscribe("/a") as two:
            await core.publish("/a", {"n": 1})
            await kept.publish("/a", {"n": 2})
            assert numbers(await take(one, 2)) == numbers(await take(two, 2)) == [1, 2]

    run(test)


# --- Positions


def test_a_position_never_passes_over_what_was_given_up() -> None:
    """A random stream, trimmed at random, read at random: whatever is trimmed unread is reported."""
    for seed in range(300):
        assert not unreported(seed, StreamPosition)


def test_the_check_of_positions_finds_a_bug() -> None:
    class Hasty(StreamPosition):
        def advance(self, ends: StreamEnds, delivered: int, *, drained: bool) -> StreamEnds | None:
            self.verified = max(self.verified, delivered, ends.last if drained else 0)
            return super().advance(ends, delivered, drained=drained)

    assert any(unreported(seed, Hasty) for seed in range(300))


def unreported(seed: int, kind: type[StreamPosition]) -> set[int]:
    """Messages for us that were neither delivered nor reported."""
    from random import Random

    random = Random(seed)
    first, last = 1, 0
    ours: set[int] = set()
    delivered: set[int] = set()
    reported: set[int] = set()
    position = kind(0, 0, 0, None)

    def publish_and_trim() -> None:
        nonlocal first, last
        for _ in range(random.randrange(6)):
            last += 1
            if random.random() < 0.4:
                ours.add(last)
        if random.random() < 0.5:
            first = min(last + 1, first + random.randrange(8))

    for _ in range(60):
        publish_and_trim()
        waiting = sorted(number for number in ours if number >= first and number > position.delivered)
        batch = waiting[: random.randrange(5)]
        delivered.update(batch)
        position.delivered = max([position.delivered, *batch])
        drained = len(batch) == len(waiting)
        publish_and_trim()  # between the messages and the look at the stream
        gap = position.advance(StreamEnds(first, last), position.delivered, drained=drained)
        if gap is not None:
            reported.update(range(gap.first, gap.last + 1))
    return {number for number in ours if number < min(first, position.verified)} - delivered - reported
