"""The errata of the ordering paper that are about its dummy events (E4, E5, E6, S10).

There, a subscription takes a number of each of its topics (figure 18b, line 07); the new subscriber then publishes a
subscriptionUpdate with these numbers on each topic (figure 18a, line 11), which the others treat by the lines 01 to 08
and 20 of figure 17. Our machines have none of this, so it is built here on top of them, with the errors of the figure
or without. Each scenario is right on our machines, in all orders; right with the mechanism corrected, which shows that
the mechanism here is sound; and wrong with the paper's line.
"""

from __future__ import annotations

from collections.abc import Iterable, Set
from functools import partial
from typing import Any

from order_explorer import LoggedServer, Operation, Scenario, World, explore
from tidings.core.events.timestamp import Timestamp
from tidings.core.facts import Fact
from tidings.core.ordering.messages import SubscribeWalk, WalkDone
from tidings.core.ordering.subscriber import OrderedEvent, OrderedSubscriber

UPDATE = "subscriptionUpdate"
NO_FLAWS: frozenset[str] = frozenset()
FIGURE_17 = frozenset(("E4", "E5", "E6"))


class UpdatePublished(Fact, frozen=True, gc=False):
    """A subscriber publishes its subscriptionUpdate on the stamp's topic."""

    stamp: Timestamp


class NumberingServer(LoggedServer):
    """Figure 18b, line 07."""

    takes_numbers = False

    def _walk(self, walk: SubscribeWalk) -> None:
        for topic in walk.topics:
            if topic in self.own and self.takes_numbers:
                self.clock[topic] += 1
        super()._walk(walk)


