"""A client's side of durable subscriptions and groups, message by message."""

from __future__ import annotations

import pytest

from recording_port import RecordingPort
from tidings.core.client import share_holder
from tidings.core.client.share_holder import ShareHolder
from tidings.core.events.event import make_publication
from tidings.core.events.run import RunMaker
from tidings.core.facts import ShareAttached, ShareDelivered, ShareDetached, ShareDropped
from tidings.core.overlay.guaranteed.share_messages import (
    ShareAccepted,
    ShareAttach,
    ShareDone,
    ShareForgotten,
    ShareGiven,
    ShareInterrupted,
    ShareLeave,
    ShareLeft,
)


class Broker:
    broker = "b0"


def attached() -> tuple[ShareHolder, RecordingPort]:
    port = RecordingPort("me")
    holder = ShareHolder(port, Broker())
    holder.on_link_up("b0")
    holder.attach(ShareAttach("s", "d", ("/t",), None))
    holder.on_share_accepted("b0", ShareAccepted("s"))
    assert isinstance(port.facts.pop(), ShareAttached)
    return holder, port


def test_whoever_leaves_does_not_wait_for_a_home_that_is_away() -> None:
    """The share may have moved meanwhile: then nobody answers that the client has left."""
    holder, port = attached()
    holder.leave("s")
    assert isinstance(port.sent[-1][1], ShareLeave)
    holder.on_share_interrupted("b0", ShareInterrupted("s", "b1"))
    assert port.facts == [ShareDetached("s", "")]
    holder.on_share_left("b0", ShareLeft("s"))
    assert len(port.facts) == 1
    asked = len(port.sent)
    holder.on_link_down("b0")
    holder.on_link_up("b0")
    assert len(port.sent) == asked, "it does not attach again"


def test_whoever_stays_asks_again() -> None:
    holder, port = attached()
    holder.on_share_interrupted("b0", ShareInterrupted("s", "b1"))
    assert isinstance(port.sent[-1][1], ShareAttach) and port.sent[-1][1].ask == 1


def test_a_message_has_no_more_ranges_than_it_may_have(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is done goes out in several; what is claimed beyond the limit is given up, and comes again."""
    monkeypatch.setattr(share_holder, "MAX_RANGES", 2)
    holder, port = attached()
    for number in range(1, 13):
        event = make_publication("p", 0, number, "/t", {}, b"", 1)
        holder.on_share_given("b0", ShareGiven("s", number, 1, bytes(event.raw)))
    for number in (1, 3, 5):
        holder.finish("s", number, number, expired=True)
    holder.report()
    reports = [message for _, message in port.sent if isinstance(message, ShareDone)]
    assert [(report.numbers, report.expired) for report in reports] == [
        (((1, 1), (3, 3)),) * 2,
        (((5, 5),),) * 2,
    ]
    holder.on_share_forgotten("b0", ShareForgotten("s", ((1, 1), (3, 3), (5, 5))))
    holder.give_back("s", 7)
    holder.on_share_interrupted("b0", ShareInterrupted("s", "b1"))
    asked = port.sent[-1][1]
    assert isinstance(asked, ShareAttach)
    assert asked.holding == ((2, 2), (4, 4))
    holder.on_share_accepted("b0", ShareAccepted("s", asked.holding, ask=asked.ask))
    dropped = [fact for fact in port.facts if isinstance(fact, ShareDropped)]
    assert dropped == [ShareDropped("s", ((6, 6), (8, 12)))]
    holder.leave("s", ((2, 2), (4, 4), (6, 6)))
    assert port.sent[-1][1] == ShareLeave("s", ((2, 2), (4, 4)))


def test_what_we_are_done_with_is_not_shown_again_but_reported_again() -> None:
    """Cut off from its home, a member was done with events that others got, and did not do. So they come back."""
    holder, port = attached()
    run = make_run(1, 6)
    holder.on_share_given("b0", ShareGiven("s", 11, 1, run))
    for number in (11, 13, 14):
        holder.finish("s", number, number, expired=number == 14)
    holder.on_share_interrupted("b0", ShareInterrupted("s", "b1"))
    asked = port.sent[-1][1]
    assert isinstance(asked, ShareAttach)
    holder.on_share_accepted("b0", ShareAccepted("s", (), ask=asked.ask))
    port.facts.clear()
    port.sent.clear()
    holder.on_share_given("b0", ShareGiven("s", 11, 3, run))
    shown = [fact for fact in port.facts if isinstance(fact, ShareDelivered)]
    assert [(fact.first, fact.stretch.first, fact.stretch.count, fact.attempt) for fact in shown] == [
        (12, 2, 1, 3),
        (15, 5, 2, 3),
    ]
    holder.report()
    assert [message for _, message in port.sent] == [ShareDone("s", ((11, 11), (13, 14)), ((14, 14),))]


def make_run(first: int, last: int) -> bytes:
    maker = RunMaker("p", 0)
    for sequence in range(first, last + 1):
        maker.add(sequence, "/t", {}, b"", 1)
    (run,) = maker.take_all()
    return bytes(run.raw)
