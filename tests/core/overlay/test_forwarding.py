"""Subscription forwarding of one broker, message by message, over a port that only records."""

from __future__ import annotations

import pytest

from recording_port import RecordingPort
from tidings.core.events.event import make_publication
from tidings.core.events.subscription import Interest, make_interest
from tidings.core.facts import Misbehaviour
from tidings.core.messages import Message, Subscribe, Subscribed, Unsubscribe
from tidings.core.overlay.best_effort.broker import Broker
from tidings.core.overlay.forwarding import ABSENT_AFTER_NS
from tidings.core.overlay.links import retry_delay_ns
from tidings.core.overlay.messages import (
    AddInterest,
    Change,
    Changes,
    ChangesTaken,
    LinkOpen,
    RemoveInterest,
    Settled,
    TableSent,
)

ME = 1_000
ABOVE = make_interest(("/a/**",), None)
BELOW = make_interest(("/a/b",), None)
PAIR = make_interest(("/a/b", "/x"), None)


class Bench:
    """A broker `me` with neighbours; the test plays these and the clients."""

    def __init__(self, *neighbours: str, open_links: bool = True) -> None:
        self.port = RecordingPort("me")
        self.broker = Broker(self.port, neighbours, incarnation=ME)
        self.links = self.broker.forwarding.links
        self.numbers = dict.fromkeys(neighbours, 0)
        self.lives = dict.fromkeys(neighbours, 1)
        self.broker.start()
        if open_links:
            for peer in neighbours:
                self.open(peer)
                self.say(peer, TableSent())
            for peer in neighbours:
                self.take(peer)

    def open(self, peer: str, life: int = 1, heard: int = ME) -> None:
        self.lives[peer] = life
        self.numbers[peer] = 0
        self.broker.receive(peer, LinkOpen(life, heard, False))

    def say(self, peer: str, *changes: Change) -> Changes:
        self.numbers[peer] += 1
        message = Changes(self.lives[peer], ME, self.numbers[peer], changes)
        self.broker.receive(peer, message)
        return message

    def add(self, peer: str, interest: Interest, serial: int = 1) -> None:
        topics = tuple(topic.text for topic in interest.topics)
        self.say(peer, AddInterest(interest.key, topics, interest.sql, serial))

    def take(self, peer: str) -> list[Change]:
        """The changes that the broker tells the peer until it has nothing more to say, each batch taken."""
        stream = self.links[peer].stream
        taken: list[Change] = []
        while stream.in_flight is not None:
            taken += stream.in_flight
            self.broker.receive(peer, ChangesTaken(self.lives[peer], ME, stream.number))
        return taken

    def subscribe(self, client: str, subscription: str, interest: Interest) -> None:
        topics = tuple(topic.text for topic in interest.topics)
        self.broker.receive(client, Subscribe(subscription, topics, interest.sql, "none"))

    def unsubscribe(self, client: str, subscription: str) -> None:
        self.broker.receive(client, Unsubscribe(subscription))

    def settle(self, peer: str, *interests: Interest) -> None:
        link = self.links[peer]
        self.say(peer, *(Settled(interest.key, link.sent[interest]) for interest in interests))

    def accepted(self) -> list[str]:
        return [message.subscription for _, message in self.port.sent if isinstance(message, Subscribed)]

    def sent_to(self, peer: str) -> list[Message]:
        return [message for to, message in self.port.sent if to == peer]

    def routes(self, topic: str) -> list[str]:
        """Where an event from a stranger to this table would go."""
        self.port.sent.clear()
        publication = make_publication("someone", 0, len(topic), topic, {}, b"", 0)
        self.broker.receive("someone", publication)
        self.broker.tree.recent.forget("someone", 0)
        return [to for to, message in self.port.sent if message is publication]


def adds(changes: list[Change]) -> list[bytes]:
    return [change.key for change in changes if isinstance(change, AddInterest)]


# --- What goes where


def test_an_interest_goes_once_per_direction_however_many_share_it() -> None:
    bench = Bench("p", "q")
    for number in range(3):
        bench.subscribe(f"c{number}", "s", BELOW)
    bench.add("p", BELOW)
    assert adds(bench.take("p")) == [BELOW.key]
    assert adds(bench.take("q")) == [BELOW.key]


def test_an_interest_is_not_sent_back_to_where_it_came_from() -> None:
    bench = Bench("p", "q", "r")
    bench.add("p", BELOW)
    assert adds(bench.take("p")) == []
    assert adds(bench.take("q")) == adds(bench.take("r")) == [BELOW.key]
    bench.add("q", BELOW)
    assert adds(bench.take("p")) == [BELOW.key]
    assert adds(bench.take("r")) == []


