"""Where the pseudo-code of the ordering paper goes wrong: each erratum of the design as a regression test.

Every test plays one scenario twice on the real machines: as they are, in all orders or along a script, with nothing
wrong; and with the paper's line put back by a patch, with the wrong outcome that it leads to. The errata of dummy
events, which our machines do not have (E4, E5, E6, S10), are in test_ordering_errata_dummies.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, ClassVar

import pytest
from msgspec import Struct

from order_explorer import (
    LoggedServer,
    Operation,
    Scenario,
    World,
    explore,
    forget_fence,
    forget_ghosts,
    forget_linger,
    forget_no_ops,
    notify,
    operate,
    replay,
    run_priorities,
    take_shortcuts,
)
from tidings.core.events.timestamp import Timestamp
from tidings.core.ordering import subscriber as subscriber_module
from tidings.core.ordering.messages import Create, CreateRelay, EventStamps, Identity, SubscribeWalk
from tidings.core.ordering.server.server import SequencerServer
from tidings.core.ordering.subscriber import NOT_SUBSCRIBED, OrderedSubscriber


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


def test_e1_a_clock_is_raised_to_the_new_value(monkeypatch: pytest.MonkeyPatch) -> None:
    """E1. Figure 17, lines 14 and 25: with the value v from before it, the topic's second event is never next."""
    played = scenario({"s": (0,)}, p=publish(0, 0))
    take_turn = OrderedSubscriber._pass

    def old_value(self: OrderedSubscriber, topic: int, *shown: Any) -> None:
        value = self.clock[topic]
        take_turn(self, topic, *shown)
        self.clock[topic] = value

    def put_back() -> None:
        monkeypatch.setattr(OrderedSubscriber, "_pass", old_value)

    assert_only_the_flaw_fails(played, put_back, "s has 1 events in its buffer")


def test_e2_entries_of_topics_that_are_not_subscribed_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """E2. isNext wants every topic of the timestamp in the clock: u, with one topic of the group, is never notified."""
    played = scenario({"s": (0, 1), "t": (0, 1), "u": (1,)}, q=publish(1))

    def put_back() -> None:
        monkeypatch.setattr(subscriber_module, "NOT_SUBSCRIBED", -1)

    assert_only_the_flaw_fails(played, put_back, "u never saw")


def equal_clocks(self: OrderedSubscriber, queue: Any) -> bool:
    """isNext, without E2: the clocks are equal to the entries."""
    for position, (rank, value) in enumerate(zip(queue.index, queue.values, strict=True)):
        if self.clock[rank] not in (value, NOT_SUBSCRIBED):
            queue.position = position
            return False
    return True


def test_e3_a_clock_that_has_gone_on_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    """E3. isNext wants equality: t leaves 1 when e0 is stamped {0:1, 1:0}; e1, stamped {1:1}, overtakes e0 at s."""

    def play() -> World:
        world = World(scenario({"s": (0, 1), "t": (0, 1)}, p=[], q=[], t=[]))
        operate(world, "p", ("publish", 0))
        assert world.stamps[0, 1] == Timestamp(0, 1, (1,), (0,))
        operate(world, "t", ("unsubscribe", 1))
        operate(world, "q", ("publish", 1))
        notify(world, "s", (1, 1), (0, 1))
        return world.run()

    assert play().violations() == []
    forget_linger(monkeypatch)  # with rule 1, which the paper lacks, e1 waits for e0
    world = play()
    assert world.stamps[1, 1] == Timestamp(1, 1)
    assert world.violations() == []
    monkeypatch.setattr(OrderedSubscriber, "_is_next", equal_clocks)
    assert "s has 1 events in its buffer" in play().violations()


def test_e3_also_with_all_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    """E3. Equality alone: t moves from 1 to 0, and some order makes s wait for ever."""
    moving: list[Operation] = [("unsubscribe", 1), ("subscribe", 0)]
    played = scenario({"s": (0, 1), "t": (1,)}, p=publish(0), q=publish(1), t=moving)

    def put_back() -> None:
        monkeypatch.setattr(OrderedSubscriber, "_is_next", equal_clocks)

    assert_only_the_flaw_fails(played, put_back, "in its buffer")


