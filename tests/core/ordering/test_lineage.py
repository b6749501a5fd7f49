"""A server that lost its state numbers anew: its lineage says so, and whoever relied on the old numbers hears of it."""

from __future__ import annotations

import pytest

from recording_port import RecordingPort
from tidings.core.ordering.layout import Layout, ServerPlacement, single
from tidings.core.ordering.messages import ChangeSubscription, Create, PublisherGone
from tidings.core.ordering.module import OrderBroken, OrderingModule
from tidings.core.ordering.replication.node import SequencerNode
from tidings.core.ordering.server.machine import SequencerMachine
from tidings.core.store import MemoryStore

LAYOUT = Layout([ServerPlacement("high", ("/a",)), ServerPlacement("low", ("/b",))])
LOST = "sequencer server low lost its state"


def lineage(tables: dict[str, dict[bytes, bytes]] | None = None, seed: int = 0) -> int:
    """Of a server that is started over these tables."""
    port = RecordingPort("n")
    port.random.seed(seed)
    node = SequencerNode(port, single("n"), MemoryStore(tables), first=True)
    node.start()
    machine = node.sequencer.replicas["n"].machine
    assert machine is not None
    return machine.lineage


def test_a_lineage_is_drawn_once_and_stays_on_disk() -> None:
    tables: dict[str, dict[bytes, bytes]] = {}
    first = lineage(tables, seed=1)
    assert first > 0
    assert lineage(tables, seed=2) == first, "the same state"
    assert lineage({}, seed=2) not in (0, first), "another state"


def test_a_lineage_goes_with_the_state() -> None:
    machine = SequencerMachine("low", LAYOUT)
    machine.lineage = 7
    copy = SequencerMachine("low", LAYOUT)
    copy.restore(machine.written())
    assert copy.lineage == 7


@pytest.fixture
def module() -> OrderingModule:
    made = OrderingModule(RecordingPort("client"), LAYOUT, incarnation=1)
    made.meet("high", 5)
    made.meet("low", 6)
    return made


def broken(module: OrderingModule) -> list[OrderBroken]:
    assert isinstance(module.port, RecordingPort)
    return [fact for fact in module.port.facts if isinstance(fact, OrderBroken)]


def test_the_same_lineage_again_changes_nothing(module: OrderingModule) -> None:
    module.change(module.add_subscriber(), (0, 1))
    for server, number in (("high", 5), ("low", 6), ("low", 0), ("unknown", 9)):
        module.meet(server, number)
    assert not broken(module)


def test_another_lineage_breaks_every_subscription_once(module: OrderingModule) -> None:
    keys = [module.add_subscriber() for _ in range(2)]
    for key in keys:
        module.change(key, (0, 1))
    module.meet("low", 8)
    module.meet("low", 8)
    assert broken(module) == [OrderBroken(key, LOST) for key in keys]
    module.change(module.add_subscriber(), (1,))
    assert len(broken(module)) == 2, "a new one goes on with the new numbers"


def test_another_lineage_gives_the_publisher_another_identity(module: OrderingModule) -> None:
    port = module.port
    assert isinstance(port, RecordingPort)
    module.publish(1, "event")
    module.on_timer(("ordering", "gather"))
    module.meet("low", 8)
    module.on_timer(("ordering", "gather"))
    created = [message for _, message in port.sent if isinstance(message, Create)]
    gone = {message.publisher for _, message in port.sent if isinstance(message, PublisherGone)}
    assert [message.request for message in created] == [1, 1]
    assert created[0].publisher != created[1].publisher
    assert gone == {created[0].publisher}
    assert not any(isinstance(message, ChangeSubscription) for _, message in port.sent)
