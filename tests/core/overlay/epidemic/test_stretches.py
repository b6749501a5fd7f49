"""Events that are published together fare in an epidemic network as if each were published by itself.

The same random script, with topics, filters, events of all sizes and subscriptions that come and go, is played twice:
once with the events of each call in runs, once one by one. Where nothing is lost, what everybody is shown is the same,
and where nothing is pushed, when. Where links lose, every event comes to all that are owed it, once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Raw
from msgspec.structs import replace

from breadth import examples, few
from epidemic_network import (
    NS_PER_S,
    TOPIC,
    EpidemicNetwork,
    LoneBroker,
    Passage,
    Published,
    first_copy,
    run_of,
)
from tidings.core.errors import WireError
from tidings.core.events.event import INT_MAX, make_publication
from tidings.core.events.run import Run, RunMaker, Stretch, decode_stretch, singles, stamped, stripped
from tidings.core.events.subscription import Order, Subscription, make_interest
from tidings.core.events.timestamp import Timestamp
from tidings.core.messages import Confirm, Message, Notify, PublishFailed
from tidings.core.overlay.epidemic import patterns
from tidings.core.overlay.epidemic.losses import LossDetector
from tidings.core.overlay.epidemic.messages import Ask, Carried, Fragment, PatternNumbers, Solicit, later
from tidings.core.overlay.epidemic.numbering import PatternNumbering
from tidings.core.overlay.epidemic.patterns import Patterns
from tidings.core.overlay.epidemic.settings import Algorithm, RecoverySettings
from tidings.core.overlay.matching import Matcher
from tidings.core.structures.recent_ids import RecentIds
from tidings.core.wire.codec import decode, encode

TOPICS = ("/a", "/b", "/a/c")
INTERESTS: tuple[tuple[str, ...], ...] = (
    ("/a",),
    ("/b",),
    ("/a", "/b"),
    ("/a/**",),
    ("/**",),
    ("/a/c", "/b"),
)
FILTERS = (None, None, "x = 1", "x <> 0", "x = 0 OR x = 2")
SIZES = (0, 0, 10, 60, 400, 900, 3_000)
SOLICITING: tuple[Algorithm, ...] = ("auto", "subscriber-pull", "combined", "push+pull")
QUIET: tuple[Algorithm, ...] = ("none", "subscriber-pull", "publisher-pull", "combined")
"""Where nothing is lost, these add nothing to the tree."""
Step = tuple[float, Callable[[EpidemicNetwork], None]]


class Script:
    """What happens in one random network; `together` says how events are published."""

    def __init__(self, seed: int, algorithms: tuple[Algorithm, ...], *, steady: bool = False) -> None:
        """`steady`: all subscriptions are there before the first event, and stay."""
        random = Random(f"stretches {seed}")
        self.edges = random.choice(["b0-b1", "b0-b1-b2", "b0-b1-b2 b1-b3", "b0-b1-b2-b3 b1-b4"])
        self.brokers = sorted(set(self.edges.replace("-", " ").split()))
        self.settings = RecoverySettings(
            algorithm=random.choice(algorithms),
            interval_ns=NS_PER_S // 10,
            block_bytes=random.choice([200, 1_200]),
            datagram_bytes=random.choice([0, 1_400]),
        )
        self.takes_runs = [broker for broker in self.brokers if random.random() < 0.5]
        self.subscriptions = {
            (at, f"s{number}"): (random.choice(INTERESTS), random.choice(FILTERS))
            for at in self.brokers
            for number in range(random.randint(0, 2))
        }
        self.published: dict[str, list[Published]] = {broker: [] for broker in self.brokers}
        """By where: what is published in all, in its order."""
        self.steps: list[Step] = sorted(self._steps(random, steady), key=lambda step: step[0])

    def _steps(self, random: Random, steady: bool) -> Iterator[Step]:
        for (at, name), (topics, where) in self.subscriptions.items():
            begins_s = 0.0 if steady else random.choice([0.0, random.uniform(1.0, 9.0)])
            yield begins_s, _subscribe(at, Subscription(name, topics, where))
            if not steady and random.random() < 0.3:
                yield begins_s + random.uniform(3.0, 5.0), _unsubscribe(at, name)
        for at_s in sorted(random.uniform(4.0, 9.0) for _ in range(random.randint(3, 12))):
            at, choices = random.choice(self.brokers), random.choice([TOPICS, random.choices(TOPICS)])
            events: list[Published] = [
                (random.choice(choices), random.randint(0, 2), bytes(random.choice(SIZES)))
                for _ in range(random.choice([1, 2, 5, 30]))
            ]
            self.published[at] += events
            yield (
                at_s,
                lambda network, at=at, events=events: network.publish_all(  # type: ignore[misc]
                    at, events, together=network.together
                ),
            )

    def play(self, *, together: bool, loss: float = 0.0) -> EpidemicNetwork:
        network = EpidemicNetwork(self.edges, self.settings)
        network.together = together  # type: ignore[attr-defined]
        began_at, random = network.network.schedule.now, Random("loss")
        lossy_until = began_at + 20 * NS_PER_S

        def lose(passage: Passage) -> bool:
            """Whatever is for recovery to repair, and its digests, too."""
            repaired = isinstance(passage.message, Carried | Fragment | Ask | Solicit)
            return repaired and network.network.schedule.now < lossy_until and random.random() < loss

        def alter(passage: Passage) -> Message:
            """What gossip brings may be part of a stretch: so others are known in part when the tree brings them."""
            message = passage.message
            if not isinstance(message, Carried) or not message.by or not loss:
                return message
            bounds = sorted(random.choices(range(message.stretch.first, message.stretch.last + 1), k=2))
            return message.cut(*bounds)

        network.lose, network.alter = lose, alter
        for broker in self.takes_runs:
            network.client(broker).session.takes_runs = True
        for at_s, step in self.steps:
            network.network.run(began_at + round(at_s * NS_PER_S))
            step(network)
        network.run(40)
        return network

    def owed(self, at: str, name: str) -> list[str]:
        interest = make_interest(*self.subscriptions[at, name])
        return sorted(
            f"c{broker}:{sequence}"
            for broker, events in self.published.items()
            for sequence, (topic, x, _) in enumerate(events, 1)
            if interest.matches(make_publication("p", 0, 1, topic, {"x": x}, b"", 0))
        )


def _subscribe(at: str, subscription: Subscription) -> Callable[[EpidemicNetwork], None]:
    return lambda network: network.client(at).subscribe(subscription)


def _unsubscribe(at: str, name: str) -> Callable[[EpidemicNetwork], None]:
    return lambda network: network.client(at).unsubscribe(name)


def fates(network: EpidemicNetwork, *, times: bool) -> list[tuple[object, ...]]:
    """Who was shown what; with times, also when, in which order, and how it came."""
    found = [
        (broker, fact.subscription, str(fact.stretch.id), len(fact.stretch.event().payload))
        + ((when, fact.out_of_order, fact.recovered_by) if times else ())
        for broker, when, fact in network.deliveries
    ]
    return found if times else sorted(found)


def assert_the_same(seed: int) -> None:
    for algorithms in (QUIET, ("auto", "push")):
        script = Script(seed, algorithms)  # type: ignore[arg-type]
        runs, one_by_one = (script.play(together=together) for together in (True, False))
        quiet = script.settings.algorithm in QUIET
        assert sorted(fates(runs, times=quiet)) == sorted(fates(one_by_one, times=quiet))
        assert [broker.recovery_state.losses.lost for broker in map(runs.broker, script.brokers)] == [
            0
        ] * len(script.brokers)


@pytest.mark.parametrize("seed", few(range(300), 30))
def test_together_or_one_by_one_is_the_same(seed: int) -> None:
    assert_the_same(seed)


def assert_all_is_recovered(seed: int) -> None:
    script = Script(seed, SOLICITING, steady=True)
    network = script.play(together=True, loss=0.3)
    for at, name in script.subscriptions:
        shown = [
            str(fact.stretch.id)
            for broker, _, fact in network.deliveries
            if (broker, fact.subscription) == (at, name)
        ]
        assert sorted(shown) == script.owed(at, name)


@pytest.mark.parametrize("seed", few(range(300), 30))
def test_what_is_lost_is_recovered_once(seed: int) -> None:
    assert_all_is_recovered(seed)


# --- Stretches travel as such, and are cut where they must be


def events(*topics: str, size_bytes: int = 0) -> list[Published]:
    return [(topic, 0, bytes(size_bytes)) for topic in topics]


def line(algorithm: Algorithm = "subscriber-pull", **changes: Any) -> EpidemicNetwork:
    network = EpidemicNetwork("b0-b1-b2", RecoverySettings(algorithm=algorithm, **changes))
    network.subscribe("b2", "/a")
    return network


def by_the_tree(network: EpidemicNetwork, target: str) -> list[tuple[int, int]]:
    return [
        (passage.message.stretch.first, passage.message.stretch.last)
        for passage in network.passages
        if isinstance(passage.message, Carried) and passage.by == "" and passage.target == target
    ]


def test_a_stretch_stays_whole_on_its_way() -> None:
    network = line()
    network.publish_all("b0", events(*["/a"] * 20))
    network.run(1)
    assert by_the_tree(network, "b1") == by_the_tree(network, "b2") == [(1, 20)]
    assert network.shown("b2") == [*range(1, 21)]


def test_its_publisher_is_told_once() -> None:
    broker = LoneBroker(RecoverySettings())
    broker.receive("c", run_of(range(1, 9), source="c"))
    assert [message for to, message in broker.sent(Confirm)] == [Confirm(0, 1, 8)]
    broker.receive("c", run_of(range(5, 12), source="c"))
    assert [message for to, message in broker.sent(Confirm)][1:] == [Confirm(0, 5, 11)]
    assert broker.notified == [*range(1, 12)]


def test_it_is_cut_where_the_patterns_change() -> None:
    """Not where topics do: all of these are counted for one pattern."""
    network = line()
    network.subscribe("b1", "/**", name="all")
    network.publish_all("b0", events("/b", "/c", "/a", "/a", "/b", "/d"))
    network.run(1)
    assert by_the_tree(network, "b1") == [(1, 2), (3, 4), (5, 6)]
    assert by_the_tree(network, "b2") == [(3, 4)]


def test_patterns_of_one_interest_are_counted_apart() -> None:
    """The same interest selects all, but each topic of it is a pattern."""
    network = line()
    network.subscribe("b1", "/x", "/y")
    network.publish_all("b0", events("/x", "/x", "/y", "/x"))
    network.run(1)
    assert by_the_tree(network, "b1") == [(1, 2), (3, 3), (4, 4)]
    numbers = [passage.message.numbers[0] for passage in network.sent(Carried)]  # type: ignore[union-attr]
    assert [number for _, _, number in numbers] == [1, 1, 3]


def test_a_filter_cuts_a_stretch() -> None:
    network = EpidemicNetwork("b0-b1", RecoverySettings(algorithm="none"))
    network.subscribe("b1", "/a", where="x = 1")
    network.subscribe("b0", "/a")
    network.publish_all("b0", [("/a", x, b"") for x in (1, 1, 0, 0, 1, 0)])
    network.run(1)
    assert by_the_tree(network, "b1") == [(1, 2), (5, 5)]
    assert network.shown("b1") == [1, 2, 5]
    assert network.shown("b0") == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("size_bytes", [0, 30, 200, 500, 1_100])
@pytest.mark.parametrize("topic", ["/a", "/" + "long" * 12])
def test_several_events_fit_into_a_packet(size_bytes: int, topic: str) -> None:
    """With all that is around them; and as many do as fit."""
    network = EpidemicNetwork("b0-b1", RecoverySettings(algorithm="none", datagram_bytes=1_400))
    network.subscribe("b1", topic)
    network.publish_all("b0", events(*[topic] * 40, size_bytes=size_bytes))
    network.run(1)
    sent = [passage.message for passage in network.sent(Carried)]
    sizes = [len(encode(message)) for message in sent if message.stretch.count > 1]  # type: ignore[union-attr]
    assert all(size <= 1_400 for size in sizes)
    one = make_publication("cb0", 0, 1, topic, {"x": 0}, bytes(size_bytes), 10**12).size_bytes
    assert all(size + one > 1_200 - 4 * len(topic) for size in sizes[:-1])
    assert network.shown("b1") == [*range(1, 41)]


def test_a_large_event_is_alone_and_in_blocks() -> None:
    network = line(block_bytes=400)
    sizes = (10, 10, 3_000, 10, 10)
    network.publish_all("b0", [("/a", 0, bytes(size)) for size in sizes])
    network.run(1)
    assert by_the_tree(network, "b1") == [(1, 2), (4, 5)]
    assert {passage.sequence for passage in network.sent(Fragment)} == {3}
    assert network.shown("b2") == [1, 2, 3, 4, 5]


def test_an_event_of_a_run_that_cannot_be_sent_is_refused_by_its_number() -> None:
    broker = LoneBroker(RecoverySettings())
    maker = RunMaker("c", 0)
    for sequence in range(1, 6):
        maker.add(sequence, TOPIC, {"x": "long " * 8_000 if sequence == 3 else ""}, b"", 0)
    for run in maker.take_all():
        broker.receive("c", run)
    assert [message.sequence for _, message in broker.sent(PublishFailed)] == [3]
    assert [(message.first, message.last) for _, message in broker.sent(Confirm)] == [(1, 2), (4, 5)]
    assert broker.notified == [1, 2, 4, 5]


def test_nobody_publishes_a_run_as_somebody_else() -> None:
    broker = LoneBroker(RecoverySettings())
    broker.receive("c", run_of(range(1, 4), source="other"))
    assert [message.sequence for _, message in broker.sent(PublishFailed)] == [1, 2, 3]
    assert broker.notified == []


def test_an_ordered_run_keeps_its_places() -> None:
    """Each event has its own where it is cut out."""
    broker = LoneBroker(RecoverySettings(algorithm="subscriber-pull"))
    run = stamped(run_of(range(1, 9), source="c"), 99, Timestamp(0, 31))
    broker.receive("c", run)
    broker.receive("far", Ask((("c", 0, ((3, 4), (6, 6))),), (), "push"))
    answers = [message.stretch for to, message in broker.sent(Carried) if message.by]
    assert [(one.first, one.count, one.stamp) for one in answers] == [
        (3, 2, Timestamp(0, 33)),
        (6, 1, Timestamp(0, 36)),
    ]


# --- What is known in part


def lone(**changes: Any) -> LoneBroker:
    return LoneBroker(RecoverySettings(algorithm="subscriber-pull", **changes))


def forwarded(broker: LoneBroker) -> list[tuple[int, int, int]]:
    """(first, last, number of the first)"""
    return [
        (message.stretch.first, message.stretch.last, message.numbers[0][2])
        for to, message in broker.sent(Carried)
        if to == "n2" and not message.by
    ]


def test_what_gossip_brought_of_a_stretch_is_shown_once_and_still_goes_down_the_tree() -> None:
    broker = lone()
    broker.receive("far", broker.carried_run(2, 3, by="push"))
    broker.receive("far", broker.carried(6, by="push"))
    broker.receive("n1", broker.carried_run(1, 7))
    assert forwarded(broker) == [(1, 7, 1)]
    shown = [(message.stretch.first, message.stretch.last) for _, message in broker.sent(Notify)]
    assert shown == [(2, 3), (6, 6), (1, 1), (4, 5), (7, 7)]
    assert broker.lost == 0
    assert broker.broker.tree.duplicates == 3


def test_of_a_stretch_that_the_tree_brought_in_part_the_rest_goes_on() -> None:
    broker = lone()
    for first, last in ((1, 4), (3, 8), (2, 8), (6, 12)):
        broker.receive("n1", broker.carried_run(first, last))
    assert forwarded(broker) == [(1, 4, 1), (5, 8, 5), (9, 12, 9)]
    assert broker.notified == [*range(1, 13)]
    assert [entry.numbers[0][2] for entry in broker.broker.recovery_state.cache.id_range("p", 0, 1, 12)] == [
        1,
        5,
        9,
    ]


def test_a_stretch_tells_what_was_lost_before_it_and_how_far_it_goes() -> None:
    broker = lone()
    broker.receive("n1", broker.carried_run(1, 3))
    broker.receive("n1", broker.carried_run(8, 9))
    assert broker.lost == 4
    broker.receive("n2", broker.carried_run(3, 6, by="subscriber-pull"))
    assert broker.lost == 1
    broker.receive("n1", broker.carried(10))
    assert broker.lost == 1


def test_all_of_a_lost_stretch_is_missed_and_recovered() -> None:
    """At the tail, too, where nothing that follows tells of it."""
    network = line(interval_ns=NS_PER_S // 10)
    network.lose = first_copy("b1", "b2", 1)
    network.publish_all("b0", events(*["/a"] * 12))
    network.run(5)
    assert len(network.lost) == 1
    assert network.shown("b2") == [*range(1, 13)]
    assert set(network.ways("b2").values()) == {"subscriber-pull"}
    assert [
        (passage.message.stretch.first, passage.message.stretch.last)  # type: ignore[union-attr]
        for passage in network.answers("b2")
    ] == [(1, 12)]


def test_a_broker_whose_table_differs_cuts_again() -> None:
    """Its clients have a filter that the origin does not know of yet."""
    broker = LoneBroker(RecoverySettings(algorithm="none"))
    broker.receive("n1", broker.carried_run(1, 3))
    broker.port.sent.clear()
    interest = make_interest((TOPIC,), "x = 1")
    broker.broker.table.add_subscription(interest, "c", "narrow")
    broker.receive("n1", broker.carried_run(4, 8))  # x is 1, 2, 0, 1, 2
    told = [(message.subscriptions, message.stretch.first) for _, message in broker.sent(Notify)]
    assert told == [((TOPIC, "narrow"), 4), ((TOPIC,), 5), ((TOPIC, "narrow"), 7), ((TOPIC,), 8)]
    assert forwarded(broker) == [(4, 4, 4), (5, 6, 5), (7, 7, 7), (8, 8, 8)]
    assert broker.lost == 0


# --- What clients are shown


def test_recovered_runs_are_shown_as_such_and_say_so() -> None:
    network = line()
    network.client("b2").session.takes_runs = True
    network.lose = first_copy("b1", "b2", 1)
    network.publish_all("b0", events(*["/a"] * 3))
    network.run(1)
    network.publish_all("b0", events(*["/a"] * 3))
    network.run(5)
    assert network.ways("b2") == {
        1: "subscriber-pull",
        2: "subscriber-pull",
        3: "subscriber-pull",
        4: "",
        5: "",
        6: "",
    }


def test_order_fifo_marks_the_recovered_events_of_a_stretch() -> None:
    network = EpidemicNetwork("b0-b1", RecoverySettings(algorithm="subscriber-pull"))
    network.client("b1").subscribe(Subscription("s", ("/a",), None, Order.FIFO))
    network.client("b1").session.takes_runs = True
    network.run(3)
    network.lose = first_copy("b0", "b1", 1)
    for _ in range(2):
        network.publish_all("b0", events(*["/a"] * 3))
    network.run(5)
    marks = [(fact.stretch.sequence, fact.out_of_order) for _, _, fact in network.deliveries]
    assert marks == [(4, False), (5, False), (6, False), (1, True), (2, True), (3, True)]


# --- Answers


def answers(broker: LoneBroker, to: str = "far") -> list[tuple[int, int, int]]:
    return [
        (message.stretch.first, message.stretch.last, message.numbers[0][2])
        for peer, message in broker.sent(Carried)
        if peer == to
    ]


def lost(broker: LoneBroker, *ranges: tuple[int, int], to: str = "far") -> Solicit:
    return Solicit(to, b"", (), (("far", broker.pattern, broker.ORIGIN_EPOCH, ranges),), (), "x")


def test_an_answer_has_what_was_asked_for_and_no_more() -> None:
    broker = lone()
    broker.receive("n1", broker.carried_run(1, 9))
    broker.port.sent.clear()
    broker.receive("n1", lost(broker, (2, 4), (7, 7), (9, 20)))
    assert answers(broker) == [(2, 4, 2), (7, 7, 7), (9, 9, 9)]


def test_what_was_just_sent_is_not_sent_again() -> None:
    broker = lone()
    broker.receive("n1", broker.carried_run(1, 9))
    broker.port.sent.clear()
    broker.receive("n1", lost(broker, (3, 4)))
    broker.receive("n1", lost(broker, (1, 9)))
    assert answers(broker) == [(3, 4, 3), (1, 2, 1), (5, 9, 5)]
    assert broker.broker.gossip.answers.answered == 9


def test_answers_count_events() -> None:
    broker = lone(answers_per_round=7)
    for first in (1, 6, 11):
        broker.receive("n1", broker.carried_run(first, first + 4))
    broker.port.sent.clear()
    broker.receive("n1", lost(broker, (1, 15)))
    assert answers(broker) == [(1, 5, 1), (6, 7, 6)]


def test_what_is_advertised_names_every_event() -> None:
    network = EpidemicNetwork("b0-b1", RecoverySettings(algorithm="subscriber-pull", pull="advertise"))
    network.subscribe("b0", "/a")
    network.subscribe("b1", "/a")
    network.lose = first_copy("b0", "b1", 1)
    network.publish_all("b0", events(*["/a"] * 9))
    network.run(10)
    assert network.shown("b1") == [*range(1, 10)]


def test_a_stretch_is_pushed_as_one() -> None:
    broker = LoneBroker(RecoverySettings(algorithm="push", fanout=1))
    broker.receive("n1", broker.carried_run(1, 9))
    (pushed,) = [message for _, message in broker.sent(Carried) if message.by]
    assert (pushed.stretch.first, pushed.stretch.last) == (1, 9)


def test_the_cache_keeps_the_last_of_more_than_it_holds() -> None:
    broker = lone(buffer_events=4)
    broker.receive("n1", broker.carried_run(1, 9))
    assert [entry.identity[2] for entry in broker.broker.recovery_state.cache.id_range("p", 0, 1, 9)] == [
        6,
        7,
        8,
        9,
    ]


# --- What is wrong is refused


def lying() -> dict[str, Run]:
    run = run_of(range(1, 6))
    heads = bytes(run.body)
    one = bytes(make_publication("p", 0, 3, TOPIC, {"x": 0}, b"", 0).raw)
    headed = bytes(stamped(make_publication("p", 0, 3, TOPIC, {"x": 0}, b"", 0), 1, Timestamp(0, 5)).raw)

    def made(body: bytes, **changes: Any) -> Run:
        fields = {"source": "p", "incarnation": 0, "first": 1, "count": 5, "topic": TOPIC, **changes}
        return Run(*fields.values(), memoryview(body))  # type: ignore[arg-type]

    return {
        "more than it says": made(heads, count=4),
        "fewer than it says": made(heads, count=6),
        "others than it says": made(heads, first=2),
        "of another source": made(heads, source="q"),
        "of another life": made(heads, incarnation=1),
        "on another topic": made(heads, topic="/other"),
        "not in order": made(b"\x92" + one + one, first=3, count=2),
        "a header inside": made(
            b"\x92" + one + headed.replace(b"\x00\x03", b"\x00\x04", 1), first=3, count=2
        ),
        "no events": made(b"\x93\x01\x02\x03", count=3),
        "bytes behind": made(heads + b"\x00"),
        "without a body": stripped(run),  # type: ignore[dict-item]
        "an impossible place": stamped(run_of(range(1, 6)), 1, Timestamp(0, INT_MAX)),  # type: ignore[dict-item]
    }


@pytest.mark.parametrize("what", lying())
def test_a_stretch_that_lies_is_no_message(what: str) -> None:
    message = Carried("far", ((b"8 bytes.", 1, 1),), (), "", lying()[what])
    with pytest.raises(WireError):
        decode(encode(message))


def test_numbers_that_do_not_fit_are_no_message() -> None:
    fits = Carried("far", ((b"8 bytes.", 1, INT_MAX - 4),), (), "", run_of(range(1, 6)))
    assert len(decode(encode(fits))) == 1
    with pytest.raises(WireError, match="64 bits"):
        decode(encode(replace(fits, numbers=((b"8 bytes.", 1, INT_MAX - 3),))))


@settings(max_examples=examples(400), deadline=None)
@given(
    st.integers(2, 9),
    st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), min_size=1, max_size=4),
)
def test_whatever_comes_of_a_damaged_stretch_can_be_kept_and_cut(
    count: int, changes: list[tuple[int, int]]
) -> None:
    """It is refused, or it is a stretch: each of its events is shown once, and served to whoever asks."""
    broker = lone()
    body = bytearray(encode(broker.carried_run(1, count, payload=b"some bytes")))
    for position, value in changes:
        body[position % len(body)] = value
    try:
        (message,) = decode(bytes(body))
    except WireError:
        return
    if not isinstance(message, Carried):
        return
    broker.receive("n1", message)
    broker.receive("n1", message)
    assert len(broker.notified) == len(set(broker.notified))
    source, incarnation = message.stretch.source, message.stretch.incarnation
    for first, last in ((0, INT_MAX), (2, 3)):
        for entry in broker.broker.recovery_state.cache.id_range(source, incarnation, first, last):
            for piece in (entry, entry.cut(entry.stretch.last, entry.stretch.last)):
                assert singles(piece.stretch)[0].sequence == piece.stretch.first
                assert decode_stretch(Raw(bytes(piece.stretch.raw))).count == piece.stretch.count


# --- What is broken on purpose is found

Plant = Callable[[pytest.MonkeyPatch], None]


def number_all_as_the_first(patch: pytest.MonkeyPatch) -> None:
    """Of what is cut out of a stretch."""

    def part(self: Carried, stretch: Stretch) -> Carried:
        return replace(self, stretch=stretch)

    patch.setattr(Carried, "part", part)


def count_a_stretch_as_one(patch: pytest.MonkeyPatch) -> None:
    count = PatternNumbering.count
    patch.setattr(PatternNumbering, "count", lambda self, interests, events=1: count(self, interests))


def route_by_the_first_event(patch: pytest.MonkeyPatch) -> None:
    def cut(self: Matcher, run: Run, complain: object) -> list[Stretch]:
        return [self._remember(run, self.select(run.publications()[0]))]

    patch.setattr(Matcher, "cut", cut)


def number_by_the_first_topic(patch: pytest.MonkeyPatch) -> None:
    """All that one selection has, as if the selection said which patterns match."""

    def number(self: Patterns, stretch: Stretch) -> Iterator[tuple[Stretch, PatternNumbers]]:
        topic = patterns.look(stretch)[0].topic
        yield stretch, self._numbering.count(self._match(stretch.selection, topic), stretch.count)

    patch.setattr(Patterns, "number", number)


def take_a_stretch_whole_that_is_known_in_part(patch: pytest.MonkeyPatch) -> None:
    fresh = RecentIds.fresh

    def greedy(
        self: RecentIds, source: str, incarnation: int, first: int, last: int
    ) -> list[tuple[int, int]]:
        return [(first, last)] if fresh(self, source, incarnation, first, last) else []

    patch.setattr(RecentIds, "fresh", greedy)


def drop_a_stretch_that_is_known_in_part(patch: pytest.MonkeyPatch) -> None:
    fresh = RecentIds.fresh

    def strict(
        self: RecentIds, source: str, incarnation: int, first: int, last: int
    ) -> list[tuple[int, int]]:
        found = fresh(self, source, incarnation, first, last)
        return found if found == [(first, last)] else []

    patch.setattr(RecentIds, "fresh", strict)


def tell_how_far_the_first_event_goes(patch: pytest.MonkeyPatch) -> None:
    """Nobody notices that the others at the tail are lost."""
    patch.setattr(Carried, "last_numbers", property(lambda self: self.numbers))


def strike_off_the_first_alone(patch: pytest.MonkeyPatch) -> None:
    arrived = LossDetector.arrived

    def first_only(
        self: LossDetector, origin: str, numbers: PatternNumbers, now: int, count: int = 1
    ) -> None:
        arrived(self, origin, numbers, now)
        lost = self._lost.copy()
        arrived(self, origin, later(numbers, count - 1), now)
        self._lost.update(lost)

    patch.setattr(LossDetector, "arrived", first_only)


CHECKS: dict[str, Callable[[], object]] = {
    "twins": lambda: [assert_the_same(seed) for seed in range(30)],  # type: ignore[func-returns-value]
    "losses": lambda: [assert_all_is_recovered(seed) for seed in range(30)],  # type: ignore[func-returns-value]
    "patterns": test_patterns_of_one_interest_are_counted_apart,
}


@pytest.mark.parametrize(
    ("plant", "check"),
    [
        (number_all_as_the_first, "losses"),
        (count_a_stretch_as_one, "losses"),
        (route_by_the_first_event, "twins"),
        (number_by_the_first_topic, "patterns"),
        (take_a_stretch_whole_that_is_known_in_part, "losses"),
        (drop_a_stretch_that_is_known_in_part, "losses"),
        (tell_how_far_the_first_event_goes, "losses"),
        (strike_off_the_first_alone, "twins"),
    ],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_what_is_broken_on_purpose_is_found(
    plant: Plant, check: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    with pytest.raises(AssertionError):
        CHECKS[check]()
