"""Your application under faults, in virtual time: a minute of outage takes no time and is the same every run.

Run: python examples/virtual_time.py
"""

import asyncio

import tidings.testing


async def outage(net: tidings.testing.TestNetwork) -> list[int]:
    async with net.connect("b0") as publisher, net.connect("b4") as subscriber:
        async with subscriber.subscribe("/orders/**") as stream:
            seen = []
            for number in range(60):
                if number == 20:
                    net.crash("b1")
                if number == 40:
                    net.restart("b1")
                await publisher.publish("/orders/new", {"number": number})
                await asyncio.sleep(1.0)
                while len(stream):
                    seen.append((await stream.get()).attributes["number"])
            return seen


arrived = tidings.testing.simulate(outage, seed=7, brokers=5, delay_ms=20)
print(f"{len(arrived)} of 60 arrived; missing: {sorted(set(range(60)) - set(arrived))}")
