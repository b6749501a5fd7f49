"""What clients may say to a broker about durable subscriptions and groups: absurd numbers cost it nothing, and nothing
is lost by them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from overlay_network import OverlayNetwork
from tidings.core.events.event import INT_MAX, make_publication
from tidings.core.messages import Message
from tidings.core.overlay.guaranteed import held_share, share_backlog, share_departures, shares
from tidings.core.overlay.guaranteed.held_share import Client, HeldShare
from tidings.core.overlay.guaranteed.kept_share import MAX_KEY_LENGTH, KeptShare, stored_shares
from tidings.core.overlay.guaranteed.messages import MAX_RANGES
from tidings.core.overlay.guaranteed.share_definition import ShareDefinition
from tidings.core.overlay.guaranteed.share_departures import ShareDepartures
from tidings.core.overlay.guaranteed.share_messages import (
    Routed,
    ShareAccepted,
    ShareAside,
    ShareAsideRequest,
    ShareAttach,
    ShareBack,
    ShareDone,
    ShareElsewhere,
    ShareEnd,
    ShareEnded,
    ShareForgotten,
    ShareGiven,
    ShareLeave,
    ShareLeft,
    ShareMessage,
    ShareReach,
    ShareRead,
    ShareRefused,
    ShareRows,
)
from tidings.core.sharing import shared_queue
from tidings.core.store import MemoryStore

GROUP = ShareDefinition("jobs", ("/t",), None, True, "", "none", 10**18)
EVERYTHING = ((0, INT_MAX),)
ABSURD = (
    EVERYTHING,
    EVERYTHING * MAX_RANGES,
    ((INT_MAX, 0),) * MAX_RANGES,
    ((5, 3), (0, INT_MAX), (7, 7), (INT_MAX, INT_MAX)),
    tuple((number, INT_MAX) for number in range(MAX_RANGES)),
    tuple((number * 2**40, number * 2**40 + 2**39) for number in range(MAX_RANGES)),
)
"""Ranges that are long, many, reversed, or overlap."""


class Home:
    """A share at its broker, with `events` events, and what it sent to whom."""

    def __init__(self, events: int, definition: ShareDefinition = GROUP, **attributes: Any) -> None:
        self.store = MemoryStore()
        self.kept = KeptShare(definition, self.store)
        self.kept.create()
        self.kept.open()
        for number in range(1, events + 1):
            self.kept.take(make_publication("p", 0, number, "/t", attributes, b"", 1))
        self.now = 0
        self._hold()

    def _hold(self) -> None:
        self.sent: list[tuple[Client, ShareMessage]] = []
        self.held = HeldShare(self.kept.definition, self.kept, lambda *sent: self.sent.append(sent), self.now)

    def restart(self) -> None:
        (self.kept,) = stored_shares(self.store, self.now)
        self._hold()

    def attach(self, client: str, **options: Any) -> ShareMessage:
        definition = self.kept.definition
        asked = ShareAttach("s", definition.name, definition.topics, None, definition.group, **options)
        self.held.attach(client, asked)
        self.held.admit(self.now)
        return self.last(client, ShareAccepted)

    def last(self, client: str, kind: type[ShareMessage] | None = None) -> ShareMessage:
        return [one for to, one in self.sent if to == client and (kind is None or isinstance(one, kind))][-1]

    def has(self, client: str) -> set[int]:
        given = [one for to, one in self.sent if to == client and isinstance(one, ShareGiven)]
        return {one.first for one in given}


@pytest.mark.parametrize("ranges", ABSURD, ids=range(len(ABSURD)))
def test_absurd_ranges(ranges: Any) -> None:
    """`a` is refused what it does not have, and gets nothing that `b` has; then all of it goes to `b`."""
    home = Home(40)
    home.attach("a", max_unacked=10)
    home.attach("b", max_unacked=10)
    of_b = home.has("b")
    number = min(home.has("a"))
    # Two have had it, so the home remembers who was done with it.
    home.held.take_back(("a", "s"), ShareBack("s", number, 0), 0)
    home.held.take_back(("a", "s"), ShareBack("s", max(home.has("a")), 0, True), 0)
    home.held.give(0)
    home.held.finish(("b", "s"), ((min(of_b), min(of_b)),))
    home.held.finish(("a", "s"), ranges, ranges)
    assert isinstance(home.last("a"), ShareForgotten)
    assert all(home.kept.queue._out.get(each) == ("\0b\0s", 1) for each in of_b - {min(of_b)})
    home.held.remove(("a", "s"), 0, ranges)
    home.attach("a", max_unacked=10, holding=ranges, life=home.kept.definition.life)
    home.held.answer("c", ShareAsideRequest("jobs", 0, ranges, ranges), "b0", 0)
    home.held.answer("c", ShareAsideRequest("jobs", INT_MAX, (), ranges), "b0", 0)
    home.restart()
    home.attach("a", max_unacked=10, holding=ranges, life=home.kept.definition.life)


def test_a_range_of_everything_finishes_what_the_client_has_and_nothing_else() -> None:
    home = Home(30)
    home.attach("a", max_unacked=10)
    home.attach("b", max_unacked=10)
    mine, others = home.has("a"), home.has("b")
    home.held.finish(("a", "s"), ABSURD[3], ABSURD[3])
    assert home.kept.queue.count == 30 - len(mine)
    assert home.kept.expired == len(mine)
    answer = home.last("a")
    assert isinstance(answer, ShareForgotten)
    refused = {each for first, last in answer.refused for each in range(first, last + 1)}
    assert refused == {*range(1, 31)} - mine
    assert others <= refused


def test_leaving_with_everything_unseen_changes_only_what_the_client_had() -> None:
    home = Home(20)
    home.attach("a", max_unacked=5)
    rows = len(home.store.read("shares"))
    home.held.remove(("a", "s"), 0, EVERYTHING)
    assert len(home.store.read("shares")) == rows + 5, "one row for each that does not count as delivered"
    home.attach("b", max_unacked=5)
    given = [one for to, one in home.sent if to == "b" and isinstance(one, ShareGiven)]
    assert {one.attempt for one in given} == {1}


def alternating(home: Home, client: str, count: int) -> None:
    """Let the client have every other event of twice as many."""
    home.attach(client, max_unacked=2 * count)
    for number in range(2, 2 * count + 1, 2):
        home.held.finish((client, "s"), ((number, number),))
    home.sent.clear()


@pytest.fixture
def few_ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(held_share, "MAX_RANGES", 4)
    monkeypatch.setattr(shared_queue, "MAX_CLAIMED", 4)


@pytest.mark.usefixtures("few_ranges")
def test_answers_have_no_more_ranges_than_a_message_may_have() -> None:
    home = Home(20)
    alternating(home, "a", 10)
    home.held.tell_coverage()
    assert home.last("a") == ShareAccepted("s", EVERYTHING, (), home.kept.definition.life)
    home.attach("b")
    home.held.finish(("b", "s"), EVERYTHING)
    answers = [one for to, one in home.sent if to == "b" and isinstance(one, ShareForgotten)]
    assert [len(one.refused) for one in answers] == [4, 4, 2]
    assert sum(len(one.numbers) for one in answers) <= 11
    assert all(len(one.claimed) <= 4 for _, one in home.sent if isinstance(one, ShareAccepted))


@pytest.mark.usefixtures("few_ranges")
def test_what_is_claimed_beyond_the_limit_comes_again() -> None:
    home = Home(20)
    alternating(home, "a", 10)
    answer = home.attach("a", max_unacked=20, holding=EVERYTHING, life=home.kept.definition.life)
    assert isinstance(answer, ShareAccepted)
    assert answer.claimed == ((1, 1), (3, 3), (5, 5), (7, 7))
    again = [one for _, one in home.sent if isinstance(one, ShareGiven)]
    assert [(one.first, one.attempt) for one in again] == [(each, 2) for each in range(9, 20, 2)]


def test_a_huge_value_to_group_by_is_not_kept_in_memory() -> None:
    by_k = ShareDefinition("jobs", ("/t",), None, True, "k", "none", 10**18)
    home = Home(5, by_k, k="x" * 60_000)
    home.held.attach("a", ShareAttach("s", "jobs", ("/t",), None, True, "k", max_unacked=2))
    home.held.admit(0)
    assert {len(key) <= MAX_KEY_LENGTH for key in home.kept._keys.values()} == {True}
    assert len(set(home.kept._keys.values())) == 1


def test_a_refused_client_changes_no_lease() -> None:
    home = Home(1, ShareDefinition("lake", ("/t",), None, False, "", "none", 10**18))
    home.attach("a")
    with pytest.raises(ValueError, match="is held by client a"):
        home.attach("b", keep_for_ns=1)
    assert home.held.definition.keep_for_ns == 10**18
    assert home.held.holders


def test_a_reader_by_number_that_attaches_as_a_program_is_no_reader_any_more() -> None:
    home = Home(5, ShareDefinition("lake", ("/t",), None, False, "", "none", 10**18))
    home.attach("a", reading=7)
    home.held.reach(("a", "s"), ShareReach("s", 1, 1, 2), 0)
    home.attach("a")
    answers = len(home.sent)
    home.held.reach(("a", "s"), ShareReach("s", 2, INT_MAX, INT_MAX, INT_MAX, INT_MAX), 0)
    assert len(home.sent) == answers


# --- Brokers


class Hostile:
    """A client of b0 that sends what it likes, beside an honest one; b1 is another broker."""

    def __init__(self) -> None:
        self.network = OverlayNetwork("b0-b1", {"evil": "b0", "honest": "b0", "far": "b1"})
        self.heard: dict[str, list[Message]] = {name: [] for name in ("evil", "honest", "far")}
        self.seconds = 1.0
        self.network.at(self.seconds)
        for name, heard in self.heard.items():
            for kind in (
                *(ShareAccepted, ShareRefused, ShareForgotten, ShareEnded, ShareAside, ShareRows, ShareLeft),
                ShareGiven,
            ):
                self.network.network.nodes[name].handlers[kind] = lambda _, message, heard=heard: (
                    heard.append(message)
                )

    def say(self, *messages: Message, who: str = "evil") -> list[Message]:
        """Return what the client heard in answer."""
        broker = self.network.broker(self.network.clients[who])
        self.heard[who].clear()
        for message in messages:
            broker.receive(who, message)
        self.seconds += 3.0
        self.network.at(self.seconds)
        return self.heard[who]

    def attach(self, name: str, who: str = "evil", subscription: str = "s", **options: Any) -> Message:
        return self.say(ShareAttach(subscription, name, ("/t",), None, **options), who=who)[0]


def nonsense(name: str) -> Iterator[ShareMessage]:
    """Everything that a client may say about a share, with absurd numbers."""
    for ranges in ABSURD:
        yield ShareDone("s", ranges, ranges)
        yield ShareLeave("s", ranges)
        yield ShareAsideRequest(name, INT_MAX, ranges, ranges)
    for number in (0, 1, INT_MAX):
        yield ShareBack("s", number, INT_MAX)
        yield ShareBack("s", number, 0, True)
        yield ShareReach("s", number, number, number, number, number)
        yield ShareReach("s", number, INT_MAX, INT_MAX, 0, number)
        yield ShareRead(name, number, number, number, INT_MAX)
        yield ShareRead(name, number, number, INT_MAX, number)


@pytest.mark.parametrize("name", ["jobs", "nobody", "-", "/../x", "x" * 64, "\0"])
@pytest.mark.parametrize("home", ["honest", "far"])
def test_nonsense_about_shares_of_others_and_none(name: str, home: str) -> None:
    bench = Hostile()
    assert isinstance(bench.attach("jobs", home, group=True), ShareAccepted)
    bench.network.client("honest").publish("/t", {}, b"", 0)
    (given,) = bench.say(who=home)
    assert isinstance(given, ShareGiven)
    answers = bench.say(*nonsense(name))
    for answer in answers:
        assert isinstance(answer, ShareAside | ShareRows | ShareLeft), answer
        reason = getattr(answer, "reason", "")
        assert "\n" not in reason and len(reason) < 300
    assert bench.say(ShareDone("s", ((given.first, given.first),)), who=home) == [
        ShareForgotten("s", ((given.first, given.first),))
    ]
    assert not bench.network.complaints


@pytest.mark.parametrize("reading", [0, 7])
def test_nonsense_about_an_own_share(reading: int) -> None:
    bench = Hostile()
    assert isinstance(bench.attach("mine", reading=reading), ShareAccepted)
    for message in nonsense("mine"):
        bench.say(message, ShareAttach("s", "mine", ("/t",), None, reading=reading, takeover=True))
        bench.network.client("honest").publish("/t", {}, b"", 0)
    assert bench.network.broker("b0").shares.count == 1


@pytest.mark.parametrize(
    ("name", "options", "told"),
    [
        ("-", {}, "'-' is not a name of a durable subscription or group"),
        ("a/b", {"group": True}, "'a/b' is not a name"),
        ("lake", {"group": True, "reading": 5}, "a group cannot be read by number"),
        ("lake", {"group_by": "k"}, "only a group is grouped"),
        ("lake", {"group": True, "order": "fifo"}, "a group has no order"),
        ("lake", {"reading": 5, "resumes": True}, "'lake' is gone"),
        ("lake", {"start": ("offset", INT_MAX)}, "needs the archive of a guaranteed broker"),
    ],
)
def test_what_cannot_be_leaves_nothing_behind(name: str, options: dict[str, Any], told: str) -> None:
    bench = Hostile()
    answer = bench.attach(name, **options)
    assert isinstance(answer, ShareRefused)
    assert told in answer.reason
    assert bench.network.broker("b0").shares.count == 0


@pytest.mark.parametrize("home", ["honest", "far"])
def test_a_subscription_is_of_one_name_at_a_time(home: str) -> None:
    """Otherwise the first would be held by a client that nobody can detach."""
    bench = Hostile()
    bench.attach("one", home)
    bench.say(ShareLeave("s"), who=home)
    assert isinstance(bench.attach("one"), ShareAccepted)
    answer = bench.attach("two")
    assert answer == ShareRefused("s", "subscription 's' is one of 'one': leave that first")
    bench.network.broker("b0").link_down("evil")
    bench.seconds += 1
    bench.network.at(bench.seconds)
    assert isinstance(bench.attach("one", home), ShareAccepted)


def test_a_client_has_a_limited_number_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shares, "MAX_HELD_PER_CLIENT", 3)
    bench = Hostile()
    bench.attach("there", "far", group=True)
    bench.say(ShareLeave("s"), who="far")
    for number in range(3):
        name = "there" if number else "here"
        assert isinstance(bench.attach(name, subscription=f"s{number}", group=True), ShareAccepted)
    answer = bench.attach("here", subscription="s3", group=True)
    assert isinstance(answer, ShareRefused)
    assert "a client may have at most 3 durable subscriptions" in answer.reason
    assert isinstance(bench.attach("here", subscription="s0", group=True), ShareAccepted), "it has this one"
    bench.say(ShareLeave("s0"))
    assert isinstance(bench.attach("here", subscription="s3", group=True), ShareAccepted)


def test_questions_that_cannot_be_answered_yet_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(share_backlog, "MAX_QUESTIONS", 3)
    bench = Hostile()
    bench.attach("there", "far", group=True)
    bench.network.cut("b0-b1")
    bench.say()
    assert bench.say(*[ShareRead("there", 1, 1, 1, 2), ShareEnd("there"), ShareAsideRequest("there")]) == []
    first, second = bench.say(ShareAsideRequest("there"), ShareEnd("there"))
    assert isinstance(first, ShareAside) and "questions of this client wait already" in first.reason
    assert isinstance(second, ShareEnded) and "questions of this client wait already" in second.reason
    bench.heard["evil"].clear()
    bench.network.heal("b0-b1")
    bench.seconds += 20
    bench.network.at(bench.seconds)
    assert [type(answer) for answer in bench.heard["evil"]] == [ShareRows, ShareEnded, ShareAside]


def test_who_waits_for_a_move_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(share_departures, "MAX_DEFERRED", 2)
    told: list[tuple[Client, ShareMessage]] = []

    class Host:
        tell = staticmethod(lambda *message: told.append(message))

    departures = ShareDepartures(*[None] * 3, Host, {}, None)  # type: ignore[arg-type]
    leaving = share_departures._Leaving(("b1", (1,)), 1, iter(()), 0)  # type: ignore[arg-type]
    departures._leaving["jobs"] = leaving
    for subscription in ("s0", "s0", "s1", "s2"):
        departures.defer("evil", ShareAttach(subscription, "jobs", ("/t",), None))
    assert [*leaving.deferred] == [("evil", "s0"), ("evil", "s1")]
    assert told == [("evil", ShareRefused("s2", "'jobs' is moving to another broker: try again"))]
    departures.left("evil", "s0")
    assert [*leaving.deferred] == [("evil", "s1")]


def test_a_client_does_not_speak_for_brokers() -> None:
    bench = Hostile()
    bench.attach("jobs", "honest")
    forged = ShareElsewhere("s", "jobs", 9, "nowhere", (9,))
    label = bench.network.broker("b0").neighbourhood.label
    routed = Routed("b0", label, "b1", (0,), (9, 9), (0, 0), 0, 1, "honest", forged)
    bench.say(routed, Routed("b1", (0,), "b0", label, (9, 9), (0, 0), 0, 1, "honest", forged))
    assert bench.network.complaints == ["b0: evil: sent a message of another broker"] * 2
    assert not bench.network.broker("b0").shares._links.is_up("b1")
