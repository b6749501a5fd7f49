"""What a replica keeps on disk: its record, a snapshot of its state, and the inputs since.

A batch of inputs is on disk before any of its outputs leaves. Replaying the batches gives the same state, so a killed
server continues exactly where it was: no number is used twice, and none is skipped.

A snapshot makes the batches before it obsolete. They are removed a few at a time, with the batches that follow:
removing twenty thousand at once held everybody up for a sixth of a second.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from itertools import islice

import msgspec
from msgspec import Struct

from tidings.core.errors import OrderError
from tidings.core.ordering.layout import Layout
from tidings.core.ordering.server.machine import SequencerMachine, decode_inputs
from tidings.core.store import Change, Store

SMALLEST_COMPACTION_BYTES = 1024 * 1024
COMPACTION_FACTOR = 4
REMOVED_WITH_EACH = 4
"""Obsolete batches removed with each new one, so that they are gone long before the next compaction."""


class ReplicaRecord(Struct, array_like=True, frozen=True):
    """The term and who was active in it, and whether there is a snapshot."""

    term: int = 0
    active: str = ""
    alone: bool = True
    stated: bool = False
    number: int = 0
    """The last batch that the snapshot includes."""
    layout: int = 0
    """The fingerprint of the snapshot's layout."""


class Journal:
    """The journal of one server on one node; several share a store."""

    def __init__(self, store: Store, server: str, layout: Layout) -> None:
        self._store = store
        self._server = server
        self._layout = layout
        self._standing_key = b"order:" + server.encode()
        self._state_key = b"order-state:" + server.encode()
        self._claim_nonce_key = b"order-mark:" + server.encode()
        self._prefix = b"order:" + server.encode() + b"\0"
        self._logged: list[int] = []
        """The numbers of the batches since the snapshot."""
        self._outdated: deque[int] = deque()
        """The numbers of the batches before the snapshot that are still on disk."""
        self._log_bytes = 0
        self._state_bytes = 0
        value = store.get("identity", self._standing_key)
        self.standing = (
            ReplicaRecord() if value is None else msgspec.msgpack.decode(value, type=ReplicaRecord)
        )
        if self.standing.stated and self.standing.layout != layout.fingerprint:
            raise OrderError(
                f"the state of sequencer server {server!r} is for other topics or another order; "
                "to change them on a running network, drain it first and start with a new data directory"
            )

    def load(self) -> tuple[SequencerMachine, int]:
        """Return the restored machine and the number of its last batch."""
        machine = SequencerMachine(self._server, self._layout)
        number = self.standing.number
        state = self._store.get("identity", self._state_key)
        if state:
            machine.restore(state)
            self._state_bytes = len(state)
        for key, value in self._store.read("log"):
            if key.startswith(self._prefix):
                found = int.from_bytes(key[len(self._prefix) :])
                if found <= self.standing.number:
                    self._outdated.append(found)
                    continue
                self._logged.append(found)
                self._log_bytes += len(value)
                for sender, message in decode_inputs(value):
                    machine.apply(sender, message)
                number += 1
        machine.outputs.clear()
        return machine, number

    @property
    def claim_nonce(self) -> int | None:
        """The nonce of the very first claim, if an earlier run made it and stopped before it became active."""
        value = self._store.get("identity", self._claim_nonce_key)
        return None if value is None else int.from_bytes(value)

    def keep_claim_nonce(self, nonce: int) -> None:
        """Keep the nonce; call it before the very first claim."""
        self._store.write([("identity", self._claim_nonce_key, nonce.to_bytes(8))])

    def batches_after(self, number: int, last: int) -> dict[int, bytes] | None:
        """Return the batches after `number` up to `last`, or None if the snapshot includes some of them."""
        if number < self.standing.number or number > last:
            return None
        found = {}
        for missing in range(number + 1, last + 1):
            batch = self._store.get("log", self._key(missing))
            if batch is None:
                return None
            found[missing] = batch
        return found

    def append(self, number: int, batches: list[bytes]) -> None:
        """Write the batches, numbered from `number` on."""
        changes: list[Change] = [
            ("log", self._key(number + offset), batch) for offset, batch in enumerate(batches)
        ]
        outdated: list[int] = []
        if self._outdated:
            outdated += islice(self._outdated, REMOVED_WITH_EACH * len(batches))
            changes += self._removals(outdated)
        self._store.write(changes)
        for _ in outdated:
            self._outdated.popleft()
        self._logged += range(number, number + len(batches))
        self._log_bytes += sum(map(len, batches))

    def _key(self, number: int) -> bytes:
        return self._prefix + number.to_bytes(8)

    def _removals(self, numbers: Iterable[int]) -> list[Change]:
        return [("log", self._key(number), None) for number in numbers]

    @property
    def is_long(self) -> bool:
        """True if it is time for a new snapshot."""
        log_bytes = self._log_bytes
        return log_bytes > SMALLEST_COMPACTION_BYTES and log_bytes > COMPACTION_FACTOR * self._state_bytes

    def replace(self, state: bytes, number: int, term: int, active: str, *, alone: bool) -> None:
        """Replace everything by the snapshot after batch `number`."""
        standing = ReplicaRecord(term, active, alone, True, number, self._layout.fingerprint)
        # Batches after this number must go now: they would be taken for those that follow.
        on_disk = [*self._outdated, *self._logged]
        changes: list[Change] = [
            ("identity", self._standing_key, msgspec.msgpack.encode(standing)),
            ("identity", self._state_key, state),
            *self._removals(batch for batch in on_disk if batch > number),
        ]
        self._store.write(changes)
        self.standing = standing
        self._outdated = deque(batch for batch in on_disk if batch <= number)
        self._logged.clear()
        self._log_bytes = 0
        self._state_bytes = len(state)

    def stand(self, term: int, active: str, *, alone: bool) -> None:
        """Write a new term and who is active in it; the state stays."""
        standing = msgspec.structs.replace(self.standing, term=term, active=active, alone=alone)
        self._store.write([("identity", self._standing_key, msgspec.msgpack.encode(standing))])
        self.standing = standing

    def forget(self, term: int, active: str, *, alone: bool) -> None:
        """Remove the state: the other replica has continued without us."""
        standing = ReplicaRecord(term, active, alone)
        changes: list[Change] = [
            ("identity", self._standing_key, msgspec.msgpack.encode(standing)),
            ("identity", self._state_key, None),
            *self._removals([*self._outdated, *self._logged]),
        ]
        self._store.write(changes)
        self.standing = standing
        self._outdated.clear()
        self._logged.clear()
        self._log_bytes = self._state_bytes = 0
