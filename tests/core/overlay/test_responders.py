"""A broker tells a client that nobody is subscribed to its request, and says nothing if somebody is."""

from __future__ import annotations

import pytest

from recording_port import RecordingPort
from tidings.core.client.session import BestEffortClient
from tidings.core.events.subscription import make_interest
from tidings.core.facts import Misbehaviour, NobodySubscribed
from tidings.core.filters.language.predicates import Scalar
from tidings.core.kernel import Node
from tidings.core.messages import (
    Message,
    NoResponders,
    RespondersRequest,
    Subscribe,
    SubscribeAfterHistory,
    Unsubscribe,
)
from tidings.core.overlay.best_effort.broker import Broker
from tidings.core.overlay.epidemic.broker import EpidemicBroker
from tidings.core.overlay.epidemic.settings import RecoverySettings
from tidings.core.overlay.guaranteed.broker import GuaranteedBroker
from tidings.core.overlay.guaranteed.held_share import HOLDERS_RETURN_NS
from tidings.core.overlay.guaranteed.messages import Attach, Record, SilentRecord
from tidings.core.overlay.guaranteed.share_messages import ShareAttach, ShareLeave
from tidings.core.overlay.matching import Matcher
from tidings.core.overlay.messages import AddInterest, Changes, LinkOpen
from tidings.core.store import MemoryStore

MODES = ("best-effort", "epidemic", "guaranteed")


class Bench:
    def __init__(self, mode: str = "best-effort", *neighbours: str, matcher: Matcher | None = None) -> None:
        self.port = RecordingPort("me")
        self._store = MemoryStore()
        self.broker = self._make(mode, neighbours, matcher)
        self.broker.start()
        for peer in neighbours:
            self.broker.receive(peer, LinkOpen(1, 9, False))

    def _make(self, mode: str, neighbours: tuple[str, ...], matcher: Matcher | None) -> Node:
        if mode == "guaranteed":
            return GuaranteedBroker(
                self.port, (0,), {}, self._store, delta=1, incarnation=9, new=True, matcher=matcher
            )
        if mode == "epidemic":
            return EpidemicBroker(
                self.port, neighbours, RecoverySettings(), incarnation=9, label=(), matcher=matcher
            )
        return Broker(self.port, neighbours, incarnation=9, matcher=matcher)

    def ask(self, topic: str = "/price", **attributes: Scalar) -> list[tuple[str, Message]]:
        self.port.sent.clear()
        self.broker.receive("asker", RespondersRequest(7, topic, attributes))
        return list(self.port.sent)

    def subscribe(self, *topics: str, sql: str | None = None, client: str = "server") -> None:
        self.broker.receive(client, Attach(1, 0, True))
        self.broker.receive(client, Subscribe("s1", topics, sql, "none"))

    def run_timers(self) -> None:
        timers = self.port.timers
        while due := [name for name, at in timers.items() if at <= self.port.now]:
            for name in due:
                del timers[name]
                self.broker.timer(name)

    def restart(self) -> None:
        self.port.timers.clear()
        self.broker = self._make("guaranteed", (), None)
        self.broker.start()
        self.run_timers()


NOBODY = [("asker", NoResponders(7))]


@pytest.mark.parametrize("mode", MODES)
def test_any_subscription_that_selects_it_counts(mode: str) -> None:
    bench = Bench(mode)
    assert bench.ask() == NOBODY
    bench.subscribe("/price/**")
    assert bench.ask() == []
    assert bench.ask("/prices") == NOBODY


@pytest.mark.parametrize("mode", MODES)
def test_filters_count(mode: str) -> None:
    bench = Bench(mode)
    bench.subscribe("/price", sql="symbol = 'ABB'")
    assert bench.ask(symbol="ABB") == []
    assert bench.ask(symbol="IBM") == NOBODY
    assert bench.ask() == NOBODY


@pytest.mark.parametrize("mode", MODES)
def test_a_subscription_that_ended_does_not_count(mode: str) -> None:
    bench = Bench(mode)
    bench.subscribe("/price")
    bench.broker.receive("server", Unsubscribe("s1"))
    assert bench.ask() == NOBODY


@pytest.mark.parametrize("mode", MODES)
def test_subscriptions_at_other_brokers_of_the_process_do_not_count_by_themselves(mode: str) -> None:
    matcher = Matcher()
    bench = Bench(mode, matcher=matcher)
    matcher.hold(make_interest(("/price",), None))
    assert bench.ask() == NOBODY


