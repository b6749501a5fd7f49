"""When durable subscriptions and groups may end with their leases: each rule broken on purpose in a small trace."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tidings.scenarios.trace.checkers import GUARANTEES, check_all, durable
from tidings.scenarios.trace.reader import Trace
from tidings.scenarios.trace.tables import DeliveredRow, Fault, NodeRow, PublishedRow, SubscribedRow

S = 1_000_000_000
KEEP = 10 * S
Tables = dict[str, list[Any]]


def published(number: int, at: int) -> PublishedRow:
    return PublishedRow(f"p:{number}", "p", number, "/t", (), 1, at, at + 1)


def asked(name: str, requested: int, accepted: int | None, life: str | None, **rest: Any) -> SubscribedRow:
    row = SubscribedRow(name, "x", ["/t"], None, "none", requested, accepted, None, None, "billing")
    return row._replace(life=life, keep_for_ns=KEEP, **rest)


def handed(name: str, position: int, number: int, at: int, done: bool = True) -> DeliveredRow:
    return DeliveredRow(name, "x", position, f"p:{number}", at, done_ns=at + 1 if done else None)


def tables() -> Tables:
    """`a` is done with p:1, leaves with p:2 in its hands, and p:3 waits when the lease is over; `b` begins anew."""
    return {
        "published": [published(n, at * S) for n, at in ((1, 2), (2, 3), (3, 11), (4, 25), (5, 140))],
        "subscribed": [
            asked("a", 0, S, "1", detached_ns=10 * S, cancelled_ns=20 * S),
            asked("b", 130 * S, 131 * S, "2"),
        ],
        "delivered": [
            handed("a", 0, 1, 4 * S),
            handed("a", 1, 2, 5 * S, done=False),
            handed("b", 0, 5, 141 * S),
        ],
        "faults": [],
        "nodes": [
            NodeRow("b0", "broker"),
            NodeRow("a", "subscriber", "b0"),
            NodeRow("b", "subscriber", "b0"),
        ],
    }


def broken(of: Tables) -> dict[str, list[str]]:
    found = check_all(Trace.from_rows(**of), GUARANTEES)
    return {each.guarantee: [str(one) for one in each.witnesses] for each in found if not each.holds}


def change(row: int, table: str = "subscribed", **changes: Any) -> Tables:
    of = tables()
    of[table][row] = of[table][row]._replace(**changes)
    return of


def comes_back(at: int, life: str, **rest: Any) -> Tables:
    """`b` attaches at that time, and is given what it is owed by the first share or as its first event."""
    of = change(1, requested_ns=at, accepted_ns=at + 1, life=life, **rest)
    ended = min(20 * S, at + 1) if life == "2" else None
    of["subscribed"][0] = of["subscribed"][0]._replace(cancelled_ns=ended)
    if life == "2":
        of["delivered"][2:] = [handed("b", 0, 4, 30 * S), handed("b", 1, 5, 141 * S)]
    else:
        more = [
            handed("b", place, number, max(at, 30 * S) + 2 + place) for place, number in enumerate((2, 3, 4))
        ]
        more[0] = more[0]._replace(attempt=2)
        of["delivered"][2:] = [*more, handed("b", 3, 5, 200 * S)]
    return of


def test_what_waited_when_the_lease_was_over_is_lost() -> None:
    of = tables()
    assert broken(of) == {}
    assert durable(Trace.from_rows(**of)).counts == {"expected": 2, "done": 2, "repeated": 0}


@pytest.mark.parametrize(
    "of",
    [
        lambda: comes_back(15 * S, "1"),
        lambda: comes_back(40 * S, "1"),  # brokers look now and then whether a lease is over
        lambda: change(1, life="1") | {"delivered": comes_back(130 * S, "1")["delivered"], "faults": CRASH},
    ],
    ids=["in time", "just before the broker looked", "the broker was down"],
)
def test_a_share_may_live_on(of: Callable[[], Tables]) -> None:
    rows = of()
    rows["subscribed"][0] = rows["subscribed"][0]._replace(cancelled_ns=None)
    assert broken(rows) == {}


def with_an_old_event() -> Tables:
    of = tables()
    of["delivered"][2:] = [handed("b", 0, 3, 141 * S), handed("b", 1, 5, 142 * S)]
    return of


CRASH = [Fault("crash", "b0", 12 * S, 120 * S)]


@pytest.mark.parametrize(
    ("of", "text"),
    [
        (lambda: comes_back(19 * S, "2"), "(life 1, kept for 10 s) ended although its lease was not over"),
        (lambda: change(0, detached_ns=None, cancelled_ns=131 * S), "ended although its lease was not over"),
        (lambda: change(0, keep_for_ns=None), "kept without a limit) ended although its lease was not over"),
        (lambda: comes_back(130 * S, "1"), "was attached to after its lease was over: see b/x"),
        (
            lambda: (
                tables()
                | {
                    "subscribed": [
                        *tables()["subscribed"],
                        asked("a", 132 * S, 133 * S, "1", subscription="y"),
                    ]
                }
            ),
            "was attached to after its lease was over: see a/y",
        ),
        (
            with_an_old_event,
            "p:3 of durable billing, at position 0 of subscriber b, was kept by",
        ),
    ],
    ids=["too early", "while attached", "without a lease", "never", "risen", "kept"],
)
def test_a_lease_that_is_not_kept(of: Callable[[], Tables], text: str) -> None:
    found = broken(of())
    assert [*found] == ["durable"], found
    assert any(text in one for one in found["durable"]), found


@pytest.mark.parametrize(
    ("fault", "excuses"),
    [
        (Fault("crash", "b0", 100 * S, 115 * S), True),
        (Fault("pause", "a", 100 * S, 125 * S), True),
        (Fault("pause", "b", 100 * S, 125 * S), False),
        (Fault("partition", "b0|b1", 100 * S, 112 * S), True),
        (Fault("partition", "b0|b1", 50 * S, 60 * S), False),
        (Fault("loss", "*", 122 * S, 125 * S), False),
    ],
    ids=str,
)
def test_a_fault_may_keep_a_client_from_its_broker(fault: Fault, excuses: bool) -> None:
    """`a` never left, and is told of a new share. That may be if it could not be reached for as long as a lease."""
    of = change(0, detached_ns=131 * S, cancelled_ns=131 * S)
    of["published"][3:4], of["faults"] = [], [fault]
    of["delivered"].append(handed("a", 2, 3, 12 * S))
    assert (broken(of) == {}) == excuses


def test_lives_that_overlap_in_their_requests() -> None:
    """Who asked before the end and was attached after it belongs to the next share; who never was owns nothing."""
    of = tables()
    of["subscribed"][1] = of["subscribed"][1]._replace(requested_ns=9 * S)
    of["subscribed"].append(asked("c", 5 * S, None, None, detached_ns=6 * S))
    assert broken(of) == {}
    shares = Trace.from_rows(**of).coded.subscriptions.shares
    assert shares.account.tolist() == [0, 1, 1]
    assert (shares.next.tolist(), shares.over.tolist()) == ([1, -1, -1], [True, False, False])
