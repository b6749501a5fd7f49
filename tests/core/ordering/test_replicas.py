"""Replicated sequencer servers under crashes, lost disks, partitions and pauses: a number has one meaning for ever.

`SEQUENCER_RUNS` multiplies the number of random runs.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import msgspec
import pytest

from breadth import few
from recording_port import RecordingPort
from sequencer_network import SECOND, TIMES, FullStore, Tables, replay, run
from tidings.core.errors import OrderError, StoreError
from tidings.core.messages import Message, WireMessage
from tidings.core.ordering import messages as ordering_messages
from tidings.core.ordering.layout import Layout, ServerPlacement, single
from tidings.core.ordering.messages import (
    AnswersTaken,
    Between,
    ChainItem,
    ChainTaken,
    ChangeSubscription,
    Claim,
    Create,
    CreateRelay,
    EventStamps,
    NoState,
    NotActive,
    PublisherAlive,
    Replicated,
    Ruling,
    StampsAgain,
    StatePart,
    StateTaken,
    StateWanted,
    SubscriberAlive,
    SubscriberDisowned,
    SubscribeWalk,
    WalkAgain,
    WalkDone,
)
from tidings.core.ordering.module import OrderingModule
from tidings.core.ordering.publisher import EventStamped
from tidings.core.ordering.replication import journal as journal_module
from tidings.core.ordering.replication import transfer as transfer_module
from tidings.core.ordering.replication.journal import Journal
from tidings.core.ordering.replication.node import SequencerNode
from tidings.core.ordering.replication.replica import Replica
from tidings.core.ordering.replication.standby_link import StandbyLink
from tidings.core.ordering.replication.witness import NOBODY, WitnessPart
from tidings.core.ordering.server.machine import PublishNoOps, SequencerMachine
from tidings.core.ordering.server.server import SequencerServer
from tidings.core.store import Change, MemoryStore

SCALE = float(os.environ.get("SEQUENCER_RUNS", "1"))
PARTS = 4
SHORT_RUNS = int(250 * SCALE)
LONG_RUNS = int(3 * SCALE)
MAX_FLAWED_RUNS = 3000
Flaw = Callable[[pytest.MonkeyPatch], None]


@pytest.mark.slow
@pytest.mark.parametrize("part", few(range(PARTS), 1))
def test_no_fault_breaks_the_order(part: int) -> None:
    for seed in range(part * SHORT_RUNS, (part + 1) * SHORT_RUNS):
        assert run(seed) == [], replay(seed)


@pytest.mark.slow
@pytest.mark.parametrize("part", few(range(PARTS), 2))
def test_no_row_of_faults_breaks_the_order(part: int) -> None:
    for seed in range(part * LONG_RUNS, (part + 1) * LONG_RUNS):
        assert run(seed, long=True) == [], replay(seed, long=True)


# --- Planted bugs


def release_without_the_standby(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(StandbyLink, "safe", lambda self, number: number)


def grant_although_alone(patch: pytest.MonkeyPatch) -> None:
    def is_granted(record: Any, sender: str, claim: Claim, *, primary: str) -> bool:
        return claim.term == record.term and (record != NOBODY or sender == primary)

    patch.setattr(WitnessPart, "_is_granted", staticmethod(is_granted))


def claim_before_it_is_written(patch: pytest.MonkeyPatch) -> None:
    stand = Journal.stand

    def only_after_the_ruling(self: Journal, term: int, active: str, *, alone: bool) -> None:
        if term > self.standing.term:
            stand(self, term, active, alone=alone)

    patch.setattr(Journal, "stand", only_after_the_ruling)


def write_a_batch_late(patch: pytest.MonkeyPatch) -> None:
    append, late = Journal.append, dict[int, tuple[int, list[bytes]]]()

    def append_the_one_before(self: Journal, number: int, batches: list[bytes]) -> None:
        before = late.pop(id(self), None)
        if before is not None and before[0] + len(before[1]) == number:
            append(self, *before)
        late[id(self)] = number, batches

    patch.setattr(Journal, "append", append_the_one_before)


def begin_again_at_each_start(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Journal, "load", lambda self: (SequencerMachine(self._server, self._layout), 0))


def number_items_anew(patch: pytest.MonkeyPatch) -> None:
    become_active = Replica._become_active

    def with_new_numbers(self: Replica) -> None:
        machine = self.machine
        assert machine is not None
        machine.untaken = {number + 1: item for number, item in machine.untaken.items()}
        machine._sent = max(machine.untaken, default=machine._sent)
        become_active(self)

    patch.setattr(Replica, "_become_active", with_new_numbers)


def forget_answers(patch: pytest.MonkeyPatch) -> None:
    state = SequencerServer.state
    patch.setattr(SequencerServer, "state", lambda self: msgspec.structs.replace(state(self), answers=[]))


def forget_no_ops(patch: pytest.MonkeyPatch) -> None:
    become_active = Replica._become_active

    def without_no_ops(self: Replica) -> None:
        assert self.machine is not None
        self.machine.no_ops.clear()
        become_active(self)

    patch.setattr(Replica, "_become_active", without_no_ops)


def acknowledge_before_it_is_published(patch: pytest.MonkeyPatch) -> None:
    on_fact = OrderingModule._on_publisher_fact

    def acknowledge(self: OrderingModule, fact: object) -> None:
        on_fact(self, fact)
        if isinstance(fact, EventStamped) and self._publisher is not None:
            self._publisher.published(fact.receipt)

    patch.setattr(OrderingModule, "_on_publisher_fact", acknowledge)


def take_a_state_again(patch: pytest.MonkeyPatch) -> None:
    on_state_part = Replica.on_state_part

    def whenever_it_comes(self: Replica, sender: str, message: Any) -> None:
        self._floor = 0
        on_state_part(self, sender, message)

    patch.setattr(Replica, "on_state_part", whenever_it_comes)


FLAWS: dict[Flaw, int] = {
    release_without_the_standby: 92,
    grant_although_alone: 126,
    claim_before_it_is_written: 95,
    write_a_batch_late: 1,
    begin_again_at_each_start: 0,
    number_items_anew: 0,
    forget_answers: 0,
    forget_no_ops: 350,
    acknowledge_before_it_is_published: 32,
    take_a_state_again: 17,
}
"""With a seed that found it once: it is tried first."""


@pytest.mark.slow
@pytest.mark.parametrize("flaw", FLAWS, ids=lambda flaw: flaw.__name__)
def test_the_runs_find_planted_flaws(flaw: Flaw, monkeypatch: pytest.MonkeyPatch) -> None:
    flaw(monkeypatch)
    assert any(goes_wrong(seed) for seed in (FLAWS[flaw], *range(MAX_FLAWED_RUNS)))


def goes_wrong(seed: int) -> bool:
    try:
        return bool(run(seed))
    except (AssertionError, KeyError, OrderError, StoreError):  # a part found that it makes no sense
        return True


# --- One server, its standby and its witness


class Trio:
    """Nodes a (primary), b (standby) and w (witness) of server s; the test says who hears whom."""

    def __init__(self) -> None:
        self.layout = Layout([ServerPlacement("s", ("/0", "/1"), node="a", standby="b", witness="w")])
        self.now = 0
        self.lives = 0
        self.tables: dict[str, Tables] = {name: {} for name in "abw"}
        self.ports: dict[str, Any] = {}
        self.nodes: dict[str, SequencerNode] = {}
        self.stores: dict[str, FullStore] = {}
        self.deaf: set[frozenset[str]] = set()
        self.answers: list[tuple[str, str, Message]] = []
        """(from, to, message), of what went to clients."""
        for name in "abw":
            self.start(name)

    def start(self, name: str) -> None:
        port: Any = RecordingPort(name)
        self.ports[name] = port
        port.now = self.now
        self.lives += 1
        port.random = Random(self.lives)
        store = self.stores[name] = FullStore(self.tables[name])
        self.nodes[name] = SequencerNode(port, self.layout, store, times=TIMES, first=True)
        self.nodes[name].start()

    def stop(self, name: str, *, disk: bool = True) -> None:
        del self.nodes[name]
        if not disk:
            self.tables[name] = {}

    def replica(self, name: str) -> Replica:
        return self.nodes[name].sequencer.replicas["s"]

    def roles(self) -> list[str]:
        return [str(self.replica(name).role) for name in "ab" if name in self.nodes]

    def say(self, client: str, to: str, message: Message) -> None:
        self.nodes[to].receive(client, message)
        self.settle()

    def settle(self) -> None:
        """Until nothing is on its way, and no timer due."""
        for _ in range(1000):
            if not sum(self._deliver(name) or self._fire(name) for name in list(self.nodes)):
                return
        raise AssertionError("they never become quiet")

    def _deliver(self, name: str) -> bool:
        sent, self.ports[name].sent = self.ports[name].sent, []
        for to, message in sent:
            if to in self.nodes and frozenset((name, to)) not in self.deaf:
                self.nodes[to].receive(name, message)
            elif to not in "abw":
                self.answers.append((name, to, message))
        return bool(sent)

    def _fire(self, name: str) -> bool:
        timers = self.ports[name].timers
        due = [timer for timer, at in timers.items() if at <= self.now]
        for timer in due:
            del timers[timer]
            self.nodes[name].timer(timer)
        return bool(due)

    def wait(self, duration_ns: int) -> None:
        for _ in range(duration_ns // TIMES.sign_ns):
            self.now += TIMES.sign_ns
            for name in self.nodes:
                self.ports[name].now = self.now
            self.settle()

    def cut(self, *pairs: str) -> None:
        self.deaf = {frozenset(pair) for pair in pairs}

    def stamps(self) -> list[tuple[int, int]]:
        return [(said.topic, said.base) for _, _, said in self.answers if isinstance(said, EventStamps)]

    def in_step(self) -> Trio:
        self.wait(2 * SECOND)
        assert self.roles() == ["active", "standby"] and not self.replica("a").alone
        return self


def create(request: int = 1, topic: int = 0, publisher: str = "p") -> Create:
    return Create((publisher, 1), request, topic, 1, 0)


def test_nothing_is_said_that_the_standby_does_not_have() -> None:
    trio = Trio().in_step()
    trio.cut("ab", "aw")
    trio.say("p", "a", create())
    trio.wait(5 * SECOND)
    assert trio.stamps() == [] and trio.roles() == ["active", "active"]
    trio.say("q", "b", create(publisher="q"))
    assert trio.stamps() == [(0, 0)]
    trio.cut()
    trio.wait(3 * SECOND)
    assert trio.roles() == ["standby", "active"]
    trio.say("p", "b", create())
    assert trio.stamps() == [(0, 0), (0, 1)]


def test_the_active_one_goes_on_alone_and_the_standby_may_not_take_over() -> None:
    trio = Trio().in_step()
    trio.cut("ab")
    trio.say("p", "a", create())
    trio.wait(2 * SECOND)
    assert trio.stamps() == [(0, 0)]
    trio.stop("a")
    trio.cut()
    trio.wait(5 * SECOND)
    assert trio.roles() == ["waiting"]
    trio.start("a")
    trio.wait(3 * SECOND)
    assert trio.roles() == ["active", "standby"]


def test_the_standby_takes_over_from_a_lost_disk() -> None:
    trio = Trio().in_step()
    trio.say("p", "a", create())
    trio.stop("a", disk=False)
    trio.start("a")
    trio.wait(3 * SECOND)
    assert trio.roles() == ["standby", "active"]
    trio.say("p", "b", create(2))
    assert trio.stamps() == [(0, 0), (0, 1)]
    states = [trio.replica(name).machine for name in "ab"]
    assert states[0] is not None and states[1] is not None
    assert states[0].written() == states[1].written()


def test_what_one_alone_numbered_is_not_numbered_again_when_its_disk_is_lost() -> None:
    trio = Trio().in_step()
    trio.stop("b")
    trio.say("p", "a", create())
    trio.wait(3 * SECOND)
    assert trio.stamps() == [(0, 0)]
    trio.stop("a", disk=False)
    trio.start("a")
    trio.start("b")
    trio.wait(5 * SECOND)
    assert trio.roles() == ["lost", "waiting"]
    assert "its state is lost" in str(trio.replica("a").status()["trouble"])
    trio.say("p", "a", create(2))
    assert trio.answers[-1] == ("a", "p", NotActive("s", "", lost=True))


def test_who_comes_back_before_its_standby_goes_on_needs_no_witness() -> None:
    trio = Trio().in_step()
    trio.stop("w", disk=False)
    trio.start("w")
    trio.cut("ab")
    trio.nodes["a"].receive("p", create())
    trio.settle()
    assert trio.stamps() == [], "the standby does not have it"
    trio.stop("a")
    trio.cut()
    trio.start("a")
    trio.wait(1 * SECOND)
    assert trio.roles() == ["active", "standby"]
    trio.say("p", "a", create(2))
    trio.say("p", "a", create(1))
    assert sorted({*trio.stamps()}) == [(0, 0), (0, 1)]
    states = [trio.replica(name).machine for name in "ab"]
    assert states[0] is not None and states[1] is not None
    assert states[0].written() == states[1].written()


def test_a_server_does_not_begin_again_although_its_witness_forgot_it() -> None:
    """Primary and witness lose their disks: the standby knows numbers that must not be given again."""
    trio = Trio().in_step()
    trio.say("p", "a", create())
    trio.stop("a", disk=False)
    trio.stop("w", disk=False)
    trio.start("w")
    trio.start("a")
    trio.wait(5 * SECOND)
    assert trio.roles() == ["waiting", "standby"]
    trio.say("q", "a", create(publisher="q"))
    trio.say("q", "b", create(publisher="q"))
    assert trio.stamps() == [(0, 0)]


def test_no_ops_that_are_not_with_the_service_are_published_by_who_takes_over() -> None:
    trio = Trio().in_step()
    trio.say("p", "a", create())
    trio.wait(TIMES.publisher_ns + SECOND)
    made = [fact for fact in trio.ports["a"].facts if isinstance(fact, PublishNoOps)]
    assert [(fact.stamp.topic, fact.stamp.number, fact.count) for fact in made] == [(0, 1, 1)]
    trio.stop("a")
    trio.wait(3 * SECOND)
    assert [fact for fact in trio.ports["b"].facts if isinstance(fact, PublishNoOps)] == made
    trio.nodes["b"].sequencer.no_ops_published("s", made[0].number)
    trio.start("a")
    trio.wait(3 * SECOND)
    trio.stop("b")
    trio.wait(3 * SECOND)
    assert trio.roles() == ["active"]
    assert not [fact for fact in trio.ports["a"].facts if isinstance(fact, PublishNoOps)]


def test_a_late_word_of_the_witness_does_not_make_all_lost() -> None:
    trio = Trio().in_step()
    trio.stop("a", disk=False)
    trio.wait(3 * SECOND)
    trio.cut("ab")
    trio.start("a")
    trio.nodes["a"].receive("w", Ruling("s", 1, "a", True, 5))
    assert trio.roles() == ["lost", "active"]
    trio.settle()
    trio.cut()
    trio.wait(3 * SECOND)
    assert trio.roles() == ["standby", "active"]


def test_who_is_gone_between_its_first_claim_and_the_ruling_begins_again() -> None:
    trio = Trio()
    trio.nodes["a"].receive("b", NoState("s"))
    (claim,) = [message for to, message in trio.ports["a"].sent if to == "w" and message.term == 0]
    trio.nodes["w"].receive("a", claim)
    trio.stop("a")
    trio.start("a")
    trio.cut()
    trio.in_step()


def test_a_state_of_a_term_in_which_it_had_one_is_not_taken_again() -> None:
    """It is older than what was acknowledged since, and the active replica would not send that again."""
    trio = Trio()
    trio.settle()
    trio.cut("aw")  # it stays the same term: nobody grants another
    parts: list[Message] = []
    receive = trio.nodes["b"].receive

    def note(sender: str, message: Message) -> None:
        if isinstance(message, StatePart):
            parts.append(message)
        receive(sender, message)

    trio.nodes["b"].receive = note  # type: ignore[method-assign]
    trio.wait(SECOND)
    assert trio.roles() == ["active", "standby"]
    assert parts
    for request in (1, 2, 3):
        trio.say("p", "a", create(request))
    before = trio.replica("b").machine
    assert before is not None and before.server.clock[0] == 3
    for part in parts:
        receive("a", part)
    after = trio.replica("b").machine
    assert after is not None and after.server.clock[0] == 3


def test_a_replica_that_is_out_of_date_disowns_nobody() -> None:
    trio = Trio().in_step()
    trio.cut("ab", "aw")
    trio.wait(5 * SECOND)
    assert trio.roles() == ["active", "active"]
    trio.say("c", "b", ChangeSubscription(("c", 1), 1, (0,), ()))
    assert isinstance(trio.answers[-1][2], WalkDone)
    for name in "ab":
        trio.say("c", name, SubscriberAlive(("c", 1), "s"))
    trio.wait(5 * SECOND)
    assert not [said for _, _, said in trio.answers if isinstance(said, SubscriberDisowned)]
    trio.cut()
    trio.wait(3 * SECOND)
    trio.say("d", "b", SubscriberAlive(("d", 1), "s"))
    assert trio.answers[-1] == ("b", "d", SubscriberDisowned(("d", 1)))


def test_a_standby_is_in_step_also_under_constant_load() -> None:
    """There is always something that it has not acknowledged."""
    trio = Trio()
    trio.settle()
    trio.stop("b")
    port, node = trio.ports["a"], trio.nodes["a"]
    node.receive("b", StateWanted("s"))
    for request in (1, 2, 3):
        node.receive("p", create(request))
        node.timer(("sequencer", "s", "commit"))
    term = trio.replica("a").term
    node.receive("b", Replicated("s", term, 0))
    node.receive("b", Replicated("s", term, 2))
    node.receive("p", create(4))
    node.timer(("sequencer", "s", "commit"))
    assert not [sent for _, sent in port.sent if isinstance(sent, Claim)], "3 was said, and it lacks that"
    node.receive("b", Replicated("s", term, 3))
    (claim,) = [sent for _, sent in port.sent if isinstance(sent, Claim)]
    assert not claim.alone


def test_only_its_own_signs_of_life_keep_a_client_alive() -> None:
    trio = Trio().in_step()
    trio.say("p", "a", create())
    for _ in range(60):
        trio.say("x", "a", PublisherAlive(("p", 1), "s", 0))
        trio.wait(TIMES.sign_ns)
    assert trio.replica("a").machine.server.publishers == []  # type: ignore[union-attr]


def test_a_transfer_to_one_that_begins_anew_begins_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has lost the first parts, and says again and again that it has none."""
    monkeypatch.setattr(transfer_module, "MAX_PART_BYTES", 10)
    trio = Trio()
    trio.settle()
    trio.stop("b")
    trio.nodes["a"].receive("b", StateWanted("s"))
    trio.nodes["a"].receive("b", StateTaken("s", 0, 2))
    trio.settle()
    trio.start("b")
    trio.wait(3 * SECOND)
    trio.in_step()


