"""Runs random scenarios with durable subscribers and groups by the hundred: each seed is one network with its faults.

Whatever happens, an event is done once in each durable subscription or group. It is shown again only marked, and only
if whoever had it before was not done. With `group_by`, and with any order, the order holds: `total` and `causal` also
across publishers, together with plain subscribers. A share to which nobody is attached ends when its lease is over,
neither earlier nor later; what waited then is lost. Once all faults are over, everybody is attached who wants to be,
every event since the acceptance is done, and nothing waits any more. A seed replays its run exactly.

With `--starts`, most of them begin with what was published before, which is done once, too.

With `--calm`, where nothing fails but members that crash, each repetition must have its reason, too.

A broker that loses its disk takes the durable subscriptions and groups that it keeps with it. They begin anew, and are
not judged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from random import Random
from typing import Any

from tidings.core.kernel import Port, TimerName
from tidings.core.overlay.brokers import AnyBroker
from tidings.core.overlay.guaranteed.broker import GuaranteedBroker
from tidings.core.overlay.guaranteed.share_history import LOW_EVENTS, ShareHistories
from tidings.core.overlay.guaranteed.share_moves import ShareMoves
from tidings.core.overlay.guaranteed.share_takeovers import ShareTakeovers
from tidings.drivers.virtual.crash_points import CrashPoints
from tidings.drivers.virtual.network import SimulatedNetwork
from tidings.lab.newcomers import schedule_newcomers
from tidings.lab.quiet import unsettled
from tidings.lab.seeds import CampaignResult, problems_of, run_command, seeds_parser
from tidings.lab.share_scenarios import BEGIN_S, ORDERED, share_scenario
from tidings.scenarios.checking import kills_publishers, lost_with_disks, only_clients_crash
from tidings.scenarios.file.expand import expand
from tidings.scenarios.file.faults import forgetful_nodes
from tidings.scenarios.file.load import parse_scenario
from tidings.scenarios.file.times import NS_PER_MS, NS_PER_S
from tidings.scenarios.simulate import Simulation
from tidings.scenarios.trace.checkers import (
    causal_order,
    durable,
    exactly_once,
    fifo,
    gap_free,
    group,
    seam,
    total_order,
)
from tidings.scenarios.trace.memory import MemoryWriter
from tidings.scenarios.trace.reader import Trace
from tidings.scenarios.virtual.share_subscriber import SimulatedShareSubscriber

MODULE = "tidings.lab.share_campaign"
CHECK_NS = NS_PER_S // 2
STUCK_NS = 600 * NS_PER_S
"""A healed network that is not at rest, and has shown nobody anything for this long, never will be."""
NEWCOMERS_EVERY = 4
"""In one of this many runs, brokers join the network."""
CRASH_POINTS_EVERY = 4
"""In one of this many runs, brokers crash before they commit or before they send."""
SHORT_TURN_NS = 2
"""So short that most timers have a turn of their own, as on a live broker's loop."""
LATE_NS = 30_000_000
MOVES_AFTER_S = (0.05, 0.3, 1.0, None)
"""With members anywhere: how long a holder is at another broker before its durable subscription follows."""
SHORT_LEASE_S = 60.0
AHEAD = (1, 10, LOW_EVENTS)
"""How many events of a history may wait in a share, and how near its end the share subscribes."""
QUIET_S = (0.5, 2.0, None)
KINDS = {
    "far": "members may be at any broker",
    "race": "with --far: members may come at once",
    "moves": "durable subscriptions alone, which move a lot",
    "leases": "shares are kept for moments, and end",
    "starts": "most begin with what was published before",
    "calm": "one of these in turn, and nothing fails but members that crash",
}
"""Of networks, with what they are."""
RUNS = (1, 1, 2, 3, 8)
"""How many events are published together, in every second run."""


def replay_command(seed: int, **kind: bool) -> str:
    options = "".join(f" --{name}" for name in KINDS if kind.get(name))
    return f"python -m {MODULE} --seeds {seed}:{seed + 1}{options} --keep share-{seed}"