def test_e7_a_subscription_sets_the_clock_of_the_new_topic_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """E7. Figure 18a, line 09, overwrites the others, whose events are on their way: they are never shown."""
    played = scenario({"s": (0,), "t": (0, 1)}, p=publish(0), s=[("subscribe", 1)])
    complete = OrderedSubscriber._complete

    def overwrite(
        self: OrderedSubscriber, change: Any, walk: dict[int, int], before: tuple[int, ...], *rest: Any
    ) -> None:
        complete(self, change, walk, before, *rest)
        for topic in before:
            self.clock[topic] = walk[topic]

    def put_back() -> None:
        monkeypatch.setattr(OrderedSubscriber, "_complete", overwrite)

    assert_only_the_flaw_fails(played, put_back, "s never saw")


def test_e8_of_two_values_for_a_topic_the_higher_one_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """E8. Figure 18b, line 05: the union keeps the pair (1, 0) beside the walk's (1, 1), and may be used."""
    joining: list[Operation] = [("subscribe", 0)]
    played = scenario({"s": (0, 1), "t": (1,)}, p=publish(0), q=publish(1), t=joining)
    walk = SequencerServer._walk

    def older_pair(self: SequencerServer, message: SubscribeWalk) -> None:
        before = self.clock[self.own.stop :]
        walk(self, message)
        self.clock[self.own.stop :] = before

    def put_back() -> None:
        monkeypatch.setattr(SequencerServer, "_walk", older_pair)

    assert_only_the_flaw_fails(played, put_back, "before")


def test_e9_the_clock_of_a_topic_goes_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """E9. Left in place it stands still, and events that name the topic wait for ever."""
    played = scenario(
        {"s": (0, 1), "t": (0, 1), "u": (0, 1)}, p=publish(0), q=publish(1), t=[("unsubscribe", 1)]
    )

    def keep_the_clock(self: OrderedSubscriber, topic: int) -> None:
        self._queues.pop(topic, None)

    def put_back() -> None:
        monkeypatch.setattr(OrderedSubscriber, "_drop", keep_the_clock)

    assert_only_the_flaw_fails(played, put_back, "t has 1 events in its buffer")


def test_e10_nothing_of_a_topic_is_shown_after_it_was_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """E10. Figure 17, line 20, does not ask for the topic: what is buffered when it is left is notified later."""
    played = scenario({"s": (0, 1), "t": (0, 1)}, p=publish(0), q=publish(1), t=[("unsubscribe", 1)])
    receive = OrderedSubscriber.receive

    def of_its_topics(self: OrderedSubscriber, stamp: Timestamp, event: object, count: int) -> None:
        if stamp.topic in self._wanted:  # line 09 asks
            receive(self, stamp, event, count)

    def put_back() -> None:
        monkeypatch.setattr(OrderedSubscriber, "_drop", lambda self, topic: None)
        monkeypatch.setattr(OrderedSubscriber, "receive", of_its_topics)

    assert_only_the_flaw_fails(played, put_back, "of a topic that it has not")


def test_s1_every_server_between_relays(monkeypatch: pytest.MonkeyPatch) -> None:
    """S1. {0,2,3} twice and {1,2} twice: the event of 2 goes by 1 to 0, that of 3 directly, and overtakes it."""
    played = scenario(
        {"s": (0, 2, 3), "t": (0, 2, 3), "u": (1, 2), "v": (1, 2)},
        starts=(0, 1, 2, 3),
        p=publish(2),
        q=publish(3),
        r=publish(0),
    )
    assert_only_the_flaw_fails(played, lambda: take_shortcuts(monkeypatch), "in its buffer")


def test_s2_also_where_subscriptions_make_a_cycle(monkeypatch: pytest.MonkeyPatch) -> None:
    """S2. {0,1}, {1,2}, {2,3}, {0,3} without a chord, and one subscriber of all: its four events wait for each other.

    The event of 3 has been at 2 and is late at 0, where those of 1, which knows that of 2, and 0 are before it.
    """
    played = scenario(
        {"a": (0, 1), "b": (1, 2), "c": (2, 3), "d": (0, 3), "all": (0, 1, 2, 3)},
        starts=(0, 1, 2, 3),
        **{f"p{topic}": publish(topic) for topic in (3, 2, 1, 0)},
    )

    def play() -> World:
        world = World(played)

        def is_late(action: tuple[Any, ...]) -> bool:
            head = world.links[action[1:]][0] if action[0] == "chain" and action[2] == "m0" else None
            return isinstance(head, CreateRelay) and head.topic == 3

        for name in played.scripts:
            world.act(("op", name))
            while ready := [
                action for action in world.actions() if action[0] != "op" and not is_late(action)
            ]:
                world.act(ready[0])
        return world.run()

    assert play().violations() == []
    assert [violation for seed in range(40) if (violation := run_priorities(played, seed))] == []
    take_shortcuts(monkeypatch)
    assert "all has 4 events in its buffer" in play().violations()


