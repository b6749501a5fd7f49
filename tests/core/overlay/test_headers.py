"""Subscriptions that ask for headers: what only they select comes without payload and users' attributes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from random import Random
from typing import NamedTuple, cast

import msgspec
import pytest

from epidemic_network import EpidemicNetwork, first_copy
from overlay_network import OverlayNetwork
from recording_port import RecordingPort
from tidings.core.client.reliable_session import ReliableClient
from tidings.core.client.session import BestEffortClient
from tidings.core.events.event import (
    BARE,
    WHOLE,
    Publication,
    decode_event,
    make_publication,
    stamp_publication,
)
from tidings.core.events.run import Run, RunMaker, stamped
from tidings.core.events.subscription import Subscription, make_interest
from tidings.core.events.timestamp import Timestamp
from tidings.core.facts import Delivered
from tidings.core.filters.language.predicates import Scalar
from tidings.core.kernel import Node, Port
from tidings.core.messages import Message, Notify, Subscribe, Subscribed, SubscribeFailed, Unsubscribe
from tidings.core.overlay import routing
from tidings.core.overlay.best_effort.broker import Broker
from tidings.core.overlay.epidemic.broker import EpidemicBroker
from tidings.core.overlay.epidemic.messages import Carried, Fragment
from tidings.core.overlay.epidemic.settings import RecoverySettings
from tidings.core.overlay.guaranteed import delivery, local_subscriptions
from tidings.core.overlay.guaranteed.broker import GuaranteedBroker
from tidings.core.overlay.guaranteed.messages import Attach, Notified, Stamp, Stamped, StampTaken
from tidings.core.store import MemoryStore

MODES = ("best-effort", "guaranteed", "epidemic")
WIDE = Subscription("W", ("/t/**",), headers=True)
NARROW = Subscription("N", ("/t/**",), "size > 10")
PAYLOAD = b"what only those see who asked for it"
STAMP = Timestamp(0, 7, (2,), (3,))


class Shown(NamedTuple):
    """A notification, taken apart."""

    subscriptions: tuple[str, ...]
    attributes: dict[str, object]
    header: tuple[Timestamp | None, int]
    payload: bytes


def shown(subscriptions: Iterable[str], publication: Publication) -> Shown:
    event = decode_event(publication.raw)
    return Shown(tuple(subscriptions), event.attributes, (publication.stamp, publication.kind), event.payload)


# --- One broker, over a port that only records


class Lone:
    """A broker without neighbours in any of the modes, and its clients."""

    def __init__(self, mode: str, store: MemoryStore | None = None, incarnation: int = 1) -> None:
        self.mode = mode
        self.port = RecordingPort("me")
        self.port.now = incarnation
        port = cast("Port", self.port)
        self.node: Node
        if mode == "guaranteed":
            kept = MemoryStore({}) if store is None else store
            self.node = GuaranteedBroker(
                port, (0,), {}, kept, delta=1, incarnation=incarnation, new=store is None
            )
        elif mode == "epidemic":
            self.node = EpidemicBroker(port, (), RecoverySettings(), incarnation=1, label=(0,))
        else:
            self.node = Broker(port, (), incarnation=1)
        self.node.start()
        self.sequence = 0
        self._counts: dict[str, int] = {}
        self.attach("p", publishes=True)

    def attach(self, client: str, *, publishes: bool = False, incarnation: int = 1) -> list[Message]:
        if self.mode != "guaranteed":
            return []
        self._counts[client] = 0
        return self.tell(client, Attach(incarnation, publishes))

    def tell(self, sender: str, message: Message) -> list[Message]:
        """What that client is sent at once."""
        self.port.sent.clear()
        self.node.receive(sender, message)
        for to, sent in self.port.sent:  # it grows meanwhile: the publisher says that it stamps accordingly
            if isinstance(sent, Stamp):
                self.node.receive(to, StampTaken(sent.position))
        return [sent for to, sent in self.port.sent if to == sender]

    def subscribe(self, client: str, wanted: Subscription) -> list[Message]:
        request = Subscribe(wanted.id, wanted.topics, wanted.filter, wanted.order, wanted.headers)
        return self.tell(client, request)

    def publish(
        self, attributes: dict[str, Scalar], topic: str = "/t/x", stamp: Timestamp | None = None
    ) -> dict[str, Shown]:
        """Who is notified of it, and how."""
        self.sequence += 1
        publication = make_publication("p", 1, self.sequence, topic, attributes, PAYLOAD, 7)
        if stamp is not None:
            stamp_publication(publication, 9, stamp)
        self.port.sent.clear()
        if isinstance(self.node, GuaranteedBroker):
            self.node.receive("p", Stamped(self.node.generation, self.node.log.position, publication))
        else:
            self.node.receive("p", publication)
        return self.notified()

    def notified(self) -> dict[str, Shown]:
        """What has been sent to clients since; each has seen it then."""
        found: dict[str, Shown] = {}
        for to, message in list(self.port.sent):
            if isinstance(message, Notify):
                assert to not in found, "a client is notified once"
                found[to] = shown(message.subscriptions, message.stretch)
                if self.mode == "guaranteed":
                    self._counts[to] += 1
                    count = self._counts[to]
                    self.node.receive(to, Notified(count, ((count, count),)))
        return found


@pytest.mark.parametrize("mode", MODES)
def test_a_client_gets_whole_what_an_ordinary_subscription_selects_and_headers_of_the_rest(mode: str) -> None:
    lone = Lone(mode)
    for client, wanted in {"both": (NARROW, WIDE), "wide": (WIDE,), "narrow": (NARROW,)}.items():
        lone.attach(client)
        for subscription in wanted:
            assert lone.subscribe(client, subscription)[-1] == Subscribed(subscription.id)
    large, small = {"size": 12, "live": True}, {"size": 3, "live": True}
    assert lone.publish(large, stamp=STAMP) == {
        "both": Shown(("N", "W"), large, (STAMP, WHOLE), PAYLOAD),
        "wide": Shown(("W",), {}, (STAMP, BARE), b""),
        "narrow": Shown(("N",), large, (STAMP, WHOLE), PAYLOAD),
    }
    assert lone.publish(small, stamp=STAMP) == {
        "both": Shown(("W",), {}, (STAMP, BARE), b""),
        "wide": Shown(("W",), {}, (STAMP, BARE), b""),
    }
    lone.tell("both", Unsubscribe("W"))
    assert set(lone.publish(small)) == {"wide"}
    assert lone.publish(large)["both"] == Shown(("N",), large, (None, WHOLE), PAYLOAD)


@pytest.mark.parametrize("mode", MODES)
def test_a_subscription_cannot_change_its_mind_about_headers(mode: str) -> None:
    lone = Lone(mode)
    lone.attach("c")
    for before, after in ((WIDE, False), (Subscription("V", ("/t/**",)), True)):
        lone.subscribe("c", before)
        [answer] = lone.subscribe("c", Subscription(before.id, before.topics, headers=after))
        assert isinstance(answer, SubscribeFailed)
        assert f"{before.id!r} already exists with headers={before.headers}" in answer.reason
        assert lone.subscribe("c", before)[-1] == Subscribed(before.id)


@pytest.mark.parametrize("mode", MODES)
def test_a_name_that_is_used_again_starts_anew(mode: str) -> None:
    lone = Lone(mode)
    lone.attach("c")
    lone.subscribe("c", WIDE)
    lone.tell("c", Unsubscribe("W"))
    lone.subscribe("c", Subscription("W", WIDE.topics))
    assert lone.publish({"size": 1})["c"] == Shown(("W",), {"size": 1}, (None, WHOLE), PAYLOAD)


@pytest.mark.parametrize("mode", ["best-effort", "epidemic"])
def test_a_client_that_is_gone_leaves_no_header_subscription(mode: str) -> None:
    lone = Lone(mode)
    lone.subscribe("c", WIDE)
    lone.node.link_down("c")
    lone.subscribe("c", Subscription("W", WIDE.topics))
    assert lone.publish({"size": 1})["c"].payload == PAYLOAD


def test_an_event_is_stripped_once_however_many_clients_get_its_header() -> None:
    lone = Lone("best-effort")
    for number in range(5):
        lone.subscribe(f"c{number}", WIDE)
    lone.publish({"size": 1})
    headers = [message.stretch for _, message in lone.port.sent if isinstance(message, Notify)]
    assert len(headers) == 5
    assert len(set(map(id, headers))) == 1


@pytest.mark.parametrize("mode", ["best-effort", "guaranteed"])
def test_a_run_comes_without_its_body_to_who_needs_headers_only(mode: str) -> None:
    lone = Lone(mode)
    for client, wanted in (("wide", WIDE), ("narrow", NARROW)):
        lone.attach(client)
        lone.subscribe(client, wanted)
    maker = RunMaker("p", 1)
    for sequence in range(1, 7):
        maker.add(sequence, "/t/x", {"size": 12 if sequence > 2 else 3}, PAYLOAD, 7)
    (run,) = maker.take_all()
    assert isinstance(run, Run)
    stamped(run, 9, STAMP)
    lone.port.sent.clear()
    if isinstance(lone.node, GuaranteedBroker):
        lone.node.receive("p", Stamped(lone.node.generation, lone.node.log.position, run))
    else:
        lone.node.receive("p", run)
    sent = [(to, message.stretch) for to, message in lone.port.sent if isinstance(message, Notify)]
    left = [part for to, part in sent if to == "wide"]
    whole = [part for to, part in sent if to == "narrow"]
    assert [(part.first, part.last, part.kind, len(part.body)) for part in left] == [
        (1, 2, BARE, 0),
        (3, 6, BARE, 0),
    ]
    assert [(part.first, part.last, part.kind) for part in whole] == [(3, 6, WHOLE)]
    for part in (*left, *whole):
        assert part.stamp == STAMP.at(STAMP.number + part.first - 1)


# --- Against a dumb twin


FILTERS = (None, "size > 10", "size > 20", "live", "size < 5 OR live")


def differences(mode: str, seed: int) -> list[str]:
    """Where a broker, with subscriptions that come and go, does anything but what the rule says."""
    random = Random(f"{mode}:{seed}")
    lone = Lone(mode)
    clients = ("a", "b", "c")
    for client in clients:
        lone.attach(client)
    held: dict[str, dict[str, Subscription]] = {client: {} for client in clients}
    found: list[str] = []
    for _ in range(60):
        client = random.choice(clients)
        name = f"s{random.randrange(4)}"
        if name in held[client]:
            del held[client][name]
            lone.tell(client, Unsubscribe(name))
        else:
            topics = (random.choice(("/t/**", "/t/x", "/u")),)
            wanted = Subscription(name, topics, random.choice(FILTERS), headers=random.random() < 0.5)
            held[client][name] = wanted
            lone.subscribe(client, wanted)
        attributes: dict[str, Scalar] = {"size": random.randrange(30), "live": random.random() < 0.3}
        topic = random.choice(("/t/x", "/t/y", "/u"))
        expected = {client: expect(held[client].values(), topic, attributes) for client in clients}
        notified = lone.publish(attributes, topic, STAMP)
        for client in clients:
            if notified.get(client) != expected[client]:
                found.append(f"{client}: {notified.get(client)} instead of {expected[client]}")
    return found


def expect(wanted: Iterable[Subscription], topic: str, attributes: dict[str, Scalar]) -> Shown | None:
    publication = make_publication("p", 1, 1, topic, attributes, b"", 0)
    selecting = [one for one in wanted if make_interest(one.topics, one.filter).matches(publication)]
    names = tuple(sorted(one.id for one in selecting))
    if not selecting:
        return None
    if all(one.headers for one in selecting):
        return Shown(names, {}, (STAMP, BARE), b"")
    return Shown(names, attributes, (STAMP, WHOLE), PAYLOAD)


@pytest.mark.parametrize("mode", MODES)
def test_whatever_comes_and_goes_the_rule_holds(mode: str) -> None:
    for seed in range(40):
        assert differences(mode, seed) == [], f"seed {seed}"


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("flaw", ["never", "any"])
def test_a_broker_that_strips_nothing_or_too_much_is_found_out(
    mode: str, flaw: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if flaw == "never":
        for module in (routing, delivery):
            monkeypatch.setattr(module, "stripped", lambda stretch: stretch)
    else:  # one header subscription is enough
        for module in (routing, local_subscriptions):
            monkeypatch.setattr(module, "all", any, raising=False)
    assert any(differences(mode, seed) for seed in range(3))


# --- Guaranteed: disks, crashes, moves


class Watched:
    """An overlay whose subscriber `s` has both subscriptions, and what it was shown."""

    def __init__(self, *wanted: Subscription) -> None:
        self.net = OverlayNetwork("b0-b1-b2", {"p": "b0", "s": "b2"}, delta=1)
        self.shown: list[tuple[str, int, bool]] = []
        """(subscription, sequence, whole?)"""
        node = self.net.network.nodes["s"]
        emit = node.emit

        def watch(fact: object) -> None:
            if isinstance(fact, Delivered):
                whole = fact.stretch.kind == WHOLE
                self.shown.append((fact.subscription, fact.stretch.sequence, whole))
            emit(fact)

        node.emit = watch
        for second, subscription in enumerate(wanted, 1):
            self.net.at(2.0 * second)
            self.net._subscriptions["s"][subscription.id] = subscription
            self.net.client("s").subscribe(subscription)
        self.net.at(8.0)

    def publish(self, *sizes: int) -> None:
        for size in sizes:
            self.net.publish("p", size=size)

    def of(self, subscription: str) -> list[tuple[int, bool]]:
        return [(sequence, whole) for name, sequence, whole in self.shown if name == subscription]


EVERYTHING = Subscription("W", headers=True)
LARGE = Subscription("N", (), "size > 10")
SUBSCRIPTIONS = pytest.mark.parametrize(
    "wanted", [(LARGE, EVERYTHING), (EVERYTHING, LARGE)], ids=["NW", "WN"]
)


@SUBSCRIPTIONS
def test_headers_survive_crashes_of_the_broker_and_of_the_client(wanted: tuple[Subscription, ...]) -> None:
    watched = Watched(*wanted)
    watched.publish(3, 12)
    watched.net.at(9.0).crash("b2")
    watched.publish(4, 13)
    watched.net.at(12.0).restart("b2")
    watched.net.at(14.0).crash("s")
    watched.publish(5, 14)
    watched.net.at(16.0).restart("s")
    watched.net.at(20.0)
    assert watched.of("W") == [(1, False), (2, True), (3, False), (4, True), (5, False), (6, True)]
    assert watched.of("N") == [(2, True), (4, True), (6, True)]
    assert watched.net.queues() == {}


def test_what_waits_on_disk_is_whole_and_stripped_when_it_is_sent() -> None:
    """The publisher's broker keeps it for its own client, which is away."""
    net = OverlayNetwork("b0-b1", {"p": "b0", "s": "b0"}, delta=1)
    facts: list[Delivered] = []
    net.network.nodes["s"].emit = lambda fact: facts.append(fact) if isinstance(fact, Delivered) else None
    net.at(1.0)
    net._subscriptions["s"]["W"] = EVERYTHING
    net.client("s").subscribe(EVERYTHING)
    net.at(3.0).crash("s")
    net.client("p").publish("/t", {"size": 1}, PAYLOAD, 0)
    net.at(6.0)
    rows = [bytes(value) for _, value in net.broker("b0").store.read("spill")]
    assert len(rows) == 1
    assert PAYLOAD in rows[0]
    net.crash("b0")
    net.at(7.0).restart("b0")
    net.at(9.0).restart("s")
    net.at(12.0)
    [fact] = facts
    assert shown((fact.subscription,), fact.stretch) == Shown(("W",), {}, (None, BARE), b"")
    assert net.queues() == {}


