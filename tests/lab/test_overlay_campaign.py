"""Thousands of random networks with faults keep the guarantees; and the campaign finds what is broken on purpose."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from breadth import few
from tidings.core.client.reliable_session import ReliableSession
from tidings.core.events.subscription import Interest
from tidings.core.messages import Message
from tidings.core.overlay.guaranteed.delivery import Delivery
from tidings.core.overlay.guaranteed.hops import _Outgoing
from tidings.core.overlay.guaranteed.messages import Forward, Record
from tidings.core.overlay.guaranteed.queued import Flow, Hop, LocalClient, Queued
from tidings.core.overlay.guaranteed.regions import Region
from tidings.core.overlay.guaranteed.sessions import Sessions
from tidings.core.overlay.guaranteed.subscription_log import LogEntry, SubscriptionLog
from tidings.core.overlay.guaranteed.subscriptions import PublisherStamps, Subscriptions
from tidings.lab.campaign import main, replay_command, run_seed
from tidings.lab.invariants import OverlayMonitor
from tidings.lab.random_scenarios import random_scenario
from tidings.lab.seeds import CampaignResult, blocks, parse_seeds
from tidings.scenarios.file.expand import expand
from tidings.scenarios.file.load import parse_scenario
from tidings.scenarios.file.schema import CrashFault
from tidings.scenarios.simulate import Simulation, run_scenario
from tidings.scenarios.trace.memory import MemoryWriter
from tidings.scenarios.trace.reader import Trace
from tidings.scenarios.trace.tables import TABLES

SEEDS = range(2_000)
SEEDS_PER_TEST = 50
SEEDS_FOR_A_BUG = range(50)
"""The first of those above: nothing is found in them unless it was planted."""


@pytest.mark.parametrize(
    "seeds",
    few(blocks(SEEDS, SEEDS_PER_TEST), 1),
    ids=lambda seeds: f"{seeds[0]}-{seeds[-1]}",
)
def test_random_networks_keep_the_guarantees(seeds: range) -> None:
    results = [run_seed(seed, monitor=True) for seed in seeds]
    failed = [str(result) for result in results if result.failed]
    assert not failed, "\n".join(failed)
    assert sum(result.delivered for result in results) > 10 * len(seeds)


# --- The scenarios are what they are meant to be


def test_scenarios_have_everything_that_can_go_wrong() -> None:
    plans = [parse_scenario(random_scenario(seed)) for seed in range(300)]
    faults = [fault for plan in plans for fault in plan.faults]
    assert {type(fault).__name__ for fault in faults} == {
        "CrashFault", "LinkFault", "PartitionFault", "PauseFault", "SlowFault", "LossFault",
    }  # fmt: skip
    assert {fault.state for fault in faults if isinstance(fault, CrashFault)} == {"kept", "lost"}
    assert {plan.overlay.delta for plan in plans} == {1, 2, 3}
    assert {plan.overlay.window for plan in plans} >= {1, 64, 1_000_000}
    assert {type(plan.network.delay_ms).__name__ for plan in plans} == {
        "ConstantDelay", "UniformDelay", "NormalDelay", "LognormalDelay", "EmpiricalDelay",
    }  # fmt: skip
    assert any(plan.overlay.edges for plan in plans)
    assert any(len(plan.faults) == 3 * plan.overlay.delta + 3 for plan in plans)
    sizes = [len(expand(plan).topology.brokers) for plan in plans]
    assert min(sizes) == 10
    assert max(sizes) > 50
    subscribers = [subscriber for plan in plans for subscriber in plan.subscribers]
    assert any(subscriber.changes for subscriber in subscribers)
    assert any(subscriber.unsubscribe_at_s for subscriber in subscribers)
    assert any(subscriber.subscribe_at_s for subscriber in subscribers)
    assert any(subscriber.filter for subscriber in subscribers)


def test_a_seed_replays_its_run() -> None:
    assert random_scenario(5) == random_scenario(5)
    assert run_seed(5) == run_seed(5)


@pytest.mark.parametrize("seed", [3, 11])
def test_the_monitor_and_the_writer_in_memory_change_nothing(seed: int, tmp_path: Path) -> None:
    scenario = parse_scenario(random_scenario(seed))
    run_scenario(scenario, tmp_path)
    writer = MemoryWriter()
    simulation = Simulation(expand(scenario), writer)
    monitor = OverlayMonitor(simulation.network)
    simulation.run(lambda share: monitor.check())
    monitor.check_quiet()
    written, kept = Trace.read(tmp_path), writer.trace()
    for name in TABLES:
        if name != "traffic":  # written when a run is closed
            rows = sorted(map(str, getattr(written, name).to_pylist()))
            assert sorted(map(str, getattr(kept, name).to_pylist())) == rows


# --- The command


def test_the_command_says_how_to_replay_what_failed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(Delivery, "ready", lambda self, peer: None)
    seed = next(result.seed for result in map(run_seed, SEEDS_FOR_A_BUG) if result.failed)
    assert main(["--seeds", f"{seed}:{seed + 1}", "--monitor", "--keep", str(tmp_path)]) == 1
    assert replay_command(seed) in capsys.readouterr().out
    assert (tmp_path / f"seed-{seed}.toml").read_text() == random_scenario(seed)


def test_the_command_is_content_when_nothing_fails(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seeds", "0:3", "--jobs", "2"]) == 0
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "3/3 seeds, 0 failed" in printed.err


@pytest.mark.parametrize("text", ["", "5", "5:5", "6:5", "a:b", "-1:3"])
def test_seeds_that_are_no_range_are_refused(text: str) -> None:
    with pytest.raises(SystemExit) as refusal:
        main(["--seeds", text])
    assert refusal.value.code == 2


def test_seeds_are_split_without_gaps() -> None:
    split = blocks(parse_seeds("3:50"), 20)
    assert [seed for block in split for seed in block] == list(range(3, 50))
    assert [len(block) for block in split] == [20, 20, 7]


# --- What is broken on purpose is found

Plant = Callable[[pytest.MonkeyPatch], None]


def no_flush_at_ready(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Delivery, "ready", lambda self, peer: None)


def flush_newest_first(patch: pytest.MonkeyPatch) -> None:
    ready = Delivery.ready

    def backwards(self: Delivery, peer: str) -> None:
        with pytest.MonkeyPatch.context() as inner:
            serials = itertools.count(10**9, -1)
            inner.setattr(
                _Outgoing, "hand_over", lambda outgoing, queued: _hand_over(outgoing, queued, next(serials))
            )
            ready(self, peer)

    patch.setattr(Delivery, "ready", backwards)


def _hand_over(outgoing: _Outgoing, queued: Queued, turn: int) -> None:
    outgoing.handed_over[turn] = queued
    heapq.heappush(outgoing.turns, turn)


def confirm_on_arrival(patch: pytest.MonkeyPatch) -> None:
    place = Delivery._place

    def confirmed(self: Delivery, queued: Queued) -> None:
        place(self, queued)
        if queued.pending:
            self._confirmations.finished(queued)

    patch.setattr(Delivery, "_place", confirmed)


def ignore_what_was_seen(patch: pytest.MonkeyPatch) -> None:
    def never(self: Delivery, flow: Flow, first: int, last: int, sender: Hop, number: int) -> int:
        return first

    patch.setattr(Delivery, "_first_unseen", never)


def exclude_nothing_newer(patch: pytest.MonkeyPatch) -> None:
    message = Delivery._message

    def as_it_came(self: Delivery, queued: Queued) -> Message:
        return message(self, queued) if queued.message is None else queued.message

    patch.setattr(Delivery, "_message", as_it_came)


def forget_the_exclusions_of_others(patch: pytest.MonkeyPatch) -> None:
    on_forward = Delivery.on_forward

    def forgetful(self: Delivery, sender: str, message: Forward) -> None:
        stripped = (message.origin, message.label, message.generation, message.stamp, ())
        on_forward(self, sender, Forward(*stripped, message.stretch))

    patch.setattr(Delivery, "on_forward", forgetful)


def ready_without_sync(patch: pytest.MonkeyPatch) -> None:
    activated = Subscriptions.activated

    def hasty(self: Subscriptions, peer: str) -> None:
        activated(self, peer)
        self._exchange(peer).ready = True
        self._tell_ready(peer)

    patch.setattr(Subscriptions, "activated", hasty)


def synchronise_nothing(patch: pytest.MonkeyPatch) -> None:
    send = Subscriptions._send_records

    def withheld(self: Subscriptions, peer: str, entries: Any) -> None:
        if not self.ready(peer):
            return
        send(self, peer, entries)

    patch.setattr(Subscriptions, "_send_records", withheld)


def forget_pending_at_deactivation(patch: pytest.MonkeyPatch) -> None:
    deactivated = Delivery.deactivated

    def careless(self: Delivery, hop: Hop) -> None:
        if not isinstance(hop, LocalClient):
            self._confirmed(hop, ((1, 2**62),))
        deactivated(self, hop)

    patch.setattr(Delivery, "deactivated", careless)


def keep_only_what_can_be_reached(patch: pytest.MonkeyPatch) -> None:
    """Figure 8, line 16 of the paper: no session, not in Out."""
    place = Delivery._place

    def discarding(self: Delivery, queued: Queued) -> None:
        for name in list(queued.pending):
            if not isinstance(name, LocalClient) and self._sessions.frontier(self._log.labels[name]) is None:
                del queued.pending[name]
        place(self, queued)

    patch.setattr(Delivery, "_place", discarding)


def ignore_tombstones(patch: pytest.MonkeyPatch) -> None:
    take = SubscriptionLog.take

    def lively(self: SubscriptionLog, records: Any) -> list[LogEntry]:
        label: object = self._label
        return take(self, [record for record in records if not record.dead or record.label == label])

    patch.setattr(SubscriptionLog, "take", lively)


def ignore_the_stamp(patch: pytest.MonkeyPatch) -> None:
    publish = Delivery.publish

    def unstamped(self: Delivery, client: str, generation: int, stamp: int, publication: Any) -> None:
        publish(self, client, generation, self._log.position, publication)

    patch.setattr(Delivery, "publish", unstamped)


def claim_before_publishers_stamp(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(PublisherStamps, "lowest", lambda self, position: position)


def claim_for_everybody(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Subscriptions, "_own_region", lambda self: Region.everything())


def keep_the_log_in_memory_only(patch: pytest.MonkeyPatch) -> None:
    add_own = Subscriptions.add_own
    take = SubscriptionLog.take

    def volatile(self: SubscriptionLog, records: list[Record]) -> list[LogEntry]:
        news = take(self, records)
        self._store.write([("log", entry.id.encode(), None) for entry in news])
        return news

    def durable(self: Subscriptions, record_id: str, interest: Interest, *, silent: bool = False) -> LogEntry:
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(SubscriptionLog, "take", take)
            return add_own(self, record_id, interest)

    patch.setattr(SubscriptionLog, "take", volatile)
    patch.setattr(Subscriptions, "add_own", durable)


def forget_what_was_shown(patch: pytest.MonkeyPatch) -> None:
    shown_before = ReliableSession._shown_before

    def nothing(held: Any, source: str, incarnation: int, last: int) -> int:
        shown_before(held, source, incarnation, last)
        return 0

    patch.setattr(ReliableSession, "_shown_before", staticmethod(nothing))


def send_to_the_farthest(patch: pytest.MonkeyPatch) -> None:
    """On a session that is not active: it bypasses a broker which is there."""

    def farthest(self: Sessions, target: Any) -> str | None:
        peers = [peer for peer in self.neighbourhood.towards(target) if self.established(peer)]
        return peers[-1] if peers else None

    patch.setattr(Sessions, "frontier", farthest)


PLANTED: list[Plant] = [
    no_flush_at_ready,
    flush_newest_first,
    confirm_on_arrival,
    ignore_what_was_seen,
    exclude_nothing_newer,
    forget_the_exclusions_of_others,
    ready_without_sync,
    synchronise_nothing,
    forget_pending_at_deactivation,
    keep_only_what_can_be_reached,
    ignore_tombstones,
    ignore_the_stamp,
    claim_before_publishers_stamp,
    claim_for_everybody,
    keep_the_log_in_memory_only,
    forget_what_was_shown,
    send_to_the_farthest,
]


@pytest.mark.parametrize("plant", PLANTED, ids=lambda plant: plant.__name__)
def test_a_planted_bug_is_found(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    found: CampaignResult | None = None
    for seed in SEEDS_FOR_A_BUG:
        result = run_seed(seed, monitor=True)
        if result.failed:
            found = result
            break
    assert found is not None, f"not found in {len(SEEDS_FOR_A_BUG)} seeds"
    assert "Traceback" not in found.problems[0]
    assert replay_command(found.seed) in str(found)
