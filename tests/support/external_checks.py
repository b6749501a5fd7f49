"""What every event service over an existing broker must do, checked once for all of them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from itertools import pairwise
from typing import Any, Protocol

import pytest

import tidings
from live_network import until
from tidings.core.events.event import WHOLE, EventId, make_no_ops
from tidings.core.events.run import RunMaker, stamped
from tidings.core.events.subscription import Order, Subscription
from tidings.core.events.timestamp import Timestamp
from tidings.core.events.topics import TopicPattern
from tidings.drivers.adapters.external import ExternalService
from tidings.drivers.adapters.incoming import Incoming

WAIT_S = 30.0


class Make(Protocol):
    """A service at the server of a test; all that one test makes see each other."""

    def __call__(self, **options: Any) -> ExternalService: ...


def run(test: Callable[[], Awaitable[None]], seconds: float = 120.0) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(seconds):
            await test()

    asyncio.run(bounded())


async def take(stream: tidings.Stream, count: int) -> list[tidings.Event]:
    return [await stream.get(timeout_s=WAIT_S) for _ in range(count)]


def numbers(events: Sequence[tidings.Event]) -> list[Any]:
    return [event.attributes["n"] for event in events]


def missed_by(stream: tidings.Stream) -> list[tidings.EventsMissed]:
    """What its gaps name."""
    return [missed for gap in stream.gaps for missed in gap.missed]


def check_once_in_order(ids: Sequence[EventId]) -> None:
    """No event twice, and those of each source in its order."""
    assert len(set(ids)) == len(ids), "an event was shown twice"
    for source in {event.source for event in ids}:
        mine = [(event.incarnation, event.sequence) for event in ids if event.source == source]
        assert all(one < other for one, other in pairwise(mine)), f"{source} is out of order"


async def check_publish_and_subscribe(make: Make) -> None:
    attributes = {"n": 1, "text": "ü", "data": b"\0\xff", "none": None, "half": 0.5, "yes": True}
    async with make() as drawn, make(name="named") as named, drawn.subscribe("/a/b", where="n > 0") as stream:
        assert await drawn.publish("/a/b", attributes, b"payload") == EventId(drawn.name, 0, 1)
        await drawn.publish("/a/b", {"n": 0})
        await drawn.publish("/a/b")
        second = await named.publish("/a/b", {"n": 2})
        assert second.source == "named" and second.incarnation > 0 and second.sequence == 1
        one, two = await take(stream, 2)
        assert (one.id, one.topic, one.payload) == (EventId(drawn.name, 0, 1), "/a/b", b"payload")
        assert one.attributes == attributes
        assert two.id == second
        await named.publish("/a/b", {"n": 3}, {"title": "oil"}, expires=1e-9)
        await named.publish("/a/b", {"n": 4}, {"title": "oil"}, expires=600)
        (typed,) = await take(stream, 1)
        assert (typed.json(), typed.content_type) == ({"title": "oil"}, "application/json")
        assert typed.attributes == {"n": 4} and typed.expires_at is not None and stream.expired == 1
        assert (await drawn.publish("/a/b")).sequence == 4
        status = await drawn.status()
        assert status["connected"] and status["published"] == status["confirmed"] == 4
        assert status["subscriptions"] == 1 and status["notified"] == 4
        assert drawn.target.address.host in status["server"]  # type: ignore[attr-defined]


LONG = "/" + "." * 1023
DEEP = "/" + "/".join("abcd" * 16)
STRANGE_TOPICS = (
    *("/a", "/a/b", "/a/b/c", "/a/c", "/ab", "/b", "/a.b", "/a b", "/a/b.c", "/a%2Eb", "/%", "/%25", "/a/>"),
    *(
        "/+",
        "/#",
        "/a/+",
        "/a/#",
        "/$SYS/x",
        "/$JS",
        "/_INBOX",
        "/ä/€/😀",
        "/tidings",
        "/tidings/a",
        LONG,
        DEEP,
    ),
)
PATTERNS = (
    *(
        "/a",
        "/a/b",
        "/a/*",
        "/*/b",
        "/a/**",
        "/**",
        "/*",
        "/*/*",
        "/a/b/**",
        "/a.b",
        "/+",
        "/#",
        "/a/+",
        "/$SYS/**",
    ),
    *("/%", "/a b", "/a/b.c", "/ä/*/😀", LONG, DEEP, "/a/>", "/tidings/**"),
)


async def check_patterns(make: Make) -> None:
    """Each pattern selects what TopicPattern says, for topics with characters that brokers reserve."""
    async with make() as bus:
        streams = {pattern: bus.subscribe(pattern) for pattern in PATTERNS}
        for stream in streams.values():
            await stream.__aenter__()
        await bus.publish_many((topic, {}, b"") for topic in STRANGE_TOPICS)
        for pattern, stream in streams.items():
            expected = [topic for topic in STRANGE_TOPICS if TopicPattern(pattern).matches(topic)]
            assert [event.topic for event in await take(stream, len(expected))] == expected, pattern
            await stream.__aexit__(None, None, None)


async def check_overlapping_patterns(make: Make) -> None:
    """What several patterns of a subscription select is shown once, and so is what several subscriptions select."""
    async with make() as bus:
        async with bus.subscribe("/a/*", "/*/b", "/a/**") as one, bus.subscribe("/*/b", "/a/*") as two:
            await bus.publish_many(
                (("/a/b", "/a/c", "/x/b", "/y/z")[n % 4], {"n": n}, b"") for n in range(400)
            )
            expected = [n for n in range(400) if n % 4 != 3]
            assert numbers(await take(one, 300)) == expected
            assert numbers(await take(two, 300)) == expected
            await bus.publish("/a/b", {"n": 400})
            assert numbers(await take(one, 1)) == numbers(await take(two, 1)) == [400]
        async with bus.subscribe("/a/b") as later:  # nothing from before
            await bus.publish("/a/b", {"n": 401})
            assert numbers(await take(later, 1)) == [401]


async def check_many(make: Make, count: int) -> None:
    """Two publishers, several topics: once, and in order per source, across topics."""
    async with make() as one, make() as two, make() as reader:
        async with reader.subscribe("/a/*", "/b/**", order="fifo") as stream:

            def events() -> Any:
                return ((("/a/x", "/b", "/b/c/d")[n % 3], {"n": n}, b"p" * (n % 50)) for n in range(count))

            sent = await asyncio.gather(one.publish_many(events()), two.publish_many(events()))
            assert sent == [count, count]
            seen = await take(stream, 2 * count)
            check_once_in_order([event.id for event in seen])
            assert not any(event.out_of_order for event in seen)
            assert len(stream) == 0


async def check_mistakes(make: Make) -> None:
    """One clear error each, and the service goes on."""
    unopened = make()
    with pytest.raises(tidings.ConnectionFailed, match="not open"):
        await unopened.publish("/a")
    async with make() as bus, bus.subscribe("/a") as stream:
        with pytest.raises(tidings.TopicError, match="wildcard"):
            await bus.publish("/a/*")
        with pytest.raises(tidings.AttributeValueError, match="reserved"):
            await bus.publish("/a", {"~order": 1})
        with pytest.raises(tidings.AttributeValueError, match="unknown type"):
            await bus.publish_many([("/a", {"n": 1}, b""), ("/a", {"n": object()}, b"")])  # type: ignore[dict-item]
        with pytest.raises(tidings.AttributeValueError, match="bytes; at most"):
            await bus.publish("/a", {}, bytes(1024 * 1024))
        with pytest.raises(tidings.SubscriptionRefused, match="available: none, fifo"):
            await bus.add_subscription(Subscription("x", ("/a",), order=Order.TOTAL), lambda event: None)
        await bus.publish("/a", {"n": 2})
        first, second = await take(stream, 2)
        assert (first.sequence, second.sequence) == (1, 2)  # what was wrong took no number
    with pytest.raises(tidings.ConnectionFailed, match="closed"):
        await stream.get(timeout_s=WAIT_S)
    with pytest.raises(tidings.ConnectionFailed, match="closed"):
        await bus.publish("/a")
    with pytest.raises(tidings.ConnectionFailed, match="is not a client name"):
        make(name="")


async def check_large_event(make: Make, payload_bytes: int) -> None:
    async with make() as bus, bus.subscribe("/a") as stream:
        await bus.publish("/a", {"n": 1}, b"x" * payload_bytes)
        (event,) = await take(stream, 1)
        assert event.payload == b"x" * payload_bytes


async def check_headers(make: Make) -> None:
    """What wraps a service gets the headers of events through; applications never see them."""
    async with make() as bus, bus.subscribe("/a") as stream:
        wide: list[tidings.Event] = []
        narrow: list[tidings.Event] = []
        await bus.add_subscription(Subscription("w", ("/a",), headers=True), wide.append)
        await bus.add_subscription(Subscription("n", ("/a",), "n > 5"), narrow.append)
        made = RunMaker(*bus.reserve()[:2])
        made.add(1, "/a", {"n": 1}, b"payload", 0)
        made.add(bus.reserve().sequence, "/a", {"n": 6}, b"payload", 0)
        (run,) = made.take_all()
        stamp = Timestamp(0, 7, (1,), (3,))
        await (await bus.send(stamped(run, 99, stamp))).confirmed()
        await (await bus.send(make_no_ops(*bus.reserve(), "/a", 99, stamp.at(9), 4))).confirmed()
        await until(lambda: len(wide) == 3 and len(narrow) == 1, WAIT_S)
        assert (wide[0].attributes, wide[0].payload) == ({"n": 1}, b"payload"), "nothing is left out here"
        assert [event.carrier.stamp for event in wide] == [stamp, stamp.at(8), stamp.at(9)]
        assert [event.carrier.kind for event in wide] == [WHOLE, WHOLE, 4]
        assert narrow[0].attributes == {"n": 6} and narrow[0].carrier.stamp == stamp.at(8)
        assert numbers(await take(stream, 2)) == [1, 6] and not len(stream), "a no-op is shown to nobody else"


async def check_garbage(
    make: Make, send: Callable[[bytes], Awaitable[None]], caplog: pytest.LogCaptureFixture
) -> None:
    """`send` puts a message of somebody else on the topic `/a`."""
    async with make() as bus, bus.subscribe("/**") as stream:
        for body in (b"", b"hello", b"\xc1", b"\x97" + b"\xc0" * 7, b"\x93\xa1a\x00\x01", bytes(1000)):
            await send(body)
        await bus.publish("/a", {"n": 1})
        assert numbers(await take(stream, 1)) == [1]
        assert (await bus.status())["garbage"] == 6
    assert sum("skipped a message" in record.message for record in caplog.records) == 1


async def check_failing_application(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    async with make() as bus, bus.subscribe("/a") as stream:

        def fail(event: tidings.Event) -> None:
            raise RuntimeError("a mistake of the application")

        await bus.add_subscription(Subscription("bad", ("/a",)), fail)
        await bus.publish_many(("/a", {"n": n}, b"") for n in range(3))
        assert numbers(await take(stream, 3)) == [0, 1, 2]
    assert "a mistake of the application" in caplog.text


async def check_slow_reader_loses_nothing(make: Make, count: int) -> None:
    """It holds a bounded number, the rest waits at the broker, and nobody else waits for it."""
    async with make() as bus, bus.subscribe("/a") as slow, bus.subscribe("/a") as quick:
        assert bus.lossless
        await bus.publish_many(("/a", {"n": n}, b"x" * 100) for n in range(count))
        assert numbers(await take(quick, count)) == list(range(count))
        assert 0 < len(slow) < count // 2
        assert numbers(await take(slow, count)) == list(range(count))
        assert slow.dropped == slow.missed == quick.missed == 0


async def check_slow_reader_is_counted(make: Make, count: int) -> None:
    async with make() as bus, bus.subscribe("/a", buffer_events=10) as slow, bus.subscribe("/a") as quick:
        assert not bus.lossless
        await bus.publish_many(("/a", {"n": n}, b"") for n in range(count))
        await take(quick, count)
        await until(lambda: len(slow) + slow.dropped == count, WAIT_S)
        assert len(slow) == 10
        assert not bus.incoming[slow.subscription.id].pace._sizes, "what was left out is never taken"
        assert numbers(await take(slow, 10)) == list(range(10))


class Load:
    """Publishes, one by one and in bursts, whatever happens to the broker."""

    def __init__(self, bus: ExternalService, pause_s: float = 0.002) -> None:
        self.unsure = 0
        self._bus = bus
        self._pause_s = pause_s
        self._stopping = False
        self._tasks = [asyncio.create_task(self._publish()) for _ in range(3)]
        self._tasks.append(asyncio.create_task(self._publish_many()))

    async def _publish(self) -> None:
        while not self._stopping:
            try:
                await self._bus.publish("/load", {}, b"x" * 20)
            except tidings.NotConfirmed:
                self.unsure += 1
            await asyncio.sleep(self._pause_s)

    async def _publish_many(self) -> None:
        while not self._stopping:
            try:
                await self._bus.publish_many(("/load", {}, b"x" * 20) for _ in range(50))
            except tidings.NotConfirmed:
                self.unsure += 1
            await asyncio.sleep(self._pause_s)

    @property
    def published(self) -> int:
        return self._bus.outgoing.published

    async def reach(self, count: int) -> None:
        """Until so many more are confirmed."""
        goal = self._bus.outgoing.confirmed + count
        await until(lambda: self._bus.outgoing.confirmed >= goal, WAIT_S)

    async def stop(self) -> None:
        self._stopping = True
        await asyncio.gather(*self._tasks)


async def check_restart(
    make: Make,
    crash: Callable[[], None],
    restart: Callable[[], None],
    *,
    nothing_lost: bool,
    spoil: Callable[[Incoming], None] = lambda incoming: None,
    fifo: bool = True,
) -> None:
    """The broker crashes twice under load: what is confirmed is shown once and in order, or, where the broker keeps
    nothing, at least what is published when everybody is back. `spoil` is for a reader with a mistake."""
    async with make() as publisher, make() as reader:
        seen: list[EventId] = []
        late: list[EventId] = []

        def notify(event: tidings.Event) -> None:
            (late if event.out_of_order else seen).append(event.id)

        order = Order.FIFO if fifo else Order.NONE
        await reader.add_subscription(Subscription("s", ("/load",), order=order), notify)
        spoil(reader.incoming["s"])
        load = Load(publisher)
        for crashes in (1, 2):
            await load.reach(200)
            await asyncio.to_thread(crash)
            await asyncio.sleep(0.3)
            await asyncio.to_thread(restart)
            await until(partial(reconnected, publisher, reader, times=crashes), WAIT_S)
        back = load.published
        await load.reach(200)
        await load.stop()
        assert load.unsure == 0
        assert publisher.outgoing.confirmed == load.published
        owed = {EventId(publisher.name, 0, 1 + n) for n in range(0 if nothing_lost else back, load.published)}
        await until(
            lambda: owed <= set(seen),
            WAIT_S,
            lambda: f"{len(owed - set(seen))} are missing, the first is {min(owed - set(seen))}",
        )
        assert not late
        check_once_in_order(seen)


def reconnected(*services: ExternalService, times: int) -> bool:
    return all(service.reconnections >= times for service in services)


async def check_unreachable(make: Make) -> None:
    with pytest.raises(tidings.ConnectionFailed, match="cannot connect to"):
        async with make():
            pass


class EveryService:
    """What every service does, as tests: for a class of a module that has a fixture `make`."""

    many = 3_000

    def test_publish_and_subscribe(self, make: Make) -> None:
        run(lambda: check_publish_and_subscribe(make))

    def test_patterns(self, make: Make) -> None:
        run(lambda: check_patterns(make))

    def test_overlapping_patterns(self, make: Make) -> None:
        run(lambda: check_overlapping_patterns(make))

    def test_many_events_once_and_in_order(self, make: Make) -> None:
        run(lambda: check_many(make, self.many))

    def test_mistakes(self, make: Make) -> None:
        run(lambda: check_mistakes(make))

    def test_headers(self, make: Make) -> None:
        run(lambda: check_headers(make))

    def test_a_large_event(self, make: Make) -> None:
        run(lambda: check_large_event(make, 1_000_000))

    def test_an_application_that_fails(self, make: Make, caplog: pytest.LogCaptureFixture) -> None:
        run(lambda: check_failing_application(make, caplog))
