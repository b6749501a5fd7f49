"""Ordered subscribers that are killed and resume, in random networks with faults; and bugs that this finds."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from msgspec import structs

from breadth import few
from tidings.core.client import ordered
from tidings.core.client.bookmark import Bookmark, Progress, Reached
from tidings.core.client.ordered import OrderedSubscription
from tidings.core.client.reliable_session import ReliableSession
from tidings.core.events.timestamp import Timestamp
from tidings.core.ordering.resuming import Resumed, Resumption
from tidings.core.ordering.subscriber import OrderedSubscriber
from tidings.core.overlay.guaranteed.bookmarks import KeptBookmarks, LeftBookmarks
from tidings.core.overlay.guaranteed.messages import Notified
from tidings.drivers.virtual.crash_points import CrashPoints, Point
from tidings.lab.order_campaign import run_seed, verdicts
from tidings.scenarios.file.expand import expand
from tidings.scenarios.file.load import parse_scenario
from tidings.scenarios.simulate import Simulation
from tidings.scenarios.trace.memory import MemoryWriter

Plant = Callable[[pytest.MonkeyPatch], None]
SEEDS = (0, 7, 13, 18, 24, 42, 66, 97, 105, 143, 154, 180, 198, 236, 278, 286, 288, 372)
"""Those in which subscribers die in the middle of something, when the scenario says so."""
AT_CRASH_POINTS = (26, 238, 79, 187, 226, 251, 283)
"""Those in which they die when a change is complete, or between what they tell their broker."""


@pytest.mark.parametrize("seed", few((*SEEDS[:6], *AT_CRASH_POINTS[:2], *SEEDS[6:], *AT_CRASH_POINTS[2:]), 8))
def test_who_was_killed_resumes(seed: int) -> None:
    assert run_seed(seed).problems == ()


def ahead_of_what_is_done(patch: pytest.MonkeyPatch) -> None:
    of = Progress.of
    patch.setattr(
        Progress, "of", lambda self, rank: structs.replace(of(self, rank), clock=of(self, rank).clock + 1)
    )


def never_sent(patch: pytest.MonkeyPatch) -> None:
    """But for the one that completes a change."""
    patch.setattr(LeftBookmarks, "tell", lambda self: None)


def not_on_disk(patch: pytest.MonkeyPatch) -> None:
    def write(self: KeptBookmarks, client: str, subscription: str, state: bytes) -> None:
        of_client = self._kept.setdefault(client, {})
        of_client[subscription] = state
        if not state:
            del of_client[subscription]

    patch.setattr(KeptBookmarks, "_write", write)


def clock_of_the_walk(patch: pytest.MonkeyPatch) -> None:
    complete = OrderedSubscriber._complete
    patch.setattr(
        OrderedSubscriber,
        "_complete",
        lambda self, change, walk, before, resumed: complete(self, change, walk, before, {}),
    )


def version_of_the_first_life(patch: pytest.MonkeyPatch) -> None:
    resume = OrderedSubscriber.resume

    def from_the_beginning(self: OrderedSubscriber, earlier: Resumption) -> None:
        self._version = 1
        resume(self, earlier)

    patch.setattr(OrderedSubscriber, "resume", from_the_beginning)


def the_older_of_the_two(patch: pytest.MonkeyPatch) -> None:
    """What the application has on disk, and its broker was not told, is shown again."""

    def advanced(kept: Bookmark, reached: Reached | None) -> Bookmark:
        return kept

    patch.setattr(ordered, "advanced", advanced)


def numbers_without_events_not_counted(patch: pytest.MonkeyPatch) -> None:
    pass_over = OrderedSubscription.pass_over

    def uncounted(self: OrderedSubscription, stamp: Timestamp, token: object, count: int) -> None:
        before = self.progress.copy()
        pass_over(self, stamp, token, count)
        if not self._turns:
            self.progress = before

    patch.setattr(OrderedSubscription, "pass_over", uncounted)


def topics_of_the_bookmark(patch: pytest.MonkeyPatch) -> None:
    """Whatever the next life wants."""
    resume = OrderedSubscription._resume

    def as_before(self: OrderedSubscription, kept: Bookmark) -> bool:
        resumed = resume(self, kept)
        if resumed and kept.entries:
            self._interest = self._settled
        return resumed

    patch.setattr(OrderedSubscription, "_resume", as_before)


def shown_again(patch: pytest.MonkeyPatch) -> None:
    """The bookmark stops short of the last number that is done with."""
    of = Progress.of

    def short(self: Progress, rank: int) -> Resumed:
        done = of(self, rank)
        return structs.replace(done, clock=max(done.clock - 1, 0))

    patch.setattr(Progress, "of", short)


def complete_before_it_is_kept(patch: pytest.MonkeyPatch) -> None:
    """The bookmark is sent, and the application is told of its change at once."""
    maybe_complete = OrderedSubscription._maybe_complete

    def hasty(self: OrderedSubscription) -> None:
        before, self._awaited_bookmark = self._awaited_bookmark, 0
        maybe_complete(self)
        if self._awaited_bookmark:
            self.on_bookmark_kept(self._awaited_bookmark)
        self._awaited_bookmark = self._awaited_bookmark or before

    patch.setattr(OrderedSubscription, "_maybe_complete", hasty)


def done_before_it_is_covered(patch: pytest.MonkeyPatch) -> None:
    """The broker is told first what is done, and then how far that is: it may hear the first alone."""

    def acknowledge(self: ReliableSession) -> None:
        if not self._connected or self._stopped:
            return
        news = self._arrivals.news()
        if news is not None:
            self.port.send(self.broker, Notified(*news))
            if news[1] and self.bookmarks is not None:
                self.bookmarks.tell()

    patch.setattr(ReliableSession, "_acknowledge", acknowledge)


def without_ghosts(patch: pytest.MonkeyPatch) -> None:
    """The next life does not speak of what an earlier one has left: a server that had not heard of it never does."""
    resumption = Bookmark.resumption
    patch.setattr(Bookmark, "resumption", lambda self: structs.replace(resumption(self), ever=()))


@pytest.mark.parametrize(
    ("plant", "seeds"),
    [
        (ahead_of_what_is_done, (0, 7)),
        (never_sent, (13, 26)),
        (not_on_disk, (0, 24)),
        (clock_of_the_walk, (0, 13)),
        (version_of_the_first_life, (0, 7)),
        (the_older_of_the_two, (26, 180)),
        (numbers_without_events_not_counted, (13, 26)),
        (topics_of_the_bookmark, (24, 66)),
        (shown_again, (0, 13)),
        (complete_before_it_is_kept, (26, 79)),
        (done_before_it_is_covered, (238, 251)),
        (without_ghosts, (105, 189)),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_planted_bug_is_found(
    plant: Plant, seeds: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    assert any(run_seed(seed).problems for seed in seeds)


LEFT_BEFORE_THE_KILL = """
seed = 1
duration_s = 20.0
settle_s = 30.0
[network]
delay_ms = { kind = "constant", value = 50.0 }
[overlay]
mode = "guaranteed"
edges = [["b0", "b1"]]
[ordering]
servers = [{ node = "b0", topics = ["/a", "/b", "/c", "/d"] }]
[[publisher]]
name = "c"
at = "b1"
topics = ["/c"]
start_s = 1.0
count = 1
arrival = "periodic"
[[publisher]]
name = "b"
at = "b0"
topics = ["/b"]
start_s = 2.0
count = 1
arrival = "periodic"
[[publisher]]
name = "a"
at = "b0"
topics = ["/a"]
start_s = 6.0
count = 1
arrival = "periodic"
[[subscriber]]
name = "s"
at = "b0"
order = "total"
topics = ["/a", "/b", "/c"]
[[subscriber]]
name = "u"
at = "b0"
order = "total"
topics = ["/b", "/c"]
[[subscriber]]
name = "t"
at = "b0"
order = "total"
topics = ["/b", "/d"]
changes = [{ at_s = 3.0, remove = ["/b"] }, { at_s = 5.0, add = ["/a"] }]
[[fault]]
kind = "crash"
nodes = ["c"]
at_s = 1.07
[[fault]]
kind = "crash"
nodes = ["t"]
at_s = 4.0
until_s = 4.1
"""
"""c dies when its event has a number and is not published: s, which has /b and /c as u has, waits with the event of /b
until that is given up. t has seen it, leaves /b, is killed, and joins /a: nobody else shares any of these pairs with s,
so that only what t's earlier life has left (rule 2 of sequencing/groups.py) holds the event of /a back at s."""


