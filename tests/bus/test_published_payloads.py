"""All ways to publish take bytes, text and what JSON can express, and tell what they cannot."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import Struct

import tidings
from tidings.testing import TestNetwork, simulate


class Story(Struct):
    title: str


PAYLOADS: tuple[tuple[Any, bytes, str], ...] = (
    (b"\x00\xff", b"\x00\xff", ""),
    ("text", b"text", "text/plain; charset=utf-8"),
    ({"n": 1}, b'{"n":1}', "application/json"),
    (Story("oil"), b'{"title":"oil"}', "application/json"),
)
WANTED = [wanted for _, *wanted in PAYLOADS]


async def shown(stream: tidings.Stream) -> list[list[Any]]:
    events = [await stream.get(30) for _ in PAYLOADS]
    return [[event.payload, event.content_type] for event in events]


@pytest.mark.parametrize("mode", ["best-effort", "guaranteed", "epidemic"])
@pytest.mark.parametrize("order", ["none", "total"])
def test_one_by_one_and_many(mode: Any, order: Any) -> None:
    async def scenario(net: TestNetwork) -> None:
        async with (
            net.connect("b0") as publisher,
            net.connect("b1") as subscriber,
            subscriber.subscribe("/t", where="n = 1", order=order) as stream,
        ):
            for payload, *_ in PAYLOADS:
                await publisher.publish("/t", {"n": 1}, payload)
            assert await shown(stream) == WANTED
            assert await publisher.publish_many(("/t", {"n": 1}, payload) for payload, *_ in PAYLOADS) == 4
            assert await shown(stream) == WANTED
            for payload, *_ in PAYLOADS:
                await publisher.publish("/t", {"n": 1}, payload, wait=False)
            assert await shown(stream) == WANTED

    simulate(scenario, seed=1, brokers=2, mode=mode)


def test_large_payloads_keep_their_type_in_blocks() -> None:
    async def scenario(net: TestNetwork) -> None:
        async with (
            net.connect("b0") as publisher,
            net.connect("b1") as subscriber,
            subscriber.subscribe("/t") as stream,
        ):
            await publisher.publish("/t", {"n": 1}, "x" * 200_000, expires=60)
            event = await stream.get(30)
            assert (len(event.text), event.content_type) == (200_000, "text/plain; charset=utf-8")
            assert event.expires_at is not None

    simulate(scenario, seed=1, brokers=2, mode="epidemic", loss=0.05)


def test_what_cannot_be_encoded_names_the_type() -> None:
    async def scenario(net: TestNetwork) -> None:
        async with net.connect("b0") as bus:
            with pytest.raises(tidings.PayloadError, match="a payload of type TestNetwork cannot be encoded"):
                await bus.publish("/t", {}, net)  # type: ignore[arg-type]
            await bus.publish("/t")

    simulate(scenario, seed=1, brokers=1)


def test_without_async() -> None:
    with tidings.sync.embedded(brokers=2) as bus, bus.subscribe("/t") as stream:
        bus.publish("/t", {}, Story("oil"))
        assert bus.publish_many([("/t", {}, "a"), ("/t", {}, [1])]) == 2
        assert stream.get(10).decode(Story) == Story("oil")
        assert (stream.get(10).text, stream.get(10).json()) == ("a", [1])
