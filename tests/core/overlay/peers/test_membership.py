"""Topic membership of processes without brokers: views become stable, equal and right (TM2 to TM4)."""

from __future__ import annotations

import pytest

from tidings.lab.peers_network import PeersNetwork

NAMES = ["a", "b", "c", "d", "e"]


def views(network: PeersNetwork, names: list[str]) -> set[tuple[tuple[str, ...], bool]]:
    return {network.view(name, "/t") for name in names}


@pytest.mark.parametrize("loss", [0.0, 0.3])
def test_all_members_report_the_same_stable_view(loss: float) -> None:
    network = PeersNetwork(NAMES, {"/t": NAMES[:4]}, loss=loss)
    network.run(30.0)
    assert views(network, NAMES[:4]) == {(("a", "b", "c", "d"), True)}


def test_each_partition_has_its_own_view_and_they_become_one() -> None:
    network = PeersNetwork(NAMES, {"/t": NAMES})
    network.run(5.0)
    heal = network.split(["a", "b"], ["c", "d", "e"])
    network.run(15.0)
    assert views(network, ["a", "b"]) == {(("a", "b"), True)}
    assert views(network, ["c", "d", "e"]) == {(("c", "d", "e"), True)}
    heal()
    network.run(25.0)
    assert views(network, NAMES) == {(tuple(NAMES), True)}


def test_reachability_is_the_closure_of_links_that_are_not_transitive() -> None:
    network = PeersNetwork(
        NAMES,
        {"/t": ["a", "e"]},
        cut=[("a", "c"), ("a", "d"), ("a", "e"), ("b", "d"), ("b", "e"), ("c", "e")],
    )
    network.run(10.0)
    assert network.participant("a").channels.open_peers == ["b"]
    assert views(network, ["a", "e"]) == {(("a", "e"), True)}


def test_a_process_that_dies_leaves_the_views_and_its_next_life_joins_them() -> None:
    network = PeersNetwork(NAMES, {"/t": NAMES})
    network.run(5.0)
    network.network.crash("c", keep_state=False)
    network.run(15.0)
    assert views(network, ["a", "b", "d", "e"]) == {(("a", "b", "d", "e"), True)}
    network.network.restart("c")
    network.run(25.0)
    assert views(network, NAMES) == {(tuple(NAMES), True)}


def test_who_leaves_for_good_is_gone_at_once() -> None:
    network = PeersNetwork(NAMES, {"/t": NAMES})
    network.run(5.0)
    network.participant("c").membership.leave_for_good()
    network.run(6.0)
    assert views(network, ["a", "b", "d", "e"]) == {(("a", "b", "d", "e"), True)}


def test_every_view_includes_whoever_reports_it() -> None:
    network = PeersNetwork(NAMES, {"/t": NAMES}, loss=0.2)
    network.run(5.0)
    network.split(["a"], ["b", "c", "d", "e"])
    network.run(15.0)
    assert all(name in view.members for name in NAMES for view in network.views[name] if view.stable)


def test_at_rest_a_process_sends_little_however_many_there_are() -> None:
    names = [f"p{number:02}" for number in range(40)]
    network = PeersNetwork(names, {"/t": names})
    network.run(15.0)
    before = network.traffic()
    network.run(35.0)
    after = network.traffic()
    size_bytes = sum(after[kind][1] - before[kind][1] for kind in after)
    assert size_bytes / 20 / len(names) < 2_000
    assert after["Packet"] == before["Packet"], "nothing but beats"
