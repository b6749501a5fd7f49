"""A stream with several readers: each event goes to one of them, and nobody waits in vain."""

from __future__ import annotations

import asyncio

import tidings


def readers_of(stream: tidings.Stream, count: int) -> list[asyncio.Task[tidings.Event]]:
    return [asyncio.create_task(stream.get()) for _ in range(count)]


def play(main: object) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(20), tidings.embedded(brokers=2) as bus:
            await main(bus)  # type: ignore[operator]

    asyncio.run(bounded())


async def publish(bus: tidings.EventService, *numbers: int) -> None:
    for number in numbers:
        await bus.publish("/a", {"number": number})


def test_each_event_goes_to_the_one_who_has_waited_longest() -> None:
    async def main(bus: tidings.EventService) -> None:
        async with bus.subscribe("/a") as stream:
            readers = readers_of(stream, 3)
            await asyncio.sleep(0)
            await publish(bus, 0, 1, 2)
            assert [event.attributes["number"] for event in await asyncio.gather(*readers)] == [0, 1, 2]

    play(main)


def test_all_are_told_when_nothing_more_can_come() -> None:
    async def main(bus: tidings.EventService) -> None:
        async with bus.subscribe("/a") as stream:
            readers = readers_of(stream, 3)
            await asyncio.sleep(0)
        errors = await asyncio.gather(*readers, return_exceptions=True)
        assert {type(error) for error in errors} == {tidings.ConnectionFailed}

    play(main)


def test_one_that_gives_up_leaves_its_event_to_the_next() -> None:
    """Also if it gives up in the very moment in which it was its turn."""

    async def main(bus: tidings.EventService) -> None:
        async with bus.subscribe("/a") as stream:
            first, second = readers_of(stream, 2)
            await asyncio.sleep(0)
            event = tidings.Event("p", 0, 1, "/a", 1, {"number": 7}, b"")
            stream.push(event)
            first.cancel()
            assert await second is event
            third, fourth = readers_of(stream, 2)
            await asyncio.sleep(0)
            third.cancel()
            stream.push(event)
            assert await fourth is event

    play(main)
