"""The ordering module of a client, fact by fact: what it publishes, gives up, shows, and does not believe."""

from __future__ import annotations

from typing import Any

import pytest

from recording_port import RecordingPort
from tidings.core.errors import OrderError
from tidings.core.events.timestamp import Timestamp
from tidings.core.facts import Misbehaviour
from tidings.core.ordering import module as client_module
from tidings.core.ordering.layout import Layout, ServerPlacement
from tidings.core.ordering.messages import (
    ChainItem,
    ChangeSubscription,
    Create,
    EventStamps,
    Identity,
    NotActive,
    PublisherAlive,
    PublisherDisowned,
    PublisherGone,
    SubscriberAlive,
    SubscriberDisowned,
    WalkDone,
)
from tidings.core.ordering.module import (
    EventsShown,
    JoinCompleted,
    OrderBroken,
    OrderingClient,
    Parted,
    PublishNow,
)
from tidings.core.ordering.server.machine import PublishNoOps, SequencerMachine
from tidings.core.ordering.stamps import Chain, check_stamp

PLACES = (
    ServerPlacement("high", ("/0",), standby="low", witness="third"),
    ServerPlacement("low", ("/1", "/2"), standby="third", witness="high"),
)
TOTAL = Layout(PLACES, causal=False)
CAUSAL = Layout(PLACES, causal=True)


class Client:
    def __init__(self, layout: Layout = TOTAL) -> None:
        self.port: Any = RecordingPort("c")
        self.node = OrderingClient(self.port, layout, incarnation=100)
        self.module = self.node.module
        self.node.start()

    def gather(self) -> list[tuple[str, Any]]:
        """The end of the instant; what was sent since the last look."""
        for name in [name for name, at in self.port.timers.items() if at <= self.port.now]:
            del self.port.timers[name]
            self.node.timer(name)
        sent = list(self.port.sent)
        self.port.sent.clear()
        return sent

    def facts(self, kind: type) -> list[Any]:
        found = [fact for fact in self.port.facts if isinstance(fact, kind)]
        self.port.facts = [fact for fact in self.port.facts if not isinstance(fact, kind)]
        return found

    def stamp(self, create: Create, base: int, server: str = "low") -> None:
        """The server's answer."""
        stamps = EventStamps(
            create.publisher, server, create.request, create.topic, base, create.count, (), ()
        )
        self.node.receive(server, stamps)

    def alive(self) -> list[tuple[str, Any]]:
        self.node.timer(("ordering", "alive"))
        return self.gather()

    def join(self, *topics: int, values: int = 0) -> int:
        key = self.module.add_subscriber()
        self.module.change(key, topics)
        self.done(values=values)
        assert self.facts(JoinCompleted) == [JoinCompleted(key, topics)]
        return key

    def done(self, *, values: int = 0) -> None:
        """The answer to the change that was asked for last."""
        asked = [message for _, message in self.gather() if isinstance(message, ChangeSubscription)][-1]
        index = tuple(sorted({*asked.topics, *asked.ghosts}))
        self.node.receive("high", WalkDone(asked.subscriber, asked.version, index, (values,) * len(index)))

    def show(self, key: int, topic: int, number: int) -> None:
        self.module.receive(key, Timestamp(topic, number), f"e{number}")


def numbers(facts: list[Any]) -> list[tuple[Any, int, int]]:
    return [(fact.event, fact.stamp.topic, fact.stamp.number) for fact in facts]


# --- Publishing


def test_events_are_handed_over_in_the_order_of_publication() -> None:
    client = Client()
    sent = []
    for events in ([(1, "a"), (1, "b")], [(0, "c")], [(1, "d")]):
        for topic, event in events:
            client.module.publish(topic, event)
        sent += client.gather()
    requests = {(to, message.request): message for to, message in sent}
    assert {key: request.count for key, request in requests.items()} == {
        ("low", 1): 2,
        ("high", 1): 1,
        ("low", 2): 1,
    }
    client.stamp(requests["low", 2], 7)
    client.stamp(requests["high", 1], 3, "high")
    assert client.facts(PublishNow) == []
    client.stamp(requests["low", 1], 5)
    assert numbers(client.facts(PublishNow)) == [("a", 1, 6), ("b", 1, 7), ("c", 0, 4), ("d", 1, 8)]
    assert client.module.unpublished == 4
    for handle in (1, 2, 3, 4):
        client.module.published(handle)
    assert client.module.unpublished == 0
    assert {message.server: message.acknowledged for _, message in client.alive()} == {"high": 1, "low": 2}


