"""What a dead letter says: the event that was delivered too often, and why, when and how often."""

from __future__ import annotations

from collections.abc import Mapping

from tidings.core.events.event import Event
from tidings.core.filters.language.predicates import Scalar


def times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def dead_letter(event: Event, name: str, limit: int) -> Mapping[str, Scalar]:
    """Return the attributes of a dead letter; its payload is the event's."""
    return {
        **{key: value for key, value in event.attributes.items() if key != "topic"},
        "dead_topic": event.topic,
        "dead_event": str(event.id),
        "dead_subscription": name,
        "dead_deliveries": limit,
        "dead_reason": f"delivered {times(limit)} and never acknowledged",
        "dead_published_at": event.published_at,
    }
