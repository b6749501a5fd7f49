"""Draws random scenarios with durable subscribers and groups from a seed (lab/share_campaign.py)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from random import Random

from tidings.lab.random_scenarios import (
    FILTERS,
    TOPICS,
    Dice,
    Table,
    random_delay,
    random_fault,
    random_publisher,
    random_subscriber,
    scenario_text,
)

SETTLE_S = 10_800.0
"""A healed network is at rest within this long, or never. Behind a window of one, an event goes the whole way through
all former homes, and its answer back, before the next one: up to ten seconds for each of hundreds."""
HEAD_START_S = 1.0
"""By then the whole network knows a durable subscription or group."""
BEGIN_S = 1.0
"""By then archives record: before, nothing is published."""
HISTORY_S = 3.0
"""How much later everything else happens if subscriptions begin with history."""
ORDERED = ("total", "causal")
ORDERS = ("none", "fifo", *ORDERED)
LEASES_S = (0.5, 1.0, 2.0, 5.0)
ABSENCES_S = (0.5, 2.0, 10.0, 40.0, 120.0)
"""The longest ones are so long that a share cannot have lived on, whatever failed before."""
SEQUENCERS = 3
"""They run beside the first brokers."""
WORKS: tuple[Table | None, ...] = (
    None,
    {"kind": "constant", "value": 5},
    {"kind": "uniform", "low": 0, "high": 60},
    {"kind": "lognormal", "median": 20.0, "sigma": 1.0},
    {"kind": "constant", "value": 100},
)


CALM_KINDS: tuple[tuple[bool, bool, bool, bool], ...] = (
    *((False, False, False, False), (True, False, False, False), (True, True, False, False)),
    *((False, False, True, False), (False, False, False, True)),
)
"""`far`, `race`, `moves` and `leases` of calm scenarios, one after the other."""


class ShareDraw(Dice):
    """Draws first what the rest of a scenario depends on. `far`: members may be at any broker. `race`: then they may
    also come at once; otherwise the first one comes before the others, and is not hit before. `moves`: durable
    subscriptions alone, whose holders come and go at any broker, far away and in trouble. `leases`: shares are kept for
    moments, and everybody may be gone for longer; every second time durable subscriptions alone, which move. `calm`:
    one of these in turn, and nothing fails but members that crash."""

    def __init__(self, seed: int, *, far: bool, race: bool, moves: bool, leases: bool, calm: bool) -> None:
        prefix = "calm" if calm else "lease" if leases else "share"
        super().__init__(Random(f"{prefix}:{seed}"))
        if calm:
            far, race, moves, leases = CALM_KINDS[seed % len(CALM_KINDS)]
        self.calm = calm
        self.leases = leases
        if leases:
            far, race, moves = True, seed % 4 == 2, seed % 2 == 1
        random = self.random
        self.far = far or moves
        self.moves = moves
        self.head_start_s = HEAD_START_S if far and not race else 0.0
        self.brokers = random.randint(5, random.choices((9, 16, 40), (3, 2, 1))[0])
        self.duration_s = random.choice((4.0, 6.0)) if self.brokers > 16 else random.choice((4.0, 6.0, 10.0))
        if moves:
            self.brokers, self.duration_s = random.randint(3, 12), random.choice((8.0, 14.0))
        if leases:
            self.duration_s = random.choice((10.0, 16.0, 24.0))
        self.edges = self.random_edges() if self.often(0.4) else None
        self.faultless = leases and self.often(0.3)
        """Nothing fails, so leases end when they should."""

    def seat(self, home: str) -> str:
        """Return where a member connects."""
        return self.broker() if self.far and self.often(0.6) else home


def share_scenario(
    seed: int,
    *,
    far: bool = False,
    race: bool = False,
    moves: bool = False,
    leases: bool = False,
    starts: bool = False,
    calm: bool = False,
) -> str:
    """Return the text of a scenario file. `starts`: the same, later, and most durable subscriptions and groups begin
    with what was published before."""
    draw = ShareDraw(seed, far=far, race=race, moves=moves, leases=leases, calm=calm)
    random = draw.random
    publishers = [random_publisher(draw, number) for number in range(random.randint(1, 3))]
    members = [
        member for number in range(random.randint(1, 3)) for member in _share(draw, f"share{number}", number)
    ]
    plain = [random_subscriber(draw, number) for number in range(random.randint(0, 2))]
    if starts:
        _begin_with_history(seed, draw, publishers, members)
    ordered = any(member.get("order") in ORDERED for member in members)
    for subscriber in plain if ordered else ():  # who shares the order with the durable ones
        subscriber["order"] = random.choice(("none", *ORDERED))
    tables: list[tuple[str, Table]] = [
        (
            "",
            {
                "seed": seed,
                "duration_s": draw.duration_s + HISTORY_S * starts,
                "settle_s": SETTLE_S,
            },
        ),
        ("[network]", _network(draw)),
        ("[overlay]", _overlay(draw)),
        *(("[[link]]", link) for link in _slow_links(draw, members)),
        *(("[[publisher]]", publisher) for publisher in publishers),
        *(("[[subscriber]]", subscriber) for subscriber in (*members, *plain)),
    ]
    faults = [] if draw.faultless else list(_all_faults(draw, members, ordered))
    if starts:
        _fail_later(faults, {member["at"] for member in members if "start" in member})
    tables += (("[[fault]]", fault) for fault in faults)
    if ordered and draw.often(0.4):
        tables.append(("[ordering]", _ordering(draw)))
    return scenario_text(tables)


def _fail_later(faults: Sequence[Table], archives: set[str]) -> None:
    """Let everything fail as much later as it happens. Brokers with an archive keep their disks: what was not written
    yet would be missing, and a recorder may be forgotten."""
    for fault in faults:
        if fault.get("state") == "lost" and archives.intersection(fault["nodes"]):
            fault["state"] = "kept"
        for key in ("at_s", "until_s"):
            fault[key] = round(fault[key] + HISTORY_S, 3)


def _begin_with_history(
    seed: int, draw: ShareDraw, publishers: Sequence[Table], members: Sequence[Table]
) -> None:
    random = Random(f"share-starts:{seed}")
    for publisher in publishers:
        publisher["start_s"] += BEGIN_S
    starts = {member.get("durable", member.get("group")): random.random() < 0.8 for member in members}
    for member in members:
        for key in ("subscribe_at_s", "unsubscribe_at_s"):
            if key in member:
                member[key] = round(member[key] + HISTORY_S, 3)
        if starts[member.get("durable", member.get("group"))]:
            member["start"] = "earliest"
            if member.get("order") in ORDERED:
                member["order"] = "fifo"


def _network(draw: ShareDraw) -> Table:
    far_away = {"kind": "constant", "value": draw.random.choice((10, 40, 120))}
    network: Table = {"delay_ms": far_away if draw.moves else random_delay(draw)}
    if draw.often(0.2):
        network["loss"] = {"kind": "bernoulli", "rate": 0.05}
    return network


def _overlay(draw: ShareDraw) -> Table:
    overlay: Table = {
        "mode": "guaranteed",
        "delta": draw.random.choice((1, 2, 2, 3)),
        "window": draw.random.choice((1, 8, 64)),
    }
    if draw.edges is None:
        overlay["shape"] = {"kind": "random", "brokers": draw.brokers, "degree": 3}
    else:
        overlay["edges"] = draw.edges
    return overlay


def _ordering(draw: ShareDraw) -> Table:
    """Return a layout of two servers on the same three nodes, each with a standby."""
    topics = draw.random.sample((*TOPICS, "/dead"), len(TOPICS) + 1)
    cut = draw.random.randint(1, len(TOPICS))
    nodes = [f"b{number}" for number in range(SEQUENCERS)]
    servers = [
        {"node": nodes[number], "topics": part, "standby": nodes[number + 1], "witness": nodes[number - 1]}
        for number, part in enumerate((topics[:cut], topics[cut:]))
    ]
    return {"causal": draw.often(0.3), "servers": servers}


def _share(draw: ShareDraw, name: str, number: int) -> Iterator[Table]:
    """Yield the subscribers of one durable subscription or group."""
    home, topics = draw.broker(), draw.topics()
    common: Table = {"topics": topics}
    if draw.leases:
        common["keep_for_s"] = draw.random.choice(LEASES_S)
    if draw.often(0.3):
        common["filter"] = draw.random.choice(FILTERS)
    if draw.moves or draw.often(0.5):
        yield from _holders(draw, name, number, home, common)
    else:
        yield from _members(draw, name, number, home, common)


def _holders(draw: ShareDraw, name: str, number: int, home: str, common: Table) -> Iterator[Table]:
    """Yield the holders of a durable subscription, one after the other: each goes on where the last one left."""
    common |= {
        "durable": name,
        "order": draw.random.choice(("none", "none", "fifo") if draw.moves else ORDERS),
    }
    count = draw.random.choice((2, 3, 5) if draw.moves else (1, 1, 2, 3))
    # The last one has until the end of the run to be done with everything.
    times = sorted(draw.time_s(draw.head_start_s, 0.9 * draw.duration_s) for _ in range(2 * count - 1))
    for index in range(count):
        holder = {"name": f"d{number}-{index}", "at": draw.seat(home), **common, **_work(draw)}
        holder["subscribe_at_s"] = times[2 * index] if index or not draw.head_start_s else 0.0
        if index + 1 < count:
            holder["unsubscribe_at_s"] = round(times[2 * index + 1] + 0.001, 3)
            times[2 * index + 2] = max(times[2 * index + 2], holder["unsubscribe_at_s"])
        elif draw.leases and index and draw.often(0.5):
            holder["subscribe_at_s"] = round(holder["subscribe_at_s"] + draw.random.choice(ABSENCES_S), 3)
        yield holder


def _members(draw: ShareDraw, name: str, number: int, home: str, common: Table) -> Iterator[Table]:
    """Yield the members of a group, some of which come late or leave. The first one stays."""
    common["group"] = name
    if draw.often(0.4):
        common["group_by"] = draw.random.choice(("x", "y"))
    for index in range(draw.random.randint(1, 5)):
        member = {"name": f"w{number}-{index}", "at": draw.seat(home), **common, **_work(draw)}
        first_s = draw.head_start_s if index else 0.0
        member["subscribe_at_s"] = first_s
        if draw.often(0.4) and (index or not draw.head_start_s):
            member["subscribe_at_s"] = draw.time_s(first_s, 0.6 * draw.duration_s)
        if index and draw.often(0.3):
            member["unsubscribe_at_s"] = draw.time_s(0.7 * draw.duration_s, draw.duration_s)
        if draw.leases:
            _come_and_go(draw, member)
        yield member


def _come_and_go(draw: ShareDraw, member: Table) -> None:
    """Let a member of a group, maybe the first or the last one, be there for a while only."""
    if draw.often(0.3):
        member["subscribe_at_s"] = draw.time_s(draw.head_start_s, 0.9 * draw.duration_s)
        member["subscribe_at_s"] += draw.random.choice((0.0, *ABSENCES_S))
        member.pop("unsubscribe_at_s", None)
    if draw.often(0.6):
        begin_s = member["subscribe_at_s"] + 0.1
        member["unsubscribe_at_s"] = draw.time_s(begin_s, begin_s + 0.4 * draw.duration_s)


def _work(draw: ShareDraw) -> Table:
    keys: Table = {}
    work = draw.random.choice(WORKS)
    if work is not None:
        keys["work_ms"] = work
    if draw.often(0.5):
        keys["max_unacked"] = draw.random.choice((1, 2, 10))
    if draw.often(0.3):
        keys["ack"] = "manual"
    if draw.often(0.2):
        keys |= {"max_deliveries": draw.random.randint(1, 3), "dead_letter": "/dead"}
    return keys


def _slow_links(draw: ShareDraw, members: Sequence[Table]) -> list[Table]:
    """Return slow links between some members and their brokers: what is under way then is lost in a crash."""
    slow = [member for member in members if draw.often(0.2)]
    delay_ms = {"kind": "constant", "value": draw.random.choice((20, 200))}
    return [{"between": [member["name"], member["at"]], "delay_ms": delay_ms} for member in slow]


def _all_faults(draw: ShareDraw, members: Sequence[Table], ordered: bool) -> list[Table]:
    if draw.calm:
        return _deaths(draw, members)
    faults = [*_faults(draw, [member["name"] for member in members], ordered), *_deaths(draw, members)]
    return [*faults, *_lonely_homes(draw, members)] if draw.leases else faults


def _faults(draw: ShareDraw, members: Sequence[str], ordered: bool) -> list[Table]:
    """`ordered`: sequencers keep their disks. (The order campaign is about those that do not.)"""
    keepers = {f"b{number}" for number in range(SEQUENCERS if ordered else 0)}
    faults = []
    for _ in range(draw.random.randint(4, 12) if draw.moves else draw.random.randint(0, 6)):
        begin_s = draw.time_s(draw.head_start_s, 0.9 * draw.duration_s)
        length_s = draw.random.choice((0.05, 0.3, 2.0, 4.0, 8.0)) * draw.random.uniform(0.5, 1.0)
        times = {"at_s": begin_s, "until_s": min(draw.duration_s, round(begin_s + length_s, 3))}
        fault = random_fault(draw, members)
        if fault.get("state") == "lost" and keepers.intersection(fault["nodes"]):
            fault["state"] = "kept"
        faults.append(fault | times)
    return faults


def _deaths(draw: ShareDraw, members: Sequence[Table]) -> list[Table]:
    """Return crashes and pauses of members, again and again, sometimes together with their brokers. In calm scenarios
    they crash, alone."""
    if not draw.calm and draw.often(0.3):
        return []
    faults: list[Table] = []
    for member in draw.random.sample(members, draw.random.randint(1, len(members))):
        at_s = draw.time_s(draw.head_start_s, 0.6 * draw.duration_s)
        for _ in range(draw.random.randint(1, 4)):
            lengths_s = (0.1, 0.5, 2.0, 7.0, 12.0) if draw.leases else (0.01, 0.1, 0.5, 2.0)
            until_s = round(at_s + draw.random.choice(lengths_s), 3)
            if until_s >= draw.duration_s:
                break
            nodes = [member["name"]]
            if not draw.calm and draw.often(0.2):
                nodes.append(member["at"])
            is_pause = not draw.calm and draw.often(0.25)
            kind: Table = {"kind": "pause"} if is_pause else {"kind": "crash", "state": "kept"}
            faults.append(kind | {"nodes": nodes, "at_s": at_s, "until_s": until_s})
            at_s = round(until_s + draw.random.choice((0.005, 0.05, 0.3, 1.0)), 3)
    return faults


def _lonely_homes(draw: ShareDraw, members: Sequence[Table]) -> Iterator[Table]:
    """Yield crashes and pauses of brokers about when a member leaves them: leases run out while they are down."""
    for member in members:
        left_s = member.get("unsubscribe_at_s", draw.duration_s)
        at_s = round(max(left_s + draw.random.uniform(-0.5, 1.0), draw.head_start_s), 3)
        if at_s + 0.5 < draw.duration_s and draw.often(0.3):
            until_s = min(draw.duration_s, round(at_s + draw.random.choice((0.3, 2.0, 7.0, 12.0)), 3))
            kind: Table = {"kind": "pause"} if draw.often(0.3) else {"kind": "crash", "state": "kept"}
            yield kind | {"nodes": [member["at"]], "at_s": at_s, "until_s": until_s}
