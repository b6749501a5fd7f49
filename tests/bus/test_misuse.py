"""Arguments of the wrong type: one error that names the argument, of the kind that other mistakes with it give."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest

import tidings
from tidings.drivers.adapters.redis import redis_service

NO_MAPPING = "attributes must be a mapping of names to values, not "
NO_EVENT = r"each event must be \(topic, attributes, payload\), not "


def run(scenario: Callable[[Any], Any], *, numbered: bool) -> None:
    """In a network in which events are numbered for an order, or not: they take different ways."""

    async def main() -> None:
        async with asyncio.timeout(20), AsyncExitStack() as stack:
            bus = await stack.enter_async_context(tidings.embedded(brokers=1))
            if numbered:
                await stack.enter_async_context(bus.subscribe(order="total"))
            await scenario(bus)

    asyncio.run(main())


@pytest.mark.parametrize("numbered", [False, True], ids=["plain", "numbered"])
@pytest.mark.parametrize(
    ("attributes", "kind"),
    [([("x", 1)], "list"), ("xy", "str"), ({"x"}, "set"), (b"payload", "bytes"), (5, "int")],
)
def test_attributes_that_are_no_mapping(attributes: Any, kind: str, numbered: bool) -> None:
    async def scenario(bus: tidings.EventService) -> None:
        with pytest.raises(tidings.AttributeValueError, match=NO_MAPPING + kind):
            await bus.publish("/a", attributes)
        with pytest.raises(tidings.AttributeValueError, match=NO_MAPPING + kind):
            await bus.publish_many([("/a", attributes, b"")])

    run(scenario, numbered=numbered)


@pytest.mark.parametrize("numbered", [False, True], ids=["plain", "numbered"])
@pytest.mark.parametrize(
    ("events", "words"),
    [
        ([("/a", {})], NO_EVENT + r"\('/a', {}\)"),
        (["/a"], NO_EVENT + "'/a'"),
        ([5], NO_EVENT + "5"),
        ({"/a": {}}, NO_EVENT + "'/a'"),
        (5, r"events must be an iterable of \(topic, attributes, payload\), not int"),
    ],
)
def test_what_is_no_event(events: Any, words: str, numbered: bool) -> None:
    async def scenario(bus: tidings.EventService) -> None:
        with pytest.raises(TypeError, match=words):
            await bus.publish_many(events)

    run(scenario, numbered=numbered)


def test_what_is_no_event_for_an_existing_broker() -> None:
    async def main() -> None:
        service = redis_service("redis://127.0.0.1:1")
        service._closed_because = ""  # as if it were open: the mistake shows before anything is sent
        with pytest.raises(TypeError, match=NO_EVENT):
            await service.publish_many([("/a", {})])  # type: ignore[list-item]
        with pytest.raises(TypeError, match="events must be an iterable"):
            await service.publish_many(None)  # type: ignore[arg-type]
        with pytest.raises(tidings.AttributeValueError, match=NO_MAPPING + "set"):
            await service.publish("/a", {"x"})  # type: ignore[arg-type]

    asyncio.run(main())


@pytest.mark.parametrize("topic", [["/a"], None, 5])
def test_a_topic_that_is_no_string(topic: Any) -> None:
    async def scenario(bus: tidings.EventService) -> None:
        with pytest.raises(tidings.TopicError, match="is not a string"):
            await bus.publish(topic)
        with pytest.raises(tidings.TopicError, match="is not a string"):
            bus.subscribe(topic)

    run(scenario, numbered=False)


def test_a_list_of_topics_is_to_be_given_one_by_one() -> None:
    async def scenario(bus: tidings.EventService) -> None:
        with pytest.raises(tidings.TopicError, match=r"one by one: subscribe\('/a', '/b'\)"):
            bus.subscribe(["/a", "/b"])  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="buffer_events must be a number, not 'many'"):
            bus.subscribe("/a", buffer_events="many")  # type: ignore[arg-type]

    run(scenario, numbered=False)


@pytest.mark.parametrize("url", [None, 7400, b"tidings://127.0.0.1"])
def test_a_url_that_is_no_string(url: Any) -> None:
    with pytest.raises(tidings.ConnectionFailed, match="is not a broker's URL"):
        tidings.connect(url)
