"""A broker towards its clients, and where it sends publications, over a port that only records."""

from __future__ import annotations

import json

import msgspec
import pytest

from recording_port import RecordingPort
from tidings.core.events.event import Publication, make_publication
from tidings.core.events.subscription import MAX_INTEREST_BYTES, make_interest
from tidings.core.facts import Misbehaviour
from tidings.core.filters.language.predicates import Scalar
from tidings.core.kernel import Node, Part
from tidings.core.messages import (
    Confirm,
    Message,
    Notify,
    PublishFailed,
    Status,
    StatusRequest,
    Subscribe,
    Subscribed,
    SubscribeFailed,
    Unsubscribe,
    Unsubscribed,
)
from tidings.core.overlay import edge, matching, routing
from tidings.core.overlay.best_effort.broker import Broker
from tidings.core.overlay.matching import Matcher
from tidings.core.overlay.messages import AddInterest, Changes, LinkOpen


class Bench:
    def __init__(self, *neighbours: str, matcher: Matcher | None = None) -> None:
        self.port = RecordingPort("me")
        self.broker = Broker(self.port, neighbours, incarnation=9, matcher=matcher)
        self.broker.start()
        for peer in neighbours:
            self.broker.receive(peer, LinkOpen(1, 9, False))

    def tell(self, sender: str, message: Message) -> list[tuple[str, Message]]:
        self.port.sent.clear()
        self.broker.receive(sender, message)
        return list(self.port.sent)

    def wants(self, peer: str, number: int, *topics: str, sql: str | None = None) -> None:
        interest = make_interest(topics, sql)
        self.broker.receive(peer, Changes(1, 9, number, (AddInterest(interest.key, topics, sql, number),)))


def subscribe(name: str, *topics: str, sql: str | None = None, order: str = "none") -> Subscribe:
    return Subscribe(name, topics, sql, order)


def event(
    source: str, sequence: int, topic: str = "/a", attributes: dict[str, Scalar] | None = None, life: int = 0
) -> Publication:
    return make_publication(source, life, sequence, topic, attributes or {}, b"", 0)


def publications(sent: list[tuple[str, Message]]) -> list[str]:
    return [to for to, message in sent if isinstance(message, Publication)]


# --- Subscriptions


def test_a_repeated_subscribe_is_answered_again_and_changes_nothing() -> None:
    bench = Bench()
    first = bench.tell("c", subscribe("s", "/a"))
    assert first == [("c", Subscribed("s"))]
    assert bench.tell("c", subscribe("s", "/a")) == first
    assert bench.broker.status()["subscriptions"] == 1
    assert bench.tell("c", Unsubscribe("s")) == [("c", Unsubscribed("s"))]
    assert len(bench.broker.table) == 0


def test_a_repeated_subscribe_is_not_answered_before_it_is_accepted() -> None:
    bench = Bench("p")
    bench.tell("c", subscribe("s", "/a"))
    assert bench.tell("c", subscribe("s", "/a")) == []
    assert bench.broker.status()["subscriptions_not_yet_accepted"] == 1


@pytest.mark.parametrize(
    ("message", "complaint"),
    [
        (subscribe("s", "/b"), "exists with a different"),
        (subscribe("s", "/a", sql="x > 1"), "exists with a different"),
        (subscribe("t", "/a", order="total"), "not available"),
        (subscribe("t", "/a", order="causal"), "not available"),
        (subscribe("t", "/a", order="odd"), "not available"),
        (subscribe("t", "a"), "must start with"),
        (subscribe("t", sql="x >"), "x >"),
        (subscribe("t", *(f"/{number}{'x' * 1000}" for number in range(60))), str(MAX_INTEREST_BYTES)),
    ],
)
def test_what_cannot_be_subscribed_is_refused_and_leaves_nothing(message: Subscribe, complaint: str) -> None:
    bench = Bench()
    bench.tell("c", subscribe("s", "/a"))
    [(to, answer)] = bench.tell("c", message)
    assert to == "c"
    assert isinstance(answer, SubscribeFailed)
    assert answer.subscription == message.subscription
    assert complaint in answer.reason
    assert bench.broker.status()["subscriptions"] == 1
    assert len(bench.broker.table) == 1


