"""Plans durable subscribers and members of groups: what each asks its broker for, and how it works."""

from __future__ import annotations

from msgspec import Struct

from tidings.core.overlay.guaranteed.share_messages import NEW_START, StartItem
from tidings.scenarios.file.schema import Ack, ConstantDelay, Delay, SubscriberTable
from tidings.scenarios.file.times import nanoseconds

MAX_UNACKED = 1_024
NO_WORK = ConstantDelay(value=0.0)


class PlannedShare(Struct, frozen=True, kw_only=True):
    """A subscriber's part in a durable subscription or a group."""

    name: str
    group: bool
    group_by: str = ""
    ack: Ack = "auto"
    work_ms: Delay = NO_WORK
    max_unacked: int = MAX_UNACKED
    max_deliveries: int | None = None
    dead_letter: str | None = None
    """The topic for events that were delivered more often than `max_deliveries`; both or none."""
    keep_for_ns: int = 0
    """0: the broker's default."""
    start: StartItem = NEW_START

    @property
    def durable(self) -> str | None:
        """The name of the durable subscription; None for a group."""
        return None if self.group else self.name


def plan_share(subscriber: SubscriberTable) -> PlannedShare | None:
    """Return the subscriber's share; None if it is neither durable nor in a group."""
    name = subscriber.durable if subscriber.group is None else subscriber.group
    if name is None:
        return None
    return PlannedShare(
        name=name,
        group=subscriber.group is not None,
        group_by=subscriber.group_by or "",
        ack=subscriber.ack,
        work_ms=subscriber.work_ms or NO_WORK,
        max_unacked=subscriber.max_unacked or MAX_UNACKED,
        max_deliveries=subscriber.max_deliveries,
        dead_letter=subscriber.dead_letter,
        start=(subscriber.start, 0),
        keep_for_ns=0 if subscriber.keep_for_s is None else max(nanoseconds(subscriber.keep_for_s), 1),
    )
