"""Defines the scenario file: one struct per table, one field per key, with its default and its bounds.

`docs/scenarios.md` explains the keys to users. Rules about one value (type, bounds, known words) are here; rules
that take two values are in `scenarios/file/check.py`.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct, field

from tidings.core.events.event import MAX_EVENT_BYTES
from tidings.core.overlay.epidemic.settings import Algorithm, CachePolicy, Strategy, Weights
from tidings.core.overlay.modes import BrokerMode

MAX_BROKERS = 100_000
MAX_CLIENTS = 1_000_000
MAX_TOPICS = 1_000_000
MAX_SECONDS = 1e9
MAX_DELAY_MS = 86_400_000.0

Seconds = Annotated[float, Meta(ge=0, le=MAX_SECONDS)]
PositiveSeconds = Annotated[float, Meta(gt=0, le=MAX_SECONDS)]
Milliseconds = Annotated[float, Meta(ge=0, le=MAX_DELAY_MS)]
PositiveMilliseconds = Annotated[float, Meta(gt=0, le=MAX_DELAY_MS)]
Share = Annotated[float, Meta(ge=0, le=1)]
LossRate = Annotated[float, Meta(ge=0, lt=1)]
RateHz = Annotated[float, Meta(gt=0, le=1e9)]
SizeBytes = Annotated[int, Meta(ge=0, le=MAX_EVENT_BYTES)]
Events = Annotated[int, Meta(ge=0, le=2**53)]
Name = Annotated[str, Meta(min_length=1, max_length=255, extra={"printable": True})]
Names = Annotated[tuple[Name, ...], Meta(min_length=1)]
Pair = tuple[Name, Name]
Brokers = Annotated[int, Meta(ge=1, le=MAX_BROKERS)]
Degree = Annotated[int, Meta(ge=1, le=MAX_BROKERS)]
AttributeInteger = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
AttributeScalar = bool | AttributeInteger | float | str
TopicNames = Annotated[tuple[str, ...], Meta(min_length=1)]

Order = Literal["none", "fifo", "causal", "total"]
Ack = Literal["auto", "manual"]
Start = Literal["new", "earliest"]
Arrival = Literal["poisson", "periodic"]
Mode = Literal[BrokerMode, "peers"]


class Table(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A table of the file: immutable, keyword-only, without unknown keys."""


class Kinded(Table, frozen=True, kw_only=True, tag_field="kind"):
    """A table whose other keys depend on its `kind`."""


# Distributions of a link's delay. Negative draws count as zero.


class ConstantDelay(Kinded, frozen=True, kw_only=True, tag="constant"):
    value: Milliseconds = 10.0


class UniformDelay(Kinded, frozen=True, kw_only=True, tag="uniform"):
    low: Milliseconds
    high: Milliseconds


class NormalDelay(Kinded, frozen=True, kw_only=True, tag="normal"):
    mean: Milliseconds
    std: Milliseconds


class LognormalDelay(Kinded, frozen=True, kw_only=True, tag="lognormal"):
    median: PositiveMilliseconds
    sigma: Annotated[float, Meta(ge=0, le=10)]


class EmpiricalDelay(Kinded, frozen=True, kw_only=True, tag="empirical"):
    values: Annotated[tuple[Milliseconds, ...], Meta(min_length=1)]


Delay = ConstantDelay | UniformDelay | NormalDelay | LognormalDelay | EmpiricalDelay


# Loss on a link: independent for each message, or in bursts.


class NoLoss(Kinded, frozen=True, kw_only=True, tag="none"):
    pass


class BernoulliLoss(Kinded, frozen=True, kw_only=True, tag="bernoulli"):
    rate: LossRate


class GilbertLoss(Kinded, frozen=True, kw_only=True, tag="gilbert"):
    """Loses `rate` of all messages, in bursts of `burst` on average: the bad one of two states loses everything."""

    rate: LossRate
    burst: Annotated[float, Meta(ge=1, le=1e9)]


Loss = NoLoss | BernoulliLoss | GilbertLoss


class Network(Table, frozen=True, kw_only=True):
    delay_ms: Delay = ConstantDelay()
    loss: Loss = NoLoss()
    duplicate: Share = 0.0
    reorder: Share = 0.0
    bandwidth_mbps: Annotated[float, Meta(ge=0, le=1e9)] = 0.0


# The shape of the broker network.