def test_a_causal_publisher_asks_for_one_topic_at_a_time() -> None:
    client = Client(CAUSAL)
    client.module.publish(1, "a")
    client.module.publish(2, "b")
    ((_, create),) = client.gather()
    client.stamp(create, 0)
    ((_, create),) = client.gather()
    assert create.topic == 2


def test_a_number_is_acknowledged_only_when_its_event_is_published() -> None:
    client = Client()
    client.module.publish(1, "a")
    client.stamp(client.gather()[0][1], 0)
    assert {message.acknowledged for _, message in client.alive()} == {0}
    client.module.published(1)
    client.module.published(1)
    assert max(message.acknowledged for _, message in client.alive()) == 1


def test_a_number_that_was_not_used_is_given_back_with_its_identity() -> None:
    client = Client()
    for event in "ab":
        client.module.publish(1, event)
    ((_, first),) = client.gather()
    client.stamp(first, 0)
    client.module.publish(1, "c")
    ((_, second),) = client.gather()
    client.module.failed(1)
    client.stamp(second, 2)
    assert numbers(client.facts(PublishNow)) == [("a", 1, 1), ("b", 1, 2)], "c waits: b is not answered"
    client.module.published(2)
    sent = client.gather()
    gone = {to: message for to, message in sent if isinstance(message, PublisherGone)}
    assert gone["low"].acknowledged == 0 and gone.keys() == {"high", "low"}
    (again,) = (message for _, message in sent if isinstance(message, Create))
    assert again.publisher == (first.publisher[0], first.publisher[1] + 1)
    client.stamp(again, 3)
    assert numbers(client.facts(PublishNow)) == [("c", 1, 4)]


def test_a_failure_of_an_identity_that_was_given_up_changes_nothing() -> None:
    client = Client()
    client.module.publish(1, "a")
    ((_, create),) = client.gather()
    client.stamp(create, 0)
    client.node.receive("low", PublisherDisowned(create.publisher))
    client.gather()
    client.module.failed(1)
    client.module.failed(99)
    client.module.published(99)
    assert client.gather() == []
    client.module.publish(1, "b")
    assert client.gather()[0][1].publisher[1] == create.publisher[1] + 1


def test_who_is_disowned_by_one_server_does_not_acknowledge_what_another_never_answered() -> None:
    """Else the numbers that the other gave it would never become events, nor no-ops."""
    client = Client()
    client.module.publish(0, "a")
    client.module.publish(1, "b")
    requests = dict(client.gather())
    identity = requests["low"].publisher
    client.node.receive("low", PublisherDisowned(identity))
    sent = client.gather()
    gone = {to: message.acknowledged for to, message in sent if isinstance(message, PublisherGone)}
    assert gone == {"high": 0, "low": 0}
    again = [message for _, message in sent if isinstance(message, Create)]
    assert [(create.topic, create.publisher == identity) for create in again] == [(0, False), (1, False)]
    client.stamp(requests["high"], 0, "high")
    assert client.facts(PublishNow) == [], "an answer to the identity before"


def test_no_more_is_taken_than_may_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "MAX_PENDING", 3)
    client = Client()
    client.module.publish(1, "ab", 2)
    assert not client.module.is_full
    client.module.publish(1, "c")
    assert client.module.is_full
    client.stamp(client.gather()[0][1], 0)
    assert not client.module.is_full


def test_leaving_tells_all_servers_what_was_published() -> None:
    client = Client()
    client.module.publish(1, "a")
    client.stamp(client.gather()[0][1], 0)
    client.module.published(1)
    client.module.leave()
    assert {to: message.acknowledged for to, message in client.gather()} == {"high": 0, "low": 1}
    assert client.alive() == []
    client.module.leave()
    assert client.gather() == []


def test_who_leaves_in_peace_leaves_no_no_ops_for_what_it_published() -> None:
    """The highest server may hear of it before the acknowledgement has climbed to it."""
    low, high = SequencerMachine("low", TOTAL), SequencerMachine("high", TOTAL)
    publisher: Identity = ("p", 1)
    for name in ("s", "t"):
        low.apply(name, ChangeSubscription((name, 1), 1, (0, 1), ()))
    for request in (1, 2):
        low.apply("p", Create(publisher, request, 1, 1, 0))
    climb(low, high)
    high.apply("p", PublisherGone(publisher, "high", 0))
    assert no_ops(high) == []
    low.apply("p", PublisherGone(publisher, "low", 1))
    climb(low, high)
    assert no_ops(high) == [(1, 2)], "the other one was not published"
    assert high.server.publishers == low.server.publishers == []