@SUBSCRIPTIONS
def test_a_broker_that_lost_its_disk_serves_both_subscriptions_again(
    wanted: tuple[Subscription, ...],
) -> None:
    """What was kept for a client that is not back yet: the narrow subscription gets what it selects, and whole."""
    watched = Watched(*wanted)
    watched.publish(3, 12)
    watched.net.at(9.0).crash("s")
    watched.net.at(10.0).crash("b2", keep_state=False)
    watched.publish(4, 13)
    watched.net.at(11.0).restart("b2")
    watched.net.at(13.0)
    watched.publish(5, 14)
    watched.net.at(15.0).restart("s")
    watched.net.at(40.0)
    assert [sequence for sequence, _ in watched.of("W")] == [1, 2, 3, 4, 5, 6]
    assert watched.of("N") == [(2, True), (4, True), (6, True)]
    assert not any(whole for sequence, whole in watched.of("W") if sequence % 2)
    assert watched.net.queues() == {}


def test_a_client_that_starts_anew_may_ask_for_the_other_kind() -> None:
    lone = Lone("guaranteed")
    lone.attach("c")
    lone.subscribe("c", WIDE)
    lone.node.link_down("c")
    lone.attach("c", incarnation=2)
    assert lone.subscribe("c", Subscription("W", WIDE.topics))[-1] == Subscribed("W")
    assert lone.publish({"size": 1})["c"].payload == PAYLOAD


