"""Total and causal order through `tidings.embedded`, over brokers of all three modes."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import order_checks
import tidings
from ordered_clients import MODES, numbers, quiet, run, take
from tidings.bus.embedded import Embedded, local_bus
from tidings.core.events.event import MAX_ATTRIBUTES, MAX_EVENT_BYTES, Event
from tidings.core.events.subscription import Subscription
from tidings.core.events.timestamp import Timestamp
from troubled_service import troubled_client

TOPICS = ("/a/x", "/a/y/z", "/b/x", "/c")
ENTRIES = ("/a/**", "/b/*", "/c", "/**")
SETS: tuple[tuple[str, ...], ...] = (
    ("/a/**",),
    ("/a/**", "/b/x"),
    ("/b/x", "/c"),
    ("/a/x", "/c"),
    ("/**",),
)

Orders = pytest.mark.parametrize(
    ("mode", "causal"), [*((mode, True) for mode in MODES), ("guaranteed", False)]
)
Modes = pytest.mark.parametrize("mode", MODES)


def selected(topics: tuple[str, ...], topic: str) -> bool:
    return any(tidings.TopicPattern(pattern).matches(topic) for pattern in topics)


# --- The order


@Orders
@pytest.mark.parametrize("entries", [("/**",), ENTRIES])
def test_overlapping_subscriptions_agree_and_miss_nothing(
    mode: str, causal: bool, entries: tuple[str, ...]
) -> None:
    async def scenario(bus: Embedded) -> None:
        brokers = bus.network.brokers
        clients = [bus.connect(brokers[at % len(brokers)]) for at in range(5)]
        published: dict[object, str] = {}

        async def publish(at: int) -> None:
            for step in range(20):
                topic = TOPICS[(at + step) % len(TOPICS)]
                published[at, step] = topic
                await clients[at].publish(topic, {"at": at, "step": step})
            batch = [(TOPICS[step % 4], {"at": at, "step": 100 + step}, b"") for step in range(30)]
            published.update({(at, 100 + step): topic for step, (topic, _, _) in enumerate(batch)})
            assert await clients[at].publish_many(batch) == 30

        async with contexts(clients):
            orders = ["total", "causal" if causal else "total"]
            streams = [
                client.subscribe(*topics, order=orders[at % 2])
                for at, (client, topics) in enumerate(zip(clients, SETS, strict=True))
            ]
            async with contexts(streams):
                await asyncio.gather(*(publish(at) for at in range(3)))
                shown: dict[str, list[object]] = {}
                for topics, stream in zip(SETS, streams, strict=True):
                    wanted = [event for event, topic in published.items() if selected(topics, topic)]
                    events = await take(stream, len(wanted))
                    assert await quiet(stream)
                    assert not any(event.out_of_order for event in events)
                    keys = [(event.attributes["at"], event.attributes["step"]) for event in events]
                    order_checks.check_complete(keys, wanted)
                    shown[str(topics)] = keys
                order_checks.check_agreement(shown)
                if causal:  # each publisher's own events, whatever the topic
                    causes = {(at, step): [(at, step - 1)] for at, step in published}
                    order_checks.check_causes(shown, causes)

    run(scenario, mode=mode, causal=causal, order_topics=entries)


class contexts:
    """All of them open together."""

    def __init__(self, managers: list[Any]) -> None:
        self._managers = managers

    async def __aenter__(self) -> None:
        for manager in self._managers:
            await manager.__aenter__()

    async def __aexit__(self, *error: object) -> None:
        for manager in reversed(self._managers):
            await manager.__aexit__(*error)


def test_the_check_of_agreement_can_fail() -> None:
    with pytest.raises(AssertionError, match="disagree"):
        order_checks.check_agreement({"s": [1, 2, 3], "t": [3, 1]})
    with pytest.raises(AssertionError, match="twice"):
        order_checks.check_agreement({"s": [1, 1]})
    with pytest.raises(AssertionError, match="cause"):
        order_checks.check_causes({"s": [2, 1]}, {2: [1]})
    with pytest.raises(AssertionError, match="missing"):
        order_checks.check_complete([1], [1, 2])


@Modes
def test_an_answer_is_shown_after_its_question_everywhere(mode: str) -> None:
    async def scenario(bus: Embedded) -> None:
        async with bus.connect("b1") as answers, bus.connect("b4") as reads, bus.connect("b3") as also:
            async with (
                answers.subscribe("/question", order="causal") as questions,
                reads.subscribe("/question", "/answer", order="causal") as stream,
                also.subscribe("/answer", "/question", order="total") as other,
            ):

                async def answer() -> None:
                    for _ in range(40):
                        event = await questions.get(20)
                        await answers.publish("/answer", {"n": event.attributes["n"], "kind": "answer"})

                async def ask() -> None:
                    for n in range(40):
                        await bus.publish("/question", {"n": n, "kind": "question"})

                await asyncio.gather(answer(), ask())
                shown = {}
                for name, reader in (("stream", stream), ("other", other)):
                    events = await take(reader, 80)
                    shown[name] = [(event.attributes["kind"], event.attributes["n"]) for event in events]
                order_checks.check_agreement(shown)
                order_checks.check_causes(shown, {("answer", n): [("question", n)] for n in range(40)})

    run(scenario, mode=mode, order_topics=("/answer", "/question"))


# --- Filters, and what an event says of its place


@Modes
def test_a_filter_takes_events_out_of_the_order_without_gaps(mode: str) -> None:
    async def scenario(bus: Embedded) -> None:
        async with bus.connect() as other:
            async with (
                other.subscribe("/a/**", where="fifth AND kind = 'x'", order="total") as few,
                other.subscribe("/a/**", order="total") as every,
                bus.subscribe("/a/**", where="n < 0", order="causal") as none,
                bus.subscribe("/a/1", where="topic = '/a/1'", order="causal") as by_topic,
            ):
                for n in range(60):
                    attributes = {"n": n, "kind": "x" if n % 2 else "y", "fifth": not n % 5, "raw": b"\x00"}
                    await bus.publish(f"/a/{n % 3}", attributes, b"p%d" % n)
                events = await take(few, 6)
                assert numbers(events) == [5, 15, 25, 35, 45, 55]
                for event in events:
                    n = event.attributes["n"]
                    assert event.attributes == {"n": n, "kind": "x", "fifth": True, "raw": b"\x00"}
                    assert event.payload == b"p%d" % n
                assert numbers(await take(every, 60)) == list(range(60))
                assert {event.topic for event in await take(by_topic, 20)} == {"/a/1"}
                assert await quiet(none)
                assert len(few) == len(every) == len(by_topic) == 0
                status = await other.status()
                waiting = status["ordering"]["subscriptions"]
                assert [entry["buffered"] for entry in waiting.values()] == [0, 0]
                assert not any(entry["waits_for"] for entry in waiting.values())

    run(scenario, mode=mode)


@Modes
def test_an_event_says_its_place(mode: str) -> None:
    async def scenario(bus: Embedded) -> None:
        async with bus.subscribe("/a/*", "/b", order="causal") as stream:
            await bus.publish("/a/1", {"n": 0})
            await bus.publish("/a/2", {"n": 1})
            await bus.publish("/b", {"n": 2})
            first, second, third = await take(stream, 3)
            assert (first.order.topic, first.order.number, first.order.after) == ("/a/*", 1, {"/b": 0})
            assert (second.order.topic, second.order.number) == ("/a/*", 2)
            assert (third.order.topic, third.order.number, third.order.after) == ("/b", 1, {"/a/*": 2})
            assert "number=1" in repr(first.order)
            assert isinstance(first.order, tidings.OrderPosition)

    run(scenario, mode=mode, order_topics=("/a/*", "/b"))


@Modes
def test_ordinary_subscriptions_see_plain_events_and_do_not_wait(mode: str) -> None:
    async def scenario(bus: Embedded) -> None:
        async with (
            bus.subscribe("/t", order="total") as ordered,
            bus.subscribe("/**") as plain,
        ):
            other, service = troubled_client(bus, "b1", "other")
            service.hangs = True
            await other.open()
            under_way = asyncio.create_task(other.publish("/t", {"n": 0}))
            await asyncio.sleep(0.01)  # it has number 1 by now, and never uses it
            await bus.publish("/t", {"n": 1}, b"whole")
            [event] = await take(plain, 1)
            assert (event.attributes, event.payload, event.order) == ({"n": 1}, b"whole", None)
            assert await quiet(ordered), "it waits for its turn"
            await other.close()  # its number becomes a no-op
            with pytest.raises(tidings.ConnectionFailed, match="closed"):
                await under_way
            [event] = await take(ordered, 1)
            assert (event.attributes, event.order.number) == ({"n": 1}, 2)
            assert await quiet(plain), "a no-op is for nobody to see"

    run(scenario, mode=mode)


# --- What has an order, and what has none


def test_topics_without_an_order_pass_through() -> None:
    async def scenario(bus: Embedded) -> None:
        async with bus.subscribe("/a/1", order="total") as ordered, bus.subscribe("/**") as plain:
            events = [("/b", {"n": 1}, b""), ("/a/1", {"n": 2}, b""), ("/c", {"n": 3}, b"")]
            assert await bus.publish_many(events) == 3
            await bus.publish("/d", {"n": 4})
            assert sorted(numbers(await take(plain, 4)), key=str) == [1, 2, 3, 4]
            assert numbers(await take(ordered, 1)) == [2]
            assert await quiet(ordered)

    run(scenario, order_topics=("/a/*",))


@pytest.mark.parametrize(
    ("options", "topics", "order", "words"),
    [
        ({"order_topics": ("/a/*", "/b")}, ("/c", "/b"), "total", r"/c: .* ordered topics: /a/\*, /b$"),
        ({"order_topics": ("/a/*",)}, ("/a/**",), "total", r"/a/\*\*: "),
        ({"order_topics": ("/a/*",)}, (), "total", "ordered topics"),
        ({"order_topics": tuple(f"/t/{n}" for n in range(12))}, ("/u",), "causal", r"/t/9, \.\.\."),
        ({"causal": False, "mode": "guaranteed"}, ("/a",), "causal", "total order, not causal"),
        ({"causal": False}, ("/a",), "total", "may lose events"),
    ],
)
def test_an_order_that_cannot_be_had_is_refused(
    options: dict[str, Any], topics: tuple[str, ...], order: str, words: str
) -> None:
    async def scenario(bus: Embedded) -> None:
        for _ in range(2):
            with pytest.raises(tidings.SubscriptionRefused, match=words):
                async with bus.subscribe(*topics, order=order):
                    pass
        assert not bus.streams
        async with bus.subscribe("/z") as stream:  # and the bus goes on
            await bus.publish("/z")
            await take(stream, 1)

    run(scenario, **options)


def test_an_unknown_order_is_refused() -> None:
    async def scenario(bus: Embedded) -> None:
        with pytest.raises(ValueError, match="order 'best' is not one of none, "):
            bus.subscribe("/a", order="best")

    run(scenario)


def test_a_network_without_sequencers_has_no_order() -> None:
    async def scenario(bus: Embedded) -> None:
        alone = local_bus(bus.network, "b0", "alone")
        async with alone:
            with pytest.raises(
                tidings.SubscriptionRefused,
                match="order 'total' requires sequencers, but this network has none",
            ):
                async with alone.subscribe("/a", order="total"):
                    pass
            async with alone.subscribe("/a") as stream:
                await alone.publish("/a", {"n": 1})
                await alone.publish_many([("/a", {"n": 2}, b"")])
                assert numbers(await take(stream, 2)) == [1, 2]
            assert "ordering" not in await alone.status()

    run(scenario)


# --- Mistakes of a publisher

MISTAKES: tuple[tuple[str, Any, Any, str], ...] = (
    ("no-slash", {}, b"", "topic"),
    ("/a/*", {}, b"", "wildcard"),
    ("/a", {"x": object()}, b"", "unknown type"),
    ("/a", {"x": 2**70}, b"", "64 bits"),
    ("/a", {"topic": "/b"}, b"", "reserved"),
    ("/a", {"~order": b""}, b"", "reserved"),
    ("/a", {"~x": 1}, b"", "reserved"),
    ("/a", {}, object(), "a payload of type object cannot be encoded"),
    ("/a", {}, bytes(MAX_EVENT_BYTES), "bytes"),
    ("/a", {f"x{n}": n for n in range(MAX_ATTRIBUTES + 1)}, b"", "at most 256"),
)


@Modes
def test_mistakes_are_told_before_a_number_is_taken(mode: str) -> None:
    async def scenario(bus: Embedded) -> None:
        async with bus.connect() as other, bus.subscribe("/a", order="total") as stream:
            for n, (topic, attributes, payload, words) in enumerate(MISTAKES):
                with pytest.raises(tidings.TidingsError, match=words):
                    await bus.publish(topic, attributes, payload)
                with pytest.raises(tidings.TidingsError, match=words):
                    await bus.publish_many([(topic, attributes, payload)])
                await other.publish("/a", {"n": n})
            events = await take(stream, len(MISTAKES))
            assert [event.order.number for event in events] == list(range(1, len(MISTAKES) + 1))

    run(scenario, mode=mode)


def test_the_largest_event_fits_with_its_place() -> None:
    async def scenario(bus: Embedded) -> None:
        topics = [f"/t/{n}" for n in range(40)]
        async with (
            bus.connect("b1", name="n" * 200) as other,
            bus.subscribe(*topics, order="causal") as stream,
        ):
            size = MAX_EVENT_BYTES
            while True:
                try:
                    await other.publish("/t/39", {}, bytes(size))
                except tidings.AttributeValueError:
                    size -= 100
                else:
                    break
            assert size > MAX_EVENT_BYTES - 400
            assert len((await take(stream, 1))[0].payload) == size

    run(scenario, order_topics=tuple(f"/t/{n}" for n in range(40)))


# --- Only when it is wanted


@Modes
def test_events_carry_no_place_until_somebody_wants_an_order(mode: str) -> None:
    async def scenario(bus: Embedded) -> None:
        plain: list[Event] = []
        await bus.add_subscription(Subscription("plain", ("/a",)), plain.append)
        await bus.publish("/a", {"n": 0})
        await bus.publish_many([("/a", {"n": 1}, b"")])
        async with bus.subscribe("/a", order="total") as ordered:
            await bus.publish("/a", {"n": 2})
            [event] = await take(ordered, 1)
            assert (event.attributes, event.order.number) == ({"n": 2}, 1)
        assert [event.carrier.stamp for event in plain] == [None, None, Timestamp(0, 1)]

    run(scenario, mode=mode)


def test_a_batch_that_began_before_the_order_was_wanted_joins_it() -> None:
    async def scenario(bus: Embedded) -> None:
        def events() -> Any:
            yield "/a", {"n": 0}, b""
            bus.ordering.wanted = True  # type: ignore[union-attr]
            yield "/a", {"n": 1}, b""
            yield "/a", {"n": 2}, b""

        plain: list[Event] = []
        await bus.add_subscription(Subscription("plain", ("/a",)), plain.append)
        assert await bus.publish_many(events()) == 3
        assert [event.carrier.stamp for event in plain] == [None, Timestamp(0, 1), Timestamp(0, 2)]
        async with bus.subscribe("/a", order="total") as stream:
            await bus.publish("/a", {"n": 3})
            assert numbers(await take(stream, 1)) == [3]

    run(scenario)


def test_without_async() -> None:
    with tidings.sync.embedded(3, order_topics=("/a", "/b")) as bus, bus.connect() as other:
        with (
            bus.subscribe("/a", "/b", order="total") as one,
            other.subscribe("/b", "/a", order="causal") as two,
        ):
            for n in range(10):
                (bus if n % 2 else other).publish("/a" if n % 3 else "/b", {"n": n})
            assert bus.publish_many([("/a", {"n": 10}, b""), ("/b", {"n": 11}, b"")]) == 2
            shown = {
                str(name): [stream.get(timeout_s=20).attributes["n"] for _ in range(12)]
                for name, stream in enumerate((one, two))
            }
            assert shown["0"] == shown["1"] == list(range(12))
            assert "ordering" in bus.status()
            with pytest.raises(TimeoutError):
                one.get(timeout_s=0.01)
