"""What a replica writes and finds again: the same state after any inputs, compactions and full disks."""

from __future__ import annotations

from random import Random

import pytest

from sequencer_network import FullStore, Tables
from tidings.core.errors import OrderError, StoreFull
from tidings.core.ordering.layout import Layout, ServerPlacement
from tidings.core.ordering.messages import (
    ChainItem,
    ChainTaken,
    ChangeSubscription,
    Create,
    CreateRelay,
    NoOpsPublished,
    PublisherAlive,
    PublisherExpired,
    PublisherGone,
    SubscriberExpired,
)
from tidings.core.ordering.replication.journal import Journal
from tidings.core.ordering.server.machine import (
    Input,
    SequencerMachine,
    decode_inputs,
    encode_inputs,
)
from tidings.core.store import MemoryStore

LAYOUT = Layout(
    [
        ServerPlacement("high", ("/0", "/1")),
        ServerPlacement("middle", ("/2", "/3")),
        ServerPlacement("low", ("/4", "/5")),
    ],
    causal=False,
)
OTHER = Layout([ServerPlacement("high", ("/0",)), ServerPlacement("middle", ("/2", "/3"))])


class Inputs:
    """Random inputs of the server in the middle, most of which make sense."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.requests: dict[tuple[str, int], int] = {}
        self.versions: dict[tuple[str, int], int] = {}
        self.items = 0

    def one(self) -> tuple[str, Input]:
        random = self.random
        publisher = (random.choice("pq"), random.randrange(3))
        subscriber = (random.choice("st"), random.randrange(3))
        request = self.requests.get(publisher, 0)
        match random.randrange(9):
            case 0 | 1 | 2:
                self.requests[publisher] = request + 1
                acknowledged = random.randrange(request + 1)
                create = Create(
                    publisher, request + 1, random.randrange(2, 4), random.randrange(1, 4), acknowledged
                )
                return publisher[0], create
            case 3 | 4:
                version = self.versions[subscriber] = self.versions.get(subscriber, 0) + 1
                ever = random.sample(range(4), random.randrange(4))
                topics, ghosts = ever[: len(ever) // 2], ever[len(ever) // 2 :]
                lowest = random.choice((2, 3))
                topics = sorted({*topics, lowest})
                ghosts = sorted({*ghosts} - {*topics, 3})
                return subscriber[0], ChangeSubscription(subscriber, version, tuple(topics), tuple(ghosts))
            case 5:
                self.items += 1
                relay = CreateRelay(("x", 1), "low", self.items, 0, 4, self.items - 1, 1, (0, 2), (0, 0))
                return "low", ChainItem("middle", self.items, relay)
            case 6:
                return "high", ChainTaken("middle", random.randrange(20))
            case 7:
                return publisher[0], PublisherAlive(publisher, "middle", random.randrange(request + 1))
            case _:
                expired = (PublisherExpired(publisher), SubscriberExpired(subscriber))
                gone = PublisherGone(publisher, "middle", random.randrange(request + 1))
                choices: list[tuple[str, Input]] = [("", message) for message in expired]
                return random.choice(
                    [*choices, (publisher[0], gone), ("", NoOpsPublished(random.randrange(1, 5)))]
                )


def apply(machine: SequencerMachine, inputs: list[tuple[str, Input]]) -> None:
    for sender, message in inputs:
        machine.apply(sender, message)


def begun(tables: Tables) -> tuple[Journal, SequencerMachine]:
    journal, machine = Journal(MemoryStore(tables), "middle", LAYOUT), SequencerMachine("middle", LAYOUT)
    journal.replace(machine.written(), 0, 1, "n", alone=True)
    return journal, machine


@pytest.mark.parametrize("seed", range(20))
def test_what_is_found_again_is_the_same(seed: int) -> None:
    tables: Tables = {}
    journal, machine = begun(tables)
    inputs, random = Inputs(seed), Random(seed)
    for number in range(1, 41):
        batch = [inputs.one() for _ in range(random.randrange(1, 6))]
        apply(machine, batch)
        journal.append(number, [encode_inputs(batch)])
        if random.random() < 0.1:
            journal.replace(machine.written(), number, 1, "n", alone=True)
        if random.random() < 0.3:
            journal = Journal(MemoryStore(tables), "middle", LAYOUT)
            found, found_number = journal.load()
            assert (found.written(), found_number, found.outputs) == (machine.written(), number, [])
            machine = found
    assert machine.server.clock[2] and machine.server.clock[4] and machine.sent


@pytest.mark.parametrize("seed", range(20))
def test_a_machine_goes_on_from_its_state_as_if_nothing_had_been(seed: int) -> None:
    """The same outputs from the same inputs, whether it was written down between or not."""
    inputs = Inputs(seed)
    machine = SequencerMachine("middle", LAYOUT)
    for _ in range(12):
        apply(machine, [inputs.one() for _ in range(10)])
        restored = SequencerMachine("middle", LAYOUT)
        restored.restore(machine.written())
        machine.outputs.clear()
        following = [inputs.one() for _ in range(10)]
        apply(machine, following)
        apply(restored, following)
        assert restored.outputs == machine.outputs
        assert restored.written() == machine.written()


def test_a_state_without_its_answers_shows() -> None:
    """A planted bug in what is written down is seen by the two tests above."""
    machine, restored = SequencerMachine("middle", LAYOUT), SequencerMachine("middle", LAYOUT)
    machine.apply("p", Create(("p", 1), 1, 2, 1, 0))
    restored.restore(machine.written())
    restored.server._answers.clear()
    assert restored.written() != machine.written()


def test_servers_share_a_store() -> None:
    tables: Tables = {}
    store = MemoryStore(tables)
    for name in ("low", "middle"):
        journal, machine = Journal(store, name, LAYOUT), SequencerMachine(name, LAYOUT)
        journal.replace(machine.written(), 0, 1, "n", alone=True)
        topic = LAYOUT.chain.ranks(name)[0]
        for number in range(1, 4):
            batch: list[tuple[str, Input]] = [("p", Create(("p", 1), number, topic, 1, 0))]
            journal.append(number, [encode_inputs(batch)])
    Journal(store, "low", LAYOUT).load()
    for name in ("low", "middle"):
        machine, number = Journal(MemoryStore(tables), name, LAYOUT).load()
        assert machine.server.clock[LAYOUT.chain.ranks(name)[0]] == number == 3


def test_what_is_forgotten_is_gone_and_the_standing_stays() -> None:
    tables: Tables = {}
    journal, _ = begun(tables)
    journal.append(1, [encode_inputs([("p", Create(("p", 1), 1, 2, 1, 0))])])
    journal.forget(7, "m", alone=False)
    standing = Journal(MemoryStore(tables), "middle", LAYOUT).standing
    assert (standing.term, standing.active, standing.alone, standing.stated) == (7, "m", False, False)
    assert not tables["log"] and len(tables["identity"]) == 1


def batches(first: int, count: int) -> list[bytes]:
    return [
        encode_inputs([("p", Create(("p", 1), number, 2, 1, 0))]) for number in range(first, first + count)
    ]


def test_batches_before_the_state_are_removed_by_and_by() -> None:
    tables: Tables = {}
    journal, machine = begun(tables)
    journal.append(1, batches(1, 100))
    journal.replace(machine.written(), 100, 1, "n", alone=True)
    assert len(tables["log"]) == 100
    journal.append(101, batches(101, 5))
    assert len(tables["log"]) == 100 - 4 * 5 + 5
    journal = Journal(MemoryStore(tables), "middle", LAYOUT)  # a crash in the middle
    assert journal.load()[1] == 105
    journal.append(106, batches(106, 30))
    assert len(tables["log"]) == 35
    assert Journal(MemoryStore(tables), "middle", LAYOUT).load()[1] == 135


def test_batches_after_a_state_that_lies_back_are_removed_at_once() -> None:
    """They would be taken for those that follow it."""
    tables: Tables = {}
    journal, machine = begun(tables)
    journal.append(1, batches(1, 50))
    journal.replace(machine.written(), 20, 2, "m", alone=False)
    assert Journal(MemoryStore(tables), "middle", LAYOUT).load()[1] == 20
    journal.replace(machine.written(), 5, 3, "m", alone=False)
    assert Journal(MemoryStore(tables), "middle", LAYOUT).load()[1] == 5
    journal.forget(4, "m", alone=False)
    assert not tables["log"]


def test_a_full_disk_changes_nothing() -> None:
    store = FullStore()
    journal, machine = Journal(store, "middle", LAYOUT), SequencerMachine("middle", LAYOUT)
    journal.replace(machine.written(), 0, 1, "n", alone=True)
    before = journal.standing
    store.full = True
    with pytest.raises(StoreFull):
        journal.append(1, [b"\x90"])
    with pytest.raises(StoreFull):
        journal.stand(2, "n", alone=False)
    with pytest.raises(StoreFull):
        journal.replace(machine.written(), 5, 2, "m", alone=True)
    with pytest.raises(StoreFull):
        journal.forget(2, "m", alone=True)
    assert journal.standing == before
    assert journal.load()[1] == 0


def test_a_state_for_other_topics_is_refused() -> None:
    tables: Tables = {}
    begun(tables)
    with pytest.raises(OrderError, match="'middle' is for other topics"):
        Journal(MemoryStore(tables), "middle", OTHER)


def test_what_is_no_state_and_no_inputs_is_refused() -> None:
    for written in (b"", b"\xff", b"\x90", b"\x97\x01", encode_inputs([])):
        with pytest.raises(OrderError, match="not a valid state"):
            SequencerMachine("middle", LAYOUT).restore(written)
    with pytest.raises(OrderError, match="6 topics, the layout 3"):
        SequencerMachine("middle", OTHER).restore(SequencerMachine("middle", LAYOUT).written())
    for written in (b"", b"\xff", b"\x91\x92\xa1p\x90", b"\x91\x91\xa1p"):
        with pytest.raises(OrderError, match="not valid inputs"):
            decode_inputs(written)


def test_the_first_claim_keeps_its_mark_until_something_came_of_it() -> None:
    tables: Tables = {}
    journal = Journal(MemoryStore(tables), "middle", LAYOUT)
    assert journal.claim_nonce is None
    journal.keep_claim_nonce(17)
    assert Journal(MemoryStore(tables), "middle", LAYOUT).claim_nonce == 17
    assert Journal(MemoryStore(tables), "low", LAYOUT).claim_nonce is None
