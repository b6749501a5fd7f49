"""Requests are stamped once, remembered until acknowledged, repeated in order; what makes no sense is ignored."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from recording_port import RecordingPort
from tidings.core.events.timestamp import Timestamp
from tidings.core.facts import Misbehaviour
from tidings.core.messages import WireMessage
from tidings.core.ordering import messages as ordering_messages
from tidings.core.ordering.messages import (
    MAX_BATCH,
    AnswersTaken,
    ChangeSubscription,
    Create,
    CreateRelay,
    EventStamps,
    PublisherDisowned,
    StampsAgain,
    SubscribeWalk,
    WalkAgain,
    WalkDone,
)
from tidings.core.ordering.publisher import EventStamped, OrderedPublisher
from tidings.core.ordering.server.server import MAX_LIVES, MAX_WINDOW, NoOps, SequencerServer
from tidings.core.ordering.stamps import Chain
from tidings.core.ordering.subscriber import MAX_AHEAD

CHAIN = Chain(["high", "middle", "low"], [0, 1, 2], 4)
P = ("p", 0)
S = ("s", 0)


def recording(name: str) -> Any:
    return RecordingPort(name)


class Server:
    def __init__(self, name: str, *subscriptions: tuple[int, ...]) -> None:
        self.port = recording(name)
        self.part = SequencerServer(self.port, CHAIN, threshold=1)
        for topics in subscriptions:
            self.part.groups.change(frozenset(), frozenset(topics), ())

    def sent(self) -> list[tuple[str, Any]]:
        """What was sent since the last look."""
        sent = list(self.port.sent)
        self.port.sent.clear()
        return sent


def create(request: int, topic: int = 2, count: int = 1, acknowledged: int = 0) -> Create:
    return Create(P, request, topic, count, acknowledged)


def test_a_request_is_stamped_once_and_answered_again() -> None:
    server = Server("low", (2, 3))
    server.part.on_create("p", create(1, count=5))
    server.part.on_create("p", create(1, count=5))
    answer = EventStamps(P, "low", 1, 2, 0, 5, (3,), (0,))
    assert server.sent() == [("p", answer), ("p", answer)]
    assert server.part.clock == [0, 0, 5, 0]


def test_a_request_from_the_future_is_ignored() -> None:
    server = Server("low")
    server.part.on_create("p", create(2))
    assert server.sent() == []
    server.part.on_create("p", create(1))
    server.part.on_create("p", create(2))
    assert [message.base for _, message in server.sent()] == [0, 1]


def test_a_repeat_of_what_climbed_goes_to_who_remembers_the_answer_by_datagram() -> None:
    server = Server("low", (0, 2))
    server.part.on_create("p", create(1))
    server.part.on_create("p", create(1))
    relay = CreateRelay(P, "low", 1, 0, 2, 0, 1, (0,), (0,))
    assert server.sent() == [("middle", relay), ("high", StampsAgain(P, "low", 1))]


def test_the_last_server_answers_until_the_answer_is_acknowledged() -> None:
    server = Server("high")
    server.part.clock[0] = 7
    server.part.on_create_relay("middle", CreateRelay(P, "low", 1, 0, 2, 4, 1, (0, 3), (0, 9)))
    answer = EventStamps(P, "low", 1, 2, 4, 1, (0, 3), (7, 9))
    server.part.on_stamps_again("low", StampsAgain(P, "low", 1))
    assert server.sent() == [("p", answer), ("p", answer)]
    assert server.part.clock == [7, 0, 5, 9], "its own is not incremented, those below are raised"
    server.part.on_answers_taken("middle", AnswersTaken(P, "low", 1, "high"))
    server.part.on_stamps_again("low", StampsAgain(P, "low", 1))
    assert server.sent() == []
    assert server.part._answers == {}


def test_an_acknowledgement_climbs_to_who_remembers_even_if_the_request_does_not() -> None:
    server = Server("low", (0, 2))
    server.part.on_create("p", create(1))
    server.part.groups.change(frozenset((0, 2)), frozenset(), ())
    server.sent()
    server.part.on_create("p", create(2, acknowledged=1))
    assert ("middle", AnswersTaken(P, "low", 1, "high")) in server.sent()
    assert server.part._requests[P].holders == {2: "low"}
    middle = Server("middle")
    middle.part.on_answers_taken("low", AnswersTaken(P, "low", 1, "high"))
    assert middle.sent() == [("high", AnswersTaken(P, "low", 1, "high"))]


def test_more_than_the_window_is_not_remembered() -> None:
    server = Server("low")
    for request in range(1, MAX_WINDOW + 2):
        server.part.on_create("p", create(request))
    assert server.part.clock[2] == MAX_WINDOW
    server.part.on_create("p", create(MAX_WINDOW + 1, acknowledged=1))
    assert server.part.clock[2] == MAX_WINDOW + 1


def test_one_node_publishes_as_so_many_at_a_time() -> None:
    server = Server("low")
    for life in range(MAX_LIVES + 1):
        server.part.on_create("p", Create(("p", life), 1, 2, 1, 0))
    assert server.part.clock[2] == MAX_LIVES
    server.part.on_create("other", Create(("other", 1), 1, 2, 1, 0))
    assert server.part.clock[2] == MAX_LIVES + 1, "others are not concerned"
    server.part.publisher_dead(("p", 0))
    server.part.on_create("p", Create(("p", MAX_LIVES), 1, 2, 1, 0))
    assert server.part.clock[2] == MAX_LIVES + 2
    again = Server("low")
    again.part.restore(server.part.state())
    assert again.part._publisher_counts == server.part._publisher_counts == {"p": MAX_LIVES, "other": 1}


def test_no_node_can_take_more_numbers_than_subscribers_believe_in() -> None:
    """What is further ahead is dropped as forged: that must never be a number that was given out."""
    assert 4 * MAX_BATCH * MAX_WINDOW * MAX_LIVES <= MAX_AHEAD


def test_of_a_dead_publisher_what_is_not_acknowledged_becomes_no_ops() -> None:
    server = Server("low", (2, 3))
    server.part.on_create("p", create(1))
    server.part.on_create("p", create(2, count=3, acknowledged=1))
    server.part.publisher_dead(P)
    assert server.port.facts == [NoOps(Timestamp(2, 2, (3,), (0,)), 3)]
    server.sent()
    server.part.on_create("p", create(3))
    assert server.sent() == [("p", PublisherDisowned(P))]
    assert server.part.clock[2] == 4


def test_a_request_of_a_dead_publisher_that_still_climbs_becomes_no_ops_too() -> None:
    server = Server("high")
    server.part.publisher_dead(P)
    server.part.on_create_relay("middle", CreateRelay(P, "low", 1, 0, 2, 4, 2, (0,), (0,)))
    assert server.sent() == []
    assert server.port.facts == [NoOps(Timestamp(2, 5, (0,), (0,)), 2)]


def test_a_walk_reads_clocks_records_and_is_answered_again() -> None:
    server = Server("middle")
    server.part.clock[1] = 3
    change = ChangeSubscription(S, 1, (0, 1), ())
    server.part.on_change_subscription("s", change)
    server.part.on_change_subscription("s", change)
    walk = SubscribeWalk(S, 1, (0, 1), (), (0, 1), (0, 3))
    assert server.sent() == [("high", walk), ("high", WalkAgain(S, 1))]
    assert server.part.groups.members(1) == {0}
    high = Server("high")
    high.part.on_subscribe_walk("middle", walk)
    high.part.on_walk_again("middle", WalkAgain(S, 1))
    assert high.sent() == [("s", WalkDone(S, 1, (0, 1), (0, 3)))] * 2
    assert high.part.clock == [0, 3, 0, 0]


@pytest.mark.parametrize(
    "message",
    [
        create(1, topic=0),
        create(1, acknowledged=1),
        ChangeSubscription(S, 1, (), ()),
        ChangeSubscription(S, 1, (2,), (2,)),
        ChangeSubscription(S, 1, (2, 4), ()),
        ChangeSubscription(S, 1, (0,), ()),
        CreateRelay(P, "low", 1, 0, 2, 0, 1, (), ()),
        SubscribeWalk(S, 1, (3,), (), (3,), (0,)),
    ],
)
def test_what_makes_no_sense_is_ignored(message: WireMessage) -> None:
    server = Server("low")
    getattr(server.part, server.part.handles[type(message)])("stranger", message)
    assert server.sent() == []
    assert [type(fact) for fact in server.port.facts] == [Misbehaviour]
    assert server.part.clock == [0, 0, 0, 0]


def publisher(**settings: Any) -> tuple[Any, OrderedPublisher]:
    port = recording("p")
    return port, OrderedPublisher(port, CHAIN, **settings)


def stamps(request: int, base: int, count: int = 1, topic: int = 2) -> EventStamps:
    return EventStamps(P, CHAIN.server_of(topic), request, topic, base, count, (3,), (8,))


def test_a_publisher_numbers_a_batch_and_tells_what_it_has_in_the_next_request() -> None:
    port, part = publisher()
    part.publish(2, "ab", 2)
    part.on_event_stamps("low", stamps(1, 4, 2))
    part.on_event_stamps("low", stamps(1, 4, 2))
    assert port.facts == [EventStamped(Timestamp(2, 5, (3,), (8,)), "ab", ("low", 1), 2)]
    assert port.timers == {}
    part.published(("low", 1))
    part.publish(3, "too early")
    assert port.sent[-1] == ("low", Create(P, 2, 3, 1, 0)), "one of the two is not with the service yet"
    part.on_event_stamps("low", stamps(2, 0, topic=3))
    part.published(("low", 2))
    part.published(("low", 1))
    part.publish(3, "c")
    assert port.sent[-1] == ("low", Create(P, 3, 3, 1, 2))


def test_a_publisher_repeats_in_order_and_keeps_to_its_window() -> None:
    port, part = publisher(window=2, max_waiting=3)
    assert [part.publish(2, name) for name in "abcd"] == [True, True, True, False]
    assert [message.request for _, message in port.sent] == [1, 2]
    port.now = port.timers[part.name, "low"]
    part.on_timer((part.name, "low"))
    assert [message.request for _, message in port.sent] == [1, 2, 1, 2]
    part.on_event_stamps("low", stamps(2, 1))
    part.published(("low", 2))
    assert len(port.sent) == 4, "request 1 is not answered, nothing can be acknowledged"
    part.on_event_stamps("low", stamps(1, 0))
    assert len(port.sent) == 4, "its event is not published, nothing can be acknowledged"
    part.published(("low", 1))
    assert port.sent[-1] == ("low", Create(P, 3, 2, 1, 2))


def test_a_serial_publisher_waits_with_another_topic() -> None:
    port, part = publisher(serial=True)
    for topic in (2, 2, 0, 2):
        part.publish(topic, "event")
    assert [(to, message.topic) for to, message in port.sent] == [("low", 2), ("low", 2)]
    part.on_event_stamps("low", stamps(1, 0))
    part.on_event_stamps("low", stamps(2, 1))
    assert [to for to, _ in port.sent[2:]] == ["high"]
    part.on_event_stamps("high", stamps(1, 0, topic=0))
    assert [to for to, _ in port.sent[3:]] == ["low"]


def test_messages_have_tags_of_their_own_and_survive_the_wire() -> None:
    classes = [
        value
        for value in vars(ordering_messages).values()
        if isinstance(value, type) and issubclass(value, WireMessage) and value is not WireMessage
    ]
    tags = [kind.__struct_config__.tag for kind in classes]
    assert len(set(tags)) == len(tags)
    assert all(isinstance(tag, int) and 100 <= tag <= 139 for tag in tags)
    relay = CreateRelay(P, "low", 1, 0, 2, 0, 1, (0, 3), (0, 9))
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(relay), type=CreateRelay) == relay
