"""Scenarios of the guaranteed overlay in exact virtual time: who is shown what, in which order, and when.

Each is a script on a small tree of brokers; at its end the network is healed, and nothing may be left over. Each is
played again with a mistake planted that it must show. Between brokers a message takes 10 ms, a silent peer is given
up after 2.5 to 3 seconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pytest

from overlay_network import (
    OverlayNetwork,
    discharge_all_behind,
    drop_what_has_no_session,
    events,
    exclude_by_the_table_of_the_moment,
    lose_the_table,
    match_towards_the_sender,
    stay_on_the_old_path,
    trust_the_broker,
    use_before_synchronising,
    wait_for_confirmations_only,
)
from tidings.core.client.reliable_session import ReliableSession
from tidings.core.overlay.guaranteed import hops
from tidings.core.overlay.guaranteed.delivery import Delivery
from tidings.core.overlay.guaranteed.messages import Attached, Forward, Passed, Record, Records, Sync
from tidings.core.overlay.guaranteed.parking import Parking
from tidings.core.overlay.guaranteed.queued import Flow, Hop, Queued
from tidings.core.overlay.guaranteed.relays import Relays
from tidings.core.overlay.guaranteed.subscription_log import LogEntry, SubscriptionLog
from tidings.core.overlay.guaranteed.subscriptions import Subscriptions
from tidings.core.overlay.labels import on_path


def test_the_papers_introduction_a_gap_behind_a_link_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    """Figure 1: the link of the publisher's broker fails just before the second server asks."""

    def play() -> OverlayNetwork:
        network = OverlayNetwork("b1-b2-b3 b2-b4", {"p": "b1", "s1": "b3", "s2": "b4"}, delta=0)
        network.at(1.0).subscribe("s1", "location = 'USA'")
        network.at(2.0).cut("b1-b2")
        network.subscribe("s2", "provider = 'BBC'")
        network.at(3.0).publish("p", provider="BBC", location="USA")
        network.publish("p", provider="BBC", location="UK")
        network.publish("p", provider="BBC", location="USA")
        assert network.at(8.0).deliveries == []
        network.heal("b1-b2")
        network.at(12.0).publish("p", provider="BBC", location="USA")
        network.at(13.0).publish("p", provider="BBC", location="UK")
        return network.at(15.0)

    network = play()
    assert network.shown("s1") == ["p:1", "p:3", "p:4"]
    assert network.shown_at("s2") == [("p:4", 12_020.0), ("p:5", 13_020.0)]
    assert network.confirmed("p") == ["p:2", "p:1", "p:3", "p:4", "p:5"], "nobody wants p:2"
    assert network.remains() == []

    exclude_by_the_table_of_the_moment(monkeypatch)
    network = play()
    assert network.shown("s2") == ["p:1", "p:3", "p:4", "p:5"], "a gap: p:2 is missing"


def test_stored_messages_released_after_a_late_subscription(monkeypatch: pytest.MonkeyPatch) -> None:
    """What waits for s behind a barrier is not for those who ask meanwhile, on either side."""

    def play() -> OverlayNetwork:
        network = OverlayNetwork("b0-b1-b2-b3", {"p": "b0", "s": "b3", "t": "b0", "u": "b3"}, delta=1)
        network.at(1.0).subscribe("s", "x = 1")
        network.at(2.0).crash("b1", "b2")
        network.at(6.0).publish("p", 3, x=1)
        network.at(7.0).subscribe("t")
        network.subscribe("u")
        network.at(8.0).restart("b1", "b2")
        network.at(14.0).publish("p", x=1)
        return network.at(16.0)

    network = play()
    assert network.shown("s") == events("p", 1, 4)
    assert network.shown_at("t") == [("p:4", 14_000.0)]
    assert network.shown_at("u") == [("p:4", 14_030.0)]
    assert network.remains() == []

    exclude_by_the_table_of_the_moment(monkeypatch)
    network = play()
    assert network.shown("u") == events("p", 1, 4), "it is shown what was published before it asked"