def test_interests_behind_a_neighbour_count() -> None:
    bench = Bench("best-effort", "peer")
    interest = make_interest(("/price",), None)
    bench.broker.receive("peer", Changes(1, 9, 1, (AddInterest(interest.key, ("/price",), None, 1),)))
    assert bench.ask() == []


def test_a_broker_without_its_log_cannot_tell() -> None:
    bench = Bench("guaranteed")
    assert isinstance(bench.broker, GuaranteedBroker)
    bench.broker.subscriptions.recovering = True
    assert bench.ask() == []


def with_archive() -> Bench:
    bench = Bench("guaranteed")
    assert isinstance(bench.broker, GuaranteedBroker)
    bench.broker.attachments.archive = ("recorder", "s1")
    bench.subscribe("/**", client="recorder")
    return bench


def test_the_archive_of_a_broker_does_not_count() -> None:
    bench = with_archive()
    assert bench.ask() == NOBODY
    bench.subscribe("/price", client="server")
    assert bench.ask() == []  # it did not hide behind the archive's record, which has all that it selects
    bench.broker.receive("server", Unsubscribe("s1"))
    assert bench.ask() == NOBODY


def test_a_stream_that_begins_with_history_does_not_count() -> None:
    bench = with_archive()
    bench.broker.receive("reader", Attach(1, 0, True))
    bench.broker.receive("reader", SubscribeAfterHistory("s1", ("/price",), None, "none"))
    assert bench.ask() == NOBODY


def test_an_equal_subscription_to_that_of_the_archive_counts() -> None:
    bench = with_archive()
    bench.subscribe("/**", client="watcher")
    assert bench.ask() == []
    bench.broker.receive("recorder", Unsubscribe("s1"))
    assert bench.ask() == []
    bench.broker.receive("watcher", Unsubscribe("s1"))
    assert bench.ask() == NOBODY


def test_the_archive_of_another_broker_does_not_count() -> None:
    bench = Bench("guaranteed")
    assert isinstance(bench.broker, GuaranteedBroker)
    log = bench.broker.log
    log.take([SilentRecord("b1/0/1", "b1", (0, 0), ("/**",), None)])
    assert bench.ask() == NOBODY
    log.take([Record("b1/0/2", "b1", (0, 0), ("/price",), None)])
    assert bench.ask() == []


def attach(bench: Bench, name: str = "pricing", client: str = "server") -> None:
    bench.broker.receive(client, Attach(1, 0, True))
    bench.broker.receive(client, ShareAttach(f"of-{name}", name, ("/price",), None, group=True))
    bench.run_timers()


@pytest.mark.parametrize("leaves", [True, False])
def test_a_group_counts_while_it_has_members(leaves: bool) -> None:
    bench = Bench("guaranteed")
    assert isinstance(bench.broker, GuaranteedBroker)
    attach(bench)
    assert bench.ask() == []
    if leaves:
        bench.broker.receive("server", ShareLeave("of-pricing"))
    else:
        bench.broker.link_down("server")
    assert bench.broker.shares.count == 1
    assert bench.ask() == NOBODY
    attach(bench, "other", client="somebody")
    assert bench.ask() == []
    bench.broker.link_down("somebody")
    assert bench.ask() == NOBODY
    bench.subscribe("/price", client="watcher")
    assert bench.ask() == []


def test_a_group_whose_members_may_return_counts() -> None:
    bench = Bench("guaranteed")
    attach(bench)
    bench.restart()
    bench.port.now += HOLDERS_RETURN_NS - 1
    assert bench.ask() == []
    bench.port.now += 1
    assert bench.ask() == NOBODY


def test_attributes_that_no_event_can_have_are_reported() -> None:
    bench = Bench()
    bench.subscribe("/price", sql="symbol = 'ABB'")
    bench.broker.receive("asker", RespondersRequest(7, "/price", {"symbol": ["a"]}))
    [fact] = [fact for fact in bench.port.facts if isinstance(fact, Misbehaviour)]
    assert fact.peer == "asker"
    assert "symbol" in fact.what


def test_the_client_asks_and_is_told() -> None:
    port = RecordingPort("asker")
    client = BestEffortClient(port, "me")
    attributes: dict[str, Scalar] = {"symbol": "ABB"}
    client.session.ask_for_responders(7, "/price", attributes)
    attributes["symbol"] = "changed later"
    assert port.sent == [("me", RespondersRequest(7, "/price", {"symbol": "ABB"}))]
    client.receive("me", NoResponders(7))
    assert port.facts == [NobodySubscribed(7)]
