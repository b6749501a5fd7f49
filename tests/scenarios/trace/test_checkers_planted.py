"""Each guarantee, broken on purpose in a small correct trace: its checker says so, and no other does."""

from collections.abc import Callable, Sequence

import pytest

from tidings.core.errors import TraceError
from tidings.scenarios.trace.checkers import (
    GUARANTEES,
    Verdict,
    agreement,
    causal,
    causal_order,
    check_all,
    exactly_once,
    fifo,
    gap_free,
    promised,
    total_order,
)
from tidings.scenarios.trace.reader import Trace
from tidings.scenarios.trace.tables import DeliveredRow, PublishedRow, SubscribedRow

# p0 and p1 only publish; n also subscribes, so what it publishes depends on what it was notified of.
PUBLISHED = [
    ("p0:0", "/a", 1, 10),
    ("p1:0", "/b", 5, 20),
    ("p0:1", "/a", 7, 30),
    ("n:0", "/b", 2, 40),
    ("p1:1", "/b", 9, 50),
    ("p0:2", "/a", 3, 60),
]
SUBSCRIBED = [
    SubscribedRow("s0", "x", ["/a", "/b"], None, "none", 0, 1),
    SubscribedRow("s1", "x", ["/b", "/a", "/a"], None, "none", 0, 1),
    SubscribedRow("s2", "x", ["/**"], "x > 4", "none", 0, 1),
    SubscribedRow("n", "x", ["/*"], "topic = '/a'", "none", 0, 1),
]
SEEN = {
    "s0": ["p0:0", "p1:0", "p0:1", "n:0", "p1:1", "p0:2"],
    "s1": ["p0:0", "p1:0", "p0:1", "n:0", "p1:1", "p0:2"],
    "s2": ["p1:0", "p0:1", "p1:1"],
    "n": ["p0:0", "p0:1", "p0:2"],
}


def publications(rows: Sequence[tuple[str, str, int, int]] = PUBLISHED) -> list[PublishedRow]:
    return [
        PublishedRow(event, event.split(":")[0], int(event.split(":")[1]), topic, [("x", str(x))], 1, at)
        for event, topic, x, at in rows
    ]


def deliveries(
    seen: dict[str, list[str]], published: Sequence[PublishedRow] | None = None
) -> list[DeliveredRow]:
    """Everyone is notified one nanosecond after publication, in the listed order."""
    at = {row.event_id: row.at_ns for row in published or publications()}
    return [
        DeliveredRow(subscriber, "x", position, event, at.get(event, 0) + 1)
        for subscriber, events in seen.items()
        for position, event in enumerate(events)
    ]


def trace_of(
    seen: dict[str, list[str]] | None = None, *, rows: list[DeliveredRow] | None = None, **tables: object
) -> Trace:
    published = tables.get("published", publications())
    rows = deliveries(seen or SEEN, published) if rows is None else rows
    return Trace.from_rows(
        published=published, subscribed=tables.get("subscribed", SUBSCRIBED), delivered=rows
    )


def broken(trace: Trace) -> dict[str, int]:
    return {v.guarantee: v.violations for v in check_all(trace, GUARANTEES) if not v.holds}


def with_seen(**changes: list[str]) -> Trace:
    return trace_of(SEEN | changes)


def with_row(row: int, **changes: object) -> Trace:
    rows = deliveries(SEEN)
    rows[row] = rows[row]._replace(**changes)
    return trace_of(rows=rows)


def with_subscription(row: int, **changes: object) -> Trace:
    subscribed = list(SUBSCRIBED)
    subscribed[row] = subscribed[row]._replace(**changes)
    return trace_of(subscribed=subscribed)


def test_the_correct_trace_holds_in_everything() -> None:
    verdicts = check_all(trace_of(), GUARANTEES)
    assert [verdict.guarantee for verdict in verdicts] == list(GUARANTEES)
    assert all(verdict.holds and not verdict.witnesses for verdict in verdicts)
    assert gap_free(trace_of()).counts == {"expected": 18, "delivered": 18, "expired": 0}


def test_an_empty_trace_holds_in_everything() -> None:
    assert not broken(Trace.from_rows())
    assert not broken(Trace.from_rows(published=publications()))
    assert broken(Trace.from_rows(subscribed=SUBSCRIBED)) == {}


SWAPPED = ["p1:0", "p0:0", "p0:1", "n:0", "p1:1", "p0:2"]
CAUSE_LATE = ["p0:0", "p1:0", "n:0", "p0:1", "p1:1", "p0:2"]


