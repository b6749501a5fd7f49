"""Links that lose a tenth of everything, and brokers that repair it among themselves.

Run: python examples/lossy.py
"""

import asyncio
from collections import Counter

import tidings

EVENTS = 500


async def arrive(recovery: str) -> Counter[str]:
    """How many events came, by what brought them."""
    async with (
        tidings.embedded(brokers=9, mode="epidemic", recovery=recovery, loss=0.1, seed=3) as publisher,
        publisher.connect(at="b8") as subscriber,
        subscriber.subscribe("/sensors/**", where="value > 0") as stream,
    ):
        await asyncio.sleep(2.0)  # until the brokers know each other
        for number in range(EVENTS):
            await publisher.publish("/sensors/hall", {"value": 1 + number}, b"...")
        came: Counter[str] = Counter()
        while came.total() < EVENTS:
            try:
                event = await stream.get(timeout_s=3.0)
            except TimeoutError:
                break
            came[event.recovered_by or "the tree"] += 1
        return came


for algorithm in ("none", "auto"):
    ways = asyncio.run(arrive(algorithm))
    told = ", ".join(f"{count} by {way}" for way, count in ways.most_common())
    print(f"recovery {algorithm!r}: {ways.total()} of {EVENTS} arrived ({told})")
