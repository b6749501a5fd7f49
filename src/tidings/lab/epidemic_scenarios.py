"""Draws random scenarios for mode epidemic from a seed (lab/epidemic_campaign.py)."""

from __future__ import annotations

from random import Random

from tidings.lab.random_scenarios import (
    Dice,
    Table,
    random_delay,
    random_fault,
    random_publisher,
    random_subscriber,
    scenario_text,
)

SETTLE_ROUNDS = 240
SHORTEST_SETTLE_S = 60.0
"""What can be recovered is recovered within this many rounds and this long after all faults end, or never."""
SMALL_BUFFERS = (1, 4, 16)
LARGE_BUFFER = 1_500
ALGORITHMS = {
    "auto": 4,
    "push+pull": 4,
    "subscriber-pull": 5,
    "publisher-pull": 3,
    "combined": 3,
    "push": 6,
    "none": 1,
}
"""Algorithm -> its weight in the draw."""


class EpidemicDraw(Dice):
    """Draws first what the rest of an epidemic scenario depends on."""

    def __init__(self, seed: int) -> None:
        super().__init__(Random(f"epidemic:{seed}"))
        random = self.random
        self.brokers = random.randint(2, random.choice((6, 12, 20)))
        self.duration_s = random.choice((4.0, 6.0, 10.0))
        self.interval_ms = random.choice((50, 100, 300, 1000))
        self.edges = self.random_edges() if random.random() < 0.7 else None
        self.large_events = random.random() < 0.3


def epidemic_scenario(seed: int) -> str:
    """Return the text of a scenario file."""
    draw = EpidemicDraw(seed)
    publishers = [_publisher(draw, number) for number in range(draw.random.randint(1, 3))]
    count = draw.random.randint(1, draw.random.choice((4, 12)))
    subscribers = [random_subscriber(draw, number) for number in range(count)]
    settle_s = max(SHORTEST_SETTLE_S, SETTLE_ROUNDS * draw.interval_ms / 1000)
    network, losses = _network(draw)
    faults = [*losses, *_faults(draw, [table["name"] for table in subscribers])]
    return scenario_text(
        [
            ("", {"seed": seed, "duration_s": draw.duration_s, "settle_s": settle_s}),
            ("[network]", network),
            ("[overlay]", _overlay(draw)),
            ("[recovery]", _recovery(draw)),
            *(("[[publisher]]", publisher) for publisher in publishers),
            *(("[[subscriber]]", subscriber) for subscriber in subscribers),
            *(("[[fault]]", fault) for fault in faults),
        ]
    )


def _network(draw: EpidemicDraw) -> tuple[Table, list[Table]]:
    """Return links that lose messages all the time, or a loss fault that ends with the workload, or no loss."""
    random = draw.random
    network: Table = {"delay_ms": random_delay(draw)}
    losses: list[Table] = []
    rate = round(random.uniform(0.02, 0.35), 3)
    match random.choices(("ends", "bernoulli", "gilbert", "none"), (4, 2, 2, 1))[0]:
        case "ends":
            losses.append({"kind": "loss", "at_s": 0.0, "until_s": draw.duration_s, "rate": rate})
        case "bernoulli":
            network["loss"] = {"kind": "bernoulli", "rate": rate}
        case "gilbert":
            burst = float(random.randint(1, 8))
            network["loss"] = {"kind": "gilbert", "rate": min(rate, 0.2), "burst": burst}
    if draw.often(0.3):
        network["duplicate"] = random.choice((0.05, 0.3))
    if draw.often(0.3):
        network["reorder"] = random.choice((0.1, 0.5))
    if draw.often(0.1):
        network["bandwidth_mbps"] = 10.0
    return network, losses


def _overlay(draw: EpidemicDraw) -> Table:
    if draw.edges is not None:
        return {"mode": "epidemic", "edges": draw.edges}
    random, brokers = draw.random, draw.brokers
    shapes: tuple[Table, ...] = (
        {"kind": "tree", "brokers": brokers, "children": random.choice((2, 3))},
        {"kind": "random", "brokers": brokers, "degree": random.choice((3, 4))},
        {"kind": "chain", "brokers": brokers},
        {"kind": "star", "brokers": brokers},
    )
    return {"mode": "epidemic", "shape": random.choice(shapes)}


def _recovery(draw: EpidemicDraw) -> Table:
    random = draw.random
    return {
        "algorithm": random.choices(list(ALGORITHMS), list(ALGORITHMS.values()))[0],
        "selection": random.choices(("random", "wdpg", "wrpg", "pgw"), (6, 1, 1, 1))[0],
        "weights": random.choice(("topology", "loss")),
        "fanout": random.randint(1, 4),
        "interval_ms": draw.interval_ms,
        "window": random.choice((0.1, 0.25, 1.0)),
        "pull": random.choices(("solicit", "advertise"), (4, 1))[0],
        "push": random.choices(("event", "digest"), (1, 2))[0],
        "routing": random.choices(("direct", "tree"), (3, 1))[0],
        "rounds": random.choice((0, 0, 1, 3)),
        "adaptive": draw.often(0.3),
        "redundancy": random.choice((0, 0, 0, 1, 2, 3, 4)),
        "block_bytes": random.choice((32, 100, 300)) if draw.large_events else 1_472,
        "buffer_events": random.choice(SMALL_BUFFERS) if draw.often(0.1) else LARGE_BUFFER,
        "cache_policy": random.choice(("fifo", "foreign-first", "random")),
        "forward_probability": random.choice((0.0, 0.5, 1.0, 1.0, 1.0)),
    }


def _publisher(draw: EpidemicDraw, number: int) -> Table:
    """Return a publisher; slow if events are large, as each is up to thirty blocks in two generations."""
    publisher = random_publisher(draw, number)
    if draw.large_events:
        sizes = {"size_bytes": draw.random.choice((250, 900))}
        return publisher | sizes | {"rate_hz": draw.random.choice((1.0, 3.0))}
    return publisher | {"rate_hz": draw.random.choice((3.0, 8.0, 15.0))}


def _faults(draw: EpidemicDraw, subscribers: list[str]) -> list[Table]:
    """Return faults, but none in half of the runs: they test recovery alone."""
    if draw.often(0.5):
        return []
    faults = []
    for _ in range(draw.random.randint(1, 4)):
        begin_s = draw.time_s(0.0, 0.9 * draw.duration_s)
        length_s = draw.random.choice((0.05, 0.5, 2.0, 5.0)) * draw.random.uniform(0.5, 1.0)
        times = {"at_s": begin_s, "until_s": min(draw.duration_s, round(begin_s + length_s, 3))}
        faults.append(random_fault(draw, subscribers) | times)
    return faults
