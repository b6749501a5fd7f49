"""Random traces: correct by construction they hold in everything; broken anyhow, each checker counts what a
dumb twin counts that compares everything with everything."""

from collections.abc import Callable, Iterator
from functools import lru_cache
from itertools import combinations
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from breadth import examples
from tidings.core.events.text import attribute_text, attribute_value
from tidings.core.events.topics import TopicPattern
from tidings.core.filters.language.filter import Filter
from tidings.scenarios.trace import checkers
from tidings.scenarios.trace.checkers import GUARANTEES, causal, check_all, gap_free
from tidings.scenarios.trace.metrics import metrics
from tidings.scenarios.trace.reader import Trace
from tidings.scenarios.trace.tables import DeliveredRow, PublishedRow, SubscribedRow

TOPICS = ["/a", "/a/b", "/c"]
PATTERNS = [[], ["/a"], ["/c", "/a"], ["/a", "/c"], ["/a/**"], ["/*"], ["/a/b", "/c"]]
FILTERS = [None, None, "x > 1", "x >= 2", "1 < x", "name = 'BBC' OR topic = '/c'"]
NODES = ["n0", "n1", "n2", "n3"]

Rows = tuple[list[PublishedRow], list[SubscribedRow], list[DeliveredRow]]


# Correct by construction: everyone is notified in the order of publication, and in time.


def correct_rows(random: Random) -> Rows:
    published = random_publications(random)
    subscribed = random_subscriptions(random)
    delivered = []
    for subscriber in NODES:
        position = 0
        for event in published:
            for row in subscribed:
                if row.subscriber == subscriber and is_owed(row, event):
                    at_ns = event.at_ns + random.choice((0, 1, 7))
                    if event.expires_ns is not None and at_ns > event.expires_ns:
                        continue
                    delivered.append(
                        DeliveredRow(subscriber, row.subscription, position, event.event_id, at_ns)
                    )
                    position += 1
    random.shuffle(delivered)
    return published, subscribed, delivered


def random_publications(random: Random) -> list[PublishedRow]:
    sequences = dict.fromkeys(["p", *NODES[:2]], 0)
    at_ns = 10
    published = []
    for _ in range(random.randrange(9)):
        source = random.choice(list(sequences))
        values = {"x": random.randrange(4), "name": random.choice(("BBC", "12", None))}
        attributes = [(name, attribute_text(values[name])) for name in sorted(values)]
        event_id = f"{source}:{sequences[source]}"
        confirmed_ns = random.choice((None, at_ns + 1))
        row = (event_id, source, sequences[source], random.choice(TOPICS), attributes, 1, at_ns, confirmed_ns)
        expires_ns = random.choice((None, None, at_ns + 1, at_ns + 5))
        published.append(PublishedRow(*row, expires_ns))
        sequences[source] += random.choice((1, 1, 3))
        at_ns += random.choice((0, 1, 10))
    return published


def random_subscriptions(random: Random) -> list[SubscribedRow]:
    subscribed = []
    for subscriber in NODES:
        for name in "xy"[: random.choice((0, 1, 1, 2))]:
            accepted_ns = random.choice((0, 0, 15, None))
            cancelled_ns = random.choice((None, None, 20, 30))
            where = (random.choice(PATTERNS), random.choice(FILTERS))
            order = random.choice(("none", "fifo", "causal", "total"))
            subscribed.append(SubscribedRow(subscriber, name, *where, order, 0, accepted_ns, cancelled_ns))
    return subscribed


def broken_rows(random: Random) -> Rows:
    """A correct trace after a few changes, of any kind."""
    published, subscribed, delivered = correct_rows(random)
    for _ in range(random.randrange(1, 6)):
        if delivered:
            row = random.randrange(len(delivered))
            random.choice(MUTATIONS)(random, delivered, row)
        if published and random.random() < 0.15:
            row = random.randrange(len(published))
            published[row] = published[row]._replace(at_ns=random.randrange(60))
        if published and random.random() < 0.1:
            published.append(random.choice(published))
    return published, subscribed, delivered


