"""Draws random scenarios with total or causal order from a seed (lab/order_campaign.py)."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from tidings.lab.random_scenarios import (
    FILTERS,
    Dice,
    Table,
    random_delay,
    random_fault,
    scenario_text,
)

TOPICS = ("/a", "/b", "/c/x", "/c/y", "/d")
ENTRIES = (
    ("/a", "/b", "/c/x", "/c/y", "/d"),
    ("/c/*", "/a", "/b", "/d"),
    ("/c/x", "/**"),
    ("/d", "/b", "/c/**", "/a"),
)
"""Layout entries that cover the topics: one by one, or by overlapping patterns."""
SETTLE_S = 120.0
"""A healed network is at rest within this long, or never; servers give up absent publishers after ten seconds."""


class OrderDraw(Dice):
    """Draws first what the rest of an ordered scenario depends on."""

    def __init__(self, seed: int) -> None:
        super().__init__(Random(f"order:{seed}"))
        random = self.random
        self.mode = random.choices(("guaranteed", "best-effort", "epidemic"), (3, 2, 1))[0]
        self.brokers = random.randint(1, random.choice((4, 8, 14)))
        self.duration_s = random.choice((4.0, 8.0, 16.0))
        self.edges = self.random_edges() if self.brokers > 1 else None
        self.order = random.choice(("total", "total", "causal"))
        self.unreliable = self.mode != "guaranteed" and self.often(0.5)
        """Events may be lost; the order holds for those that arrive."""
        self.faults = self.brokers > 1 and (self.mode == "guaranteed" or self.unreliable) and self.often(0.7)

    def topics(self) -> list[str]:
        return self.random.sample(TOPICS, self.random.choice((1, 2, 2, 3, 5)))


def order_scenario(seed: int) -> str:
    """Return the text of a scenario file."""
    draw = OrderDraw(seed)
    publishers = [_publisher(draw, f"p{number}") for number in range(draw.random.randint(1, 4))]
    subscribers = [_subscriber(draw, f"s{number}") for number in range(draw.random.randint(2, 6))]
    for number in range(draw.random.randint(0, 2)):  # clients that subscribe and publish
        seat = {"name": f"c{number}", "at": draw.broker()}
        publishers.append(_publisher(draw, seat["name"]) | seat)
        subscribers.append(_subscriber(draw, seat["name"]) | seat)
    clients = sorted({table["name"] for table in (*publishers, *subscribers)})
    tables: list[tuple[str, Table]] = [
        ("", {"seed": seed, "duration_s": draw.duration_s, "settle_s": SETTLE_S}),
        ("[network]", _network(draw)),
        ("[overlay]", _overlay(draw)),
        ("[ordering]", _ordering(draw)),
        *(("[[publisher]]", publisher) for publisher in publishers),
        *(("[[subscriber]]", subscriber) for subscriber in subscribers),
        *(("[[fault]]", fault) for fault in _faults(draw, clients)),
        *(("[[fault]]", fault) for fault in _deaths(draw, subscribers)),
    ]
    return scenario_text(tables)


def _network(draw: OrderDraw) -> Table:
    network: Table = {"delay_ms": random_delay(draw)}
    if draw.often(0.3):
        network["duplicate"], network["reorder"] = 0.05, 0.1
    lossless = draw.mode == "best-effort" and not draw.unreliable
    if not lossless and draw.often(0.4):
        network["loss"] = {"kind": "bernoulli", "rate": 0.05}
    return network


def _overlay(draw: OrderDraw) -> Table:
    overlay: Table = {"mode": draw.mode}
    if draw.edges is None:
        overlay["shape"] = {"kind": "chain", "brokers": 1}
    else:
        overlay["edges"] = draw.edges
    return overlay


def _ordering(draw: OrderDraw) -> Table:
    ordering: Table = {"causal": draw.order == "causal" or draw.often(0.2)}
    if draw.unreliable:
        ordering["buffer_events"] = draw.random.choice((1, 5, 1000))
        ordering["ttl_ms"] = draw.random.choice((0.0, 50.0, 1000.0))
    if draw.often(0.8):
        ordering["servers"] = _servers(draw)
    return ordering


def _servers(draw: OrderDraw) -> list[Table]:
    random = draw.random
    entries = random.choice(ENTRIES)
    count = min(random.randint(1, 4), draw.brokers, len(entries))
    nodes = random.sample([f"b{number}" for number in range(draw.brokers)], count)
    cuts = [0, *sorted(random.sample(range(1, len(entries)), count - 1)), len(entries)]
    servers = []
    for number, node in enumerate(nodes):
        server: Table = {"node": node, "topics": list(entries[cuts[number] : cuts[number + 1]])}
        others = [f"b{other}" for other in range(draw.brokers) if f"b{other}" != node]
        if len(others) > 1 and draw.often(0.5):
            server["standby"], server["witness"] = random.sample(others, 2)
        servers.append(server)
    return servers


def _publisher(draw: OrderDraw, name: str) -> Table:
    return {
        "name": name,
        "at": draw.broker(),
        "topics": draw.topics(),
        "rate_hz": draw.random.choice((2.0, 8.0, 25.0)),
        "start_s": draw.time_s(0.0, 2.0),
        "arrival": draw.random.choice(("poisson", "periodic")),
        "size_bytes": draw.random.choice((0, 100, 3000)),
        "attributes": {
            "x": {"kind": "int", "low": 0, "high": 9},
            "y": {"kind": "choice", "values": ["u", "v"]},
        },
    }


def _subscriber(draw: OrderDraw, name: str) -> Table:
    order = draw.order if draw.often(0.85) else draw.random.choice(("none", "fifo"))
    subscriber: Table = {"name": name, "at": draw.broker(), "order": order}
    wanted = draw.topics()
    if draw.often(0.85):
        subscriber["topics"] = wanted if draw.often(0.8) else [*wanted, "/c/*"]
    if draw.often(0.3):
        subscriber["filter"] = draw.random.choice(FILTERS)
    begin_s = draw.time_s(0.0, 0.5 * draw.duration_s) if draw.often(0.4) else 0.0
    subscriber["subscribe_at_s"] = begin_s
    if "topics" in subscriber and draw.often(0.6):
        subscriber["changes"] = _changes(draw, subscriber["topics"], begin_s)
    if draw.often(0.15):
        subscriber["unsubscribe_at_s"] = draw.time_s(draw.duration_s - 0.4, draw.duration_s)
    return subscriber


def _changes(draw: OrderDraw, topics: Sequence[str], begin_s: float) -> list[Table]:
    """Return up to eight changes, sometimes so close together that one begins before another has ended."""
    random, held, changes = draw.random, list(topics), []
    end_s = draw.duration_s - 0.5
    if draw.often(0.3):
        end_s = min(end_s, begin_s + 0.4)
    times = sorted(draw.time_s(begin_s, end_s) for _ in range(random.randint(1, 8)))
    for at_s in dict.fromkeys(times):
        remove = random.sample(held, random.randint(0, len(held)))
        add = [topic for topic in draw.topics() if topic not in held or topic in remove]
        if draw.often(0.3):
            add = []
        if not add and not remove:
            continue
        held = [topic for topic in held if topic not in remove] + add
        changes.append({"at_s": at_s, "add": add, "remove": remove})
    return changes


def _faults(draw: OrderDraw, clients: Sequence[str]) -> list[Table]:
    if not draw.faults:
        return []
    faults = []
    for _ in range(draw.random.randint(1, 6)):
        begin_s = draw.time_s(0.0, 0.9 * draw.duration_s)
        length_s = draw.random.choice((0.05, 0.3, 2.0, 5.0, 12.0)) * draw.random.uniform(0.5, 1.0)
        times = {"at_s": begin_s, "until_s": min(draw.duration_s, round(begin_s + length_s, 3))}
        faults.append(random_fault(draw, clients) | times)
    return faults


def _deaths(draw: OrderDraw, subscribers: Sequence[Table]) -> list[Table]:
    """Return crashes of subscribers that restart again and again, sometimes together with their brokers."""
    if draw.mode != "guaranteed" or draw.often(0.4):
        return []
    faults: list[Table] = []
    for subscriber in draw.random.sample(subscribers, draw.random.randint(1, len(subscribers))):
        at_s = draw.time_s(0.0, 0.6 * draw.duration_s)
        for _ in range(draw.random.randint(1, 4)):
            until_s = round(at_s + draw.random.choice((0.01, 0.1, 0.5, 2.0)), 3)
            if until_s >= draw.duration_s:
                break
            nodes = [subscriber["name"]]
            if draw.often(0.2):
                nodes.append(subscriber["at"])
            faults.append(
                {"kind": "crash", "nodes": nodes, "state": "kept", "at_s": at_s, "until_s": until_s}
            )
            at_s = round(until_s + draw.random.choice((0.005, 0.05, 0.3, 1.0)), 3)
    return faults
