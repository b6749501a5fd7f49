"""The directory of brokers: that all directories become equal, that labels are unique, that nonsense does nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from breadth import examples
from recording_port import RecordingPort
from tidings.core.facts import BrokerKnown, Misbehaviour
from tidings.core.kernel import Node
from tidings.core.overlay.epidemic import directory, roster
from tidings.core.overlay.epidemic.directory import Directory, DirectoryListener
from tidings.core.overlay.epidemic.messages import (
    MAX_ENTRY_PATTERNS,
    Announce,
    BrokerEntry,
    DirectoryDigest,
    DirectoryVersions,
    LabelAsk,
    LabelGiven,
)
from tidings.core.overlay.epidemic.roster import Roster, announces, standing, version_parts
from tidings.core.overlay.labels import ROOT, Label
from tidings.core.wire.codec import decode, encode
from tidings.drivers.virtual.network import SimulatedNetwork
from tidings.drivers.virtual.node import SimulatedNode
from tidings.scenarios.file.links import LinkSpec
from tidings.scenarios.file.schema import BernoulliLoss, UniformDelay

NS_PER_S = 1_000_000_000
PATTERNS = [bytes([index]) * 8 for index in range(12)]
SETTLING_NS = 300 * NS_PER_S


def random_tree(random: Random, size: int) -> dict[str, str | None]:
    """Broker -> its neighbour towards the root."""
    names = [f"b{index}" for index in range(size)]
    random.shuffle(names)
    return {name: random.choice(names[:index]) if index else None for index, name in enumerate(names)}


class Seen(DirectoryListener):
    """The entries that a directory tells of."""

    def __init__(self, part: Directory) -> None:
        self.entries: list[BrokerEntry] = []
        part.listeners.append(self)

    def entry_changed(self, entry: BrokerEntry) -> None:
        self.entries.append(entry)


class Brokers(DirectoryListener):
    """A simulated network of brokers that have nothing but a directory."""

    def __init__(
        self, seed: int, size: int, *, loss: float = 0.0, duplicate: float = 0.0, start_within_ns: int = 0
    ) -> None:
        self.random = Random(seed)
        self.tree = random_tree(self.random, size)
        self.parts: dict[str, Directory] = {}
        self.lives = dict.fromkeys(self.tree, 0)
        self.clash = False
        """Two brokers had one label at the same time."""
        spec = LinkSpec(UniformDelay(low=1.0, high=80.0), BernoulliLoss(rate=loss), duplicate, 0.1, 0.0)
        self.network = SimulatedNetwork(seed, lambda a, b: spec)
        for name in self.tree:
            self.network.add(name, self._maker(name))
        for node in self.network.nodes.values():
            at = self.random.randrange(start_within_ns) if start_within_ns else 0
            self.network.schedule.at(at, lambda node, _: node.start(), node, None)

    def _maker(self, name: str) -> Callable[[SimulatedNode], Node]:
        parent = self.tree[name]
        neighbours = [child for child, above in self.tree.items() if above == name]
        if parent is not None:
            neighbours.append(parent)

        def make(port: SimulatedNode) -> Node:
            self.lives[name] += 1
            label = ROOT if parent is None else None
            part = Directory(
                port, neighbours, incarnation=self.lives[name], label=label, address=f"at:{name}"
            )
            part.listeners.append(self)
            self.parts[name] = part
            return Node([part])

        return make

    def entry_changed(self, entry: BrokerEntry) -> None:
        labels = [part.label for part in self.parts.values() if part.label is not None]
        self.clash |= len(labels) != len(frozenset(labels))

    def run(self, duration_ns: int) -> None:
        self.network.run(self.network.schedule.now + duration_ns)

    def change_somebody(self) -> None:
        part = self.parts[self.random.choice(sorted(self.parts))]
        if self.random.random() < 0.2:
            part.set_loss_ppm(self.random.randrange(1_000_000))
        else:
            part.set_patterns(self.random.sample(PATTERNS, self.random.randrange(4)))

    def assert_converged(self) -> None:
        truth = {name: part.entry for name, part in self.parts.items()}
        assert truth.keys() == self.tree.keys()
        for name, part in self.parts.items():
            assert dict(part.others) == {other: entry for other, entry in truth.items() if other != name}

    def assert_labels_follow_the_tree(self) -> None:
        labels = {name: part.label for name, part in self.parts.items()}
        assert None not in labels.values()
        assert len(frozenset(labels.values())) == len(labels)
        for name, parent in self.tree.items():
            label = labels[name]
            assert label is not None
            assert label == ROOT if parent is None else label[:-1] == labels[parent]
            assert self.parts[name].parent == parent

    def messages(self) -> dict[type, int]:
        counts: dict[type, int] = {}
        for link in self.network.links.values():
            for kind, traffic in link.traffic().items():
                counts[kind] = counts.get(kind, 0) + traffic.messages
        return counts


seeds = st.integers(0, 2**32)


# --- The whole network


@settings(max_examples=examples(40))
@given(seed=seeds, size=st.integers(1, 30), loss=st.sampled_from([0.0, 0.1, 0.3]))
def test_labels_are_unique_at_all_times_and_follow_the_tree(seed: int, size: int, loss: float) -> None:
    get_unique_labels(seed, size, loss)


def get_unique_labels(seed: int, size: int, loss: float) -> None:
    brokers = Brokers(seed, size, loss=loss, duplicate=0.2, start_within_ns=3 * NS_PER_S)
    brokers.run(SETTLING_NS)
    assert not brokers.clash
    brokers.assert_labels_follow_the_tree()


def test_labels_spread_without_waiting_for_the_next_question() -> None:
    brokers = Brokers(3, 30)
    brokers.run(NS_PER_S // 2)
    brokers.assert_labels_follow_the_tree()


@settings(max_examples=examples(25))
@given(seed=seeds, size=st.integers(1, 30))
def test_directories_become_equal_after_the_last_change(seed: int, size: int) -> None:
    become_equal(seed, size)


def become_equal(seed: int, size: int) -> None:
    brokers = Brokers(seed, size, loss=0.2, duplicate=0.1, start_within_ns=2 * NS_PER_S)
    brokers.run(3 * NS_PER_S)
    for _ in range(30):
        brokers.change_somebody()
        brokers.run(brokers.random.randrange(NS_PER_S // 2))
    brokers.run(SETTLING_NS)
    brokers.assert_converged()


def test_directories_become_equal_in_small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """As it is with so many brokers that an answer covers a part of them only."""
    monkeypatch.setattr(roster, "MAX_STRETCH", 4)
    monkeypatch.setattr(directory, "MAX_BURST", 1)
    monkeypatch.setattr(roster, "MAX_MESSAGE_BYTES", 150)
    brokers = Brokers(5, 30, loss=0.2, start_within_ns=2 * NS_PER_S)
    brokers.run(4 * SETTLING_NS)
    brokers.assert_converged()


@settings(max_examples=examples(20))
@given(seed=seeds, size=st.integers(2, 20))
def test_brokers_that_lost_everything_get_labels_that_fit(seed: int, size: int) -> None:
    start_again_and_again(seed, size)


def start_again_and_again(seed: int, size: int) -> None:
    """Several at once: a parent may have forgotten what it gave, and the root of the tree keeps its own."""
    brokers = Brokers(seed, size, loss=0.1, duplicate=0.1)
    brokers.run(20 * NS_PER_S)
    names = sorted(brokers.tree)
    for _ in range(5):
        down = brokers.random.sample(names, brokers.random.randrange(1, len(names) + 1))
        for name in down:
            brokers.network.crash(name, keep_state=False)
        brokers.run(brokers.random.randrange(2 * NS_PER_S))
        for name in down:
            brokers.network.restart(name)
            brokers.run(brokers.random.randrange(NS_PER_S))
    brokers.run(SETTLING_NS)
    brokers.assert_converged()
    brokers.assert_labels_follow_the_tree()


@pytest.mark.parametrize("size", [2, 10, 40])
def test_traffic_at_rest_does_not_grow_with_the_network(size: int) -> None:
    brokers = Brokers(1, size)
    brokers.run(600 * NS_PER_S)
    brokers.assert_converged()
    before = brokers.messages()
    brokers.run(320 * NS_PER_S)
    after = brokers.messages()
    sent = {
        kind: count - before.get(kind, 0) for kind, count in after.items() if count != before.get(kind, 0)
    }
    assert sent.keys() == {DirectoryDigest}
    assert 320 / 16 * 0.75 <= sent[DirectoryDigest] / size <= 320 / 16 * 1.35


def test_a_change_reaches_all_in_about_the_time_of_the_way() -> None:
    brokers = Brokers(2, 20)
    brokers.run(60 * NS_PER_S)
    brokers.parts["b0"].set_patterns(PATTERNS[:1])
    brokers.parts["b0"].set_loss_ppm(7)
    depth = max(len(label) for label in brokers.parts["b0"].labelled())
    before = brokers.messages()[Announce]
    brokers.run(2 * depth * 200_000_000)
    brokers.assert_converged()
    assert brokers.messages()[Announce] - before == 19  # one for both changes, once over each link


def plant_no_healing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Directory, "on_directory_versions", lambda self, sender, message: None)


def plant_no_flood_beyond_neighbours(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only what is healed gets on, link by link, and the changes of the last seconds do not."""
    original = Directory._announce_later

    def forgetful(self: Directory, broker: str, known_to: str) -> None:
        if not known_to:
            original(self, broker, known_to)

    monkeypatch.setattr(Directory, "_announce_later", forgetful)


