"""Attributes of protocols: reserved for what wraps a service, and out of sight of applications."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tidings
from breadth import examples
from tidings.cli import scenario_client
from tidings.cli.scenario_client import LiveSubscriber
from tidings.cli.scenario_facts import Go, SubscriberWork
from tidings.cli.scenario_link import LiveLink
from tidings.model.errors import AttributeValueError, WireError
from tidings.model.event import (
    HEADER_ATTRIBUTE,
    INTERNAL_PREFIX,
    MAX_EVENT_BYTES,
    NOOP_ATTRIBUTE,
    ORDER_ATTRIBUTE,
    Event,
    Publication,
    check_publication,
    decode_event,
    decode_publication,
    is_hidden,
    make_publication,
    strip_publication,
)
from tidings.model.predicates import Scalar
from tidings.model.subscription import Subscription
from tidings.net.address import Address
from tidings.protocol.broker import Broker
from tidings.protocol.client import Client
from tidings.protocol.facts import Delivered
from tidings.scenario.expand import PlannedSubscriber
from tidings.scenario.links import LOCAL
from tidings.scenario.timeline import Step
from tidings.simulator.actor import Window
from tidings.simulator.make_clients import ClientMaker
from tidings.simulator.memory_trace import MemoryWriter
from tidings.simulator.network import SimulatedNetwork
from tidings.simulator.tally import Tally
from tidings.testing import TestNetwork, simulate

NS_PER_S = 1_000_000_000
NAMES = st.sampled_from(
    ["a", "size", "x~y", "é", "~", "~x", "~é", ORDER_ATTRIBUTE, NOOP_ATTRIBUTE, HEADER_ATTRIBUTE]
)
VALUES = st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False)
VALUES |= st.sampled_from(["", "~noop", "~header", "text"]) | st.sampled_from(
    [b"", b"~noop", b"\xa5~noop", b"\xff"]
)
ATTRIBUTES = st.dictionaries(NAMES, VALUES, max_size=6)


def publication(attributes: Mapping[str, Scalar], payload: bytes = b"payload") -> Publication:
    """As a broker or client has it from the wire."""
    return decode_publication(make_publication("p", 2, 3, "/a/b", attributes, payload, 5).raw)


def internal_of(attributes: Mapping[str, Scalar]) -> dict[str, Scalar]:
    return {name: value for name, value in attributes.items() if name[0] == INTERNAL_PREFIX}


# --- Events as applications see them


@settings(max_examples=examples(200))
@given(ATTRIBUTES)
def test_an_event_shows_its_internal_attributes_apart(attributes: dict[str, Scalar]) -> None:
    for event in (publication(attributes).event(), decode_event(publication(attributes).raw)):
        internal = internal_of(attributes)
        assert event.internal == internal
        assert event.attributes == {name: attributes[name] for name in attributes if name not in internal}
        assert event.payload == b"payload"


def test_an_event_without_internal_attributes_carries_nothing_extra() -> None:
    event = publication({"a": 1}).event()
    assert event.internal == {}
    assert event.__dict__ == {}


@settings(max_examples=examples(200))
@given(ATTRIBUTES)
def test_no_ops_and_headers_are_hidden_and_nothing_else_is(attributes: dict[str, Scalar]) -> None:
    """Also where the bytes of their names are in a value."""
    expected = NOOP_ATTRIBUTE in attributes or HEADER_ATTRIBUTE in attributes
    looked_at, decoded = publication(attributes), publication(attributes)
    assert looked_at.hidden is None
    assert is_hidden(looked_at) is looked_at.hidden is expected
    decoded.event()
    assert decoded.hidden is expected
    assert is_hidden(strip_publication(publication(attributes)))


def test_attributes_that_do_not_decode_hide_nothing() -> None:
    broken = publication({NOOP_ATTRIBUTE: True})
    broken.packed_attributes = msgspec.Raw(b"\xc1~noop")
    assert not is_hidden(broken)


def test_filters_reach_internal_attributes_by_quoting_alone() -> None:
    ordered = publication({ORDER_ATTRIBUTE: b"1", "size": 2})
    assert tidings.Filter("size = 2 AND `~order` IS NOT NULL").matches(ordered.attributes())
    with pytest.raises(tidings.FilterError):
        tidings.Filter("~order IS NOT NULL")


@pytest.mark.parametrize(
    ("attributes", "complaint"),
    [({"~" + "x" * 256: 1}, "longer than"), ({"~x": 2**63}, "64 bits"), ({"~x": [1]}, "unknown type list")],
)
def test_a_broker_checks_internal_attributes_like_any_other(
    attributes: dict[str, Any], complaint: str
) -> None:
    raw = msgspec.msgpack.encode(["p", 0, 1, "/a", 0, {"a": 1, **attributes}, b""])
    with pytest.raises(WireError, match=complaint):
        check_publication(decode_publication(raw))


def test_what_is_ours_alone_cannot_be_sent_by_others() -> None:
    longer = ["p", 0, 1, "/a", 0, {}, b"", None, 0, None, None, None, "", {"not": "a publication"}, True]
    taken = decode_publication(msgspec.msgpack.encode(longer))
    assert (taken.stripped, taken.hidden) == (None, None)


# --- Headers


@settings(max_examples=examples(200))
@given(ATTRIBUTES, st.binary(max_size=20))
def test_a_header_keeps_the_identity_and_the_internal_attributes(
    attributes: dict[str, Scalar], payload: bytes
) -> None:
    whole = publication(attributes, payload)
    before = bytes(whole.raw)
    header = strip_publication(whole)
    event = decode_event(header.raw)
    assert event == Event("p", 2, 3, "/a/b", 5, {}, b"")
    assert event.internal == {**internal_of(attributes), HEADER_ATTRIBUTE: True}
    assert header.size_bytes == len(bytes(header.raw))
    assert header.attributes() == {**event.internal, "topic": "/a/b"}
    assert strip_publication(whole) is header, "it is made once"
    assert bytes(strip_publication(header).raw) == bytes(header.raw)
    assert bytes(whole.raw) == before
    check_publication(header)


def test_a_header_does_not_pin_what_the_event_was_read_from() -> None:
    made = make_publication("p", 0, 1, "/a", {"~order": b"1234"}, b"", 0)
    buffer = bytearray(b"\x91" + bytes(made.raw))
    read = decode_publication(msgspec.msgpack.decode(buffer, type=tuple[msgspec.Raw])[0])
    header = strip_publication(read)
    with pytest.raises(BufferError):
        buffer.clear()
    del read
    buffer.clear()
    assert decode_event(header.raw).internal[ORDER_ATTRIBUTE] == b"1234"


def test_an_event_that_cannot_be_stripped_stays_as_it_is() -> None:
    broken = publication({})
    broken.packed_attributes = msgspec.Raw(b"\xc1")
    overhead_bytes = len(bytes(publication({"~order": bytes(70_000)}, b"").raw)) - 70_000
    largest = publication({"~order": bytes(MAX_EVENT_BYTES - overhead_bytes)}, b"")
    assert largest.size_bytes == MAX_EVENT_BYTES  # with the mark of a header it would be too large to travel
    for whole in (broken, largest):
        assert strip_publication(whole) is whole
        assert whole.stripped is None, "it must not refer to itself"


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
        for number in range(events):
            kind: dict[str, Scalar] = {"size": 20} if number % 4 == 0 else {NOOP_ATTRIBUTE: True}
            await bus.publish("/t", {**kind, ORDER_ATTRIBUTE: b"%d" % number}, b"...", internal=True)
        await bus.publish_many([("/t", {"size": 1, "~x": 1}, b"")], internal=True)

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
        assert [event.internal[ORDER_ATTRIBUTE] for event in few] == [b"%d" % n for n in range(0, events, 4)]
        assert len(headers) == events + 1
        whole = [event for event in headers if HEADER_ATTRIBUTE not in event.internal]
        assert [event.id for event in whole] == [event.id for event in few]
        assert sum(NOOP_ATTRIBUTE in event.internal for event in headers) == events * 3 // 4

    play(scenario, mode=mode)


# --- The applications of scenarios


def hidden_and_not() -> list[dict[str, Scalar]]:
    return [
        {"n": 1},
        {NOOP_ATTRIBUTE: True},
        {"n": 2, ORDER_ATTRIBUTE: b"1"},
        {HEADER_ATTRIBUTE: True},
        {"n": 3},
    ]


def test_a_simulated_subscriber_is_not_shown_what_is_hidden() -> None:
    network = SimulatedNetwork(1, lambda source, target: LOCAL)
    writer = MemoryWriter()
    network.add("b", lambda node: Broker(node, (), incarnation=1))
    plan = PlannedSubscriber("s", "b", None, "none", (Step(0.0, ("/t",)),))
    tally = Tally()
    ClientMaker(network, writer, tally, NS_PER_S, reliable=False).subscriber(plan)
    network.add("p", lambda node: Client(node, "b"))
    network.attach("p", "b")
    network.start()
    network.run(NS_PER_S)
    client = network.nodes["p"].protocol
    assert isinstance(client, Client)
    for attributes in hidden_and_not():
        client.publish("/t", attributes, b"", network.schedule.now)
    network.run(2 * NS_PER_S)
    rows = [(row[2], row[3]) for row in writer._rows["delivered"]]
    assert rows == [(0, "p:1"), (1, "p:3"), (2, "p:5")]
    assert tally.delivered == 3


def test_a_live_subscriber_is_not_shown_what_is_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    reports: list[Any] = []
    monkeypatch.setattr(scenario_client, "report", reports.append)
    live = LiveSubscriber(SubscriberWork("s", "b", None, "none", ()), LiveLink("s", Address(port=1), 0))
    live.go = Go(0, 0)
    live.actor.restore(Window(Subscription("s#0", ("/t",)), 0))
    for sequence, attributes in enumerate(hidden_and_not(), 1):
        made = make_publication("p", 0, sequence, "/t", attributes, b"", 1)
        live.on_fact(Delivered("s#0", decode_publication(made.raw)))
    assert [report.sequence for report in reports] == [1, 3, 5]
