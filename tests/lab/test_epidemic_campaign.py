"""Hundreds of random networks that lose: what can be recovered is, once; and what is broken on purpose is found."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest
from msgspec.structs import replace

from breadth import few
from tidings.core.overlay.epidemic import answers, gossip, losses, tree
from tidings.core.overlay.epidemic.answers import Answers
from tidings.core.overlay.epidemic.broker import EpidemicBroker
from tidings.core.overlay.epidemic.cache import Cached, EventCache
from tidings.core.overlay.epidemic.gossip import Gossip, Identity
from tidings.core.overlay.epidemic.high_water import HighWaters
from tidings.core.overlay.epidemic.losses import LossDetector, StreamKey
from tidings.core.overlay.epidemic.messages import Carried, Fragment, HighWater, Lost, Offer, Range
from tidings.core.overlay.epidemic.tree import EpidemicTree
from tidings.core.overlay.matching import Matcher, Selection
from tidings.core.overlay.routing import Route, RoutingTable
from tidings.lab import epidemic_campaign
from tidings.lab.epidemic_campaign import main, replay_command, run_seed
from tidings.lab.epidemic_monitor import EpidemicMonitor
from tidings.lab.epidemic_scenarios import epidemic_scenario
from tidings.lab.seeds import CampaignResult, blocks
from tidings.scenarios import simulate as run
from tidings.scenarios.file.expand import expand
from tidings.scenarios.file.load import parse_scenario
from tidings.scenarios.file.schema import CrashFault, Recovery
from tidings.scenarios.simulate import Simulation
from tidings.scenarios.trace.memory import MemoryWriter

SEEDS = range(182)
SEEDS_PER_TEST = 26
SEEDS_FOR_A_BUG = range(200_000, 200_020)
"""Chosen among a few blocks: two of the planted bugs, first_seen and same_epoch, show in few of them."""


@pytest.mark.parametrize(
    "seeds",
    few([SEEDS_FOR_A_BUG, *blocks(SEEDS, SEEDS_PER_TEST)], 2),  # nothing is found unless it was planted
    ids=lambda seeds: f"{seeds[0]}-{seeds[-1]}",
)
def test_random_networks_recover_what_they_can(seeds: range) -> None:
    results = [run_seed(seed) for seed in seeds]
    failed = [str(result) for result in results if result.failed]
    assert not failed, "\n".join(failed)
    assert sum(result.delivered for result in results) > 10 * len(seeds)


# --- The scenarios are what they are meant to be


def test_scenarios_have_everything_that_can_go_wrong() -> None:
    plans = [parse_scenario(epidemic_scenario(seed)) for seed in range(300)]
    faults = [fault for plan in plans for fault in plan.faults]
    assert {type(fault).__name__ for fault in faults} == {
        "CrashFault", "LinkFault", "PartitionFault", "PauseFault", "SlowFault", "LossFault",
    }  # fmt: skip
    assert {fault.state for fault in faults if isinstance(fault, CrashFault)} == {"kept", "lost"}
    assert {type(plan.network.loss).__name__ for plan in plans} == {"NoLoss", "BernoulliLoss", "GilbertLoss"}
    assert any(plan.network.duplicate for plan in plans)
    assert any(plan.network.reorder for plan in plans)
    assert {len(expand(plan).topology.brokers) for plan in plans} >= {2, 20}
    subscribers = [subscriber for plan in plans for subscriber in plan.subscribers]
    assert any(subscriber.changes for subscriber in subscribers)
    assert any(subscriber.unsubscribe_at_s for subscriber in subscribers)
    assert any(subscriber.filter for subscriber in subscribers)
    publishers = [(plan.recovery, publisher) for plan in plans for publisher in plan.publishers]
    assert any(publisher.size_bytes > 16 * recovery.block_bytes for recovery, publisher in publishers)


def test_every_way_of_recovery_is_drawn() -> None:
    drawn = [parse_scenario(epidemic_scenario(seed)).recovery for seed in range(400)]
    ways = get_type_hints(Recovery)
    for name in ("algorithm", "selection", "weights", "pull", "push", "routing", "cache_policy"):
        assert {getattr(recovery, name) for recovery in drawn} == set(get_args(ways[name]))
    assert {recovery.redundancy for recovery in drawn} == {0, 1, 2, 3, 4}
    assert {recovery.fanout for recovery in drawn} == {1, 2, 3, 4}
    assert min(recovery.buffer_events for recovery in drawn) == 1


def test_a_seed_replays_its_run() -> None:
    assert epidemic_scenario(5) == epidemic_scenario(5)
    assert run_seed(5) == run_seed(5)


@pytest.mark.parametrize("seed", [3, 11, 20])
def test_the_monitor_changes_nothing(seed: int) -> None:
    rows = []
    for watched in (True, False):
        writer = MemoryWriter()
        simulation = Simulation(expand(parse_scenario(epidemic_scenario(seed))), writer)
        if watched:
            EpidemicMonitor(simulation)
        simulation.run()
        rows.append((writer.trace().delivered.to_pylist(), simulation.network.schedule.steps))
    assert rows[0] == rows[1]


# --- The command


def test_the_command_says_how_to_replay_what_failed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    answer_nobody(monkeypatch)
    seed = next(result.seed for result in map(run_seed, SEEDS_FOR_A_BUG) if result.failed)
    assert main(["--seeds", f"{seed}:{seed + 1}", "--keep", str(tmp_path)]) == 1
    assert replay_command(seed) in capsys.readouterr().out
    assert (tmp_path / f"seed-{seed}.toml").read_text() == epidemic_scenario(seed)


def test_the_command_is_content_when_nothing_fails(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seeds", "0:3", "--jobs", "2"]) == 0
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "3/3 seeds, 0 failed" in printed.err


# --- What is broken on purpose is found

Plant = Callable[[pytest.MonkeyPatch], None]


def send_recovered_down_the_tree(patch: pytest.MonkeyPatch) -> None:
    receive = EpidemicTree._receive

    def generous(self: EpidemicTree, sender: str, message: Carried, route: Route) -> None:
        if message.by and not self._recovery_state.has(*_first(message)):
            self._forward(sender, replace(message, by=""), route)
        receive(self, sender, message, route)

    patch.setattr(EpidemicTree, "_receive", generous)


def forward_only_what_is_new_here(patch: pytest.MonkeyPatch) -> None:
    """Received and forwarded taken for one question: what gossip brought first stops here."""
    on_carried = EpidemicTree.on_carried

    def stingy(self: EpidemicTree, sender: str, message: Carried) -> None:
        if not message.by and self._recovery_state.has(*_first(message)):
            self._forwarded.first_time(*_first(message))
        on_carried(self, sender, message)

    patch.setattr(EpidemicTree, "on_carried", stingy)


def forward_back(patch: pytest.MonkeyPatch) -> None:
    forward = EpidemicTree._forward

    def echo(self: EpidemicTree, sender: str, message: Carried | Fragment, route: Route) -> None:
        forward(self, "", message, route)

    patch.setattr(EpidemicTree, "_forward", echo)


def take_everything_for_new(patch: pytest.MonkeyPatch) -> None:
    def naive(self: EpidemicTree, sender: str, message: Carried, route: Route) -> None:
        self._gain(message, route, sender, message.by)

    patch.setattr(EpidemicTree, "_receive", naive)


def keep_recovered_from_clients(patch: pytest.MonkeyPatch) -> None:
    gain = EpidemicTree._gain

    def silent(self: EpidemicTree, carried: Carried, route: Route, sender: str, by: str) -> None:
        gain(self, carried, route._replace(notices=()) if by else route, sender, by)

    patch.setattr(EpidemicTree, "_gain", silent)


def take_the_first_seen_for_the_first(patch: pytest.MonkeyPatch) -> None:
    """The paper's baseline (recovery, epidemic 7)."""
    patch.setattr(losses, "baseline_before", lambda number, blind: number - 1)


