"""Redis streams, against a real server."""

import asyncio
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
from redis.asyncio import Redis

import external_checks as checks
import tidings
from external_brokers import RedisBroker, free_port
from external_checks import WAIT_S, EveryService, Make, missed_by, numbers, run, take
from live_network import until
from tidings.core.events.subscription import Subscription
from tidings.drivers.adapters.incoming import Incoming
from tidings.drivers.adapters.redis import redis_service
from tidings.drivers.adapters.redis_feed import (
    Entry,
    EntryId,
    Feed,
    FeedPosition,
    StreamInfo,
    find_gap,
    id_text,
    parse_id,
)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisBroker]:
    with RedisBroker(tmp_path_factory.mktemp("redis"), durable=False) as broker:
        yield broker  # type: ignore[misc]


@pytest.fixture
def make(request: pytest.FixtureRequest, server: RedisBroker) -> Make:
    """Each test has a stream of its own."""

    def make(**options: Any) -> Any:
        return redis_service(server.url, **{"key": request.node.name, **options})

    return make


# --- What every service does


class TestEveryService(EveryService):
    many = 3_000


def test_a_slow_reader_loses_nothing(make: Make) -> None:
    run(lambda: checks.check_slow_reader_loses_nothing(make, 4_000))


def test_garbage_is_skipped(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> None:
        service: Any = make()
        other = Redis(host="127.0.0.1", port=service.target.address.port)

        async def send(body: bytes) -> None:
            await other.xadd(service.key, {"e": body} if body else {"other": "field"})

        await checks.check_garbage(make, send, caplog)
        await other.aclose()

    run(test)


def test_the_server_crashes_under_load(tmp_path: Path) -> None:
    with RedisBroker(tmp_path) as broker:

        def make(**options: Any) -> Any:
            return redis_service(broker.url, **options)

        run(lambda: checks.check_restart(make, broker.kill, broker.start, nothing_lost=True))


def test_the_check_of_crashes_finds_repetitions(tmp_path: Path) -> None:
    """A publisher that sends everything again, and a reader that does not look for repetitions."""

    class Forgetful:
        def first_time(self, *_: object) -> bool:
            return True

    def spoil(incoming: Incoming) -> None:
        incoming._recent = Forgetful()  # type: ignore[assignment]

    with RedisBroker(tmp_path) as broker:

        def make(**options: Any) -> Any:
            service = redis_service(broker.url, **options)
            sent = service.outgoing._take_unsent
            service.outgoing._take_unsent = lambda: [each for one in sent() for each in (one, one)]  # type: ignore[method-assign]
            return service

        with pytest.raises(AssertionError, match="shown twice"):
            run(
                lambda: checks.check_restart(
                    make, broker.kill, broker.start, nothing_lost=True, spoil=spoil, fifo=False
                )
            )


# --- The stream


def test_a_reader_that_trimming_overtakes_is_told(make: Make) -> None:
    """The numbers of the entries that are gone are exact."""

    async def test() -> None:
        async with make(max_events=200) as bus, bus.subscribe("/a") as stream, bus.subscribe("/b") as other:
            await bus.publish_many(("/a", {"n": n}, b"") for n in range(1, 3_001))
            seen = numbers(await take(stream, 1))
            while seen[-1] < 3_000:
                seen += numbers(await take(stream, 1))
            gone = {number for missed in missed_by(stream) for number in range(missed.first, missed.last + 1)}
            assert gone == set(range(1, 3_001)) - set(seen)
            assert gone and stream.missed == len(gone)
            assert {missed.source for missed in missed_by(stream)} == {bus.key}  # type: ignore[attr-defined]
            await until(lambda: len(other) == 0, WAIT_S)

    run(test)


def test_the_stream_is_trimmed(make: Make) -> None:
    async def test() -> None:
        async with make(max_events=500) as bus:
            await bus.publish_many(("/a", {}, b"") for _ in range(3_000))
            redis = Redis(host="127.0.0.1", port=bus.target.address.port)  # type: ignore[attr-defined]
            assert 500 <= await redis.xlen(bus.key) < 1_000  # type: ignore[attr-defined]
            await redis.aclose()

    run(test)


def test_a_server_that_loses_its_data_is_noticed(tmp_path: Path) -> None:
    with RedisBroker(tmp_path, durable=False) as broker:

        async def test() -> None:
            async with redis_service(broker.url) as bus, bus.subscribe("/a") as stream:
                for n in range(5):
                    await bus.publish("/a", {"n": n})
                assert numbers(await take(stream, 5)) == list(range(5))
                broker.kill()
                broker.start()
                for n in range(5, 8):
                    await bus.publish("/a", {"n": n})
                assert numbers(await take(stream, 3)) == [5, 6, 7]
                assert stream.missed == 1

        run(test)


def test_a_key_that_is_no_stream(make: Make) -> None:
    async def test() -> None:
        async with make() as bus:
            redis = Redis(host="127.0.0.1", port=bus.target.address.port)  # type: ignore[attr-defined]
            await redis.set(bus.key, "text")  # type: ignore[attr-defined]
            with pytest.raises(tidings.SubscriptionRefused, match="WRONGTYPE"):
                async with bus.subscribe("/a"):
                    pass
            with pytest.raises(tidings.NotConfirmed, match="the server rejected it: WRONGTYPE"):
                await bus.publish("/a")
            await redis.aclose()

    run(test)


def test_databases_are_apart(server: RedisBroker) -> None:
    async def test() -> None:
        url = f"redis://127.0.0.1:{server.port}"
        async with redis_service(f"{url}/1") as one, redis_service(f"{url}/2") as two:
            async with one.subscribe("/a") as stream:
                await two.publish("/a", {"n": 2})
                await one.publish("/a", {"n": 1})
                assert numbers(await take(stream, 1)) == [1]

    run(test)


# --- Errors


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("redis:/x", "must start with redis://"),
        ("rediss://x", "must start with redis://"),
        ("redis:///0", "the host is missing"),
        ("redis://host:x/0", "the port must be a number"),
        ("redis://host/zero", "the database must be a number, not 'zero'"),
        ("redis://host/0/1", "the database must be a number"),
    ],
)
def test_bad_urls(url: str, problem: str) -> None:
    with pytest.raises(tidings.ConnectionFailed, match=problem):
        redis_service(url)