@pytest.mark.parametrize(
    ("plant", "found"),
    [
        # Exactly once, one rule each.
        (lambda: with_seen(s2=["p1:0", "p0:1", "p1:1", "p1:0"]), {"exactly_once": 1}),
        (lambda: with_seen(s2=["p1:0", "p0:1", "p1:1", "p9:9"]), {"exactly_once": 1}),
        (lambda: with_seen(s2=["p0:0", "p1:0", "p0:1", "p1:1"]), {"exactly_once": 1}),
        (lambda: with_seen(n=["p0:0", "p1:0", "p0:1", "p0:2"]), {"exactly_once": 1}),
        (lambda: with_row(5, at_ns=59), {"exactly_once": 1}),
        (lambda: with_subscription(2, requested_ns=22), {"exactly_once": 1}),
        (lambda: with_subscription(2, cancelled_ns=49), {"exactly_once": 1}),
        (lambda: with_row(14, position=3), {"exactly_once": 1}),
        (lambda: with_row(13, position=0), {"exactly_once": 2}),
        (lambda: with_row(12, subscription="y"), {"exactly_once": 1, "gap_free": 1}),
        (lambda: trace_of(published=[*publications(), publications()[0]]), {"exactly_once": 1}),
        # Order of one source: an event is in the past of the next, so causal order breaks with it.
        (lambda: with_seen(s2=["p1:1", "p0:1", "p1:0"]), {"fifo": 1, "causal_order": 1, "total_order": 2}),
        (lambda: with_seen(s2=["p0:1", "p1:0", "p1:1"]), {"total_order": 2}),
        # What one subscription alone misses, and what its equal got.
        (lambda: with_seen(s2=["p1:0", "p0:1"]), {"gap_free": 1}),
        (lambda: with_seen(s2=[]), {"gap_free": 3}),
        (lambda: with_seen(s1=SEEN["s1"][:-2]), {"gap_free": 2, "agreement": 2}),
        (lambda: with_seen(s0=SEEN["s0"][1:], s1=SEEN["s1"][1:]), {"gap_free": 2}),
        # The same two events in different orders at two subscribers; at both in the other order it is fine.
        (lambda: with_seen(s1=SWAPPED), {"total_order": 1}),
        (lambda: with_seen(s0=SWAPPED, s1=SWAPPED), {}),
        # n was notified of p0:1 before it published n:0.
        (lambda: with_seen(s0=CAUSE_LATE, s1=CAUSE_LATE), {"causal_order": 2}),
    ],
)
def test_the_right_checker_finds_it_and_no_other(plant: Callable[[], Trace], found: dict[str, int]) -> None:
    assert broken(plant()) == found


def test_order_within_a_source_alone() -> None:
    """Nobody else sees the two events, so only what concerns one subscriber breaks."""
    published = publications([*PUBLISHED, ("q:0", "/c", 5, 70), ("q:1", "/c", 6, 80)])
    trace = trace_of(SEEN | {"s2": ["p1:0", "p0:1", "p1:1", "q:1", "q:0"]}, published=published)
    assert broken(trace) == {"fifo": 1, "causal_order": 1}
    (witness,) = fifo(trace).witnesses
    assert (witness.events, witness.subscribers, witness.positions) == (("q:1", "q:0"), ("s2",), (3, 4))
    assert "s2" in str(witness)
    assert "q:1 at position 3, then q:0" in str(witness)


def test_two_events_with_one_sequence_number() -> None:
    twin = PublishedRow("p0:first", "p0", 0, "/c", [("x", "1")], 1, 5)
    trace = trace_of(
        {"s0": ["p0:first", "p0:0"]},
        published=[twin, *publications()],
        subscribed=[SubscribedRow("s0", "x", ["/a", "/c"], None, "fifo", 0, 1, 11)],
    )
    assert broken(trace) == {"exactly_once": 1, "fifo": 1}
    assert str(exactly_once(trace).witnesses[0]) == "event p0:first is not called source:sequence"


def three_topics(seen: dict[str, list[str]]) -> Trace:
    published = publications([("a:0", "/a", 1, 10), ("b:0", "/b", 1, 10), ("c:0", "/c", 1, 10)])
    subscribed = [
        SubscribedRow(name, "x", [f"/{event[0]}" for event in events], None, "total", 0, 1)
        for name, events in seen.items()
    ]
    return trace_of(seen, published=published, subscribed=subscribed)