class TreeShape(Kinded, frozen=True, kw_only=True, tag="tree"):
    """A complete tree, filled level by level, by node degree or by children per node. Default: degree 3."""

    brokers: Brokers = 40
    degree: Degree | None = None
    children: Degree | None = None


class RandomShape(Kinded, frozen=True, kw_only=True, tag="random"):
    """A random tree, drawn from the seed, in which no broker has more than `degree` neighbours."""

    brokers: Brokers = 40
    degree: Degree = 3


class ChainShape(Kinded, frozen=True, kw_only=True, tag="chain"):
    brokers: Brokers = 40


class StarShape(Kinded, frozen=True, kw_only=True, tag="star"):
    brokers: Brokers = 40


Shape = TreeShape | RandomShape | ChainShape | StarShape

DEFAULT_SHAPE = TreeShape(brokers=40, degree=3)


class Overlay(Table, frozen=True, kw_only=True):
    """Has `shape` or `edges`, not both; with neither, `DEFAULT_SHAPE`."""

    mode: Mode = "guaranteed"
    delta: Annotated[int, Meta(ge=0, le=32)] = 2
    shape: Shape | None = None
    edges: Annotated[tuple[Pair, ...], Meta(min_length=1, max_length=MAX_BROKERS)] | None = None
    window: Annotated[int, Meta(ge=1, le=1_000_000)] = 64


class Recovery(Table, frozen=True, kw_only=True):
    algorithm: Algorithm = "auto"
    selection: Strategy = "random"
    weights: Weights = "topology"
    fanout: Annotated[int, Meta(ge=1, le=MAX_BROKERS)] = 3
    interval_ms: PositiveMilliseconds = 1000.0
    window: Annotated[float, Meta(gt=0, le=1)] = 0.25
    pull: Literal["advertise", "solicit"] = "solicit"
    push: Literal["event", "digest"] = "event"
    routing: Literal["direct", "tree"] = "direct"
    rounds: Annotated[int, Meta(ge=0, le=1_000_000)] = 0
    adaptive: bool = False
    redundancy: Annotated[int, Meta(ge=0, le=128)] = 0
    block_bytes: Annotated[int, Meta(ge=1, le=65_507)] = 1472
    buffer_events: Annotated[int, Meta(ge=1, le=2**31)] = 1500
    cache_policy: CachePolicy = "fifo"
    forward_probability: Share = 0.5
    literal: bool = False


class Server(Table, frozen=True, kw_only=True):
    """Places a sequencer beside the broker `node`, and its standby and witness beside other brokers."""

    node: Name
    topics: TopicNames
    standby: Name | None = None
    witness: Name | None = None


class Ordering(Table, frozen=True, kw_only=True):
    servers: tuple[Server, ...] = ()
    causal: bool = False
    buffer_events: Annotated[int, Meta(ge=0, le=2**31)] = 0
    ttl_ms: Milliseconds = 0.0


class ScenarioSite(Table, frozen=True, kw_only=True):
    name: Name
    nodes: Names


class LinkTable(Table, frozen=True, kw_only=True):
    """Overrides [network] between two nodes or two sites; None leaves a value as it is."""

    between: Pair
    delay_ms: Delay | None = None
    loss: Loss | None = None
    duplicate: Share | None = None
    reorder: Share | None = None
    bandwidth_mbps: Annotated[float, Meta(ge=0, le=1e9)] | None = None


# Attributes of published events, drawn for each event.


class IntAttribute(Kinded, frozen=True, kw_only=True, tag="int"):
    low: AttributeInteger = 0
    high: AttributeInteger = 9


class FloatAttribute(Kinded, frozen=True, kw_only=True, tag="float"):
    low: float = 0.0
    high: float = 1.0


class ChoiceAttribute(Kinded, frozen=True, kw_only=True, tag="choice"):
    values: Annotated[tuple[AttributeScalar, ...], Meta(min_length=1)]


class BoolAttribute(Kinded, frozen=True, kw_only=True, tag="bool"):
    pass


Attribute = IntAttribute | FloatAttribute | ChoiceAttribute | BoolAttribute


class Publisher(Table, frozen=True, kw_only=True):
    """Describes one publisher. `count` None: publish until `duration_s`."""

    name: Name
    at: Name
    topics: TopicNames = ("/t0",)
    rate_hz: RateHz = 10.0
    count: Events | None = None
    start_s: Seconds = 0.0
    arrival: Arrival = "poisson"
    size_bytes: SizeBytes = 128
    expires_ms: Milliseconds = 0.0
    """How long its events may be shown; 0: without limit."""
    attributes: dict[str, Attribute] = {}