def test_bad_options() -> None:
    for options in ({"key": ""}, {"max_events": 0}):
        with pytest.raises(tidings.ConnectionFailed):
            redis_service("redis://127.0.0.1", **options)  # type: ignore[arg-type]


def test_an_unreachable_server() -> None:
    port = free_port()
    run(
        lambda: checks.check_unreachable(
            lambda **options: redis_service(f"redis://127.0.0.1:{port}", **options)
        )
    )


def test_a_database_that_is_not_there(server: RedisBroker) -> None:
    async def test() -> None:
        with pytest.raises(tidings.ConnectionFailed, match="DB index is out of range"):
            async with redis_service(f"redis://127.0.0.1:{server.port}/99"):
                pass

    run(test)


def test_a_server_that_says_nothing() -> None:
    async def test() -> None:
        writers: list[asyncio.StreamWriter] = []
        silent = await asyncio.start_server(lambda reader, writer: writers.append(writer), "127.0.0.1", 0)
        port = silent.sockets[0].getsockname()[1]
        with pytest.raises(tidings.ConnectionFailed, match="did not answer"):
            async with redis_service(f"redis://127.0.0.1:{port}", timeout_s=0.3):
                pass
        for writer in writers:
            writer.close()
        silent.close()

    run(test)


def test_wrong_credentials(tmp_path: Path) -> None:
    with RedisBroker(tmp_path, options=["--requirepass", "right"], durable=False) as broker:

        async def test() -> None:
            address = f"127.0.0.1:{broker.port}"
            for user in ("", ":wrong@", "me:wrong@"):
                with pytest.raises(tidings.ConnectionFailed, match="refused the connection") as caught:
                    async with redis_service(f"redis://{user}{address}"):
                        pass
                assert "wrong@" not in str(caught.value)
            async with redis_service(f"redis://:right@{address}") as bus:
                await bus.publish("/a")

        run(test)


def test_what_is_not_confirmed_in_time_fails(tmp_path: Path) -> None:
    with RedisBroker(tmp_path, durable=False) as broker:

        async def test() -> None:
            async with redis_service(broker.url, retry_s=0.5) as bus:
                broker.kill()
                with pytest.raises(tidings.NotConfirmed, match=r"not confirmed within 0.5 s"):
                    await bus.publish("/a")

        run(test)


# --- Reading for several subscriptions


def test_ids() -> None:
    assert parse_id(b"1700000000000-12") == (1_700_000_000_000, 12)
    assert id_text((1_700_000_000_000, 12)) == "1700000000000-12"