def test_a_cycle_of_three_without_an_inverted_pair_is_allowed() -> None:
    cycle = {"s0": ["a:0", "b:0"], "s1": ["b:0", "c:0"], "s2": ["c:0", "a:0"]}
    assert broken(three_topics(cycle)) == {}
    inverted = three_topics(cycle | {"s3": ["b:0", "a:0"]})
    assert broken(inverted) == {"total_order": 1}
    (witness,) = total_order(inverted).witnesses
    assert witness.events == ("a:0", "b:0")
    assert witness.subscribers == ("s0", "s3")
    assert witness.positions == (0, 1, 0, 1)


def test_causality_through_a_chain_of_publishers() -> None:
    """m is notified of n:0, n of p:0, and the subscriber sees m:0 first: it never sees n:0 at all."""
    published = publications([("p:0", "/p", 1, 10), ("n:0", "/n", 1, 20), ("m:0", "/m", 1, 30)])
    subscribed = [
        SubscribedRow("n", "x", ["/p"], None, "causal", 0, 1),
        SubscribedRow("m", "x", ["/n"], None, "causal", 0, 1),
        SubscribedRow("s", "x", ["/p", "/m"], None, "causal", 0, 1),
    ]
    seen = {"n": ["p:0"], "m": ["n:0"], "s": ["m:0", "p:0"]}
    trace = trace_of(seen, published=published, subscribed=subscribed)
    assert broken(trace) == {"causal_order": 1}
    (witness,) = causal_order(trace).witnesses
    assert (witness.events, witness.subscribers, witness.positions) == (("m:0", "p:0"), ("s",), (0, 1))

    rows = deliveries(seen, published)
    rows[1] = rows[1]._replace(at_ns=31)  # m was told of n:0 only after it had published
    assert not broken(trace_of(rows=rows, published=published, subscribed=subscribed))
    rows[1] = rows[1]._replace(at_ns=30)  # at the same instant: it may have answered
    assert broken(trace_of(rows=rows, published=published, subscribed=subscribed)) == {"causal_order": 1}


def test_causality_is_remembered_across_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """n:0 depends on p:0, m:0 on nothing: what comes between the two is no excuse."""
    published = publications([("p:0", "/p", 1, 10), ("n:0", "/n", 1, 20), ("m:0", "/m", 1, 20)])
    subscribed = [
        SubscribedRow("n", "x", ["/p"], None, "causal", 0, 1),
        SubscribedRow("m", "x", ["/none"], None, "causal", 0, 1),
        SubscribedRow("s", "x", ["/*"], None, "causal", 0, 1),
    ]
    trace = trace_of({"n": ["p:0"], "s": ["n:0", "m:0", "p:0"]}, published=published, subscribed=subscribed)
    for cells in (1, 4, 16_000_000):
        monkeypatch.setattr(causal, "MAX_CELLS", cells)
        (witness,) = causal_order(trace).witnesses
        assert witness.events == ("n:0", "p:0")


def test_what_is_declared_out_of_order_is_set_aside() -> None:
    trace = with_seen(s2=["p1:1", "p0:1", "p1:0"])
    rows = [
        DeliveredRow(*row.values())._replace(
            out_of_order=row["event_id"] == "p1:0" and row["subscriber"] == "s2"
        )
        for row in trace.delivered.to_pylist()
    ]
    assert broken(trace_of(rows=rows)) == {"total_order": 2}  # p1:1 before p0:1 is not declared
    rows = [row._replace(out_of_order=row.subscriber == "s2") for row in rows]
    assert broken(trace_of(rows=rows)) == {}


def test_an_event_for_two_subscriptions_of_one_subscriber_counts_where_it_came_first() -> None:
    subscribed = [*SUBSCRIBED, SubscribedRow("s0", "y", ["/a"], None, "none", 0, 1)]
    rows = deliveries(SEEN)
    rows += [DeliveredRow("s0", "y", 6 + n, event, 62) for n, event in enumerate(["p0:0", "p0:1", "p0:2"])]
    assert broken(trace_of(rows=rows, subscribed=subscribed)) == {}


