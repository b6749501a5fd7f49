"""A service that loses nothing, and may have lost something after all: an order goes on if it can, or says so."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

import tidings
from ordered_clients import TIMEOUT_S, numbers, run, take
from tidings.bus.connect import Embedded
from tidings.bus.stream import EventsMissed
from tidings.core import facts
from tidings.core.ordering import module
from troubled_service import TroubledService, troubled_client

MOVED = "the client moved to another broker"
PERHAPS = EventsMissed("p", 0, 1, 9)


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "DOUBT_NS", 50_000_000)


def move(stream: tidings.Stream) -> None:
    """As if its client had another broker now."""
    stream._service._application.on_fact(facts.BrokerChanged())  # type: ignore[attr-defined]


def miss(stream: tidings.Stream, *, certain: bool) -> None:
    application = stream._service._application  # type: ignore[attr-defined]
    application.on_fact(facts.EventsGivenUp(application.beneath[0], *PERHAPS, certain=certain))


def play(course: Callable[[Embedded, tidings.Stream, TroubledService], Awaitable[None]]) -> None:
    """With an ordered stream over a service that seems to lose nothing."""

    async def scenario(bus: Embedded) -> None:
        client, service = troubled_client(bus, "b1", "c", lossless=True)
        async with client, client.subscribe("/a", order="total") as stream:
            await course(bus, stream, service)

    run(scenario)


def test_what_does_not_come_after_a_move_ends_the_order_and_is_named() -> None:
    async def course(bus: Embedded, stream: tidings.Stream, service: TroubledService) -> None:
        service.withholds = lambda event: event.attributes.get("n") == 1
        move(stream)
        for n in range(3):
            await bus.publish("/a", {"n": n})
        assert numbers(await take(stream, 1)) == [0]
        with pytest.raises(tidings.OrderError, match=rf"{MOVED}, and event 2 of /\*\* has not come"):
            await stream.get(TIMEOUT_S)

    play(course)


def test_an_order_goes_on_where_nothing_was_lost() -> None:
    """What may be missing need not have been for it: the numbers of its own topics tell."""

    async def course(bus: Embedded, stream: tidings.Stream, service: TroubledService) -> None:
        move(stream)
        miss(stream, certain=False)
        for n in range(20):
            service.withholds = lambda event, held=n: event.attributes.get("n") == held  # type: ignore[misc]
            await bus.publish("/a", {"n": n})
            service.release()
            assert numbers(await take(stream, 1)) == [n]
        assert list(stream.gaps) == [PERHAPS]

    play(course)


def test_what_is_missing_for_certain_ends_it_at_once() -> None:
    async def course(bus: Embedded, stream: tidings.Stream, service: TroubledService) -> None:
        miss(stream, certain=True)
        with pytest.raises(tidings.OrderError, match="gave up events 1 to 9 of p"):
            await stream.get(TIMEOUT_S)

    play(course)
