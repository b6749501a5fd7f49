"""Reliable broadcast without brokers: exactly once, each event to each member once, through partitions and relays."""

from __future__ import annotations

from collections import Counter

import pytest

from tidings.core.overlay.peers.messages import Cast, Packet
from tidings.lab.peers_network import PeersNetwork

NAMES = ["a", "b", "c", "d", "e"]


def count_casts(monkeypatch: pytest.MonkeyPatch) -> Counter[tuple[str, str]]:
    """Count which events are sent to whom, from now on."""
    from tidings.core.overlay.peers.channels import Channels

    counts: Counter[tuple[str, str]] = Counter()
    on_packet = Channels.on_packet

    def counting(self: Channels, sender: str, message: Packet) -> None:
        for inner in message.messages:
            if isinstance(inner, Cast):
                counts[self.port.node, f"{inner.publisher}:{inner.first}"] += 1
        on_packet(self, sender, message)

    monkeypatch.setattr(Channels, "on_packet", counting)
    monkeypatch.setattr(Channels, "handles", dict(Channels.handles))
    return counts


def test_in_stable_phases_each_member_gets_each_event_once(monkeypatch: pytest.MonkeyPatch) -> None:
    counts = count_casts(monkeypatch)
    network = PeersNetwork(NAMES, {"/t": NAMES})
    network.run(5.0)
    events = [network.publish(name, "/t") for name in NAMES for _ in range(20)]
    network.run(10.0)
    for name in NAMES:
        assert sorted(network.shown[name]) == sorted(event for event in events if event[0] != name)
    assert set(counts.values()) == {1} and sum(counts.values()) == len(events) * (len(NAMES) - 1)


def test_with_links_that_are_not_transitive_too(monkeypatch: pytest.MonkeyPatch) -> None:
    counts = count_casts(monkeypatch)
    cut = [("a", "c"), ("a", "d"), ("a", "e"), ("b", "e")]
    network = PeersNetwork(NAMES, {"/t": NAMES}, cut=cut)
    network.run(8.0)
    events = [network.publish("a", "/t") for _ in range(10)]
    network.run(10.0)
    assert all(sorted(network.shown[name]) == sorted(events) for name in NAMES[1:])
    assert set(counts.values()) == {1}


def test_nobody_keeps_what_every_member_has() -> None:
    network = PeersNetwork(NAMES, {"/t": NAMES}, loss=0.2)
    network.run(8.0)
    for _ in range(50):
        network.publish("a", "/t", bytes(1_000))
    assert network.kept_bytes("a") > 50_000
    network.run(40.0)
    assert [network.kept_bytes(name) for name in NAMES] == [0] * 5


def test_partitions_go_on_and_exchange_what_they_missed() -> None:
    network = PeersNetwork(NAMES, {"/t": NAMES})
    network.run(5.0)
    heal = network.split(["a", "b"], ["c", "d", "e"])
    network.run(10.0)
    here = [network.publish("a", "/t") for _ in range(10)]
    there = [network.publish("c", "/t") for _ in range(10)]
    network.run(15.0)
    assert network.shown["b"] == here and network.shown["d"] == there
    assert network.kept_bytes("b") and network.kept_bytes("d"), "others lack it"
    heal()
    network.run(30.0)
    assert sorted(network.shown["b"]) == sorted(network.shown["d"]) == sorted(here + there)
    assert sorted(network.shown["a"]) == sorted(there) and sorted(network.shown["c"]) == sorted(here)
    assert [network.kept_bytes(name) for name in NAMES] == [0] * 5


def test_what_a_publisher_sent_before_it_died_reaches_those_that_it_could_not_reach() -> None:
    network = PeersNetwork(NAMES, {"/t": NAMES})
    network.run(5.0)
    heal = network.split(["a", "b"], ["c", "d", "e"])
    network.run(10.0)
    event = network.publish("a", "/t")
    network.run(10.5)
    network.network.crash("a", keep_state=False)
    heal()
    network.run(30.0)
    assert all(network.shown[name] == [event] for name in ("b", "c", "d", "e"))


def test_those_that_do_not_take_part_relay_where_members_cannot_talk_and_are_shown_nothing() -> None:
    network = PeersNetwork(["a", "b", "c"], {"/t": ["a", "c"]}, cut=[("a", "c")])
    network.run(5.0)
    event = network.publish("a", "/t")
    network.run(10.0)
    assert (network.shown["b"], network.shown["c"]) == ([], [event])
    assert [network.kept_bytes(name) for name in "abc"] == [0, 0, 0]


def test_a_pure_publisher_is_shown_nothing_of_its_own() -> None:
    network = PeersNetwork(NAMES, {"/t": ["b"]})
    network.run(5.0)
    event = network.publish("a", "/t")
    network.run(6.0)
    assert network.shown == {"a": [], "b": [event], "c": [], "d": [], "e": []}


def test_large_events_travel_in_pieces() -> None:
    network = PeersNetwork(NAMES, {"/t": NAMES}, loss=0.1)
    network.run(8.0)
    event = network.publish("a", "/t", bytes(300_000))
    network.run(30.0)
    assert all(network.shown[name] == [event] for name in NAMES[1:])
    assert all(network.kept_bytes(name) == 0 for name in NAMES)


def test_events_of_the_next_life_of_a_publisher_are_others() -> None:
    network = PeersNetwork(NAMES, {"/t": NAMES})
    network.run(5.0)
    network.publish("a", "/t")
    network.run(6.0)
    network.network.crash("a", keep_state=False)
    network.run(7.0)
    network.network.restart("a")
    network.run(15.0)
    network.publish("a", "/t")
    network.run(20.0)
    assert network.shown["b"] == ["a:1", "a:1"]
