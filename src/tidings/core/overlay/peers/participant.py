"""A process that takes part in topics without brokers: its parts, as one state machine."""

from __future__ import annotations

from tidings.core.kernel import Node, Port
from tidings.core.overlay.peers.broadcast import Broadcast, Deliver
from tidings.core.overlay.peers.channels import BodyCodec, Channels
from tidings.core.overlay.peers.membership import TopicMembership


class Participant(Node):
    """Runs one process. `deliver` gets each stretch of events of the topics that it takes part in, once."""

    def __init__(
        self, port: Port, codec: BodyCodec, deliver: Deliver, *, incarnation: int, address: str = ""
    ) -> None:
        self.channels = Channels(port, codec)
        self.membership = TopicMembership(port, self.channels, incarnation=incarnation, address=address)
        self.broadcast = Broadcast(port, self.channels, self.membership, deliver, incarnation=incarnation)
        super().__init__((self.channels, self.membership, self.broadcast))