# --- The chain, when a primary is down for good

CHAIN = Layout(
    [
        ServerPlacement("high", ("/0",), node="h1", standby="h2", witness="w"),
        ServerPlacement("middle", ("/1",), node="m"),
        ServerPlacement("low", ("/2",), node="l1", standby="l2", witness="w"),
    ]
)


def lone(layout: Layout, name: str) -> tuple[Any, SequencerNode]:
    port: Any = RecordingPort(name)
    node = SequencerNode(port, layout, FullStore(), times=TIMES, first=True)
    node.start()
    port.sent.clear()
    return port, node


def commit(port: Any, node: SequencerNode, server: str) -> list[tuple[str, Message]]:
    node.timer(("sequencer", server, "commit"))
    sent, port.sent = port.sent, []
    return list(sent)


def test_what_was_taken_is_told_to_who_sent_it() -> None:
    port, node = lone(CHAIN, "m")
    relay = CreateRelay(("p", 1), "low", 1, 0, 2, 0, 1, (1,), (0,))
    for _ in range(2):
        node.receive("l2", ChainItem("middle", 1, relay))
        assert ("l2", ChainTaken("low", 1)) in commit(port, node, "middle")


def test_a_repeat_is_asked_of_both_replicas_of_a_server_that_is_not_next() -> None:
    layout = Layout(
        [CHAIN.servers[0], CHAIN.servers[1], ServerPlacement("low", ("/2",), node="l")], causal=True
    )
    port, node = lone(layout, "l")
    node.receive("c", ChangeSubscription(("c", 1), 1, (0, 2), ()))
    node.receive("p", create(topic=2))
    commit(port, node, "low")
    node.receive("p", create(topic=2))
    assert {to for to, sent in commit(port, node, "low") if isinstance(sent, Between)} == {"h1", "h2"}


