"""The checkers of durable subscriptions, groups and starts against twins that are slow and simple, on random traces."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from breadth import examples
from shared_traces import PATTERNS, Rows, broken_rows, correct_rows
from tidings.scenarios.trace.checkers import GUARANTEES, check_all, durable, gap_free, group, seam
from tidings.scenarios.trace.metrics import metrics
from tidings.scenarios.trace.tables import DeliveredRow, PublishedRow, SubscribedRow

NEVER = 2**63 - 1
RANDOM = st.integers(0, 2**32).map(Random)  # so many draws are slow as choices of hypothesis


@dataclass
class Account:
    """A plain subscription, or one life of a durable subscription or group."""

    rows: list[SubscribedRow]
    turns: list[SubscribedRow] = field(default_factory=list)

    @property
    def kind(self) -> str:
        first = self.rows[0]
        return "group" if first.share_of else "durable" if first.durable else ""

    @property
    def accepted(self) -> int | None:
        return min((row.accepted_ns for row in self.rows if row.accepted_ns is not None), default=None)

    @property
    def cancelled(self) -> int | None:
        return min((row.cancelled_ns for row in self.rows if row.cancelled_ns is not None), default=None)

    @property
    def ended(self) -> bool:
        live = any(row.accepted_ns is not None and row.detached_ns is None for row in self.rows)
        return self.cancelled is not None or (bool(self.kind) and not live)

    def selects(self, event: PublishedRow) -> bool:
        return event.topic in PATTERNS[tuple(self.rows[0].topics)]

    def owes(self, event: PublishedRow) -> bool:
        if self.accepted is None or not self.selects(event) or event.at_ns < self.accepted:
            return False
        return self.cancelled is None or event.at_ns < self.cancelled

    def place(self, row: DeliveredRow) -> int:
        """Whose turn it was."""
        names = [(asked.subscriber, asked.subscription) for asked in self.turns]
        return names.index((row.subscriber, row.subscription))


def accounts(rows: Rows) -> list[Account]:
    found: dict[str, list[Account]] = {}
    for asked in sorted(rows.subscribed, key=lambda row: row.requested_ns):
        name = f"group {asked.share_of}" if asked.share_of else f"durable {asked.durable}"
        if not asked.share_of and not asked.durable:
            name = f"plain {asked.subscriber}/{asked.subscription}"
        lives = found.setdefault(name, [])
        ends = lives[-1].cancelled if lives else 0
        if ends is not None and asked.requested_ns >= ends:
            lives.append(Account([]))
        lives[-1].rows.append(asked)
    accounts = [life for lives in found.values() for life in lives]
    for account in accounts:
        account.rows.sort(key=lambda row: NEVER if row.accepted_ns is None else row.accepted_ns)
        account.turns = sorted(account.rows, key=lambda row: (shown_at(rows, row), row.requested_ns))
    return accounts


def shown_at(rows: Rows, asked: SubscribedRow) -> int:
    """Return when that attachment first showed an event."""
    mine = (asked.subscriber, asked.subscription)
    return min(
        (row.at_ns for row in rows.delivered if (row.subscriber, row.subscription) == mine), default=NEVER
    )


def events_of(rows: Rows) -> dict[str, PublishedRow]:
    return {row.event_id: row for row in sorted(rows.published, key=lambda row: row.at_ns)}


def deliveries(rows: Rows, account: Account) -> list[DeliveredRow]:
    """The known ones, by event, attempt and time."""
    names = {(asked.subscriber, asked.subscription) for asked in account.rows}
    numbers = {event: number for number, event in enumerate(events_of(rows))}
    known = [
        row
        for row in rows.delivered
        if (row.subscriber, row.subscription) in names and row.event_id in numbers
    ]
    return sorted(known, key=lambda row: (numbers[row.event_id], row.attempt, row.at_ns, row.position))


def missing(rows: Rows, account: Account, arrived: set[str], *, strict_end: bool = False) -> list[str]:
    events = events_of(rows)
    came = {row.event_id for row in deliveries(rows, account)}
    ids = list(events)
    found = []
    for number, event in enumerate(events.values()):
        later = [events[other] for other in ids[number + 1 :] if other in came]
        per_topic = account.rows[0].order in ("total", "causal")
        overtaken = any(
            other.source == event.source and (not per_topic or other.topic == event.topic) for other in later
        )
        waits = account.kind == "group" or event.event_id in came or not overtaken
        excused = account.ended and waits and not strict_end
        if account.owes(event) and event.event_id not in arrived and not excused:
            found.append(event.event_id)
    return found


def shared_twin(kind: str) -> Callable[[Rows], int]:
    def count(rows: Rows) -> int:
        return sum(
            len(missing(rows, account, {row.event_id for row in mine if row.done_ns is not None}))
            + sum(wrong_rows(mine))
            + (out_of_place(rows, account, mine) if kind == "durable" else 0)
            + (overtaken(rows, mine, account.rows[0].group_by) if account.rows[0].group_by else 0)
            for account in accounts(rows)
            if account.kind == kind
            for mine in [deliveries(rows, account)]
        )

    return count


def wrong_rows(mine: list[DeliveredRow]) -> Iterator[int]:
    for number, row in enumerate(mine):
        before = [other for other in mine[:number] if other.event_id == row.event_id]
        yield row.attempt < 1
        yield row.done_ns is not None and row.done_ns < row.at_ns
        yield row.attempt in {other.attempt for other in before}
        yield any(other.done_ns is not None for other in before)  # done again, or only delivered again
    by_position = sorted(mine, key=lambda row: row.position)
    for number, row in enumerate(by_position):
        same = (row.subscriber, row.subscription, row.event_id)
        yield any(
            (other.subscriber, other.subscription, other.event_id) == same and other.attempt > row.attempt
            for other in by_position[:number]
        )


def out_of_place(rows: Rows, account: Account, mine: list[DeliveredRow]) -> int:
    """Count what comes again to another holder after a later event of its source (and, by order, its topic)."""
    if account.rows[0].order == "none":
        return 0
    events = events_of(rows)
    first: dict[tuple[int, str], DeliveredRow] = {}
    for row in sorted(mine, key=lambda row: (row.position, id(row))):
        first.setdefault((account.place(row), row.event_id), row)

    def stream(event_id: str) -> tuple[str, str]:
        event = events[event_id]
        return event.source, "" if account.rows[0].order == "fifo" else event.topic

    return sum(
        any(
            place == other
            and stream(event_id) == stream(later)
            and events[later].sequence > events[event_id].sequence
            and before.position < row.position
            for (other, later), before in first.items()
        )
        for (place, event_id), row in first.items()
        if any((earlier, event_id) in first for earlier in range(place))
    )


def overtaken(rows: Rows, mine: list[DeliveredRow], attribute: str) -> int:
    events = events_of(rows)
    number = {id(row): place for place, row in enumerate(rows.delivered)}

    def stream(row: DeliveredRow) -> tuple[str, str | None]:
        event = events[row.event_id]
        return event.source, dict(event.attributes).get(attribute)

    def first(subscriber: str, event_id: str) -> int | None:
        seen = [row.position for row in mine if (row.subscriber, row.event_id) == (subscriber, event_id)]
        return min(seen, default=None)

    def offends(other: DeliveredRow, row: DeliveredRow) -> bool:
        shown = first(other.subscriber, other.event_id)
        assert shown is not None
        before = first(other.subscriber, row.event_id)
        if other.subscriber == row.subscriber:
            return before is None or (shown, number[id(other)]) < (before, number[id(row)])
        return other.at_ns < row.at_ns and (before is None or before > shown)

    done = [row for row in mine if row.done_ns is not None]
    return sum(
        any(
            stream(other) == stream(row)
            and events[other.event_id].sequence > events[row.event_id].sequence
            and offends(other, row)
            for other in done
        )
        for row in done
    )


def repeated(rows: Rows, account: Account) -> int:
    mine = deliveries(rows, account)
    return len(mine) - len({(row.event_id, row.attempt if account.kind else 1) for row in mine})


def seam_twin(rows: Rows) -> int:
    count = 0
    events = list(events_of(rows).values())
    for account in accounts(rows):
        if account.rows[0].start is None:
            continue
        shown = deliveries(rows, account)
        came = {row.event_id for row in shown if not account.kind or row.done_ns is not None}
        waits = {row.event_id for row in shown} if account.kind and account.ended else set()
        if account.kind == "group" and account.ended:
            waits = {event.event_id for event in events}
        count += repeated(rows, account)
        for source in {event.source for event in events}:
            mine = [event for event in events if event.source == source and account.selects(event)]
            got = [place for place, event in enumerate(mine) if event.event_id in came]
            # What comes from another topic than was selected counts as arrived, too.
            wrong = [event for event in events if event.source == source and event.event_id in came]
            if not got and not wrong:
                continue
            low, high = wrong[0].at_ns, wrong[-1].at_ns
            for event in mine:
                owed = account.cancelled is None or event.at_ns < account.cancelled
                before = account.accepted is not None and not account.ended and event.at_ns < account.accepted
                inside = low < event.at_ns and (event.at_ns < high or before)
                count += owed and inside and event.event_id not in came | waits
    return count


TWINS = {"durable": shared_twin("durable"), "group": shared_twin("group"), "seam": seam_twin}


@settings(max_examples=examples(100))
@given(RANDOM)
def test_correct_traces_hold_in_everything(random: Random) -> None:
    rows = correct_rows(random)
    assert [str(verdict) for verdict in check_all(rows.trace(), GUARANTEES) if not verdict.holds] == []
    assert metrics(rows.trace()).duplicates == 0


@settings(max_examples=examples(200))
@given(RANDOM)
def test_checkers_count_what_their_twins_count(random: Random) -> None:
    rows = broken_rows(random)
    for verdict in check_all(rows.trace(), TWINS):
        assert (verdict.guarantee, verdict.violations) == (verdict.guarantee, TWINS[verdict.guarantee](rows))
        assert len(verdict.witnesses) == min(verdict.violations, 10)
        assert all("\n" not in str(witness) for witness in verdict.witnesses)


@settings(max_examples=examples(100))
@given(RANDOM)
def test_what_is_expected_once_and_what_is_a_duplicate(random: Random) -> None:
    rows = broken_rows(random)
    trace = rows.trace()
    found = accounts(rows)
    came = {id(account): {row.event_id for row in deliveries(rows, account)} for account in found}
    counted = metrics(trace)
    owed = sum(account.owes(event) for account in found for event in events_of(rows).values())
    assert counted.expected == owed
    assert counted.duplicates == sum(repeated(rows, account) for account in found)
    lacking = sum(len(missing(rows, account, came[id(account)], strict_end=True)) for account in found)
    assert counted.expected * (1 - counted.delivery_ratio) == pytest.approx(lacking)
    gaps = sum(len(missing(rows, account, came[id(account)])) for account in found)
    assert gap_free(trace).violations == gaps


@settings(max_examples=examples(100))
@given(RANDOM)
def test_the_order_of_a_source_holds_across_attachments(random: Random) -> None:
    rows = broken_rows(random)
    events = events_of(rows)
    count = 0
    for account in accounts(rows):
        if account.kind != "durable":
            continue
        mine = sorted(deliveries(rows, account), key=lambda row: (account.place(row), row.position))
        first: dict[str, DeliveredRow] = {}
        for row in mine:
            first.setdefault(row.event_id, row)
        for number, event_id in enumerate(first):
            event = events[event_id]
            before = [events[other] for other in list(first)[:number]]
            count += any(one.source == event.source and one.sequence > event.sequence for one in before)
    durables = {
        (row.subscriber, row.subscription) for row in rows.subscribed if row.durable and not row.share_of
    }
    rows.delivered = [row for row in rows.delivered if (row.subscriber, row.subscription) in durables]
    (verdict,) = check_all(rows.trace(), ["fifo"])
    assert verdict.violations == count


def test_random_traces_have_something_of_everything() -> None:
    """Else the tests above would say little."""
    seen: Counter[str] = Counter()
    for seed in range(60):
        rows = correct_rows(Random(seed))
        counts = [check(rows.trace()).counts for check in (durable, group)]
        seen.update({name: number for count in counts for name, number in count.items()})
        seen["seam"] += seam(rows.trace()).holds
        seen["cancelled"] += sum(row.cancelled_ns is not None for row in rows.subscribed)
        broken = broken_rows(Random(seed)).trace()
        seen.update(f"broken {found.guarantee}" for found in check_all(broken, TWINS) if not found.holds)
    names = ("expected", "done", "repeated", "seam", "cancelled", *(f"broken {name}" for name in TWINS))
    assert all(seen[name] > 5 for name in names), seen
