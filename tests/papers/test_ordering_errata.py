"""Where the pseudo-code of the ordering paper goes wrong: each erratum of the design as a regression test.

Every test plays one scenario twice on the real machines: as they are, in all orders or along a script, with nothing
wrong; and with the paper's line put back by a patch, with the wrong outcome that it leads to.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from order_explorer import (
    Operation,
    Scenario,
    World,
    explore,
    forget_fence,
    forget_ghosts,
    forget_linger,
    forget_no_ops,
    run_priorities,
    take_shortcuts,
)
from tidings.model.ordering_messages import (
    ChangeSubscription,
    Create,
    CreateRelay,
    EventStamps,
    SubscribeWalk,
)
from tidings.protocol.sequencing import subscriber as subscriber_module
from tidings.protocol.sequencing.publisher import EventStamped
from tidings.protocol.sequencing.server import SequencerServer
from tidings.protocol.sequencing.stamps import Timestamp
from tidings.protocol.sequencing.subscriber import NOT_SUBSCRIBED, OrderedSubscriber


def scenario(
    subscribers: dict[str, tuple[int, ...]], starts: tuple[int, ...] = (0, 1), **scripts: list[Operation]
) -> Scenario:
    return Scenario(subscribers, scripts, starts=starts, topics=4, prompt_publishers=True)


def publish(*topics: int) -> list[Operation]:
    return [("publish", topic) for topic in topics]


def assert_only_the_flaw_fails(played: Scenario, put_back: Callable[[], None], symptom: str) -> None:
    """All orders are right; with the flaw one is wrong, and in that way."""
    right = explore(played, max_states=40_000)
    assert right.complete
    assert right.violations == []
    put_back()
    assert explore(played, max_states=40_000, symptom=symptom).violations != []


TOGETHER = scenario({"s": (0, 1), "t": (0, 1)}, p=publish(0), q=publish(1))
"""Two subscribers of the same two topics, and an event of each: static."""


def test_e1_a_clock_is_raised_to_the_new_value(monkeypatch: pytest.MonkeyPatch) -> None:
    """Figure 17, lines 14 and 25: with the value before the event, the two events do not know of each other."""

    def old_value(self: SequencerServer, relay: CreateRelay) -> None:
        self._learn((relay.topic,), (relay.base,))
        self._learn(relay.index, relay.values)

    def put_back() -> None:
        monkeypatch.setattr(SequencerServer, "_learn_event", old_value)

    assert_only_the_flaw_fails(TOGETHER, put_back, "before")


def test_e2_entries_of_topics_that_are_not_subscribed_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """isNext wants every topic of the timestamp in the clock: u, with one topic of the group, is never notified."""
    played = scenario({"s": (0, 1), "t": (0, 1), "u": (1,)}, q=publish(1))

    def put_back() -> None:
        monkeypatch.setattr(subscriber_module, "NOT_SUBSCRIBED", -1)

    assert_only_the_flaw_fails(played, put_back, "u never saw")


def test_e3_a_clock_that_has_gone_on_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    """isNext wants equality: s waits for ever with an event whose entry was overtaken."""
    moving: list[Operation] = [("unsubscribe", 1), ("subscribe", 0)]
    played = scenario({"s": (0, 1), "t": (1,)}, p=publish(0), q=publish(1), t=moving)

    def equal(self: OrderedSubscriber, queue: Any) -> bool:
        for position, (rank, value) in enumerate(zip(queue.index, queue.values, strict=True)):
            if self.clock[rank] not in (value, NOT_SUBSCRIBED):
                queue.position = position
                return False
        return True

    def put_back() -> None:
        monkeypatch.setattr(OrderedSubscriber, "_is_next", equal)

    assert_only_the_flaw_fails(played, put_back, "in its buffer")


def test_e4_the_event_itself_raises_the_clock_of_its_topic(monkeypatch: pytest.MonkeyPatch) -> None:
    """Figure 17, line 02: the test for an update skips T itself."""

    def only_entries(self: SequencerServer, relay: CreateRelay) -> None:
        self._learn(relay.index, relay.values)

    def put_back() -> None:
        monkeypatch.setattr(SequencerServer, "_learn_event", only_entries)

    assert_only_the_flaw_fails(TOGETHER, put_back, "before")


def test_e5_whatever_passes_raises_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Figure 17, line 02, wants all the receiver's topics in the timestamp: who has one more learns nothing."""
    played = scenario({"s": (0, 2), "t": (0, 2)}, starts=(0, 2), p=publish(0), q=publish(2))
    learn_event = SequencerServer._learn_event

    def if_all_are_in(self: SequencerServer, relay: CreateRelay) -> None:
        if {*self.own} <= {*relay.index}:
            learn_event(self, relay)

    def put_back() -> None:
        monkeypatch.setattr(SequencerServer, "_learn_event", if_all_are_in)

    assert_only_the_flaw_fails(played, put_back, "before")