def test_what_is_on_its_way_when_a_subscription_ends_is_no_gap() -> None:
    subscribed = [SUBSCRIBED[0], SUBSCRIBED[1]._replace(cancelled_ns=65)]
    seen = {"s0": SEEN["s0"], "s1": ["p0:0", "p1:0", "p0:1", "n:0"]}
    tail = trace_of(seen, subscribed=subscribed)
    assert broken(tail) == {}
    assert gap_free(tail).counts == {"expected": 10, "delivered": 10, "expired": 0}
    assert gap_free(tail, strict_end=True).violations == 2
    assert gap_free(tail, strict_end=True).counts == {"expected": 12, "delivered": 10, "expired": 0}
    assert agreement(tail, strict_end=True).violations == 2
    hole = trace_of(seen | {"s1": ["p0:0", "p1:0", "n:0", "p0:2"]}, subscribed=subscribed)
    assert broken(hole) == {"gap_free": 1, "agreement": 1}
    assert gap_free(hole).witnesses[0].events == ("p0:1",)
    assert str(agreement(hole).witnesses[0]).endswith("s1/x, never arrived, but did at s0/x")


@pytest.mark.parametrize(
    ("order", "confirmed_ns", "cut_off_ns", "missing"),
    [
        ("none", 75, None, 1),  # sources are heard in order
        ("none", 74, 10, 1),
        ("none", 75, 10, 0),
        ("fifo", 75, 10, 0),
        ("total", 75, 10, 1),  # an order does not let events overtake each other
        ("none", None, 10, 0),
    ],
)
def test_what_reached_the_service_late_may_be_overtaken(
    order: str, confirmed_ns: int | None, cut_off_ns: int | None, missing: int
) -> None:
    """The subscription ended at 65; p0:1 did not come, p0:2 did."""
    published = [
        row._replace(confirmed_ns=confirmed_ns if row.event_id == "p0:1" else 99) for row in publications()
    ]
    subscribed = [SUBSCRIBED[1]._replace(cancelled_ns=65, order=order)]
    seen = {"s1": ["p0:0", "p1:0", "n:0", "p1:1", "p0:2"]}
    trace = trace_of(seen, published=published, subscribed=subscribed)
    assert gap_free(trace, cut_off_ns=cut_off_ns).violations == missing
    going_on = trace_of(seen, published=published, subscribed=[SUBSCRIBED[1]._replace(order=order)])
    assert gap_free(going_on, cut_off_ns=cut_off_ns).violations == 1


@pytest.mark.parametrize(
    ("accepted_ns", "cancelled_ns", "disagrees"), [(50, None, 1), (51, None, 0), (1, 51, 1), (1, 50, 0)]
)
def test_agreement_is_among_those_in_force_at_publication(
    accepted_ns: int, cancelled_ns: int | None, disagrees: int
) -> None:
    """s0 misses p1:1, published at 50; that s1 got it counts only if it was owed there."""
    other = SUBSCRIBED[1]._replace(accepted_ns=accepted_ns, cancelled_ns=cancelled_ns)
    without = [event for event in SEEN["s0"] if event != "p1:1"]
    trace = trace_of({"s0": without, "s1": SEEN["s1"]}, subscribed=[SUBSCRIBED[0], other])
    assert agreement(trace).violations == disagrees
    assert gap_free(trace).violations == 1


@pytest.mark.parametrize(
    ("accepted_ns", "cancelled_ns", "missing"),
    [
        (None, None, 0),
        (50, None, 2),
        (51, None, 1),
        (60, None, 1),
        (61, None, 0),
        (1, 10, 0),
        (50, 60, 1),
        (50, 61, 2),
    ],
)
def test_the_interval_is_closed_at_the_start_and_open_at_the_end(
    accepted_ns: int | None, cancelled_ns: int | None, missing: int
) -> None:
    subscription = SubscribedRow("s0", "x", [], None, "none", 0, accepted_ns, cancelled_ns)
    trace = trace_of(rows=[], subscribed=[subscription])
    assert gap_free(trace, strict_end=True).violations == missing


def expiring(event: str, expires_ns: int) -> list[PublishedRow]:
    return [row._replace(expires_ns=expires_ns) if row.event_id == event else row for row in publications()]


def test_what_expired_is_no_gap_and_no_disagreement() -> None:
    """p1:1 was published at 50. Nobody is owed it if it expires, however late."""
    seen = {name: [event for event in events if event != "p1:1"] for name, events in SEEN.items()}
    assert broken(trace_of(seen)) == {"gap_free": 3}
    published = expiring("p1:1", 10**15)
    assert not broken(trace_of(seen, published=published))
    assert gap_free(trace_of(seen, published=published)).counts == {
        "expected": 15,
        "delivered": 15,
        "expired": 3,
    }
    seen["s0"] = SEEN["s0"]  # it came in time here, too late there
    trace = trace_of(seen, published=published)
    assert not broken(trace)
    assert gap_free(trace).counts == {"expected": 16, "delivered": 16, "expired": 2}


