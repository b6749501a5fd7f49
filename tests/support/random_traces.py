"""Random traces for audits, written as files in small row groups: correct ones, and ones with planted violations."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pyarrow.parquet as pq

from tidings.scenarios.trace.reader import Trace
from tidings.scenarios.trace.tables import TABLES, DeliveredRow, PublishedRow, SubscribedRow

ORDERS = ("none", "fifo", "causal", "total")
TOPICS = ("/a", "/a/b", "/c")
PATTERNS = (("/a",), ("/a/**",), ("/c", "/a"), ("/a", "/c"), ("/**",), ("/*",))
FILTERS = (None, None, None, "x > 1", "1 < x", "x <= 2")


def random_trace(random: Random, *, broken: bool, events: int = 24, subscribers: int = 7) -> Trace:
    """Events are shown in one order, which is not that of publication, to whoever asked for them.

    Broken: a few rows changed, in any way that a checker is to see.
    """
    published = _publications(random, random.randrange(events + 1))
    subscribed = _subscriptions(random, random.randrange(1, subscribers + 1))
    delivered = _deliveries(random, published, subscribed)
    expiry = Random(str(published))  # of its own: the other draws stay as they are
    if expiry.random() < 0.3:
        published, delivered = _with_expiry(expiry, published, delivered)
    for _ in range(random.randrange(1, 6) if broken else 0):
        if delivered:
            _change_delivery(random, delivered)
        if published and random.random() < 0.2:
            _change_publication(random, published)
    if broken and published and expiry.random() < 0.2:
        row = expiry.randrange(len(published))
        published[row] = published[row]._replace(expires_ns=published[row].at_ns - 1)
    return Trace.from_rows(published=published, subscribed=subscribed, delivered=delivered)


def write_trace(trace: Trace, directory: Path, *, rows_per_group: int = 3) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    for name in TABLES:
        pq.write_table(getattr(trace, name), directory / f"{name}.parquet", row_group_size=rows_per_group)
    return directory


def _publications(random: Random, count: int) -> list[PublishedRow]:
    sequences = dict.fromkeys(("p", "s0", "s1", "s2"), 0)
    at_ns = 10
    rows = []
    for _ in range(count):
        source = random.choice(list(sequences))
        sequences[source] += random.choice((1, 1, 3))
        event_id = f"{source}:{sequences[source]}"
        attributes = [("x", str(random.randrange(4)))]
        confirmed_ns = random.choice((None, at_ns + 1))
        topic = random.choice(TOPICS)
        rows.append(
            PublishedRow(event_id, source, sequences[source], topic, attributes, 1, at_ns, confirmed_ns)
        )
        at_ns += random.choice((0, 1, 10))
    return rows


def _subscriptions(random: Random, subscribers: int) -> list[SubscribedRow]:
    rows = []
    for name in "xy":
        for number in range(subscribers):
            if random.random() < (0.9 if name == "x" else 0.3):
                window = (0, random.choice((0, 0, 0, 30, None)), random.choice((None, None, None, 60)))
                what = (list(random.choice(PATTERNS)), random.choice(FILTERS), random.choice(ORDERS))
                rows.append(SubscribedRow(f"s{number}", name, *what, *window))
    return rows


def _deliveries(
    random: Random, published: list[PublishedRow], subscribed: list[SubscribedRow]
) -> list[DeliveredRow]:
    delay_of = {source: random.choice((0, 0, 5, 25)) for source in ("p", "s0", "s1", "s2")}
    shown = sorted(published, key=lambda row: row.at_ns + delay_of[row.source])
    selected = _selected(published, subscribed)
    positions: dict[str, int] = {}
    rows = []
    for event in shown:
        for asked in subscribed:
            if (asked.subscriber, asked.subscription, event.event_id) in selected:
                position = positions.get(asked.subscriber, 0)
                positions[asked.subscriber] = position + 1
                at_ns = event.at_ns + delay_of[event.source]
                rows.append(
                    DeliveredRow(asked.subscriber, asked.subscription, position, event.event_id, at_ns)
                )
    if random.random() < 0.5:
        random.shuffle(rows)
    return rows


def _selected(published: list[PublishedRow], subscribed: list[SubscribedRow]) -> set[tuple[str, str, str]]:
    """What is owed, by the checkers' own account: here only what they make of it is looked at."""
    from tidings.scenarios.trace.demand import demand

    coded = Trace.from_rows(published=published, subscribed=subscribed).coded
    missing = demand(coded, strict_end=True).missing.tolist()
    pairs = [divmod(key, len(published)) for key in missing]
    return {
        (subscribed[row].subscriber, subscribed[row].subscription, coded.events.name(event))
        for row, event in pairs
    }


def _with_expiry(
    random: Random, published: list[PublishedRow], delivered: list[DeliveredRow]
) -> tuple[list[PublishedRow], list[DeliveredRow]]:
    """Let some events expire, and nobody see them after that."""
    expires = {row.event_id: random.choice((None, None, row.at_ns + 5)) for row in published}
    published = [row._replace(expires_ns=expires[row.event_id]) for row in published]
    positions: dict[str, int] = {}
    shown = []
    for row in sorted(delivered, key=lambda row: row.position):
        if row.at_ns <= (expires[row.event_id] or row.at_ns):
            position = positions[row.subscriber] = positions.get(row.subscriber, -1) + 1
            shown.append(row._replace(position=position))
    return published, shown


def _change_publication(random: Random, rows: list[PublishedRow]) -> None:
    row = random.randrange(len(rows))
    match random.randrange(3):
        case 0:
            rows[row] = rows[row]._replace(at_ns=random.randrange(120))
        case 1:
            rows.append(random.choice(rows))
        case _:
            rows[row] = rows[row]._replace(event_id=random.choice(("q:1", "odd")))


def _change_delivery(random: Random, rows: list[DeliveredRow]) -> None:
    row = random.randrange(len(rows))
    mine = rows[row]
    same = [other for other, delivery in enumerate(rows) if delivery.subscriber == mine.subscriber]
    other = random.choice(same)
    match random.randrange(10):
        case 0 | 1 | 2 | 3:
            rows[row], rows[other] = (
                mine._replace(position=rows[other].position),
                rows[other]._replace(position=mine.position),
            )
        case 4:
            del rows[row]
        case 5:
            rows.append(mine._replace(position=random.randrange(9)))
        case 6:
            rows[row] = mine._replace(event_id=random.choice(("p:1", "s0:1", "s1:1", "unknown:1")))
        case 7:
            rows[row] = mine._replace(subscriber=random.choice(("s0", "s1", "stranger", "guest")))
        case 8:
            rows[row] = mine._replace(subscription=random.choice(("x", "y", "z")))
        case _:
            changes = {"position": random.randrange(-1, 9), "at_ns": random.randrange(90)}
            name = random.choice(("position", "at_ns", "out_of_order"))
            rows[row] = mine._replace(**{name: changes.get(name, True)})
