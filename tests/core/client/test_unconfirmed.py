"""What a client of a guaranteed broker sends again: what is unconfirmed, and what is not on the disk its broker has."""

from __future__ import annotations

from recording_port import RecordingPort
from tidings.core.client.reliable_session import ReliableClient
from tidings.core.facts import PublicationConfirmed
from tidings.core.messages import Confirm
from tidings.core.overlay.guaranteed.messages import Attached, Stamped

FIRST_DISK, SECOND_DISK = 7, 8


class Publisher:
    """Publishes 1 to 4, of which 1 to 3 are on its broker's first disk."""

    def __init__(self) -> None:
        self.port = RecordingPort("p")
        self.client = ReliableClient(self.port, "b0", incarnation=1)
        self.client.start()
        for _ in range(4):
            self.client.publish("/a", {}, b"", 0)
        assert self.connect(FIRST_DISK) == [1, 2, 3, 4]
        self.confirm(1, 3, kept=True)

    def connect(self, disk: int) -> list[int]:
        """Return what the client sends on a new connection to a broker with that disk."""
        self.client.link_down("b0")
        self.port.sent.clear()
        self.client.link_up("b0")
        self.client.receive("b0", Attached(disk, 0, 64))
        return [message.stretch.first for _, message in self.port.sent if isinstance(message, Stamped)]

    def confirm(self, first: int, last: int, *, kept: bool) -> None:
        self.client.receive("b0", Confirm(1, first, last, kept))

    def confirmed(self) -> list[tuple[int, int]]:
        return [(fact.first, fact.last) for fact in self.port.facts if isinstance(fact, PublicationConfirmed)]


def test_what_is_on_the_brokers_disk_is_not_sent_again() -> None:
    assert Publisher().connect(FIRST_DISK) == [4]


def test_what_was_on_a_lost_disk_is_sent_until_it_is_on_the_new_one() -> None:
    publisher = Publisher()
    assert publisher.connect(SECOND_DISK) == [1, 2, 3, 4]
    assert publisher.connect(SECOND_DISK) == [1, 2, 3, 4]
    publisher.confirm(2, 2, kept=False)
    publisher.confirm(1, 1, kept=True)
    assert publisher.connect(SECOND_DISK) == [3, 4]
    publisher.confirm(3, 4, kept=True)
    assert publisher.connect(SECOND_DISK) == []
    assert publisher.connect(SECOND_DISK + 1) == [1, 3, 4]


def test_what_is_sent_again_to_a_new_disk_is_confirmed_once() -> None:
    publisher = Publisher()
    confirmed = publisher.confirmed()
    publisher.connect(SECOND_DISK)
    publisher.confirm(1, 3, kept=True)
    assert publisher.confirmed() == confirmed
    publisher.confirm(1, 4, kept=False)
    assert publisher.confirmed() == [*confirmed, (4, 4)]
    assert publisher.connect(SECOND_DISK + 1) == []
    assert publisher.client.session.can_move