# --- Full disks


@pytest.mark.parametrize("name", ["a", "b", "w"])
def test_a_full_disk_is_waited_for(name: str) -> None:
    trio = Trio()
    trio.stores[name].full = True
    trio.wait(3 * SECOND)
    trio.stores[name].full = False
    trio.in_step()
    trio.stores[name].full = True
    for request in (1, 2, 3):
        trio.say("p", "a", create(request))
        trio.say("p", "b", create(request))
    trio.wait(5 * SECOND)
    trio.stores[name].full = False
    trio.wait(3 * SECOND)
    for request in (1, 2, 3, 4):
        trio.say("p", "a", create(request))
        trio.say("p", "b", create(request))
    assert {(0, number) for number in range(4)} == {*trio.stamps()}
    assert sorted(trio.roles()) == ["active", "standby"]


class _NoRoomForStates(FullStore):
    def write(self, changes: Sequence[Change]) -> None:
        if any(key.startswith(b"order-state") and value for _, key, value in changes) and self.full:
            raise StoreError("no room for a state")
        MemoryStore.write(self, changes)


def test_a_disk_without_room_for_a_state_takes_inputs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal_module, "SMALLEST_COMPACTION_BYTES", 100)
    port: Any = RecordingPort("n")
    store = _NoRoomForStates()
    node = SequencerNode(port, single("n", ["/0"]), store, times=TIMES, first=True)
    node.start()
    store.full = True
    for request in range(1, 200):
        node.receive("p", create(request))
        port.timers.pop(("sequencer", "n", "commit"), None)
        node.timer(("sequencer", "n", "commit"))
        node.timer(("sequencer", "n", "tick"))
    stamped = {sent.base for _, sent in port.sent if isinstance(sent, EventStamps)}
    assert len(stamped) == 199


