"""Writes what client processes of a live scenario report into the trace, and remembers the run's state.

It remembers what it takes to tell whether anything is still under way, and to restart a crashed subscriber with what
its disk would hold. The summary's numbers come from the trace, not from here.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from msgspec import structs

from tidings.core.client.bookmark import Reached
from tidings.core.errors import ScenarioError
from tidings.core.events.subscription import Interest, Order, Subscription
from tidings.core.filters.language.predicates import Scalar
from tidings.core.filters.matching.interest_index import InterestIndex
from tidings.core.structures.recent_ids import RecentIds
from tidings.scenarios.file.expand import PlannedSubscriber
from tidings.scenarios.file.ordering import ORDERS
from tidings.scenarios.live import facts as words
from tidings.scenarios.live.facts import KeptSubscription, SubscriberWork
from tidings.scenarios.live.share_ledger import ShareLedger
from tidings.scenarios.trace.writer import TraceWriter

NEVER = 2**63 - 1


class Account:
    """Tracks one subscription: the time span whose events it is owed, and how many of them arrived."""

    __slots__ = ("accepted_ns", "arrived", "cancelled_ns", "ended", "first_time", "interest", "request")

    def __init__(self, request: words.Requested, interest: Interest) -> None:
        self.request = request
        self.interest = interest
        self.accepted_ns = NEVER
        self.cancelled_ns = NEVER
        self.ended = False
        self.arrived = 0
        self.first_time = RecentIds().first_time

    @property
    def open(self) -> bool:
        return self.accepted_ns != NEVER and not self.ended

    @property
    def held(self) -> KeptSubscription:
        cancelled_ns = None if self.cancelled_ns == NEVER else self.cancelled_ns
        request = self.request
        accepted = self.accepted_ns != NEVER
        return KeptSubscription(request.subscription, request.topics, request.at_ns, accepted, cancelled_ns)


class SubscriberProgress:
    """Tracks one subscriber of the plan."""

    def __init__(self, plan: PlannedSubscriber, *, kept: bool) -> None:
        self.plan = plan
        self.kept = kept
        """True if its subscriptions continue across a crash."""
        self.accounts: dict[str, Account] = {}
        self.resume_points: dict[str, dict[str, int]] = {}
        self.steps = 0
        self.position = 0
        self.entries: tuple[str, ...] = ()
        self.broken_after = 0
        """How many steps it had taken when its order last broke."""
        self.forgotten = 0
        """How many subscriptions it had then."""
        self.reached: Reached | None = None
        self.crashed_ns: int | None = None

    @property
    def ordered(self) -> bool:
        return self.plan.order in ORDERS

    @property
    def begins_anew(self) -> bool:
        """True if its subscription ends with a crash."""
        return not self.kept and (self.ordered or (self.plan.start != "new" and self.plan.share is None))

    def work(self, *, keep_resume_points: bool, position: int = 0) -> SubscriberWork:
        """Return what it still has to do; without resume points, it has forgotten what it was shown. `position`: with a
        durable subscription or group, how many events it was given."""
        plan = self.plan
        work = SubscriberWork(
            plan.name,
            plan.at,
            plan.filter,
            plan.order,
            plan.timeline,
            done=self.steps,
            made=len(self.accounts),
            kept=self.kept,
            start=plan.start,
        )
        if plan.share is not None:
            return structs.replace(work, topics=self._topics, share=plan.share, position=position)
        if self.begins_anew:
            return structs.replace(work, topics=self._topics, entries=self.entries)
        accounts = [*self.accounts.values()][self.forgotten :]
        if self.kept and accounts:
            work = structs.replace(work, begun=accounts[0].request.topics)
        if self.ordered:
            return structs.replace(
                work,
                held=tuple(account.held for account in accounts),
                reached=self.reached if keep_resume_points else None,
                crashed_ns=self.crashed_ns,
            )
        return structs.replace(
            work,
            held=tuple(account.held for account in accounts if not account.ended),
            resume_points=self.resume_points if keep_resume_points else {},
        )

    def crashed(self, at_ns: int) -> list[Account]:
        """Note the crash; return the accounts that end with it."""
        self.crashed_ns = at_ns
        if not (self.ordered or self.begins_anew):
            return []
        accounts = [*self.accounts.values()]
        return accounts[: self.forgotten] if self.kept else accounts

    @property
    def _topics(self) -> tuple[str, ...] | None:
        return self.plan.timeline[self.steps - 1].topics if self.steps > self.broken_after else None


def _is_kept(plan: PlannedSubscriber, *, keeps: bool, resumes: bool) -> bool:
    """Return whether its subscription goes on after a crash; a durable subscription or group does by itself."""
    is_new = plan.start == "new" or plan.share is not None
    return is_new and (resumes if plan.order in ORDERS else keeps)


class RunLedger:
    """Takes all reports. `keeps`: brokers keep subscriptions of clients that are down. `resumes`: so do sequencers."""

    def __init__(
        self,
        writer: TraceWriter,
        subscribers: tuple[PlannedSubscriber, ...],
        *,
        keeps: bool = False,
        resumes: bool = False,
    ) -> None:
        self.subscribers = {
            plan.name: SubscriberProgress(plan, kept=_is_kept(plan, keeps=keeps, resumes=resumes))
            for plan in subscribers
        }
        self.missed = 0
        """Events that brokers reported as dropped."""
        self.stamped = 0
        """Events that got a timestamp; `stamp_entries` counts the entries of all timestamps."""
        self.stamp_entries = 0
        self.broken: list[str] = []
        """Subscribers whose order broke, and why."""
        self._writer = writer
        self._shares = ShareLedger(writer, subscribers)
        self._unconfirmed: set[str] = set()
        self._unaccepted: set[tuple[str, str]] = set()
        self._events: list[tuple[str, dict[str, Scalar], int]] = []
        self._owed: dict[tuple[str, str], int] = {}
        """Subscription -> how many of the first `_counted` events it is owed."""
        self._counted = 0
        self._index: InterestIndex[tuple[str, str]] | None = None
        """The subscriptions that may be owed events; None: rebuild it and count all events again."""

    @property
    def under_way(self) -> bool:
        """True while a request is unanswered, or an event is owed to a subscriber and not delivered.

        Events of a crashed publisher that were not confirmed never will be: then this stays true.
        """
        if self._unconfirmed or self._unaccepted or self._shares.under_way:
            return True
        return any(self._account(*key).arrived < owed for key, owed in self._count_owed().items())

    @property
    def published(self) -> int:
        return len(self._events)

    def progress(self) -> dict[str, tuple[int, int]]:
        """Return how many events each subscriber is owed so far, and how many of these arrived."""
        found = dict.fromkeys(self.subscribers, (0, 0))
        for (name, subscription), more in self._count_owed().items():
            owed, arrived = found[name]
            found[name] = owed + more, arrived + self._account(name, subscription).arrived
        return found

    def _count_owed(self) -> dict[tuple[str, str], int]:
        if self._index is None:
            self._index = InterestIndex()
            self._owed, self._counted = {}, 0
            for key, account in self._open_accounts():
                self._index.add(key, account.interest.topics, account.interest.pattern)
                self._owed[key] = 0
        for topic, attributes, at_ns in self._events[self._counted :]:
            for key in self._index.match(topic, partial(dict, attributes)):
                account = self._account(*key)
                self._owed[key] += account.accepted_ns <= at_ns < account.cancelled_ns
        self._counted = len(self._events)
        return self._owed

    def _open_accounts(self) -> Iterator[tuple[tuple[str, str], Account]]:
        for name, subscriber in self.subscribers.items():
            for account in subscriber.accounts.values():
                if account.open and subscriber.plan.share is None:
                    yield (name, account.request.subscription), account

    def _account(self, subscriber: str, subscription: str) -> Account:
        return self.subscribers[subscriber].accounts[subscription]

    # --- Reports

    def take(self, fact: words.Report) -> None:
        match fact:
            case words.DeliveredReport():
                self._on_delivered(fact)
            case words.PublishedReport():
                self._on_published(fact)
            case words.ExpiredReport():
                if not self._shares.take(fact):
                    self._count_arrived(fact)
            case words.Confirmed(source, first, last, at_ns):
                for sequence in range(first, last + 1):
                    self._writer.confirmed(f"{source}:{sequence}", at_ns)
                    self._unconfirmed.discard(f"{source}:{sequence}")
            case words.MissedReport(first=first, last=last):
                self.missed += last - first + 1
            case words.StepTaken(subscriber):
                self.subscribers[subscriber].steps += 1
            case words.StampedReport(entries):
                self.stamped += 1
                self.stamp_entries += entries
            case words.EntriesReport(subscriber, names):
                self.subscribers[subscriber].entries = names
            case words.Broken(subscriber, reason):
                self.broken.append(f"{subscriber}: {reason}")
                known = self.subscribers[subscriber]
                known.broken_after, known.forgotten, known.reached = known.steps, len(known.accounts), None
            case words.FailedReport(reason):
                raise ScenarioError(reason)
            case words.ReadyReport():
                pass
            case words.DetachedReport(subscriber, subscription):
                self._shares.take(fact)
                self._unaccepted.discard((subscriber, subscription))
            case _ if not self._shares.take(fact):
                self._on_subscription(fact)

    def work(self, name: str, *, keep_resume_points: bool) -> SubscriberWork:
        """Return what that subscriber still has to do."""
        position = self._shares.positions.get(name, 0)
        return self.subscribers[name].work(keep_resume_points=keep_resume_points, position=position)

    def crashed(self, name: str, at_ns: int) -> None:
        """Note that a client crashed. An ordered subscription that does not resume ends there."""
        subscriber = self.subscribers.get(name)
        if subscriber is not None and subscriber.plan.share is not None:
            self._share_crashed(name, [*subscriber.accounts], at_ns)
            return
        for account in () if subscriber is None else subscriber.crashed(at_ns):
            subscription = account.request.subscription
            if account.cancelled_ns == NEVER:
                self._on_subscription(words.Cancelled(name, subscription, at_ns))
            self._on_subscription(words.Ended(name, subscription))

    def _share_crashed(self, name: str, subscriptions: list[str], at_ns: int) -> None:
        if subscriptions and not self._shares.has_left(name, subscriptions[-1]):
            self.take(words.DetachedReport(name, subscriptions[-1], at_ns))

    def _on_published(self, fact: words.PublishedReport) -> None:
        event_id = f"{fact.source}:{fact.sequence}"
        attributes: dict[str, Scalar] = {**fact.attributes}
        self._writer.published(
            event_id,
            fact.source,
            fact.sequence,
            fact.topic,
            attributes,
            fact.size_bytes,
            fact.at_ns,
            None,
            fact.expires_ns,
        )
        self._unconfirmed.add(event_id)
        self._events.append((fact.topic, attributes, fact.at_ns))
        self._shares.published(event_id, fact.topic, attributes, fact.at_ns)

    def _on_subscription(self, fact: words.Report) -> None:
        self._index = None
        match fact:
            case words.Requested():
                self._on_requested(fact)
            case words.Accepted(subscriber, subscription, at_ns, reached):
                self._note_reached(subscriber, reached)
                self._unaccepted.discard((subscriber, subscription))
                self._account(subscriber, subscription).accepted_ns = at_ns
                self._shares.accepted(subscriber, subscription, at_ns)
                self._writer.accepted(subscriber, subscription, at_ns)
            case words.Cancelled(subscriber, subscription, at_ns):
                self._unaccepted.discard((subscriber, subscription))
                self._account(subscriber, subscription).cancelled_ns = at_ns
                self._writer.cancelled(subscriber, subscription, at_ns)
            case words.Ended(subscriber, subscription):
                self._account(subscriber, subscription).ended = True
                self.subscribers[subscriber].resume_points.pop(subscription, None)

    def _note_reached(self, subscriber: str, reached: Reached | None) -> None:
        if reached is not None:
            self.subscribers[subscriber].reached = reached

    def _on_requested(self, fact: words.Requested) -> None:
        subscriber = self.subscribers[fact.subscriber]
        plan = subscriber.plan
        interest = Subscription(fact.subscription, fact.topics, plan.filter, Order(plan.order)).interest()
        subscriber.accounts[fact.subscription] = Account(fact, interest)
        self._unaccepted.add((fact.subscriber, fact.subscription))
        share = plan.share
        self._writer.subscribed(
            plan.name,
            fact.subscription,
            fact.topics,
            plan.filter,
            plan.order,
            fact.at_ns,
            share_of=share.name if share is not None and share.group else None,
            durable=None if share is None else share.durable,
            group_by=None if share is None else share.group_by or None,
            start=fact.start,
            keep_for_ns=None if share is None else share.keep_for_ns or None,
        )

    def _on_delivered(self, fact: words.DeliveredReport) -> None:
        subscriber = self.subscribers[fact.subscriber]
        event_id = f"{fact.source}:{fact.sequence}"
        self._note_reached(fact.subscriber, fact.reached)
        self._writer.delivered(
            fact.subscriber,
            fact.subscription,
            subscriber.position,
            event_id,
            fact.at_ns,
            fact.out_of_order,
            fact.recovered_by or None,
        )
        subscriber.position += 1
        resume_points = subscriber.resume_points.setdefault(fact.subscription, {})
        resume_points[fact.source] = max(fact.sequence, resume_points.get(fact.source, 0))
        self._count_arrived(fact)

    def _count_arrived(self, fact: words.DeliveredReport | words.ExpiredReport) -> None:
        """Nobody waits for the event any more, whether it was shown or came too late."""
        account = self._account(fact.subscriber, fact.subscription)
        owed = account.accepted_ns <= fact.published_ns < account.cancelled_ns
        if owed and account.first_time(fact.source, 0, fact.sequence):
            account.arrived += 1
