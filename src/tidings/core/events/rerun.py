"""Makes runs of events again that were decoded, as an archive has them."""

from __future__ import annotations

from collections.abc import Iterable

from tidings.core.events.event import Event
from tidings.core.events.run import RunMaker, Stretch


def runs_of(events: Iterable[Event]) -> list[Stretch]:
    """Return the events in their order, with their ids and payloads, and without a position in an order."""
    found: list[Stretch] = []
    maker, source = RunMaker("", 0), ("", 0)
    for event in events:
        if source != (event.source, event.incarnation):
            found += maker.take_all()
            source = (event.source, event.incarnation)
            maker = RunMaker(*source)
        maker.add(event.sequence, event.topic, event.attributes, event.payload_item, event.published_at)
    return found + maker.take_all()
