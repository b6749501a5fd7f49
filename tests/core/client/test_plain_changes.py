"""A subscription without an order that changes, over a client's session and a port that only records."""

from __future__ import annotations

import pytest

from recording_port import RecordingPort
from tidings.core.client.application import Application
from tidings.core.client.bookmark import (
    TOO_LARGE,
    Form,
    Forms,
    decode_bookmark,
    encode_bookmark,
    encode_forms,
)
from tidings.core.client.bookmark import Bookmark as OrderBookmark
from tidings.core.client.reliable_session import ReliableClient, ReliableSession
from tidings.core.client.session import DRAIN_NS, BestEffortClient
from tidings.core.events.event import make_publication
from tidings.core.events.subscription import Order, Subscription
from tidings.core.facts import ChangeFailed, Delivered, SubscriptionAccepted, SubscriptionChanged
from tidings.core.messages import (
    Message,
    Notify,
    Subscribe,
    Subscribed,
    SubscribeFailed,
    Unsubscribe,
    Unsubscribed,
)
from tidings.core.overlay.guaranteed.messages import Attached, Drain, KeepBookmark


class Bench:
    """One life of a client, its application that wants one subscription, and its broker in the test's hands."""

    def __init__(self, *, reliable: bool = True, lingers: bool = False) -> None:
        self.port = RecordingPort()
        make = ReliableClient if reliable else BestEffortClient
        self.client = make(self.port, "b", incarnation=1)
        self.shown: list[tuple[int, bool]] = []
        self.facts: list[object] = []
        self.application = Application(self.client.session, self._on_fact, lingers=lingers)
        self.port.emit = self.application.on_fact  # type: ignore[method-assign]
        self.client.start()
        self.client.link_up("b")

    def _on_fact(self, fact: object) -> None:
        if isinstance(fact, Delivered):
            assert fact.subscription == "s"
            self.shown.append((fact.stretch.sequence, fact.out_of_order))
        else:
            self.facts.append(fact)

    def start(self, *topics: str, order: Order = Order.NONE) -> None:
        self.application.start(Subscription("s", topics, None, order))

    def change(self, *topics: str) -> None:
        self.application.change("s", topics, None)

    def tell(self, *messages: Message) -> list[Message]:
        """What the client says to that."""
        self.port.sent.clear()
        for message in messages:
            self.client.receive("b", message)
        return self.said()

    def said(self) -> list[Message]:
        """Since it was last asked, of subscriptions."""
        kinds = (Subscribe, Unsubscribe, Drain, KeepBookmark)
        messages = [message for _, message in self.port.sent if isinstance(message, kinds)]
        self.port.sent.clear()
        return messages

    def wait(self, name: str) -> list[Message]:
        """Until that one was drained long enough."""
        self.port.sent.clear()
        timer = ("client", "drain", name)
        self.port.now = self.port.timers.pop(timer)
        self.client.timer(timer)
        return self.said()


def notify(sequence: int, topic: str, *subscriptions: str) -> Notify:
    return Notify(tuple(sorted(subscriptions)), make_publication("p", 0, sequence, topic, {}, b"", 0))


def subscribed(messages: list[Message]) -> list[tuple[str, tuple[str, ...]]]:
    return [(each.subscription, each.topics) for each in messages if isinstance(each, Subscribe)]


def left(messages: list[Message]) -> Forms:
    """What a next life would find."""
    state = next(each.state for each in reversed(messages) if isinstance(each, KeepBookmark))
    kept = decode_bookmark(state)
    assert isinstance(kept, Forms)
    return kept


@pytest.mark.parametrize("reliable", [True, False])
def test_the_form_before_drains_when_the_next_is_known(reliable: bool) -> None:
    bench = Bench(reliable=reliable)
    bench.start("/a")
    bench.tell(Attached(1, 0, 64), Subscribed("s"))
    bench.change("/a", "/b")
    assert subscribed(bench.said()) == [("s.2", ("/a", "/b"))]
    bench.tell(notify(1, "/a", "s", "s.2"), notify(2, "/b", "s.2"), Subscribed("s.2"))
    assert bench.facts == [SubscriptionAccepted("s"), SubscriptionChanged("s")]
    bench.tell(notify(3, "/a", "s"), notify(4, "/a", "s", "s.2"))
    assert [sequence for sequence, _ in bench.shown] == [1, 2, 3, 4]
    before = bench.port.now
    end = Drain if reliable else Unsubscribe
    assert end("s") in bench.wait("s")
    assert bench.port.now == before + DRAIN_NS
    bench.tell(Unsubscribed("s"))
    bench.application.end("s")
    assert Unsubscribe("s.2") in bench.said()


