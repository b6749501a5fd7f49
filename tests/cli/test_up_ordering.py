"""`tidings up --scenario` with an order: sequencers beside the brokers, and what hits a broker hits them as well."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tidings.cli.shared.running import run
from tidings.core.client.bookmark import Reached
from tidings.drivers.address import Address
from tidings.scenarios.file.expand import RunPlan, expand
from tidings.scenarios.file.load import parse_scenario
from tidings.scenarios.live import facts as words
from tidings.scenarios.live.ledger import RunLedger
from tidings.scenarios.live.process import make_links
from tidings.scenarios.live.processes import client_groups
from tidings.scenarios.live.run import check_wall_time, run_live
from tidings.scenarios.live.sequencers import LiveOrdering
from tidings.scenarios.simulate import run_scenario
from tidings.scenarios.trace.checkers import causal_order, exactly_once, gap_free, total_order
from tidings.scenarios.trace.reader import Trace
from tidings.scenarios.trace.writer import TraceWriter

ORDERED = frozenset({"total", "causal"})
NETWORK = """
duration_s = {duration_s}
settle_s = 20.0
[overlay]
mode = "{mode}"
shape = {{ kind = "chain", brokers = 3 }}
[ordering]
{ordering}
"""
TWO_SERVERS = 'servers = [{ node = "b1", topics = ["/c", "/a"] }, { node = "b2", topics = ["/b"] }]'


def network(mode: str, ordering: str = TWO_SERVERS, duration_s: float = 6.0) -> str:
    return NETWORK.format(mode=mode, ordering=ordering, duration_s=duration_s)


def publisher(name: str, at: str) -> str:
    return (
        f'[[publisher]]\nname = "{name}"\nat = "{at}"\ntopics = ["/a", "/b", "/c"]\nrate_hz = 20.0\n'
        "attributes = { x = { kind = 'int', low = 0, high = 9 } }\n"
    )


def subscriber(name: str, at: str, rest: str = "", order: str = "total") -> str:
    return f'[[subscriber]]\nname = "{name}"\nat = "{at}"\norder = "{order}"\n{rest}\n'


def crash(node: str, at_s: float, until_s: float, state: str = "kept") -> str:
    return f'[[fault]]\nkind = "crash"\nnodes = ["{node}"]\nstate = "{state}"\nat_s = {at_s}\nuntil_s = {until_s}\n'


def plan_of(text: str) -> RunPlan:
    return expand(parse_scenario(text))


CLIENTS = publisher("p", "b0") + subscriber("s", "b0") + subscriber("t", "b2")


# --- The parts


def test_wall_time_has_what_the_simulator_has() -> None:
    notices: list[str] = []
    for text in (CLIENTS, publisher("s", "b0") + subscriber("s", "b0")):
        check_wall_time(plan_of(network("guaranteed") + text), notices.append)
    assert not notices


def make_ordering(plan: RunPlan, data: Path) -> LiveOrdering:
    assert plan.ordering is not None
    addresses = {f"order:{broker}": Address(port=1) for broker in plan.ordering.brokers}
    return LiveOrdering(plan.ordering, addresses, dict.fromkeys(plan.topology.brokers, "tidings://x:1"), data)


def test_a_publisher_and_a_subscriber_of_one_name_are_one_client(tmp_path: Path) -> None:
    plan = plan_of(
        network("guaranteed") + subscriber("s", "b0") + subscriber("t", "b2") + publisher("s", "b0")
    )
    assert sorted(client_groups(plan)) == [("s",), ("t",)]
    work = words.ClientWork(
        7,
        1,
        dict.fromkeys(plan.topology.brokers, Address(port=1)),
        tuple(words.PublisherWork(one, (), 2) for one in plan.publishers),
        tuple(
            words.SubscriberWork(one.name, one.at, None, one.order, one.timeline) for one in plan.subscribers
        ),
        None,
        make_ordering(plan, tmp_path).work,
    )
    assert words.decode_work(words.line_of(work)) == work
    links = {link.name: link for link in make_links(work)}
    roles = {name: [type(role).__name__ for role in link.roles] for name, link in links.items()}
    assert roles == {"s": ["LiveSubscriber", "LivePublisher"], "t": ["LiveSubscriber"]}
    assert all(link.sequencers is not None for link in links.values())


def test_sequencers_are_ready_when_each_server_has_a_standby_in_step(tmp_path: Path) -> None:
    ordering = make_ordering(plan_of(network("guaranteed") + CLIENTS), tmp_path)
    assert [*ordering.processes] == ["order:b1", "order:b2", "order:b0"]

    def served(server: str, active: str, standby: str, step: str = "in step") -> dict[str, dict[str, Any]]:
        return {
            active: {"servers": {server: {"role": "active", "standby": step}}},
            standby: {"servers": {server: {"role": "standby"}}},
        }

    def both(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
        return {
            node: {
                "servers": {**one.get(node, {}).get("servers", {}), **other.get(node, {}).get("servers", {})}
            }
            for node in {**one, **other}
        }

    first, second = served("b1", "order:b1", "order:b2"), served("b2", "order:b0", "order:b2")
    assert ordering.is_ready(both(first, second))
    assert not ordering.is_ready(both(first, served("b2", "order:b0", "order:b2", "none")))
    assert not ordering.is_ready(first)
    assert not ordering.is_ready({"order:b1": {}, "order:b2": {}, "order:b0": {}})


def test_a_disk_that_is_lost_takes_the_state_with_it(tmp_path: Path) -> None:
    ordering = make_ordering(plan_of(network("guaranteed") + CLIENTS), tmp_path)
    disk = ordering._disks["order:b1"]
    disk.mkdir(parents=True)
    (disk / "state").touch()
    ordering.lose_disk("order:b1")
    assert not disk.exists()
    assert ordering.processes["order:b1"].lost_its_disk
    assert not ordering.processes["order:b2"].lost_its_disk


CHANGES = 'changes = [{ at_s = 2.0, add = ["/b"] }, { at_s = 4.0, remove = ["/a"] }]\ntopics = ["/a"]'


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[RunLedger]:
    plain = subscriber("plain", "b1", order="fifo")
    writer = TraceWriter(tmp_path / "trace")
    yield RunLedger(
        writer, plan_of(network("guaranteed") + subscriber("s", "b0", CHANGES) + plain).subscribers
    )
    writer.discard()


def subscribe(ledger: RunLedger, name: str, number: int) -> words.SubscriberWork:
    ledger.take(words.Requested(name, f"{name}#{number}", ("/a",), 10))
    ledger.take(words.Accepted(name, f"{name}#{number}", 11))
    ledger.take(words.StepTaken(name))
    return ledger.subscribers[name].work(keep_resume_points=True)


def test_an_ordered_subscriber_that_crashed_asks_again_for_what_it_wants(ledger: RunLedger) -> None:
    assert ledger.subscribers["s"].work(keep_resume_points=True).topics is None
    assert subscribe(ledger, "s", 0).topics == ("/a",)
    ledger.take(words.EntriesReport("s", ("s#0@0",)))
    ledger.take(words.PublishedReport("p", 1, "/a", {}, 0, 15))
    ledger.take(words.Confirmed("p", 1, 1, 16))
    assert ledger.under_way
    ledger.crashed("s", 20)
    assert not ledger.under_way  # what was on its way to it is lost
    work = ledger.subscribers["s"].work(keep_resume_points=True)
    assert (work.topics, work.entries, work.held, work.made, work.done) == (("/a",), ("s#0@0",), (), 1, 1)
    assert subscribe(ledger, "s", 1).topics == ("/a", "/b")


def test_one_whose_order_goes_on_is_told_how_far_it_had_come(tmp_path: Path) -> None:
    writer = TraceWriter(tmp_path / "trace")
    plan = plan_of(network("guaranteed") + subscriber("s", "b0", CHANGES))
    ledger = RunLedger(writer, plan.subscribers, keeps=True, resumes=True)
    subscribe(ledger, "s", 0)
    reached = Reached(3, {0: 5, 1: 2}, {0: (4,)})
    fact = words.DeliveredReport("s", "s#0", "p", 1, 15, 17, False, "", reached)
    assert words.decode_fact(words.line_of(fact)) == fact
    ledger.take(fact)
    ledger.take(words.Cancelled("s", "s#0", 20))
    ledger.take(words.Requested("s", "s#1", ("/a", "/b"), 20))
    ledger.crashed("s", 30)
    work = ledger.subscribers["s"].work(keep_resume_points=True)
    assert (work.begun, work.reached, work.crashed_ns, work.topics) == (("/a",), reached, 30, None)
    assert [(held.subscription, held.cancelled_ns) for held in work.held] == [("s#0", 20), ("s#1", None)]
    assert words.decode_work(words.line_of(words.ClientWork(7, 1, {}, (), (work,)))).subscribers == (work,)
    assert ledger.subscribers["s"].work(keep_resume_points=False).reached is None, "its disk is lost"
    ledger.take(words.Broken("s", "no more"))
    ledger.crashed("s", 40)
    work = ledger.subscribers["s"].work(keep_resume_points=True)
    assert (work.begun, work.reached, work.held, work.made) == (None, None, (), 2)
    assert not ledger.subscribers["s"].accounts["s#1"].open
    writer.discard()


def test_a_subscriber_without_an_order_keeps_its_subscription_in_a_crash(ledger: RunLedger) -> None:
    subscribe(ledger, "plain", 0)
    ledger.crashed("plain", 20)
    ledger.crashed("a publisher", 20)
    assert [held.cancelled_ns for held in ledger.subscribers["plain"].work(keep_resume_points=True).held] == [
        None
    ]


def test_an_order_that_was_given_up_is_not_asked_for_again_until_the_topics_change(ledger: RunLedger) -> None:
    subscribe(ledger, "s", 0)
    ledger.take(words.Broken("s", "no more"))
    assert ledger.broken == ["s: no more"]
    assert ledger.subscribers["s"].work(keep_resume_points=True).topics is None
    assert subscribe(ledger, "s", 1).topics == ("/a", "/b")


# --- Real processes


class Played:
    def __init__(self, text: str, out: Path) -> None:
        self.summary: dict[str, Any] = run(
            run_live(parse_scenario(text), out, lambda share: None, lambda notice: None)
        )
        self.trace = Trace.read(out)
        self.ordering = self.summary["ordering"]

    def check(self, *, gaps: bool, confirmed_only: bool = False) -> None:
        """The order is total, nothing comes twice and, with `gaps`, nothing lacks."""
        found = [exactly_once(self.trace), total_order(self.trace, orders=ORDERED)]
        found.append(causal_order(self.trace, orders=frozenset({"causal"})))
        if gaps:
            found.append(gap_free(self.trace, confirmed_only=confirmed_only))
            assert found[-1].counts["expected"] > 0
        assert all(verdict.holds for verdict in found), ([str(verdict) for verdict in found], self.summary)
        assert self.ordering["broken"] == []
        assert {server["status"] for server in self.ordering["servers"].values()} == {"active"}

    def subscriptions(self, name: str) -> list[dict[str, Any]]:
        return [row for row in self.trace.subscribed.to_pylist() if row["subscriber"] == name]


@pytest.mark.processes
def test_the_order_is_total_whatever_fails(tmp_path: Path) -> None:
    """The active sequencers of a broker are killed with it, topics change, the network is split."""
    changes = 'topics = ["/a"]\nchanges = [{ at_s = 1.0, add = ["/b"] }, { at_s = 5.2, remove = ["/a"] }]'
    text = network("guaranteed") + CLIENTS + publisher("q", "b2") + subscriber("v", "b2", changes)
    text += crash("b1", 1.5, 4.0)
    text += '[[fault]]\nkind = "partition"\ngroups = [["b0"], ["b1", "b2"]]\nat_s = 4.5\nuntil_s = 5.5\n'
    played = Played(text, tmp_path / "out")
    played.check(gaps=True)
    trace, summary = played.trace, played.summary
    assert trace.published["confirmed_ns"].null_count == 0
    assert summary["out_of_order"] == 0
    assert played.ordering["stamped"] == trace.published.num_rows == summary["published"] > 100
    assert played.ordering["mean_timestamp_entries"] > 1
    simulated = run_scenario(parse_scenario(text), tmp_path / "simulated")
    assert set(simulated) - {"steps"} <= set(summary)
    assert played.ordering.keys() == simulated["ordering"].keys()
    for server, fields in simulated["ordering"]["servers"].items():
        assert played.ordering["servers"][server].keys() == fields.keys()
        assert played.ordering["servers"][server]["roles"].keys() == fields["roles"].keys()
    assert trace.nodes.to_pylist() == Trace.read(tmp_path / "simulated").nodes.to_pylist()
    assert [row["topics"] for row in played.subscriptions("v")] == [["/a"], ["/a", "/b"], ["/b"]]
    assert {"p", "s", "b0"} <= set(trace.traffic["from"].to_pylist())
    assert "order:b2" in set(trace.traffic["to"].to_pylist())


KILLED = (
    network("guaranteed", duration_s=7.0)
    + CLIENTS
    + publisher("q", "b2")
    + subscriber("v", "b1", 'topics = ["/a", "/b"]\nchanges = [{ at_s = 2.0, remove = ["/a"] }]')
    + subscriber("plain", "b1", 'topics = ["/a"]\nchanges = [{ at_s = 1.0, add = ["/b"] }]', "fifo")
    + "".join(crash(name, 2.5, 3.5) for name in ("s", "v", "plain"))
    + crash("s", 4.5, 5.0)
)


@pytest.mark.processes
def test_who_is_killed_resumes(tmp_path: Path) -> None:
    """As the users' client does: nothing that was published meanwhile is missed, and nothing comes twice."""
    played = Played(KILLED, tmp_path / "out")
    played.check(gaps=True)
    rows = {name: played.subscriptions(name) for name in ("s", "v", "plain")}
    assert {name: [row["topics"] for row in windows] for name, windows in rows.items()} == {
        "s": [["/**"]],
        "v": [["/a", "/b"], ["/b"]],
        "plain": [["/a"], ["/a", "/b"]],
    }
    assert all(windows[-1]["cancelled_ns"] is None for windows in rows.values())
    published = {row["event_id"]: row["at_ns"] for row in played.trace.published.to_pylist()}
    for name, windows in rows.items():
        shown = {row["event_id"] for row in played.trace.delivered.to_pylist() if row["subscriber"] == name}
        assert any(2_600_000_000 < published[event] < 3_400_000_000 for event in shown), (name, windows)


