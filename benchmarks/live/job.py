"""The job of one client process, and the events that all systems carry."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import msgspec

PAYLOAD_BYTES = 128
FILTER = "location = 'USA' AND size > 10 AND provider LIKE 'B%'"
"""Selects every event, so that rates with and without it are comparable."""
PADDING = bytes(PAYLOAD_BYTES - 8)

Event = tuple[str, Mapping[str, Any], bytes]


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """The job of a `live.worker`, passed as JSON."""

    system: str
    role: str
    url: str
    board: str
    """The file in which all processes of a measurement count."""
    slot: int
    """This process's slot."""
    readers: int
    publishers: int
    topic: str = "/bench/events"
    events: int = 0
    """Events to publish or to expect."""
    rate: int = 0
    """Events per second to offer; 0: as many as get through."""
    batch: int = 2048
    """Events published together, unless at a rate."""
    where: str | None = None
    order: str = "none"
    connections: int = 1
    """For a publisher, which uses them in turns; for idle clients; for the holder of other subscriptions."""
    subscriptions: int = 0


def make_events(job: Job, first: int, count: int) -> list[Event]:
    """Return events with five attributes; the payload begins with the time, which all processes read from one clock."""
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
    """Encode an event for systems without typed attributes: the cheapest encoding that we know."""
    return _encoder.encode(event[1:])


def unpacked(body: bytes) -> tuple[Mapping[str, Any], bytes]:
    return _decoder.decode(body)
