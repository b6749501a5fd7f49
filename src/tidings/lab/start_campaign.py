"""Runs random scenarios with subscribers that start with history, by the hundred: each seed is one network with faults.

Brokers crash, links fail and clients die around the moment at which a subscriber passes from history to live events.
Whatever happens, it sees every event since the archive began, without a gap or a repetition at the seam, in its order.
A seed replays its run exactly.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from random import Random

from tidings.drivers.virtual.crash_points import CrashPoints
from tidings.lab.quiet import unsettled
from tidings.lab.random_scenarios import (
    FILTERS,
    SETTLE_S,
    TOPICS,
    Dice,
    Table,
    random_delay,
    random_fault,
    random_publisher,
    scenario_text,
)
from tidings.lab.seeds import CampaignResult, problems_of, run_command, seeds_parser
from tidings.lab.share_campaign import have_everything, lag
from tidings.lab.share_scenarios import BEGIN_S
from tidings.scenarios.file.expand import expand
from tidings.scenarios.file.faults import forgetful_nodes
from tidings.scenarios.file.load import parse_scenario
from tidings.scenarios.file.times import NS_PER_S
from tidings.scenarios.simulate import Simulation
from tidings.scenarios.trace.checkers import causal_order, exactly_once, fifo, gap_free, seam, total_order
from tidings.scenarios.trace.memory import MemoryWriter
from tidings.scenarios.trace.reader import Trace
from tidings.scenarios.trace.verdict import Verdict

MODULE = "tidings.lab.start_campaign"
CHECK_NS = NS_PER_S // 2
CRASH_POINTS_EVERY = 4
"""In one of this many runs, brokers crash before they commit or before they send."""
RUNS = (1, 1, 2, 3, 8)
"""How many events are published together, in every second run."""
ORDERS = (("none", "fifo"), ("none", "fifo"), ("total",), ("causal",))
"""What the subscribers of one archive may ask for."""


class StartDice(Dice):
    def __init__(self, seed: int) -> None:
        super().__init__(Random(f"start:{seed}"))
        self.brokers = self.random.randint(2, 10)
        self.duration_s = self.random.choice((4.0, 6.0, 10.0))
        self.orders = self.random.choice(ORDERS)
        self.homes = [self.broker() for _ in range(self.random.choice((1, 1, 2)))]
        """The brokers with an archive."""
        self.edges = self.random_edges()


def start_scenario(seed: int) -> str:
    """Return the text of a scenario file."""
    dice = StartDice(seed)
    publishers = [random_publisher(dice, number) for number in range(dice.random.randint(1, 3))]
    for publisher in publishers:
        publisher["start_s"] += BEGIN_S
    subscribers = [_subscriber(dice, number) for number in range(dice.random.randint(1, 4))]
    overlay = {
        "mode": "guaranteed",
        "delta": dice.random.choice((1, 2)),
        "window": dice.random.choice((1, 8, 64)),
        "edges": dice.edges,
    }
    tables: list[tuple[str, Table]] = [
        ("", {"seed": seed, "duration_s": dice.duration_s, "settle_s": SETTLE_S}),
        ("[network]", {"delay_ms": random_delay(dice)}),
        ("[overlay]", overlay),
        ("[ordering]", {"causal": "causal" in dice.orders}),
        *(("[[publisher]]", publisher) for publisher in publishers),
        *(("[[subscriber]]", subscriber) for subscriber in subscribers),
        *(("[[fault]]", fault) for fault in _without_more(list(_faults(dice, subscribers)))),
    ]
    return scenario_text(tables)


def _subscriber(dice: StartDice, number: int) -> Table:
    subscriber: Table = {
        "name": f"s{number}",
        "at": dice.random.choice(dice.homes),
        "topics": dice.topics(),
        "order": dice.random.choice(dice.orders),
        "start": "earliest",
        "subscribe_at_s": dice.time_s(0.0, 0.8 * dice.duration_s),
    }
    if len(subscriber["topics"]) == len(TOPICS) and dice.often(0.5):
        del subscriber["topics"]
    if dice.often(0.4):
        subscriber["filter"] = dice.random.choice(FILTERS)
    if dice.often(0.2):
        subscriber["unsubscribe_at_s"] = dice.time_s(subscriber["subscribe_at_s"] + 0.02, dice.duration_s)
    return subscriber


def _faults(dice: StartDice, subscribers: Sequence[Table]) -> Iterator[Table]:
    for subscriber in subscribers:
        for _ in range(dice.random.choice((0, 1, 1, 2))):
            begin_s = max(BEGIN_S, subscriber["subscribe_at_s"] + dice.time_s(-0.2, 0.4))
            yield _at_the_seam(dice, subscriber) | _times(dice, begin_s)
    for _ in range(dice.random.randint(0, 2)):
        fault = random_fault(dice, [subscriber["name"] for subscriber in subscribers])
        if "state" in fault:
            fault["state"] = _state(dice, fault["nodes"][0])
        yield fault | _times(dice, dice.time_s(BEGIN_S, 0.9 * dice.duration_s))


def _without_more(faults: list[Table]) -> list[Table]:
    """Let a broker that loses its disk crash only once: if it crashes again before its recorder is back, it forgets
    that there was one."""
    lost = next((fault for fault in faults if fault.get("state") == "lost"), None)
    if lost is None:
        return faults
    return [
        fault
        for fault in faults
        if fault is lost or fault["kind"] != "crash" or fault["nodes"] != lost["nodes"]
    ]


def _at_the_seam(dice: StartDice, subscriber: Table) -> Table:
    match dice.random.choice(("crash", "crash", "client", "pause")):
        case "crash":
            return {"kind": "crash", "nodes": [subscriber["at"]], "state": _state(dice, subscriber["at"])}
        case "client":
            return {"kind": "crash", "nodes": [subscriber["name"]]}
        case _:
            return {"kind": "pause", "nodes": [dice.random.choice((subscriber["at"], subscriber["name"]))]}


def _state(dice: StartDice, node: str) -> str:
    """Only one broker loses its disk, for its neighbours must keep theirs; and no sequencer does (order_campaign.py has
    what that costs)."""
    may_lose = node == dice.homes[0] and dice.orders == ORDERS[0]
    return "lost" if may_lose and dice.often(0.4) else "kept"


def _times(dice: StartDice, begin_s: float) -> Table:
    length_s = dice.random.choice((0.02, 0.3, 2.0)) * dice.random.uniform(0.5, 1.0)
    begin_s = min(begin_s, dice.duration_s - 0.1)
    return {"at_s": round(begin_s, 3), "until_s": round(min(dice.duration_s, begin_s + length_s), 3)}


def replay_command(seed: int) -> str:
    return f"python -m {MODULE} --seeds {seed}:{seed + 1} --keep start-{seed}"


def run_seed(seed: int) -> CampaignResult:
    """Run the scenario of that seed without touching a disk; whatever goes wrong is among the problems."""
    writer = MemoryWriter()
    simulation = Simulation(expand(parse_scenario(start_scenario(seed))), writer)
    forgetful = forgetful_nodes(simulation.plan.faults)
    if seed % CRASH_POINTS_EVERY == 2:
        brokers = [name for name in simulation.plan.topology.brokers if name not in forgetful]
        CrashPoints(simulation.network, brokers, simulation.duration_ns)
    random = Random(f"{seed}:runs")
    for publisher in simulation.publishers if seed % 2 else ():
        publisher.together = lambda: random.choice(RUNS)
    for broker, archive in simulation.archives.items():
        if broker not in forgetful:  # what was lost with a broker's disk before it was written is nowhere
            archive.write_ns = lag(Random(f"{seed}:{archive.client.node.node}"))
    problems = problems_of(lambda: _run(simulation, writer), AssertionError)
    steps = simulation.network.schedule.steps
    return CampaignResult(seed, problems, *writer.counts, steps, replay_command(seed))


def _run(simulation: Simulation, writer: MemoryWriter) -> Iterator[str]:
    network = simulation.network
    network.start()
    trouble: str | None = "the run was too short"
    for until in range(CHECK_NS, simulation.end_ns + 1, CHECK_NS):
        network.run(until)
        if until > simulation.duration_ns:
            trouble = _unfinished(simulation, writer)
            if trouble is None:
                break
    if trouble is not None:
        yield trouble
    for publisher in simulation.publishers:
        publisher.close()
    found = verdicts(writer.trace(), whole=have_everything(simulation))
    yield from (str(verdict) for verdict in found if not verdict.holds)
    yield from () if simulation.ordering is None else simulation.ordering.misbehaviour


def _unfinished(simulation: Simulation, writer: MemoryWriter) -> str | None:
    """Return what a healed network has not finished; None once it is at rest."""
    waiting = [publisher.waiting for publisher in simulation.publishers]
    waiting += [subscriber.waiting for subscriber in simulation.subscribers]
    return unsettled(simulation.network) or next(filter(None, waiting), None) or writer.unanswered()


def verdicts(trace: Trace, *, whole: bool) -> list[Verdict]:
    """Return what the checkers found; `whole`: history begins with the first event of each source."""
    found = [exactly_once(trace), gap_free(trace), seam(trace, whole=whole)]
    found.append(fifo(trace, orders=frozenset({"none", "fifo"})))
    found.append(total_order(trace, orders=frozenset({"total", "causal"})))
    found.append(causal_order(trace, orders=frozenset({"causal"})))
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    options = seeds_parser(MODULE, __doc__).parse_args(arguments)
    return run_command(options, run_seed, start_scenario)


if __name__ == "__main__":
    raise SystemExit(main())