def test_a_client_has_a_bounded_number_of_subscriptions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(edge, "MAX_SUBSCRIPTIONS_PER_CLIENT", 2)
    bench = Bench()
    for name in ("s", "t"):
        assert bench.tell("c", subscribe(name, "/a")) == [("c", Subscribed(name))]
    [(_, answer)] = bench.tell("c", subscribe("u", "/a"))
    assert isinstance(answer, SubscribeFailed)
    assert bench.tell("c", subscribe("t", "/a")) == [("c", Subscribed("t"))]
    assert bench.tell("d", subscribe("u", "/a")) == [("d", Subscribed("u"))]


def test_two_clients_may_call_their_subscriptions_the_same() -> None:
    bench = Bench()
    bench.tell("c", subscribe("s", "/a"))
    bench.tell("d", subscribe("s", "/b"))
    bench.tell("c", Unsubscribe("s"))
    assert bench.tell("d", event("d", 1, "/b"))[1:] == [("d", Notify(("s",), bench.port.sent[1][1].stretch))]  # type: ignore[union-attr]


def test_unsubscribing_what_is_not_there_is_answered() -> None:
    bench = Bench()
    assert bench.tell("c", Unsubscribe("s")) == [("c", Unsubscribed("s"))]


def test_a_client_that_is_gone_is_forgotten() -> None:
    bench = Bench("p")
    bench.tell("c", subscribe("s", "/a"))
    bench.tell("c", subscribe("t", "/b"))
    bench.broker.link_down("c")
    assert len(bench.broker.table) == 0
    assert bench.broker.edge.clients == {}
    assert bench.broker.edge.unaccepted == 0


def test_a_broker_cannot_subscribe_as_if_it_were_a_client() -> None:
    bench = Bench("p")
    assert bench.tell("p", subscribe("s", "/a")) == []
    assert [type(fact) for fact in bench.port.facts] == [Misbehaviour]


def test_the_status_counts_what_is_there() -> None:
    bench = Bench("p")
    bench.tell("c", subscribe("s", "/a"))
    [(to, answer)] = bench.tell("c", StatusRequest())
    assert to == "c"
    assert isinstance(answer, Status)
    status = json.loads(answer.json)
    assert status == bench.broker.status()
    assert (status["broker"], status["clients"], status["subscriptions"], status["interests"]) == (
        "me",
        1,
        1,
        1,
    )
    assert status["neighbours"]["p"]["present"]


# --- Publications


def test_a_client_is_confirmed_each_time_and_its_event_goes_on_once() -> None:
    bench = Bench("p")
    bench.wants("p", 1, "/a")
    first = bench.tell("c", event("c", 1, life=4))
    assert first[0] == ("c", Confirm(4, 1, 1))
    assert publications(first) == ["p"]
    assert bench.tell("c", event("c", 1, life=4)) == [("c", Confirm(4, 1, 1))]
    assert bench.broker.status()["duplicates_dropped"] == 1


def test_events_are_told_apart_by_source_incarnation_and_sequence() -> None:
    bench = Bench("p", "q")
    bench.wants("q", 1, "/a")
    for source, life, sequence in (("c", 0, 1), ("c", 0, 2), ("c", 1, 1), ("d", 0, 1)):
        publication = event(source, sequence, life=life)
        assert publications(bench.tell("p", publication)) == ["q"]
        assert bench.tell("p", publication) == []


def test_a_client_cannot_publish_under_the_name_of_another() -> None:
    bench = Bench("p")
    bench.wants("p", 1, "/a")
    [(to, answer)] = bench.tell("c", event("d", 1))
    assert to == "c"
    assert isinstance(answer, PublishFailed)
    assert answer.sequence == 1
    assert [type(fact) for fact in bench.port.facts] == [Misbehaviour]
    assert publications(bench.tell("d", event("d", 1))) == ["p"], "the forgery did not count as seen"