# --- What makes no sense


NUMBERS = (0, 1, 2, 5, 1000, 2**31 - 1, 2**40, 2**62, 2**63 - 1)
RANKS = ((), (0,), (1, 0), (0, 0), (0, 1), (7,), (2**31 - 1,))
NAMES = ("a", "b", "w", "s", "t", "p", "", "nobody")


def absurd(kind: Any, random: Random, sender: str) -> Any:
    """Any content that passes the wire, in nobody's name but that of others."""
    values: list[Any] = []
    for name in kind.__struct_fields__:
        match name:
            case "publisher" | "subscriber":
                node = random.choice([each for each in NAMES if each != sender])
                values.append((node, random.choice(NUMBERS)))
            case "index" | "values" | "topics" | "ghosts":
                values.append(random.choice(RANKS))
            case "server" | "active" | "highest":
                values.append(random.choice(NAMES))
            case "inputs" | "data":
                values.append(random.choice((b"", b"\x90", b"\xff" * 10)))
            case "alone":
                values.append(random.random() < 0.5)
            case "message":
                inner = (
                    (CreateRelay, AnswersTaken, SubscribeWalk)
                    if kind is ChainItem
                    else (StampsAgain, WalkAgain)
                )
                values.append(absurd(random.choice(inner), random, sender))
            case "json":
                values.append("{}")
            case "addresses":
                values.append(())
            case _:
                values.append(random.choice(NUMBERS))
    return kind(*values)


