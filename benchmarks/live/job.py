"""What one client process of a measurement is to do, and the events that all systems carry."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import msgspec

PAYLOAD_BYTES = 128
FILTER = "location = 'USA' AND size > 10 AND provider LIKE 'B%'"
"""It selects every event, so that rates with and without it compare."""
PADDING = bytes(PAYLOAD_BYTES - 8)

Event = tuple[str, Mapping[str, Any], bytes]


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """For `live.worker`, which gets it as JSON."""

    system: str
    role: str
    url: str
    board: str
    """The file in which all processes of a measurement count."""
    slot: int
    """Where this one counts."""
    readers: int
    publishers: int
    topic: str = "/bench/events"
    events: int = 0
    """To publish, or to expect."""
    rate: int = 0
    """Events per second that are offered; 0: as many as get through."""
    batch: int = 2048
    """Events that are published together, if not at a rate."""
    where: str | None = None
    order: str = "none"
    connections: int = 1
    """Of a publisher, which takes them in turns; of idle clients; of the holder of other subscriptions."""
    subscriptions: int = 0


def make_events(job: Job, first: int, count: int) -> list[Event]:
    """Five attributes; the payload begins with the instant, which all processes of a machine read from one clock."""
    stamp = time.monotonic_ns().to_bytes(8, "big") + PADDING
    return [
        (
            job.topic,
            {"provider": "BBC", "location": "USA", "size": 11 + number % 100, "price": 1.5, "urgent": True},
            stamp,
        )
        for number in range(first, first + count)
    ]


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(tuple[dict[str, bool | int | float | str], bytes])


def packed(event: Event) -> bytes:
    """For systems without typed attributes: the cheapest encoding that we know."""
    return _encoder.encode(event[1:])


def unpacked(body: bytes) -> tuple[Mapping[str, Any], bytes]:
    return _decoder.decode(body)
