"""Tells what keeps a healed guaranteed network from being quiet (invariant 6 of lab/invariants.py)."""

from __future__ import annotations

from collections.abc import Iterable

from tidings.core.client.reliable_session import ReliableSession
from tidings.core.kernel import Node
from tidings.core.overlay.guaranteed.broker import GuaranteedBroker
from tidings.core.overlay.guaranteed.queued import Flow, Hop, name_of
from tidings.drivers.virtual.network import SimulatedNetwork

Key = tuple[Flow, int]
"""A publication: its flow and its sequence."""


def unsettled(network: SimulatedNetwork) -> str | None:
    """Return what a healed network still has to do; None once it is quiet."""
    brokers: list[GuaranteedBroker] = []
    for name, node in network.nodes.items():
        protocol = node.protocol
        if not node.up or node.paused:
            return f"{name} is {'paused' if node.up else 'down'}"
        session = reliable_session(protocol)
        if isinstance(protocol, GuaranteedBroker):
            brokers.append(protocol)
        elif session is not None and session.unconfirmed:
            return f"client {name} has {session.unconfirmed} publications that are not confirmed"
        elif session is not None and session._unanswered:
            return f"client {name} has no answer for its subscriptions {names_text(session._unanswered)}"
    for trouble in (_busy(brokers), _differing_logs(brokers), _uncovered(brokers)):
        if trouble is not None:
            return trouble
    return None


def reliable_session(protocol: Node) -> ReliableSession | None:
    return next((part for part in protocol.parts if isinstance(part, ReliableSession)), None)


def _busy(brokers: Iterable[GuaranteedBroker]) -> str | None:
    for broker in brokers:
        if broker.subscriptions.recovering:
            return f"{broker.name} is still recovering its log"
        for queued in broker.delivery.queue.entries():
            publication = publication_text((queued.flow, queued.first))
            return f"{broker.name} keeps {publication} for {names_text(queued.pending)}"
    return None


def _differing_logs(brokers: Iterable[GuaranteedBroker]) -> str | None:
    first: tuple[str, dict[str, bool]] | None = None
    for broker in brokers:
        log = {entry.id: entry.dead for entry in broker.log}
        if first is None:
            first = (broker.name, log)
        elif log != first[1]:
            differing = sorted(known for known, _ in log.items() ^ first[1].items())
            return f"the logs of {first[0]} and {broker.name} differ in {names_text(differing)}"
    return None


def _uncovered(brokers: Iterable[GuaranteedBroker]) -> str | None:
    for broker in brokers:
        for entry in broker.log:
            if entry.record.broker == broker.name and not entry.dead and not entry.cover.is_everything:
                return f"{entry.id} of {broker.name} is uncovered in {entry.cover.complement()}"
    return None


def publication_text(key: Key) -> str:
    (origin, source, incarnation), sequence = key
    return f"publication {source}/{incarnation}:{sequence} (of {origin})"


def names_text(names: Iterable[Hop]) -> str:
    return ", ".join(sorted(map(name_of, names))) or "nobody"