KILLED_WHEN_JOINED = LEFT_BEFORE_THE_KILL.partition('[[fault]]\nkind = "crash"\nnodes = ["t"]')[0]
KILLED_WHEN_JOINED = KILLED_WHEN_JOINED.replace("start_s = 2.0", "start_s = 2.2").replace(
    """at = "b0"
order = "total"
topics = ["/b", "/d"]
changes = [{ at_s = 3.0, remove = ["/b"] }, { at_s = 5.0, add = ["/a"] }]""",
    """at = "b1"
order = "total"
topics = ["/b"]
subscribe_at_s = 2.0
changes = [{ at_s = 2.8, remove = ["/b"], add = ["/a"] }]""",
)
"""The same, but that t sees the event of /b in the turn in which it has just joined, and is killed at the end of it:
the bookmark that says so is lost, and so is that the subscription was complete."""


class AfterJoining(CrashPoints):
    def turn_ns(self) -> int:
        return 20_000_000

    def draw(self) -> Point | None:
        seen = self._network.schedule.now >= 2_220_000_000 and not any(self.crashes.values())
        self.crashes[Point.BEFORE_FLUSH] += seen
        return Point.BEFORE_FLUSH if seen else None


def shown_to(subscriber: str, text: str = LEFT_BEFORE_THE_KILL) -> tuple[list[str], list[str]]:
    """The sources of its events, and what the checkers say of the run."""
    writer = MemoryWriter()
    simulation = Simulation(expand(parse_scenario(text)), writer)
    if text is KILLED_WHEN_JOINED:
        AfterJoining(simulation.network, ["t"], 3_000_000_000)
    simulation.run()
    trace = writer.trace()
    rows = trace.delivered.to_pylist()
    shown = [row["event_id"].split(":")[0] for row in rows if row["subscriber"] == subscriber]
    return shown, list(verdicts(simulation, trace))


def test_what_an_earlier_life_has_left_counts_for_the_order(monkeypatch: pytest.MonkeyPatch) -> None:
    assert shown_to("t") == shown_to("s") == (["b", "a"], [])
    without_ghosts(monkeypatch)
    shown, objections = shown_to("s")
    assert shown == ["a", "b"]
    assert "total_order: 1 violation" in objections[0]


def first_told_when_complete(patch: pytest.MonkeyPatch) -> None:
    """The broker hears of a subscription for the first time when it has been joined."""
    tell = LeftBookmarks.tell

    def later(self: LeftBookmarks) -> None:
        if self._asked:
            tell(self)

    patch.setattr(LeftBookmarks, "tell", later)


def test_what_a_life_saw_before_it_was_complete_counts_for_the_order(monkeypatch: pytest.MonkeyPatch) -> None:
    assert shown_to("t", KILLED_WHEN_JOINED) == shown_to("s", KILLED_WHEN_JOINED) == (["b", "a"], [])
    first_told_when_complete(monkeypatch)
    shown, objections = shown_to("s", KILLED_WHEN_JOINED)
    assert shown == ["a", "b"]
    assert "total_order: 1 violation" in objections[0]
