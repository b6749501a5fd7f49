"""What a client reports of the durable subscriptions and groups that it is attached to."""

from __future__ import annotations

import pytest

from recording_port import RecordingPort
from tidings.core.client.share_holder import ShareHolder
from tidings.core.events.event import make_publication
from tidings.core.messages import Message
from tidings.core.overlay.guaranteed.share_messages import (
    Life,
    ShareAccepted,
    ShareAttach,
    ShareDone,
    ShareForgotten,
    ShareGiven,
)

LIFE: Life = ("b0", 1, 1)


class Session:
    broker = "b0"


class Bench:
    """A client that is attached and has events 1 to 6."""

    def __init__(self) -> None:
        self.port = RecordingPort("s")
        self.holder = ShareHolder(self.port, Session())
        self.holder.on_link_up("b0")
        self.holder.attach(ShareAttach("s/1", "jobs", ("/jobs",), None))
        self.holder.on_share_accepted("b0", ShareAccepted("s/1", life=LIFE))
        for number in range(1, 7):
            raw = bytes(make_publication("p", 0, number, "/jobs", {}, b"", 0).raw)
            self.holder.on_share_given("b0", ShareGiven("s/1", number, 1, raw))
        self.port.sent.clear()

    def report(self) -> list[Message]:
        self.port.sent.clear()
        self.holder.report()
        return [message for _, message in self.port.sent]

    def answer(self, *numbers: tuple[int, int]) -> None:
        self.holder.on_share_forgotten("b0", ShareForgotten("s/1", numbers))

    def connect_again(self, life: Life = LIFE) -> list[Message]:
        """Return what it reports when it is attached again."""
        self.holder.on_link_down("b0")
        self.holder.on_link_up("b0")
        asks = self.holder._held["s/1"].asks
        self.port.sent.clear()
        self.holder.on_share_accepted("b0", ShareAccepted("s/1", ((1, 6),), life=life, ask=asks))
        return [message for _, message in self.port.sent]


def test_what_had_expired_is_told_with_what_is_done() -> None:
    bench = Bench()
    for number in (1, 2, 3, 4):
        bench.holder.finish("s/1", number, number, expired=number in (2, 3))
    assert bench.report() == [ShareDone("s/1", ((1, 4),), ((2, 3),))]
    bench.holder.finish("s/1", 5, 5)
    assert bench.report() == [ShareDone("s/1", ((5, 5),))]
    assert bench.report() == []


def test_what_has_no_answer_is_told_again() -> None:
    bench = Bench()
    bench.holder.finish("s/1", 1, 2, expired=True)
    bench.holder.finish("s/1", 3, 3)
    bench.report()
    bench.holder.finish("s/1", 4, 4, expired=True)
    assert bench.connect_again() == [ShareDone("s/1", ((1, 4),), ((1, 2), (4, 4)))]
    bench.answer((1, 1), (4, 4))
    assert bench.connect_again() == [ShareDone("s/1", ((2, 3),), ((2, 2),))]
    bench.answer((2, 3))
    assert bench.connect_again() == []


@pytest.mark.parametrize("reports", [True, False])
def test_nothing_is_told_to_a_subscription_that_began_anew(reports: bool) -> None:
    bench = Bench()
    bench.holder.finish("s/1", 1, 2, expired=True)
    if reports:
        bench.report()
    assert bench.connect_again(("b0", 2, 1)) == []
    raw = bytes(make_publication("p", 0, 9, "/jobs", {}, b"", 0).raw)
    bench.holder.on_share_given("b0", ShareGiven("s/1", 1, 1, raw))
    bench.holder.finish("s/1", 1, 1)
    assert bench.report() == [ShareDone("s/1", ((1, 1),))]
