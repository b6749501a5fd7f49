"""A client's side of durable subscriptions and groups, message by message."""

from __future__ import annotations

from recording_port import RecordingPort
from tidings.core.client.share_holder import ShareHolder
from tidings.core.facts import ShareAttached, ShareDetached
from tidings.core.overlay.guaranteed.share_messages import (
    ShareAccepted,
    ShareAttach,
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
