"""Headers of events: where an order, no-ops and what is left of an event are told; applications never see them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tidings
from tidings.core.client.session import BestEffortClient
from tidings.core.errors import AttributeValueError, WireError
from tidings.core.events.event import (
    BARE,
    MAX_NO_OPS,
    WHOLE,
    Event,
    Publication,
    bare_publication,
    check_publication,
    decode_event,
    decode_publication,
    make_no_ops,
    make_publication,
    rebuild_publication,
    stamp_publication,
)
from tidings.core.events.subscription import Subscription
from tidings.core.events.timestamp import Timestamp
from tidings.core.filters.language.predicates import Scalar
from tidings.core.overlay.best_effort.broker import Broker
from tidings.drivers.virtual.network import SimulatedNetwork
from tidings.scenarios.file.expand import PlannedSubscriber
from tidings.scenarios.file.links import LOCAL
from tidings.scenarios.file.timeline import Step
from tidings.scenarios.trace.memory import MemoryWriter
from tidings.scenarios.virtual.make_clients import ClientMaker
from tidings.scenarios.virtual.tally import Tally
from tidings.testing import TestNetwork, simulate

NS_PER_S = 1_000_000_000
STAMP = Timestamp(2, 7, (0, 3), (5, 0))
STAMPS = st.builds(
    Timestamp,
    st.just(2),
    st.integers(1, 2**62 - MAX_NO_OPS),
    st.just((0, 3)),
    st.tuples(st.integers(0, 2**40), st.integers(0, 9)),
)
ATTRIBUTES = st.dictionaries(
    st.sampled_from(["a", "x~y", "é"]), st.integers() | st.text(max_size=3), max_size=3
)
ATTRIBUTES = ATTRIBUTES.filter(
    lambda found: all(abs(n) < 2**63 for n in found.values() if isinstance(n, int))
)


def publication(attributes: Mapping[str, Scalar], payload: bytes = b"payload") -> Publication:
    """As a broker or client has it from the wire."""
    return decode_publication(make_publication("p", 2, 3, "/a/b", attributes, payload, 5).raw)


# --- Events as applications and brokers see them


@settings(max_examples=100, deadline=None)
@given(ATTRIBUTES, STAMPS, st.integers(1, 2**48))
def test_a_header_travels_behind_the_event_and_changes_nothing_of_it(
    attributes: dict[str, Scalar], stamp: Timestamp, layout: int
) -> None:
    plain = publication(attributes)
    ordered = stamp_publication(publication(attributes), layout, stamp)
    back = decode_publication(ordered.raw)
    assert (back.layout, back.stamp, back.kind) == (layout, stamp, WHOLE)
    assert back.event() == plain.event() == decode_event(back.raw)
    assert back.event().__dict__ == {}
    assert back.attributes() == plain.attributes()
    assert back.size_bytes == len(bytes(back.raw)) == ordered.size_bytes
    check_publication(back)
    fields = ("p", 2, 3, "/a/b", 5, bytes(back.packed_attributes), b"payload")
    assert bytes(rebuild_publication(*fields, back.packed_header).raw) == bytes(back.raw)
    assert bytes(rebuild_publication(*fields).raw) == bytes(plain.raw)


def test_what_is_ours_alone_cannot_be_sent_by_others() -> None:
    header = [1, [2, 7, [], []], 0]
    longer = ["p", 0, 1, "/a", 0, {}, b"", *header, None, 0, None, None, None, "", {"not": "a publication"}]
    taken = decode_publication(msgspec.msgpack.encode(longer))
    assert (taken.stamp, taken.bared, taken.decoded, taken.text_id) == (Timestamp(2, 7), None, None, "")


FORGED: tuple[tuple[Any, str], ...] = (
    ([0, None, BARE], "without its body"),
    ([0, None, 3], "without its body"),
    ([9, [2, 7, [], []], BARE], "without its body"),
    ([9, [2, 0, [], []], 0], "numbers from 0 on"),
    ([9, [2, -1, [], []], 0], "numbers from -1 on"),
    ([9, [-2, 1, [], []], 0], "for topic -2"),
    ([9, [2, 2**62, [], []], 0], "numbers from"),
    ([9, [2, 2**62 - 5, [], []], 6], "numbers from"),
    ([9, [2, 1, [0], []], 0], "make no sense"),
    ([9, [2, 1, [2], [1]], 0], "make no sense"),
    ([9, [2, 1, list(range(3, 4100)), [1] * 4097], 0], "make no sense"),
    ([9, [2, 1, [1, 0], [1, 1]], 0], "not ascending"),
    ([9, [2, 1, [0], [-1]], 0], "impossible clocks"),
)


@pytest.mark.parametrize(("header", "reason"), FORGED)
def test_a_broker_refuses_a_header_that_nobody_could_have_made(header: list[Any], reason: str) -> None:
    raw = msgspec.msgpack.encode(["p", 0, 1, "/a", 0, {}, b"", *header])
    with pytest.raises(WireError, match=reason):
        check_publication(decode_publication(raw))


@pytest.mark.parametrize(
    "header",
    [["x", None, 0], [0, 5, 0], [0, [1], 0], [0, [1, "2"], 0], [0, None, -2], [0, None, MAX_NO_OPS + 1]],
)
def test_what_is_no_header_does_not_decode(header: list[Any]) -> None:
    with pytest.raises(WireError, match="not an event"):
        decode_publication(msgspec.msgpack.encode(["p", 0, 1, "/a", 0, {}, b"", *header]))


# --- What is left of an event


@settings(max_examples=50, deadline=None)
@given(ATTRIBUTES, st.binary(max_size=20), st.none() | STAMPS)
def test_what_is_left_keeps_the_identity_and_the_header(
    attributes: dict[str, Scalar], payload: bytes, stamp: Timestamp | None
) -> None:
    whole = publication(attributes, payload)
    if stamp is not None:
        stamp_publication(whole, 9, stamp)
    before = bytes(whole.raw)
    left = bare_publication(whole)
    back = decode_publication(left.raw)
    assert decode_event(left.raw) == Event("p", 2, 3, "/a/b", 5, {}, b"")
    assert (back.stamp, back.kind) == (left.stamp, left.kind) == (stamp, BARE)
    assert left.size_bytes == len(bytes(left.raw))
    assert bare_publication(whole) is left, "it is made once"
    assert bytes(bare_publication(left).raw) == bytes(left.raw)
    assert bytes(whole.raw) == before


def test_no_ops_stay_what_they_are() -> None:
    no_ops = make_no_ops("p", 0, 1, "/a", 9, STAMP, 40)
    check_publication(no_ops)
    for each in (no_ops, decode_publication(no_ops.raw), bare_publication(no_ops)):
        assert (each.kind, each.numbers, each.count, each.stamp) == (40, 40, 1, STAMP)


def test_what_is_left_does_not_pin_what_the_event_was_read_from() -> None:
    made = stamp_publication(make_publication("p", 0, 1, "/a", {}, b"", 0), 9, STAMP)
    buffer = bytearray(b"\x91" + bytes(made.raw))
    read = decode_publication(msgspec.msgpack.decode(buffer, type=tuple[msgspec.Raw])[0])
    left = bare_publication(read)
    with pytest.raises(BufferError):
        buffer.clear()
    del read
    buffer.clear()
    assert left.stamp == STAMP


# --- The bus


def play(scenario: Any, **options: Any) -> None:
    async def bounded(network: TestNetwork) -> None:
        async with asyncio.timeout(60):
            await scenario(network)

    simulate(bounded, brokers=3, **options)


@pytest.mark.parametrize("name", ["~order", "~", "~anything"])
def test_applications_cannot_publish_reserved_names(name: str) -> None:
    async def scenario(network: TestNetwork) -> None:
        async with network.connect("b0") as bus:
            with pytest.raises(
                AttributeValueError, match=f"{name!r}: names that start with '~' are reserved"
            ):
                await bus.publish("/t", {"a": 1, name: 1})
            with pytest.raises(AttributeValueError, match="reserved"):
                await bus.publish_many([("/t", {}, b""), ("/t", {name: 1}, b"")])
            with pytest.raises(AttributeValueError, match="not a non-empty string"):
                await bus.publish("/t", {1: 1})  # type: ignore[dict-item]
            await bus.publish("/t", {f"a{name}": 1})

    play(scenario)


@pytest.mark.parametrize("mode", ["best-effort", "guaranteed", "epidemic"])
def test_no_ops_reach_those_who_ask_for_headers_and_nobody_else(mode: str) -> None:
    """On a guaranteed network what is not shown must be acknowledged, too, or its window would close."""
    events = 200
    shown: list[Event] = []
    few: list[Event] = []
    headers: list[Event] = []

    async def read(stream: tidings.Stream, into: list[Event]) -> None:
        async for event in stream:
            into.append(event)

    async def publish(bus: tidings.EventService) -> None:
        for number in range(1, events + 1):
            made = make_no_ops(*bus.reserve(), "/t", 9, Timestamp(0, number), 1)
            if number % 4 == 0:
                made = make_publication(*made.id, "/t", {"size": 20}, b"...", 0)
                stamp_publication(made, 9, Timestamp(0, number))
            await (await bus.send(made)).confirmed()
        await bus.publish_many([("/t", {"size": 1}, b"")])

    async def scenario(network: TestNetwork) -> None:
        async with network.connect("b0") as publisher, network.connect("b2") as subscriber:
            async with (
                subscriber.subscribe("/t", where="size > 10") as narrow,
                publisher.subscribe("/t") as ordinary,
            ):
                readers = [asyncio.create_task(read(narrow, few)), asyncio.create_task(read(ordinary, shown))]
                await subscriber.add_subscription(Subscription("W", ("/t",), headers=True), headers.append)
                await publish(publisher)
                await asyncio.sleep(5)
            await asyncio.gather(*readers)
        assert [event.attributes["size"] for event in shown] == [20] * (events // 4) + [1]
        assert [event.sequence for event in few] == list(range(4, events + 1, 4))
        numbers = [event.carrier.stamp.number for event in headers if event.carrier.stamp is not None]
        assert numbers == list(range(1, events + 1))
        whole = [event for event in headers if event.carrier.kind == WHOLE]
        assert [event.id for event in whole] == [event.id for event in few]
        assert [event.carrier.kind for event in headers if event not in whole] == [1] * (events * 3 // 4) + [
            BARE
        ]

    play(scenario, mode=mode)


# --- The applications of scenarios


def hidden_and_not() -> list[Publication]:
    made = [make_publication("p", 0, sequence, "/t", {"n": sequence}, b"", 1) for sequence in range(1, 6)]
    stamp_publication(made[2], 9, STAMP)
    made[1] = make_no_ops("p", 0, 2, "/t", 9, STAMP, 2)
    made[3] = bare_publication(made[3])
    return [decode_publication(each.raw) for each in made]


def test_a_simulated_subscriber_is_not_shown_what_is_hidden() -> None:
    network = SimulatedNetwork(1, lambda source, target: LOCAL)
    writer = MemoryWriter()
    network.add("b", lambda node: Broker(node, (), incarnation=1))
    plan = PlannedSubscriber("s", "b", None, "none", (Step(0.0, ("/t",)),))
    tally = Tally()
    ClientMaker(network, writer, tally, NS_PER_S, reliable=False).subscriber(plan)
    network.add("p", lambda node: BestEffortClient(node, "b"))
    network.attach("p", "b")
    network.start()
    network.run(NS_PER_S)
    client = network.nodes["p"].protocol
    assert isinstance(client, BestEffortClient)
    for each in hidden_and_not():
        each.published_at = network.schedule.now
        client.session.publish_stretch(each)
    network.run(2 * NS_PER_S)
    rows = [(row[2], row[3]) for row in writer._rows["delivered"]]
    assert rows == [(0, "p:1"), (1, "p:3"), (2, "p:5")]
    assert tally.delivered == 3
