"""Runs a scenario's durable subscriber or member of a group, in virtual time or over real sockets.

Its application takes one event after the other. It works on an event for a while (`work_ms`), acknowledges it, and
takes the next one. What it holds when it crashes or leaves is not done, and comes again. An event that was delivered
too often is published as a dead letter, and is done once that is confirmed. One that has expired when it would be taken
is done, and nobody sees it.

It is pure, like `scenarios/actor.py`: a host provides the time and the client, and writes the trace.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Protocol

from tidings.core.client.group_member import GroupMember
from tidings.core.client.share_holder import ShareHolder
from tidings.core.events.event import Publication
from tidings.core.events.run import singles
from tidings.core.events.subscription import Order, Subscription
from tidings.core.facts import (
    Misbehaviour,
    PublicationConfirmed,
    ShareAttached,
    ShareDelivered,
    ShareDetached,
    ShareDropped,
    ShareFinished,
)
from tidings.core.overlay.guaranteed.share_messages import ShareAttach
from tidings.core.structures.ranges import Ranges, merged
from tidings.scenarios.actor import NEVER, Window
from tidings.scenarios.file.shares import PlannedShare

RETRY_NS = 250_000_000
"""After its broker refused it, for instance because the holder before it is not gone yet."""


class HandedEvent:
    """An event in the application's hands."""

    __slots__ = (
        "acknowledged_at",
        "acknowledged_in",
        "attempt",
        "number",
        "out_of_order",
        "position",
        "publication",
        "subscription",
    )

    def __init__(self, number: int, attempt: int, publication: Publication, out_of_order: bool) -> None:
        self.number = number
        self.attempt = attempt
        self.publication = publication
        self.out_of_order = out_of_order
        self.position = -1
        """The number of its row in the trace."""
        self.subscription = ""
        """Its attachment's row in the trace."""
        self.acknowledged_at = 0
        self.acknowledged_in = 0
        """How often its client had attached when it was acknowledged."""


class ShareHost(Protocol):
    """Hosts a durable subscriber or a member of a group. Times are by the publishers' clock."""

    @property
    def now(self) -> int: ...
    @property
    def shares(self) -> ShareHolder | GroupMember | None:
        """The client's part; None while the client is down."""

    def after(self, delay_ns: int, action: Callable[[], None]) -> None:
        """Do it after that time, unless the client crashes before; a paused client does it when it continues."""

    def requested(self, window: Window) -> None: ...
    def joined(self, window: Window, life: str) -> None:
        """It is attached to the share with that life. A share that ended has another life than the next one."""

    def accepted(self, window: Window) -> None: ...
    def detached(self, window: Window) -> None: ...
    def taken(self, window: Window, taken: HandedEvent) -> bool:
        """Write the row, and number it; return False, without a row, if the event has expired."""

    def acknowledged(self, taken: HandedEvent) -> None:
        """Called before the network hears of it."""

    def answered(self, taken: HandedEvent, accepted: bool) -> None:
        """The broker has answered the acknowledgement."""

    def bury(self, taken: HandedEvent) -> int:
        """Publish the event as a dead letter; return the sequence."""

    def refused(self, reason: str) -> None: ...
    def accused(self, fact: Misbehaviour) -> None: ...


