"""Runs random scenarios for mode epidemic by the thousand: each seed is one network with its losses and faults.

During a run, the monitor asserts what must hold at every moment (lab/epidemic_monitor.py). Once all faults are over,
what can be recovered must be recovered within a bounded number of rounds: if a subscription lacks an event that it is
owed, the event must not be in the cache of a broker that the algorithm asks or that offers it. The trace shows
that nothing was delivered twice or wrongly. A seed replays its run exactly.

Only this last check applies to algorithms that give up by design (none, push of events, pull by advertising, partners
by the highest weights alone, digests that may die on the tree) and to small caches.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import islice
from random import Random
from typing import NamedTuple

from tidings.core.events.event import source_text
from tidings.core.events.subscription import Interest, make_interest
from tidings.core.overlay.epidemic.broker import ABSENT_AFTER_NS, EpidemicBroker
from tidings.core.overlay.epidemic.cache import Cached
from tidings.core.overlay.epidemic.settings import RecoverySettings
from tidings.lab.epidemic_monitor import EpidemicError, EpidemicMonitor
from tidings.lab.epidemic_scenarios import LARGE_BUFFER, epidemic_scenario
from tidings.lab.seeds import CampaignResult, problems_of, run_command, seeds_parser
from tidings.scenarios.file.expand import expand
from tidings.scenarios.file.load import parse_scenario
from tidings.scenarios.file.schema import CrashFault, GilbertLoss, NoLoss
from tidings.scenarios.file.times import NS_PER_S
from tidings.scenarios.simulate import Simulation
from tidings.scenarios.trace.checkers import exactly_once
from tidings.scenarios.trace.demand import demand
from tidings.scenarios.trace.memory import MemoryWriter
from tidings.scenarios.trace.reader import Trace

CHECK_NS = NS_PER_S
"""How often the monitor checks all brokers."""
FIRST_LOOK_NS = 5 * NS_PER_S
"""When, after the workload, to look whether everything has arrived; each further look waits twice as long."""
LONG_RUN_EVERY = 8
"""One of this many runs continues to its end although everything has arrived."""
MAX_GIVEN_UP = 4
"""How many losses a broker may give up on links where every request and every answer may be lost."""
MAX_PROBLEMS = 5
"""The problems shown for one run."""
RUNS = (1, 1, 2, 3, 8, 40)
"""How many events are published together, in every second run; the longest take several datagrams."""
MODULE = "tidings.lab.epidemic_campaign"


def replay_command(seed: int) -> str:
    return f"python -m {MODULE} --seeds {seed}:{seed + 1} --keep epidemic-{seed}"


def run_seed(seed: int) -> CampaignResult:
    """Run the scenario of that seed without touching a disk; whatever goes wrong is among the problems."""
    writer = MemoryWriter()
    simulation = Simulation(expand(parse_scenario(epidemic_scenario(seed))), writer)
    monitor = EpidemicMonitor(simulation)
    random = Random(f"{seed}:runs")
    for publisher in simulation.publishers if seed % 2 else ():
        publisher.together = lambda: random.choice(RUNS)
    for subscriber in simulation.subscribers if seed % 4 == 1 else ():
        subscriber.client.on_start.append(subscriber.take_runs)
    problems = problems_of(partial(_run, simulation, writer, monitor), EpidemicError)
    steps = simulation.network.schedule.steps
    return CampaignResult(seed, problems, *writer.counts, steps, replay_command(seed))


def _run(simulation: Simulation, writer: MemoryWriter, monitor: EpidemicMonitor) -> Iterator[str]:
    network = simulation.network
    network.start()
    settle_ns = simulation.end_ns - simulation.duration_ns
    look_ns = FIRST_LOOK_NS if simulation.plan.scenario.seed % LONG_RUN_EVERY else settle_ns
    for until in range(CHECK_NS, simulation.duration_ns + settle_ns * patience(simulation) + 1, CHECK_NS):
        network.run(until)
        monitor.check()
        if until >= simulation.duration_ns + look_ns:
            look_ns *= 2
            if not any(problems_at_rest(simulation, writer)):
                break
    yield from islice(problems_at_rest(simulation, writer), MAX_PROBLEMS)
    verdict = exactly_once(writer.trace())
    if not verdict.holds:
        yield str(verdict)


# --- At rest


def patience(simulation: Simulation) -> int:
    """Return how many times longer than usual to wait for what is missing.

    A burst of losses may swallow all digests that one broker pushes to another in the usual time, as each round names
    one pattern. A broker that pushes never gives up, so a longer wait excuses nothing.
    """
    loss = simulation.plan.scenario.network.loss
    if isinstance(loss, GilbertLoss) and simulation.epidemic_brokers[0].settings.pushes_digests:
        return round(loss.burst)
    return 1


def problems_at_rest(simulation: Simulation, writer: MemoryWriter) -> Iterator[str]:
    trace = writer.trace()
    for subscription in trace.subscribed.to_pylist():
        if subscription["accepted_ns"] is None and subscription["cancelled_ns"] is None:
            yield f"{subscription['subscription']} was never accepted"
    yield from unrecovered(simulation, trace)


class MissingEvent(NamedTuple):
    """An event that a subscription is owed and did not get."""

    event: str
    published_ns: int
    subscription: str
    subscriber: str
    interest: Interest


def missing(trace: Trace) -> Iterator[MissingEvent]:
    """Yield what is missing, except for cancelled subscriptions."""
    coded = trace.coded
    subscribed = trace.subscribed.to_pylist()
    for key in demand(coded, strict_end=True).missing.tolist():
        row, event = divmod(key, len(coded.events))
        subscription = subscribed[row]
        if subscription["cancelled_ns"] is None:
            interest = make_interest(tuple(subscription["topics"]), subscription["filter"])
            yield MissingEvent(
                coded.events.name(event),
                int(coded.events.at[event]),
                subscription["subscription"],
                subscription["subscriber"],
                interest,
            )


def unrecovered(simulation: Simulation, trace: Trace) -> Iterator[str]:
    """Yield the missing events that the algorithm could have recovered.

    Where links keep losing messages, a broker may give up a few events after asking as often as it may.
    """
    settings = simulation.epidemic_brokers[0].settings
    if settings.buffer_events < LARGE_BUFFER:
        return
    brokers = {broker.name: broker for broker in simulation.epidemic_brokers}  # the last incarnation of each
    lossy = not isinstance(simulation.plan.scenario.network.loss, NoLoss)
    seats = {subscriber.name: subscriber.at for subscriber in simulation.plan.subscribers}
    steady_ns = _steady_ns(simulation)
    holders = _holders(brokers.values())
    for lost in missing(trace):
        seeker = brokers[seats[lost.subscriber]]
        patterns = seeker.patterns.ids(lost.interest)
        if lost.published_ns < max(steady_ns[seeker.name], steady_ns[lost.subscriber]):
            continue
        gives_up = lossy and 0 < seeker.recovery_state.losses.given_up <= MAX_GIVEN_UP
        for holder, entry in holders.get(lost.event, ()):
            if reaches(settings, patterns, holder, entry) and not gives_up:
                yield f"event {lost.event} never reached {lost.subscription} at {seeker.name}: {holder.name} has it"
                break


def _steady_ns(simulation: Simulation) -> dict[str, int]:
    """Return from when on each node has been up long enough to be owed everything."""
    steady_ns = dict.fromkeys(simulation.network.nodes, 0)
    for planned in simulation.plan.faults:
        if isinstance(planned.fault, CrashFault):
            for name in planned.nodes:
                up_ns = planned.until_ns + ABSENT_AFTER_NS
                steady_ns[name] = max(steady_ns[name], up_ns)
    return steady_ns


Holders = dict[str, list[tuple[EpidemicBroker, Cached]]]


def _holders(brokers: Iterable[EpidemicBroker]) -> Holders:
    """Return, by event, the brokers whose caches have it."""
    holders: Holders = {}
    for broker in brokers:
        cache = broker.recovery_state.cache
        for (source, incarnation), ranges in cache.ids().items():
            for first, stop in ranges:
                for entry in cache.id_range(source, incarnation, first, stop - 1):
                    for sequence in range(entry.stretch.first, entry.stretch.last + 1):
                        event = f"{source_text(source, incarnation)}:{sequence}"
                        holders.setdefault(event, []).append((broker, entry))
    return holders


def reaches(
    settings: RecoverySettings, patterns: Sequence[bytes], holder: EpidemicBroker, entry: Cached
) -> bool:
    """Return whether the algorithm brings what this broker holds to subscribers of the patterns, sooner or later.

    Nobody can know that an event is missing if its origin, having just started, did not count it for them.
    """
    counted = [pattern for pattern, _, _ in entry.numbers if pattern in patterns]
    if not counted or not (settings.solicits or settings.pushes_digests):
        return False
    is_origin = entry.origin == holder.name
    is_subscriber = any(map(holder.patterns.subscribed, counted))
    if settings.algorithm in ("publisher-pull", "combined") and is_origin:
        return True
    if settings.algorithm == "publisher-pull":
        return False
    if settings.routing == "tree":
        return settings.forward_probability == 1.0 and (is_subscriber or settings.pushes_digests)
    if settings.selection != "random" and settings.algorithm != "push+pull":
        return False
    return is_subscriber or is_origin or settings.pushes_digests


def main(arguments: Sequence[str] | None = None) -> int:
    options = seeds_parser(MODULE, __doc__).parse_args(arguments)
    return run_command(options, run_seed, epidemic_scenario)


if __name__ == "__main__":
    raise SystemExit(main())