@pytest.mark.parametrize(("expires_ns", "late"), [(50, 3), (51, 0), (52, 0)])
def test_what_is_shown_after_it_expired_is_a_violation(expires_ns: int, late: int) -> None:
    """Everybody saw p1:1 at 51."""
    trace = trace_of(published=expiring("p1:1", expires_ns))
    assert broken(trace) == ({"expiry": late} if late else {})
    if late:
        (verdict,) = (verdict for verdict in check_all(trace) if verdict.guarantee == "expiry")
        assert (verdict.violations, verdict.witnesses[0].subscribers) == (3, ("s0",))
        assert str(verdict) == (
            "expiry: 3 violations, first: event p1:1 at position 4 of subscriber s0 is shown 1 ns after it expired"
        )


def test_expiry_is_promised_where_something_expires() -> None:
    assert "expiry" not in [verdict.guarantee for verdict in check_all(trace_of())]
    assert "expiry" in [verdict.guarantee for verdict in check_all(trace_of(published=expiring("p1:1", 99)))]


def test_unconfirmed_events_can_be_left_out() -> None:
    published = [row._replace(confirmed_ns=99 if row.source == "p0" else None) for row in publications()]
    trace = trace_of(rows=[], published=published)
    assert gap_free(trace).violations == 18
    assert gap_free(trace, confirmed_only=True).violations == 10


def test_promises_are_checked_for_those_who_asked() -> None:
    def ordered(*orders: str) -> Trace:
        seen = SEEN | {"s1": SWAPPED, "s2": ["p1:1", "p0:1", "p1:0"]}
        rows = [row._replace(order=order) for row, order in zip(SUBSCRIBED, orders, strict=True)]
        return trace_of(seen, subscribed=rows)

    def failed(trace: Trace) -> list[str]:
        return [verdict.guarantee for verdict in check_all(trace) if not verdict.holds]

    assert promised(ordered("none", "none", "none", "none")) == ["exactly_once"]
    assert promised(ordered("fifo", "none", "none", "none")) == ["exactly_once", "fifo"]
    assert promised(ordered("total", "none", "none", "none")) == ["exactly_once", "total_order"]
    assert promised(ordered("causal", "none", "none", "none")) == [
        "exactly_once",
        "total_order",
        "causal_order",
    ]
    assert failed(ordered("total", "none", "none", "total")) == []
    assert failed(ordered("total", "total", "none", "none")) == ["total_order"]
    assert failed(ordered("fifo", "fifo", "none", "fifo")) == []
    assert failed(ordered("none", "none", "fifo", "none")) == ["fifo"]
    assert failed(ordered("none", "causal", "causal", "none")) == ["total_order", "causal_order"]
    assert promised(Trace.from_rows()) == ["exactly_once"]


def test_ten_witnesses_are_enough() -> None:
    rows = [DeliveredRow("s2", "x", position, "p1:0", 70) for position in range(40)]
    verdict = exactly_once(trace_of(rows=rows))
    assert (verdict.violations, len(verdict.witnesses)) == (39, 10)
    assert verdict.witnesses[0].positions == (1,)
    assert str(verdict).startswith(
        "exactly_once: 39 violations, first: event p1:0 at position 1 of subscriber s2"
    )
    assert str(Verdict("fifo", True, 0)) == "fifo: holds"


def test_many_violations_have_witnesses_in_every_checker() -> None:
    backwards = {name: list(reversed(events)) for name, events in SEEN.items()} | {"s1": SEEN["s1"]}
    for verdict in check_all(with_seen(**backwards), ["fifo", "total_order", "causal_order"]):
        assert 0 < len(verdict.witnesses) <= min(verdict.violations, 10)
    for verdict in check_all(with_seen(s0=[]), ["gap_free", "agreement"]):
        assert len(verdict.witnesses) == verdict.violations == 6


def test_traces_that_cannot_be_judged() -> None:
    with pytest.raises(TraceError, match="unknown guarantee 'fifi'; known: exactly_once, fifo"):
        check_all(trace_of(), ["fifi"])
    with pytest.raises(TraceError, match="table 'subscribed': subscription s2/x: "):
        exactly_once(with_subscription(2, filter="x >"))
    with pytest.raises(TraceError, match="subscription s0/x: "):
        exactly_once(with_subscription(0, topics=["a"]))
    with pytest.raises(TraceError, match="subscription s0/x is listed twice"):
        fifo(trace_of(subscribed=[*SUBSCRIBED, SUBSCRIBED[0]]))
