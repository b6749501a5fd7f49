"""Random scenarios for the guaranteed overlay, run by the thousand: each seed is one network with its faults.

A run has two phases. While faults come and go, the monitor asserts the invariants (simulator/invariants.py). Then
everything is healed, and the network must come to rest, with nothing lost, repeated or out of order. A seed
replays its run exactly.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
import traceback
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

from tidings.model.predicates import Scalar
from tidings.scenario.expand import expand
from tidings.scenario.load import parse_scenario
from tidings.simulator.faults import NS_PER_S
from tidings.simulator.invariants import InvariantError, OverlayMonitor, unsettled
from tidings.simulator.newcomers import schedule_newcomers
from tidings.simulator.run import Simulation
from tidings.trace.checkers import exactly_once, fifo, gap_free
from tidings.trace.reader import Trace
from tidings.trace.text import attribute_text
from tidings.trace.writer import TraceWriter

CHECK_NS = NS_PER_S // 4
"""How often the monitor looks at everything."""
SETTLE_S = 150.0
"""A healed network is at rest within this long, or never. Small windows over links that lose in bursts are slow."""
SEEDS_PER_BLOCK = 20
NEWCOMERS_EVERY = 4
"""In one run of so many brokers join while it lasts."""
TOPICS = ("/a", "/b", "/c")
FILTERS = ("x > 2", "x > 6", "x = 3", "x IN (1, 4, 7)", "x BETWEEN 2 AND 5", "NOT x < 5", "x > 2 OR y = 'u'")

Table = dict[str, Any]


# --- Scenarios


def toml(value: Any) -> str:
    match value:
        case dict():
            return "{ " + ", ".join(f"{key} = {toml(item)}" for key, item in value.items()) + " }"
        case list() | tuple():
            return "[" + ", ".join(map(toml, value)) + "]"
        case bool() | str():
            return json.dumps(value)
        case _:
            return repr(value)


def _lines(header: str, table: Table) -> Iterator[str]:
    if header:
        yield f"\n{header}"
    for key, value in table.items():
        yield f"{key} = {toml(value)}"


class Draw:
    """The dice of one scenario, and what was decided first."""

    def __init__(self, seed: int) -> None:
        self.random = random = Random(f"campaign:{seed}")
        self.delta = random.choice((1, 1, 2, 2, 3))
        self.window = random.choice((1, 1, 2, 8, 64, 1_000_000))
        self.brokers = random.randint(10, random.choices((14, 20, 60), (2, 2, 1))[0])
        large = self.brokers > 24
        self.duration_s = random.choice((4.0, 6.0)) if large else random.choice((4.0, 6.0, 8.0, 12.0))
        self.edges = self._random_edges() if random.random() < 0.3 else None

    def _random_edges(self) -> list[tuple[str, str]]:
        """A tree in which each broker hangs on any earlier one, or mostly on late ones: bushes and long arms."""
        spread = self.random.choice((1, 3, self.brokers))
        return [
            (f"b{self.random.randrange(max(0, child - spread), child)}", f"b{child}")
            for child in range(1, self.brokers)
        ]

    def broker(self) -> str:
        return f"b{self.random.randrange(self.brokers)}"

    def two_brokers(self) -> list[str]:
        return [f"b{number}" for number in self.random.sample(range(self.brokers), 2)]

    def linked_brokers(self) -> list[str]:
        """Two neighbours where we know the edges, else any two."""
        return list(self.random.choice(self.edges)) if self.edges else self.two_brokers()

    def topics(self) -> list[str]:
        return self.random.sample(TOPICS, self.random.randint(1, len(TOPICS)))

    def time_s(self, low: float, high: float) -> float:
        return round(self.random.uniform(low, high), 3)

    def often(self, share: float) -> bool:
        return self.random.random() < share


def random_scenario(seed: int) -> str:
    """The text of a scenario file."""
    draw = Draw(seed)
    publishers = [_publisher(draw, number) for number in range(draw.random.randint(1, 3))]
    subscribers = [_subscriber(draw, number) for number in range(draw.random.randint(1, 5))]
    tables: list[tuple[str, Table]] = [
        ("", {"seed": seed, "duration_s": draw.duration_s, "settle_s": SETTLE_S}),
        ("[network]", _network(draw)),
        ("[overlay]", _overlay(draw)),
        *(("[[link]]", link) for link in _slow_links(draw, [*publishers, *subscribers])),
        *(("[[publisher]]", publisher) for publisher in publishers),
        *(("[[subscriber]]", subscriber) for subscriber in subscribers),
        *(("[[fault]]", fault) for fault in _faults(draw, [table["name"] for table in subscribers])),
    ]
    return "\n".join(line for header, table in tables for line in _lines(header, table)) + "\n"


def _network(draw: Draw) -> Table:
    random = draw.random
    delays: tuple[Table, ...] = (
        {"kind": "constant", "value": random.choice((1, 10, 40))},
        {"kind": "uniform", "low": 1, "high": 60},
        {"kind": "normal", "mean": 20, "std": 10},
        {"kind": "lognormal", "median": 8.0, "sigma": 1.0},
        {"kind": "empirical", "values": [1, 2, 5, 80]},
    )
    network: Table = {"delay_ms": random.choice(delays)}
    if draw.often(0.2):
        losses: tuple[Table, ...] = (
            {"kind": "bernoulli", "rate": 0.05},
            {"kind": "gilbert", "rate": 0.02, "burst": 2.0},
        )
        network["loss"] = random.choice(losses)
    if draw.often(0.1):
        network["bandwidth_mbps"] = 1.0
    return network


def _overlay(draw: Draw) -> Table:
    random, brokers = draw.random, draw.brokers
    overlay: Table = {"mode": "guaranteed", "delta": draw.delta, "window": draw.window}
    if draw.edges is not None:
        overlay["edges"] = draw.edges
        return overlay
    shapes: tuple[Table, ...] = (
        {"kind": "tree", "brokers": brokers, "degree": random.choice((3, 4, 7))},
        {"kind": "random", "brokers": brokers, "degree": random.choice((3, 4))},
        {"kind": "chain", "brokers": brokers},
        {"kind": "star", "brokers": brokers},
    )
    overlay["shape"] = random.choices(shapes, (4, 4, 2, 1))[0]
    return overlay


def _publisher(draw: Draw, number: int) -> Table:
    attributes = {
        "x": {"kind": "int", "low": 0, "high": 9},
        "y": {"kind": "choice", "values": ["u", "v"]},
    }
    return {
        "name": f"p{number}",
        "at": draw.broker(),
        "topics": draw.topics(),
        "rate_hz": draw.random.choice((1.0, 3.0, 8.0)),
        "start_s": draw.time_s(0.0, 2.0),
        "arrival": draw.random.choice(("poisson", "periodic")),
        "size_bytes": draw.random.choice((0, 100)),
        "attributes": attributes,
    }


def _subscriber(draw: Draw, number: int) -> Table:
    topics = draw.topics()
    subscriber: Table = {"name": f"s{number}", "at": draw.broker(), "topics": topics}
    if draw.often(0.15):
        del subscriber["topics"]
    if draw.often(0.4):
        subscriber["filter"] = draw.random.choice(FILTERS)
    begin_s = draw.time_s(0.0, 0.7 * draw.duration_s) if draw.often(0.5) else 0.0
    subscriber["subscribe_at_s"] = begin_s
    middle_s = draw.time_s(begin_s + 0.1, draw.duration_s - 0.2)
    other = [topic for topic in TOPICS if topic not in topics]
    if "topics" in subscriber and other and draw.often(0.25):
        subscriber["changes"] = [
            {"at_s": middle_s, "add": other[:1], "remove": topics[: draw.random.randint(0, 1)]}
        ]
    if draw.often(0.25):
        subscriber["unsubscribe_at_s"] = draw.time_s(middle_s + 0.05, draw.duration_s)
    return subscriber


def _slow_links(draw: Draw, clients: Sequence[Table]) -> list[Table]:
    """Some clients live far from their brokers: what they know is old."""
    # With a small window every event takes a round trip, and all of them must get through in the end.
    delay_ms = {"kind": "constant", "value": 400 if draw.window >= 8 else 100}
    slow = [client for client in clients if draw.often(0.2)]
    return [{"between": [client["name"], client["at"]], "delay_ms": delay_ms} for client in slow]


def _faults(draw: Draw, subscribers: Sequence[str]) -> list[Table]:
    """Up to 3 * delta + 3, spread over the run or all at once; or brokers that restart one after the other."""
    random, end_s = draw.random, draw.duration_s
    if draw.often(0.1):
        return list(_rolling_restart(draw))
    at_once_s = draw.time_s(0.3, 0.6 * end_s) if draw.often(0.4) else None
    faults = []
    for _ in range(random.randint(0, 3 * draw.delta + 3)):
        if at_once_s is None:
            begin_s = draw.time_s(0.0, 0.9 * end_s)
        else:
            begin_s = draw.time_s(at_once_s, at_once_s + 0.3)
        length_s = random.choice((0.05, 0.3, 2.0, 4.0, 8.0)) * random.uniform(0.5, 1.0)
        times = {"at_s": begin_s, "until_s": min(end_s, round(begin_s + length_s, 3))}
        faults.append(_fault(draw, subscribers) | times)
    return faults


def _rolling_restart(draw: Draw) -> Iterator[Table]:
    down_s = draw.random.choice((0.1, 0.5))
    brokers = [f"b{number}" for number in range(draw.brokers)]
    if draw.often(0.5):
        draw.random.shuffle(brokers)
    for number, name in enumerate(brokers):
        begin_s = round(0.5 + number * down_s, 3)
        if begin_s + down_s >= draw.duration_s:
            return
        until_s = round(begin_s + down_s, 3)
        yield {"kind": "crash", "nodes": [name], "state": "kept", "at_s": begin_s, "until_s": until_s}


def _fault(draw: Draw, subscribers: Sequence[str]) -> Table:
    random = draw.random
    kinds = ("crash", "link", "cut", "partition", "pause", "slow", "loss", "client")
    match random.choices(kinds, (6, 4, 1, 2, 2, 1, 1, 1))[0]:
        case "crash":
            state = "lost" if draw.often(0.2) else "kept"
            return {"kind": "crash", "nodes": [draw.broker()], "state": state}
        case "link":
            return {"kind": "link", "between": draw.linked_brokers(), "direction": "both"}
        case "cut":
            return {"kind": "link", "between": draw.linked_brokers(), "direction": "forward"}
        case "partition":
            return {"kind": "partition", "groups": _groups(draw)}
        case "pause":
            return {"kind": "pause", "nodes": [draw.broker()]}
        case "slow":
            return {"kind": "slow", "nodes": [draw.broker()], "factor": random.choice((3.0, 20.0))}
        case "loss":
            return {"kind": "loss", "rate": 0.2}
        case _:
            kind: Table = random.choice(({"kind": "pause"}, {"kind": "crash", "state": "kept"}))
            return kind | {"nodes": [random.choice(subscribers)]}


def _groups(draw: Draw) -> list[list[str]]:
    """Two or three groups of brokers; with two, one is often a single broker."""
    names = [f"b{number}" for number in range(draw.brokers)]
    draw.random.shuffle(names)
    first = 1 if draw.often(0.3) else draw.random.randint(1, len(names) - 2)
    second = draw.random.randint(first + 1, len(names) - 1) if draw.often(0.3) else len(names)
    return [group for group in (names[:first], names[first:second], names[second:]) if group]


# --- Runs


class MemoryWriter(TraceWriter):
    """Takes the rows of a trace and keeps them."""

    def __init__(self) -> None:
        self._published: dict[str, list[Any]] = {}
        self._subscribed: dict[tuple[str, str], list[Any]] = {}
        self._rows: dict[str, list[Sequence[Any]]] = {
            "delivered": [],
            "faults": [],
            "nodes": [],
            "traffic": [],
        }

    def published(
        self,
        event_id: str,
        source: str,
        sequence: int,
        topic: str,
        attributes: Mapping[str, Scalar],
        size_bytes: int,
        at_ns: int,
        confirmed_ns: int | None = None,
    ) -> None:
        texts = [(name, attribute_text(value)) for name, value in sorted(attributes.items())]
        self._published[event_id] = [
            event_id,
            source,
            sequence,
            topic,
            texts,
            size_bytes,
            at_ns,
            confirmed_ns,
        ]

    def confirmed(self, event_id: str, at_ns: int) -> None:
        row = self._published[event_id]
        if row[-1] is None:
            row[-1] = at_ns

    def subscribed(
        self,
        subscriber: str,
        subscription: str,
        topics: Sequence[str],
        filter: str | None,  # noqa: A002 - the column's name
        order: str,
        requested_ns: int,
        accepted_ns: int | None = None,
        cancelled_ns: int | None = None,
    ) -> None:
        head = [subscriber, subscription, list(topics), filter, order]
        self._subscribed[subscriber, subscription] = [*head, requested_ns, accepted_ns, cancelled_ns]

    def accepted(self, subscriber: str, subscription: str, at_ns: int) -> None:
        self._subscribed[subscriber, subscription][-2] = at_ns

    def cancelled(self, subscriber: str, subscription: str, at_ns: int) -> None:
        self._subscribed[subscriber, subscription][-1] = at_ns

    def delivered(
        self,
        subscriber: str,
        subscription: str,
        position: int,
        event_id: str,
        at_ns: int,
        out_of_order: bool = False,
        recovered_by: str | None = None,
    ) -> None:
        self._rows["delivered"].append(
            (subscriber, subscription, position, event_id, at_ns, out_of_order, recovered_by)
        )

    def _add(self, name: str, row: Sequence[Any]) -> None:
        self._rows[name].append(row)

    def close(self) -> None:
        """There is nothing to write."""

    def discard(self) -> None:
        """There is nothing to remove."""

    @property
    def counts(self) -> tuple[int, int]:
        """How many events were published and how many delivered."""
        return len(self._published), len(self._rows["delivered"])

    def unanswered(self) -> str | None:
        """An event that was not confirmed, or a subscription that was neither accepted nor cancelled."""
        for subscription in self._subscribed.values():
            if subscription[-1] is None and subscription[-2] is None:
                return f"subscription {subscription[1]} of {subscription[0]} was never accepted"
        for event in self._published.values():
            if event[-1] is None:
                return f"event {event[0]} was never confirmed"
        return None

    def trace(self) -> Trace:
        return Trace.from_rows(
            published=self._published.values(), subscribed=self._subscribed.values(), **self._rows
        )


@dataclass(frozen=True, slots=True)
class CampaignResult:
    """What one seed did; it failed if there are problems."""

    seed: int
    problems: tuple[str, ...]
    published: int
    delivered: int
    steps: int

    @property
    def failed(self) -> bool:
        return bool(self.problems)

    def __str__(self) -> str:
        lines = [f"seed {self.seed}: {'failed' if self.failed else 'passed'}", *self.problems]
        if self.failed:
            lines.append(f"replay: {replay_command(self.seed)}")
        return "\n    ".join(lines)


def replay_command(seed: int) -> str:
    return f"python -m tidings.simulator.campaign --seeds {seed}:{seed + 1} --monitor --keep campaign-{seed}"


def run_seed(seed: int, monitor: bool = True) -> CampaignResult:
    """Runs the scenario of that seed, without touching a disk; whatever goes wrong is among the problems."""
    writer = MemoryWriter()
    simulation = Simulation(expand(parse_scenario(random_scenario(seed))), writer)
    watch = OverlayMonitor(simulation.network) if monitor else None
    if seed % NEWCOMERS_EVERY == 1:
        schedule_newcomers(
            simulation, Random(f"{seed}:newcomers"), watch.watch if watch is not None else lambda node: None
        )
    collecting = gc.isenabled()
    gc.disable()  # as `Simulation.run` does, and for its reason
    try:
        problems = tuple(_run(simulation, writer, watch))
    except InvariantError as error:
        problems = (str(error),)
    except Exception:  # whatever a protocol raises is a finding, and the other seeds go on
        problems = (traceback.format_exc(limit=-4).strip(),)
    finally:
        if collecting:
            gc.enable()
    return CampaignResult(seed, problems, *writer.counts, simulation.network.schedule.steps)


def _run(simulation: Simulation, writer: MemoryWriter, watch: OverlayMonitor | None) -> Iterator[str]:
    network = simulation.network
    network.start()
    quiet = False
    for until in range(CHECK_NS, simulation.end_ns + 1, CHECK_NS):
        network.run(until)
        if watch is not None:
            watch.check()
        if until > simulation.duration_ns:
            quiet = writer.unanswered() is None and unsettled(network) is None
            if quiet and until > _rest_ns(simulation):
                break
    if not quiet:
        yield writer.unanswered() or unsettled(network) or "it was quiet, and is not any more"
    yield from verdicts(writer.trace())


def _rest_ns(simulation: Simulation) -> int:
    """Until when to look on although all is quiet: one run in sixteen has to stay so for long."""
    long_rest = simulation.plan.scenario.seed % 16 == 0
    return simulation.duration_ns + (40 * NS_PER_S if long_rest else 0)


def verdicts(trace: Trace) -> Iterator[str]:
    """What the checkers object to."""
    return (
        str(verdict) for verdict in (exactly_once(trace), fifo(trace), gap_free(trace)) if not verdict.holds
    )


# --- Many


def run_block(seeds: range, monitor: bool) -> list[CampaignResult]:
    return [run_seed(seed, monitor) for seed in seeds]


def blocks(seeds: range, size: int = SEEDS_PER_BLOCK) -> list[range]:
    return [seeds[start : start + size] for start in range(0, len(seeds), size)]


def run_seeds(seeds: range, *, jobs: int, monitor: bool) -> Iterator[CampaignResult]:
    """All results, in order."""
    run = partial(run_block, monitor=monitor)
    if jobs == 1:
        for seed in seeds:
            yield run_seed(seed, monitor)
        return
    with ProcessPoolExecutor(jobs) as pool:
        for results in pool.map(run, blocks(seeds)):
            yield from results


def parse_seeds(text: str) -> range:
    """`A:B`: from A to before B."""
    low, colon, high = text.partition(":")
    if not colon or not low.isdecimal() or not high.isdecimal() or int(low) >= int(high):
        raise argparse.ArgumentTypeError(f"{text!r} is not A:B with 0 <= A < B")
    return range(int(low), int(high))


def _keep(directory: Path, result: CampaignResult) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    (directory / f"seed-{result.seed}.toml").write_text(random_scenario(result.seed), encoding="utf-8")
    (directory / f"seed-{result.seed}.txt").write_text(f"{result}\n", encoding="utf-8")


def report(results: Iterable[CampaignResult], total: int, keep: Path | None) -> int:
    """Prints progress and failures; the number of these."""
    failures = published = delivered = 0
    for done, result in enumerate(results, start=1):
        published += result.published
        delivered += result.delivered
        if result.failed:
            failures += 1
            print(result, flush=True)
        if keep is not None and (result.failed or total == 1):
            _keep(keep, result)
        if done % 100 == 0 or done == total:
            print(
                f"{done}/{total} seeds, {failures} failed, {published} published, {delivered} delivered",
                file=sys.stderr,
                flush=True,
            )
    return failures


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tidings.simulator.campaign", description=__doc__)
    parser.add_argument("--seeds", type=parse_seeds, required=True, metavar="A:B", help="from A to before B")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="processes")
    parser.add_argument("--monitor", action="store_true", help="assert the invariants while a run goes on")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="write the scenarios of failing seeds there")
    options = parser.parse_args(arguments)
    results = run_seeds(options.seeds, jobs=max(options.jobs, 1), monitor=options.monitor)
    return 1 if report(results, len(options.seeds), options.keep) else 0


if __name__ == "__main__":
    raise SystemExit(main())
