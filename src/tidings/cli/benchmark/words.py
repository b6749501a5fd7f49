"""What `tidings bench` and the process of its subscribers say to each other, one JSON line each."""

from __future__ import annotations

import msgspec

from tidings.core.events.subscription import OrderName

PHASE = "phase"
"""The attribute that says what an event is for: these."""
PROBE, LATENCY, RATE = 0, 1, 2
PUBLISHED_AT = "at_ns"
"""By the clock that all processes of a machine share."""


class BenchWork(msgspec.Struct, frozen=True, kw_only=True):
    """The first line that the subscribers get; each further line means that a phase is published."""

    url: str
    token: str
    tls_ca: str | None
    topic: str
    order: OrderName
    subscribers: int
    events: tuple[int, int]
    """Of the two phases, in their order."""


class BenchReady(msgspec.Struct, frozen=True, tag="ready"):
    """Every subscriber has got an event."""


class Arrived(msgspec.Struct, frozen=True, tag="arrived"):
    """So many at the slowest subscriber, of the phase that goes on."""

    count: int


class PhaseOver(msgspec.Struct, frozen=True, tag="phase"):
    """It is over for all subscribers."""

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