def wire_kinds() -> list[type]:
    return [
        kind
        for kind in vars(ordering_messages).values()
        if isinstance(kind, type) and issubclass(kind, WireMessage) and kind is not WireMessage
    ]


def passes_the_wire(message: Any) -> bool:
    try:
        return bool(msgspec.msgpack.decode(msgspec.msgpack.encode(message), type=type(message)) == message)
    except msgspec.ValidationError:
        return False


@pytest.mark.parametrize("sender", ["stranger", "p", "t1"])
def test_nonsense_changes_nothing(sender: str) -> None:
    """From a stranger, a client, a node of a server that is not next: silence, a refusal, a word to the operator."""
    trio = Trio()
    trio.layout = Layout(
        [
            ServerPlacement("s", ("/0", "/1"), node="a", standby="b", witness="w"),
            ServerPlacement("next", ("/2",), node="n1"),
            ServerPlacement("t", ("/3",), node="t1", standby="t2", witness="t3"),
        ]
    )
    for name in "abw":
        trio.start(name)
    trio.in_step()
    trio.say("p", "a", create())
    trio.say("c", "a", ChangeSubscription(("c", 1), 1, (0,), ()))
    random = Random(sender)
    before = picture(trio)
    checked = 0
    for kind in wire_kinds():
        for _ in range(150):
            message = absurd(kind, random, sender)
            if passes_the_wire(message):
                checked += 1
                for name in "abw":
                    trio.nodes[name].receive(sender, message)
    trio.settle()
    assert checked > 1000
    assert picture(trio) == before
    for request in (1, 2):
        trio.say("p", "a", create(request))
    assert trio.roles() == ["active", "standby"] and (0, 1) in trio.stamps()


