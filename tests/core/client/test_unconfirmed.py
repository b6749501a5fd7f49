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

    def connect(self, disk: int, *, to: str = "b0") -> list[int]:
        """Return what the client sends on a new connection to a broker with that disk."""
        self.client.link_down(self.client.session.broker)
        self.port.sent.clear()
        if to != self.client.session.broker:
            self.client.moved(to)
        self.client.link_up(to)
        self.client.receive(to, Attached(disk, 5, 64))
        return [message.stretch.first for message in self.sent()]

    def sent(self) -> list[Stamped]:
        return [message for _, message in self.port.sent if isinstance(message, Stamped)]

    def confirm(self, first: int, last: int, *, kept: bool) -> None:
        self.client.receive(self.client.session.broker, Confirm(1, first, last, kept))

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


def test_what_is_on_another_brokers_disk_is_sent_again_whatever_its_generation_is() -> None:
    publisher = Publisher()
    assert publisher.connect(FIRST_DISK, to="b1") == [1, 2, 3, 4]
    publisher.confirm(1, 3, kept=True)
    assert publisher.connect(FIRST_DISK, to="b1") == [4]
    assert publisher.connect(FIRST_DISK, to="b0") == [1, 2, 3, 4]


def test_a_stamp_does_not_count_at_another_broker() -> None:
    publisher = Publisher()
    publisher.connect(FIRST_DISK)
    assert [(message.generation, message.stamp) for message in publisher.sent()] == [(FIRST_DISK, 5)]
    publisher.connect(FIRST_DISK, to="b1")
    assert {message.generation for message in publisher.sent()} == {0}
    publisher.client.publish("/a", {}, b"", 0)
    last = publisher.sent()[-1]
    assert (last.stretch.first, last.generation, last.stamp) == (5, FIRST_DISK, 5)
