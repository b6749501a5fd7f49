"""The witness of a server: rules which of its two replicas is active, so that never both are.

It keeps one record per server: a term, who is active in it, and whether that one continues alone. Only a claim that
names the current term changes a record, so of two claims one loses. A standby is rejected while the active replica
continues alone: the standby may have missed something. Safety depends on neither clocks nor delays.
"""

from __future__ import annotations

import msgspec
from msgspec import Struct

from tidings.core.errors import StoreError
from tidings.core.kernel import Part, Port
from tidings.core.ordering.layout import Layout
from tidings.core.ordering.messages import Claim, Ruling
from tidings.core.store import Store

_PREFIX = b"witness:"


class _Record(Struct, array_like=True, frozen=True):
    term: int = 0
    active: str = ""
    alone: bool = True
    claim_nonce: int = 0


NOBODY = _Record()


class WitnessPart(Part):
    """The witness for all servers of the layout that name this node."""

    name = "witness"
    handles = {Claim: "on_claim"}

    def __init__(self, port: Port, layout: Layout, store: Store) -> None:
        super().__init__(port)
        self._places = {place.name: place for place in layout.servers if place.witness == port.node}
        self._store = store
        self._records: dict[str, _Record] = {}
        for key, value in store.read("identity"):
            if key.startswith(_PREFIX):
                server = key.removeprefix(_PREFIX).decode()
                self._records[server] = msgspec.msgpack.decode(value, type=_Record)

    def alone(self, server: str) -> str:
        """Return the replica that continues alone; empty if none does."""
        record = self._records.get(server, NOBODY)
        return record.active if record.alone else ""

    def on_claim(self, sender: str, message: Claim) -> None:
        place = self._places.get(message.server)
        if place is None or sender not in (place.primary, place.standby):
            return
        record = self._records.get(message.server, NOBODY)
        if self._is_granted(record, sender, message, primary=place.primary):
            record = _Record(record.term + 1, sender, message.alone, message.claim_nonce)
            key = _PREFIX + message.server.encode()
            # Written before it is sent: a witness that forgot could rule differently.
            try:
                self._store.write([("identity", key, msgspec.msgpack.encode(record))])
            except StoreError:
                return  # the replica claims again
            self._records[message.server] = record
        self.port.send(
            sender, Ruling(message.server, record.term, record.active, record.alone, record.claim_nonce)
        )

    @staticmethod
    def _is_granted(record: _Record, sender: str, claim: Claim, *, primary: str) -> bool:
        if claim.term != record.term:
            return False
        if record == NOBODY:
            return sender == primary and claim.alone
        return sender == record.active or (claim.alone and not record.alone)