@pytest.mark.parametrize("away", ["down", "paused"])
def test_switch_back_with_fifo_kept(monkeypatch: pytest.MonkeyPatch, away: str) -> None:
    """An event every 100 ms, over b1, over a bypass that takes 400 ms, and over b1 again when it returns.

    A broker that was paused returns with what it was sent before it was given up: by then that is old news.
    """

    def play() -> OverlayNetwork:
        network = OverlayNetwork("b0-b1-b2", {"p": "b0", "s": "b2"}, delta=1, delays_ms={"b0-b2": 400.0})
        network.at(1.0).subscribe("s")
        for number in range(120):
            network.at(2.0 + number / 10).publish("p")
            if number == 10:
                network.crash("b1") if away == "down" else network.pause("b1")
            if number == 80:
                network.restart("b1") if away == "down" else network.resume("b1")
        return network.at(20.0)

    network = play()
    assert network.shown("s") == events("p", 1, 120)
    assert network.shown_at("s")[0] == ("p:1", 2020.0)
    assert ("p:75", 9800.0) in network.shown_at("s"), "over the bypass"
    assert network.shown_at("s")[-1] == ("p:120", 13_920.0)
    assert network.remains() == []

    stay_on_the_old_path(monkeypatch)
    network = play()
    lost = sorted(set(events("p", 1, 120)) - set(network.shown("s")))
    assert lost, "the copies on the slow bypass were overtaken"


def test_island(monkeypatch: pytest.MonkeyPatch) -> None:
    """Figure 6: b1 and b2 live, and b0 cannot reach them. They hear of its subscription from beyond."""

    def play() -> OverlayNetwork:
        network = OverlayNetwork("b0-b1-b2-b3-b4", {"s": "b0", "p": "b4", "q": "b2"}, delta=2)
        network.at(1.0).cut("b0-b1", "b0-b2")
        network.at(4.5).subscribe("s")
        network.at(4.7).publish("p")
        network.at(4.8).publish("q")
        network.at(14.0).heal("b0-b1", "b0-b2")
        network.at(22.0).publish("q")
        return network.at(25.0)

    network = play()
    assert network.accepted["s"] < 4700, "during the failure, with nobody left out"
    assert sorted(network.shown("s")) == ["p:1", "q:1", "q:2"]
    assert network.shown_at("s")[-1] == ("q:2", 22_020.0), "along the tree again"
    assert network.remains() == []

    send_records = Subscriptions._send_records

    def only_away_from_the_source(self: Subscriptions, peer: str, entries: Iterable[LogEntry]) -> None:
        own = self._sessions.neighbourhood
        away = [e for e in entries if not on_path(own.label_of(peer), own.label, e.record.label)]
        send_records(self, peer, away)

    monkeypatch.setattr(Subscriptions, "_send_records", only_away_from_the_source)
    network = play()
    assert network.shown("s") == ["q:2"], "the island did not know who wants p:1 and q:1"


def test_publishers_broker_restart(monkeypatch: pytest.MonkeyPatch) -> None:
    """p:2 is on its way to b0 when b0 crashes, p:3 is published while it is down, p:1 is with b1 by then."""

    def play() -> OverlayNetwork:
        network = OverlayNetwork("b0-b1-b2", {"p": "b0", "s": "b2"}, delta=1, client_delay_ms=1.0)
        network.at(1.0).subscribe("s")
        network.at(2.0).publish("p")
        network.at(2.012).publish("p")
        network.crash("b0")
        network.at(3.0).publish("p")
        network.at(4.0).restart("b0")
        network.at(7.0).publish("p")
        return network.at(9.0)

    network = play()
    assert network.shown("s") == events("p", 1, 4)
    assert network.shown_at("s")[0] == ("p:1", 2024.0), "attached and taken after 3 ms"
    assert sorted(network.confirmed("p")) == events("p", 1, 4)
    assert all(at_ms > 4000 for _, at_ms in network.confirmations), "b0 forgot what p:1 was sent for"
    assert network.remains() == []

    on_attached = ReliableSession.on_attached

    def send_nothing_again(self: ReliableSession, sender: str, message: Attached) -> None:
        if not self._attached:
            self._outgoing._unconfirmed.clear()
        on_attached(self, sender, message)

    monkeypatch.setattr(ReliableSession, "on_attached", send_nothing_again)
    network = play()
    assert network.shown("s") == ["p:1", "p:3", "p:4"]


