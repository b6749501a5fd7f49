"""A sequencer server whose state is gone for good: its clients are told, and only then."""

from __future__ import annotations

import pytest

from recording_port import RecordingPort
from tidings.core.ordering.layout import Layout, ServerPlacement
from tidings.core.ordering.messages import EventStamps, NotActive, PublisherAlive
from tidings.core.ordering.module import LOST_NS, NumbersLost, OrderBroken, OrderingModule
from tidings.core.ordering.replication.node import SequencerNode
from tidings.core.store import MemoryStore

ALONE = Layout([ServerPlacement("s", ("/a",))])
PAIR = Layout([ServerPlacement("s", ("/a",), node="a", standby="b", witness="w")])


class Heard:
    """A module with a subscriber, and what it hears of server s."""

    def __init__(self, layout: Layout) -> None:
        self.port = RecordingPort("client")
        self.module = OrderingModule(self.port, layout, incarnation=1)
        self.key = self.module.add_subscriber()
        self.module.change(self.key, (0,))

    def told(self, node: str, active: str = "", *, lost: bool = False) -> None:
        self.module.on_not_active(node, NotActive("s", active, lost))

    def wait(self) -> None:
        self.port.now += LOST_NS

    @property
    def lost(self) -> list[str]:
        return [
            type(fact).__name__ for fact in self.port.facts if isinstance(fact, OrderBroken | NumbersLost)
        ]


def test_who_hears_for_a_while_that_all_is_lost_gives_up() -> None:
    heard = Heard(ALONE)
    heard.told("s", lost=True)
    assert heard.lost == []
    heard.wait()
    heard.told("s", lost=True)
    assert heard.lost == ["OrderBroken", "NumbersLost"]


def test_a_server_that_only_has_not_begun_is_waited_for() -> None:
    heard = Heard(ALONE)
    for _ in range(5):
        heard.told("s")
        heard.wait()
    assert heard.lost == []


@pytest.mark.parametrize("other", [None, "b", "stamps"], ids=["silent", "speaks", "answers"])
def test_as_long_as_the_other_replica_may_have_the_state_nothing_is_lost(other: str | None) -> None:
    heard = Heard(PAIR)
    for _ in range(5):
        heard.told("a", lost=True)
        if other == "b":
            heard.told("b", "b")
        elif other == "stamps":
            heard.told("b", "a")
            heard.module.on_event_stamps("b", EventStamps(("client", 9), "s", 1, 0, 1, 1, (), ()))
        heard.wait()
    assert heard.lost == []


def test_when_neither_replica_speaks_and_one_has_lost_all_it_is_lost() -> None:
    heard = Heard(PAIR)
    heard.told("b", "a")
    heard.told("a", lost=True)
    heard.wait()
    heard.told("b", "a")
    assert heard.lost == ["OrderBroken", "NumbersLost"]


def test_a_server_without_its_state_says_so() -> None:
    port = RecordingPort("s")
    node = SequencerNode(port, ALONE, MemoryStore({}), first=False)
    node.start()
    node.receive("client", PublisherAlive(("client", 1), "s", 0))
    assert ("client", NotActive("s", "", lost=True)) in port.sent