class Change(Table, frozen=True, kw_only=True):
    at_s: Seconds
    add: tuple[str, ...] = ()
    remove: tuple[str, ...] = ()


class SubscriberTable(Table, frozen=True, kw_only=True):
    """Describes one subscriber. `topics` None: every topic. `filter` None: every event of those topics."""

    name: Name
    at: Name
    topics: TopicNames | None = None
    filter: str | None = None
    order: Order = "none"
    subscribe_at_s: Seconds = 0.0
    changes: tuple[Change, ...] = ()
    unsubscribe_at_s: Seconds | None = None
    durable: str | None = None
    group: str | None = None
    group_by: Annotated[str, Meta(min_length=1, max_length=256)] | None = None
    ack: Ack = "auto"
    work_ms: Delay | None = None
    start: Start = "new"
    max_unacked: Annotated[int, Meta(ge=1, le=1_000_000)] | None = None
    max_deliveries: Annotated[int, Meta(ge=1, le=1_000_000)] | None = None
    dead_letter: str | None = None
    keep_for_s: PositiveSeconds | None = None


# Faults. `until_s` None: until `duration_s`.


class CrashFault(Kinded, frozen=True, kw_only=True, tag="crash"):
    at_s: Seconds
    until_s: Seconds | None = None
    nodes: Names
    state: Literal["kept", "lost"] = "kept"


class LinkFault(Kinded, frozen=True, kw_only=True, tag="link"):
    at_s: Seconds
    until_s: Seconds | None = None
    between: Pair
    direction: Literal["both", "forward"] = "both"


class PartitionFault(Kinded, frozen=True, kw_only=True, tag="partition"):
    at_s: Seconds
    until_s: Seconds | None = None
    groups: Annotated[tuple[Names, ...], Meta(min_length=2)]


class PauseFault(Kinded, frozen=True, kw_only=True, tag="pause"):
    at_s: Seconds
    until_s: Seconds | None = None
    nodes: Names


class SlowFault(Kinded, frozen=True, kw_only=True, tag="slow"):
    at_s: Seconds
    until_s: Seconds | None = None
    nodes: Names
    factor: Annotated[float, Meta(ge=1, le=1e6)] = 10.0


class LossFault(Kinded, frozen=True, kw_only=True, tag="loss"):
    at_s: Seconds
    until_s: Seconds | None = None
    rate: Share = 0.2


Fault = CrashFault | LinkFault | PartitionFault | PauseFault | SlowFault | LossFault


class UniformPopularity(Kinded, frozen=True, kw_only=True, tag="uniform"):
    pass


class PowerlawPopularity(Kinded, frozen=True, kw_only=True, tag="powerlaw"):
    """Gives the topic of rank r (from 0) the weight (r + 1) ** -shape."""

    shape: Annotated[float, Meta(ge=0, le=10)] = 0.901


Popularity = UniformPopularity | PowerlawPopularity


class Workload(Table, frozen=True, kw_only=True):
    """Describes generated clients. `topics_per_subscriber` None: 10, or all topics if there are fewer."""

    publishers: Annotated[int, Meta(ge=0, le=MAX_CLIENTS)] = 10
    subscribers: Annotated[int, Meta(ge=0, le=MAX_CLIENTS)] = 100
    topics: Annotated[int, Meta(ge=1, le=MAX_TOPICS)] = 50
    topics_per_subscriber: Annotated[int, Meta(ge=1, le=MAX_TOPICS)] | None = None
    popularity: Popularity = PowerlawPopularity()
    rate_hz: RateHz = 5.0
    size_bytes: SizeBytes = 128
    count: Events | None = None
    arrival: Arrival = "poisson"
    order: Order = "none"


class Scenario(Table, frozen=True, kw_only=True):
    seed: Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)] = 7
    duration_s: PositiveSeconds = 30.0
    settle_s: Seconds = 30.0
    network: Network = Network()
    overlay: Overlay = Overlay()
    recovery: Recovery = Recovery()
    ordering: Ordering = Ordering()
    sites: tuple[ScenarioSite, ...] = field(name="site", default=())
    links: tuple[LinkTable, ...] = field(name="link", default=())
    publishers: tuple[Publisher, ...] = field(name="publisher", default=())
    subscribers: tuple[SubscriberTable, ...] = field(name="subscriber", default=())
    faults: tuple[Fault, ...] = field(name="fault", default=())
    workload: Workload | None = None
