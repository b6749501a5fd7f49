"""What is published in runs is shown as if it came event by event, wherever the runs are cut."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recording_port import RecordingPort
from tidings.core.client.session import BestEffortClient
from tidings.core.events.run import Run, RunMaker, Stretch, singles
from tidings.core.events.subscription import Order, Subscription, make_interest
from tidings.core.facts import Delivered, Misbehaviour
from tidings.core.messages import Confirm, Message, Notify, PublishFailed, Subscribe
from tidings.core.overlay.best_effort.broker import Broker
from tidings.core.overlay.messages import AddInterest, Changes, LinkOpen
from tidings.core.structures.recent_ids import RecentIds
from tidings.core.wire.codec import decode, encode

SUBSCRIPTIONS = (
    Subscription("all", ("/**",), None, Order.FIFO),
    Subscription("small", ("/a",), "x < 3", Order.NONE),
    Subscription("even", ("/a", "/b"), "even = TRUE", Order.FIFO),
)


def stretches_of(sizes: list[int], topics: list[str]) -> list[Stretch]:
    """A source's events, so many in each stretch."""
    maker, sequence, made = RunMaker("p", 3), 1, []
    for size in sizes:
        for _ in range(size):
            topic = topics[sequence % len(topics)]
            maker.add(sequence, topic, {"x": sequence % 7, "even": sequence % 2 == 0}, b"", 0)
            sequence += 1
        made += maker.take_all()
    return made


def again(message: Message, *, travels: bool) -> Message:
    """As the other side of a connection has it, or of a link in one process."""
    (back,) = decode(encode(message)) if travels else (message,)
    return back


class Path:
    """From a neighbour through a broker to a client with three subscriptions."""

    def __init__(self, *, takes_runs: bool, travels: bool) -> None:
        self.travels = travels
        self.port, self.client_port = RecordingPort("b"), RecordingPort("c")
        self.broker = self.start()
        self.client = BestEffortClient(self.client_port, "b")
        self.client.session.takes_runs = takes_runs
        for subscription in SUBSCRIPTIONS:
            self.client.subscribe(subscription)

    def start(self) -> Broker:
        """A broker that knows nothing of earlier events."""
        broker = Broker(self.port, ("n", "m"), incarnation=9)
        broker.start()
        for peer in ("n", "m"):
            broker.receive(peer, LinkOpen(1, 9, False))
        for held in SUBSCRIPTIONS:
            broker.receive("c", Subscribe(held.id, held.topics, held.filter, held.order))
        interest = make_interest(("/a",), "x > 4")
        broker.receive("m", Changes(1, 9, 1, (AddInterest(interest.key, ("/a",), "x > 4", 1),)))
        self.broker = broker
        return broker

    def send(self, stretch: Stretch) -> None:
        self.port.sent.clear()
        self.broker.receive("n", again(stretch, travels=self.travels))
        for to, message in self.port.sent:
            if to == "c" and isinstance(message, Notify):
                self.client.receive("b", again(message, travels=self.travels))

    def forwarded(self) -> list[int]:
        return [
            single.sequence
            for to, message in self.port.sent
            if to == "m" and not isinstance(message, Notify | Changes | LinkOpen)
            for single in singles(message)  # type: ignore[arg-type]
        ]

    def shown(self) -> dict[str, list[tuple[int, bool]]]:
        found: dict[str, list[tuple[int, bool]]] = {}
        for fact in self.client_port.facts:
            if isinstance(fact, Delivered):
                sequences = [single.sequence for single in singles(fact.stretch)]
                found.setdefault(fact.subscription, []).extend(
                    (each, fact.out_of_order) for each in sequences
                )
        return found


