"""What a broker keeps for a durable subscription or group: the same after every restart, and nothing after its end."""

from __future__ import annotations

import random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from msgspec import Raw, msgpack

from breadth import examples
from tidings.core.events.event import decode_event, make_no_ops, make_publication
from tidings.core.events.run import RunMaker
from tidings.core.events.timestamp import Timestamp
from tidings.core.overlay.guaranteed.kept_share import KeptShare, stored_shares
from tidings.core.overlay.guaranteed.share_definition import TABLE, ShareDefinition
from tidings.core.store import MemoryStore
from tidings.core.structures.ranges import merged

MEMBERS = ("a", "b")
DEFINITION = ShareDefinition("jobs", ("/jobs",), None, True, "", "none", 10**9)
LATER = 10**12


class KeepingAShare(RuleBasedStateMachine):
    """A model of which events are not done, who has which, and how often each went out."""

    def __init__(self) -> None:
        super().__init__()
        self.store = MemoryStore()
        self.kept = KeptShare(DEFINITION, self.store)
        self.kept.create()
        self.undone: dict[int, int] = {}
        """Sequence -> how often it went out."""
        self.out: dict[int, tuple[str, int]] = {}
        """Number -> the member that has it, and its sequence."""
        self.aside: set[int] = set()
        self.before: dict[int, int] = {}
        """Sequence -> how often it had gone out when it was last released."""
        self.sequence = 0
        self.position = b""
        self.history: list[int] = []
        """Sequences that were taken as history."""
        self.expired = 0
        self.now = 0

    @initialize()
    def members_join(self) -> None:
        for member in MEMBERS:
            self.kept.queue.join(member, 5)

    @rule(repeated=st.booleans())
    def take(self, repeated: bool) -> None:
        self.sequence += 1
        event = make_publication("p", 0, self.sequence, "/jobs", {"n": self.sequence}, b"", 1)
        self.kept.take(event)
        if repeated:
            self.kept.take(event)  # it came by another way: nothing changes
        self.undone[self.sequence] = 0

    @rule(late=st.lists(st.booleans(), min_size=1, max_size=3), position=st.binary(max_size=4))
    def take_in_order(self, late: list[bool], position: bytes) -> None:
        """What an order shows is new, whatever the sequences of its sources."""
        stretches = []
        for is_late in late:
            self.sequence += 1
            source = "late" if is_late else "q"
            stretches.append((make_publication(source, 0, self.sequence, "/jobs", {}, b"", 1), is_late))
            self.undone[self.sequence] = 0
        self.kept.take_in_order(stretches[::-1], position)
        self.position = position

    @rule(
        count=st.integers(0, 3),
        again=st.integers(0, 3),
        passed=st.integers(0, 2),
        position=st.binary(max_size=2),
    )
    def take_history(self, count: int, again: int, passed: int, position: bytes) -> None:
        """Some of it was taken before; of some sources nothing more is wanted."""
        new = [*range(self.sequence + 1, self.sequence + count + 1)]
        sequences = [*self.history[len(self.history) - again :], *new]
        stretches = [make_publication("h", 0, each, "/jobs", {}, b"", 1) for each in sequences]
        self.sequence += count + passed
        self.kept.take(*stretches, position=position, passed=[("h", 0, self.sequence), ("other", 1, 7)])
        self.undone |= dict.fromkeys(new, 0)
        assert self.kept.highest(("h", 0)) == self.sequence
        assert self.kept.highest(("other", 1)) == 7
        self.history += new
        self.position = position

    @rule()
    def hand_out(self) -> None:
        for handout, raw, late, before in self.kept.due(self.now):
            event = decode_event(Raw(raw))
            assert late == (event.source == "late")
            assert before == self.before.get(event.sequence, 0)
            assert handout.first == handout.last
            assert self.undone[event.sequence] + 1 == handout.attempt
            self.undone[event.sequence] = handout.attempt
            self.out[handout.first] = (handout.member, event.sequence)

    @precondition(lambda self: self.out)
    @rule(data=st.data(), member=st.sampled_from(MEMBERS), had_expired=st.booleans())
    def finish(self, data: st.DataObject, member: str, had_expired: bool) -> None:
        number = data.draw(st.sampled_from(sorted(self.out)))
        holder, sequence = self.out[number]
        expired = ((number, number), (number, LATER), (3, 1)) if had_expired else ()
        done, refused = self.kept.finish(member, ((number, number),), expired)
        if member == holder:
            assert (done, refused) == (((number, number),), ())
            del self.out[number], self.undone[sequence]
            self.expired += had_expired
            again = self.kept.finish(member, ((number, number),), expired)
            assert again == (((number, number),), ())  # its answer was lost, and it asks again
        else:
            assert (done, refused) == ((), ((number, number),))

    @precondition(lambda self: self.out)
    @rule(data=st.data())
    def set_aside(self, data: st.DataObject) -> None:
        number = data.draw(st.sampled_from(sorted(self.out)))
        member, sequence = self.out.pop(number)
        self.kept.queue.refuse(member, number, None)
        self.kept.set_aside(number)
        self.aside.add(sequence)
        self.undone[sequence] = max(self.undone[sequence] - 1, 1)  # nobody was shown it

    def goes_on(self, sequence: int) -> None:
        """It was released: its attempts go on."""
        self.before[sequence] = self.undone[sequence]

    @rule()
    def release_all(self) -> None:
        assert self.kept.release(((0, LATER),)) == len(self.aside)
        for sequence in self.aside:
            self.goes_on(sequence)
        self.aside.clear()

    @precondition(lambda self: self.aside)
    @rule(data=st.data())
    def release_one(self, data: st.DataObject) -> None:
        numbers = {decode_event(Raw(raw)).sequence: number for number, _, raw in self.kept.aside(0, 1_000)[0]}
        sequence = data.draw(st.sampled_from(sorted(self.aside)))
        number = numbers[sequence]
        assert self.kept.release(((number, number), (number, number))) == 1
        self.goes_on(sequence)
        self.aside.remove(sequence)

    @rule(member=st.sampled_from(MEMBERS), data=st.data())
    def leave_and_join(self, member: str, data: st.DataObject) -> None:
        mine = [number for number, held in self.out.items() if held[0] == member]
        unseen = data.draw(st.lists(st.sampled_from(mine), unique=True)) if mine else []
        self.kept.leave(member, tuple((number, number) for number in unseen))
        for number in unseen:
            self.undone[self.out[number][1]] -= 1
        self.kept.queue.join(member, 5)
        self.out = {number: held for number, held in self.out.items() if held[0] != member}

    @rule()
    def restart(self) -> None:
        (self.kept,) = stored_shares(self.store, self.now)
        self.kept.queue.hurry()
        for member in MEMBERS:
            self.kept.queue.join(member, 5)
        self.out.clear()

    @rule()
    def move(self) -> None:
        """Its rows go to another broker, as they are."""
        rows = [(key.partition(b"\0")[2], value) for key, value in self.kept.rows()]
        self.kept.erase()
        self.kept.create()
        self.store.write([(TABLE, self.kept._key(item), value) for item, value in rows])
        self.restart()

    @rule()
    def drop_what_is_aside(self) -> None:
        assert self.kept.drop_aside(((0, LATER),)) == len(self.aside)
        for sequence in self.aside:
            del self.undone[sequence]
        self.aside.clear()

    @invariant()
    def nothing_is_lost(self) -> None:
        assert self.kept.queue.count == len(self.undone)
        assert self.kept.position == self.position
        assert self.kept.expired == self.expired
        found: list[tuple[int, int, bytes]] = []
        more = True
        while more:  # page by page
            page, more = self.kept.aside(found[-1][0] if found else 0, 2)
            assert len(page) == 2 or not more
            found += page
        assert [number for number, _, _ in found] == sorted({number for number, _, _ in found})
        shown = {decode_event(Raw(raw)).sequence: attempts for _, attempts, raw in found}
        assert shown == {sequence: self.undone[sequence] for sequence in self.aside}
        assert self.kept.aside(LATER, 2) == ([], False)

    def teardown(self) -> None:
        self.kept.erase()
        assert self.store.read(TABLE) == []


