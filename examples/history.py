"""A subscription that starts in the past: the archive's events, then live ones. Run: python examples/history.py"""

import asyncio

import tidings


async def main() -> None:
    async with tidings.embedded(brokers=3, mode="guaranteed", archive=True) as bus:
        for number in range(6):
            await bus.publish(f"/sensors/{number % 2}", {"celsius": 20 + number})
        async with bus.subscribe("/sensors/*", where="celsius > 22", start="earliest") as stream:
            await bus.publish("/sensors/1", {"celsius": 30})
            for _ in range(4):
                event = await stream.get(timeout_s=5.0)
                print(event.topic, event.attributes["celsius"])
        async with bus.subscribe("/sensors/*", start="last") as stream:
            for _ in range(2):
                event = await stream.get(timeout_s=5.0)
                print("newest of", event.topic, event.attributes["celsius"])


asyncio.run(main())