@settings(max_examples=80, deadline=None)
@given(
    st.lists(st.integers(1, 9), min_size=1, max_size=6),
    st.sampled_from([["/a"], ["/a", "/b"], ["/a", "/b", "/c"]]),
    st.data(),
)
def test_runs_are_shown_as_their_events_are_one_by_one(
    sizes: list[int], topics: list[str], data: st.DataObject
) -> None:
    made = stretches_of(sizes, topics)
    travels = data.draw(st.booleans())
    whole = Path(takes_runs=data.draw(st.booleans()), travels=travels)
    apart = Path(takes_runs=False, travels=False)
    # In any order, some again, some cut where an earlier broker had cut them, one broker crashing on the way.
    script = data.draw(st.lists(st.sampled_from(made), max_size=10)) + made
    crashes_at = data.draw(st.integers(0, len(script)))
    for place, stretch in enumerate(script):
        if place == crashes_at:
            whole.start()
            apart.start()
        if isinstance(stretch, Run):
            first = data.draw(st.integers(stretch.first, stretch.last))
            stretch = stretch.cut(first, data.draw(st.integers(first, stretch.last)))
        whole.send(stretch)
        forwarded = whole.forwarded()
        one_by_one: list[int] = []
        for single in singles(stretch):
            apart.send(single)
            one_by_one += apart.forwarded()
        assert forwarded == one_by_one
    assert whole.shown() == apart.shown()
    assert whole.broker.tree.duplicates == apart.broker.tree.duplicates


def test_a_run_on_a_topic_without_filters_stays_whole() -> None:
    port = RecordingPort("b")
    broker = Broker(port, (), incarnation=9)
    for client in ("c1", "c2"):
        broker.receive(client, Subscribe("s", ("/a",), None, "none"))
    (run,) = stretches_of([9], ["/a"])
    assert isinstance(run, Run)
    port.sent.clear()
    broker.receive("p", run)
    assert [message for to, message in port.sent if to == "p"] == [Confirm(3, 1, 9)]
    notices = [message for to, message in port.sent if to != "p"]
    assert [notice.stretch is run for notice in notices if isinstance(notice, Notify)] == [True, True]
    assert run.contents is None  # nobody looked


def test_a_client_does_not_publish_runs_as_somebody_else() -> None:
    port = RecordingPort("b")
    broker = Broker(port, (), incarnation=9)
    (run,) = stretches_of([3], ["/a"])
    broker.receive("q", run)
    failed = [message for _, message in port.sent]
    assert [type(message) for message in failed] == [PublishFailed] * 3
    assert [message.sequence for message in failed if isinstance(message, PublishFailed)] == [1, 2, 3]
    assert [type(fact) for fact in port.facts] == [Misbehaviour]


def test_an_event_of_a_run_that_a_filter_cannot_read_is_left_out() -> None:
    path = Path(takes_runs=True, travels=False)
    (run,) = stretches_of([4], ["/a"])
    assert isinstance(run, Run)
    body = bytes(run.body).replace(b"\xa1x\x02", b"\xa1\xff\x02")  # a name in event 2 that is no text
    path.send(Run("p", 3, 1, 4, "/a", memoryview(body), len(body)))
    (complaint,) = [fact for fact in path.port.facts if isinstance(fact, Misbehaviour)]
    assert complaint.what.startswith("event p~3:2: attributes do not decode")
    assert path.shown()["all"] == [(1, False), (3, False), (4, False)]
    assert path.shown()["even"] == [(4, False)]


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 60), st.integers(0, 30)), max_size=12), st.integers(1, 20))
def test_ranges_are_seen_as_their_numbers_are_one_by_one(ranges: list[tuple[int, int]], window: int) -> None:
    together, apart = RecentIds(window), RecentIds(window)
    for first, more in ranges:
        fresh = together.fresh("p", 0, first, first + more)
        assert all(left[1] + 1 < right[0] for left, right in pairwise(fresh))
        numbers = [number for begin, end in fresh for number in range(begin, end + 1)]
        expected = [number for number in range(first, first + more + 1) if apart.first_time("p", 0, number)]
        assert numbers == expected
        assert together.stale == apart.stale


@pytest.mark.parametrize("count", [2, 40])
def test_a_publisher_sends_what_it_added_together(count: int) -> None:
    port = RecordingPort("p")
    client = BestEffortClient(port, "b", incarnation=3)
    for number in range(count):
        client.session.add("/a", {"x": number}, b"", 0)
    assert port.sent == []
    single = client.publish("/a", {}, b"", 0)
    client.flush()
    (_, run), (_, last) = port.sent
    assert isinstance(run, Run)
    assert (run.first, run.last) == (1, count)
    assert last is single
    assert single.sequence == count + 1