def test_subscribers_broker_crash(monkeypatch: pytest.MonkeyPatch) -> None:
    """p:1 is shown and b2 crashes before it hears so; p:2 is sent in vain; p:3 comes when b2 is known to be down."""

    def play() -> OverlayNetwork:
        network = OverlayNetwork("b0-b1-b2", {"p": "b0", "s": "b2"}, delta=1, client_delay_ms=4.0)
        network.at(1.0).subscribe("s")
        network.at(2.0).publish("p")
        network.at(2.038).crash("b2")
        network.at(2.1).publish("p")
        network.at(6.0).publish("p")
        network.at(8.0).restart("b2")
        network.at(12.0).publish("p")
        return network.at(14.0)

    network = play()
    assert network.shown_at("s")[0] == ("p:1", 2036.0)
    assert network.shown_at("s")[3] == ("p:4", 12_028.0)
    assert network.shown("s") == events("p", 1, 4)
    assert network.remains() == []

    with pytest.MonkeyPatch.context() as patch:
        trust_the_broker(patch)
        assert play().shown("s") == ["p:1", "p:1", "p:2", "p:3", "p:4"]
    drop_what_has_no_session(monkeypatch)
    assert play().shown("s") == ["p:1", "p:2", "p:4"]


def test_rolling_restart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of five brokers is down for a second, one after the other, four times, while events go both ways."""

    def play() -> OverlayNetwork:
        clients = {"p": "b0", "q": "b4", "s": "b4", "t": "b0", "u": "b2"}
        network = OverlayNetwork("b0-b1-b2-b3-b4", clients, delta=1)
        for subscriber in ("s", "t", "u"):
            network.at(1.0).subscribe(subscriber)
        for number in range(200):
            network.at(2.0 + number / 10)
            network.publish("p")
            network.publish("q")
            if number % 10 == 0:
                network.crash(f"b{number // 10 % 5}")
                if number:
                    network.restart(f"b{(number // 10 - 1) % 5}")
        network.at(22.0).restart("b4")
        return network.at(35.0)

    def of(network: OverlayNetwork, subscriber: str, source: str) -> list[str]:
        return [event for event in network.shown(subscriber) if event.startswith(source)]

    network = play()
    for subscriber in ("s", "t", "u"):
        for source in ("p", "q"):
            assert of(network, subscriber, source) == events(source, 1, 200)
    assert network.remains() == []

    place = Delivery._place

    def confirm_when_taken(self: Delivery, queued: Queued) -> None:
        self._confirmations.finished(queued)
        queued.senders.clear()
        place(self, queued)

    monkeypatch.setattr(Delivery, "_place", confirm_when_taken)
    network = play()
    assert len(of(network, "t", "q")) < 200, "whoever had confirmed some, and kept them for b1, forgot them"


def test_two_branches_behind_one_dead_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    """b1 is dead. b2 behind it goes on; b3, cut off from all, gets everything later."""

    def play() -> OverlayNetwork:
        clients = {"p": "b0", "q": "b2", "s": "b2", "t": "b3", "u": "b0"}
        network = OverlayNetwork("b0-b1-b2 b1-b3", clients, delta=1)
        for subscriber in ("s", "t", "u"):
            network.at(1.0).subscribe(subscriber)
        cut_off = network.links_between("b3", "b0 b1 b2")
        network.at(2.0).crash("b1")
        network.cut(*cut_off)
        network.at(2.1).publish("p")
        network.at(7.0).publish("p")
        network.at(7.5).publish("q")
        network.at(8.0)
        assert network.shown("s") == ["p:1", "p:2", "q:1"]
        assert network.shown_at("s")[1:] == [("p:2", 7010.0), ("q:1", 7500.0)]
        assert network.shown_at("u")[1:] == [("p:2", 7000.0), ("q:1", 7510.0)]
        assert network.shown("t") == []
        network.heal(*cut_off)
        network.restart("b1")
        return network.at(16.0)

    network = play()
    assert [event for event in network.shown("t") if event != "q:1"] == ["p:1", "p:2"]
    assert sorted(network.shown("t")) == ["p:1", "p:2", "q:1"]
    assert network.remains() == []

    discharge_all_behind(monkeypatch)
    network = play()
    assert network.shown("t") == ["p:2", "q:1"]


def test_barrier_of_delta_plus_1(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three brokers of a chain are down and delta is 2: both sides wait, and say whom they do not reach."""

    def play_until_barred() -> OverlayNetwork:
        clients = {"p": "b0", "q": "b4", "s": "b4", "t": "b0"}
        network = OverlayNetwork("b0-b1-b2-b3-b4", clients, delta=2)
        network.at(1.0).subscribe("s")
        network.at(2.0).crash("b1", "b2", "b3")
        network.at(6.0).publish("p", 2)
        network.at(7.0).subscribe("t", "x = 1")
        network.at(8.0).publish("q", x=1)
        return network.at(9.0)

    def play_on(network: OverlayNetwork) -> None:
        network.restart("b1", "b2", "b3")
        network.at(16.0).publish("q", x=1)
        network.at(18.0)

    network = play_until_barred()
    assert network.shown_at("s") == [("q:1", 8000.0)], "its own side"
    assert network.confirmed("p") == ["p:1", "p:2"], "they are on the disk of b0"
    assert network.queues() == {"b0": ["p:1", "p:2"]}
    assert len(network.uncovered["t"]) == 1
    assert "t" not in network.accepted
    play_on(network)
    assert network.shown("s") == ["q:1", "p:1", "p:2", "q:2"]
    assert network.shown_at("t") == [("q:2", 16_040.0)], "b4 could not know of t when q:1 was published"
    assert 9000 < network.accepted["t"] < 16_000
    assert network.remains() == []

    drop_what_has_no_session(monkeypatch)
    network = play_until_barred()
    play_on(network)
    assert network.shown("s") == ["q:1", "q:2"]