def swap_positions(random: Random, rows: list[DeliveredRow], row: int) -> None:
    other = random.randrange(len(rows))
    mine, theirs = rows[row], rows[other]
    if mine.subscriber == theirs.subscriber:
        rows[row] = mine._replace(position=theirs.position)
        rows[other] = theirs._replace(position=mine.position)


def drop(random: Random, rows: list[DeliveredRow], row: int) -> None:
    del rows[row]


def repeat(random: Random, rows: list[DeliveredRow], row: int) -> None:
    rows.append(rows[row]._replace(position=random.randrange(9)))


def replaced(column: str, *values: object) -> Callable[[Random, list[DeliveredRow], int], None]:
    def change(random: Random, rows: list[DeliveredRow], row: int) -> None:
        rows[row] = rows[row]._replace(**{column: random.choice(values)})

    return change


MUTATIONS = [
    swap_positions,
    swap_positions,
    swap_positions,
    drop,
    repeat,
    replaced("event_id", "n0:0", "n1:0", "p:0", "p:1", "q:7"),
    replaced("subscriber", *NODES, "n9"),
    replaced("subscription", "x", "y", "z"),
    replaced("position", *range(-1, 9)),
    replaced("at_ns", 0, 10, 20, 30, 60),
    replaced("out_of_order", True),
]


# The twins. They share no code with the checkers, and read the rows as they are.


@lru_cache
def parsed(sql: str) -> Filter:
    return Filter(sql)


def selects(row: SubscribedRow, event: PublishedRow) -> bool:
    if row.topics and not any(TopicPattern(pattern).matches(event.topic) for pattern in row.topics):
        return False
    values = {name: attribute_value(text) for name, text in event.attributes} | {"topic": event.topic}
    return row.filter is None or parsed(row.filter).matches(values)


def is_owed(row: SubscribedRow, event: PublishedRow) -> bool:
    if row.accepted_ns is None or not row.accepted_ns <= event.at_ns:
        return False
    return (row.cancelled_ns is None or event.at_ns < row.cancelled_ns) and selects(row, event)


def events_of(published: list[PublishedRow]) -> dict[str, PublishedRow]:
    """Each event with its first row, in the order of publication."""
    first: dict[str, PublishedRow] = {}
    for row in published:
        first.setdefault(row.event_id, row)
    return {row.event_id: row for row in sorted(first.values(), key=lambda row: row.at_ns)}


def seen_by(rows: Rows) -> dict[str, list[str]]:
    """What each subscriber saw that promises of order are about."""
    published, _, delivered = rows
    known = events_of(published)
    seen: dict[str, list[str]] = {}
    for row in sorted(delivered, key=lambda row: row.position):
        events = seen.setdefault(row.subscriber, [])
        if row.event_id in known and not row.out_of_order and row.event_id not in events:
            events.append(row.event_id)
    return seen


def exactly_once_twin(rows: Rows) -> int:
    published, subscribed, delivered = rows
    known = events_of(published)
    made = {(row.subscriber, row.subscription): row for row in subscribed}
    count = len(published) - len(known)
    times: dict[tuple[str, str, str], int] = {}
    for row in delivered:
        event, asked = known.get(row.event_id), made.get((row.subscriber, row.subscription))
        count += (event is None) + (asked is None)
        count += event is not None and row.at_ns < event.at_ns
        if asked is not None:
            count += row.at_ns < asked.requested_ns
        if event is not None and asked is not None:
            count += not selects(asked, event)
            count += asked.cancelled_ns is not None and event.at_ns > asked.cancelled_ns
            key = (row.subscriber, row.subscription, row.event_id)
            times[key] = times.get(key, 0) + 1
    count += sum(number - 1 for number in times.values())
    for subscriber in {row.subscriber for row in delivered}:
        positions = sorted(row.position for row in delivered if row.subscriber == subscriber)
        count += sum(after != before + 1 for before, after in zip([-1, *positions], positions, strict=False))
    return count


