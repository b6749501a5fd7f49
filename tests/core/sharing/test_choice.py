"""The choice of one member by rendezvous hash, and brokers that all make it alike."""

from __future__ import annotations

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from breadth import examples
from recording_port import RecordingPort
from tidings.core.events.event import Publication, make_publication
from tidings.core.events.run import Run, RunMaker, Stretch, look
from tidings.core.events.subscription import make_interest
from tidings.core.messages import Notify
from tidings.core.overlay.groups import Groups
from tidings.core.overlay.matching import Matcher
from tidings.core.overlay.members import GroupMembership, make_membership
from tidings.core.overlay.routing import LocalMembership, RoutingTable
from tidings.core.sharing.choice import NO_VALUE, event_key, rendezvous, value_key

EVENTS = 64
INTEREST = make_interest(("/jobs",), None)
names = st.lists(st.text(min_size=1, max_size=8), min_size=1, max_size=9, unique=True)
KEYS = [event_key("source", 3, sequence) for sequence in range(1, 401)]


@given(names, st.randoms(use_true_random=False))
@settings(max_examples=examples(60))
def test_the_choice_does_not_depend_on_who_came_first(members: list[str], random: object) -> None:
    other = list(members)
    random.shuffle(other)  # type: ignore[attr-defined]
    assert [rendezvous(members, key) for key in KEYS] == [rendezvous(other, key) for key in KEYS]


@given(names, st.text(min_size=9, max_size=9))
@settings(max_examples=examples(60))
def test_who_joins_or_leaves_moves_only_its_own_share(members: list[str], joins: str) -> None:
    before = {key: rendezvous(members, key) for key in KEYS}
    after = {key: rendezvous([*members, joins], key) for key in KEYS}
    assert {after[key] for key in KEYS if after[key] != before[key]} <= {joins}


def test_shares_are_alike_for_events_in_a_row_and_nobody_gets_all_of_a_few() -> None:
    members = [f"member {number}" for number in range(4)]
    counts = Counter(rendezvous(members, key) for key in KEYS)
    assert min(counts.values()) > 70 and max(counts.values()) < 130, "about 100 each"
    for sources in range(200):  # 20 jobs each
        few = Counter(rendezvous(members, event_key(f"p{sources}", 0, number)) for number in range(1, 21))
        assert max(few.values()) <= 14


def test_nobody_is_chosen_among_nobody() -> None:
    assert rendezvous([], "key") is None


def test_events_without_the_attribute_have_one_key() -> None:
    assert value_key(dict, "k") == value_key(lambda: {"k": None}, "k") == NO_VALUE
    assert value_key(lambda: {"k": 1}, "k") != value_key(lambda: {"k": 2}, "k")


# --- Brokers


class Broker:
    """The part of a broker that shares: it knows all members, some of which are its own."""

    def __init__(self, name: str, members: list[tuple[str, GroupMembership, str]], group_by: str) -> None:
        """`members`: (broker, membership, client)."""
        self.port = RecordingPort(name)
        self.matcher = Matcher()
        self.table = RoutingTable(self.matcher, self.port)
        self.groups = Groups(self.port, self.table)
        for broker, membership, client in members:
            if broker == name:
                joined = LocalMembership(membership, group_by)
                self.table.add_subscription(INTEREST, client, "s", joined=joined)
                self.table.add_subscription(membership.interest, client, "~s")
            else:
                self.table.add_neighbour(membership.interest, "neighbour")

    def take(self, stretch: Stretch) -> list[tuple[str, int]]:
        """Return who gets which events."""
        self.port.sent.clear()
        for part in self.matcher.parts(stretch, lambda error: None):
            self.groups.notify(self.table.route(part.selection), part)
        found = []
        for client, message in self.port.sent:
            assert isinstance(message, Notify) and message.subscriptions == ("s",)
            first = message.stretch.first
            found += [(client, first + place) for place in range(len(look(message.stretch)))]
        return found


def run_of_events() -> Run:
    maker = RunMaker("source", 3)
    for sequence in range(1, EVENTS + 1):
        maker.add(sequence, "/jobs", {"k": sequence % 5}, b"", 0)
    [made] = maker.take_all()
    assert isinstance(made, Run)
    return made


def cuts(run: Run, places: set[int]) -> list[Stretch]:
    ends = [*sorted(places), EVENTS]
    return [run.cut(first + 1, last) for first, last in zip([0, *ends], ends, strict=False)]


@given(
    st.lists(st.sampled_from(("b0", "b1", "b2", "b3")), min_size=1, max_size=8),
    st.lists(st.sets(st.integers(1, EVENTS - 1), max_size=12), min_size=4, max_size=4),
    st.sampled_from(("", "k")),
)
@settings(max_examples=examples(80), deadline=None)
def test_every_event_goes_to_one_member_however_each_broker_gets_the_run(
    places: list[str], cut_at: list[set[int]], group_by: str
) -> None:
    members = [
        (broker, make_membership("g", INTEREST, group_by, broker, f"c{number}", "s"), f"c{number}")
        for number, broker in enumerate(places)
    ]
    brokers = [Broker(name, members, group_by) for name in ("b0", "b1", "b2", "b3")]
    got = [
        pair
        for broker, places_of_cuts in zip(brokers, cut_at, strict=True)
        for stretch in cuts(run_of_events(), places_of_cuts)
        for pair in broker.take(stretch)
    ]
    assert sorted(sequence for _, sequence in got) == list(range(1, EVENTS + 1))
    if group_by:
        owners = {(sequence % 5, client) for client, sequence in got}
        assert len(owners) == 5, "one for each value"


def test_single_events_have_the_member_that_they_have_in_a_run() -> None:
    members = [("b0", make_membership("g", INTEREST, "", "b0", name, "s"), name) for name in ("x", "y", "z")]
    broker = Broker("b0", members, "")
    singles: list[Publication] = [
        make_publication("source", 3, sequence, "/jobs", {"k": sequence % 5}, b"", 0)
        for sequence in range(1, EVENTS + 1)
    ]
    one_by_one = [pair for single in singles for pair in broker.take(single)]
    assert sorted(one_by_one) == sorted(broker.take(run_of_events()))