def test_restart_beside_an_island(monkeypatch: pytest.MonkeyPatch) -> None:
    """delta = 2, never more than two failures. b1 was cut off when s and t asked; b0 restarts as the link between
    the two returns. b1 learns from b0 what b0 has on its disk, and holds for s what b0 sends on."""

    def play() -> OverlayNetwork:
        clients = {"p": "b0", "q": "b1", "s": "b2", "t": "b0"}
        network = OverlayNetwork("b0-b1-b2", clients, delta=2, delays_ms={"b0-b2": 400.0})
        network.at(1.0).cut("b0-b1")
        network.cut("b1-b2")
        network.at(8.0).subscribe("s")
        network.subscribe("t", "x = 1")
        network.at(12.0).publish("p", x=1)
        network.at(14.0).crash("b0")
        network.heal("b0-b1")
        network.at(14.5).restart("b0")
        network.at(14.7).publish("p", x=1)
        network.at(15.0).publish("q", x=1)
        network.at(18.0).publish("p", x=1)
        network.at(20.0).heal("b1-b2")
        network.at(28.0).publish("q", x=1)
        return network.at(30.0)

    network = play()
    assert [event for event in network.shown("s") if event[0] == "p"] == events("p", 1, 3)
    assert [event for event in network.shown("s") if event[0] == "q"] == events("q", 1, 2)
    assert network.shown("t") == ["p:1", "p:2", "q:1", "p:3", "q:2"]
    assert network.shown_at("s")[0] == ("p:1", 12_400.0)
    assert network.shown_at("s")[-1] == ("q:2", 28_010.0)
    assert network.remains() == []

    lose_the_table(monkeypatch)
    network = play()
    assert [event for event in network.shown("s") if event[0] == "p"] == ["p:1", "p:3"]


