"""Many publishers that die at once: each costs its own answers, and no more is remembered of the dead than allowed."""

from __future__ import annotations

from random import Random

import pytest

from recording_port import RecordingPort
from tidings.core.events.timestamp import Timestamp
from tidings.core.ordering.layout import Layout, ServerPlacement
from tidings.core.ordering.messages import ChangeSubscription, Create, CreateRelay, Identity
from tidings.core.ordering.server import server as server_module
from tidings.core.ordering.server.machine import SequencerMachine
from tidings.core.ordering.server.server import NoOps, SequencerServer
from tidings.core.ordering.stamps import Chain


class Name(str):
    """Counts how often one is looked at: whoever goes through all identities compares their names."""

    __slots__ = ()
    looks = 0

    def __eq__(self, other: object) -> bool:
        Name.looks += 1
        return str.__eq__(self, other)

    def __hash__(self) -> int:
        Name.looks += 1
        return str.__hash__(self)


def looks_at_deaths(count: int) -> int:
    server = SequencerServer(RecordingPort("q"), Chain(["q"], [0], 1), threshold=1)
    publishers = [(Name(f"p{number}"), 1) for number in range(count)]
    for publisher in publishers:
        server.on_create(publisher[0], Create(publisher, 1, 0, 1, 0))
    Name.looks = 0
    for publisher in publishers:
        server.publisher_dead(publisher)
    assert server.unacknowledged == 0
    return Name.looks


def test_a_death_costs_the_same_however_many_others_there_are() -> None:
    assert looks_at_deaths(500) <= 11 * looks_at_deaths(50)


def test_what_the_dead_leave_is_replaced_server_by_server_in_the_order_of_the_answers() -> None:
    """Also by who goes on from the written state: both must emit the same."""
    layout = Layout(
        [
            ServerPlacement("high", ("/0",)),
            ServerPlacement("middle", ("/1",)),
            ServerPlacement("low", ("/2",)),
        ]
    )
    chain = layout.chain

    def relay(publisher: Identity, server: str, request: int) -> CreateRelay:
        return CreateRelay(publisher, server, request, 0, chain.ranks(server)[0], request - 1, 1, (0,), (0,))

    first, second = ("p", 1), ("q", 1)
    server = SequencerServer(RecordingPort("high"), chain, threshold=1)
    for message in (
        relay(second, "low", 1),
        relay(first, "low", 1),
        relay(second, "middle", 1),
        relay(first, "middle", 1),
        relay(first, "low", 2),
    ):
        server.on_create_relay("middle", message)
    restored = SequencerServer(RecordingPort("high"), chain, threshold=1)
    restored.restore(server.state())
    assert restored.state() == server.state()
    assert server.publishers == restored.publishers == [second, first]
    for one in (server, restored):
        one.publisher_dead(first)
        port = one.port
        assert isinstance(port, RecordingPort)
        assert port.facts == [
            NoOps(Timestamp(topic, number, (0,), (0,)), 1) for topic, number in ((2, 1), (2, 2), (1, 1))
        ]
        assert (one.publishers, one.unacknowledged) == ([second], 2)


@pytest.mark.parametrize("seed", range(5))
def test_servers_that_forget_in_turns_stay_the_same_when_restored(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The latest are remembered; the oldest go first, in a server that was restored, too."""
    monkeypatch.setattr(server_module, "MAX_DEAD", 5)
    monkeypatch.setattr(server_module, "PACK_AFTER", 3)
    random = Random(seed)
    layout = Layout([ServerPlacement("q", ("/a", "/b"))])
    machine = SequencerMachine("q", layout)
    for number in range(40):
        publisher, subscriber = (f"p{number}", 1), (f"s{number}", 1)
        machine.apply(publisher[0], Create(publisher, 1, random.randrange(2), 1, 0))
        machine.apply(subscriber[0], ChangeSubscription(subscriber, 1, (0, 1), ()))
        machine.apply(subscriber[0], ChangeSubscription(subscriber, 2, (), (0, 1)))
        machine.server.publisher_dead(publisher)
        if random.random() < 0.3:
            restored = SequencerMachine("q", layout)
            restored.restore(machine.written())
            machine = restored
        state = machine.server.state()
        latest = range(max(0, number - 4), number + 1)
        assert state.dead == [(f"p{one}", 1) for one in latest]
        assert [who for who, _ in state.left] == [walk.subscriber for walk in state.walks]
        assert state.left == [((f"s{one}", 1), 2) for one in latest]
        assert machine.server._dead._forgotten < 3, "the oldest is found behind no more than these"
