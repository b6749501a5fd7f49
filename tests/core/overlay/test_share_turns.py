"""What a share does once a turn, whatever comes in it."""

from __future__ import annotations

from recording_port import RecordingPort
from tidings.core.events.run import RunMaker, decode_stretch
from tidings.core.overlay.guaranteed.broker import GuaranteedBroker
from tidings.core.overlay.guaranteed.messages import Attach, Stamped
from tidings.core.overlay.guaranteed.share_messages import ShareAttach, ShareDone, ShareForgotten, ShareGiven
from tidings.core.store import MemoryStore


class Group:
    """A broker with a group, whose members have six events each."""

    def __init__(self, *members: str) -> None:
        self.port = RecordingPort("me")
        self.broker = GuaranteedBroker(
            self.port, (0,), {}, MemoryStore(), delta=1, incarnation=9, new=True, matcher=None
        )
        self.broker.start()
        for member in members:
            self.broker.receive(member, Attach(1, 0, True))
            self.broker.receive(member, ShareAttach("s", "jobs", ("/t",), None, group=True, max_unacked=6))
        self.end_turn()
        maker = RunMaker("p", 1)
        for sequence in range(1, 101):
            maker.add(sequence, "/t", {}, b"", 1)
        self.broker.receive("p", Attach(1, 1))
        for stretch in maker.take_all():
            self.broker.receive("p", Stamped(9, self.broker.log.position, stretch))
        self.end_turn()
        self.port.sent.clear()

    def end_turn(self) -> None:
        timers = self.port.timers
        while due := [name for name, at in timers.items() if at <= self.port.now]:
            for name in due:
                del timers[name]
                self.broker.timer(name)

    def given(self) -> list[tuple[str, int, int]]:
        """Return what was sent since the last call: to whom, the first number, and how many."""
        found = [
            (to, message.first, decode_stretch(message.events).count)  # type: ignore[arg-type]
            for to, message in self.port.sent
            if isinstance(message, ShareGiven)
        ]
        self.port.sent.clear()
        return found


def test_what_is_done_is_answered_at_once_and_makes_room_at_the_end_of_the_turn() -> None:
    group = Group("a", "b")
    for number in (1, 2, 3):
        group.broker.receive("a", ShareDone("s", ((number, number),)))
    group.broker.receive("b", ShareDone("s", ((7, 8),)))
    assert [
        (to, message.numbers) for to, message in group.port.sent if isinstance(message, ShareForgotten)
    ] == [
        *(("a", ((number, number),)) for number in (1, 2, 3)),
        ("b", ((7, 8),)),
    ]
    assert group.given() == []
    group.end_turn()
    assert group.given() == [("a", 13, 3), ("b", 16, 2)]  # first the member with the most room


def test_a_member_that_leaves_in_the_turn_gets_nothing() -> None:
    group = Group("a", "b")
    group.broker.receive("a", ShareDone("s", ((1, 6),)))
    group.broker.link_down("a")
    assert group.given() == []
    group.broker.receive("b", ShareDone("s", ((7, 12),)))
    group.end_turn()
    assert group.given() == [("b", 13, 6)]