def test_unsubscribe_under_partition(monkeypatch: pytest.MonkeyPatch) -> None:
    """b0 keeps events for s and t when s unsubscribes out of its reach. What is left of s goes from all logs."""

    def play() -> OverlayNetwork:
        network = OverlayNetwork("b0-b1-b2", {"p": "b0", "s": "b2", "t": "b1"}, delta=1)
        network.at(1.0).subscribe("s")
        network.subscribe("t")
        network.at(2.0).cut("b0-b1", "b0-b2")
        network.at(3.0).publish("p", 3)
        network.at(4.0).unsubscribe("s")
        assert network.at(8.0).queues() == {"b0": ["p:1", "p:2", "p:3"]}
        network.heal("b0-b1", "b0-b2")
        network.at(14.0).publish("p")
        return network.at(16.0)

    def brokers_in_logs(network: OverlayNetwork) -> set[str]:
        return {entry.record.broker for name in ("b0", "b1", "b2") for entry in network.broker(name).log}

    network = play()
    assert network.shown("s") == []
    assert network.shown("t") == events("p", 1, 4)
    assert network.received(Forward, "b0", "b2") == network.received(Forward, "b1", "b2") == 0
    assert brokers_in_logs(network) == {"b1"}
    assert network.remains() == []

    take = SubscriptionLog.take

    def no_tombstones(self: SubscriptionLog, records: Sequence[Record]) -> list[LogEntry]:
        news = take(self, records)
        for entry in news:
            if entry.dead:
                del self._entries[entry.id]
        return news

    def remember_nothing(self: SubscriptionLog, record_ids: Sequence[str]) -> list[str]:
        return []

    monkeypatch.setattr(SubscriptionLog, "take", no_tombstones)
    monkeypatch.setattr(SubscriptionLog, "collect", remember_nothing)
    network = play()
    assert brokers_in_logs(network) == {"b1", "b2"}, "b0, which did not hear of its end, brought s back"


def test_confirmation_in_flight_at_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    """The event is shown, its confirmation is lost with the link, and asked for again by sending the event."""

    def play() -> OverlayNetwork:
        network = OverlayNetwork("b0-b1", {"p": "b0", "s": "b1"}, delta=1)
        network.at(1.0).subscribe("s")
        network.at(2.0).publish("p")
        network.at(2.015).cut("b0-b1")
        assert network.at(3.0).queues() == {"b0": ["p:1"]}
        network.heal("b0-b1")
        return network.at(12.0)

    network = play()
    assert network.shown_at("s") == [("p:1", 2010.0)]
    assert network.received(Forward, "b0", "b1") == 2
    assert network.received(Passed, "b1", "b0") == 1
    assert network.broker("b1").delivery.duplicates == 1
    assert network.remains() == []

    def say_nothing(self: Delivery, sender: Hop, flow: Flow, number: int, count: int) -> None: ...

    monkeypatch.setattr(Delivery, "_tell_sender", say_nothing)
    network = play()
    assert network.queues() == {"b0": ["p:1"]}


def test_window_of_1_in_both_directions(monkeypatch: pytest.MonkeyPatch) -> None:
    """One publication at a time on each session, either way, though everything waits for u, whose broker is dead."""
    monkeypatch.setattr(hops, "MAX_WAITING_PER_SENDER", 0)

    def play() -> OverlayNetwork:
        clients = {"p": "b0", "q": "b2", "s": "b0", "t": "b2", "u": "b3"}
        network = OverlayNetwork("b0-b1-b2 b1-b3", clients, delta=1, window=1)
        for subscriber in ("s", "t", "u"):
            network.at(1.0).subscribe(subscriber)
        network.at(2.0).crash("b3")
        network.at(6.0).publish("p", 10)
        network.publish("q", 10)
        return network.at(30.0)

    network = play()
    assert network.shown_at("t")[0] == ("q:1", 6000.0)
    for subscriber in ("s", "t"):
        assert sorted(network.shown(subscriber)) == sorted(events("p", 1, 10) + events("q", 1, 10))
    assert network.shown("s")[-1] == "q:10"
    assert network.shown("u") == []
    network.restart("b3")
    network.at(45.0)
    for source in ("p", "q"):
        assert [event for event in network.shown("u") if event[0] == source] == events(source, 1, 10)
    assert network.remains() == []

    def never(self: Parking, queued: Queued, now: int) -> bool:
        return False

    monkeypatch.setattr(Parking, "_is_stuck", never)
    network = play()
    assert "p:3" not in network.shown("t"), "what waits for the dead holds up the living"


