"""A client towards its broker, over a port that only records."""

from __future__ import annotations

import pytest

from recording_port import RecordingPort
from tidings.core.client import session as client_module
from tidings.core.client.session import BestEffortClient
from tidings.core.errors import TopicError
from tidings.core.events.event import Publication, make_publication
from tidings.core.events.subscription import Order, Subscription
from tidings.core.facts import (
    Delivered,
    Misbehaviour,
    NotificationsDropped,
    PublicationConfirmed,
    PublicationFailed,
    StatusReceived,
    SubscriptionAccepted,
    SubscriptionCancelled,
    SubscriptionFailed,
)
from tidings.core.messages import (
    Confirm,
    Dropped,
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
from tidings.core.overlay.links import retry_delay_ns

RETRY = ("client", "retry")


class ClientPort(RecordingPort):
    """All of a client's messages go to its broker."""

    @property
    def messages(self) -> list[Message]:
        assert all(to == "broker" for to, _ in self.sent)
        return [message for _, message in self.sent]


class Bench:
    def __init__(self) -> None:
        self.port = ClientPort()
        self.client = BestEffortClient(self.port, "broker", incarnation=3)
        self.client.start()

    def tell(self, message: Message) -> list[object]:
        """The facts that follow from it."""
        before = len(self.port.facts)
        self.client.receive("broker", message)
        return self.port.facts[before:]

    def wait(self) -> list[Message]:
        """Lets the retry timer fire; what is sent then."""
        before = len(self.port.sent)
        self.port.now = self.port.timers.pop(RETRY)
        self.client.timer(RETRY)
        return self.port.messages[before:]


def event(sequence: int, source: str = "z", life: int = 0) -> Publication:
    return make_publication(source, life, sequence, "/a", {}, b"", 0)


SUBSCRIPTION = Subscription("s", ("/a",), "x > 1", Order.FIFO)
SUBSCRIBE = Subscribe("s", ("/a",), "x > 1", "fifo")


def test_publications_are_numbered_from_one_in_their_incarnation() -> None:
    bench = Bench()
    published = [bench.client.publish("/a", {}, b"", 5) for _ in range(3)]
    assert [publication.id for publication in published] == [("me", 3, 1), ("me", 3, 2), ("me", 3, 3)]
    assert bench.port.messages == published


def test_a_publication_that_is_refused_here_takes_no_number() -> None:
    bench = Bench()
    with pytest.raises(TopicError):
        bench.client.publish("a", {}, b"", 5)
    assert bench.client.publish("/a", {}, b"", 5).sequence == 1


def test_confirmations_count_for_this_incarnation_only() -> None:
    bench = Bench()
    assert bench.tell(Confirm(3, 1, 2)) == [PublicationConfirmed(1, 2)]
    assert bench.tell(Confirm(2, 3, 3)) == []
    assert bench.tell(PublishFailed(4, "no")) == [PublicationFailed(4, "no")]


def test_a_subscription_is_asked_for_until_it_is_accepted() -> None:
    bench = Bench()
    bench.client.subscribe(SUBSCRIPTION)
    assert bench.port.messages == [SUBSCRIBE]
    for attempt in range(3):
        assert bench.port.timers[RETRY] - bench.port.now == 2 * retry_delay_ns(attempt)
        assert bench.wait() == [SUBSCRIBE]
    assert bench.tell(Subscribed("s")) == [SubscriptionAccepted("s")]
    assert RETRY not in bench.port.timers
    assert bench.tell(Subscribed("s")) == []


def test_a_new_request_does_not_wait_as_long_as_an_old_one() -> None:
    bench = Bench()
    bench.client.subscribe(SUBSCRIPTION)
    for _ in range(6):
        bench.wait()
    bench.client.subscribe(Subscription("t"))
    assert bench.port.timers[RETRY] - bench.port.now == 2 * retry_delay_ns(0)


def test_a_subscription_that_is_refused_is_gone() -> None:
    bench = Bench()
    bench.client.subscribe(SUBSCRIPTION)
    assert bench.tell(SubscribeFailed("s", "no")) == [SubscriptionFailed("s", "no")]
    assert RETRY not in bench.port.timers
    assert bench.tell(SubscribeFailed("s", "no")) == []
    bench.client.subscribe(SUBSCRIPTION)


def test_the_same_subscription_cannot_be_made_twice() -> None:
    bench = Bench()
    bench.client.subscribe(SUBSCRIPTION)
    with pytest.raises(ValueError, match="'s' already exists"):
        bench.client.subscribe(Subscription("s"))
    assert bench.port.messages == [SUBSCRIBE]


def test_unsubscribing_is_asked_for_until_it_is_answered() -> None:
    bench = Bench()
    bench.client.subscribe(SUBSCRIPTION)
    bench.client.unsubscribe("s")
    assert bench.wait() == [Unsubscribe("s")]
    assert bench.tell(Subscribed("s")) == []
    assert bench.tell(Unsubscribed("s")) == [SubscriptionCancelled("s")]
    assert RETRY not in bench.port.timers
    assert bench.tell(Unsubscribed("s")) == []


def test_everything_is_asked_for_again_when_the_connection_is_back() -> None:
    bench = Bench()
    bench.client.subscribe(SUBSCRIPTION)
    bench.tell(Subscribed("s"))
    bench.client.subscribe(Subscription("t"))
    bench.client.unsubscribe("t")
    bench.port.sent.clear()
    bench.client.link_up("broker")
    assert bench.port.messages == [SUBSCRIBE, Unsubscribe("t")]
    assert RETRY in bench.port.timers
    assert bench.tell(Subscribed("s")) == [], "accepted stays accepted"
    assert bench.tell(Unsubscribed("t")) == [SubscriptionCancelled("t")]
    assert RETRY not in bench.port.timers


def test_notifications_are_shown_for_what_is_still_subscribed() -> None:
    bench = Bench()
    bench.client.subscribe(SUBSCRIPTION)
    bench.client.subscribe(Subscription("t"))
    publication = event(1)
    assert bench.tell(Notify(("s", "t", "u"), publication)) == [
        Delivered("s", publication),
        Delivered("t", publication),
    ]
    bench.client.unsubscribe("s")
    assert bench.tell(Notify(("s",), event(2))) == []


def test_a_broker_that_has_a_subscription_which_we_do_not_is_told() -> None:
    """A repeated Subscribe may come after its Unsubscribe on links that reorder."""
    bench = Bench()
    bench.client.subscribe(SUBSCRIPTION)
    bench.client.unsubscribe("s")
    bench.tell(Unsubscribed("s"))
    bench.port.sent.clear()
    assert bench.tell(Subscribed("s")) == []
    assert bench.port.messages == [Unsubscribe("s")]


def test_with_order_fifo_what_comes_after_a_later_one_is_marked() -> None:
    bench = Bench()
    bench.client.subscribe(SUBSCRIPTION)
    bench.client.subscribe(Subscription("t"))
    arrivals = [(1, 0), (3, 0), (2, 0), (4, 0), (1, 1)]
    late = []
    for sequence, life in arrivals:
        facts = bench.tell(Notify(("s", "t"), event(sequence, life=life)))
        late.append([fact.out_of_order for fact in facts if isinstance(fact, Delivered)])
    assert late == [[False, False], [False, False], [True, False], [False, False], [False, False]]
    [fact] = bench.tell(Notify(("s",), event(1, source="y")))
    assert not fact.out_of_order  # type: ignore[attr-defined]


def test_the_sources_that_fifo_remembers_are_bounded_and_the_busy_ones_stay(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(client_module, "MAX_TRACKED_SOURCES", 2)
    bench = Bench()
    bench.client.subscribe(SUBSCRIPTION)
    for source, sequence in (("x", 5), ("y", 5), ("x", 6), ("z", 5)):
        bench.tell(Notify(("s",), event(sequence, source=source)))
    shown = {
        source: bench.tell(Notify(("s",), event(1, source=source)))[0].out_of_order  # type: ignore[attr-defined]
        for source in ("x", "y")
    }
    assert shown == {"x": True, "y": False}


def test_what_the_broker_left_out_is_told() -> None:
    assert Bench().tell(Dropped(7)) == [NotificationsDropped(7)]


def test_the_status_is_asked_for_and_shown() -> None:
    bench = Bench()
    bench.client.request_status()
    assert bench.port.messages == [StatusRequest()]
    assert bench.tell(Status('{"broker": "b"}')) == [StatusReceived({"broker": "b"})]


@pytest.mark.parametrize("text", ["", "[1]", "{", '"x"'])
def test_a_status_that_is_none_is_misbehaviour(text: str) -> None:
    assert [type(fact) for fact in Bench().tell(Status(text))] == [Misbehaviour]
