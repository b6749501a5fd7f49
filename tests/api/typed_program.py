"""A user's program, checked by `mypy --strict` (test_typing.py). Lines that end in `# error: CODE` must be refused."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

import tidings
from tidings import col


@dataclass
class Story:
    title: str


async def publish_and_read(bus: tidings.EventService) -> None:
    event_id: tidings.EventId = await bus.publish("/a", {"size": 12, "raw": b"x", "none": None}, b"payload")
    receipt: tidings.Receipt = await bus.publish("/a", wait=False)
    event_id = await receipt
    print(event_id.source, event_id.sequence)
    await bus.publish("/a", {"size": [1]})  # error: dict-item
    await bus.publish("/a", payload="text", expires=30)
    await bus.publish("/a", payload={"title": "oil"}, expires=timedelta(hours=1))
    await bus.publish("/a", payload=Story("oil"))
    await bus.publish("/a", payload=object())  # error: call-overload
    await bus.publish("/a", expires="30s")  # error: call-overload
    count: int = await bus.publish_many([("/a", {"size": 12}, b"")])
    print(count)
    async with bus.subscribe("/a/**", where="size > 10", order="total") as stream:
        async for event in stream:
            size = event.attributes["size"]
            print(size + 1)  # error: operator
            if isinstance(size, int):
                print(size + 1)
            print(event.order.number)  # error: union-attr
            if event.order is not None:
                print(event.order.topic, event.order.number, event.order.after)
            print(event.topc)  # error: attr-defined
        await stream.change(where=col("size") > 3)
        await stream.change("/b", where=None)
        await stream.change(where=3)  # error: arg-type
        async for batch in stream.batches(100, 0.5):
            print(batch[0].payload.decode(), batch[0].text + batch[0].content_type, stream.expired + 1)
            print(batch[0].decode(Story).title)
            print(batch[0].decode(Story).titel)  # error: attr-defined
            print(batch[0].expires_at + 1)  # error: operator
    bus.subscribe("/a", where=tidings.Filter("size > 10"), order="fifo")
    bus.subscribe("/a", where=(col("size") > 10) & col("subject").like("oil%"))
    bus.subscribe("/a", order="totl")  # error: arg-type
    bus.subscribe("/a", where=12)  # error: arg-type


async def open_networks() -> None:
    async with tidings.connect("tidings://127.0.0.1:7400", name="me", timeout_s=3.0) as bus:
        await publish_and_read(bus)
    async with tidings.embedded(3, shape="chain", mode="epidemic", recovery="push") as network:
        await publish_and_read(network.connect("b1"))
    tidings.embedded(3, recovery=tidings.RecoverySettings(algorithm="combined"))
    tidings.embedded(3, shape="ring")  # error: arg-type
    tidings.embedded(3, mode="guarantee")  # error: arg-type
    tidings.embedded(3, recovery="pul")  # error: arg-type
    tidings.connect("tidings://127.0.0.1", tokn="x")  # error: call-arg


def without_async() -> None:
    with tidings.sync.connect("tidings://127.0.0.1:7400", name="me") as bus:
        event_id: tidings.EventId = bus.publish("/a", {"size": 12})
        print(event_id)
        with bus.subscribe("/a", order="causal") as stream:
            print(stream.get(timeout_s=1.0).attributes)
    with tidings.sync.embedded(3, shape="star") as bus:
        print(bus.status())
    tidings.sync.connect("tidings://127.0.0.1", tokn="x")  # error: call-arg
    tidings.sync.embedded(shape="ring")  # error: arg-type


def match() -> None:
    index: tidings.MatchIndex[str] = tidings.MatchIndex()
    index.add("a", "size > 10")
    keys: list[str] = index.match({"size": 12})
    print(keys, tidings.Filter("size > 10").matches({"size": 12}))


async def in_virtual_time(network: tidings.testing.TestNetwork) -> None:
    await publish_and_read(network.connect("b0"))