def test_subscriptions_on_disk_keep_their_kind_and_old_rows_are_ordinary_ones() -> None:
    lone = Lone("guaranteed")
    assert isinstance(lone.node, GuaranteedBroker)
    store = cast("MemoryStore", lone.node.store)
    lone.attach("c")
    lone.subscribe("c", WIDE)
    lone.subscribe("c", Subscription("old", ("/u",), headers=True))
    rows = {key: msgspec.msgpack.decode(value) for key, value in store.read("clients")}
    assert [row[-1] for row in rows.values()] == [True, True]
    [old] = [key for key, row in rows.items() if row[1] == "old"]
    store.write([("clients", old, msgspec.msgpack.encode(rows[old][:-1]))])
    again = Lone("guaranteed", store=store, incarnation=2)
    again.attach("c")
    assert again.publish({"size": 1})["c"].payload == b""
    assert again.publish({"size": 1}, "/u")["c"].payload == PAYLOAD
    assert again.subscribe("c", WIDE)[-1] == Subscribed("W")


# --- Epidemic: whole events travel, whatever is lost


@pytest.mark.parametrize("payload", [PAYLOAD, PAYLOAD * 300], ids=["whole", "in blocks"])
def test_what_gossip_recovers_is_stripped_for_the_client_alone(payload: bytes) -> None:
    settings = RecoverySettings(algorithm="publisher-pull", block_bytes=1_000)
    network = EpidemicNetwork("b0-b1-b2", settings)
    for at, wanted in (("b1", WIDE), ("b2", NARROW), ("b2", WIDE)):
        network.client(at).subscribe(wanted)
        network.run(3)
    network.lose = first_copy("b0", "b1", 2)
    for size in (3, 12, 30, 40):
        network.client("b0").publish("/t/x", {"size": size}, payload, network.network.schedule.now)
        network.run(1)
    network.run(10)
    seen = {
        at: {
            fact.stretch.sequence: (shown((), fact.stretch).payload, fact.recovered_by != "")
            for broker, _, fact in network.deliveries
            if (broker, fact.subscription) == (at, "W")
        }
        for at in ("b1", "b2")
    }
    assert seen["b1"] == {1: (b"", False), 2: (b"", True), 3: (b"", False), 4: (b"", False)}
    assert seen["b2"] == {1: (b"", False), 2: (payload, True), 3: (payload, False), 4: (payload, False)}
    assert network.shown("b2", "N") == [2, 3, 4]
    carried = [passage.message for passage in network.sent(Carried, Fragment)]
    assert carried
    for message in carried:
        assert message.header == b"" if isinstance(message, Fragment) else message.stretch.kind == WHOLE


# --- The client's side


@pytest.mark.parametrize("mode", ["best-effort", "guaranteed"])
def test_a_client_asks_for_headers_each_time_it_asks(mode: str) -> None:
    port = RecordingPort("c")
    make: Callable[..., BestEffortClient | ReliableClient] = (
        BestEffortClient if mode == "best-effort" else ReliableClient
    )
    client = make(cast("Port", port), "b")
    client.subscribe(WIDE)
    client.link_up("b")
    asked = [message for _, message in port.sent if isinstance(message, Subscribe)]
    assert asked == [Subscribe("W", WIDE.topics, None, "none", True)] * 2


def test_a_subscribe_of_an_older_version_is_an_ordinary_one() -> None:
    old = msgspec.msgpack.encode([20, "s", ["/a"], None, "none"])
    assert msgspec.msgpack.decode(old, type=Subscribe) == Subscribe("s", ("/a",), None, "none", False)