def begin_one_too_late(patch: pytest.MonkeyPatch) -> None:
    watch = LossDetector.watch

    def late(self: LossDetector, pattern: bytes, baselines: Iterable[tuple[str, int, int]]) -> None:
        watch(self, pattern, [(origin, epoch, number + 1) for origin, epoch, number in baselines])

    patch.setattr(LossDetector, "watch", late)


def miss_nothing_at_the_tail(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(HighWaters, "raised", lambda self, origin, numbers, via: None)


def tell_one_less_than_was_counted(patch: pytest.MonkeyPatch) -> None:
    on_high_water = HighWaters.on_high_water

    def modest(self: HighWaters, sender: str, message: HighWater) -> None:
        counts = tuple((*count, number - 1) for *count, number in message.counts if number)
        on_high_water(self, sender, HighWater(counts))  # type: ignore[arg-type]

    patch.setattr(HighWaters, "on_high_water", modest)


def never_strike_off(patch: pytest.MonkeyPatch) -> None:
    """What was lost stays on the list when it comes."""

    patch.setattr(LossDetector, "_strike_off", lambda self, key, number, now: None)


def give_up_at_once(patch: pytest.MonkeyPatch) -> None:
    attempted = LossDetector.attempted

    def faint(self: LossDetector, key: StreamKey, ranges: Sequence[Range], now: int) -> None:
        attempted(self, key, ranges, now)
        for first, last in ranges:
            for number in range(first, last + 1):
                self._lost.pop((key, number), None)

    patch.setattr(LossDetector, "attempted", faint)


def answer_nobody(patch: pytest.MonkeyPatch) -> None:
    def deaf(self: Answers, to: str, lost: Sequence[Lost], by: str) -> tuple[int, tuple[Lost, ...]]:
        return 0, tuple(lost)

    patch.setattr(Answers, "answer_lost", deaf)


def answer_all_that_is_held(patch: pytest.MonkeyPatch) -> None:
    """More than was asked for."""
    find_range = EventCache.find_range

    def wide(
        self: EventCache, origin: str, pattern: bytes, epoch: int, first: int, last: int
    ) -> Iterator[Cached]:
        return find_range(self, origin, pattern, epoch, max(first - 3, 0), last)

    patch.setattr(EventCache, "find_range", wide)


def overlook_the_last_of_a_range(patch: pytest.MonkeyPatch) -> None:
    find_range = EventCache.find_range

    def short(
        self: EventCache, origin: str, pattern: bytes, epoch: int, first: int, last: int
    ) -> Iterator[Cached]:
        return find_range(self, origin, pattern, epoch, first, last - 1)

    patch.setattr(EventCache, "find_range", short)


def push_to_one_more(patch: pytest.MonkeyPatch) -> None:
    draw = Gossip._draw

    def lavish(self: Gossip, *arguments: Any) -> Sequence[str]:
        return list(dict.fromkeys([*draw(self, *arguments), *draw(self, *arguments)]))

    patch.setattr(Gossip, "_draw", lavish)


def keep_all(patch: pytest.MonkeyPatch) -> None:
    """A cache without bounds."""
    patch.setattr(EventCache, "_evict", lambda self, entry: None)
    add = EventCache.add

    def hoard(self: EventCache, entry: Cached) -> None:
        self._max_events = 1 << 40
        add(self, entry)

    patch.setattr(EventCache, "add", hoard)


def tell_every_client(patch: pytest.MonkeyPatch) -> None:
    """Of all that comes, whether they asked for it or not."""
    compute = RoutingTable._compute

    def loud(self: RoutingTable, selection: Selection) -> Route:
        return compute(self, selection)._replace(notices=compute(self, Selection(tuple(self))).notices)

    patch.setattr(RoutingTable, "_compute", loud)


def follow_the_newest_epoch_alone(patch: pytest.MonkeyPatch) -> None:
    """Nobody hears of the last events of an origin that has crashed since (recovery, epidemic 8)."""
    raise_count = HighWaters._raise

    def forgetful(self: HighWaters, key: StreamKey, number: int, via: str, next_at: int) -> None:
        for other in [other for other in self._fresh if other[:2] == key[:2] and other[2] < key[2]]:
            del self._fresh[other]
        raise_count(self, key, number, via, next_at)

    patch.setattr(HighWaters, "_raise", forgetful)


PLANTED: list[Plant] = [
    send_recovered_down_the_tree,
    forward_only_what_is_new_here,
    forward_back,
    take_everything_for_new,
    keep_recovered_from_clients,
    take_the_first_seen_for_the_first,
    begin_one_too_late,
    miss_nothing_at_the_tail,
    tell_one_less_than_was_counted,
    never_strike_off,
    give_up_at_once,
    answer_nobody,
    tell_every_client,
    answer_all_that_is_held,
    overlook_the_last_of_a_range,
    push_to_one_more,
    keep_all,
]


def _first(message: Carried) -> Identity:
    stretch = message.stretch
    return stretch.source, stretch.incarnation, stretch.first


@pytest.mark.parametrize("plant", PLANTED, ids=lambda plant: plant.__name__)
def test_a_planted_bug_is_found(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    found: CampaignResult | None = None
    for seed in SEEDS_FOR_A_BUG:
        result = run_seed(seed)
        if result.failed:
            found = result
            break
    assert found is not None, f"not found in {len(SEEDS_FOR_A_BUG)} seeds"
    assert "Traceback" not in found.problems[0]
    assert replay_command(found.seed) in str(found)


def test_the_seed_that_found_a_bug_passes_but_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    assert run_seed(306).problems == ()
    follow_the_newest_epoch_alone(monkeypatch)
    assert run_seed(306).problems == ("event p0:80 never reached s8#0 at b4: b3 has it",)


def test_a_burst_that_swallows_all_digests_of_the_usual_time_is_waited_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As it did once from b3 to b0 in this seed, 23 of them: one every third second."""
    on_offer, usual_ns = Gossip.on_offer, 82_000_000_000

    def swallowed(self: Gossip, sender: str, message: Offer) -> None:
        if self.port.now > usual_ns:
            on_offer(self, sender, message)

    monkeypatch.setattr(Gossip, "on_offer", swallowed)
    assert run_seed(375).problems == ()
    monkeypatch.setattr(epidemic_campaign, "patience", lambda simulation: 1)
    assert run_seed(375).problems


# --- Memory

LONG_RUN = """
seed = 5
duration_s = {duration_s}
settle_s = 0.0
[network]
loss = {{ kind = "bernoulli", rate = 0.3 }}
duplicate = 0.05
[overlay]
mode = "epidemic"
edges = [["b0", "b1"], ["b1", "b2"], ["b1", "b3"], ["b0", "b4"]]
[recovery]
algorithm = "{algorithm}"
push = "{push}"
pull = "{pull}"
interval_ms = 200
block_bytes = 200
buffer_events = 40
redundancy = 1
[[publisher]]
name = "p0"
at = "b0"
topics = ["/a", "/b"]
rate_hz = 4.0
size_bytes = 700
[[publisher]]
name = "p1"
at = "b3"
topics = ["/a"]
rate_hz = 4.0
size_bytes = 20
[[subscriber]]
name = "s0"
at = "b2"
topics = ["/a"]
[[subscriber]]
name = "s1"
at = "b3"
topics = ["/a", "/b"]
[[subscriber]]
name = "s2"
at = "b4"
topics = ["/b"]
"""
REMEMBERED = 64
MAX_AGE_NS = 7_500_000_000
"""What is bounded by age alone, as blocks that only pass, is so well before the shorter run ends."""
SHORT_S, LONG_S = 30.0, 120.0


@pytest.mark.parametrize(
    ("algorithm", "push", "pull"),
    [
        ("auto", "event", "solicit"),
        ("combined", "event", "solicit"),
        ("push", "digest", "solicit"),
        ("push", "event", "solicit"),
        ("subscriber-pull", "event", "advertise"),
    ],
)
def test_brokers_do_not_grow_with_the_length_of_a_run(
    algorithm: str, push: str, pull: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four times as long, 30 % lost all the time: the same number of things is held, in every part."""
    for module, name in ((answers, "MAX_REMEMBERED"), (gossip, "MAX_PUSHED"), (tree, "MAX_PASSING")):
        monkeypatch.setattr(module, name, REMEMBERED)
    settings = run.recovery_settings
    monkeypatch.setattr(
        run, "recovery_settings", lambda table: replace(settings(table), max_age_ns=MAX_AGE_NS)
    )
    held = []
    for duration_s in (SHORT_S, LONG_S):
        text = LONG_RUN.format(duration_s=duration_s, algorithm=algorithm, push=push, pull=pull)
        simulation = Simulation(expand(parse_scenario(text)), MemoryWriter())
        simulation.run()
        brokers = simulation.epidemic_brokers
        held.append({broker.name: things_held(broker) for broker in brokers})
    for name, short in held[0].items():
        assert held[1][name] <= 1.5 * short + 500, f"{name}: {short} things, then {held[1][name]}"


def test_growth_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    keep_all(monkeypatch)
    with pytest.raises(AssertionError, match="things, then"):
        test_brokers_do_not_grow_with_the_length_of_a_run("auto", "event", "solicit", monkeypatch)


def things_held(broker: EpidemicBroker) -> int:
    """How many items are in the containers of a broker and of all that it is made of."""
    seen: set[int] = set()
    total = 0
    open_ends: list[Any] = [vars(part) for part in broker.parts] + [vars(broker)]
    while open_ends:
        thing = open_ends.pop()
        if id(thing) in seen or not _is_held(thing):
            continue
        seen.add(id(thing))
        if isinstance(thing, dict):
            total += len(thing)
            open_ends += [*thing.keys(), *thing.values()]
        elif isinstance(thing, list | tuple | set | frozenset | deque):
            total += len(thing)
            open_ends += thing
        else:
            open_ends += _fields(thing)
    return total


def _is_held(thing: Any) -> bool:
    """Not what a broker only uses: its port, the matcher that all share, functions."""
    if isinstance(thing, dict | list | tuple | set | frozenset | deque):
        return True
    kind = type(thing)
    return kind.__module__.startswith("tidings.core.") and kind is not Matcher


def _fields(thing: Any) -> list[Any]:
    names = [name for kind in type(thing).__mro__ for name in getattr(kind, "__slots__", ())]
    slots = [getattr(thing, name) for name in names if hasattr(thing, name)]
    return slots + list(getattr(thing, "__dict__", {}).values())