def fifo_twin(rows: Rows) -> int:
    known = events_of(rows[0])

    def after_one_as_high(seen: list[str], place: int) -> bool:
        late = known[seen[place]]
        return any(
            known[event].source == late.source and known[event].sequence >= late.sequence
            for event in seen[:place]
        )

    return sum(
        after_one_as_high(seen, place) for seen in seen_by(rows).values() for place in range(len(seen))
    )


def total_order_twin(rows: Rows) -> int:
    seen = seen_by(rows)

    def disagree(one: list[str], other: list[str]) -> bool:
        shared = [event for event in one if event in other]
        return any(other.index(a) > other.index(b) for a, b in combinations(shared, 2))

    return sum(disagree(seen[one], seen[other]) for one, other in combinations(sorted(seen), 2))


def pasts(rows: Rows) -> dict[str, set[str]]:
    """The past of every event, by closing the direct dependencies until nothing changes."""
    published, _, delivered = rows
    events = list(events_of(published).values())
    past: dict[str, set[str]] = {event.event_id: set() for event in events}
    for early, late in combinations(events, 2):
        told = any(
            row.event_id == early.event_id and row.subscriber == late.source and row.at_ns <= late.at_ns
            for row in delivered
        )
        if early.source == late.source or told:
            past[late.event_id].add(early.event_id)
    changed = True
    while changed:
        changed = False
        for causes in past.values():
            more = set().union(*(past[cause] for cause in causes)) - causes
            changed = changed or bool(more)
            causes |= more
    return past


def causal_order_twin(rows: Rows) -> int:
    past = pasts(rows)
    return sum(
        any(late in past[early] for early in seen[:place])
        for seen in seen_by(rows).values()
        for place, late in enumerate(seen)
    )


def missing_twin(rows: Rows, strict_end: bool = False) -> Iterator[tuple[SubscribedRow, PublishedRow]]:
    """What was owed, did not come, and is not excused."""
    published, subscribed, delivered = rows
    events = list(events_of(published).values())
    for asked in subscribed:
        name = (asked.subscriber, asked.subscription)
        came = {row.event_id for row in delivered if (row.subscriber, row.subscription) == name}
        for number, event in enumerate(events):
            overtaken = any(
                later.source == event.source
                and later.event_id in came
                and (asked.order not in ("causal", "total") or later.topic == event.topic)
                for later in events[number + 1 :]
            )
            excused = asked.cancelled_ns is not None and not overtaken and not strict_end
            if (
                is_owed(asked, event)
                and event.event_id not in came
                and not excused
                and event.expires_ns is None
            ):
                yield asked, event


def expired_twin(rows: Rows) -> int:
    published, subscribed, delivered = rows
    got = {(row.subscriber, row.subscription, row.event_id) for row in delivered}
    return sum(
        is_owed(asked, event) and (asked.subscriber, asked.subscription, event.event_id) not in got
        for asked in subscribed
        for event in events_of(published).values()
        if event.expires_ns is not None
    )


def expiry_twin(rows: Rows) -> int:
    known = events_of(rows[0])
    shown = [(row, known[row.event_id].expires_ns) for row in rows[2] if row.event_id in known]
    return sum(expires_ns is not None and row.at_ns > expires_ns for row, expires_ns in shown)


def gap_free_twin(rows: Rows) -> int:
    return len(list(missing_twin(rows)))


# Filters of FILTERS that select the same are one filter, whatever their text.
SAME_FILTER = {"1 < x": "x > 1"}


def agreement_twin(rows: Rows) -> int:
    _, subscribed, delivered = rows
    got = {(row.subscriber, row.subscription, row.event_id) for row in delivered}

    def what(row: SubscribedRow) -> tuple[list[str], str | None]:
        return sorted(row.topics), SAME_FILTER.get(row.filter or "", row.filter)

    return sum(
        any(
            what(other) == what(asked)
            and is_owed(other, event)
            and (other.subscriber, other.subscription, event.event_id) in got
            for other in subscribed
        )
        for asked, event in missing_twin(rows)
    )