def test_of_what_drains_is_shown_what_is_wanted_or_everything() -> None:
    for lingers in (False, True):
        bench = Bench(lingers=lingers)
        bench.start("/a", "/b")
        bench.tell(Attached(1, 0, 64), Subscribed("s"))
        bench.change("/b")
        bench.tell(Subscribed("s.2"), notify(1, "/a", "s"), notify(2, "/b", "s"))
        assert [sequence for sequence, _ in bench.shown] == ([1, 2] if lingers else [2])


def test_the_last_of_several_changes_counts() -> None:
    bench = Bench()
    bench.start("/a")
    bench.tell(Attached(1, 0, 64), Subscribed("s"))
    bench.change("/b")
    bench.change("/c")
    assert subscribed(bench.said()) == [("s.2", ("/b",)), ("s.3", ("/c",))]
    assert Drain("s.2") in bench.wait("s.2")
    bench.tell(Unsubscribed("s.2"), Subscribed("s.3"))
    assert bench.facts == [SubscriptionAccepted("s"), SubscriptionChanged("s")]
    bench.change("/a")
    bench.change("/c")  # it is what it was
    assert Drain("s.4") in bench.wait("s.4")
    assert bench.facts[2:] == [SubscriptionChanged("s")]


def test_what_was_never_accepted_is_not_said_to_be_when_another_is_wanted() -> None:
    bench = Bench()
    bench.start("/a")
    bench.tell(Attached(1, 0, 64))
    bench.change("/b")
    bench.tell(Subscribed("s"))
    assert bench.facts == []
    bench.tell(Subscribed("s.2"))
    assert bench.facts == [SubscriptionAccepted("s")]


def test_a_change_that_is_refused_leaves_it_as_it_was() -> None:
    bench = Bench()
    bench.start("/a")
    bench.tell(Attached(1, 0, 64), Subscribed("s"))
    bench.change("/b")
    said = bench.tell(SubscribeFailed("s.2", "no room"))
    assert bench.facts[1:] == [ChangeFailed("s", "no room")]
    assert left(said) == Forms(2, Form(1, ("/a",), None))
    bench.tell(notify(1, "/a", "s"))
    assert [sequence for sequence, _ in bench.shown] == [1]


def test_one_that_rests_has_nothing_and_begins_anew() -> None:
    bench = Bench(lingers=True)
    bench.start("/a")
    bench.tell(Attached(1, 0, 64), Subscribed("s"))
    bench.application.rest("s")
    bench.tell(notify(1, "/a", "s"))
    bench.change("/a")
    assert subscribed(bench.said()) == [("s.2", ("/a",))]
    bench.tell(Subscribed("s.2"), notify(1, "/a", "s", "s.2"), notify(2, "/a", "s.2"))
    assert [sequence for sequence, _ in bench.shown] == [1, 2]
    assert bench.facts == [SubscriptionAccepted("s"), SubscriptionChanged("s")]


@pytest.mark.parametrize("reliable", [True, False])
def test_where_sources_are_heard_in_order_they_are_over_all_forms(reliable: bool) -> None:
    """What others at the broker have asked for may bring events to a form that is not accepted yet."""
    bench = Bench(reliable=reliable)
    bench.start("/a")
    bench.tell(Attached(1, 0, 64), Subscribed("s"), notify(5, "/a", "s"))
    bench.change("/a", "/b")
    bench.tell(notify(4, "/b", "s.2"), notify(6, "/a", "s"), notify(7, "/b", "s.2"), Subscribed("s.2"))
    assert [sequence for sequence, _ in bench.shown] == [5, *([] if reliable else [4]), 6, 7]


def test_what_is_late_is_late_though_it_comes_for_another_form() -> None:
    bench = Bench(reliable=False)
    bench.start("/a", order=Order.FIFO)
    bench.tell(Subscribed("s"))
    for number in range(2, 11):  # the tenth comes before the ninth in the broker's list
        bench.change("/a", f"/{number}")
        bench.tell(Subscribed(f"s.{number}"))
        if number == 9:
            bench.tell(notify(5, "/9", "s.9"))
    bench.tell(notify(4, "/a", "s.9", "s.10"), notify(6, "/a", "s.9", "s.10"))
    assert bench.shown == [(5, False), (4, True), (6, False)]


