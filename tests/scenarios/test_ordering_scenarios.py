"""Scenarios with total and causal order: what the checkers say of their traces, whatever happens meanwhile."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from breadth import few
from tidings.core.ordering.layout import ServerPlacement
from tidings.core.ordering.messages import Create
from tidings.drivers.virtual.link import VirtualLink
from tidings.drivers.virtual.streams import StreamLink
from tidings.lab.order_campaign import run_seed, verdicts
from tidings.lab.order_scenarios import order_scenario
from tidings.scenarios.file.expand import RunPlan, expand
from tidings.scenarios.file.links import LOCAL
from tidings.scenarios.file.load import load_scenario, parse_scenario
from tidings.scenarios.file.ordering import natural
from tidings.scenarios.simulate import Simulation, run_scenario
from tidings.scenarios.trace.checkers import causal_order, exactly_once, gap_free, total_order
from tidings.scenarios.trace.memory import MemoryWriter
from tidings.scenarios.trace.reader import Trace

SCENARIOS = Path(__file__).parents[2] / "scenarios"
MODES = ("best-effort", "guaranteed", "epidemic")
NS_PER_S = 10**9

NETWORK = """
duration_s = 8.0
settle_s = 20.0
[network]
delay_ms = {{ kind = "uniform", low = 1, high = 50 }}
{network}
[overlay]
mode = "{mode}"
shape = {{ kind = "chain", brokers = 5 }}
[ordering]
{ordering}
[[publisher]]
name = "p"
at = "b0"
topics = ["/a", "/b", "/c"]
rate_hz = 12.0
attributes = {{ x = {{ kind = "int", low = 0, high = 9 }} }}
[[publisher]]
name = "q"
at = "b4"
topics = ["/a", "/b", "/c"]
rate_hz = 12.0
attributes = {{ x = {{ kind = "int", low = 0, high = 9 }} }}
"""
TWO_SERVERS = 'servers = [{ node = "b1", topics = ["/c", "/a"] }, { node = "b3", topics = ["/b"] }]'
ALONE = 'servers = [{ node = "b1", topics = ["/**"], standby = "b2", witness = "b3" }]'


def network(mode: str = "guaranteed", ordering: str = TWO_SERVERS, network: str = "") -> str:
    return NETWORK.format(mode=mode, ordering=ordering, network=network)


def subscriber(name: str, at: str, rest: str = "", order: str = "total") -> str:
    return f'[[subscriber]]\nname = "{name}"\nat = "{at}"\norder = "{order}"\n{rest}\n'


def crash(node: str, at_s: float, until_s: float, state: str = "kept") -> str:
    return f'[[fault]]\nkind = "crash"\nnodes = ["{node}"]\nstate = "{state}"\nat_s = {at_s}\nuntil_s = {until_s}\n'


class Run:
    """A run in memory, its trace and its summary."""

    def __init__(self, text: str) -> None:
        self.plan: RunPlan = expand(parse_scenario(text))
        writer = MemoryWriter()
        self.simulation = Simulation(self.plan, writer)
        self.simulation.run()
        for publisher in self.simulation.publishers:
            publisher.close()
        assert self.simulation.ordering is not None
        self.ordering: dict[str, Any] = self.simulation.ordering.summary()
        self.trace: Trace = writer.trace()

    def check(self, *, gaps: bool = True, confirmed_only: bool = False) -> None:
        """The order is total, nothing comes twice and, with `gaps`, nothing lacks."""
        found = [exactly_once(self.trace), total_order(self.trace, orders=frozenset({"total", "causal"}))]
        found.append(causal_order(self.trace, orders=frozenset({"causal"})))
        if gaps:
            found.append(gap_free(self.trace, confirmed_only=confirmed_only))
            assert found[-1].counts["expected"] > 0
        assert all(verdict.holds for verdict in found), [str(verdict) for verdict in found]
        assert self.simulation.ordering is not None
        assert self.simulation.ordering.misbehaviour == []

    def shown(self, subscriber: str) -> list[str]:
        rows = [row for row in self.trace.delivered.to_pylist() if row["subscriber"] == subscriber]
        return [row["event_id"] for row in sorted(rows, key=lambda row: row["position"])]

    def subscriptions(self, subscriber: str) -> list[dict[str, Any]]:
        return [row for row in self.trace.subscribed.to_pylist() if row["subscriber"] == subscriber]

    @property
    def late(self) -> int:
        return sum(self.trace.delivered["out_of_order"].to_pylist())


# --- The service below


EVERYBODY = subscriber("s", "b0") + subscriber("t", "b4") + subscriber("u", "b2", 'topics = ["/a", "/b"]')


@pytest.mark.parametrize("mode", MODES)
def test_subscribers_see_one_order_in_every_mode(mode: str) -> None:
    run = Run(network(mode) + EVERYBODY)
    run.check()
    assert run.late == 0
    shared = set(run.shown("s")) & set(run.shown("t"))
    assert len(shared) > 100
    # It is no order of any one link: without the modules these two would not agree.
    assert [event for event in run.shown("s") if event in shared] == [
        event for event in run.shown("t") if event in shared
    ]
    assert run.ordering["stamped"] == run.trace.published.num_rows
    assert run.ordering["mean_timestamp_entries"] > 2


def test_without_an_order_the_same_subscribers_disagree() -> None:
    """Else the tests above would show nothing."""
    text = (network("best-effort") + EVERYBODY).replace('order = "total"', 'order = "none"')
    trace = Run(text).trace
    assert not total_order(trace).holds
    assert gap_free(trace).holds


@pytest.mark.parametrize("mode", MODES)
def test_topics_come_and_go_while_events_flow(mode: str) -> None:
    changes = (
        'topics = ["/a"]\nchanges = [{ at_s = 2.0, add = ["/b", "/c"] }, { at_s = 2.01, remove = ["/a"] }, '
        '{ at_s = 4.0, remove = ["/b", "/c"] }, { at_s = 5.0, add = ["/a", "/b"] }]\nunsubscribe_at_s = 7.0'
    )
    run = Run(network(mode) + EVERYBODY + subscriber("v", "b1", changes) + subscriber("w", "b3", changes))
    run.check()
    rows = run.subscriptions("v")
    assert [row["topics"] for row in rows] == [["/a"], ["/a", "/b", "/c"], ["/b", "/c"], ["/a", "/b"]]
    assert rows[1]["accepted_ns"] is None  # it ended before the servers knew of it
    assert rows[2]["accepted_ns"] > rows[2]["requested_ns"] + 1  # it waits for what the one before joins
    assert [row["cancelled_ns"] for row in rows] == [2 * NS_PER_S, 2_010_000_000, 4 * NS_PER_S, 7 * NS_PER_S]


def test_a_step_that_only_leaves_topics_holds_at_once() -> None:
    changes = 'topics = ["/a", "/b"]\nchanges = [{ at_s = 4.0, remove = ["/a"] }]'
    run = Run(network() + EVERYBODY + subscriber("v", "b1", changes))
    run.check()
    assert run.subscriptions("v")[1]["accepted_ns"] == 4 * NS_PER_S + 1
    topic_of = dict(
        zip(
            run.trace.published["event_id"].to_pylist(), run.trace.published["topic"].to_pylist(), strict=True
        )
    )
    after = [
        topic_of[row["event_id"]]
        for row in run.trace.delivered.to_pylist()
        if row["subscriber"] == "v" and row["at_ns"] > 4 * NS_PER_S
    ]
    assert set(after) == {"/b"}


@pytest.mark.parametrize("mode", MODES)
def test_filters_select_from_the_one_order(mode: str) -> None:
    run = Run(
        network(mode)
        + EVERYBODY
        + subscriber("v", "b1", 'filter = "x > 4"')
        + subscriber(
            "w", "b3", "filter = \"x > 4 AND topic = '/a'\"\nchanges = [{ at_s = 3.0, add = ['/b'] }]"
        )
    )
    run.check()
    assert run.late == 0
    attributes = {row["event_id"]: dict(row["attributes"]) for row in run.trace.published.to_pylist()}
    assert {attributes[event]["x"] for event in run.shown("v")} == {"5", "6", "7", "8", "9"}


def test_entries_may_be_patterns_that_overlap() -> None:
    ordering = 'servers = [{ node = "b1", topics = ["/b"] }, { node = "b3", topics = ["/**"] }]'
    run = Run(network(ordering=ordering) + EVERYBODY + subscriber("v", "b1", 'topics = ["/*"]'))
    run.check()
    assert len(run.shown("v")) > 100


# --- Loss


LOSS = 'loss = { kind = "bernoulli", rate = 0.1 }\nduplicate = 0.05\nreorder = 0.1'


@pytest.mark.parametrize("mode", ["best-effort", "epidemic"])
def test_over_a_service_that_loses_events_what_comes_too_late_is_marked(mode: str) -> None:
    ordering = TWO_SERVERS + "\nbuffer_events = 8\nttl_ms = 200"
    run = Run(network(mode, ordering, LOSS) + EVERYBODY)
    run.check(gaps=False)
    assert run.ordering["causal"]
    owed = gap_free(run.trace).counts
    assert 0.4 * owed["expected"] < owed["delivered"]
    if mode == "best-effort":
        assert owed["delivered"] < owed["expected"]
    assert run.simulation.subscribers[0].waiting == ""
    assert run.late > 0


def test_a_lossy_service_that_is_taken_for_reliable_stalls_and_says_so() -> None:
    run = Run(network("best-effort", TWO_SERVERS, LOSS) + EVERYBODY)
    run.check(gaps=False)
    assert "waits for event" in run.simulation.subscribers[0].waiting


def test_lossy_links_do_no_harm_below_a_service_that_repairs_them() -> None:
    run = Run(network("guaranteed", TWO_SERVERS, LOSS) + EVERYBODY)
    run.check()
    assert run.late == 0


# --- Faults


def test_the_standby_goes_on_when_a_server_is_gone() -> None:
    run = Run(network() + EVERYBODY + crash("b1", 2.5, 7.0))
    run.check()
    assert run.ordering["servers"]["b1"]["roles"]["order:b2"] == "active"
    # Numbers were given while it was away.
    confirmed = [row["at_ns"] for row in run.trace.published.to_pylist() if row["topic"] in ("/a", "/c")]
    assert [at_ns for at_ns in confirmed if 5 * NS_PER_S < at_ns < 7 * NS_PER_S]


@pytest.mark.parametrize("state", ["kept", "lost"])
def test_a_server_with_a_standby_survives_with_or_without_its_disk(state: str) -> None:
    run = Run(network(ordering=ALONE) + EVERYBODY + crash("b1", 2.5, 4.0, state))
    run.check()
    assert run.ordering["servers"]["b1"]["status"] == "active"


def test_without_a_standby_a_server_goes_on_if_its_disk_is_kept() -> None:
    two = network().replace("brokers = 5", "brokers = 2").replace('at = "b4"', 'at = "b1"')
    two = two.replace(TWO_SERVERS, 'servers = [{ node = "b0", topics = ["/**"] }]')
    readers = subscriber("s", "b0") + subscriber("t", "b1")
    run = Run(two + readers + crash("b0", 2.5, 4.0))
    run.check()
    assert run.ordering["servers"]["b0"] == {
        "status": "active",
        "roles": {"order:b0": "active"},
        "numbers": run.trace.published.num_rows,
        "no_ops": 0,
    }
    lost = Run(two + readers + crash("b0", 2.5, 4.0, "lost"))
    lost.check(gaps=False)
    assert lost.ordering["servers"]["b0"]["status"] == "lost"
    assert lost.ordering["servers"]["b0"]["numbers"] is None
    # What got no number is in the trace, after all that did, and unconfirmed.
    rows = [row for row in lost.trace.published.to_pylist() if row["source"] == "p"]
    assert [row["sequence"] for row in rows] == list(range(1, len(rows) + 1))
    assert [row["at_ns"] for row in rows] == sorted(row["at_ns"] for row in rows)
    assert rows[-1]["confirmed_ns"] is None


def test_a_partition_of_the_server_holds_up_the_order_and_breaks_nothing() -> None:
    cut = '[[fault]]\nkind = "partition"\nat_s = 2.0\nuntil_s = 6.0\ngroups = [["b1"], ["b0", "b2", "b3", "b4"]]\n'
    run = Run(network() + EVERYBODY + cut)
    run.check()
    links = run.simulation.network.links
    dropped = links["p", "order:b1"].traffic()[Create].dropped
    assert dropped > 0  # its client at b0 is apart from it as well
    assert links["order:b1", "b1"].cuts == 0


def test_a_publisher_that_dies_with_numbers_leaves_no_ops() -> None:
    """Its link to its broker is slow: the numbers are there, the events are not."""
    slow = '[[link]]\nbetween = ["p", "b0"]\ndelay_ms = { kind = "constant", value = 400 }\n'
    others = subscriber("v", "b1", order="fifo") + subscriber("w", "b3", 'filter = "x > 4"', order="none")
    run = Run(network() + EVERYBODY + others + slow + crash("p", 3.0, 4.0))
    run.check(confirmed_only=True)
    assert sum(server["no_ops"] for server in run.ordering["servers"].values()) > 0
    assert {"p", "p~1"} <= set(run.trace.published["source"].to_pylist())
    # No-ops are nobody's events, and those who ask for no order do not see them.
    assert not [source for source in run.trace.published["source"].to_pylist() if source.startswith("order:")]
    assert {*run.shown("v"), *run.shown("w")} <= {*run.trace.published["event_id"].to_pylist()}
    assert not any(subscriber.waiting for subscriber in run.simulation.subscribers)


def test_a_subscriber_of_a_guaranteed_network_resumes_after_a_crash() -> None:
    run = Run(network("guaranteed") + EVERYBODY + crash("s", 3.0, 4.0, "kept"))
    run.check()
    (subscription,) = run.subscriptions("s")
    assert subscription["cancelled_ns"] is None
    assert Counter(run.shown("s")).most_common(1)[0][1] == 1


@pytest.mark.parametrize(
    ("mode", "state"), [*((mode, "lost") for mode in MODES), ("best-effort", "kept"), ("epidemic", "kept")]
)
def test_a_subscriber_that_crashes_comes_back_as_another(mode: str, state: str) -> None:
    run = Run(network(mode) + EVERYBODY + crash("s", 3.0, 4.0, state))
    run.check()
    first, second = run.subscriptions("s")
    assert first["cancelled_ns"] == 3 * NS_PER_S
    assert second["requested_ns"] == 4 * NS_PER_S < second["accepted_ns"]
    assert Counter(run.shown("s")).most_common(1)[0][1] == 1


def test_a_subscriber_that_is_down_when_its_topics_change_asks_for_the_new_ones() -> None:
    changes = 'topics = ["/a", "/b"]\nchanges = [{ at_s = 3.5, add = ["/c"], remove = ["/a"] }]'
    run = Run(network() + EVERYBODY + subscriber("v", "b1", changes) + crash("v", 3.0, 4.0))
    run.check()
    assert [row["topics"] for row in run.subscriptions("v")] == [["/a", "/b"], ["/b", "/c"]]
    paused = Run(
        network()
        + EVERYBODY
        + subscriber("v", "b1", changes)
        + '[[fault]]\nkind = "pause"\nnodes = ["v"]\nat_s = 3.0\nuntil_s = 4.0\n'
    )
    paused.check()
    assert paused.subscriptions("v")[1]["requested_ns"] == 4 * NS_PER_S


# --- Causal order


def client(name: str, at: str, topics: str, order: str) -> str:
    """It publishes and subscribes."""
    return f'[[publisher]]\nname = "{name}"\nat = "{at}"\ntopics = {topics}\nrate_hz = 15.0\n' + subscriber(
        name, at, order=order
    )


@pytest.mark.parametrize("mode", MODES)
def test_causes_come_before_effects_across_clients_that_read_and_publish(mode: str) -> None:
    clients = client("c", "b1", '["/a", "/b"]', "causal") + client("d", "b3", '["/c", "/a"]', "causal")
    run = Run(network(mode) + clients + subscriber("s", "b0", order="causal"))
    run.check()
    assert run.ordering["causal"]
    kinds = dict(zip(run.trace.nodes["node"].to_pylist(), run.trace.nodes["kind"].to_pylist(), strict=True))
    assert (kinds["c"], kinds["p"], kinds["s"]) == ("client", "publisher", "subscriber")
    assert (kinds["order:b1"], kinds["b1"]) == ("sequencer", "broker")


def test_total_order_alone_is_not_causal() -> None:
    """Else the test above would show nothing."""
    clients = client("c", "b1", '["/a", "/b"]', "total") + client("d", "b3", '["/c", "/a"]', "total")
    run = Run(network() + clients + subscriber("s", "b0"))
    run.check()
    assert not causal_order(run.trace).holds


def test_a_client_that_does_both_without_an_order() -> None:
    text = network().replace(TWO_SERVERS, "") + client("c", "b1", '["/a"]', "none") + crash("c", 3.0, 4.0)
    plan = expand(parse_scenario(text))
    writer = MemoryWriter()
    simulation = Simulation(plan, writer)
    assert simulation.ordering is None
    simulation.run()
    trace = writer.trace()
    assert exactly_once(trace).holds
    assert {"c", "c~1"} <= set(trace.published["source"].to_pylist())
    own = [event for event in trace.delivered["event_id"].to_pylist() if event.startswith("c")]
    assert len(own) > 50


# --- Where things are


def test_without_servers_the_first_broker_numbers_all_topics_in_their_natural_order() -> None:
    workload = (
        "[overlay]\nshape = { kind = 'chain', brokers = 4 }\n[workload]\ntopics = 12\norder = 'total'\n"
    )
    planned = expand(parse_scenario(workload)).ordering
    assert planned is not None
    assert [server.topics for server in planned.servers] == [tuple(f"/t{rank}" for rank in range(12))]
    assert not planned.causal
    [place] = planned.layout().servers
    assert place == ServerPlacement(
        "b0", planned.servers[0].topics, node="order:b0", standby="order:b1", witness="order:b2"
    )
    assert sorted(["/b", "/t10", "/t2", "/t"], key=natural) == ["/b", "/t", "/t2", "/t10"]
    assert expand(parse_scenario(workload.replace("total", "fifo"))).ordering is None
    two = expand(parse_scenario(workload.replace("brokers = 4", "brokers = 2"))).ordering
    assert two is not None
    assert two.brokers == ("b0",)


def test_what_a_subscriber_or_a_lossy_service_implies() -> None:
    base = network("best-effort", "", "") + subscriber("s", "b0")
    assert not _planned(base).causal
    assert _planned(base + subscriber("t", "b1", order="causal")).causal
    lossy = _planned(base.replace("[ordering]", "[ordering]\nbuffer_events = 5"))
    assert (lossy.causal, lossy.ttl_ms) == (True, 1000.0)


def _planned(text: str) -> Any:
    planned = expand(parse_scenario(text)).ordering
    assert planned is not None
    return planned


def test_a_node_of_the_ordering_has_the_links_of_its_broker() -> None:
    text = (
        network()
        + EVERYBODY
        + '[[site]]\nname = "eu"\nnodes = ["b0", "b1"]\n[[site]]\nname = "us"\nnodes = ["b3", "t"]\n'
        + '[[link]]\nbetween = ["eu", "us"]\ndelay_ms = { kind = "constant", value = 90 }\n'
        + '[[link]]\nbetween = ["b1", "b2"]\ndelay_ms = { kind = "constant", value = 7 }\n'
        + '[[link]]\nbetween = ["p", "b0"]\ndelay_ms = { kind = "constant", value = 3 }\n'
    )
    links = expand(parse_scenario(text)).links
    assert links.between("order:b1", "b1") == LOCAL
    assert links.between("order:b1", "order:b2") == links.between("b1", "b2")
    assert links.between("u", "order:b1") == links.between("b2", "b1")
    assert links.between("order:b1", "order:b3") == links.between("b1", "b3")
    assert links.between("t", "order:b1") == links.between("b3", "b1")  # it is in the site that lists it
    assert links.between("p", "order:b0") == links.between("p", "b0") != LOCAL
    assert links.between("s", "order:b0") == LOCAL


def test_the_ordering_speaks_in_datagrams_below_connections() -> None:
    run = Run(network() + EVERYBODY)
    links = run.simulation.network.links
    assert type(links["p", "order:b1"]) is VirtualLink
    assert type(links["order:b1", "order:b2"]) is VirtualLink
    assert type(links["order:b1", "b1"]) is StreamLink
    assert type(links["p", "b0"]) is StreamLink


# --- Runs as a whole


def test_the_shipped_scenario_has_the_paper_s_sites(tmp_path: Path) -> None:
    scenario = load_scenario(SCENARIOS / "ordering.toml")
    plan = expand(scenario)
    assert plan.ordering is not None
    assert len(plan.ordering.servers) == 5
    mean = plan.links.between("order:rome", "order:oslo").delay_ms
    assert (mean.mean, mean.std) == (100, 10)  # type: ignore[union-attr]
    mean = plan.links.between("p-rome", "order:rome").delay_ms
    assert (mean.mean, mean.std) == (10, 2)  # type: ignore[union-attr]
    summary = run_scenario(scenario, tmp_path)
    trace = Trace.read(tmp_path)
    for check in (exactly_once, total_order, gap_free):
        assert check(trace).holds, check(trace)
    assert json.loads((tmp_path / "summary.json").read_text())["ordering"] == summary["ordering"]
    kinds = set(trace.traffic["kind"].to_pylist())
    assert {"create", "event_stamps", "replicate", "chain_item", "change_subscription"} <= kinds


@pytest.mark.parametrize("mode", MODES)
def test_the_summary_counts_what_the_trace_says(mode: str, tmp_path: Path) -> None:
    changes = (
        'topics = ["/a"]\nfilter = "x > 2"\n'
        'changes = [{ at_s = 2.0, add = ["/b"] }, { at_s = 5.0, remove = ["/a"] }]'
    )
    text = (
        network(mode)
        + EVERYBODY
        + subscriber("v", "b1", changes)
        + crash("p", 3.0, 4.0)
        + crash("s", 5.0, 6.0)
    )
    summary = run_scenario(parse_scenario(text), tmp_path)
    trace = Trace.read(tmp_path)
    owed = gap_free(trace, strict_end=True).counts
    assert summary["published"] == trace.published.num_rows
    assert summary["delivered"] == trace.delivered.num_rows
    assert (summary["expected"], summary["delivery_ratio"]) == (
        owed["expected"],
        owed["delivered"] / owed["expected"],
    )
    assert summary["out_of_order"] == sum(trace.delivered["out_of_order"].to_pylist())
    assert summary["messages"] == sum(trace.traffic["messages"].to_pylist())


HASH = """
import sys
from pathlib import Path
from tidings.scenarios.file.load import parse_scenario
from tidings.lab.order_scenarios import order_scenario
from tidings.scenarios.simulate import run_scenario
for seed in map(int, sys.argv[2:]):
    print(run_scenario(parse_scenario(order_scenario(seed)), Path(sys.argv[1]) / str(seed))["trace_sha256"])