def climb(low: SequencerMachine, high: SequencerMachine) -> None:
    for output in low.outputs:
        if isinstance(output, tuple) and isinstance(output[1], ChainItem):
            high.apply("low", output[1])
    low.outputs.clear()


def no_ops(machine: SequencerMachine) -> list[tuple[int, int]]:
    found = [output.stamp for output in machine.outputs if isinstance(output, PublishNoOps)]
    return [(stamp.topic, stamp.number) for stamp in found]


# --- Subscribing


def test_events_are_shown_in_order_and_no_ops_are_passed_over() -> None:
    client = Client()
    key = client.join(1)
    client.show(key, 1, 4)
    assert client.module.waits_for(key) == "event 1 of /1"
    assert client.module.buffered(key) == 1
    client.module.receive_no_ops(key, Timestamp(1, 2), count=2)
    client.show(key, 1, 1)
    client.show(key, 1, 1)
    assert numbers(client.facts(EventsShown)) == [("e1", 1, 1), ("e4", 1, 4)]
    client.show(key, 1, 3)
    (late,) = client.facts(EventsShown)
    assert (late.event, late.out_of_order) == ("e3", True)
    assert client.module.buffered(key) == 0 and client.module.waits_for(key) == ""


def test_who_lives_says_so_where_its_walks_begin_and_what_it_lacks() -> None:
    client = Client()
    key = client.join(0, 1)
    client.show(key, 1, 3)
    (to, alive), (other, again) = client.alive()
    assert (to, alive.topic, alive.number, alive.buffered) == ("low", 1, 1, 1)
    assert (other, again) == ("third", alive), "whoever speaks for it now"
    client.module.change(key, (2,))
    assert not [message for _, message in client.alive() if isinstance(message, SubscriberAlive)]


def test_nothing_is_shown_of_topics_that_were_left() -> None:
    client = Client()
    key = client.join(1, 2)
    client.module.receive(key, Timestamp(2, 1, (1,), (1,)), "waits for topic 1")
    client.module.change(key, (), (1, 2))
    assert client.facts(EventsShown) == []
    client.done()
    assert client.facts(Parted) == [Parted(key, (1, 2))]
    client.module.change(key, (1,))
    client.done(values=3)
    client.show(key, 1, 4)
    assert numbers(client.facts(EventsShown)) == [("e4", 1, 4)], "who left all may come back"


def test_nothing_is_shown_after_the_end_though_it_was_joining() -> None:
    client = Client()
    key = client.module.add_subscriber()
    client.module.change(key, (1,))
    client.show(key, 1, 1)
    client.module.end(key)
    client.done()
    client.done()
    assert client.facts(EventsShown) == []
    assert client.facts(Parted) == [Parted(key, (1,))]
    assert client.alive() == []
    client.show(key, 1, 2)
    client.module.end(key)
    assert client.facts(EventsShown) == [] and not client.module._subscribers


def test_what_ends_is_told_to_the_servers_to_the_last_change() -> None:
    """It leaves, comes back and ends, all before the first answer."""
    client = Client()
    key = client.join(1)
    client.module.change(key, (), (1,))
    client.module.change(key, (2,))
    client.module.end(key)
    for expected in ((), (2,), ()):
        asked = client.gather()[-1][1]
        assert asked.topics == expected
        index = tuple(sorted({*asked.topics, *asked.ghosts}))
        client.node.receive("low", WalkDone(asked.subscriber, asked.version, index, (0,) * len(index)))
    assert not client.module._subscribers
    assert [name for name in client.port.timers if name != ("ordering", "alive")] == []


def test_a_change_that_cannot_be_leaves_all_as_it_was() -> None:
    client = Client()
    key = client.join(1)
    with pytest.raises(ValueError, match="cannot join"):
        client.module.change(key, (9,), (1,))
    client.show(key, 1, 1)
    assert numbers(client.facts(EventsShown)) == [("e1", 1, 1)]
    client.module.end(key)
    client.done()
    assert not client.module._subscribers


def test_a_subscription_that_was_given_up_or_is_stuck_breaks() -> None:
    client = Client()
    key = client.join(1)
    (identity,) = client.module._by_identity
    client.node.receive("low", SubscriberDisowned(identity))
    assert [fact.key for fact in client.facts(OrderBroken)] == [key]
    client.show(key, 1, 1)
    assert client.facts(EventsShown) == []
    key = client.module.add_subscriber(max_buffered=10)
    client.module.change(key, (1,))
    client.done()
    for number in range(2, 1000):
        client.show(key, 1, number)
    (broken,) = client.facts(OrderBroken)
    assert broken.key == key and "event 1 of /1" in broken.reason