TestKeepingAShare = KeepingAShare.TestCase
TestKeepingAShare.settings = settings(max_examples=examples(100), stateful_step_count=40)


@pytest.mark.parametrize("group_by", ["", "n"])
def test_what_waits_for_a_reader_that_sleeps_stays_on_disk(
    group_by: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidings.core.overlay.guaranteed.kept_share.MAX_RECENT_BYTES", 10_000)
    monkeypatch.setattr("tidings.core.sharing.shared_queue.MAX_LOOKED_AT", 500)
    kept = KeptShare(ShareDefinition("jobs", ("/jobs",), None, True, group_by, "none", 10**9), MemoryStore())
    kept.create()
    kept.queue.join("sleeper", 100)
    for sequence in range(1, 20_001):
        kept.take(make_publication("p", 0, sequence, "/jobs", {"n": sequence}, b"x" * 128, 1))
        kept.due(0)
    assert (kept.queue.out_count, kept.queue.waiting_count) == (100, 19_900)
    in_memory = [row for _, _, row in kept._rows if row.stretch is not None]
    assert sum(row.size_bytes for row in in_memory) == kept._recent_bytes <= 10_000
    assert len(kept._recent) == len(in_memory)
    assert len(kept._keys) <= 700
    assert len(kept._noted) == len(kept._finished_by) == 0
    held = kept.queue.finish("sleeper", ((1, 20_000),))  # it wakes up: the rest is read from disk again
    assert sum(last - first + 1 for first, last in held) == 100
    assert len(kept.due(0)) == 100
    assert kept._recent_bytes <= 10_000


@pytest.mark.parametrize(("limit", "kept_events"), [("MAX_KEPT_EVENTS", 50), ("MAX_KEPT_BYTES", 1)])
def test_at_a_limit_a_share_says_that_it_is_full(
    limit: str, kept_events: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"tidings.core.overlay.guaranteed.kept_share.{limit}", 50)
    kept = KeptShare(DEFINITION, MemoryStore())
    kept.create()
    while not kept.is_full:
        kept.take(make_publication("p", 0, kept.queue.count + 1, "/jobs", {}, b"x" * 60, 1))
    assert kept.queue.count == kept_events
    kept.queue.join("a", 1)
    kept.due(0)
    kept.finish("a", ((1, 1),))
    assert not kept.is_full


def test_the_sources_that_were_silent_longest_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidings.core.overlay.guaranteed.kept_share.MAX_SOURCES", 3)
    store = MemoryStore()
    kept = KeptShare(DEFINITION, store)
    kept.create()
    kept.take(*(make_publication(source, 0, 5, "/jobs", {}, b"", 1) for source in "abc"))
    kept.take(
        make_publication("d", 0, 1, "/jobs", {}, b"", 1),
        make_publication("a", 0, 6, "/jobs", {}, b"", 1),
        passed=[("e", 0, 9)],
    )
    (again,) = stored_shares(store, 0)
    for each in (kept, again):
        assert sorted(each.marks) == [(("a", 0), 6), (("d", 0), 1), (("e", 0), 9)]


def test_equal_values_stay_together_after_a_restart() -> None:
    store = MemoryStore()
    kept = KeptShare(ShareDefinition("jobs", ("/jobs",), None, True, "n", "none", 10**9), store)
    kept.create()
    for sequence in range(1, 21):
        kept.take(make_publication("p", 0, sequence, "/jobs", {"n": sequence % 4}, b"", 1))
    kept.queue.join("a", 6)
    assert len(kept.due(0)) == 6
    (again,) = stored_shares(store, 0)
    again.queue.join("b", 20)
    assert [handout.first for handout, *_ in again.due(0)] == []  # six may still be with a, before all others
    assert [handout.first for handout, *_ in again.due(LATER)] == list(range(1, 21))


def test_a_member_whose_event_another_was_done_with_is_refused() -> None:
    store = MemoryStore()
    kept = KeptShare(DEFINITION, store)
    kept.create()
    kept.take(make_publication("p", 0, 1, "/jobs", {}, b"", 1))
    kept.queue.join("a", 1)
    kept.due(0)
    kept.leave("a")
    kept.queue.join("b", 1)
    kept.due(0)
    assert kept.finish("b", ((1, 1),)) == (((1, 1),), ())
    assert kept.finish("a", ((1, 1),)) == ((), ((1, 1),))
    (again,) = stored_shares(store, 0)  # it is remembered across a restart
    assert again.finish("a", ((1, 1),)) == ((), ((1, 1),))
    assert again.finish("b", ((1, 1),)) == (((1, 1),), ())


def test_a_no_op_is_not_kept_and_does_not_come_again() -> None:
    kept = KeptShare(DEFINITION, MemoryStore())
    kept.create()
    kept.take(make_no_ops("s", 0, 1, "/jobs", 1, Timestamp(0, 7), 2))
    assert kept.queue.count == 0
    assert kept.highest(("s", 0)) == 1


@pytest.mark.parametrize("events", [2, 7, 8, 9, 700])
def test_a_row_done_in_any_order_stays_small_and_survives_restarts(events: int) -> None:
    maker = RunMaker("p", 0)
    for sequence in range(1, events + 1):
        maker.add(sequence, "/jobs", {}, b"", 1)
    store = MemoryStore()
    kept = KeptShare(DEFINITION, store)
    kept.create()
    kept.take(*maker.take_all())
    empty = [key for key, _ in store.read(TABLE) if not key.startswith(b"jobs\0r")]
    kept.queue.join("a", events)
    kept.due(0)
    left = list(range(1, events + 1))
    random.Random(events).shuffle(left)
    while left:
        number = left.pop()
        assert kept.finish("a", ((number, number),)) == (((number, number),), ())
        written = sum(len(value) for key, value in store.read(TABLE) if key.startswith(b"jobs\0d"))
        assert written <= events // 8 + 4
        if len(left) % 100 == 1:
            (kept,) = stored_shares(store, 0)
            assert kept.queue.join("a", events, ((1, events),)) == merged((n, n) for n in left)
    assert [key for key, _ in store.read(TABLE)] == [*empty, b"jobs\0s"]
    assert kept.size_bytes == 0


def test_ranges_of_earlier_versions_say_what_is_done() -> None:
    maker, store = RunMaker("p", 0), MemoryStore()
    for sequence in range(1, 11):
        maker.add(sequence, "/jobs", {}, b"", 1)
    kept = KeptShare(DEFINITION, store)
    kept.create()
    kept.take(*maker.take_all())
    kept.queue.join("a", 10)
    kept.due(0)
    store.write([(TABLE, b"jobs\0d" + (1).to_bytes(8), msgpack.encode([(2, 4), (9, 11)]))])
    (again,) = stored_shares(store, 0)
    assert [handout.first for handout, *_ in again.due(0)] == []
    again.queue.join("a", 10)
    assert [handout.first for handout, *_ in again.due(LATER)] == [1, 4, 5, 6, 7, 8]
    assert again.finish("a", ((4, 8),)) == (((4, 8),), ())
    (again,) = stored_shares(store, 0)
    again.queue.join("a", 10)
    assert [handout.first for handout, *_ in again.due(LATER)] == [1]
    assert again.finish("a", ((1, 1),)) == (((1, 1),), ())
    assert not [key for key, _ in store.read(TABLE) if key.startswith((b"jobs\0d", b"jobs\0r"))]
