"""Dead letters in an archive: events that a durable subscription gave up, as it published them (`dead_letter=`)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tidings.cli.shared.event_format import time_text
from tidings.cli.shared.values import attribute_json
from tidings.core.events.event import Event
from tidings.core.events.payload import typed_payload

if TYPE_CHECKING:
    from tidings.bus.service import PublishedEvent
    from tidings.core.filters.language.predicates import Scalar
    from tidings.recording.replay import Source

PREFIX = "dead_"
OWN_TOPIC = "dead_topic"
KEYS = (OWN_TOPIC, "dead_event", "dead_subscription", "dead_deliveries", "dead_reason", "dead_published_at")


@dataclass(frozen=True)
class DeadLetter:
    """An event that was given up, and what its attributes say about that."""

    event: Event
    why: dict[str, Scalar]

    @property
    def id(self) -> str:
        """The id of the letter; the event that was given up had another one."""
        return str(self.event.id)

    def again(self) -> PublishedEvent:
        """Return the event as it was published first."""
        attributes = {name: value for name, value in self.event.attributes.items() if name not in KEYS}
        return str(self.why[OWN_TOPIC]), attributes, typed_payload(self.event.payload_item)

    def is_named(self, name: str) -> bool:
        return name in (self.id, self.why.get("dead_event"))

    def fields(self) -> dict[str, Any]:
        """Return what `--json` prints, apart from the payload."""
        topic, attributes, _ = self.again()
        published_at = self.why.get("dead_published_at")
        return {
            "id": self.id,
            "event": self.why.get("dead_event"),
            "topic": topic,
            "attributes": {name: attribute_json(value) for name, value in attributes.items()},
            "subscription": self.why.get("dead_subscription"),
            "deliveries": self.why.get("dead_deliveries"),
            "reason": self.why.get("dead_reason"),
            "published_at": published_at,
            "given_up_at": self.event.published_at,
        }

    def line(self) -> str:
        words = self.fields()
        return (
            f"{time_text(self.event.published_at)} {self.id}: {words['topic']} {words['event']} "
            f"of {words['subscription']}, {words['reason']}"
        )


def dead_letters(source: Source) -> Iterator[DeadLetter]:
    """Yield the dead letters of an archive, oldest first; other events of the topic are skipped."""
    with source.open() as reader:
        start, stop = source.range(reader)
        for _, event in source.events(reader, start, stop):
            why = {key: event.attributes[key] for key in KEYS if key in event.attributes}
            if isinstance(why.get(OWN_TOPIC), str):
                yield DeadLetter(event, why)