def plant_any_version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(directory, "standing", lambda entry: (entry.incarnation, -entry.version))


def plant_gaps_between_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A part ends with its last name, so that names between two parts are in neither."""

    def with_gaps(entries: Sequence[BrokerEntry], *args: Any, **kwargs: Any) -> Iterator[DirectoryVersions]:
        for part in version_parts(entries, *args, **kwargs):
            listed = [name for name, _, _ in part.versions] or [part.first]
            yield DirectoryVersions(part.versions, part.answer_wanted, listed[0], listed[-1])

    monkeypatch.setattr(directory, "version_parts", with_gaps)


def check_some_directories() -> None:
    for seed in range(5):
        become_equal(seed, 25)
        brokers = Brokers(seed, 20)
        brokers.run(60 * NS_PER_S)
        brokers.parts["b0"].set_loss_ppm(7)
        brokers.run(5 * NS_PER_S)
        brokers.assert_converged()


@pytest.mark.slow
@pytest.mark.parametrize(
    "plant",
    [plant_no_healing, plant_no_flood_beyond_neighbours, plant_any_version, plant_gaps_between_parts],
)
def test_planted_bugs_of_the_directory_are_caught(
    plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    check_some_directories()
    plant(monkeypatch)
    with pytest.raises(AssertionError):
        check_some_directories()


def plant_same_digit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Directory, "_free_digit", lambda self, child, mine: 0)


def plant_label_for_the_parent(monkeypatch: pytest.MonkeyPatch) -> None:
    original = Directory._give_label

    def generous(self: Directory, child: str, mine: Label) -> None:
        self.parent = None
        original(self, child, mine)

    monkeypatch.setattr(Directory, "_give_label", generous)


def check_some_labels() -> None:
    for seed in range(5):
        get_unique_labels(seed, 12, 0.0)
        start_again_and_again(seed, 12)


@pytest.mark.parametrize("plant", [plant_same_digit, plant_label_for_the_parent])
def test_planted_bugs_of_labels_are_caught(
    plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    check_some_labels()
    plant(monkeypatch)
    with pytest.raises(AssertionError):
        check_some_labels()


# --- One broker


def entry(
    broker: str = "x",
    incarnation: int = 1,
    version: int = 1,
    label: Label = (),
    address: str = "",
    loss_ppm: int = 0,
    patterns: tuple[bytes, ...] = (),
    everything: bool = False,
) -> BrokerEntry:
    return BrokerEntry(broker, incarnation, version, label, address, loss_ppm, patterns, everything)


def started(
    label: Label | None = ROOT, neighbours: Sequence[str] = ("p", "q")
) -> tuple[RecordingPort, Directory]:
    """A broker that has said at its start what it says then."""
    port = RecordingPort("me")
    part = Directory(port, neighbours, incarnation=5, label=label)
    part.start()
    part.on_timer(("directory", "announce"))
    port.sent.clear()
    return port, part


def sent(port: RecordingPort, kind: type) -> list[tuple[str, Any]]:
    found = [(to, message) for to, message in port.sent if type(message) is kind]
    port.sent.clear()
    return found


def test_nothing_is_sent_before_the_start() -> None:
    port = RecordingPort("me")
    part = Directory(port, ["p"], incarnation=5, label=ROOT, address="here")
    part.set_patterns(PATTERNS[:2])
    assert not port.sent
    assert not port.timers
    part.start()
    part.on_timer(("directory", "announce"))
    own = entry("me", 5, 2, ROOT, "here", 0, tuple(PATTERNS[:2]))
    assert sent(port, Announce) == [("p", Announce((own,)))]
    assert part.entry == own


def test_news_goes_to_all_neighbours_but_the_one_it_came_from() -> None:
    port, part = started(neighbours=("p", "q", "r"))
    seen = Seen(part)
    part.on_announce("p", Announce((entry("x", address="there"), entry("y"))))
    part.on_announce("q", Announce((entry("x", version=2, address="there"), entry("y"))))
    assert port.timers["directory", "announce"] == directory.GATHER_NS
    part.on_timer(("directory", "announce"))
    assert sent(port, Announce) == [
        ("p", Announce((entry("x", version=2, address="there"),))),
        ("q", Announce((entry("y"),))),
        ("r", Announce((entry("x", version=2, address="there"), entry("y")))),
    ]
    assert seen.entries == [entry("x", address="there"), entry("y"), entry("x", version=2, address="there")]
    assert port.facts == [BrokerKnown("x", "there")]
    part.on_announce("p", Announce((entry("x", version=2, loss_ppm=3), entry("x", version=1))))
    assert part.others["x"] == entry("x", version=2, address="there")


def test_an_unchanged_entry_has_no_new_version() -> None:
    _, part = started()
    part.set_patterns(PATTERNS[:3])
    version = part.entry.version
    part.set_patterns(PATTERNS[2::-1])
    part.set_loss_ppm(0)
    assert part.entry.version == version


def test_too_many_patterns_are_all_patterns() -> None:
    _, part = started()
    patterns = [index.to_bytes(8, "big") for index in range(MAX_ENTRY_PATTERNS + 1)]
    part.set_patterns(patterns[1:])
    assert part.entry.patterns == tuple(patterns[1:])
    part.set_patterns(patterns)
    assert part.entry.patterns == ()
    assert part.entry.everything


def test_a_broker_outdoes_what_others_know_of_it() -> None:
    port, part = started()
    part.on_announce("p", Announce((entry("me", 5, 9, ROOT, loss_ppm=1),)))
    assert part.entry == entry("me", 5, 10, ROOT)
    part.on_announce("p", Announce((entry("me", 5, 10, ROOT, loss_ppm=1),)))  # another of the same version
    assert part.entry == entry("me", 5, 11, ROOT)
    for forged in (entry("me", 6, 1), entry("me", 5, 2**63 - 1)):
        part.on_announce("p", Announce((entry("me", 4, 99), forged)))
        assert part.entry == entry("me", 5, 11, ROOT)
        assert isinstance(port.facts.pop(), Misbehaviour)
    assert not port.facts
    assert "me" not in part.others


def test_the_number_of_brokers_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(directory, "MAX_BROKERS", 4)
    _, part = started()
    part.on_announce("p", Announce(tuple(entry(f"x{index}") for index in range(6))))
    part.on_announce("p", Announce((entry("x0", version=2),)))
    assert list(part.others) == ["x0", "x1", "x2"]
    assert part.others["x0"].version == 2
    assert part.ignored == 3


def test_digests_back_off_while_they_agree_and_a_change_brings_them_back() -> None:
    port, part = started(neighbours=("p",))

    def next_delay_s() -> float:
        return (port.timers["directory", "digest"] - port.now) / NS_PER_S

    for expected in (0.5, 0.5, 1, 2, 4, 8, 16, 16):
        assert 0.75 * expected <= next_delay_s() <= 1.25 * expected
        port.now = port.timers["directory", "digest"]
        part.on_timer(("directory", "digest"))
        assert [to for to, _ in sent(port, DirectoryDigest)] == ["p"]
    part.set_loss_ppm(5)
    assert next_delay_s() <= 1


def test_an_exchange_makes_two_directories_equal() -> None:
    ports = {name: RecordingPort(name) for name in ("p", "q")}
    parts = {
        "p": Directory(ports["p"], ["q"], incarnation=1, label=ROOT),
        "q": Directory(ports["q"], ["p"], incarnation=1, label=(0, 0)),
    }
    parts["p"].on_announce(
        "q", Announce(tuple(entry(f"x{i:03}", version=1 + i % 3) for i in range(0, 300, 2)))
    )
    parts["q"].on_announce(
        "p", Announce(tuple(entry(f"x{i:03}", version=1 + i % 2) for i in range(0, 300, 3)))
    )
    parts["p"]._send_digest("q")
    on = {
        Announce: "on_announce",
        DirectoryDigest: "on_directory_digest",
        DirectoryVersions: "on_directory_versions",
    }
    while any(port.sent for port in ports.values()):
        for name, port in ports.items():
            messages, port.sent = port.sent, []
            for to, message in messages:
                assert len(encode(message)) <= 1_200
                if not isinstance(message, DirectoryDigest) or name == "p":
                    getattr(parts[to], on[type(message)])(name, message)
    assert {**parts["p"].others, "p": parts["p"].entry} == {**parts["q"].others, "q": parts["q"].entry}
    assert parts["p"]._digest() == parts["q"]._digest()


def test_digests_that_differ_are_answered_once_a_second_and_equal_ones_never() -> None:
    port, part = started()
    part.on_directory_digest("p", DirectoryDigest(part._digest()))
    assert not port.sent
    for _ in range(3):
        part.on_directory_digest("p", DirectoryDigest(bytes(8)))
        part.on_directory_digest("q", DirectoryDigest(bytes(8)))
    expected = DirectoryVersions((("me", 5, 1),), True, "", "")
    assert sent(port, DirectoryVersions) == [("p", expected), ("q", expected)]
    port.now += NS_PER_S
    part.on_directory_digest("p", DirectoryDigest(bytes(8)))
    assert sent(port, DirectoryVersions) == [("p", expected)]


def test_a_neighbour_that_comes_back_is_sent_a_digest_and_asked_for_a_label() -> None:
    port, part = started(label=None)
    part.on_link_up("client")
    assert not port.sent
    part.on_link_up("p")
    assert port.sent == [("p", DirectoryDigest(part._digest())), ("p", LabelAsk())]
    port.sent.clear()
    part.on_announce("p", Announce((entry("p", 1), entry("x", 1))))
    part.on_announce("p", Announce((entry("p", 1, 2),)))
    assert [to for to, _ in sent(port, DirectoryDigest)] == ["p"]  # once in a life
    part.on_announce("p", Announce((entry("p", 2),)))
    assert sent(port, DirectoryDigest) == [("p", DirectoryDigest(part._digest()))]


# --- Labels


def given_to(port: RecordingPort, part: Directory, child: str) -> Label | None:
    part.on_label_ask(child, LabelAsk())
    answers = sent(port, LabelGiven)
    assert all(to == child for to, _ in answers)
    return answers[0][1].label if answers else None


def test_digits_are_progressive_and_remembered() -> None:
    port, part = started(neighbours=("c", "a", "b", "d"))
    assert [given_to(port, part, child) for child in ("c", "a", "c", "b")] == [(0, 0), (0, 1), (0, 0), (0, 2)]
    part.on_announce("c", Announce((entry("c", label=(0, 0)),)))
    part.on_announce("c", Announce((entry("c", 2),)))  # it has forgotten
    assert given_to(port, part, "c") == (0, 0)
    assert given_to(port, part, "stranger") is None
    part.on_announce("a", Announce((entry("elsewhere", label=(0, 3)),)))
    assert given_to(port, part, "d") == (0, 4)
    part.on_announce("a", Announce((entry("elsewhere", 2, label=(0, 4)),)))
    assert given_to(port, part, "d") == (0, 5)


def test_a_child_that_the_directory_shows_below_us_gets_that_label_again() -> None:
    port, part = started(label=None, neighbours=("p", "c", "d"))
    part.on_announce("p", Announce((entry("c", label=(0, 2, 0)), entry("d", label=(0, 7)))))
    part.on_label_given("p", LabelGiven((0, 2)))
    port.sent.clear()
    assert given_to(port, part, "c") == (0, 2, 0)
    assert given_to(port, part, "d") == (0, 2, 1)


def test_a_parent_gets_no_label() -> None:
    port, part = started(label=(0, 3, 1), neighbours=("p", "c"))
    assert part.parent is None
    part.on_announce("p", Announce((entry("p", label=(0, 3)),)))
    assert part.parent == "p"
    part.on_announce("p", Announce((entry("p", 2),)))  # it starts anew, without a label
    assert given_to(port, part, "p") is None
    assert given_to(port, part, "c") == (0, 3, 1, 0)
    assert part.label == (0, 3, 1)


def test_the_first_label_counts() -> None:
    port, part = started(label=None, neighbours=("p", "q"))
    seen = Seen(part)
    part.on_label_ask("q", LabelAsk())
    assert not port.sent
    for nonsense in ((0,), (1, 2)):
        part.on_label_given("p", LabelGiven(nonsense))
        assert part.label is None
    part.on_label_given("stranger", LabelGiven((0, 9)))
    part.on_timer(("directory", "label"))
    assert [to for to, _ in sent(port, LabelAsk)] == ["p", "q"]
    part.on_label_given("p", LabelGiven((0, 4)))
    part.on_label_given("q", LabelGiven((0, 5)))
    assert part.label == (0, 4)
    assert part.entry.label == (0, 4)
    assert [own.label for own in seen.entries] == [(0, 4)]
    assert ("directory", "label") not in port.timers
    assert sent(port, LabelGiven) == [("q", LabelGiven((0, 4, 0)))]  # it had asked too early


def test_a_given_label_follows_the_parents() -> None:
    port, part = started(label=None, neighbours=("p",))
    part.on_label_given("p", LabelGiven((0, 4, 1)))
    part.on_announce("p", Announce((entry("p", 1, 1, (0, 4)), entry("p", 2, 1, ()))))
    assert part.label == (0, 4, 1)
    port.sent.clear()
    part.on_announce("p", Announce((entry("p", 2, 2, (0, 6)),)))
    assert part.label is None
    assert sent(port, LabelAsk) == [("p", LabelAsk())]


def test_a_label_that_another_has_is_not_taken() -> None:
    _, part = started(label=None, neighbours=("p",))
    part.on_announce("p", Announce((entry("z", label=(0, 4)),)))
    part.on_label_given("p", LabelGiven((0, 4)))
    assert part.label is None
    part.on_label_given("p", LabelGiven((0, 5)))
    assert part.label == (0, 5)


def test_of_two_with_one_label_the_later_by_name_asks_again() -> None:
    for rival, keeps in (("a", False), ("z", True)):
        _, part = started(label=None, neighbours=("p",))
        part.on_label_given("p", LabelGiven((0, 4)))
        part.on_announce("p", Announce((entry(rival, label=(0, 4)),)))
        assert (part.label == (0, 4)) is keeps
        _, configured = started(label=(0, 4), neighbours=("p",))
        configured.on_announce("p", Announce((entry(rival, label=(0, 4)),)))
        assert configured.label == (0, 4)


# --- Sizes, the roster, nonsense

names = st.text(st.characters(codec="utf-8"), min_size=1, max_size=12) | st.sampled_from(
    ["me", "p", "q", "x"]
)
labels = st.lists(st.integers(0, 3), max_size=4).map(tuple)
counters = st.integers(0, 4) | st.sampled_from([2**62, 2**63 - 1])
entries = st.builds(
    BrokerEntry,
    names,
    counters,
    counters,
    labels,
    st.text(st.characters(codec="utf-8"), max_size=20),
    st.integers(0, 1_000_000),
    st.lists(st.binary(min_size=8, max_size=16) | st.sampled_from(PATTERNS), max_size=12).map(tuple),
    st.booleans(),
)


@given(listed=st.lists(entries, max_size=80), answer_wanted=st.booleans())
def test_messages_are_bounded_and_leave_nothing_out(listed: list[BrokerEntry], answer_wanted: bool) -> None:
    messages = list(announces(listed))
    assert [item for message in messages for item in message.entries] == listed
    ordered = sorted({item.broker: item for item in listed}.values(), key=lambda item: item.broker)
    parts = list(version_parts(ordered, "", "", answer_wanted=answer_wanted))
    assert [item for part in parts for item in part.versions] == [(e.broker, *standing(e)) for e in ordered]
    assert [part.first for part in parts] == ["", *(part.last for part in parts[:-1])]
    assert parts[-1].last == ""
    for part in parts:
        assert all(part.first <= name and (not part.last or name < part.last) for name, _, _ in part.versions)
    for message in [*messages, *parts]:
        assert len(encode(message)) <= 1_200
        assert decode(encode(message)) == (message,)


def test_an_entry_that_is_too_large_travels_alone() -> None:
    large = entry("x", patterns=tuple(index.to_bytes(16, "big") for index in range(MAX_ENTRY_PATTERNS)))
    assert [message.entries for message in announces([entry("a"), large, entry("b")])] == [
        (entry("a"),),
        (large,),
        (entry("b"),),
    ]


@given(steps=st.lists(entries, max_size=40), asked=st.lists(st.sampled_from(PATTERNS), max_size=3), cut=names)
def test_the_roster_against_a_dumb_twin(steps: list[BrokerEntry], asked: list[bytes], cut: str) -> None:
    roster = Roster(entry("me"))
    twin = {"me": entry("me")}
    for step in steps:
        roster.put(step)
        roster.labelled(), roster.rates()  # what is remembered must be forgotten in time
        twin[step.broker] = step
    others = {name: item for name, item in twin.items() if name != "me"}
    prefixes = {pattern[:8] for pattern in asked}
    assert roster.others == others
    assert roster.own == twin["me"]
    assert roster.subscribers(asked) == sorted(
        name
        for name, item in others.items()
        if item.everything or prefixes & {pattern[:8] for pattern in item.patterns}
    )
    held = {item.label for item in twin.values() if item.label}
    assert list(roster.labelled()) == sorted(held)
    assert roster.rates() == {
        label: min((item.broker, item.loss_ppm) for item in twin.values() if item.label == label)[1] / 1e6
        for label in held
    }
    assert roster.between("", cut) == [twin[name] for name in sorted(twin) if name < cut]
    assert roster.between(cut, "") == [twin[name] for name in sorted(twin) if name >= cut]
    anew = Roster(twin["me"])
    for name in sorted(others, reverse=True):
        anew.put(others[name])
    assert anew.fingerprint == roster.fingerprint


nonsense = st.one_of(
    st.builds(Announce, st.lists(entries, max_size=5).map(tuple)),
    st.builds(DirectoryDigest, st.binary(min_size=8, max_size=8)),
    st.builds(
        DirectoryVersions,
        st.lists(st.tuples(names, counters, counters), max_size=5).map(tuple),
        st.booleans(),
        names,
        st.just("") | names,
    ),
    st.just(LabelAsk()),
    st.builds(LabelGiven, labels.filter(bool)),
)


@settings(max_examples=examples(200))
@given(
    label=st.sampled_from([None, ROOT, (0, 1)]),
    messages=st.lists(st.tuples(st.sampled_from(["p", "q", "stranger"]), nonsense), max_size=30),
)
def test_nonsense_never_raises_and_what_is_said_can_be_read(label: Label | None, messages: list[Any]) -> None:
    port = RecordingPort("me")
    part = Directory(port, ["p", "q"], incarnation=3, label=label)
    node = Node([part])
    node.start()
    for sender, message in messages:
        port.now += NS_PER_S // 3
        node.receive(sender, message)
        for name in [name for name, at in port.timers.items() if at <= port.now]:
            del port.timers[name]
            node.timer(name)
    part.set_patterns(PATTERNS)
    node.timer(("directory", "announce"))
    for to, message in port.sent:
        assert to in ("p", "q")
        assert decode(encode(message)) == (message,)
    assert part.entry.broker == "me"
    assert part.entry.incarnation == 3
    part.subscribers(PATTERNS), part.labelled(), part.rates()
