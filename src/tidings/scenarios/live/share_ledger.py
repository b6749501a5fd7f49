"""Writes what durable subscribers and members of groups of a live run report, and knows what is not done yet.

Each event is owed once to a durable subscription or group, whoever is done with it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from tidings.core.events.event import RESERVED_ATTRIBUTE
from tidings.core.events.subscription import Interest, make_interest
from tidings.core.events.topics import EVERYTHING
from tidings.core.filters.language.predicates import Scalar
from tidings.scenarios.actor import NEVER
from tidings.scenarios.file.archives import EARLIEST
from tidings.scenarios.file.expand import PlannedSubscriber
from tidings.scenarios.live import facts as words
from tidings.scenarios.share_lives import Row, ShareLives
from tidings.scenarios.trace.writer import TraceWriter


class _Event(NamedTuple):
    event_id: str
    topic: str
    attributes: dict[str, Scalar]
    at_ns: int


class _Account:
    """Tracks one durable subscription or group."""

    def __init__(self, interest: Interest, lives: ShareLives, *, whole: bool) -> None:
        """`whole`: it begins with history, and is owed everything."""
        self._interest = interest
        self.lives = lives
        self._whole = whole
        self._life = ""
        self.accepted_ns = NEVER
        self.attached: dict[str, str] = {}
        """Subscriber -> its subscription."""
        self.done: set[str] = set()
        """Events that somebody acknowledged, and that came to nobody since."""
        self.accepted: set[str] = set()
        """Events whose acknowledgements were accepted."""
        self.undone: set[str] = set()
        """Events that are owed, or in somebody's hands."""

    def accept(self, row: Row, at_ns: int, events: Iterable[_Event]) -> None:
        self.lives.accepted(row, at_ns)
        life = self.lives.life_of(row)
        if life in self.lives.ended:
            return
        if life != self._life:  # what waited for the one before is lost
            self._life, self.accepted_ns = life, NEVER
            self.undone.clear()
        if at_ns < self.accepted_ns:
            self.accepted_ns = at_ns
            self.owe(events)

    def owe(self, events: Iterable[_Event]) -> None:
        since_ns = 0 if self._whole and self.accepted_ns != NEVER else self.accepted_ns
        for event_id, topic, attributes, at_ns in events:
            if at_ns >= since_ns and event_id not in self.done and self._wants(topic, attributes):
                self.undone.add(event_id)

    def _wants(self, topic: str, attributes: dict[str, Scalar]) -> bool:
        interest = self._interest
        if not any(pattern.matches(topic) for pattern in interest.topics):
            return False
        return interest.pattern is None or interest.pattern.matches({**attributes, RESERVED_ATTRIBUTE: topic})


class ShareLedger:
    def __init__(self, writer: TraceWriter, subscribers: Iterable[PlannedSubscriber]) -> None:
        self._writer = writer
        self._events: list[_Event] = []
        self._accounts: dict[str, _Account] = {}
        self._share_of: dict[str, _Account] = {}
        """Subscriber -> its durable subscription or group."""
        self._held: dict[tuple[str, int], str] = {}
        """Subscriber and position -> event, until the acknowledgement is answered."""
        self._acknowledged: dict[tuple[str, int], int] = {}
        """Subscriber and position -> when it was acknowledged, until that is answered."""
        self._left: dict[str, str] = {}
        """Subscriber -> the subscription that it has left last."""
        self.positions: dict[str, int] = {}
        """Subscriber -> how many events it was given."""
        for plan in subscribers:
            if plan.share is not None:
                interest = make_interest(plan.timeline[0].topics or (EVERYTHING.text,), plan.filter)
                lives = ShareLives(writer, plan.share.keep_for_ns)
                whole = plan.start == EARLIEST
                account = self._accounts.setdefault(plan.share.name, _Account(interest, lives, whole=whole))
                self._share_of[plan.name] = account
                self.positions[plan.name] = 0

    @property
    def under_way(self) -> bool:
        """True while an event waits for somebody who is attached."""
        return any(account.attached and account.undone for account in self._accounts.values())

    def published(self, event_id: str, topic: str, attributes: dict[str, Scalar], at_ns: int) -> None:
        if self._accounts:
            event = _Event(event_id, topic, attributes, at_ns)
            self._events.append(event)
            for account in self._accounts.values():
                account.owe([event])

    def accepted(self, subscriber: str, subscription: str, at_ns: int) -> None:
        account = self._share_of.get(subscriber)
        if account is not None:
            account.attached[subscriber] = subscription
            account.accept((subscriber, subscription), at_ns, self._events)

    def has_left(self, subscriber: str, subscription: str) -> bool:
        return self._left.get(subscriber) == subscription

    def take(self, fact: words.Report) -> bool:
        """Take a report; return False if it is about something else."""
        match fact:
            case words.HandedReport():
                self._on_handed(fact)
            case words.ExpiredReport(subscriber, source=source, sequence=sequence):
                return self._on_expired(subscriber, f"{source}:{sequence}")
            case words.AcknowledgedReport(subscriber, position, at_ns):
                self._on_acknowledged(subscriber, position, at_ns)
            case words.AnsweredReport(subscriber, position, accepted):
                self._on_answered(subscriber, position, accepted)
            case words.JoinedReport(subscriber, subscription, life):
                self._share_of[subscriber].lives.joined((subscriber, subscription), life)
            case words.DetachedReport(subscriber, subscription, at_ns):
                account = self._share_of[subscriber]
                account.attached.pop(subscriber, None)
                account.lives.left((subscriber, subscription), at_ns)
                self._left[subscriber] = subscription
                self._writer.detached(subscriber, subscription, at_ns)
            case _:
                return False
        return True

    def _on_expired(self, subscriber: str, event_id: str) -> bool:
        """The event came too late: it is done without having been shown, and comes to nobody again."""
        account = self._share_of.get(subscriber)
        if account is None:
            return False
        account.done.add(event_id)
        account.undone.discard(event_id)
        return True

    def _on_acknowledged(self, subscriber: str, position: int, at_ns: int) -> None:
        """An acknowledgement without an answer counts, except of what somebody else was done with before."""
        account, event_id = self._share_of[subscriber], self._held[subscriber, position]
        self._acknowledged[subscriber, position] = at_ns
        if event_id not in account.accepted:
            self._writer.acknowledged(subscriber, position, at_ns)
        account.done.add(event_id)
        account.undone.discard(event_id)

    def _on_answered(self, subscriber: str, position: int, accepted: bool) -> None:
        event_id = self._held.pop((subscriber, position))
        at_ns = self._acknowledged.pop((subscriber, position))
        if accepted:
            self._writer.acknowledged(subscriber, position, at_ns)
            self._share_of[subscriber].accepted.add(event_id)
        self._writer.answered(subscriber, position, accepted=accepted)

    def _on_handed(self, fact: words.HandedReport) -> None:
        subscriber, event_id = fact.subscriber, f"{fact.source}:{fact.sequence}"
        position = self.positions[subscriber]
        self.positions[subscriber] = position + 1
        self._held[subscriber, position] = event_id
        how = (fact.at_ns, fact.attempt, fact.out_of_order)
        self._writer.handed(subscriber, fact.subscription, position, event_id, *how)
        account = self._share_of[subscriber]
        account.done.discard(event_id)
        account.undone.add(event_id)