def run_seed(seed: int, **kind: bool) -> CampaignResult:
    """Run the scenario of that seed and kind (see KINDS) without touching a disk; whatever goes wrong is among the
    problems."""
    writer = MemoryWriter()
    text = share_scenario(seed, **kind)
    simulation = Simulation(expand(parse_scenario(text)), writer)
    network = simulation.network
    calm = only_clients_crash(simulation.plan.scenario)
    if seed % CRASH_POINTS_EVERY == 2 and not kind.get("calm"):
        calm = False
        _add_crash_points(simulation, at_homes=seed // CRASH_POINTS_EVERY % 2 == 1)
    if seed % NEWCOMERS_EVERY == 1 and simulation.ordering is None:  # newcomers publish without numbers
        schedule_newcomers(simulation, Random(f"{seed}:newcomers"), lambda node: None)
    random_runs = Random(f"{seed}:runs")
    for publisher in simulation.publishers if seed % 2 else ():
        publisher.together = lambda: random_runs.choice(RUNS)
    forgetful = forgetful_nodes(simulation.plan.faults)
    for broker, archive in simulation.archives.items():
        if broker not in forgetful:  # what was lost with a broker's disk before it was written is nowhere
            archive.write_ns = lag(Random(f"{seed}:{archive.client.node.node}"))
    anywhere = any(chosen for name, chosen in kind.items() if name != "starts")
    with moving(Random(f"{seed}:moves"), far=anywhere), reading(Random(f"{seed}:reads")):
        problems = problems_of(lambda: _run(simulation, writer, calm=calm), AssertionError)
    steps = network.schedule.steps
    return CampaignResult(seed, problems, *writer.counts, steps, replay_command(seed, **kind))


VARIANTS: tuple[dict[str, bool], ...] = (
    *({}, {"far": True}, {"far": True, "race": True}, {"moves": True}),
    {"leases": True},
)


def run_in_turn(seed: int) -> CampaignResult:
    """Run one kind of network after the other."""
    return run_seed(seed // len(VARIANTS), **VARIANTS[seed % len(VARIANTS)])


@contextmanager
def moving(random: Random, *, far: bool) -> Iterator[None]:
    """Let durable subscriptions follow their holders sooner than usual."""
    before = (ShareMoves.settled_ns, ShareTakeovers.quiet_ns)
    settled_s, quiet_s = random.choice(MOVES_AFTER_S), random.choice(QUIET_S)
    if far and settled_s is not None:
        ShareMoves.settled_ns = int(settled_s * NS_PER_S)
    if far and quiet_s is not None:
        ShareTakeovers.quiet_ns = int(quiet_s * NS_PER_S)
    try:
        yield
    finally:
        ShareMoves.settled_ns, ShareTakeovers.quiet_ns = before


@contextmanager
def reading(random: Random) -> Iterator[None]:
    """Let shares that begin with history read little ahead, and subscribe late."""
    before = (ShareHistories.low_events, ShareHistories.near_events)
    ShareHistories.low_events, ShareHistories.near_events = random.choice(AHEAD), random.choice(AHEAD)
    try:
        yield
    finally:
        ShareHistories.low_events, ShareHistories.near_events = before


def lag(random: Random) -> Callable[[], int]:
    """Return how long an archive takes for each write: archives lag behind the live events."""
    longest_ms = random.choice((0, 5, 60))
    return lambda: random.randint(0, longest_ms) * NS_PER_MS


def _add_crash_points(simulation: Simulation, *, at_homes: bool) -> None:
    """Let brokers crash before they commit or send: any of them or, with short turns, those to which members attach.
    Then events of ordered shares are kept long before they are acknowledged to the network."""
    network, end_ns = simulation.network, simulation.duration_ns
    if at_homes:
        simulation.brokers.on_made = _acknowledge_late
        homes = dict.fromkeys(plan.at for plan in simulation.plan.subscribers if plan.share is not None)
        points = CrashPoints(network, homes, end_ns, longest_turn_ns=SHORT_TURN_NS)
    else:
        points = CrashPoints(network, simulation.plan.topology.brokers, end_ns)
    points.note = partial(simulation.writer.faults, "crash")


def _acknowledge_late(broker: AnyBroker) -> None:
    if isinstance(broker, GuaranteedBroker):
        broker.ordered_shares.port = _LatePort(broker.ordered_shares.port)


class _LatePort:
    """The port of an order's own client, which acknowledges late."""

    def __init__(self, port: Port) -> None:
        self._port = port
        self.node, self.random, self.emit = port.node, port.random, port.emit
        self.send, self.sender, self.cancel_timer = port.send, port.sender, port.cancel_timer

    @property
    def now(self) -> int:
        return self._port.now

    def set_timer(self, name: TimerName, at: int) -> None:
        self._port.set_timer(name, at + LATE_NS if name[-1] == "acknowledge" else at)


def _run(simulation: Simulation, writer: MemoryWriter, *, calm: bool) -> Iterator[str]:
    network = simulation.network
    network.start()
    trouble: str | None = "the run was too short"
    counts, progress_at = writer.counts, 0
    for until in range(CHECK_NS, simulation.end_ns + 1, CHECK_NS):
        network.run(until)
        if counts != writer.counts:
            counts, progress_at = writer.counts, until
        if until > simulation.duration_ns:
            trouble = unfinished(simulation, writer)
            if trouble is None or until - max(progress_at, simulation.duration_ns) >= STUCK_NS:
                break
    if trouble is not None:
        yield trouble
    yield from verdicts(simulation, writer.trace(), calm=calm)


def unfinished(simulation: Simulation, writer: MemoryWriter) -> str | None:
    """Return what a healed network has not finished; None once it is at rest."""
    trouble = unsettled(simulation.network)
    if trouble is not None:
        return trouble
    for subscriber in simulation.subscribers:
        if subscriber.waiting:
            return subscriber.waiting
    for publisher in simulation.publishers:
        if publisher.waiting:
            return publisher.waiting
    return (
        unattached(simulation)
        or unended(simulation.network)
        or unequal_shares(simulation.network)
        or unanswered(writer)
    )


def unattached(simulation: Simulation) -> str | None:
    """Return who wants to be attached and is not, as brokers know it."""
    attached = {name for status in share_status(simulation.network) for name in status["attached"]}
    for subscriber in simulation.subscribers:
        if isinstance(subscriber, SimulatedShareSubscriber) and subscriber.actor.current is not None:
            name = subscriber.client.node.node
            if not any(name == each or each.startswith(f"{name} at broker ") for each in attached):
                return f"{name} is not attached"
    return None


def unended(network: SimulatedNetwork) -> str | None:
    """Return a share that is kept for moments, with nobody attached, or a former home of one that is over."""
    names = set()
    for status in share_status(network):
        names.add(status["name"])
        if not status["attached"] and status["lease_left_s"] <= SHORT_LEASE_S:
            return f"{status['name']} is still kept at {status['broker']}"
    for node in network.nodes.values():
        for left in node.protocol.shares.moved_away() if isinstance(node.protocol, GuaranteedBroker) else ():
            if left["name"] not in names:
                return f"{node.node} is still a former home of {left['name']}"
    return None


def unequal_shares(network: SimulatedNetwork) -> str | None:
    """Return a share that two brokers have, or that keeps events although somebody is attached."""
    homes: dict[str, str] = {}
    for status in share_status(network):
        name, broker = status["name"], status["broker"]
        if name in homes:
            return f"{name} is kept at {homes[name]} and at {broker}"
        homes[name] = broker
        if status["attached"] and (status["waiting"] or status["unacknowledged"]):
            return f"{broker} keeps {status['waiting']} and {status['unacknowledged']} events of {name}"
    return None


def unanswered(writer: MemoryWriter) -> str | None:
    """Return an attachment that was neither accepted nor ended, or an event that was not confirmed."""
    trace = writer.trace()
    for row in trace.subscribed.to_pylist():
        if all(row[key] is None for key in ("accepted_ns", "cancelled_ns", "detached_ns")):
            return f"subscription {row['subscription']} of {row['subscriber']} was never accepted"
    return None


def share_status(network: SimulatedNetwork) -> Iterator[dict[str, Any]]:
    for node in network.nodes.values():
        if isinstance(node.protocol, GuaranteedBroker):
            yield from node.protocol.shares.status()


def verdicts(simulation: Simulation, trace: Trace, *, calm: bool) -> Iterator[str]:
    """Yield the verdicts of checkers that find violations. `calm`: nothing fails but clients that crash."""
    confirmed_only = kills_publishers(simulation.plan.scenario)
    trace = trace.without(lost_with_disks(simulation.plan.scenario))
    found = [
        exactly_once(trace),
        fifo(trace, orders=frozenset({"none", "fifo", "causal"})),
        total_order(trace, orders=frozenset(ORDERED)),
        causal_order(trace, orders=frozenset({"causal"})),
        gap_free(trace, confirmed_only=confirmed_only),
        durable(trace, confirmed_only=confirmed_only, calm=calm),
        group(trace, confirmed_only=confirmed_only, calm=calm),
        seam(trace, confirmed_only=confirmed_only, whole=have_everything(simulation)),
    ]
    yield from (str(verdict) for verdict in found if not verdict.holds)


def have_everything(simulation: Simulation) -> bool:
    """Return whether the archives began before anything was published; a slow network may delay them."""
    began = [archive.began_ns for archive in simulation.archives.values()]
    return all(began_ns is not None and began_ns < BEGIN_S * NS_PER_S for began_ns in began)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = seeds_parser(MODULE, __doc__)
    for name, text in KINDS.items():
        parser.add_argument(f"--{name}", action="store_true", help=text)
    options = parser.parse_args(arguments)
    chosen = {name: getattr(options, name) for name in KINDS}
    return run_command(options, partial(run_seed, **chosen), partial(share_scenario, **chosen))


if __name__ == "__main__":
    raise SystemExit(main())