def test_it_is_removed_when_the_last_who_shares_it_leaves() -> None:
    bench = Bench("p")
    bench.subscribe("c0", "s", BELOW)
    bench.subscribe("c1", "s", BELOW)
    bench.take("p")
    bench.unsubscribe("c0", "s")
    assert bench.take("p") == []
    bench.unsubscribe("c1", "s")
    assert bench.take("p") == [RemoveInterest(BELOW.key)]
    assert len(bench.broker.table) == 0


def test_what_only_a_neighbour_wants_itself_is_taken_back_from_it() -> None:
    bench = Bench("p", "q")
    bench.add("p", BELOW)
    bench.add("q", BELOW)
    assert adds(bench.take("p")) == adds(bench.take("q")) == [BELOW.key]
    bench.say("q", RemoveInterest(BELOW.key))
    assert RemoveInterest(BELOW.key) in bench.take("p")
    assert bench.take("q") == []
    bench.open("p", life=2)
    assert adds(bench.take("p")) == [], "what it wanted in its earlier life is not news to it"


def test_a_chain_of_covers_unrolls_one_by_one_each_added_before_its_cover_goes() -> None:
    middle = make_interest(("/a/*",), None)
    bench = Bench("p")
    for name, interest in (("wide", ABOVE), ("middle", middle), ("narrow", BELOW)):
        bench.subscribe("c", name, interest)
    assert adds(bench.take("p")) == [ABOVE.key]
    bench.unsubscribe("c", "wide")
    changes = bench.take("p")
    assert adds(changes) == [middle.key]
    assert changes[-1] == RemoveInterest(ABOVE.key)
    bench.unsubscribe("c", "middle")
    changes = bench.take("p")
    assert adds(changes) == [BELOW.key]
    assert changes[-1] == RemoveInterest(middle.key)


def test_changes_cancel_out_while_the_neighbour_does_not_answer() -> None:
    bench = Bench("p")
    bench.subscribe("c", "first", make_interest(("/first",), None))  # on its way, and stays there
    for number in range(1_000):
        bench.subscribe("c", f"s{number}", BELOW)
        bench.unsubscribe("c", f"s{number}")
    assert len(bench.links["p"].stream) == 1


# --- Acceptance


def test_a_broker_without_neighbours_accepts_at_once() -> None:
    bench = Bench()
    bench.subscribe("c", "s", BELOW)
    assert bench.accepted() == ["s"]


def test_a_subscription_is_accepted_when_all_neighbours_have_settled() -> None:
    bench = Bench("p", "q")
    bench.subscribe("c", "s", BELOW)
    bench.settle("p", BELOW)
    assert bench.accepted() == []
    bench.settle("q", BELOW)
    assert bench.accepted() == ["s"]
    bench.subscribe("d", "t", BELOW)
    assert bench.accepted() == ["s", "t"]


def test_a_neighbour_hears_settled_once_all_the_others_said_so() -> None:
    bench = Bench("p", "q", "r")
    bench.add("p", BELOW, serial=7)
    for peer in ("q", "r"):
        assert bench.take("p") == []
        bench.settle(peer, BELOW)
    assert bench.take("p") == [Settled(BELOW.key, 7)]


def test_a_leaf_settles_at_once() -> None:
    bench = Bench("p")
    bench.add("p", BELOW, serial=3)
    assert bench.take("p") == [Settled(BELOW.key, 3)]


def test_a_covered_subscription_is_accepted_with_its_cover() -> None:
    bench = Bench("p")
    bench.subscribe("c", "wide", ABOVE)
    bench.subscribe("c", "narrow", BELOW)
    assert bench.accepted() == []
    bench.settle("p", ABOVE)
    assert sorted(bench.accepted()) == ["narrow", "wide"]


def test_one_that_loses_its_cover_to_another_that_is_settled_is_accepted() -> None:
    bench = Bench("p")
    bench.subscribe("c", "wide", ABOVE)
    bench.settle("p", ABOVE)
    bench.subscribe("c", "pair", PAIR)
    bench.subscribe("c", "narrow", BELOW)
    assert bench.links["p"].covered == {BELOW: PAIR}
    bench.unsubscribe("c", "pair")
    assert bench.accepted() == ["wide", "narrow"]


def test_settled_for_an_earlier_addition_of_the_same_interest_is_void() -> None:
    """Else the subscription counts as accepted while its removal and addition are still on their way."""
    bench = Bench("p")
    bench.subscribe("c", "first", BELOW)
    serial = bench.links["p"].sent[BELOW]
    bench.unsubscribe("c", "first")
    bench.subscribe("c", "second", BELOW)
    bench.say("p", Settled(BELOW.key, serial))
    assert bench.accepted() == []
    bench.settle("p", BELOW)
    assert bench.accepted() == ["second"]