# --- Who speaks


def test_it_asks_the_other_replica_when_told_or_when_nobody_answers() -> None:
    client = Client()
    client.node.receive("third", NotActive("high", "low"))
    client.node.receive("low", NotActive("nowhere", "low"))
    client.node.receive("low", NotActive("low", "stranger"))
    client.node.receive("low", NotActive("low", ""))
    client.module.publish(0, "a")
    assert client.gather()[0][0] == "high", "third is no replica of high"
    client.node.receive("high", NotActive("high", "low"))
    asked = []
    for _ in range(60):
        client.port.now += 100_000_000
        asked += [to for to, message in client.gather() if isinstance(message, Create)]
    assert asked[0] == "low" and {"high", "low"} == {*asked}


def test_only_sequencers_are_believed() -> None:
    client = Client()
    key = client.join(1)
    client.module.publish(1, "a")
    ((_, create),) = client.gather()
    (identity,) = client.module._by_identity
    for message in (
        EventStamps(create.publisher, "low", 1, 1, 0, 1, (), ()),
        PublisherDisowned(create.publisher),
        SubscriberDisowned(identity),
        WalkDone(identity, 1, (1,), (9,)),
        NotActive("low", "third"),
    ):
        client.node.receive("stranger", message)
    assert len(client.facts(Misbehaviour)) == 4
    assert client.port.facts == [] and client.port.sent == []
    client.show(key, 1, 1)
    assert len(client.facts(EventsShown)) == 1


def test_answers_to_nobody_and_to_nothing_are_ignored() -> None:
    client = Client()
    client.join(1)
    client.module.publish(1, "a")
    ((_, create),) = client.gather()
    (identity,) = client.module._by_identity
    for publisher in (create.publisher, ("c", 0), ("x", 1)):
        for server in ("low", "high", "nowhere"):
            for request in (1, 2, 2**62):
                for topic, count in ((1, 2), (0, 1), (2**31 - 1, 1)):
                    message = EventStamps(publisher, server, request, topic, 5, count, (7,), ())
                    client.node.receive("low", message)
    for subscriber in (identity, ("c", 0), ("x", 1)):
        for version in (1, 2, 2**62):
            client.node.receive("low", WalkDone(subscriber, version, (0,), ()))
    client.node.receive("low", PublisherDisowned(("c", 0)))
    client.node.receive("low", SubscriberDisowned(("c", 0)))
    client.node.receive("low", PublisherAlive(("c", 0), "low", 0))
    assert client.port.facts == [] and client.gather() == []


@pytest.mark.parametrize(
    ("layout", "stamp", "words"),
    [
        (2, Timestamp(0, 1), "another layout"),
        (1, Timestamp(9, 1), "topic 9; there are 3"),
        (1, Timestamp(-1, 1), "topic -1; there are 3"),
        (1, Timestamp(0, 0), "numbers from 0 on"),
        (1, Timestamp(0, 2**62 - 4), "numbers from"),
        (1, Timestamp(0, 1, (1,), ()), "make no sense"),
        (1, Timestamp(0, 1, (0,), (1,)), "make no sense"),
        (1, Timestamp(0, 1, (3,), (1,)), "unknown topics"),
        (1, Timestamp(0, 1, (2, 1), (1, 1)), "not ascending"),
        (1, Timestamp(0, 1, (1,), (-1,)), "impossible clocks"),
    ],
)
def test_what_is_no_stamp_is_refused(layout: int, stamp: Timestamp, words: str) -> None:
    with pytest.raises(OrderError, match=words):
        check_stamp(stamp, layout, 5, of=1, chain=Chain(["n"], [0], 3))


def test_a_batch_is_confirmed_in_pieces_and_its_request_when_all_is() -> None:
    client = Client()
    client.module.publish(1, "abc", 3)
    ((_, create),) = client.gather()
    client.stamp(create, 0)
    (fact,) = client.facts(PublishNow)
    assert (fact.stamp.number, fact.count, client.module.unpublished) == (1, 3, 3)
    client.module.published(fact.handle, 2)
    assert client.module.unpublished == 1
    client.module.publish(1, "d")
    assert client.gather()[0][1].acknowledged == 0
    client.module.published(fact.handle)
    client.module.publish(1, "e")
    assert client.gather()[0][1].acknowledged == 1
