"""What a scenario expands to: subscriptions over time, links, faults and generated clients."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from breadth import examples
from tidings.scenarios.file.expand import RunPlan, expand
from tidings.scenarios.file.links import LOCAL
from tidings.scenarios.file.load import parse_scenario
from tidings.scenarios.file.schema import (
    BernoulliLoss,
    ConstantDelay,
    Network,
    NoLoss,
    PowerlawPopularity,
    UniformPopularity,
    Workload,
)
from tidings.scenarios.file.workload import generate_clients, topic_weights

SOURCE = Path(__file__).parents[3] / "src"
S0 = "[[subscriber]]\nname = 's0'\nat = 'b0'\n"


def plan_of(text: str) -> RunPlan:
    return expand(parse_scenario(text))


def timeline(text: str) -> list[tuple[float, tuple[str, ...] | None]]:
    (subscriber,) = plan_of(S0 + text).subscribers
    return [tuple(step) for step in subscriber.timeline]


TIMELINES = [
    ("", [(0.0, ("/**",))]),
    ("subscribe_at_s = 2\nunsubscribe_at_s = 3", [(2.0, ("/**",)), (3.0, None)]),
    ("topics = ['/b', '/a', '/b']", [(0.0, ("/b", "/a"))]),
    (
        "topics = ['/a', '/b']\nchanges = [{ at_s = 5, add = ['/c'] }, { at_s = 9, remove = ['/a'] }]",
        [(0.0, ("/a", "/b")), (5.0, ("/a", "/b", "/c")), (9.0, ("/b", "/c"))],
    ),
    (
        "topics = ['/a']\nchanges = [{ at_s = 9, remove = ['/c'] }, { at_s = 5, add = ['/c'] }]",
        [(0.0, ("/a",)), (5.0, ("/a", "/c")), (9.0, ("/a",))],
    ),
    (
        "topics = ['/a']\nchanges = [{ at_s = 5, remove = ['/a'] }, { at_s = 6, add = ['/b'] }]",
        [(0.0, ("/a",)), (5.0, None), (6.0, ("/b",))],
    ),
    (
        "topics = ['/a']\nchanges = [{ at_s = 5, remove = ['/a'] }]\nunsubscribe_at_s = 8",
        [(0.0, ("/a",)), (5.0, None)],
    ),
    ("topics = ['/a']\nchanges = [{ at_s = 5, add = ['/a'] }]", [(0.0, ("/a",))]),
    ("topics = ['/a']\nchanges = [{ at_s = 5, remove = ['/a'], add = ['/a'] }]", [(0.0, ("/a",))]),
    (
        "topics = ['/a']\nchanges = [{ at_s = 5, add = ['/b'] }, { at_s = 5, remove = ['/a'] }]",
        [(0.0, ("/a",)), (5.0, ("/b",))],
    ),
    ("topics = ['/a']\nchanges = [{ at_s = 0, add = ['/b'] }]", [(0.0, ("/a", "/b"))]),
]


@pytest.mark.parametrize(("text", "steps"), TIMELINES)
def test_timeline(text: str, steps: list[tuple[float, tuple[str, ...] | None]]) -> None:
    assert timeline(text) == steps


LINKS = """
network = { delay_ms = { kind = "constant", value = 10 }, loss = { kind = "bernoulli", rate = 0.1 } }
site = [{ name = "eu", nodes = ["b0", "b1", "away", "near"] }, { name = "us", nodes = ["b2", "b3"] }]
link = [
    { between = ["us", "eu"], delay_ms = { kind = "constant", value = 90 }, bandwidth_mbps = 5 },
    { between = ["eu", "eu"], delay_ms = { kind = "constant", value = 1 } },
    { between = ["b3", "b0"], loss = { kind = "none" } },
    { between = ["b1", "far"], delay_ms = { kind = "constant", value = 7 } },
]
publisher = [{ name = "p0", at = "b1" }, { name = "away", at = "b2" }, { name = "far", at = "b1" }]
subscriber = [{ name = "near", at = "b0" }]
"""


def test_links_by_nodes_then_sites_then_network() -> None:
    plan = plan_of(LINKS)
    between = plan.links.between
    assert between("b0", "b2") == between("b2", "b0")
    assert (between("b0", "b2").delay_ms, between("b0", "b2").bandwidth_mbps) == (
        ConstantDelay(value=90.0),
        5.0,
    )
    assert between("b0", "b2").loss == BernoulliLoss(rate=0.1), "what a link does not say is as in [network]"
    assert between("b0", "b1").delay_ms == ConstantDelay(value=1.0), "one site twice is the links inside it"
    assert between("b2", "b3").delay_ms == ConstantDelay(value=10.0)
    assert between("b4", "b9") == between("b0", "b4"), "outside of the sites [network] holds"
    assert (between("b0", "b3").loss, between("b0", "b3").delay_ms) == (NoLoss(), ConstantDelay(value=90.0))


def test_clients_sit_beside_their_broker() -> None:
    plan = plan_of(LINKS)
    between = plan.links.between
    assert between("p0", "b1") is LOCAL, "the link inside the site does not name the client"
    assert between("b1", "p0") is LOCAL
    assert between("near", "b0") is LOCAL, "nor does it if the site lists the client"
    assert between("p0", "b2").delay_ms == ConstantDelay(value=90.0), "to another broker it is no neighbour"
    assert between("far", "b1").delay_ms == ConstantDelay(value=7.0)
    assert between("far", "b1").loss == NoLoss(), "what the link does not say stays local"
    assert between("away", "b2").delay_ms == ConstantDelay(value=90.0), "its site is not its broker's"
    assert between("away", "b2").loss == NoLoss()
    assert plan.sites == {
        "b0": "eu", "b1": "eu", "b2": "us", "b3": "us", "p0": "eu", "far": "eu", "away": "eu", "near": "eu"
    }  # fmt: skip


def test_network_is_the_default_link() -> None:
    spec = plan_of("").links.between("b0", "b1")
    network = Network()
    for key in network.__struct_fields__:
        assert getattr(spec, key) == getattr(network, key)


FAULTS = """
duration_s = 20.0
site = [{ name = "eu", nodes = ["b0", "b1"] }, { name = "us", nodes = ["b2"] }]
subscriber = [{ name = "s0", at = "b1" }]
fault = [
    { kind = "crash", at_s = 1.5, nodes = ["b3", "b4"] },
    { kind = "link", at_s = 2, until_s = 3, between = ["b1", "b2"], direction = "forward" },
    { kind = "link", at_s = 2, until_s = 300, between = ["us", "eu"] },
    { kind = "partition", at_s = 4, until_s = 5, groups = [["b0", "b1"], ["b2", "b3"]] },
    { kind = "loss", at_s = 6 },
]
"""


def test_faults_have_times_targets_and_groups() -> None:
    planned = plan_of(FAULTS).faults
    assert [(fault.kind, fault.target, fault.at_s, fault.until_s) for fault in planned] == [
        ("crash", "b3,b4", 1.5, 20.0),
        ("link", "b1>b2", 2.0, 3.0),
        ("link", "us-eu", 2.0, 20.0),
        ("partition", "b0,b1|b2,b3", 4.0, 5.0),
        ("loss", "*", 6.0, 20.0),
    ]
    assert [fault.groups for fault in planned] == [
        (),
        (("b1",), ("b2",)),
        (("b2",), ("s0", "b0", "b1")),
        (("b0", "b1"), ("b2", "b3")),
        (),
    ]


def test_who_does_not_hear_whom() -> None:
    crash, forward, sites, partition, loss = plan_of(FAULTS).faults
    assert crash.nodes == ("b3", "b4")
    assert crash.unheard() == loss.unheard() == {}
    assert forward.unheard() == {"b1": {"b2"}}
    assert sites.unheard() == {"b2": {"s0", "b0", "b1"}, "s0": {"b2"}, "b0": {"b2"}, "b1": {"b2"}}
    apart = {"b0": {"b2", "b3"}, "b1": {"b2", "b3"}, "b2": {"b0", "b1"}, "b3": {"b0", "b1"}}
    assert partition.unheard() == apart


def test_with_an_order_who_sits_beside_a_broker_is_struck_with_it() -> None:
    text = """
    subscriber = [{ name = "s", at = "b1", order = "total" }, { name = "t", at = "b1" }]
    fault = [
        { kind = "crash", at_s = 1, nodes = ["b1", "s"] },
        { kind = "partition", at_s = 2, groups = [["b0"], ["b1"], ["s"]] },
    ]
    [[ordering.servers]]
    node = "b1"
    topics = ["/**"]
    """
    crash, partition = plan_of(text).faults
    assert crash.nodes == ("b1", "order:b1", "s")
    assert partition.groups == (("b0",), ("b1",), ("s",))
    assert partition.sides == (("b0",), ("b1", "order:b1", "t"), ("s",))
    assert partition.unheard()["t"] == {"b0", "s"}


@settings(max_examples=examples(60))
@given(
    topics=st.integers(min_value=1, max_value=60),
    share=st.floats(min_value=0, max_value=1),
    shape=st.floats(min_value=0, max_value=10),
    seed=st.integers(),
    brokers=st.integers(min_value=1, max_value=30),
)
def test_generated_clients(topics: int, share: float, shape: float, seed: int, brokers: int) -> None:
    per_subscriber = max(1, round(share * topics))
    workload = Workload(
        publishers=7,
        subscribers=20,
        topics=topics,
        topics_per_subscriber=per_subscriber,
        popularity=PowerlawPopularity(shape=shape),
        count=5,
        order="fifo",
        arrival="periodic",
        size_bytes=9,
    )
    names = tuple(f"b{index}" for index in range(brokers))
    publishers, subscribers = generate_clients(workload, names, seed)
    assert [client.name for client in publishers] == [f"p{index}" for index in range(7)]
    assert [client.name for client in subscribers] == [f"s{index}" for index in range(20)]
    everything = tuple(f"/t{rank}" for rank in range(topics))
    for publisher in publishers:
        assert (publisher.topics, publisher.rate_hz, publisher.count) == (everything, 5.0, 5)
        assert (publisher.arrival, publisher.size_bytes) == ("periodic", 9)
    for subscriber in subscribers:
        assert subscriber.topics is not None
        assert len(set(subscriber.topics)) == len(subscriber.topics) == per_subscriber
        assert set(subscriber.topics) <= set(everything)
        assert subscriber.order == "fifo"
    seats = Counter(client.at for client in publishers) + Counter(client.at for client in subscribers)
    assert set(seats) <= set(names)
    assert max(seats.values()) <= 27 // brokers + 1
    assert (publishers, subscribers) == generate_clients(workload, names, seed)


def test_topic_weights() -> None:
    assert topic_weights(UniformPopularity(), 3) == [1.0, 1.0, 1.0]
    assert topic_weights(PowerlawPopularity(shape=2.0), 3) == [1.0, 0.25, pytest.approx(1 / 9)]


def share_of_first_topic(topics_per_subscriber: int) -> float:
    """How many of 4,000 subscribers of 3 topics with weights 1, 1/2, 1/3 have the first."""
    workload = Workload(
        publishers=0,
        subscribers=4000,
        topics=3,
        topics_per_subscriber=topics_per_subscriber,
        popularity=PowerlawPopularity(shape=1.0),
    )
    _, subscribers = generate_clients(workload, ("b0",), 1)
    return sum("/t0" in (subscriber.topics or ()) for subscriber in subscribers) / 4000


def test_topics_are_drawn_by_popularity_without_repetition() -> None:
    assert share_of_first_topic(1) == pytest.approx(6 / 11, abs=0.03)
    second = (3 / 11) * (1 / (1 + 1 / 3)) + (2 / 11) * (1 / (1 + 1 / 2))
    assert share_of_first_topic(2) == pytest.approx(6 / 11 + second, abs=0.03)
    assert share_of_first_topic(3) == 1.0


def test_popularity_counts_among_the_rare_topics_too() -> None:
    """With weights 1, 2**-10, 3**-10 nearly every draw repeats the first topic: the rest is raced for."""
    workload = Workload(
        publishers=0,
        subscribers=2000,
        topics=3,
        topics_per_subscriber=2,
        popularity=PowerlawPopularity(shape=10.0),
    )
    _, subscribers = generate_clients(workload, ("b0",), 1)
    second = sum("/t1" in (subscriber.topics or ()) for subscriber in subscribers) / 2000
    assert second == pytest.approx(3**10 / (2**10 + 3**10), abs=0.01)


def test_few_topics_are_all_taken_by_default() -> None:
    plan = plan_of("[workload]\ntopics = 4\nsubscribers = 3")
    assert [subscriber.timeline[0].topics for subscriber in plan.subscribers] == [
        ("/t0", "/t1", "/t2", "/t3")
    ] * 3


def test_seeds_differ() -> None:
    text = "[workload]\npublishers = 1\nsubscribers = 5"
    first, second = plan_of(f"seed = 1\n{text}"), plan_of(f"seed = 2\n{text}")
    assert first.subscribers != second.subscribers


PRINT_PLAN = """
import hashlib
from tidings.scenarios.file.expand import expand
from tidings.scenarios.file.load import parse_scenario
text = '''overlay.shape = { kind = "random", brokers = 60, degree = 4 }
[[site]]
name = "eu"
nodes = ["b3", "b1", "p0", "b2"]
[[fault]]
kind = "link"
at_s = 1
between = ["eu", "eu2"]
[[site]]
name = "eu2"
nodes = ["b9", "b8", "s3"]
[workload]
topics = 12
'''
plan = expand(parse_scenario(text))
shown = repr((plan.topology, plan.publishers, plan.subscribers, plan.faults, plan.sites))
print(hashlib.sha256(shown.encode()).hexdigest())
"""


def test_plans_are_the_same_under_any_hash_seed() -> None:
    digests = [
        subprocess.run(
            [sys.executable, "-c", PRINT_PLAN],
            env={**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(SOURCE)},
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        ).stdout
        for hash_seed in ("0", "1", "4242")
    ]
    assert len(digests[0].strip()) == 64
    assert digests[0] == digests[1] == digests[2]
