"""Random traces of durable subscriptions, groups and starts, as a correct broker makes them, and ways to break them.

Members come, go, die with events in their hands and are paused beyond their lease: what was under way to one that died
was seen by nobody, and one that was paused shows what it held after others got it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from random import Random

from tidings.scenarios.trace.reader import Trace
from tidings.scenarios.trace.tables import DeliveredRow, PublishedRow, SubscribedRow

SOURCES = ("p", "q")
TOPICS = ("/a", "/a/b", "/c")
NAMES = ("s0", "s1", "s2", "s3")
PATTERNS = {("/a",): {"/a"}, ("/a/**",): {"/a", "/a/b"}, ("/**",): set(TOPICS)}
STEPS = 120


@dataclass
class Rows:
    """The rows of a trace, to be changed."""

    published: list[PublishedRow] = field(default_factory=list)
    subscribed: list[SubscribedRow] = field(default_factory=list)
    delivered: list[DeliveredRow] = field(default_factory=list)

    def trace(self) -> Trace:
        return Trace.from_rows(published=self.published, subscribed=self.subscribed, delivered=self.delivered)


@dataclass
class Member:
    """One attachment: what it holds (event number -> attempt, whether its application saw it)."""

    name: str
    row: int
    gone: bool = False
    """It died, or is paused: what goes out to it is not seen."""
    holds: dict[int, tuple[int, bool]] = field(default_factory=dict)


@dataclass
class Share:
    name: str
    group: bool
    group_by: str | None
    topics: tuple[str, ...]
    order: str
    waiting: dict[int, int] = field(default_factory=dict)
    """Event number -> how often it went out."""
    members: list[Member] = field(default_factory=list)
    stale: list[tuple[Member, int, int]] = field(default_factory=list)
    """What members that were taken for dead may still show: event number and attempt."""
    accepted: bool = False
    cancelled: bool = False


class World:
    """A network that keeps its promises; `now` is the time in steps of 10."""

    def __init__(self, random: Random, steps: int = STEPS) -> None:
        self.random = random
        self.rows = Rows()
        self.now = 0
        self._positions: dict[str, int] = {}
        self._sequences = dict.fromkeys(SOURCES, 0)
        self.shares = [self._share(number) for number in range(random.randrange(1, 4))]
        for step in range(steps):
            self.now = 10 * (step + 1)
            self._step()
        self._heal()
        self._start_over()

    def _share(self, number: int) -> Share:
        random = self.random
        group = random.random() < 0.5
        group_by = random.choice((None, "k")) if group else None
        order = "none" if group else random.choice(("none", "fifo", "total"))
        return Share(f"n{number}", group, group_by, random.choice(list(PATTERNS)), order)

    # --- What happens

    def _step(self) -> None:
        share = self.random.choice(self.shares)
        match self.random.randrange(16):
            case 0 | 1 | 2 | 3:
                self._publish()
            case 4 | 5:
                self._attach(share)
            case 6 if share.members:
                self._leave(share, self.random.choice(share.members))
            case 7 if share.members:
                self.random.choice(share.members).gone = True
            case 8 if share.stale and not share.cancelled:
                member, event, attempt = share.stale.pop(0)
                self._show(member, event, attempt)
            case 9 if self.random.random() < 0.1 and share.accepted and not share.cancelled:
                self._cancel(share)
            case 10 | 11 | 12:
                self._hand_out(share)
            case _:
                self._finish(share)

    def _publish(self) -> None:
        source, topic = self.random.choice(SOURCES), self.random.choice(TOPICS)
        self._sequences[source] += 1
        sequence = self._sequences[source]
        attributes = [] if self.random.random() < 0.2 else [("k", str(self.random.randrange(2)))]
        number = len(self.rows.published)
        self.rows.published.append(
            PublishedRow(
                f"{source}:{sequence}", source, sequence, topic, attributes, 1, self.now, self.now + 1
            )
        )
        for share in self.shares:
            if share.accepted and not share.cancelled and topic in PATTERNS[share.topics]:
                share.waiting[number] = 0

    def _attach(self, share: Share) -> None:
        free = [name for name in NAMES if name not in {member.name for member in share.members}]
        if share.cancelled or not free or (share.members and not share.group):
            return
        name = self.random.choice(free)
        share.stale = [
            entry for entry in share.stale if entry[0].name != name
        ]  # a new life knows nothing of it
        row = len(self.rows.subscribed)
        durable, group = (None, share.name) if share.group else (share.name, None)
        self.rows.subscribed.append(
            SubscribedRow(
                *(name, f"x{row}", list(share.topics), None, share.order, self.now - 1, self.now, None),
                *(group, durable, share.group_by, None, None),
            )
        )
        share.members.append(Member(name, row))
        share.accepted = True

    def _leave(self, share: Share, member: Member) -> None:
        """In order, or by its lease: what it holds goes back to its place."""
        share.members.remove(member)
        self._change(member.row, detached_ns=self.now)
        for event, (attempt, seen) in member.holds.items():
            share.waiting[event] = attempt
            if not seen:
                share.stale.append((member, event, attempt))

    def _cancel(self, share: Share) -> None:
        share.cancelled = True
        self._change(
            self.random.choice(share.members).row if share.members else self._last(share),
            cancelled_ns=self.now,
        )

    def _last(self, share: Share) -> int:
        return max(
            row
            for row, asked in enumerate(self.rows.subscribed)
            if share.name in (asked.share_of, asked.durable)
        )

    def _hand_out(self, share: Share) -> None:
        if share.cancelled or not share.members:
            return
        held = {self._value(share, event): member for member in share.members for event in member.holds}
        for event in sorted(share.waiting):
            member = self.random.choice(share.members)
            if share.group_by is not None:
                member = held.get(self._value(share, event), member)
            attempt = share.waiting.pop(event) + 1
            member.holds[event] = (attempt, not member.gone)
            if not member.gone:
                self._show(member, event, attempt)
            return

    def _value(self, share: Share, event: int) -> str | None:
        return dict(self.rows.published[event].attributes).get(share.group_by or "")

    def _show(self, member: Member, event: int, attempt: int) -> None:
        position = self._positions.get(member.name, 0)
        self._positions[member.name] = position + 1
        subscription = self.rows.subscribed[member.row].subscription
        event_id = self.rows.published[event].event_id
        self.rows.delivered.append(
            DeliveredRow(member.name, subscription, position, event_id, self.now, attempt=attempt)
        )

    def _finish(self, share: Share) -> None:
        busy = [member for member in share.members if not member.gone and member.holds]
        if share.cancelled or not busy:
            return
        member = self.random.choice(busy)
        event = self.random.choice(list(member.holds))
        attempt, _ = member.holds.pop(event)
        wanted = (self.rows.subscribed[member.row].subscription, self.rows.published[event].event_id, attempt)
        for number, row in enumerate(self.rows.delivered):
            if (row.subscription, row.event_id, row.attempt) == wanted:
                self.rows.delivered[number] = row._replace(done_ns=self.now)

    # --- How it ends

    def _heal(self) -> None:
        """Whoever is gone leaves; then all is done, or waits because nobody is left."""
        for share in self.shares:
            for member in [member for member in share.members if member.gone]:
                self._leave(share, member)
            share.stale.clear()
            if share.accepted and not share.cancelled and not share.members and self.random.random() < 0.5:
                self._attach(share)
            while (
                share.members
                and not share.cancelled
                and (share.waiting or any(m.holds for m in share.members))
            ):
                self.now += 10
                self._hand_out(share)
                self._finish(share)

    def _start_over(self) -> None:
        """A plain subscription with a start, by the last subscriber: history from some event on, then live ones."""
        row = len(self.rows.subscribed)
        topics = self.random.choice(list(PATTERNS))
        accepted = self.random.randrange(10, self.now)
        self.rows.subscribed.append(
            SubscribedRow("late", f"x{row}", list(topics), None, "none", 0, accepted, None, start="earliest")
        )
        oldest = self.random.randrange(len(self.rows.published) + 1)
        member = Member("late", row)
        for number, event in enumerate(self.rows.published):
            kept = number >= oldest or event.at_ns >= accepted
            if kept and event.topic in PATTERNS[topics]:
                self._show(member, number, 1)

    def _change(self, row: int, **changes: int) -> None:
        self.rows.subscribed[row] = self.rows.subscribed[row]._replace(**changes)


def correct_rows(random: Random) -> Rows:
    return World(random).rows


def broken_rows(random: Random) -> Rows:
    """A few rows changed in any way that a checker is to see."""
    rows = correct_rows(random)
    for _ in range(random.randrange(1, 6)):
        if rows.delivered:
            _break(random, rows)
    return rows


def _break(random: Random, rows: Rows) -> None:
    place = random.randrange(len(rows.delivered))
    mine = rows.delivered[place]
    match random.randrange(8):
        case 0:
            del rows.delivered[place]
        case 1:
            rows.delivered[place] = mine._replace(
                done_ns=random.choice((None, mine.at_ns - 1, mine.at_ns + 3))
            )
        case 2:
            rows.delivered[place] = mine._replace(attempt=random.choice((-1, 0, 1, 2, 3)))
        case 3:
            other = random.choice(rows.delivered)
            rows.delivered.append(
                mine._replace(subscriber=other.subscriber, subscription=other.subscription, position=99)
            )
        case 4:
            rows.delivered[place] = mine._replace(at_ns=random.choice(rows.delivered).at_ns)
        case 5:
            rows.delivered[place] = mine._replace(event_id=random.choice(rows.published).event_id)
        case 6:
            row = random.randrange(len(rows.subscribed))
            changes = {"detached_ns": None, "cancelled_ns": random.choice((None, 200)), "accepted_ns": None}
            name = random.choice(list(changes))
            rows.subscribed[row] = rows.subscribed[row]._replace(**{name: changes[name]})
        case _:
            rows.delivered[place] = mine._replace(position=random.randrange(20))


def violations(rows: Rows) -> Iterator[str]:
    """Name the guarantees that the promised checks find violated."""
    from tidings.scenarios.trace.checkers import promised_checks, run_check

    trace = rows.trace()
    subscriptions = trace.coded.subscriptions
    checks = promised_checks(subscriptions.order, "guaranteed", shares=subscriptions.shares)
    return (str(found) for found in (run_check(trace, check) for check in checks) if not found.holds)
