"""Random networks with durable subscribers and groups keep their promises; and the campaign finds planted bugs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from breadth import few
from tidings.core.overlay.guaranteed import share_departures
from tidings.core.overlay.guaranteed.former_home import FormerHome, Place
from tidings.core.overlay.guaranteed.held_share import HeldShare
from tidings.core.overlay.guaranteed.kept_share import KeptShare
from tidings.core.overlay.guaranteed.merged_sources import MergedSources
from tidings.core.overlay.guaranteed.ordered_share import OrderedShare, Position
from tidings.core.overlay.guaranteed.ordered_shares import OrderedShares
from tidings.core.overlay.guaranteed.share_definition import TABLE, ShareDefinition
from tidings.core.overlay.guaranteed.share_departures import ShareDepartures
from tidings.core.overlay.guaranteed.share_messages import ShareMoveRows
from tidings.core.overlay.guaranteed.share_moves import ShareMoves
from tidings.core.overlay.guaranteed.share_names import ShareNames
from tidings.core.overlay.guaranteed.share_takeovers import ShareTakeovers
from tidings.core.overlay.guaranteed.shares import Shares
from tidings.core.sharing.one_of_n import OneOfN
from tidings.core.sharing.shared_queue import SharedQueue
from tidings.core.structures.ranges import Ranges
from tidings.lab import share_scenarios
from tidings.lab.seeds import blocks
from tidings.lab.share_campaign import main, replay_command, run_seed
from tidings.lab.share_scenarios import share_scenario
from tidings.scenarios.checking import only_clients_crash
from tidings.scenarios.file.load import parse_scenario
from tidings.scenarios.file.schema import CrashFault, PauseFault

SEEDS = range(1_000)
SEEDS_PER_TEST = 50
SEEDS_FOR_A_BUG = range(60)


@pytest.mark.parametrize(
    "seeds", few(blocks(SEEDS, SEEDS_PER_TEST), 1), ids=lambda seeds: f"{seeds[0]}-{seeds[-1]}"
)
@pytest.mark.parametrize("kind", ["home", "far", "moves", "leases", "calm"])
def test_durable_subscriptions_and_groups_keep_their_promises(seeds: range, kind: str) -> None:
    far = kind == "far"
    chosen = {} if kind == "home" else {kind: True}
    results = [run_seed(seed, race=far and seed % 2 == 0, **chosen) for seed in seeds]
    failed = [str(result) for result in results if result.failed]
    assert not failed, "\n".join(failed)
    assert sum(result.delivered for result in results) > 50 * len(seeds)


def test_in_calm_scenarios_nothing_fails_but_members_that_crash() -> None:
    plans = [parse_scenario(share_scenario(seed, calm=True)) for seed in range(200)]
    assert all(map(only_clients_crash, plans))
    assert sum(len(plan.faults) for plan in plans) > 500
    members = [each for plan in plans for each in plan.subscribers if each.durable or each.group]
    assert any(each.durable for each in members) and any(each.group for each in members)
    assert {each.order for each in members} == {"none", "fifo", "total", "causal"}
    assert any(each.keep_for_s == 0.5 for each in members)
    assert any(not plan.faults for plan in plans)


FOUND = (204, 389, 581, 794, 1103, 1144, 1204, 100270, 102175, 1001111)
"""Moves: a holder that left meanwhile, a next home without its disk, events older than the share, a former home that
ends during the next move, two moves of one share, two shares of one name, rows of an ended share, a publisher's broker
that crashes soon after it lost its disk, a former home that sends one event at a time over a long way, a share that
comes back to a broker which had said that it has it no more."""


@pytest.mark.parametrize("seed", FOUND)
def test_seeds_that_failed(seed: int) -> None:
    assert not run_seed(seed, moves=True).problems


FOUND_WITH_LEASES = (33, 235, 309, 1000449)
"""A former home that ended with a short lease, a new share beside a former home of the one before, many events that
go by a former home one by one, an event that arrives at the moment at which the lease is over."""


@pytest.mark.parametrize("seed", FOUND_WITH_LEASES)
def test_seeds_with_leases_that_failed(seed: int) -> None:
    assert not run_seed(seed, leases=True).problems


def test_a_member_that_was_cut_off_does_nothing_again() -> None:
    """It was done with events that came back to it before the home had heard so."""
    assert not run_seed(3000939, far=True, race=True).problems


def test_scenarios_have_everything_about_leases() -> None:
    plans = [parse_scenario(share_scenario(seed, leases=True)) for seed in range(200)]
    members = [each for plan in plans for each in plan.subscribers if each.durable or each.group]
    assert {each.keep_for_s for each in members} == {0.5, 1.0, 2.0, 5.0}
    assert any(not plan.faults for plan in plans)
    assert any(each.subscribe_at_s > plan.duration_s + 60 for plan in plans for each in plan.subscribers)
    alone = [
        plan
        for plan in plans
        for name in {each.group for each in plan.subscribers if each.group}
        if all(each.unsubscribe_at_s is not None for each in plan.subscribers if each.group == name)
    ]
    assert alone
    pauses = [
        (fault, fault.nodes[0][0]) for plan in plans for fault in plan.faults if isinstance(fault, PauseFault)
    ]
    long = {kind for fault, kind in pauses if (fault.until_s or 0) - fault.at_s > 6.5}
    assert long >= {"b", "d", "w"}, "brokers, holders and members"


def test_scenarios_have_everything_that_can_go_wrong() -> None:
    plans = [parse_scenario(share_scenario(seed)) for seed in range(200)]
    members = [each for plan in plans for each in plan.subscribers if each.durable or each.group]
    assert any(each.durable for each in members) and any(each.group for each in members)
    assert {each.order for each in members} == {"none", "fifo", "total", "causal"}
    assert any(each.group_by for each in members) and any(each.dead_letter for each in members)
    assert any(each.work_ms is None for each in members) and any(each.max_unacked == 1 for each in members)
    names = {each.name for each in members}
    struck = [
        fault for plan in plans for fault in plan.faults if names.intersection(getattr(fault, "nodes", ()))
    ]
    assert {type(fault) for fault in struck} >= {CrashFault, PauseFault}
    assert {fault.state for plan in plans for fault in plan.faults if isinstance(fault, CrashFault)} == {
        "kept",
        "lost",
    }


def test_members_are_at_one_broker_unless_they_may_be_far() -> None:
    def seats(seed: int, *, far: bool) -> dict[str, set[str]]:
        found: dict[str, set[str]] = {}
        for each in parse_scenario(share_scenario(seed, far=far)).subscribers:
            name = each.durable or each.group
            if name:
                found.setdefault(name, set()).add(each.at)
        return found

    assert all(len(at) == 1 for seed in range(100) for at in seats(seed, far=False).values())
    assert any(len(at) > 1 for seed in range(100) for at in seats(seed, far=True).values())


def forget_attempts(patch: pytest.MonkeyPatch) -> None:
    """What comes back counts as never delivered."""
    real = SharedQueue.leave
    patch.setattr(SharedQueue, "leave", lambda self, member, unseen=(): real(self, member, ((0, 2**60),)))


def finish_nothing_on_disk(patch: pytest.MonkeyPatch) -> None:
    """A broker forgets in memory alone what was done."""
    patch.setattr(KeptShare, "_drop", lambda self, ranges, more=(): None)


def forget_how_far_an_order_has_come(patch: pytest.MonkeyPatch) -> None:
    """A broker keeps the events of an order, and not the position after them."""
    real = OrderedShares._position

    def without(self: OrderedShares, share: OrderedShare, count: int) -> bytes:
        return msgspec.msgpack.encode(
            Position(msgspec.msgpack.decode(real(self, share, count), type=Position).subscription)
        )

    patch.setattr(OrderedShares, "_position", without)


def take_past_the_order(patch: pytest.MonkeyPatch) -> None:
    """The events of an ordered share come as they arrive."""
    patch.setattr(ShareDefinition, "is_ordered", False)


def keep_what_a_member_had(patch: pytest.MonkeyPatch) -> None:
    """What a member had when it went comes to nobody."""
    patch.setattr(SharedQueue, "_put_back", lambda self, member, pieces: None)


def ignore_keys(patch: pytest.MonkeyPatch) -> None:
    """Equal values go to anybody."""
    patch.setattr(OneOfN, "choose_for", lambda self, key: self.choose())


BUGS: dict[Callable[[pytest.MonkeyPatch], None], str] = {
    forget_attempts: "repetition without a mark",
    finish_nothing_on_disk: "is done again",
    keep_what_a_member_had: "never done",
    ignore_keys: "of its source with the same value",
    forget_how_far_an_order_has_come: "repetition without a mark",
    take_past_the_order: "total_order",
}


def forward_nothing(patch: pytest.MonkeyPatch) -> None:
    """A former home confirms what it gets, and keeps it to itself."""
    patch.setattr(FormerHome, "take", lambda self, stretch, done: done() or True)


def wait_for_nothing(patch: pytest.MonkeyPatch) -> None:
    """The next home takes its own events before older ones have come from the former home."""
    patch.setattr(MergedSources, "is_complete", lambda self, source: True)


def go_on_while_moving(patch: pytest.MonkeyPatch) -> None:
    """A share gives events out although its rows are on their way."""
    real = ShareDepartures.begin

    def begin(self: ShareDepartures, share: HeldShare, to: Place) -> None:
        real(self, share, to)
        share.frozen = False

    patch.setattr(ShareDepartures, "begin", begin)


def move_without_marks(patch: pytest.MonkeyPatch) -> None:
    """The next home does not learn what was taken of each source."""
    real = KeptShare.rows
    patch.setattr(
        KeptShare, "rows", lambda self: (row for row in real(self) if row[0].partition(b"\0")[2][:1] != b"m")
    )


def forget_moves(patch: pytest.MonkeyPatch) -> None:
    """A broker that restarts knows nothing of moves."""
    patch.setattr(ShareMoves, "start", lambda self: None)


def take_over_too_early(patch: pytest.MonkeyPatch) -> None:
    """The next home does not wait until the former one has written that the share has moved."""
    real = ShareTakeovers.on_rows

    def on_rows(self: ShareTakeovers, broker: str, message: ShareMoveRows) -> None:
        real(self, broker, message)
        arriving = self._arriving.get(message.name)
        if arriving is not None and arriving.row.prepared:
            self.take_over(arriving)

    patch.setattr(ShareTakeovers, "on_rows", on_rows)


def wait_ten_minutes(patch: pytest.MonkeyPatch) -> None:
    """The campaign takes a network that goes on slowly for one that is stuck."""
    patch.setattr(share_scenarios, "SETTLE_S", 600.0)


BUGS_OF_MOVES: dict[Callable[[pytest.MonkeyPatch], None], tuple[str, int]] = {
    forward_nothing: ("never arrived", 0),
    wait_for_nothing: ("never arrived", 0),
    go_on_while_moving: ("never arrived", 0),
    move_without_marks: ("is delivered again", 130),
    take_over_too_early: ("is kept at", 0),
    forget_moves: ("keeps publication", 0),
    wait_ten_minutes: ("keeps publication", 102175),
}
"""With the first seed, so that few are needed."""


def end_too_early(patch: pytest.MonkeyPatch) -> None:
    """A share is kept for a tenth of its time."""
    real = HeldShare.lease_left_ns
    patch.setattr(
        HeldShare,
        "lease_left_ns",
        lambda self, now: max(real(self, now) - self.definition.keep_for_ns * 9 // 10, 0),
    )


def end_never(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Shares, "_check_lease", lambda self, held: None)


def end_late(patch: pytest.MonkeyPatch) -> None:
    """A share is kept for a minute more."""
    real = HeldShare.lease_left_ns
    patch.setattr(
        HeldShare,
        "lease_left_ns",
        lambda self, now: real(self, now) if self.holders else real(self, now - 60_000_000_000),
    )


def keep_what_an_ended_share_had(patch: pytest.MonkeyPatch) -> None:
    """The next share of the name finds the events of the one before."""
    left: dict[tuple[object, str], list[tuple[bytes, bytes]]] = {}
    end, create = Shares._end, KeptShare.create

    def keep(self: Shares, held: HeldShare, reason: str) -> None:
        name = held.definition.name
        left[self._store, name] = [(key[len(name) + 1 :], value) for key, value in held.kept.rows()]
        end(self, held, reason)

    def find(self: KeptShare) -> None:
        create(self)
        rows = [row for row in left.pop((self._store, self.definition.name), ()) if row[0][:1] == b"r"]
        self._store.write([(TABLE, self._key(item[:1], item[1:]), value) for item, value in rows])
        self.load(rows, 0)

    patch.setattr(Shares, "_end", keep)
    patch.setattr(KeptShare, "create", find)


def end_former_homes_with_the_lease(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(share_departures, "FORMER_KEEP_NS", 0)


def give_epochs_again(patch: pytest.MonkeyPatch) -> None:
    """A new share may be taken for what is left of one that ended."""
    patch.setattr(ShareNames, "next_epoch", lambda self, name, known=None: 0)


BUGS_OF_LEASES: dict[Callable[[pytest.MonkeyPatch], None], tuple[str, int]] = {
    end_too_early: ("although its lease was not over", 0),
    end_never: ("is still kept", 0),
    end_late: ("was attached to after its lease", 0),
    keep_what_an_ended_share_had: ("was kept by the one before", 0),
    end_former_homes_with_the_lease: ("never arrived", 30),
    give_epochs_again: ("KeyError: 'share:share2'", 230),
}


def count_a_return_twice(patch: pytest.MonkeyPatch) -> None:
    """What comes back counts as delivered once more."""
    real = SharedQueue._put_back

    def put_back(self: SharedQueue, member: str, pieces: list[tuple[int, int, int]]) -> None:
        real(self, member, [(first, last, attempt + 1) for first, last, attempt in pieces])

    patch.setattr(SharedQueue, "_put_back", put_back)


def take_from_everybody(patch: pytest.MonkeyPatch) -> None:
    """When a member leaves, what the others have goes out again, too."""
    real = SharedQueue.leave

    def leave(self: SharedQueue, member: str, unseen: Ranges = ()) -> Ranges:
        not_seen = real(self, member, unseen)
        for first, last, (who, _) in self._out:
            self._put_back(who, self._out.take(who, first, last))
        return not_seen

    patch.setattr(SharedQueue, "leave", leave)


BUGS_OF_CALM: dict[Callable[[pytest.MonkeyPatch], None], str] = {
    count_a_return_twice: "is marked although too few holders went away",
    take_from_everybody: "comes again although its holder before had not gone away",
}


@pytest.mark.parametrize(
    ("plant", "found", "kind", "first"),
    [
        *((plant, found, {}, 0) for plant, found in BUGS.items()),
        *((plant, found, {"moves": True}, first) for plant, (found, first) in BUGS_OF_MOVES.items()),
        *((plant, found, {"leases": True}, first) for plant, (found, first) in BUGS_OF_LEASES.items()),
        *((plant, found, {"calm": True}, 0) for plant, found in BUGS_OF_CALM.items()),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_planted_bug_is_found(
    plant: Callable[[pytest.MonkeyPatch], None],
    found: str,
    kind: dict[str, bool],
    first: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plant(monkeypatch)
    problems: list[Any] = []
    for seed in SEEDS_FOR_A_BUG:
        problems += run_seed(first + seed, **kind).problems
        if any(found in problem for problem in problems):
            return
    raise AssertionError(f"not found; instead: {problems[:5]}")


def test_a_failed_seed_names_the_command_that_replays_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    keep_what_a_member_had(monkeypatch)
    seed = next(seed for seed in SEEDS_FOR_A_BUG if run_seed(seed).failed)
    assert main(["--seeds", f"{seed}:{seed + 1}", "--keep", str(tmp_path)]) == 1
    assert replay_command(seed) in capsys.readouterr().out
    assert (tmp_path / f"seed-{seed}.toml").read_text() == share_scenario(seed)
    assert "--far --race" in replay_command(3, far=True, race=True)
    assert "--moves" in replay_command(3, moves=True)
    assert "--leases" in replay_command(3, leases=True)
    assert "--calm" in replay_command(3, calm=True)