def take_numbers_for_walks(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the paper a subscription increments the clocks of its topics."""
    walk = SequencerServer._walk

    def incrementing(self: SequencerServer, message: SubscribeWalk) -> None:
        for topic in message.topics:
            if topic in self.own:
                self.clock[topic] += 1
        walk(self, message)

    monkeypatch.setattr(SequencerServer, "_walk", incrementing)


def test_e6_a_subscription_makes_no_dummy_events(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its dummy comes once per topic: who has both is shown two events that nobody published."""

    def play() -> World:
        return World(scenario({"s": (0, 1), "t": ()}, t=[("change", (0, 1), ())], starts=(0,))).run()

    world = play()
    assert world.shown["s"] == []
    assert world.servers["m0"].clock == [0, 0, 0, 0]

    take_numbers_for_walks(monkeypatch)
    on_walk_done = OrderedSubscriber.on_walk_done

    def with_dummies(self: OrderedSubscriber, sender: str, message: Any) -> None:
        on_walk_done(self, sender, message)
        for topic, value in zip(message.index, message.values, strict=True):
            self.port.emit(EventStamped(Timestamp(topic, value), "dummy", ("", 0)))

    monkeypatch.setattr(OrderedSubscriber, "on_walk_done", with_dummies)
    assert [number for number, _ in play().shown["s"]] == [(0, 2), (1, 2)]


def test_e7_a_subscription_sets_the_clock_of_the_new_topic_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Figure 18a, line 09, overwrites the others, whose events are on their way: they are never shown."""
    played = scenario({"s": (0,), "t": (0, 1)}, p=publish(0), s=[("subscribe", 1)])
    complete = OrderedSubscriber._complete

    def overwrite(
        self: OrderedSubscriber, change: Any, walk: dict[int, int], before: tuple[int, ...]
    ) -> None:
        complete(self, change, walk, before)
        for topic in before:
            self.clock[topic] = walk[topic]

    def put_back() -> None:
        monkeypatch.setattr(OrderedSubscriber, "_complete", overwrite)

    assert_only_the_flaw_fails(played, put_back, "s never saw")


def test_e8_of_two_values_for_a_topic_the_higher_one_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Figure 18b, line 05: a union of sets leaves two pairs for one topic, and the old one may be used."""
    played = scenario({"s": (0, 1), "t": (0, 1)}, p=publish(0), q=publish(1, 1))

    def first_pair(self: SequencerServer, index: tuple[int, ...], values: tuple[int, ...]) -> None:
        for rank, value in zip(index, values, strict=True):
            if rank >= self.own.stop and not self.clock[rank]:
                self.clock[rank] = value

    def put_back() -> None:
        monkeypatch.setattr(SequencerServer, "_learn", first_pair)

    assert_only_the_flaw_fails(played, put_back, "before")


def test_e9_the_clock_of_a_topic_goes_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Left in place it stands still, and events that name the topic wait for ever."""
    played = scenario(
        {"s": (0, 1), "t": (0, 1), "u": (0, 1)}, p=publish(0), q=publish(1), t=[("unsubscribe", 1)]
    )

    def keep_the_clock(self: OrderedSubscriber, topic: int) -> None:
        self._queues.pop(topic, None)

    def put_back() -> None:
        monkeypatch.setattr(OrderedSubscriber, "_drop", keep_the_clock)

    assert_only_the_flaw_fails(played, put_back, "t has 1 events in its buffer")


def test_e10_nothing_of_a_topic_is_shown_after_it_was_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the paper what is buffered then is notified later."""
    played = scenario({"s": (0, 1), "t": (0, 1)}, p=publish(0), q=publish(1), t=[("unsubscribe", 1)])

    def put_back() -> None:
        monkeypatch.setattr(OrderedSubscriber, "_drop", lambda self, topic: None)

    assert_only_the_flaw_fails(played, put_back, "of a topic that it has not")


def test_s1_every_server_between_relays(monkeypatch: pytest.MonkeyPatch) -> None:
    """{0,2,3} twice and {1,2} twice: the event of 2 goes by 1 to 0, that of 3 goes to 0 directly and overtakes it."""
    played = scenario(
        {"s": (0, 2, 3), "t": (0, 2, 3), "u": (1, 2), "v": (1, 2)},
        starts=(0, 1, 2, 3),
        p=publish(2),
        q=publish(3),
        r=publish(0),
    )
    assert_only_the_flaw_fails(played, lambda: take_shortcuts(monkeypatch), "in its buffer")


def test_s2_also_where_subscriptions_make_a_cycle(monkeypatch: pytest.MonkeyPatch) -> None:
    """{0,1}, {1,2}, {2,3}, {0,3} twice without a chord, and one subscriber of all four."""
    played = scenario(
        {
            **{f"{name}{twice}": pair for name, pair in CYCLE.items() for twice in "12"},
            "all": (0, 1, 2, 3),
        },
        starts=(0, 1, 2, 3),
        p=publish(3),
        q=publish(2),
        r=publish(1),
    )
    assert [violation for seed in range(40) if (violation := run_priorities(played, seed))] == []
    take_shortcuts(monkeypatch)
    assert any(run_priorities(played, seed) for seed in range(40))


CYCLE = {"a": (0, 1), "b": (1, 2), "c": (2, 3), "d": (0, 3)}


@pytest.mark.parametrize(
    ("others", "symptom"),
    [({"t": (0, 2)}, "before"), ({"t": (0, 2), "u": (0, 2)}, "in its buffer")],
    ids=["inverted with one", "deadlock with two"],
)
def test_s3_a_walk_is_not_overtaken(
    others: dict[str, tuple[int, ...]], symptom: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """s joins 2 by way of 1; an event of 2 goes to 0 directly."""
    played = scenario(
        {"s": (0, 1), **others}, starts=(0, 1, 2), p=publish(2), q=publish(0), s=[("subscribe", 2)]
    )
    assert_only_the_flaw_fails(played, lambda: take_shortcuts(monkeypatch), symptom)


def test_s4_a_topic_that_left_the_group_lingers(monkeypatch: pytest.MonkeyPatch) -> None:
    """t saw the event of 1 and leaves 1; the event of 0 has no entry for it, and overtakes it at s."""
    played = scenario({"s": (0, 1), "t": (0, 1)}, p=publish(0), q=publish(1), t=[("unsubscribe", 1)])
    assert_only_the_flaw_fails(played, lambda: forget_linger(monkeypatch), "before")


def test_s5_the_topics_that_a_subscriber_left_follow_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """t moves from 1 to 0 and never has both; s does."""
    moving: list[Operation] = [("unsubscribe", 1), ("subscribe", 0)]
    played = scenario({"s": (0, 1), "t": (1,)}, p=publish(0), q=publish(1), t=moving)
    assert_only_the_flaw_fails(played, lambda: forget_ghosts(monkeypatch), "before")


def test_s6_a_new_topic_waits_for_the_old_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """t joins 1 while s leaves 0: nobody shares the pair, and each orders the two events as they come.

    That all orders are right with the rule is in tests/protocol/sequencing/test_small_scenarios.py.
    """
    played = scenario(
        {"s": (0, 1), "t": (0,)},
        p=publish(0),
        q=publish(1),
        s=[("unsubscribe", 0)],
        t=[("subscribe", 1)],
    )
    forget_fence(monkeypatch)
    assert explore(played, max_states=40_000, symptom="before").violations != []


def test_s7_an_old_change_of_subscription_is_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    """t asks for 1, then for 0 as well; the first request comes once more. The servers believe that t has left 0."""

    def play() -> World:
        joining: list[Operation] = [("subscribe", 1), ("subscribe", 0)]
        world = World(scenario({"s": (0, 1), "t": ()}, t=joining))
        world.act(("op", "t"))
        (stale,) = [item for item in world.bag if isinstance(item[-1], ChangeSubscription)]
        world.run()
        world.bag.append(stale)
        return world.run()

    assert play().servers["m1"].groups.members(1) == {0}
    monkeypatch.setattr(SequencerServer, "_version", lambda self, subscriber: 0)
    assert play().servers["m1"].groups.members(1) == set()


def test_s8_a_repeated_request_takes_no_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Numbers that no event has are waited for, for ever."""

    def play() -> World:
        world = World(Scenario({"s": (0,)}, {"p": publish(0, 0)}, starts=(0,), topics=1))
        world.act(("op", "p"))
        world.bag *= 2
        return world.run()

    assert play().violations() == []
    on_create = SequencerServer.on_create

    def burn(self: SequencerServer, sender: str, message: Create) -> None:
        requests = self._requests.get(message.publisher)
        if requests is not None and message.request < requests.next:
            self.clock[message.topic] += message.count
        on_create(self, sender, message)

    monkeypatch.setattr(SequencerServer, "on_create", burn)
    assert "number 2 of topic 0 became no event" in play().violations()


def test_s9_what_a_dead_publisher_did_not_publish_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    """It dies between its request and the answer; the next event waits for the number."""

    def play() -> World:
        dying: list[Operation] = [*publish(0), ("crash",)]
        world = World(Scenario({"s": (0,)}, {"p": dying, "q": []}, starts=(0,), topics=1))
        world.act(("op", "p"))
        world.run(without=lambda item: isinstance(item[-1], EventStamps))
        world.scripts["q"].extend(publish(0))
        return world.run()

    world = play()
    assert world.violations() == []
    assert world.shown["s"] == [((0, 2), False)]
    forget_no_ops(monkeypatch)
    assert "s has 1 events in its buffer" in play().violations()


def test_s10_a_subscriber_that_dies_leaves_no_gap(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the paper it owes dummies for the numbers that its subscription took."""

    def play() -> World:
        world = World(scenario({"s": (0, 1), "t": ()}, p=[], t=[("subscribe", 0)]))
        world.act(("op", "t"))
        world.crashed.add("t")
        world.run()
        world.scripts["p"].extend(publish(0))
        return world.run()

    assert [number for number, _ in play().shown["s"]] == [(0, 1)]
    take_numbers_for_walks(monkeypatch)
    world = play()
    assert world.shown["s"] == []
    assert world.subscribers["s"].buffered == 1


def test_s11_the_chain_is_fifo() -> None:
    """Without it an older stamp passes a server after a newer one."""
    subscribers = {"s": (0, 1), "t": (0, 1)}
    scripts = {"p": publish(1, 1), "q": publish(0)}

    def play(fifo: bool) -> list[str]:
        played = Scenario(
            subscribers, scripts, starts=(0, 1), topics=2, prompt_publishers=True, fifo_chain=fifo
        )
        return explore(played).violations

    assert play(True) == []
    assert play(False) != []
