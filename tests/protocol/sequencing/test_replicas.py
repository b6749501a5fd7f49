"""Replicated sequencer servers under crashes, lost disks, partitions and pauses: one meaning for every number, for ever.

`SEQUENCER_RUNS` multiplies the number of random runs.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from itertools import count
from typing import Any

import msgspec
import pytest

from sequencer_network import SECOND, FullStore, World, replay, run
from tidings.model.errors import StoreError
from tidings.model.ordering_messages import Claim, Create, Ruling
from tidings.protocol.sequencing.client import OrderingModule
from tidings.protocol.sequencing.journal import Journal
from tidings.protocol.sequencing.layout import spread
from tidings.protocol.sequencing.machine import SequencerMachine
from tidings.protocol.sequencing.publisher import EventStamped
from tidings.protocol.sequencing.replica import Replica, Role
from tidings.protocol.sequencing.server import SequencerServer
from tidings.protocol.sequencing.witness import NOBODY, Witness
from recording_port import RecordingPort

SCALE = float(os.environ.get("SEQUENCER_RUNS", "1"))
PARTS = 4
SHORT_RUNS = int(300 * SCALE)
LONG_RUNS = int(4 * SCALE)
MAX_FLAWED_RUNS = 3000
Flaw = Callable[[pytest.MonkeyPatch], None]


@pytest.mark.parametrize("part", range(PARTS))
def test_no_fault_breaks_the_order(part: int) -> None:
    for seed in range(part * SHORT_RUNS, (part + 1) * SHORT_RUNS):
        assert run(seed) == [], replay(seed)


@pytest.mark.parametrize("part", range(PARTS))
def test_no_row_of_faults_breaks_the_order(part: int) -> None:
    for seed in range(part * LONG_RUNS, (part + 1) * LONG_RUNS):
        assert run(seed, long=True) == [], replay(seed, long=True)


# --- Planted bugs


def release_without_the_standby(patch: pytest.MonkeyPatch) -> None:
    def release(self: Replica) -> None:
        while self._outputs and self._outputs[0][0] <= self._number:
            self._say(self._outputs.popleft()[1])

    patch.setattr(Replica, "_release", release)


def grant_although_alone(patch: pytest.MonkeyPatch) -> None:
    def is_granted(record: Any, sender: str, claim: Claim, *, primary: str) -> bool:
        return claim.term == record.term and (record != NOBODY or sender == primary)

    patch.setattr(Witness, "_is_granted", staticmethod(is_granted))


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


def disown_without_the_standby(patch: pytest.MonkeyPatch) -> None:
    on_client = Replica.on_client

    def answer_at_once(self: Replica, sender: str, message: Any) -> None:
        if self.role is Role.ACTIVE and message.__class__.__name__ == "SubscriberAlive":
            assert self.machine is not None
            self._heard[message.subscriber] = self.port.now
            self.machine.server.on_subscriber_alive(sender, message)
            for to, disowned in self.machine.outputs:  # type: ignore[misc]
                self.port.send(to, disowned)
            self.machine.outputs.clear()
        else:
            on_client(self, sender, message)

    patch.setattr(Replica, "on_client", answer_at_once)


FLAWS = (
    release_without_the_standby,
    grant_although_alone,
    claim_before_it_is_written,
    write_a_batch_late,
    begin_again_at_each_start,
    number_items_anew,
    forget_answers,
    forget_no_ops,
    acknowledge_before_it_is_published,
    take_a_state_again,
    disown_without_the_standby,
)