@pytest.mark.parametrize(
    ("number", "length", "added", "behind", "gap", "after"),
    [
        (10, 5, 20, 5, (11, 15), 15),  # 16 to 20 are left
        (10, 10, 20, 10, None, 10),  # our own is the last that went
        (10, 0, 20, 0, (11, 20), 20),
        (10, 3, 3, 3, (11, 11), 0),  # a new stream
        (10, 0, 0, 0, (11, 11), 0),
        (0, 0, 0, 0, None, 0),
    ],
)
def test_gaps(
    number: int, length: int, added: int, behind: int, gap: tuple[int, int] | None, after: int
) -> None:
    position = FeedPosition((1, 0), number)
    assert find_gap(position, StreamInfo(length, added, (9, 9)), behind, all_behind=True) == gap
    assert position.number == after


class RandomStream:
    """A stream in memory that grows and is trimmed at random, and readers that take at random."""

    def __init__(self, seed: int, kind: type[Feed]) -> None:
        self.random = Random(seed)
        self.entries: list[Entry] = []
        self.added = 0
        self.quiet = False
        self.feed = kind(self.read, self.read_behind, self.receive, self.missed)
        self.readers: list[Incoming] = []
        self.given: dict[Incoming, list[int]] = {}
        self.gone: dict[Incoming, set[int]] = {}
        self.since: dict[Incoming, int] = {}

    def add_reader(self) -> None:
        subscription = Subscription(f"s{len(self.readers)}")
        reader = Incoming(subscription, lambda event: None, paced=True)
        self.readers.append(reader)
        self.given[reader], self.gone[reader], self.since[reader] = [], set(), self.added
        self.feed.add(reader, FeedPosition((self.added, 0), self.added))

    async def read(self, start: EntryId, count: int) -> list[Entry]:
        await self.happen()
        return self.entries[bisect_left(self.entries, (start, b"")) :][:count]

    async def read_behind(self, start: EntryId, count: int) -> tuple[StreamInfo, list[Entry]]:
        await self.happen()
        info = StreamInfo(len(self.entries), self.added, (self.added, 0))
        return info, self.entries[bisect_right(self.entries, (start, b"")) :][:count]

    def receive(self, entry: Entry, takers: Any) -> None:
        for reader in takers:
            self.given[reader].append(entry[0][0])
            reader.pace.handed(200_000)  # some eighty fill a reader

    def missed(self, reader: Incoming, first: int, last: int) -> None:
        self.gone[reader].update(range(first, last + 1))

    async def happen(self) -> None:
        await asyncio.sleep(0)
        if self.quiet:
            return
        for _ in range(self.random.randrange(60)):
            self.added += 1
            self.entries.append(((self.added, 0), b""))
        if self.random.random() < 0.3:
            del self.entries[: self.random.randrange(120)]
        for reader in self.readers:
            for _ in range(self.random.choice((0, 0, 30, 90))):
                reader.pace.taken()
        if len(self.readers) < 4 and self.random.random() < 0.1:
            self.add_reader()
        self.feed.wake()

    async def run(self) -> None:
        self.add_reader()
        feeding = asyncio.create_task(self.feed.run())
        for _ in range(40):
            await self.happen()
            await asyncio.sleep(0)
        self.quiet = True
        for _ in range(1_000):  # the readers take all there is
            for reader in self.readers:
                for _ in range(20):
                    reader.pace.taken()
            self.feed.wake()
            await asyncio.sleep(0)
            if all(self.done(reader) for reader in self.readers):
                break
        feeding.cancel()

    def done(self, reader: Incoming) -> bool:
        given = self.given[reader][-1:]
        return self.added in (self.since[reader], *given) or self.added in self.gone[reader]

    def check(self) -> None:
        for reader in self.readers:
            given = self.given[reader]
            assert given == sorted(set(given))
            assert not self.gone[reader] & set(given)
            assert self.gone[reader] | set(given) == set(range(self.since[reader] + 1, self.added + 1))


@pytest.mark.parametrize("seed", range(20))
def test_every_entry_is_given_or_reported(seed: int) -> None:
    stream = RandomStream(seed, Feed)
    asyncio.run(stream.run())
    stream.check()


def test_the_check_of_the_feed_finds_a_bug() -> None:
    class Careless(Feed):
        """It reports gaps to the subscription that it reads for, and to no other that stands further on."""

        def _report_gaps(self, start: EntryId, info: StreamInfo, entries: list[Entry], wanted: int) -> None:
            further = {key: each for key, each in self._cursors.items() if each.position.entry > start}
            for key in further:
                del self._cursors[key]
            super()._report_gaps(start, info, entries, wanted)
            self._cursors.update(further)

    def fails(seed: int) -> bool:
        stream = RandomStream(seed, Careless)
        asyncio.run(stream.run())
        try:
            stream.check()
        except AssertionError:
            return True
        return False

    assert any(fails(seed) for seed in range(40))
