"""Draws random scenarios for the guaranteed overlay from a seed (lab/campaign.py), and what other draws share."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from random import Random
from typing import Any

SETTLE_S = 150.0
"""A healed network is at rest within this long, or never. Small windows over links with bursts of loss are slow."""
TOPICS = ("/a", "/b", "/c")
FILTERS = ("x > 2", "x > 6", "x = 3", "x IN (1, 4, 7)", "x BETWEEN 2 AND 5", "NOT x < 5", "x > 2 OR y = 'u'")

Table = dict[str, Any]


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


def scenario_text(tables: Iterable[tuple[str, Table]]) -> str:
    """Return the text of a scenario file: each table after its header; the first table has none."""
    return "\n".join(line for header, table in tables for line in _lines(header, table)) + "\n"


def _lines(header: str, table: Table) -> Iterator[str]:
    if header:
        yield f"\n{header}"
    for key, value in table.items():
        yield f"{key} = {toml(value)}"


class Dice:
    """Draws the parts of one scenario, given its size."""

    brokers: int
    duration_s: float
    edges: list[tuple[str, str]] | None = None
    """The edges, if they are drawn one by one."""

    def __init__(self, random: Random) -> None:
        self.random = random

    def random_edges(self) -> list[tuple[str, str]]:
        """Return a tree in which each broker's parent is any earlier one, or one of the latest: bushes or long arms."""
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
        """Return two neighbours if the edges are known, else any two brokers."""
        return list(self.random.choice(self.edges)) if self.edges else self.two_brokers()

    def topics(self) -> list[str]:
        return self.random.sample(TOPICS, self.random.randint(1, len(TOPICS)))

    def time_s(self, low: float, high: float) -> float:
        return round(self.random.uniform(low, high), 3)

    def often(self, share: float) -> bool:
        return self.random.random() < share


class Draw(Dice):
    """Draws first what the rest of a guaranteed scenario depends on."""

    def __init__(self, seed: int) -> None:
        super().__init__(Random(f"campaign:{seed}"))
        random = self.random
        self.delta = random.choice((1, 1, 2, 2, 3))
        self.window = random.choice((1, 1, 2, 8, 64, 1_000_000))
        self.brokers = random.randint(10, random.choices((14, 20, 60), (2, 2, 1))[0])
        large = self.brokers > 24
        self.duration_s = random.choice((4.0, 6.0)) if large else random.choice((4.0, 6.0, 8.0, 12.0))
        self.edges = self.random_edges() if random.random() < 0.3 else None


def random_scenario(seed: int) -> str:
    """Return the text of a scenario file."""
    draw = Draw(seed)
    publishers = [random_publisher(draw, number) for number in range(draw.random.randint(1, 3))]
    subscribers = [random_subscriber(draw, number) for number in range(draw.random.randint(1, 5))]
    tables: list[tuple[str, Table]] = [
        ("", {"seed": seed, "duration_s": draw.duration_s, "settle_s": SETTLE_S}),
        ("[network]", _network(draw)),
        ("[overlay]", _overlay(draw)),
        *(("[[link]]", link) for link in _slow_links(draw, [*publishers, *subscribers])),
        *(("[[publisher]]", publisher) for publisher in publishers),
        *(("[[subscriber]]", subscriber) for subscriber in subscribers),
        *(("[[fault]]", fault) for fault in _faults(draw, [table["name"] for table in subscribers])),
    ]
    return scenario_text(tables)


def random_delay(draw: Dice) -> Table:
    random = draw.random
    delays: tuple[Table, ...] = (
        {"kind": "constant", "value": random.choice((1, 10, 40))},
        {"kind": "uniform", "low": 1, "high": 60},
        {"kind": "normal", "mean": 20, "std": 10},
        {"kind": "lognormal", "median": 8.0, "sigma": 1.0},
        {"kind": "empirical", "values": [1, 2, 5, 80]},
    )
    return random.choice(delays)


def _network(draw: Draw) -> Table:
    network: Table = {"delay_ms": random_delay(draw)}
    if draw.often(0.2):
        losses: tuple[Table, ...] = (
            {"kind": "bernoulli", "rate": 0.05},
            {"kind": "gilbert", "rate": 0.02, "burst": 2.0},
        )
        network["loss"] = draw.random.choice(losses)
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


def random_publisher(draw: Dice, number: int) -> Table:
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


def random_subscriber(draw: Dice, number: int) -> Table:
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
    """Return slow links between some clients and their brokers, so that what these clients know is old."""
    # With a small window each event takes a round trip, and all of them must arrive within the run.
    delay_ms = {"kind": "constant", "value": 400 if draw.window >= 8 else 100}
    slow = [client for client in clients if draw.often(0.2)]
    return [{"between": [client["name"], client["at"]], "delay_ms": delay_ms} for client in slow]


def _faults(draw: Draw, subscribers: Sequence[str]) -> list[Table]:
    """Return up to 3 * delta + 3 faults, spread over the run or all at once; or a rolling restart of brokers."""
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
        faults.append(random_fault(draw, subscribers) | times)
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


def random_fault(draw: Dice, subscribers: Sequence[str]) -> Table:
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


def _groups(draw: Dice) -> list[list[str]]:
    """Return two or three groups of brokers; the first is often a single broker."""
    names = [f"b{number}" for number in range(draw.brokers)]
    draw.random.shuffle(names)
    first = 1 if draw.often(0.3) or len(names) == 2 else draw.random.randint(1, len(names) - 2)
    three = draw.often(0.3) and first + 1 < len(names)
    second = draw.random.randint(first + 1, len(names) - 1) if three else len(names)
    return [group for group in (names[:first], names[first:second], names[second:]) if group]