"""


def trace_hashes(out: Path, hash_seed: str) -> list[str]:
    command = [sys.executable, "-c", HASH, str(out), "3", "45", "12"]
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240, check=True)
    return done.stdout.split()


def test_one_seed_is_one_trace_whatever_the_hash_seed(tmp_path: Path) -> None:
    first = trace_hashes(tmp_path / "1", "1")
    assert len(set(first)) == 3
    assert trace_hashes(tmp_path / "2", "4242") == first


def test_random_scenarios_are_of_all_kinds() -> None:
    plans = [expand(parse_scenario(order_scenario(seed))) for seed in range(60)]
    assert {plan.scenario.overlay.mode for plan in plans} == set(MODES)
    orderings = [plan.ordering for plan in plans if plan.ordering is not None]
    assert any(ordering.buffer_events for ordering in orderings)
    assert any(len(ordering.servers) > 2 for ordering in orderings)
    assert {plan.causal for plan in orderings} == {True, False}
    assert any(len({*plan.seats}) < len(plan.publishers) + len(plan.subscribers) for plan in plans)
    assert any(plan.faults for plan in plans)


@pytest.mark.parametrize("first", few(range(1000, 1024, 4), 2))
def test_random_scenarios_keep_their_order(first: int) -> None:
    for seed in range(first, first + 4):
        result = run_seed(seed)
        assert not result.failed, result


def test_the_campaign_finds_a_subscriber_that_ignores_the_order() -> None:
    """What the service notifies of is shown at once: the checkers object."""
    from tidings.core.client.ordered import OrderedSubscription
    from tidings.core.events.timestamp import Timestamp
    from tidings.core.facts import Delivered

    def show_at_once(self: Any, fact: Any) -> None:
        rank = self._rank_of[fact.subscription]
        if self.key is not None and self._interest.matches(fact.stretch):
            self._owner.emit(Delivered(self.id, fact.stretch, stamp=Timestamp(rank, 1)))
        fact.ticket.done()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(OrderedSubscription, "on_delivered", show_at_once)
        run = Run(network() + EVERYBODY)
    assert any("total_order" in verdict for verdict in verdicts(run.simulation, run.trace))