def picture(trio: Trio) -> list[Any]:
    machines = [trio.replica(name).machine for name in "ab"]
    return [
        *[machine.written() for machine in machines if machine is not None],
        *[(trio.replica(name).role, trio.replica(name).term, trio.replica(name).alone) for name in "ab"],
        dict(trio.nodes["w"].witness._records),
        [trio.nodes[name].sequencer.routes.active("s") for name in "ab"],
    ]


def test_a_client_can_harm_nobody_in_its_own_name() -> None:
    """Not even by a version from which nobody could go on: the state must stay readable."""
    trio = Trio().in_step()
    server = trio.replica("a").machine.server  # type: ignore[union-attr]
    for message in (
        ChangeSubscription(("c", 1), 2**63 - 1, (0,), ()),
        ChangeSubscription(("c", 1), 1, (0, 0), ()),
        ChangeSubscription(("c", 1), 1, (), ()),
        ChangeSubscription(("c", 1), 1, (0,), (9,)),
        Create(("c", 1), 1, 9, 1, 0),
        Create(("c", 1), 1, 0, 1, 5),
        Create(("c", 1), 5, 0, 1, 0),
        PublisherAlive(("c", 2), "s", 99),
    ):
        trio.say("c", "a", message)
    assert server.clock == [0, 0] and server.subscriptions == 0
    trio.say("c", "a", ChangeSubscription(("c", 1), 1, (0,), ()))
    server.subscriber_gone(("c", 1))
    machine = trio.replica("a").machine
    assert machine is not None
    SequencerMachine("s", trio.layout).restore(machine.written())
