"""A network inside the process: five brokers, two clients, a filter. Run: python examples/embedded.py"""

import asyncio

import tidings


async def main() -> None:
    async with tidings.embedded(brokers=5) as bus, bus.connect(at="b4") as reader:
        big = (tidings.col("size") > 10) & tidings.col("location").isin("USA", "UK")
        async with reader.subscribe("/news/**", where=big) as stream:
            await bus.publish("/news/bbc", {"location": "USA", "size": 12}, b"oil")
            await bus.publish("/news/bbc", {"location": "USA", "size": 3}, b"small")
            await bus.publish("/news/cnn", {"location": "UK", "size": 40}, b"tea")
            for _ in range(2):
                event = await stream.get(timeout_s=5.0)
                print(event.topic, event.attributes, event.payload)


asyncio.run(main())
