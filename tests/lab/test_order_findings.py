"""What campaigns of random orders found: the seeds that did, with what was wrong then planted again."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tidings.core.client.reliable_session import ReliableSession
from tidings.core.client.session import ClientSession
from tidings.core.ordering.replication.early_items import EARLY_LIMIT, EarlyItems
from tidings.core.ordering.replication.replica import Replica
from tidings.core.overlay.guaranteed.attachments import Attachments
from tidings.lab import order_campaign
from tidings.lab.order_campaign import run_seed
from tidings.scenarios.file.expand import expand
from tidings.scenarios.file.load import parse_scenario
from tidings.scenarios.simulate import Simulation
from tidings.scenarios.trace.memory import MemoryWriter
from tidings.scenarios.virtual.sequencers import SimulatedSequencer

Plant = Callable[[pytest.MonkeyPatch], None]


def ended_at_once(patch: pytest.MonkeyPatch) -> None:
    """What was wanted as a whole before a change, though some is on its way that nothing else brings as a whole."""
    unsubscribe = ReliableSession.unsubscribe
    patch.setattr(ReliableSession, "unsubscribe", lambda self, name, *, drain=False: unsubscribe(self, name))


def left_at_once(patch: pytest.MonkeyPatch) -> None:
    """The same where events overtake each other: what is on its way is lost, and later ones come."""
    unsubscribe = ClientSession.unsubscribe
    patch.setattr(ClientSession, "unsubscribe", lambda self, name, *, drain=False: unsubscribe(self, name))


def ended_by_the_next_life(patch: pytest.MonkeyPatch) -> None:
    end_earlier = ReliableSession.end_earlier
    patch.setattr(ReliableSession, "end_earlier", lambda self, name, drain=False: end_earlier(self, name))


def nobody_known_before_the_log_is_complete(patch: pytest.MonkeyPatch) -> None:
    """A broker that lost its disk takes events for its own records, and throws them away."""
    find_orphans = Attachments._find_orphans

    def late(self: Attachments) -> None:
        if not self.recovering:
            find_orphans(self)

    patch.setattr(Attachments, "_find_orphans", late)


def new_after_another_crash(patch: pytest.MonkeyPatch) -> None:
    """A server that lost its disk knows that, until it crashes again."""
    make = SimulatedSequencer._make

    def forgetful(self: SimulatedSequencer, node: object) -> object:
        self._first = True
        return make(self, node)  # type: ignore[arg-type]

    patch.setattr(SimulatedSequencer, "_make", forgetful)


def full_of_what_is_far_ahead(patch: pytest.MonkeyPatch) -> None:
    """Over links that reorder, a standby that was away takes a batch or two at a time, and all wait for it."""

    def keep(self: EarlyItems[object], number: int, item: object) -> None:
        if len(self._items) < EARLY_LIMIT:
            self._items[number] = item

    patch.setattr(EarlyItems, "keep", keep)


def never_in_step(patch: pytest.MonkeyPatch) -> None:
    """The witness is not told that a standby may take over: a server that loses its disk is lost, whenever that is."""
    patch.setattr(Replica, "_maybe_claim_step", lambda self: None)


def a_standby_saves_all(patch: pytest.MonkeyPatch) -> None:
    """The server lost its disk in its first second, before its standby was in step: nobody else knew its state."""
    patch.setattr(order_campaign, "may_be_lost", lambda simulation: set())


def nothing_is_overtaken(patch: pytest.MonkeyPatch) -> None:
    """A publisher is five seconds behind, and one of its events comes in time, before an earlier one that does not."""
    patch.setattr(order_campaign, "CUT_OFF_NS", 3_600_000_000_000)


def one_look(patch: pytest.MonkeyPatch) -> None:
    """The run ends while its last event is on its way."""
    patch.setattr(order_campaign, "LOOKS", 1)


@pytest.mark.parametrize(
    ("seed", "plant"),
    [
        (5925, ended_at_once),
        (5366, new_after_another_crash),
        (7071, one_look),
        (7936, full_of_what_is_far_ahead),
        (8207, left_at_once),
        (8346, a_standby_saves_all),
        (8415, nothing_is_overtaken),
        (9413, a_standby_saves_all),
        (9413, never_in_step),
    ],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_a_seed_passes_but_with_its_bug(seed: int, plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run_seed(seed).problems == ()
    plant(monkeypatch)
    assert run_seed(seed).problems


CHANGED_WHILE_AWAY = """
seed = 1
duration_s = 6.0
settle_s = 30.0
[network]
delay_ms = { kind = "constant", value = 20.0 }
[overlay]
mode = "guaranteed"
edges = [["b0", "b1"]]
[ordering]
servers = [{ node = "b1", topics = ["/c/**"] }]
[[publisher]]
name = "p"
at = "b1"
topics = ["/c/x"]
rate_hz = 400.0
start_s = 1.0
count = 1600
arrival = "periodic"
[[subscriber]]
name = "s"
at = "b0"
order = "total"
topics = ["/c/x", "/c/y"]
changes = [{ at_s = 2.5, remove = ["/c/y"] }]
[[fault]]
kind = "crash"
nodes = ["b0"]
at_s = 2.0
until_s = 3.0
"""
"""What was published while b0 was down is behind the news that all know of the change (at 3.12)."""
KILLED = """
[[fault]]
kind = "crash"
nodes = ["s"]
at_s = 3.15
until_s = 3.17
"""
FORWARDED_BY_ANOTHER = """
seed = 1
duration_s = 10.0
settle_s = 40.0
[network]
delay_ms = { kind = "constant", value = 10.0 }
[overlay]
mode = "guaranteed"
edges = [["b0", "b1"], ["b1", "b2"], ["b1", "b3"]]
[[link]]
between = ["b1", "b2"]
delay_ms = { kind = "constant", value = 100.0 }
[[publisher]]
name = "p"
at = "b3"
topics = ["/a"]
rate_hz = 10.0
start_s = 1.5
count = 60
arrival = "periodic"
[[subscriber]]
name = "s"
at = "b2"
topics = ["/a"]
[[fault]]
kind = "crash"
nodes = ["b2"]
state = "lost"
at_s = 2.0
until_s = 5.2
[[fault]]
kind = "link"
between = ["b1", "b3"]
direction = "both"
at_s = 3.0
until_s = 9.0
"""
"""b2 lost its disk. b3, which does not reach b1, sends b2 what it has for it when b2 has not heard from b1 yet."""


def shown(text: str) -> int:
    writer = MemoryWriter()
    Simulation(expand(parse_scenario(text)), writer).run()
    return writer.counts[1]


@pytest.mark.parametrize(
    ("text", "plant"),
    [(CHANGED_WHILE_AWAY, ended_at_once), (CHANGED_WHILE_AWAY + KILLED, ended_by_the_next_life)],
    ids=["alive", "killed"],
)
def test_what_stays_wanted_loses_nothing_by_a_change(
    text: str, plant: Plant, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert shown(text) == 1600
    plant(monkeypatch)
    assert shown(text) < 1500


def test_who_lost_its_disk_keeps_what_comes_before_its_log_is_complete(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert shown(FORWARDED_BY_ANOTHER) == 60
    nobody_known_before_the_log_is_complete(monkeypatch)
    assert shown(FORWARDED_BY_ANOTHER) < 30
