"""Ordered subscribers that are killed and resume, in random networks with faults; and bugs that this finds."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from msgspec import structs

from breadth import few
from tidings.model.timestamp import Timestamp
from tidings.protocol.application import ordered
from tidings.protocol.application.bookmark import Bookmark, Progress, Reached
from tidings.protocol.application.ordered import OrderedSubscription
from tidings.protocol.bookmarks import KeptBookmarks, LeftBookmarks
from tidings.protocol.sequencing.resuming import Resumed, Resumption
from tidings.protocol.sequencing.subscriber import OrderedSubscriber
from tidings.simulator.order_campaign import run_seed

Plant = Callable[[pytest.MonkeyPatch], None]
SEEDS = (0, 7, 13, 18, 24, 26, 42, 66, 97, 105, 143, 154, 180, 198, 236, 278, 286, 288, 372)
"""Those in which subscribers die in the middle of something."""


@pytest.mark.parametrize("seed", few(SEEDS, 6))
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
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_planted_bug_is_found(
    plant: Plant, seeds: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    assert any(run_seed(seed).problems for seed in seeds)