TWINS: dict[str, Callable[[Rows], int]] = {
    "exactly_once": exactly_once_twin,
    "fifo": fifo_twin,
    "gap_free": gap_free_twin,
    "total_order": total_order_twin,
    "causal_order": causal_order_twin,
    "agreement": agreement_twin,
    "expiry": expiry_twin,
}


def trace_of(rows: Rows) -> Trace:
    published, subscribed, delivered = rows
    return Trace.from_rows(published=published, subscribed=subscribed, delivered=delivered)


RANDOM = st.randoms(use_true_random=False)


@settings(max_examples=examples(150))
@given(RANDOM)
def test_correct_traces_hold_in_everything(random: Random) -> None:
    rows = correct_rows(random)
    trace = trace_of(rows)
    assert [str(verdict) for verdict in check_all(trace, GUARANTEES) if not verdict.holds] == []
    counted = gap_free(trace, strict_end=True).counts
    assert counted["expected"] == counted["delivered"] == len(rows[2])


@settings(max_examples=examples(300))
@given(RANDOM)
def test_checkers_count_what_their_twins_count(random: Random) -> None:
    rows = broken_rows(random)
    trace = trace_of(rows)
    for verdict in check_all(trace, TWINS):
        assert (verdict.guarantee, verdict.violations) == (verdict.guarantee, TWINS[verdict.guarantee](rows))
        assert verdict.holds == (verdict.violations == 0)
        assert len(verdict.witnesses) == min(verdict.violations, 10)
    strict = gap_free(trace, strict_end=True)
    assert strict.violations == len(list(missing_twin(rows, strict_end=True)))


@settings(max_examples=examples(100))
@given(RANDOM, st.integers(1, 12))
def test_causality_in_blocks_of_columns_is_the_same(random: Random, cells: int) -> None:
    """Vectors are made for a few sources at a time, and followed in steps, where memory is short."""
    rows = broken_rows(random)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(causal, "MAX_CELLS", cells)
        verdict = checkers.causal_order(trace_of(rows))
    assert verdict.violations == causal_order_twin(rows)
    assert len(verdict.witnesses) == min(verdict.violations, 10)


@settings(max_examples=examples(100))
@given(RANDOM)
def test_witnesses_of_order_are_true(random: Random) -> None:
    rows = broken_rows(random)
    seen, past, known = seen_by(rows), pasts(rows), events_of(rows[0])
    trace = trace_of(rows)
    for witness in checkers.causal_order(trace).witnesses:
        (name,), (early, late) = witness.subscribers, witness.events
        assert late in past[early]
        assert seen[name].index(early) < seen[name].index(late)
    for witness in checkers.fifo(trace).witnesses:
        (name,), (early, late) = witness.subscribers, witness.events
        assert known[early].sequence >= known[late].sequence
        assert seen[name].index(early) < seen[name].index(late)
    for witness in checkers.total_order(trace).witnesses:
        (one, other), (a, b) = witness.subscribers, witness.events
        assert seen[one].index(a) < seen[one].index(b)
        assert seen[other].index(b) < seen[other].index(a)


@settings(max_examples=examples(100))
@given(RANDOM)
def test_metrics_count_what_plain_loops_count(random: Random) -> None:
    rows = broken_rows(random)
    published, _, delivered = rows
    known = events_of(published)
    counted = metrics(trace_of(rows))
    latencies = [(row.at_ns - known[row.event_id].at_ns) / 1e6 for row in delivered if row.event_id in known]
    assert counted.published == len(known)
    assert counted.delivered == len(delivered)
    assert (
        counted.expired == gap_free(trace_of(rows), strict_end=True).counts["expired"] == expired_twin(rows)
    )
    assert counted.out_of_order == sum(row.out_of_order for row in delivered)
    missing = counted.expected * (1 - counted.delivery_ratio)
    assert missing == pytest.approx(len(list(missing_twin(rows, strict_end=True))))
    if counted.latency_ms is None:
        assert not latencies
    else:
        assert counted.latency_ms.max == max(latencies)
        assert counted.latency_ms.mean == pytest.approx(sum(latencies) / len(latencies))