def test_nobody_waits_for_ever_for_a_neighbour_that_never_answered() -> None:
    bench = Bench("p", "q", open_links=False)
    bench.open("p")
    bench.subscribe("c", "s", BELOW)
    bench.settle("p", BELOW)
    assert bench.accepted() == []
    bench.port.now = ABSENT_AFTER_NS
    bench.broker.timer(("forwarding", "absent"))
    assert bench.accepted() == ["s"]


def test_nobody_waits_for_a_neighbour_whose_connection_is_gone() -> None:
    bench = Bench("p", "q")
    bench.subscribe("c", "s", BELOW)
    bench.add("p", ABOVE, serial=2)
    bench.settle("p", BELOW)
    bench.take("p")
    bench.broker.link_down("q")
    assert bench.accepted() == ["s"]
    assert bench.take("p") == [Settled(ABOVE.key, 2)]


def test_a_neighbour_that_comes_late_gets_the_whole_table() -> None:
    bench = Bench("p", open_links=False)
    bench.subscribe("c", "s", BELOW)
    bench.subscribe("c", "t", ABOVE)
    assert bench.take("p") == []
    bench.open("p")
    changes = bench.take("p")
    assert sorted(adds(changes)) == sorted([ABOVE.key, BELOW.key])
    assert changes[-1] == TableSent()


# --- Lives


def test_opening_is_repeated_until_the_neighbour_knows_our_life() -> None:
    bench = Bench("p", open_links=False)
    assert bench.sent_to("p") == [LinkOpen(ME, 0, True)]
    name = ("forwarding", "open", "p")
    assert bench.port.timers[name] == retry_delay_ns(0)
    bench.broker.timer(name)
    assert bench.port.timers[name] == retry_delay_ns(1)
    bench.open("p", heard=ME - 1)
    assert name in bench.port.timers
    bench.open("p")
    assert name not in bench.port.timers


def test_a_question_is_answered_and_an_answer_is_not() -> None:
    bench = Bench("p")
    bench.port.sent.clear()
    bench.broker.receive("p", LinkOpen(1, ME, True))
    assert bench.sent_to("p") == [LinkOpen(ME, 1, False)]
    bench.broker.receive("p", LinkOpen(1, ME, False))
    assert len(bench.sent_to("p")) == 1


def test_a_neighbour_with_a_new_life_gets_the_table_again() -> None:
    bench = Bench("p", "q")
    bench.subscribe("c", "s", BELOW)
    bench.add("q", ABOVE)
    bench.take("p")
    bench.open("p", life=2)
    changes = bench.take("p")
    assert sorted(adds(changes)) == sorted([ABOVE.key, BELOW.key])
    assert changes[-1] == TableSent()
    assert bench.take("q") == [AddInterest(BELOW.key, ("/a/b",), None, 1)]


def test_a_broker_says_that_its_table_is_sent_when_it_has_those_of_all_others() -> None:
    """One that began anew knows nothing of who is behind it: its neighbours must not believe that nobody is."""
    bench = Bench("p", "q", "r", open_links=False)
    for peer in ("p", "q", "r"):
        bench.open(peer)
    assert bench.take("p") == []
    bench.say("q", AddInterest(BELOW.key, ("/a/b",), None, 1), TableSent())
    assert adds(bench.take("p")) == [BELOW.key]
    bench.say("r", TableSent())
    assert bench.take("p") == [TableSent()]
    assert TableSent() not in bench.take("q"), "p has not sent its own"
    bench.broker.link_down("p")
    assert TableSent() in bench.take("q"), "nobody waits for one that is gone"


def test_routes_of_an_earlier_life_are_kept_until_the_neighbour_has_sent_its_table() -> None:
    bench = Bench("p")
    bench.add("p", make_interest(("/old",), None))
    bench.add("p", make_interest(("/kept",), None))
    bench.open("p", life=2)
    assert bench.routes("/old") == bench.routes("/kept") == ["p"]
    bench.add("p", make_interest(("/kept",), None))
    assert bench.routes("/old") == ["p"]
    bench.say("p", TableSent())
    assert bench.routes("/old") == []
    assert bench.routes("/kept") == ["p"]
    assert not bench.links["p"].stale


def test_a_late_message_of_an_earlier_life_is_ignored() -> None:
    bench = Bench("p")
    late = Changes(1, ME, 1, (AddInterest(BELOW.key, ("/a/b",), None, 1),))
    bench.open("p", life=5)
    bench.take("p")
    bench.port.sent.clear()
    bench.broker.receive("p", LinkOpen(1, ME, True))
    assert bench.links["p"].heard == 5
    assert bench.port.sent == []
    bench.broker.receive("p", late)
    assert len(bench.broker.table) == 0
    assert bench.sent_to("p") == [LinkOpen(ME, 5, True)]


