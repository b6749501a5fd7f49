"""Defines the messages between `tidings bench` and its subscribers' process, one JSON line each."""

from __future__ import annotations

import msgspec

from tidings.core.events.subscription import OrderName

PHASE = "phase"
"""The attribute that names an event's phase: one of these."""
PROBE, LATENCY, RATE = 0, 1, 2
PUBLISHED_AT = "at_ns"
"""The attribute with the publication time, by the clock that all processes of a machine share."""


class BenchWork(msgspec.Struct, frozen=True, kw_only=True):
    """The first line that the subscribers read; each further line means that a phase is published."""

    url: str
    token: str
    tls_ca: str | None
    topic: str
    order: OrderName
    subscribers: int
    events: tuple[int, int]
    """The number of events in each of the two phases."""


class BenchReady(msgspec.Struct, frozen=True, tag="ready"):
    """Every subscriber has received an event."""


class Arrived(msgspec.Struct, frozen=True, tag="arrived"):
    """Reports how many events of the current phase the slowest subscriber has received."""

    count: int


class PhaseOver(msgspec.Struct, frozen=True, tag="phase"):
    """The phase is over for all subscribers."""

    arrived: int
    last_at_ns: int
    cpu_s: float
    latencies_us: dict[str, float] | None


class BenchFailed(msgspec.Struct, frozen=True, tag="failed"):
    code: int
    reason: str


Told = BenchReady | Arrived | PhaseOver | BenchFailed

decode_work = msgspec.json.Decoder(BenchWork).decode
decode_told = msgspec.json.Decoder(Told).decode


def line_of(words: BenchWork | Told) -> bytes:
    return msgspec.json.encode(words) + b"\n"