class UpdatingSubscriber(OrderedSubscriber):
    """Figure 18a, lines 10 and 11, and figure 17, lines 01 to 08 and 20 to 26."""

    publishes = False

    def __init__(self, *args: Any, flaws: Set[str], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.flaws = flaws
        self.to_deliver: list[Timestamp] = []

    @property
    def buffered(self) -> int:
        return super().buffered + len(self.to_deliver)

    def on_walk_done(self, sender: str, message: WalkDone) -> None:
        topics = sorted(self._topics)
        super().on_walk_done(sender, message)
        clocks = dict(zip(message.index, message.values, strict=True))
        for topic in topics if self.publishes else ():
            others = tuple(other for other in topics if other != topic)
            values = tuple(clocks[other] for other in others)
            self.port.emit(UpdatePublished(Timestamp(topic, clocks[topic], others, values)))
        self._flush()

    def receive(self, stamp: Timestamp, event: object, count: int = 1) -> None:
        if event is not UPDATE:
            super().receive(stamp, event, count)
        elif self._may_update(stamp):
            self._update(stamp)
        else:
            self.to_deliver.append(stamp)  # line 06
        self._flush()

    def _may_update(self, stamp: Timestamp) -> bool:
        """Line 02; corrected: no topic that both have lacks an event before the update."""
        numbers = numbers_of(stamp)
        for topic in self._queues:
            following = self.clock[topic] + 1
            if topic == stamp.topic and "E4" in self.flaws:
                continue
            if topic not in numbers:
                if "E5" in self.flaws:
                    return False
            elif following < numbers[topic] or (following > numbers[topic] and "E6" in self.flaws):
                return False
        return True

    def _update(self, stamp: Timestamp) -> None:
        """Lines 03 to 05."""
        for topic, number in numbers_of(stamp).items():
            if topic in self._queues:
                self.clock[topic] = max(self.clock[topic], number)
        self._rescan()

    def _flush(self) -> None:
        """Line 20; corrected: what waits is an update still, and its second copy says nothing new."""
        is_due = self._is_next_event if "E6" in self.flaws else self._may_update
        while due := [stamp for stamp in self.to_deliver if is_due(stamp)]:
            self.to_deliver.remove(due[0])
            if "E6" in self.flaws:
                self.port.emit(OrderedEvent(due[0], UPDATE))  # line 22
            self._update(due[0])

    def _is_next_event(self, stamp: Timestamp) -> bool:
        """isNext: one pair of the timestamp is one more than the clock, the others are equal."""
        ahead = [number - self.clock[topic] for topic, number in numbers_of(stamp).items()]
        return sorted(ahead) == [*[0] * (len(ahead) - 1), 1]


def numbers_of(stamp: Timestamp) -> dict[int, int]:
    return {stamp.topic: stamp.number, **dict(zip(stamp.index, stamp.values, strict=True))}


class UpdatesWorld(World):
    """With the mechanism, once the subscriptions of the beginning are there."""

    def __init__(self, scenario: Scenario, flaws: Set[str] = NO_FLAWS) -> None:
        self.flaws = flaws
        super().__init__(scenario)

    def _server(self, name: str) -> LoggedServer:
        return NumberingServer(self._port(name), self.chain, threshold=2)

    def _subscriber(self, name: str) -> OrderedSubscriber:
        return UpdatingSubscriber(self._port(name), self.chain, threshold=2, flaws=self.flaws)

    def _begin(self) -> None:
        super()._begin()
        for server in self.servers.values():
            vars(server)["takes_numbers"] = True
        for subscriber in self.subscribers.values():
            vars(subscriber)["publishes"] = True

    def on_fact(self, node: str, fact: object) -> None:
        if isinstance(fact, UpdatePublished):
            self.no_ops.add((fact.stamp.topic, fact.stamp.number))
            self._notify(fact.stamp, UPDATE, 1)
        else:
            super().on_fact(node, fact)

    def _show(self, subscriber: str, fact: OrderedEvent) -> None:
        if fact.event is UPDATE:
            self.problems.append(f"{subscriber} is shown a dummy event")
        else:
            super()._show(subscriber, fact)

    def _chain_order(self) -> Iterable[str]:
        return ()  # it takes every number for an event's


def scenario(subscribers: dict[str, tuple[int, ...]], **scripts: list[Operation]) -> Scenario:
    return Scenario(subscribers, scripts, starts=(0, 1), topics=2, prompt_publishers=True)


def assert_only_the_paper_fails(played: Scenario, flaws: Set[str], symptom: str) -> None:
    for world_of in (World, UpdatesWorld):
        right = explore(played, world_of=world_of)
        assert right.complete
        assert right.violations == []
    assert explore(played, world_of=partial(UpdatesWorld, flaws=flaws), symptom=symptom).violations != []


def test_e4_a_dummy_does_not_pass_an_event_of_its_own_topic() -> None:
    """E4. Figure 17, line 02, leaves T out: the update overtakes an event of T at s, which is never shown."""
    played = scenario({"s": (0,), "t": ()}, p=[("publish", 0)], t=[("subscribe", 0)])
    assert_only_the_paper_fails(played, {"E4"}, "s never saw")


def test_e5_a_dummy_need_not_name_all_topics_of_the_receiver() -> None:
    """E5. Figure 17, line 02, wants topic 1 in an update of t, who has 0 alone: s never gets on with topic 0."""
    played = scenario({"s": (0, 1), "t": ()}, p=[("publish", 0)], t=[("subscribe", 0)])
    assert_only_the_paper_fails(played, {"E5"}, "s never saw")


def test_e6_the_second_copy_of_a_dummy_stays_in_the_buffer() -> None:
    """E6. t has 0 and joins 1: s, who has both, gets the update twice, and the second fits no clock any more."""
    played = scenario({"s": (0, 1), "t": (0,)}, t=[("subscribe", 1)])
    assert_only_the_paper_fails(played, FIGURE_17, "s has 1 events in its buffer")


def test_e6_a_dummy_that_waited_is_shown_to_the_application() -> None:
    """E6. Figure 17, line 06, buffers an update like an event, and line 22 notifies of it like of an event."""
    played = scenario({"s": (0, 1), "t": ()}, t=[("subscribe", 0)])
    assert_only_the_paper_fails(played, FIGURE_17, "s is shown a dummy event")


def test_s10_a_subscriber_that_dies_before_its_dummies_leaves_no_gap() -> None:
    """S10. Its subscription took number 1 of topic 0, for which nobody has an event now: s waits for it for ever."""

    def play(world_of: type[World], *, dies: bool) -> World:
        world = world_of(scenario({"s": (0, 1), "t": ()}, p=[], t=[("subscribe", 0)]))
        world.act(("op", "t"))
        if dies:
            world.crashed.add("t")
        world.run()
        world.scripts["p"].append(("publish", 0))
        return world.run()

    assert play(World, dies=True).shown["s"] == [((0, 1), False)]
    assert play(UpdatesWorld, dies=False).shown["s"] == [((0, 2), False)]
    world = play(UpdatesWorld, dies=True)
    assert world.shown["s"] == []
    assert "s has 1 events in its buffer" in world.violations()
    assert "number 1 of topic 0 became no event" in world.violations()
