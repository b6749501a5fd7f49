"""Durable subscriptions, groups and starts, each promise broken on purpose in a small correct trace."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from shared_traces import Rows
from tidings.scenarios.trace.checkers import (
    GUARANTEES,
    Verdict,
    check_all,
    durable,
    fifo,
    gap_free,
    group,
    promised,
    promised_checks,
    run_check,
    seam,
)
from tidings.scenarios.trace.metrics import metrics
from tidings.scenarios.trace.reader import Trace
from tidings.scenarios.trace.tables import DeliveredRow, Fault, NodeRow, PublishedRow, SubscribedRow

Make = Rows | Callable[[], Rows]


def published(*keys: str) -> list[PublishedRow]:
    """Events p:1, p:2, ... at 10, 20, ..., confirmed, with these values of k."""
    return [
        PublishedRow(f"p:{n}", "p", n, "/t", [("k", key)], 1, 10 * n, 10 * n + 1)
        for n, key in enumerate(keys, 1)
    ]


def handed(
    subscriber: str, position: int, number: int, at: int, attempt: int = 1, done: int | None = None
) -> DeliveredRow:
    return DeliveredRow(subscriber, "x", position, f"p:{number}", at, attempt=attempt, done_ns=done)


def durable_rows() -> Rows:
    """`a` is done with p:1, dies with p:2 and p:3 in its hands (p:4 was under way), and `b` goes on."""
    return Rows(
        published(*"00000"),
        [
            SubscribedRow("a", "x", ["/t"], None, "fifo", 0, 1, None, None, "billing", detached_ns=45),
            SubscribedRow("b", "x", ["/t"], None, "fifo", 44, 46, None, None, "billing"),
        ],
        [
            handed("a", 0, 1, 11, done=12),
            handed("a", 1, 2, 21),
            handed("a", 2, 3, 31),
            handed("b", 0, 2, 47, 2, done=48),
            handed("b", 1, 3, 48, 2, done=49),
            handed("b", 2, 4, 49, 2, done=50),
            handed("b", 3, 5, 51, 1, done=52),
        ],
    )


def group_rows() -> Rows:
    """By value: "0" goes to `a`, "1" to `b`; `a` dies with p:3 in its hands, which comes to `b` before p:5."""
    asked = (["/t"], None, "none")
    return Rows(
        published(*"01010"),
        [
            SubscribedRow("a", "x", *asked, 0, 1, None, "workers", None, "k", detached_ns=45),
            SubscribedRow("b", "x", *asked, 0, 2, None, "workers", None, "k"),
        ],
        [
            handed("a", 0, 1, 11, done=12),
            handed("b", 0, 2, 21, done=22),
            handed("a", 1, 3, 31),
            handed("b", 1, 4, 41, done=42),
            handed("b", 2, 3, 46, 2, done=47),
            handed("b", 3, 5, 51, done=52),
        ],
    )


def seam_rows() -> Rows:
    """History from p:2 on, accepted at 35, then live events."""
    return Rows(
        published(*"00000"),
        [SubscribedRow("a", "x", ["/t"], None, "none", 33, 35, start="earliest")],
        [handed("a", position, position + 2, 60 + position) for position in range(4)],
    )


def share_seam_rows(**names: str) -> Rows:
    """History from p:2 on, accepted at 35, then live events: `a` dies with p:3 in its hands, which `b` gets."""
    kept = {"durable": "billing"} | names
    asked = SubscribedRow("a", "x", ["/t"], None, "none", 33, 35, start="earliest")._replace(**kept)
    return Rows(
        published(*"00000"),
        [
            asked._replace(detached_ns=62),
            asked._replace(subscriber="b", requested_ns=63, accepted_ns=64),
        ],
        [
            handed("a", 0, 2, 60, done=60),
            handed("a", 1, 3, 61),
            *(
                handed("b", place, place + 3, 65 + place, 2 - (place > 0), done=65 + place)
                for place in range(3)
            ),
        ],
    )


def broken(rows: Rows) -> dict[str, int]:
    return {
        found.guarantee: found.violations for found in check_all(rows.trace(), GUARANTEES) if not found.holds
    }


def change(make: Make, place: int, **changes: object) -> Rows:
    rows = make() if callable(make) else make
    rows.delivered[place] = rows.delivered[place]._replace(**changes)
    return rows


def change_asked(make: Make, place: int, **changes: object) -> Rows:
    rows = make() if callable(make) else make
    rows.subscribed[place] = rows.subscribed[place]._replace(**changes)
    return rows


def add(make: Make, *more: DeliveredRow) -> Rows:
    rows = make() if callable(make) else make
    rows.delivered += more
    return rows


def drop(make: Make, *places: int) -> Rows:
    """Without these deliveries; positions close up."""
    rows = make() if callable(make) else make
    rows.delivered = [row for place, row in enumerate(rows.delivered) if place not in places]
    seen: dict[str, int] = {}
    for place, row in enumerate(rows.delivered):
        rows.delivered[place] = row._replace(position=seen.setdefault(row.subscriber, 0))
        seen[row.subscriber] += 1
    return rows


def group_seam_rows() -> Rows:
    return share_seam_rows(durable=None, share_of="workers")  # type: ignore[arg-type]


@pytest.mark.parametrize("make", [durable_rows, group_rows, seam_rows, share_seam_rows, group_seam_rows])
def test_the_correct_traces_hold_in_everything(make: Callable[[], Rows]) -> None:
    assert broken(make()) == {}


def test_what_is_counted() -> None:
    assert durable(durable_rows().trace()).counts == {"expected": 5, "done": 5, "repeated": 3}
    assert group(group_rows().trace()).counts == {"expected": 5, "done": 5, "repeated": 1}
    found = metrics(durable_rows().trace())
    assert (found.delivered, found.expected, found.delivery_ratio, found.duplicates) == (7, 5, 1.0, 0)
    assert found.latency_ms is not None
    assert found.latency_ms.max == 1e-6, "repetitions have no latency"


@pytest.mark.parametrize(
    ("rows", "found", "text"),
    [
        # Lost: never delivered, never done, the end of the stream.
        (
            lambda: drop(durable_rows, 6),
            {"durable": 1, "gap_free": 1},
            "p:5 of durable billing was never done: never",
        ),
        (
            lambda: drop(durable_rows, 5),
            {"durable": 1, "gap_free": 1},
            "p:4 of durable billing was never done",
        ),
        (lambda: change(durable_rows, 6, done_ns=None), {"durable": 1}, "was never done: delivered to b"),
        (
            lambda: drop(durable_rows, 3),
            {"durable": 1},
            "p:2 of durable billing was never done: delivered to a",
        ),
        # Done twice.
        (
            lambda: change(durable_rows, 1, done_ns=22),
            {"durable": 1},
            "p:2, attempt 2 of durable billing, at ",
        ),
        # Unmarked, or marked with a number that was used before.
        (lambda: change(durable_rows, 3, attempt=1), {"durable": 1, "exactly_once": 1}, "without a mark"),
        (
            lambda: add(durable_rows, handed("b", 4, 5, 53, 1)),
            {"durable": 2, "exactly_once": 1},
            "without a mark",
        ),
        # Again although it was done.
        (lambda: add(durable_rows, handed("b", 4, 5, 53, 2)), {"durable": 1}, "again although it was done"),
        # Attempts to one client count up.
        (
            lambda: add(drop(durable_rows, 6), handed("b", 3, 5, 51, 2), handed("b", 4, 5, 53, 1, done=54)),
            {"durable": 2},
            "after a later attempt to the same client",
        ),
        (lambda: change(durable_rows, 6, attempt=0), {"durable": 1}, "attempt below 1"),
        (lambda: change(durable_rows, 6, done_ns=50), {"durable": 1}, "before it was delivered"),
        # Out of order across attachments: b begins with what came last.
        (
            lambda: change(change_positions(durable_rows, 5, 6), 5, at_ns=52, done_ns=53),
            {"fifo": 1, "causal_order": 1},
            "durable billing shows p:5 to b, then p:4 to b",
        ),
    ],
)
def test_a_durable_subscription(rows: Callable[[], Rows], found: dict[str, int], text: str) -> None:
    check_found(rows(), found, text)


def change_positions(make: Make, one: int, other: int) -> Rows:
    rows = make() if callable(make) else make
    mine = rows.delivered
    positions = mine[one].position, mine[other].position
    mine[other] = mine[other]._replace(position=positions[0])
    mine[one] = mine[one]._replace(position=positions[1])
    return rows


@pytest.mark.parametrize(
    ("rows", "found", "text"),
    [
        (lambda: drop(group_rows, 3), {"group": 1, "gap_free": 1}, "p:4 of group workers was never done"),
        (lambda: change(group_rows, 2, done_ns=32), {"group": 1}, "is done again"),
        (lambda: change(group_rows, 4, done_ns=None), {"group": 1}, "never done: delivered to a, b"),
        # Two members see one event: unmarked, after it was done, done by both.
        (lambda: add(group_rows, handed("a", 2, 4, 43)), {"group": 2, "exactly_once": 1}, "without a mark"),
        (lambda: add(group_rows, handed("a", 2, 4, 43, 2)), {"group": 1}, "again although it was done"),
        (lambda: add(group_rows, handed("a", 2, 4, 43, 2, done=44)), {"group": 1}, "is done again"),
        # Values out of order: at one member, and between members.
        (
            lambda: change_positions(group_rows, 4, 5),
            {"group": 1},
            "after a later one of its source with the same",
        ),
    ],
)
def test_a_group(rows: Callable[[], Rows], found: dict[str, int], text: str) -> None:
    check_found(rows(), found, text)


def found_when_calm(rows: Rows) -> list[str]:
    """Return what is found in a run in which only clients fail, and only there."""
    trace = rows.trace()
    asked = promised_checks(
        trace.coded.subscriptions.order, "guaranteed", shares=trace.coded.subscriptions.shares, calm=True
    )
    for check in asked:
        assert run_check(trace, check._replace(calm=False)).holds, check
    return [str(witness) for check in asked for witness in run_check(trace, check).witnesses]


@pytest.mark.parametrize("make", [durable_rows, group_rows])
def test_what_comes_again_was_held_by_somebody_who_left(make: Callable[[], Rows]) -> None:
    assert found_when_calm(make()) == []
    # Nobody had left yet when it came again.
    (late,) = [row.at_ns for row in make().delivered if row.attempt == 2][:1]
    assert found_when_calm(change_asked(make, 0, detached_ns=late)) == []
    said = found_when_calm(change_asked(make, 0, detached_ns=late + 1))
    assert "comes again although its holder before had not gone away" in said[0]
    assert "is marked although too few holders went away" in said[1]


def test_two_members_have_an_event_though_the_first_is_still_there() -> None:
    """Somebody else has left meanwhile, which explains the mark but not the second holder."""
    rows = change_asked(group_rows, 0, detached_ns=None)
    rows.subscribed.append(rows.subscribed[0]._replace(subscriber="c", detached_ns=5))
    (said,) = found_when_calm(rows)
    assert "p:3, attempt 2 of group workers, at position 2 of subscriber b, comes again" in said


@pytest.mark.parametrize("make", [durable_rows, group_rows])
def test_a_second_attempt_without_a_first_one(make: Callable[[], Rows]) -> None:
    """One that somebody held unseen who has left is right; a third one needs two who left."""
    last = len(make().delivered) - 1
    assert found_when_calm(change(make, last, attempt=2)) == []
    (said,) = found_when_calm(change(make, last, attempt=3))
    assert "p:5, attempt 3 of" in said and "is marked although too few holders went away" in said
    if make is group_rows:
        nobody_left = change_asked(drop(change(make, 2, done_ns=32), 4), 0, detached_ns=None)
        assert found_when_calm(nobody_left) == []
        (said,) = found_when_calm(change(lambda: nobody_left, 4, attempt=2))
        assert "is marked although too few holders went away" in said


def check_found(rows: Rows, found: dict[str, int], text: str) -> None:
    assert broken(rows) == found
    said = [str(witness) for verdict in check_all(rows.trace(), found) for witness in verdict.witnesses]
    assert any(text in one for one in said), said


def test_a_value_that_moves_before_it_is_done() -> None:
    """`a` has p:3 and is still there; p:5, which has its value, is given to `b` and p:3 comes to `b` after that."""
    rows = group_rows()
    rows.delivered[4] = handed("b", 3, 3, 53, 2, done=54)
    rows.delivered[5] = handed("b", 2, 5, 51, done=52)
    assert broken(rows) == {"group": 1}
    rows.subscribed.append(rows.subscribed[1]._replace(subscriber="c"))
    rows.delivered[4] = handed("c", 0, 3, 53, 2, done=54)
    rows.delivered[5] = handed("b", 2, 5, 51, done=52)
    assert broken(rows) == {"group": 1}
    # It may be so if b was shown p:3 first, and finished p:5 before it went.
    rows.delivered[5] = handed("b", 3, 5, 51, done=52)
    rows.delivered.append(handed("b", 2, 3, 46, 2))
    rows.delivered[4] = handed("c", 0, 3, 53, 3, done=54)
    assert broken(rows) == {}


def test_groups_without_values_have_no_order() -> None:
    rows = group_rows()
    rows.subscribed = [row._replace(group_by=None) for row in rows.subscribed]
    rows.delivered[4], rows.delivered[5] = (
        rows.delivered[4]._replace(position=3),
        rows.delivered[5]._replace(position=2),
    )
    assert broken(rows) == {}


@pytest.mark.parametrize(
    ("rows", "found", "text"),
    [
        (
            lambda: drop(seam_rows, 1),
            {"seam": 1},
            "p:3, selected by subscription a/x, is missing between history",
        ),
        (lambda: drop(seam_rows, 2), {"seam": 1, "gap_free": 1}, "p:4"),
        (lambda: drop(seam_rows, 1, 2, 3), {"seam": 1, "gap_free": 2}, "p:3"),
        (lambda: add(seam_rows, handed("a", 4, 3, 70)), {"seam": 1, "exactly_once": 1}, "again at the seam"),
        (lambda: drop(share_seam_rows, 1, 2), {"seam": 1}, "p:3, selected by durable billing, is missing"),
        (lambda: drop(share_seam_rows, 2), {"seam": 1}, "p:3"),
        (lambda: drop(share_seam_rows, 3), {"seam": 1, "durable": 1, "gap_free": 1}, "p:4"),
        (lambda: drop(group_seam_rows, 1, 2), {"seam": 1}, "p:3, selected by group workers, is missing"),
        (
            lambda: add(share_seam_rows, handed("b", 3, 2, 70, done=70)),
            {"seam": 1, "exactly_once": 1, "durable": 2},
            "again at the seam",
        ),
    ],
)
def test_a_seam(rows: Callable[[], Rows], found: dict[str, int], text: str) -> None:
    check_found(rows(), found, text)


def test_where_history_begins() -> None:
    assert seam(seam_rows().trace()).holds, "the archive may begin with p:2"
    assert seam(seam_rows().trace(), whole=True).violations == 1
    live = drop(seam_rows, 0, 1)
    assert (seam(live.trace()).violations, seam(live.trace(), whole=True).violations) == (0, 3)
    assert promised(change_asked(seam_rows, 0, start="new").trace()) == ["exactly_once"]


def test_the_last_of_each_topic_is_a_history_without_what_came_before() -> None:
    rows = seam_rows()
    rows.published = [row._replace(topic=f"/t/{row.sequence % 2}") for row in rows.published]
    rows.subscribed = [rows.subscribed[0]._replace(topics=["/t/**"], start="last")]
    rows.delivered = rows.delivered[0:1] + rows.delivered[2:]
    rows.delivered = [row._replace(position=place) for place, row in enumerate(rows.delivered)]
    assert seam(rows.trace()).holds
    rows.subscribed = [rows.subscribed[0]._replace(start="earliest")]
    assert seam(rows.trace()).violations == 1


def test_what_comes_again_comes_in_the_old_order() -> None:
    """`b` has p:2, p:3 and p:4 again, then p:5, which is new."""
    swapped = change_positions(durable_rows, 3, 4)
    check_found(
        swapped,
        {"durable": 1},
        "p:2, attempt 2 of durable billing, at position 1 of subscriber b, comes again",
    )
    last = durable_rows()
    last.delivered[3] = last.delivered[3]._replace(position=3)
    last.delivered[4:] = [row._replace(position=row.position - 1) for row in last.delivered[4:]]
    check_found(
        last, {"durable": 1}, "p:2, attempt 2 of durable billing, at position 3 of subscriber b, comes again"
    )
    for order, found in (("causal", {"durable": 1}), ("total", {"durable": 1}), ("none", {})):
        last.subscribed = [row._replace(order=order) for row in last.subscribed]
        assert broken(last) == found
    last.subscribed = [row._replace(order="total", topics=["/**"]) for row in last.subscribed]
    last.published[1] = last.published[1]._replace(topic="/u")
    assert broken(last) == {}, "an order across publishers has a source's order on each topic"
    last.subscribed = [row._replace(order="fifo") for row in last.subscribed]
    assert broken(last) == {"durable": 1}


def test_what_somebody_gave_back_comes_again_to_itself_later() -> None:
    """`b` gives p:2 back once more. It called back p:3, which `b` had seen already."""
    rows = durable_rows()
    rows.delivered[3] = rows.delivered[3]._replace(done_ns=None)
    rows.delivered[4] = rows.delivered[4]._replace(done_ns=None)
    rows.delivered[5:] = [handed("b", 2, 2, 49, 3, done=49), handed("b", 3, 3, 49, 3, done=50)]
    rows.delivered += [handed("b", 4, 4, 51, 2, done=51), handed("b", 5, 5, 52, 1, done=52)]
    assert broken(rows) == {}


def standby_rows() -> Rows:
    """`b` asks while `a` holds the name and waits; `c`, which asks later, is accepted before it."""
    rows = durable_rows()
    a, b = rows.subscribed
    rows.subscribed = [
        a._replace(detached_ns=20),
        b._replace(requested_ns=3, accepted_ns=46),
        a._replace(subscriber="c", requested_ns=21, accepted_ns=22, detached_ns=45),
    ]
    rows.delivered = [
        handed("a", 0, 1, 11, done=12),
        handed("c", 0, 2, 23, done=24),
        handed("c", 1, 3, 31, done=32),
        handed("b", 0, 4, 49, done=50),
        handed("b", 1, 5, 51, done=52),
    ]
    return rows


def test_holders_follow_each_other_as_they_show_events() -> None:
    assert broken(standby_rows()) == {}
    swapped = standby_rows()
    swapped.delivered[1], swapped.delivered[3] = (
        handed("c", 0, 4, 42, done=43),
        handed("b", 0, 2, 49, done=50),
    )
    assert broken(change_positions(lambda: swapped, 1, 2)) == {"fifo": 1, "causal_order": 1}


def test_who_was_refused_says_nothing_about_the_subscription() -> None:
    """`x` asked first, for other topics and with a start, and was never accepted."""
    rows = durable_rows()
    refused = rows.subscribed[0]._replace(
        subscriber="x", topics=["/u"], order="none", start="earliest", accepted_ns=None, detached_ns=2
    )
    rows.subscribed.insert(0, refused)
    rows.published.append(PublishedRow("p:6", "p", 6, "/u", [], 1, 60, 61))
    assert broken(rows) == {}
    assert durable(rows.trace()).counts["expected"] == 5
    assert broken(drop(lambda: rows, 6)) == {"durable": 1, "gap_free": 1}


@pytest.mark.parametrize("until", [None, 70])
def test_who_crashed_for_good_is_gone(until: int | None) -> None:
    """The trace need not say that it was detached. Whoever comes back is to go on."""
    rows = change_asked(durable_rows, 1, detached_ns=None)
    rows.delivered = rows.delivered[:5]
    rows.delivered[4] = rows.delivered[4]._replace(done_ns=None)
    tables = {"published": rows.published, "subscribed": rows.subscribed, "delivered": rows.delivered}
    trace = Trace.from_rows(
        **tables, faults=[Fault("crash", "b", 50, until)], nodes=[NodeRow("b", "subscriber", "b0")]
    )
    found = {verdict.guarantee for verdict in check_all(trace, GUARANTEES) if not verdict.holds}
    assert found == (set() if until is None else {"durable", "gap_free"})


def test_a_group_is_grouped_as_its_first_member_says() -> None:
    late = change_positions(group_rows, 4, 5)
    assert broken(change_asked(lambda: late, 1, group_by=None)) == {"group": 1}


def test_an_overtaken_event_is_found_however_far_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidings.scenarios.trace.checkers.by_value.NEAR", 1)
    rows = group_rows()
    rows.published = published(*"0" * 40)
    rows.subscribed[0] = rows.subscribed[0]._replace(detached_ns=None)
    # a is done with p:40 first, then b with all others, which it gets in order.
    rows.delivered = [handed("a", 0, 40, 1_000, done=1_001)]
    rows.delivered += [handed("b", number - 1, number, 1_001 + number, done=1_100) for number in range(1, 40)]
    assert broken(rows) == {"group": 39}


def test_who_nobody_is_attached_to_may_wait() -> None:
    """What was delivered and not done waits, and so does what follows; what was left out between does not."""
    left = change_asked(durable_rows, 1, detached_ns=60)
    left.delivered = left.delivered[:5]
    left.delivered[4] = left.delivered[4]._replace(done_ns=None)
    assert broken(left) == {}
    del left.delivered[4], left.delivered[2]
    left.delivered.append(handed("b", 1, 4, 49, 1, done=50))
    assert broken(left) == {"durable": 1, "gap_free": 1}
    assert durable(left.trace(), complete=False).holds
    idle = change_asked(group_rows, 1, detached_ns=60)
    idle.delivered = idle.delivered[:4]
    assert broken(idle) == {}
    assert broken(change_asked(lambda: idle, 1, detached_ns=None)) == {"group": 2, "gap_free": 1}


def test_a_name_that_is_used_again_after_it_was_cancelled() -> None:
    rows = durable_rows()
    rows.subscribed = [
        rows.subscribed[0]._replace(detached_ns=None, cancelled_ns=34),
        rows.subscribed[1]._replace(requested_ns=44, accepted_ns=46),
    ]
    rows.delivered = [*rows.delivered[:3], handed("b", 0, 5, 51, done=52)]
    assert broken(rows) == {}, "p:4 belongs to none, p:2 and p:3 were dropped with the first"
    rows.delivered.pop()
    assert broken(rows) == {"durable": 1, "gap_free": 1}
    assert [verdict.counts["expected"] for verdict in (durable(rows.trace()), gap_free(rows.trace()))] == [
        2,
        4,
    ]


def test_what_was_not_confirmed_to_a_killed_publisher_may_be_lost() -> None:
    rows = drop(durable_rows, 6)
    rows.published[4] = rows.published[4]._replace(confirmed_ns=None)
    assert durable(rows.trace()).violations == 1
    assert durable(rows.trace(), confirmed_only=True).holds


def test_what_had_an_expiry_may_be_left_out() -> None:
    """The column is read if the trace has it."""
    import pyarrow as pa

    rows = drop(durable_rows, 6)
    trace = rows.trace()
    expiry = pa.array([None, None, None, None, 55], pa.int64())
    table = trace.published
    if "expires_ns" in table.column_names:
        table = table.drop_columns(["expires_ns"])
    changed = type(trace)(
        table.append_column("expires_ns", expiry),
        *(getattr(trace, name) for name in ("subscribed", "delivered", "traffic", "faults", "nodes")),
    )
    assert durable(trace).violations == gap_free(trace).violations == 1
    assert durable(changed).holds
    assert [gap_free(changed).counts[name] for name in ("expected", "delivered")] == [4, 4]
    assert metrics(changed).delivery_ratio == 1.0


def test_what_is_promised_depends_on_mode_and_subscriptions() -> None:
    def checks(rows: Rows, mode: str | None) -> list[Verdict]:
        trace = rows.trace()
        found = promised_checks(
            trace.coded.subscriptions.order, mode, shares=trace.coded.subscriptions.shares
        )
        return [run_check(trace, check) for check in found]

    assert promised(durable_rows().trace()) == ["exactly_once", "fifo", "durable"]
    assert promised(group_rows().trace()) == ["exactly_once", "group"]
    assert promised(seam_rows().trace()) == ["exactly_once", "seam"]
    lost = drop(group_rows, 3)
    assert all(found.holds for found in checks(lost, "best-effort")), "groups are without guarantee there"
    assert [found.guarantee for found in checks(lost, "guaranteed") if not found.holds] == [
        "gap_free",
        "group",
    ]


def test_one_subscriber_may_have_several() -> None:
    """The order of a durable subscription is its own: a backlog comes after newer events of others."""
    rows = durable_rows()
    rows.subscribed.append(SubscribedRow("b", "y", ["/t"], None, "fifo", 0, 1))
    live = [DeliveredRow("b", "y", place, f"p:{place + 1}", 10 * place + 11) for place in range(5)]
    rows.delivered = [
        row._replace(position=row.position + 5) if row.subscriber == "b" else row for row in rows.delivered
    ]
    rows.delivered += live
    assert broken(rows) == {}
    assert fifo(rows.trace()).holds


# --- Networks without a guarantee: one member for each event, unless members change


def unkept_rows() -> Rows:
    """Two members from the start; `c` joins from 500 s to 501 s."""
    second = 1_000_000_000
    asked = (["/t"], None, "none")
    return Rows(
        [
            PublishedRow(f"p:{n}", "p", n, "/t", [("k", "01"[n % 2])], 1, at * second, at * second + 1)
            for n, at in enumerate((100, 110, 120, 130, 499), 1)
        ],
        [
            SubscribedRow("a", "x", *asked, 0, 1, None, "workers", None, "k"),
            SubscribedRow("b", "x", *asked, 0, 2, None, "workers", None, "k"),
            SubscribedRow("c", "x", *asked, 500 * second, 501 * second, None, "workers", None, "k"),
        ],
        [
            handed(member, position, number, at * second, done=at * second + 1)
            for member, position, number, at in (
                ("a", 0, 1, 101),
                ("b", 0, 2, 111),
                ("a", 1, 3, 121),
                ("b", 1, 4, 131),
                ("a", 2, 5, 502),
            )
        ],
    )


def unkept(rows: Rows, *, fails: bool = False, loses: bool = False) -> dict[str, str]:
    """Return what the promised checks of a best-effort run find."""
    trace = rows.trace()
    shares = trace.coded.subscriptions.shares
    checks = promised_checks(
        trace.coded.subscriptions.order, "best-effort", shares=shares, fails=fails, loses=loses
    )
    found = [run_check(trace, check) for check in checks]
    return {verdict.guarantee: str(verdict) for verdict in found if not verdict.holds}


def second_row(number: int, member: str, position: int, at_s: int) -> DeliveredRow:
    return handed(member, position, number, at_s * 1_000_000_000, done=at_s * 1_000_000_000 + 1)


def test_a_correct_run_without_a_guarantee() -> None:
    assert unkept(unkept_rows()) == {}


def test_two_members_may_have_an_event_only_while_members_change() -> None:
    around = add(unkept_rows, second_row(5, "c", 0, 503))
    assert unkept(around) == {}, "it was under way when c joined"
    steady = add(unkept_rows, second_row(4, "a", 3, 132))
    found = unkept(steady)
    assert found.keys() == {"exactly_once", "group"}
    assert "is a repetition without a mark" in found["group"]
    assert unkept(steady, fails=True) == {}, "brokers may have disagreed"


def test_one_member_never_has_an_event_twice() -> None:
    twice = add(unkept_rows, second_row(4, "b", 2, 132))
    assert unkept(twice).keys() == unkept(twice, fails=True).keys() == {"exactly_once", "group"}


def test_a_value_stays_with_its_member_while_members_stay() -> None:
    moved = change(change(unkept_rows, 3, subscriber="a", position=2), 4, position=3)
    assert "has a value of which another member got events" in unkept(moved)["group"]
    assert unkept(moved, fails=True) == {}
    later = change(unkept_rows, 4, subscriber="b", position=2)
    assert unkept(later) == {}, "members changed"


def test_without_failures_and_loss_everything_arrives() -> None:
    lost = drop(unkept_rows, 3)
    assert "p:4" in unkept(lost)["group"] and "was never done" in unkept(lost)["group"]
    assert unkept(lost, loses=True) == unkept(lost, fails=True) == {}
    assert unkept(drop(unkept_rows, 4)) == {}, "it was under way when c joined"


def ordered_rows() -> Rows:
    """Two sources. `a` sees p:1, q:1, p:2 and dies; `b` gets the last two again, then q:2. `plain` saw all of it."""
    rows = durable_rows()
    asked = (["/t"], None, "total", 0, 1, None, None)
    rows.published = [
        PublishedRow(f"{source}:{n}", source, n, "/t", [("k", "0")], 1, 10 * n, 10 * n + 1)
        for n in (1, 2)
        for source in ("p", "q")
    ]
    rows.subscribed = [
        SubscribedRow("a", "x", *asked, "billing", detached_ns=45),
        SubscribedRow("b", "x", *asked[:3], 44, 46, None, None, "billing"),
        SubscribedRow("plain", "y", *asked),
    ]
    seen = ("p:1", "q:1", "p:2", "q:2")
    again = (("q:1", 2), ("p:2", 2), ("q:2", 1))
    rows.delivered = [
        DeliveredRow("a", "x", place, event, 30 + place, done_ns=40 if place == 0 else None)
        for place, event in enumerate(seen[:3])
    ]
    rows.delivered += [
        DeliveredRow("b", "x", place, event, 50 + place, attempt=attempt, done_ns=60)
        for place, (event, attempt) in enumerate(again)
    ]
    rows.delivered += [DeliveredRow("plain", "y", place, event, 50) for place, event in enumerate(seen)]
    return rows


def test_what_is_delivered_again_does_not_count_for_an_order_across_publishers() -> None:
    verdicts = check_all(ordered_rows().trace())
    assert all(verdict.holds for verdict in verdicts), list(map(str, verdicts))
    assert "total_order" in {verdict.guarantee for verdict in verdicts}


def test_an_order_across_publishers_holds_for_a_durable_subscription_from_one_holder_to_the_next() -> None:
    """To `plain` q:2 came before p:2, of which p:2 was shown to `a` and q:2 to `b`."""
    rows = ordered_rows()
    rows.delivered[-2:] = [
        DeliveredRow("plain", "y", place, event, 50) for place, event in ((2, "q:2"), (3, "p:2"))
    ]
    broken = [verdict for verdict in check_all(rows.trace()) if not verdict.holds]
    assert [verdict.guarantee for verdict in broken] == ["total_order"]
    assert "subscriber durable billing sees p:2" in str(broken[0]) or "plain sees q:2" in str(broken[0])
