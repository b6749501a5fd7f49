"""Requests and answers: two servers share the requests as a group, one of them leaves, and nobody has to wait for it.

Run: python examples/ask_and_answer.py
"""

import asyncio

import tidings

PRICES = {"ABB": 52.1, "IBM": 231.4}


def price(event: tidings.Event) -> dict[str, float]:
    """Return the answer. An exception reaches the caller as RequestFailed."""
    return {"price": PRICES[str(event.attributes["symbol"])]}


async def price_slowly(event: tidings.Event) -> dict[str, float]:
    await asyncio.sleep(3600)
    return price(event)


async def main() -> None:
    async with tidings.embedded(brokers=3, mode="guaranteed") as bus, bus.connect(at="b2") as other:
        try:
            await bus.request("/price", {"symbol": "ABB"})
        except tidings.NoResponder as nobody:
            print(f"at once: {nobody}")
        async with other.serve("/price", price_slowly, group="pricing"):
            asking = asyncio.create_task(bus.request("/price", {"symbol": "ABB"}, timeout=30))
            await asyncio.sleep(0.2)
        async with other.serve("/price", price, group="pricing"):  # the first one left without an answer
            print(f"ABB: {(await asking).json()}")
            print(f"IBM: {(await bus.request('/price', {'symbol': 'IBM'}, timeout=2)).json()}")
            try:
                await bus.request("/price", {"symbol": "XYZ"}, timeout=2)
            except tidings.RequestFailed as failed:
                print(f"XYZ: {failed}")


asyncio.run(main())
