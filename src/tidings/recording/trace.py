"""Writes a recording as trace tables: one subscriber, the recorder, and the events it was notified of.

Only events that came count as published: the trace of one recorder cannot show that an event is missing. An event that
came after it had expired is in the archive; in the trace it was published, but not delivered.
"""

from __future__ import annotations

from pathlib import Path

from tidings.core.events.event import Event
from tidings.core.events.subscription import Subscription
from tidings.scenarios.trace.origin import Origin, write_origin
from tidings.scenarios.trace.writer import TraceWriter
from tidings.storage.archive import ArchiveReader, events_of

MAX_RECENT = 1_000_000
"""Events remembered as `published`; one that comes again after this many others is written twice."""


def write_trace(
    archive: Path,
    out: Path,
    recorder: str,
    subscription: Subscription,
    start: int,
    accepted_ns: int,
    mode: str | None = None,
) -> int:
    """Write the trace of the offsets from `start`; return how many there are.

    `mode` is the network's mode, if known.
    """
    position = offsets = 0
    recent: dict[str, None] = {}
    with ArchiveReader(archive) as reader, TraceWriter(out) as writer:
        topics = subscription.topics or ("/**",)
        writer.subscribed(
            recorder,
            subscription.id,
            topics,
            subscription.filter,
            subscription.order.value,
            accepted_ns,
            accepted_ns,
        )
        writer.nodes(recorder, "subscriber")
        for batch in reader.read(start, reader.bounds().end):
            notified = batch.column("notified_ns").to_pylist()
            for event, notified_ns in zip(events_of(batch), notified, strict=True):
                event_id = str(event.id)
                if event_id not in recent:  # an event is published once, however often it came
                    recent[event_id] = None
                    _write_published(writer, event, event_id)
                    if len(recent) > MAX_RECENT:
                        del recent[next(iter(recent))]
                if event.expires_at is None or notified_ns <= event.expires_at:
                    writer.delivered(
                        recorder, subscription.id, position, event_id, notified_ns, event.out_of_order
                    )
                    position += 1
                offsets += 1
    write_origin(out, Origin(mode, recorder))
    return offsets


def _write_published(writer: TraceWriter, event: Event, event_id: str) -> None:
    source = event_id.rpartition(":")[0]
    at_ns = event.published_at
    size_bytes = len(event.payload)
    writer.published(
        event_id,
        source,
        event.sequence,
        event.topic,
        event.attributes,
        size_bytes,
        at_ns,
        at_ns,
        event.expires_at,
    )