def test_changes_for_an_earlier_life_of_ours_are_not_taken() -> None:
    bench = Bench("p")
    bench.port.sent.clear()
    bench.broker.receive("p", Changes(1, ME - 1, 1, (AddInterest(BELOW.key, ("/a/b",), None, 1),)))
    assert len(bench.broker.table) == 0
    assert bench.sent_to("p") == [LinkOpen(ME, 1, True)]
    bench.broker.receive("p", ChangesTaken(1, ME - 1, 1))


# --- Links that lose, repeat and reorder


def test_changes_are_repeated_until_they_are_taken() -> None:
    bench = Bench("p")
    bench.port.sent.clear()
    bench.subscribe("c", "s", BELOW)
    [first] = bench.sent_to("p")
    name = ("forwarding", "repeat", "p")
    for attempt in range(1, 4):
        bench.port.now = bench.port.timers[name]
        bench.broker.timer(name)
        assert bench.sent_to("p") == [first] * (attempt + 1)
        assert bench.port.timers[name] - bench.port.now == retry_delay_ns(attempt)
    bench.take("p")
    assert name not in bench.port.timers


def test_changes_that_come_again_are_taken_once_and_acknowledged_again() -> None:
    bench = Bench("p")
    message = bench.say("p", AddInterest(BELOW.key, ("/a/b",), None, 1))
    bench.say("p", RemoveInterest(BELOW.key))
    bench.port.sent.clear()
    bench.broker.receive("p", message)
    assert len(bench.broker.table) == 0
    assert bench.sent_to("p") == [ChangesTaken(ME, 1, 3)]


def test_an_acknowledgement_that_comes_again_does_not_take_the_next_batch() -> None:
    bench = Bench("p")
    stream = bench.links["p"].stream
    bench.subscribe("c", "s", BELOW)
    old = ChangesTaken(1, ME, stream.number)
    bench.broker.receive("p", old)
    bench.subscribe("c", "t", PAIR)
    in_flight = stream.in_flight
    assert in_flight is not None
    bench.broker.receive("p", old)
    assert stream.in_flight == in_flight


def test_a_connection_that_is_back_repeats_what_was_under_way() -> None:
    bench = Bench("p")
    bench.subscribe("c", "s", BELOW)
    bench.broker.link_down("p")
    bench.port.sent.clear()
    bench.broker.link_up("p")
    assert [type(message) for message in bench.sent_to("p")] == [LinkOpen, Changes]


# --- What makes no sense


@pytest.mark.parametrize(
    ("topics", "sql", "selected"),
    [
        (("/a",), "size >>> 3", ["/a"]),
        (("no topic",), "size > 3", ["/a", "/b"]),
        (("no topic",), None, ["/a", "/b"]),
    ],
)
def test_an_interest_that_cannot_be_read_is_widened(
    topics: tuple[str, ...], sql: str | None, selected: list[str]
) -> None:
    bench = Bench("p")
    key = b"k" * 16
    bench.say("p", AddInterest(key, topics, sql, 4))
    assert isinstance(bench.port.facts[0], Misbehaviour)
    assert [topic for topic in ("/a", "/b") if bench.routes(topic)] == selected
    assert bench.take("p") == [Settled(key, 4)]
    bench.say("p", RemoveInterest(key))
    assert len(bench.broker.table) == 0


def test_two_keys_of_a_neighbour_that_mean_one_interest_here_are_two_references() -> None:
    bench = Bench("p", "q")
    bench.say("p", AddInterest(b"1" * 16, ("/a",), "x >", 1), AddInterest(b"2" * 16, ("/a",), "y >", 2))
    assert len(adds(bench.take("q"))) == 1
    bench.say("p", RemoveInterest(b"1" * 16))
    assert bench.take("q") == []
    assert bench.routes("/a") == ["p"]
    bench.say("p", RemoveInterest(b"2" * 16))
    assert bench.routes("/a") == []
    assert len(bench.take("q")) == 1


@pytest.mark.parametrize(
    "message", [LinkOpen(1, 0, True), Changes(1, ME, 1, (AddInterest(b"k" * 16, ("/a",)),))]
)
def test_who_is_no_neighbour_cannot_speak_for_others(message: Message) -> None:
    bench = Bench("p")
    bench.port.sent.clear()
    bench.broker.receive("stranger", message)
    assert [type(fact) for fact in bench.port.facts] == [Misbehaviour]
    assert bench.port.sent == []
    assert len(bench.broker.table) == 0


def test_an_acknowledgement_of_a_stranger_is_ignored() -> None:
    bench = Bench("p")
    bench.broker.receive("stranger", ChangesTaken(1, ME, 1))


def test_a_removal_and_a_settlement_of_the_unknown_are_ignored() -> None:
    bench = Bench("p")
    bench.say("p", RemoveInterest(b"k" * 16), Settled(b"k" * 16, 1))
    assert bench.port.facts == []