@pytest.mark.parametrize(
    ("others", "symptom"),
    [({"t": (0, 2)}, "before"), ({"t": (0, 2), "u": (0, 2)}, "in its buffer")],
    ids=["inverted with one", "deadlock with two"],
)
def test_s3_a_walk_is_not_overtaken(
    others: dict[str, tuple[int, ...]], symptom: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S3. s joins 2 by way of 1; an event of 2 goes to 0 directly."""
    played = scenario(
        {"s": (0, 1), **others}, starts=(0, 1, 2), p=publish(2), q=publish(0), s=[("subscribe", 2)]
    )
    assert_only_the_flaw_fails(played, lambda: take_shortcuts(monkeypatch), symptom)


def test_s4_a_topic_that_left_the_group_lingers(monkeypatch: pytest.MonkeyPatch) -> None:
    """S4. t saw the event of 1 and leaves 1; the event of 0 has no entry for it, and overtakes it at s."""
    played = scenario({"s": (0, 1), "t": (0, 1)}, p=publish(0), q=publish(1), t=[("unsubscribe", 1)])
    assert_only_the_flaw_fails(played, lambda: forget_linger(monkeypatch), "before")


def test_s5_the_topics_that_a_subscriber_left_follow_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """S5. t moves from 1 to 0 and never has both; s does."""
    moving: list[Operation] = [("unsubscribe", 1), ("subscribe", 0)]
    played = scenario({"s": (0, 1), "t": (1,)}, p=publish(0), q=publish(1), t=moving)
    assert_only_the_flaw_fails(played, lambda: forget_ghosts(monkeypatch), "before")


def test_s6_a_new_topic_waits_for_the_old_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """S6. t joins 1 while s leaves 0: nobody shares the pair, and each orders the two events as they come.

    That all orders are right with the rule is in tests/core/ordering/test_small_scenarios.py.
    """
    played = scenario(
        {"s": (0, 1), "t": (0,)},
        p=publish(0),
        q=publish(1),
        s=[("unsubscribe", 0)],
        t=[("subscribe", 1)],
    )
    with monkeypatch.context() as without_the_rule:
        forget_fence(without_the_rule)
        wrong = explore(played, max_states=40_000, symptom="before")
    assert wrong.violations != []
    assert replay(played, wrong.path).run().violations() == []


class UpdateSub(Struct, frozen=True):
    """Figure 19: to one topic manager, the topics that a subscriber has left; none if it left this one."""

    subscriber: Identity
    topics: tuple[int, ...]


class UpdatedServer(LoggedServer):
    """Figure 19b."""

    handles: ClassVar = {**SequencerServer.handles, UpdateSub: "on_update_sub"}

    def on_update_sub(self, sender: str, message: UpdateSub) -> None:
        version, old = self._subscriptions[message.subscriber]
        self._subscriptions[message.subscriber] = version, frozenset(message.topics)
        self.groups.change(old, frozenset(message.topics), ())


class UpdatingSubscriber(OrderedSubscriber):
    """Figure 19a."""

    def change(self, add: Iterable[int], remove: Iterable[int]) -> None:
        if add:
            super().change(add, remove)
            return
        managed, self._topics = self._topics, self._topics.difference(remove)
        self._wanted.difference_update(remove)
        for topic in remove:
            self._drop(topic)
        for topic in managed:
            topics = tuple(sorted(self._topics)) if topic in self._topics else ()
            update: Any = UpdateSub(self.identity, topics)
            self.port.send(self._chain.server_of(topic), update)


class UpdatesWorld(World):
    def _server(self, name: str) -> LoggedServer:
        return UpdatedServer(self._port(name), self.chain, threshold=2)

    def _subscriber(self, name: str) -> OrderedSubscriber:
        return UpdatingSubscriber(self._port(name), self.chain, threshold=2)


def leave_and_return(world: World, notice: str) -> list[str]:
    """t leaves 1 and joins it again. Notice of the first comes on time, late, or once more in the end."""
    world.act(("op", "t"))
    stale = [item for item in world.bag if item[0] == "datagram"]
    world.run(without=lambda item: notice == "late" and item in stale)
    if notice == "again":
        world.bag += stale
    world.run()
    for number in (1, 2):  # the first ones have entries by rule 1
        operate(world, "p", ("publish", 0))
        operate(world, "q", ("publish", 1))
        notify(world, "s", (0, number), (1, number))
        notify(world, "t", (1, number), (0, number))
    return world.run().violations()


def test_s7_a_stale_update_does_not_undo_a_subscription(monkeypatch: pytest.MonkeyPatch) -> None:
    """S7. Figure 19: an UPDATE_SUB comes after the walk of the re-subscription; the managers believe that t has left 1.

    With us leaving is a walk, too, the next one waits for it, and old versions are ignored.
    """
    returning: list[Operation] = [("unsubscribe", 1), ("subscribe", 1)]
    played = scenario({"s": (0, 1), "t": (0, 1)}, p=[], q=[], t=returning)
    for notice in ("on time", "late", "again"):
        assert leave_and_return(World(played), notice) == []
    inverted = "s saw (0, 2) before (1, 2), t after it"
    assert leave_and_return(UpdatesWorld(played), "on time") == []
    assert inverted in leave_and_return(UpdatesWorld(played), "late")
    monkeypatch.setattr(SequencerServer, "_version", lambda self, subscriber: 0)
    assert inverted in leave_and_return(World(played), "again")


def test_s8_a_repeated_request_takes_no_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    """S8. Figure 16b, lines 01 to 07, stamps it again: numbers that no event has are waited for, for ever."""

    def play() -> World:
        world = World(Scenario({"s": (0,)}, {"p": publish(0, 0)}, starts=(0,), topics=1))
        world.act(("op", "p"))
        world.bag *= 2
        return world.run()

    assert play().violations() == []
    on_create = SequencerServer.on_create

    def stamp_again(self: SequencerServer, sender: str, message: Create) -> None:
        if message.publisher in self._requests:
            self._requests[message.publisher].next = message.request
        on_create(self, sender, message)

    monkeypatch.setattr(SequencerServer, "on_create", stamp_again)
    violations = play().violations()
    assert "number 2 of topic 0 became no event" in violations
    assert "s has 1 events in its buffer" in violations


def test_s9_what_a_dead_publisher_did_not_publish_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    """S9. It dies between its request and the answer; the next event waits for the number."""

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


class RetryingServer(LoggedServer):
    """Lets a repeated request climb again, as it was stamped, in place of a chain that loses nothing."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.relays: dict[tuple[Identity, int], CreateRelay] = {}

    def _climb(self, message: Any, last: str) -> None:
        if isinstance(message, CreateRelay):
            self.relays[message.publisher, message.request] = message
        super()._climb(message, last)

    def _repeat(self, publisher: Identity, requests: Any, request: int) -> None:
        super()._climb(self.relays[publisher, request], self.port.node)


class RetryingWorld(World):
    def _server(self, name: str) -> LoggedServer:
        return RetryingServer(self._port(name), self.chain, threshold=2)


def test_s11_what_was_lost_between_servers_is_not_repeated_from_the_end() -> None:
    """S11. The relay of number 1 of topic 1 is lost, and comes again after that of number 2 and an event of 0.

    The event of 0 waits for number 2, that for number 1, and number 1 for the event of 0.
    """

    def play(world_of: type[World], *, reliable: bool) -> World:
        played = scenario({"s": (0, 1), "t": (0, 1)}, p=publish(1), q=[], r=[])
        world = world_of(replace(played, fifo_chain=reliable))
        world.act(("op", "p"))
        world.bag.clear()  # without a reliable chain, the relay
        operate(world, "q", ("publish", 1))
        operate(world, "r", ("publish", 0))
        world.fire_timer()
        return world.run()

    assert play(World, reliable=True).violations() == []
    world = play(RetryingWorld, reliable=False)
    assert world.stamps[1, 1] == Timestamp(1, 1, (0,), (1,))
    assert world.stamps[0, 1] == Timestamp(0, 1, (1,), (2,))
    assert "s has 3 events in its buffer" in world.violations()


def test_s11_the_chain_is_fifo() -> None:
    """S11. Without it an older stamp passes a server after a newer one."""
    played = scenario({"s": (0, 1), "t": (0, 1)}, p=publish(1, 1), q=publish(0))
    assert explore(played).violations == []
    assert explore(replace(played, fifo_chain=False), symptom="in its buffer").violations != []