@pytest.mark.processes
def test_without_what_it_had_reached_it_would_begin_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The planted bug to the test above."""
    monkeypatch.setattr(RunLedger, "_note_reached", lambda self, subscriber, reached: None)
    played = Played(KILLED, tmp_path / "out")
    assert (
        len(played.subscriptions("s")) > 1
    )  # two kills; on a busy machine the second may come before it is back


@pytest.mark.processes
def test_over_a_service_that_loses_events_the_order_goes_on_without_them(tmp_path: Path) -> None:
    """And a subscriber that is killed comes back as another."""
    text = network("best-effort", TWO_SERVERS + "\nbuffer_events = 50\nttl_ms = 300", 4.0).replace(
        "settle_s = 20.0", "settle_s = 10.0"
    )
    text += CLIENTS + publisher("q", "b2") + subscriber("v", "b1", 'filter = "x > 4"') + crash("s", 1.5, 2.0)
    text += '[[fault]]\nkind = "link"\nbetween = ["b1", "b2"]\nat_s = 1.0\nuntil_s = 2.0\n'
    played = Played(text, tmp_path / "out")
    played.check(gaps=False)
    assert played.ordering["causal"]
    assert played.summary["delivered"] > 0
    first, *others = played.subscriptions("s")
    assert first["cancelled_ns"] >= 1_490_000_000  # the clocks of two processes
    assert [row["subscription"] for row in others] in ([], ["s#1"])  # it may come back too late
    assert all(row["requested_ns"] > first["cancelled_ns"] for row in others)
    attributes = {row["event_id"]: dict(row["attributes"]) for row in played.trace.published.to_pylist()}
    shown = [row["event_id"] for row in played.trace.delivered.to_pylist() if row["subscriber"] == "v"]
    assert {attributes[event]["x"] for event in shown} <= {"5", "6", "7", "8", "9"}


@pytest.mark.processes
def test_causes_come_before_effects_though_a_sequencer_loses_its_disk(tmp_path: Path) -> None:
    """Only its standby knows the numbers then: it must have taken over."""
    both = "".join(publisher(name, at) + subscriber(name, at, order="causal") for name, at in PLACES)
    text = network("guaranteed", "", 5.0) + both + subscriber("s", "b2", order="causal")
    played = Played(text + crash("b0", 1.5, 2.5, "lost"), tmp_path / "out")
    played.check(gaps=True)
    assert played.ordering["causal"]
    assert played.ordering["servers"]["b0"]["roles"]["order:b1"] == "active"
    kinds = dict(
        zip(played.trace.nodes["node"].to_pylist(), played.trace.nodes["kind"].to_pylist(), strict=True)
    )
    assert (kinds["c"], kinds["d"], kinds["s"]) == ("client", "client", "subscriber")
    own = [row for row in played.trace.delivered.to_pylist() if row["subscriber"] == "c"]
    assert any(row["event_id"].startswith("d:") for row in own)


PLACES = (("c", "b1"), ("d", "b2"))