def test_failed_last_hop_link(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the link between b1 and b2 fails. On the tree b1 is beside the subscriber, and cannot reach it; b0 and b3
    can reach both, and carry what passes between the two."""

    def play_during_the_failure() -> OverlayNetwork:
        clients = {"p": "b0", "q": "b3", "r": "b2", "s": "b2", "t": "b1"}
        network = OverlayNetwork("b0-b1-b2 b1-b3", clients, delta=1)
        network.at(1.0).subscribe("s", "x = 1")
        network.subscribe("t", "x = 2")
        network.at(2.0).cut("b1-b2")
        network.at(2.1).publish("p", x=1)
        for second in (10.0, 11.0, 12.0):
            network.at(second)
            network.publish("p", x=1)
            network.publish("q", x=1)
            network.publish("r", x=2)
        return network.at(20.0)

    def play_on(network: OverlayNetwork) -> None:
        network.heal("b1-b2")
        network.at(30.0).publish("p", x=1)
        network.publish("r", x=2)
        network.at(32.0)

    def of(network: OverlayNetwork, subscriber: str, source: str) -> list[tuple[str, float]]:
        return [event for event in network.shown_at(subscriber) if event[0].startswith(source)]

    network = play_during_the_failure()
    assert of(network, "s", "p:1")[0][1] < 10_000
    assert of(network, "s", "p")[1:] == [("p:2", 10_030.0), ("p:3", 11_030.0), ("p:4", 12_030.0)]
    assert of(network, "s", "q") == [("q:1", 10_030.0), ("q:2", 11_030.0), ("q:3", 12_030.0)]
    assert of(network, "t", "r") == [("r:1", 10_020.0), ("r:2", 11_020.0), ("r:3", 12_020.0)]
    assert network.remains() == [], "nothing waits for the link"
    play_on(network)
    assert of(network, "s", "p")[4:] == [("p:5", 30_020.0)], "directly again"
    assert of(network, "t", "r")[3:] == [("r:4", 30_010.0)]
    assert network.remains() == []

    def ask_nobody(self: Relays) -> None: ...

    monkeypatch.setattr(Relays, "beat", ask_nobody)
    network = play_during_the_failure()
    assert network.shown("s") == network.shown("t") == []
    play_on(network)
    assert [event for event, _ in of(network, "s", "p")] == events("p", 1, 5)


def test_failed_links_with_a_single_relay_left() -> None:
    """b1 reaches nobody but b3, which reaches everybody. b0 asks b2 in vain, and must take what b3 offers."""
    network = OverlayNetwork("b0-b1 b0-b2-b3", {"p": "b1", "s": "b0"}, delta=3)
    network.at(1.0).subscribe("s")
    network.at(2.0).cut("b0-b1", "b1-b2")
    network.at(20.0).publish("p")
    network.at(50.0)
    assert network.shown("s") == ["p:1"], "during the failure of two links"
    network.heal("b0-b1", "b1-b2")
    network.at(60.0)
    assert network.remains() == []


def test_edge_broker_confirms(monkeypatch: pytest.MonkeyPatch) -> None:
    """Out and back over three links takes 60 ms; what nobody wants is confirmed where it is published."""

    def play() -> OverlayNetwork:
        network = OverlayNetwork("b0-b1-b2-b3 b1-b4", {"p": "b0", "s": "b3", "t": "b4"}, delta=1)
        network.at(1.0).subscribe("s", "x = 1")
        network.subscribe("t", "x = 2")
        network.at(2.0).publish("p", x=1)
        network.at(3.0).publish("p", x=2)
        network.at(4.0).publish("p", x=3)
        return network.at(6.0)

    network = play()
    assert network.shown_at("s") == [("p:1", 2030.0)]
    assert network.shown_at("t") == [("p:2", 3020.0)]
    assert network.confirmations == [("p:1", 2060.0), ("p:2", 3040.0), ("p:3", 4000.0)]
    assert network.remains() == []

    wait_for_confirmations_only(monkeypatch)
    network = play()
    assert network.confirmations == []
    assert network.queues() == {"b0": ["p:1", "p:2"], "b1": ["p:1", "p:2"], "b2": ["p:1"]}


def test_synchronise_before_use(monkeypatch: pytest.MonkeyPatch) -> None:
    """b1 returns and lacks s. What b0 keeps for s follows the subscription, on that session and the next."""

    def play() -> OverlayNetwork:
        network = OverlayNetwork("b0-b1-b2", {"p": "b0", "s": "b2"}, delta=1)
        network.at(1.0).crash("b1")
        network.at(6.0).subscribe("s")
        network.at(8.0).crash("b2")
        network.at(8.1).publish("p", 2)
        network.at(12.0).restart("b1")
        network.at(16.0).restart("b2")
        network.at(21.0).publish("p")
        return network.at(23.0)

    def kinds(network: OverlayNetwork, sender: str, receiver: str) -> list[str]:
        """What passed between the two about subscriptions and publications since b1 returned."""
        return [
            type(message).__name__
            for at_ms, source, target, message in network.messages
            if at_ms > 12_000
            and {source, target} == {sender, receiver}
            and (
                (source == sender and isinstance(message, (Records, Forward)))
                or (source == receiver and isinstance(message, Sync) and message.last)
            )
        ]

    network = play()
    assert network.shown("s") == events("p", 1, 3)
    assert network.shown_at("s")[2] == ("p:3", 21_020.0)
    passed = kinds(network, "b0", "b1")
    assert {"Records", "Sync"} <= set(passed[: passed.index("Forward")])
    assert passed.count("Forward") == 3
    assert network.remains() == []

    use_before_synchronising(monkeypatch)
    network = play()
    assert network.shown("s") == ["p:3"]
    assert kinds(network, "b0", "b1")[0] == "Forward"


def test_no_sending_backwards(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everybody everywhere wants the event: it passes each link once, away from its publisher."""

    def play() -> OverlayNetwork:
        clients = {"p": "b2", "s0": "b0", "s1": "b1", "s2": "b2", "s3": "b3", "s4": "b4"}
        network = OverlayNetwork("b0-b1-b2-b3 b1-b4", clients, delta=1)
        for number in range(5):
            network.at(1.0).subscribe(f"s{number}")
        network.at(2.0).publish("p")
        return network.at(6.0)

    def passed(network: OverlayNetwork) -> list[tuple[float, str, str]]:
        return sorted(
            (at_ms, sender, receiver)
            for at_ms, sender, receiver, message in network.messages
            if isinstance(message, Forward)
        )

    network = play()
    assert passed(network) == [
        (2010.0, "b2", "b1"),
        (2010.0, "b2", "b3"),
        (2020.0, "b1", "b0"),
        (2020.0, "b1", "b4"),
    ]
    assert network.deliveries == [
        ("s2", "p:1", 2000.0),
        ("s1", "p:1", 2010.0),
        ("s3", "p:1", 2010.0),
        ("s0", "p:1", 2020.0),
        ("s4", "p:1", 2020.0),
    ]
    assert network.confirmations == [("p:1", 2040.0)]
    assert network.remains() == []

    match_towards_the_sender(monkeypatch)
    network = play()
    assert (2020.0, "b1", "b2") in passed(network)
    assert network.confirmations == []