class ShareActor:
    """Follows the timeline of a durable subscriber or of a member of a group."""

    def __init__(
        self,
        host: ShareHost,
        name: str,
        condition: str | None,
        order: Order,
        share: PlannedShare,
        work_ns: Callable[[], int],
        *,
        made: int = 0,
    ) -> None:
        """`made`: how often earlier incarnations attached."""
        self.current: Window | None = None
        """The attachment that it has or wants; None: it has not begun, has left, or is down."""
        self._topics: tuple[str, ...] | None = None
        self._attachment = ""
        """What the broker calls the attachment: the name of its first row."""
        self._life = ""
        """Of the share that it is attached to."""
        self._made = made
        self._host = host
        self._name = name
        self._condition = condition
        self._order = order
        self._share = share
        self._work_ns = work_ns
        self._asked = False
        """The client attaches, or is attached."""
        self._attached = 0
        """How often the client has attached: again after each break."""
        self._waiting: deque[HandedEvent] = deque()
        """What has arrived and nobody has seen."""
        self._in_hand: HandedEvent | None = None
        self._unanswered: dict[int, HandedEvent] = {}
        """Number -> acknowledged, and not answered."""
        self._buried = 0
        """The sequence of the dead letter that is not confirmed; 0: none."""

    # --- What the scenario wants

    def change(self, topics: tuple[str, ...] | None) -> None:
        self._topics = topics
        if topics is None:
            self._leave()
        else:
            self.back()

    def forget(self) -> None:
        """The client has started, and nobody wants it to attach."""
        self._topics = None

    def back(self) -> None:
        """The client has started or restarted: attach if that is wanted. Each attachment is a row of the trace."""
        if self._topics is None or self._host.shares is None or self.current is not None:
            return
        self._open(self._host.now)
        self._attach()

    def _open(self, at: int) -> None:
        assert self._topics is not None, "it wants to attach"
        name = f"{self._name}#{self._made}"
        self._made += 1
        self._life = ""
        self.current = Window(Subscription(name, self._topics, self._condition, self._order), at)
        self._host.requested(self.current)

    def crashed(self) -> None:
        """The client has crashed: whatever it held is gone, and what it was done with may not have been heard of."""
        self._close()
        self._asked = False
        self._drop_all()
        self._unanswered.clear()

    def _close(self) -> Window | None:
        window, self.current = self.current, None
        if window is not None:
            window.cancelled_at = self._host.now
            self._host.detached(window)
        return window

    def _drop_all(self) -> None:
        self._waiting.clear()
        self._in_hand, self._buried = None, 0

    def _attach(self) -> None:
        window, shares, share = self.current, self._host.shares, self._share
        if window is None or shares is None or self._asked:
            return
        self._asked = True
        self._attachment = window.subscription.id
        shares.attach(
            ShareAttach(
                self._attachment,
                share.name,
                window.subscription.topics,
                self._condition,
                share.group,
                share.group_by,
                self._order.value,
                share.max_unacked,
                share.keep_for_ns,
                start=share.start,
            )
        )

    def _leave(self) -> None:
        """Detach at once: what it works on is not done."""
        window = self._close()
        if window is not None and self._host.shares is not None and self._asked:
            unseen = merged((taken.number, taken.number) for taken in self._waiting)
            self._drop_all()
            self._host.shares.leave(self._attachment, unseen)

    # --- What the client says

    def on_fact(self, fact: object) -> None:
        match fact:
            case ShareDelivered(first=first, attempt=attempt, stretch=stretch):
                for publication in singles(stretch):
                    number = first + publication.sequence - stretch.first
                    self._waiting.append(HandedEvent(number, attempt, publication, fact.out_of_order))
                self._go_on()
            case ShareAttached():
                self._on_attached(fact)
            case ShareFinished(done=done, refused=refused):
                self._on_answered(done, accepted=True)
                self._on_answered(refused, accepted=False)
            case ShareDropped(numbers=numbers):
                self._drop(numbers)
            case ShareDetached(reason=reason):
                self._on_detached(reason)
            case PublicationConfirmed(first=first, last=last) if first <= self._buried <= last:
                self._on_buried()
            case Misbehaviour():
                self._host.accused(fact)

    def _on_attached(self, fact: ShareAttached) -> None:
        self._attached += 1
        if fact.life and self.current is not None:
            self._join(fact.life, fact.apart_ns)
        window = self.current
        if window is not None and window.accepted_at == NEVER and not fact.uncovered:
            # Events published earlier in this very instant may have been missed.
            window.accepted_at = self._host.now + 1
            self._host.accepted(window)

    def _join(self, life: str, apart_ns: int) -> None:
        """The share may be a new one: the one before ended while this client could not reach it."""
        if self._life not in ("", life):
            self._close()
            self._open(self._host.now - apart_ns)
        if self._life != life and self.current is not None:
            self._life = life
            self._host.joined(self.current, life)

    def _on_detached(self, reason: str) -> None:
        """It has left, or was refused: then it tries again. Nobody answers what was acknowledged before."""
        self._asked = False
        self._drop_all()
        self._unanswered.clear()
        if reason and self.current is not None:
            self._host.refused(reason)
            self._host.after(RETRY_NS, self._attach)

    def _drop(self, numbers: Ranges) -> None:
        """Drop what nobody has seen; what the application has can no longer be acknowledged."""

        def is_dropped(number: int) -> bool:
            return any(first <= number <= last for first, last in numbers)

        self._waiting = deque(taken for taken in self._waiting if not is_dropped(taken.number))
        if self._in_hand is not None and is_dropped(self._in_hand.number):
            self._in_hand, self._buried = None, 0
            self._go_on()

    # --- Working

    def _go_on(self) -> None:
        """Take the next event, unless one is in hand."""
        window = self.current
        while window is not None and self._in_hand is None and self._waiting:
            taken = self._in_hand = self._waiting.popleft()
            taken.subscription = window.subscription.id
            if not self._host.taken(window, taken):
                self._in_hand = None
                self._finish(taken, expired=True)
                continue
            limit = self._share.max_deliveries
            if limit is not None and taken.attempt > limit:
                self._buried = self._host.bury(taken)
                return
            work_ns = self._work_ns()
            if work_ns:
                self._host.after(work_ns, partial(self._on_worked, taken))
            else:
                self._acknowledge(taken)

    def _on_worked(self, taken: HandedEvent) -> None:
        if self._in_hand is taken:
            self._acknowledge(taken)
            self._go_on()

    def _on_buried(self) -> None:
        self._buried = 0
        if self._in_hand is not None:
            self._acknowledge(self._in_hand)
            self._go_on()

    def _acknowledge(self, taken: HandedEvent) -> None:
        self._in_hand = None
        taken.acknowledged_in = self._attached
        self._unanswered[taken.number] = taken
        self._host.acknowledged(taken)
        self._finish(taken)

    def _finish(self, taken: HandedEvent, *, expired: bool = False) -> None:
        assert self._host.shares is not None and self.current is not None, "it is attached"
        self._host.shares.finish(self._attachment, taken.number, taken.number, expired=expired)

    def _on_answered(self, numbers: Ranges, *, accepted: bool) -> None:
        """The broker has answered. If it refuses what was acknowledged before a break, it may have heard the first
        acknowledgement, and so it may if the client has left: whether that counted is known by whether the event comes
        to somebody again."""
        certain = self._attached if self.current is not None else 0
        for first, last in numbers:
            for number in range(first, last + 1):
                taken = self._unanswered.pop(number, None)
                if taken is not None and (accepted or taken.acknowledged_in == certain):
                    self._host.answered(taken, accepted)

    @property
    def waiting(self) -> str:
        """Describes what it has and is not done with; empty if nothing."""
        count = len(self._waiting) + len(self._unanswered) + (self._in_hand is not None)
        return f"{self._name} is not done with {count} events" if count else ""
