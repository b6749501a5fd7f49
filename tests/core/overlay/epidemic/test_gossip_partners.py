"""Partners come from the directory: those who want it, never ourselves, none of those who have it."""

from __future__ import annotations

from collections import Counter
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from breadth import examples
from recording_port import RecordingPort
from tidings.core.kernel import Port
from tidings.core.overlay.epidemic.directory import Directory
from tidings.core.overlay.epidemic.gossip_partners import GossipPartners, pull_strategy, push_strategy
from tidings.core.overlay.epidemic.messages import Announce, BrokerEntry
from tidings.core.overlay.epidemic.settings import Algorithm, RecoverySettings, Strategy

A, B = b"patternA", b"patternB"
LABELS = {"b1": (0, 0), "b2": (0, 1), "b3": (0, 0, 0), "b4": (0, 1, 0), "b5": (0, 0, 1)}


def entry(name: str, *patterns: bytes, everything: bool = False, version: int = 1) -> BrokerEntry:
    return BrokerEntry(name, 1, version, LABELS.get(name, ()), "", 0, patterns, everything)


class World:
    """A gossip_partners and its directory, at broker `me`, the root unless a label is given."""

    def __init__(self, *entries: BrokerEntry, label: tuple[int, ...] | None = (0,), **changes: Any) -> None:
        self.port = RecordingPort()
        port = cast("Port", self.port)
        self.directory = Directory(port, ["b1"], incarnation=1, label=label)
        self.gossip_partners = GossipPartners(port, self.directory, RecoverySettings(**changes))
        self.directory.start()
        self.learn(*entries)

    def learn(self, *entries: BrokerEntry) -> None:
        self.directory.on_announce("b1", Announce(entries))


SUBSETS = st.lists(st.sampled_from([A, B]), unique=True).map(tuple)


@settings(max_examples=examples(150))
@given(
    subscriptions=st.dictionaries(st.sampled_from(sorted(LABELS)), st.tuples(SUBSETS, st.booleans())),
    patterns=SUBSETS,
    count=st.integers(0, 6),
    without=st.lists(st.sampled_from(["me", *LABELS, "stranger"]), max_size=3),
    also=st.sampled_from(["", "me", "stranger", *LABELS]),
    pulling=st.booleans(),
    by_tree=st.booleans(),
    algorithm=st.sampled_from(["push", "subscriber-pull", "push+pull"]),
    selection=st.sampled_from(["random", "wdpg", "wrpg", "pgw"]),
    weights=st.sampled_from(["topology", "loss"]),
)
def test_partners_are_distinct_candidates_and_as_many_as_there_are(
    subscriptions: dict[str, tuple[tuple[bytes, ...], bool]],
    patterns: tuple[bytes, ...],
    count: int,
    without: list[str],
    also: str,
    pulling: bool,
    by_tree: bool,
    algorithm: Algorithm,
    selection: Strategy,
    weights: Any,
) -> None:
    entries = [entry(name, *held, everything=all_) for name, (held, all_) in subscriptions.items()]
    world = World(*entries, algorithm=algorithm, selection=selection, weights=weights)
    candidates = {
        name
        for name, (held, all_) in subscriptions.items()
        if all_ or any(pattern in held for pattern in patterns) or name == also
    } - set(without)
    for _ in range(2):  # computed, and remembered
        chosen = world.gossip_partners.choose(
            patterns, count, pulling=pulling, without=without, also=also, by_tree=by_tree
        )
        assert len(chosen) == len(set(chosen)) == min(count, len(candidates))
        assert set(chosen) <= candidates


def test_what_was_computed_is_void_when_the_directory_changes() -> None:
    world = World(entry("b1", A), entry("b2", B), algorithm="push")
    assert world.gossip_partners.choose((A,), 9) == ["b1"]
    world.learn(entry("b2", A, version=2), entry("b1", B, version=2))
    assert world.gossip_partners.choose((A,), 9) == ["b2"]


def test_who_wants_an_event() -> None:
    world = World(entry("b1", A), entry("b2", everything=True))
    assert world.gossip_partners.wants("b1", ((B, 1, 1), (A, 1, 1)))
    assert not world.gossip_partners.wants("b1", ((B, 1, 1),))
    assert world.gossip_partners.wants("b2", ((B, 1, 1),))
    assert not world.gossip_partners.wants("stranger", ((A, 1, 1),))
    assert not world.gossip_partners.wants("me", ((A, 1, 1),))


def test_without_labels_nobody_is_preferred() -> None:
    unlabelled = [BrokerEntry(f"x{number}", 1, 1, (), "", 0, (A,), False) for number in range(4)]
    world = World(*unlabelled, label=None, algorithm="push", selection="wdpg")
    drawn = Counter(name for _ in range(400) for name in world.gossip_partners.choose((A,), 1))
    assert len(drawn) == 4
    assert min(drawn.values()) > 50
    assert not world.gossip_partners.may_push(), "who does not know its place does not push in 3PG"


def test_3pg_pulls_from_above_and_pushes_below() -> None:
    """Seen from a leaf: its own branch above weighs little, leaves of the other branch most."""
    world = World(
        *(entry(name, A) for name in LABELS), label=(0, 0, 2), algorithm="push+pull", pull="solicit"
    )
    pushed = Counter(name for _ in range(1_000) for name in world.gossip_partners.choose((A,), 1))
    pulled = Counter(
        name for _ in range(1_000) for name in world.gossip_partners.choose((A,), 1, pulling=True)
    )
    assert pushed["b4"] > pushed["b1"]
    assert pulled["b1"] > pulled["b4"]


@pytest.mark.parametrize(("label", "may"), [((0,), True), ((0, 2), False), ((0, 0, 2), False)])
def test_the_top_of_the_tree_pushes(label: tuple[int, ...], may: bool) -> None:
    """Of six brokers a quarter is two: the root and one below."""
    world = World(*(entry(name, A) for name in LABELS), label=label, algorithm="push+pull", window=0.25)
    assert world.gossip_partners.may_push() is may


@pytest.mark.parametrize(
    ("algorithm", "pull", "selection", "push", "pulled"),
    [
        ("push", "solicit", "random", "random", "random"),
        ("push", "solicit", "pgw", "pgw", "pgw"),
        ("subscriber-pull", "advertise", "wdpg", "wdpg", "wdpg"),
        ("push+pull", "solicit", "random", "wrpg", "wrpg"),
        ("push+pull", "advertise", "random", "wrpg", "wdpg"),
        ("push+pull", "advertise", "wdpg", "wdpg", "wdpg"),
    ],
)
def test_strategies(algorithm: Algorithm, pull: Any, selection: Strategy, push: str, pulled: str) -> None:
    chosen = RecoverySettings(algorithm=algorithm, pull=pull, selection=selection)
    assert (push_strategy(chosen), pull_strategy(chosen)) == (push, pulled)