# --- Lives


def changed() -> Forms:
    """What one leaves that is killed in the middle of its second change."""
    bench = Bench()
    bench.start("/a", "/b")
    bench.tell(Attached(1, 0, 64), Subscribed("s"))
    assert not [each for each in bench.said() if isinstance(each, KeepBookmark)], "there is nothing to tell"
    bench.change("/b")
    said = bench.said()
    assert [type(each) for each in said] == [KeepBookmark, Subscribe], "a next life hears of it first"
    assert left(said).next == Form(2, ("/b",), None)
    bench.tell(Subscribed("s.2"))
    bench.change("/b", "/c")
    return left(bench.said())


def test_the_next_life_has_what_the_one_before_had() -> None:
    kept = changed()
    assert kept == Forms(
        3, Form(2, ("/b",), None), Form(3, ("/b", "/c"), None), (Form(1, ("/a", "/b"), None),)
    )
    bench = Bench()
    bench.start("/b", "/c")
    assert not bench.said(), "it does not know yet what it had"
    early = [notify(1, "/b", "s"), notify(2, "/b", "s.2"), notify(3, "/b", "s"), notify(4, "/b", "s", "s.2")]
    said = bench.tell(*early, KeepBookmark("s", encode_forms(kept)), Attached(1, 0, 64))
    assert subscribed(said) == [("s", ("/a", "/b")), ("s.2", ("/b",)), ("s.3", ("/b", "/c"))]
    assert [sequence for sequence, _ in bench.shown] == [1, 2, 3, 4], "in the order in which it came"
    bench.tell(Subscribed("s.2"))
    assert bench.facts == []
    bench.tell(Subscribed("s.3"))
    assert bench.facts == [SubscriptionAccepted("s")]
    assert Drain("s") in bench.wait("s") and Drain("s.2") in bench.wait("s.2")
    said = bench.tell(Unsubscribed("s"), Unsubscribed("s.2"))
    assert left(said) == Forms(3, Form(3, ("/b", "/c"), None))


def test_taken_up_one_after_the_other_it_would_come_in_another_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """The planted bug to the test above."""
    subscribe = ReliableSession.subscribe

    def one_by_one(self: ReliableSession, *subscriptions: Subscription) -> None:
        for subscription in subscriptions:
            subscribe(self, subscription)

    monkeypatch.setattr(ReliableSession, "subscribe", one_by_one)
    with pytest.raises(AssertionError, match="in the order in which it came"):
        test_the_next_life_has_what_the_one_before_had()


def test_who_wants_something_else_now_changes() -> None:
    bench = Bench()
    bench.start("/d", "/b")
    said = bench.tell(
        notify(1, "/b", "s.2"),
        notify(2, "/a", "s"),
        KeepBookmark("s", encode_forms(changed())),
        Attached(1, 0, 64),
    )
    had = [("s", ("/a", "/b")), ("s.3", ("/b", "/c")), ("s.2", ("/b",))]
    assert subscribed(said) == [*had, ("s.4", ("/d", "/b"))]
    assert Drain("s.3") in bench.wait("s.3"), "the life before may have been told that it has it"
    assert [sequence for sequence, _ in bench.shown] == [1]
    bench.tell(Subscribed("s.4"))
    assert bench.facts == [SubscriptionAccepted("s")]


def test_what_is_left_of_an_order_is_of_no_use_and_ends() -> None:
    bench = Bench()
    bench.start("/a")
    kept = OrderBookmark(1, 2, others=("s@1",), refusal=TOO_LARGE)
    said = bench.tell(KeepBookmark("s", encode_bookmark(kept)), Attached(1, 0, 64))
    assert Unsubscribe("s@1") in said and KeepBookmark("s", b"") in said
    assert subscribed(said) == [("s", ("/a",))]


def test_of_what_is_too_large_only_the_names_are_kept() -> None:
    topics = tuple(f"/{'x' * 900}/{number}" for number in range(40))
    state = encode_forms(Forms(3, Form(3, topics, None), None, (Form(2, ("/a",), None),)))
    kept = decode_bookmark(state)
    assert kept == Forms(3, None, others=(3, 2))
    bench = Bench()
    bench.start("/a")
    said = bench.tell(KeepBookmark("s", state), Attached(1, 0, 64))
    assert {Unsubscribe("s.2"), Unsubscribe("s.3")} <= set(said)
    assert subscribed(said) == [("s.4", ("/a",))]
