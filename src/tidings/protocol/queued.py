"""What a guaranteed broker knows of publications on their way (protocol/delivery.py)."""

from __future__ import annotations

from collections import deque

from tidings.model.messages import Forward, ForwardGap
from tidings.protocol.labels import Label

CLIENT = "@"
"""In front of a client's name where brokers and clients are hops alike."""

Flow = tuple[str, str, int]
"""The publisher's broker, the source, its incarnation."""


class Queued:
    """A publication, or a gap in the place of some, that somebody has not confirmed."""

    __slots__ = (
        "excluded",
        "first",
        "flow",
        "hops",
        "label",
        "local",
        "mark",
        "message",
        "on_disk",
        "parked",
        "pending",
        "senders",
        "sequence",
        "serial",
        "size_bytes",
        "taken_at",
    )

    def __init__(self, serial: int, flow: Flow, label: Label, sequence: int, taken_at: int) -> None:
        self.serial = serial
        self.flow = flow
        self.label = label
        self.first = self.sequence = sequence
        """`first` differs from `sequence` in a gap only."""
        self.taken_at = taken_at
        self.message: Forward | ForwardGap | None = None
        """None while it is on disk only."""
        self.size_bytes = 0
        self.mark = 0
        """Records of the log beyond this position do not get it, and never will."""
        self.excluded: tuple[str, ...] = ()
        self.pending: dict[str, str | None] = {}
        """Who has to confirm it, with the hop that it was handed to."""
        self.hops: dict[str, int] = {}
        """Hops that have it or will get it, with its count there; 0: not sent yet."""
        self.local: dict[str, tuple[str, ...]] = {}
        """Clients with the subscriptions that it is for."""
        self.senders: list[tuple[str, int]] = []
        """Who sent it, with its count on their connection, or its sequence if that is a client."""
        self.parked = False
        self.on_disk = False


class Outgoing:
    """What is on its way over one session, or to one client."""

    __slots__ = ("count", "parked", "sent", "taken", "waiting")

    def __init__(self) -> None:
        self.count = 0
        """Sent since the connection stands."""
        self.taken = 0
        """Of these the peer has taken so many."""
        self.sent: dict[int, Queued] = {}
        self.parked: set[int] = set()
        self.waiting: deque[Queued] = deque()

    def forget(self) -> None:
        self.sent.clear()
        self.parked.clear()
        self.waiting.clear()


class Incoming:
    """What comes over one session, or from one client."""

    __slots__ = ("count", "taken", "waiting")

    def __init__(self) -> None:
        self.count = 0
        self.taken = 0
        """What the sender was told last."""
        self.waiting = 0
        """Publications first taken from there that wait here and are not parked."""