def test_an_event_goes_to_those_who_want_it_but_not_back() -> None:
    bench = Bench("p", "q", "r")
    bench.wants("p", 1, "/a")
    bench.wants("q", 1, "/a", sql="x > 3")
    bench.wants("r", 1, "/b")
    bench.tell("c", subscribe("s", "/**"))
    bench.tell("c", subscribe("t", sql="x = 5"))
    assert publications(bench.tell("p", event("z", 1, attributes={"x": 5}))) == ["q"]
    assert [message.subscriptions for _, message in bench.port.sent if isinstance(message, Notify)] == [
        ("s", "t")
    ]
    assert publications(bench.tell("q", event("z", 2, attributes={"x": 1}))) == ["p"]
    assert [message.subscriptions for _, message in bench.port.sent if isinstance(message, Notify)] == [
        ("s",)
    ]
    assert publications(bench.tell("c", event("c", 1, "/c"))) == []


def test_a_route_is_found_again_after_every_change() -> None:
    bench = Bench("p")
    publication = event("z", 1)

    def route() -> list[str]:
        bench.broker.tree.recent.forget("z", 0)
        return [to for to, _ in bench.tell("p", publication)]

    assert route() == []
    bench.tell("c", subscribe("s", "/a"))
    assert route() == ["c"]
    bench.tell("d", subscribe("s", "/a"))
    assert route() == ["c", "d"]
    bench.tell("c", Unsubscribe("s"))
    assert route() == ["d"]


def test_an_event_that_does_not_decode_is_reported_and_dropped() -> None:
    bench = Bench("p")
    bench.tell("c", subscribe("s", sql="x > 1"))
    broken = event("z", 1)
    broken.packed_attributes = msgspec.Raw(b"\xc1")
    assert bench.tell("p", broken) == []
    assert bench.port.facts[-1].peer == "p"  # type: ignore[attr-defined]


def test_caches_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routing, "MAX_CACHED_ROUTES", 3)
    monkeypatch.setattr(matching, "MAX_SELECTIONS", 3)
    bench = Bench("p")
    for number in range(10):
        bench.tell("c", subscribe(f"s{number}", f"/t{number}"))
    for number in range(10):
        assert len(bench.tell("p", event("z", number + 1, f"/t{number}"))) == 1
        assert len(bench.broker.table.routes) <= 3


# --- One matcher for many brokers


def test_brokers_that_share_a_matcher_keep_their_own_tables() -> None:
    matcher = Matcher()
    first, second = Bench("p", matcher=matcher), Bench("p", matcher=matcher)
    first.tell("c", subscribe("s", "/a"))
    second.tell("d", subscribe("s", "/a"))
    assert len(matcher) == 1
    publication = event("z", 1)
    assert [to for to, _ in first.tell("p", publication)] == ["c"]
    assert [to for to, _ in second.tell("p", publication)] == ["d"]
    first.broker.discard()
    assert len(matcher) == 1
    second.tell("d", Unsubscribe("s"))
    assert len(matcher) == 0


# --- The kernel


def test_two_parts_of_a_node_cannot_handle_the_same_message() -> None:
    class First(Part):
        name = "first"
        handles = {LinkOpen: "start"}  # noqa: RUF012

    class Second(First):
        name = "second"

    port = RecordingPort("n")
    with pytest.raises(ValueError, match="LinkOpen"):
        Node((First(port), Second(port)))


def test_a_message_that_no_part_handles_is_not_for_us() -> None:
    assert Bench().tell("c", Unsubscribed("s")) == []


def test_a_part_that_set_no_timer_says_so() -> None:
    with pytest.raises(KeyError, match="Edge"):
        Bench().broker.timer(("edge", "odd"))
