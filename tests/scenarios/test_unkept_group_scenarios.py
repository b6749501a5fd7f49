"""Groups of best-effort and epidemic scenarios, simulated: who gets what, and what the checkers promise."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tidings.scenarios.checking import verdicts
from tidings.scenarios.file.load import parse_scenario
from tidings.scenarios.simulate import run_scenario
from tidings.scenarios.trace.reader import Trace
from tidings.scenarios.trace.verdict import Verdict

modes = pytest.mark.parametrize("mode", ["best-effort", "epidemic"])
WORK = "work_ms = { kind = 'uniform', low = 10, high = 80 }\n"


def head(mode: str, network: str = "") -> str:
    return f"""
seed = 11
duration_s = 12.0
settle_s = 20.0
overlay.mode = "{mode}"
overlay.shape = {{ kind = "chain", brokers = 3 }}
{network}
[[publisher]]
name = "p0"
at = "b0"
topics = ["/jobs"]
rate_hz = 20.0
start_s = 1.0
arrival = "periodic"
attributes = {{ x = {{ kind = "int", low = 0, high = 9 }} }}
"""


def worker(name: str, at: str, rest: str = "") -> str:
    keys = "topics = ['/jobs']\ngroup = 'workers'\n" + WORK + rest
    return f"[[subscriber]]\nname = '{name}'\nat = '{at}'\n{keys}\n"


WORKERS = worker("w0", "b0") + worker("w1", "b1") + worker("w2", "b2")


def fault(kind: str, node: str, at_s: float, until_s: float) -> str:
    return f"[[fault]]\nkind = '{kind}'\nnodes = ['{node}']\nat_s = {at_s}\nuntil_s = {until_s}\n"


def simulated(tmp_path: Path, text: str) -> tuple[Trace, dict[str, Verdict]]:
    scenario = parse_scenario(text)
    run_scenario(scenario, tmp_path)
    found = {verdict.guarantee: verdict for verdict in verdicts(scenario, tmp_path)}
    assert all(verdict.holds for verdict in found.values()), [str(verdict) for verdict in found.values()]
    return Trace.read(tmp_path), found


def by_member(trace: Trace) -> dict[str, Counter[str]]:
    found: dict[str, Counter[str]] = {}
    for row in trace.delivered.to_pylist():
        assert row["attempt"] == 1
        assert row["done_ns"] is None or row["done_ns"] >= row["at_ns"], "None: it died with it"
        found.setdefault(row["subscriber"], Counter())[row["event_id"]] += 1
    return found


@modes
def test_each_event_is_done_by_one_member(tmp_path: Path, mode: str) -> None:
    everything = "[[subscriber]]\nname = 'all'\nat = 'b1'\ntopics = ['/**']\n"
    trace, found = simulated(tmp_path, head(mode) + WORKERS + everything)
    members = by_member(Trace(**{**vars(trace), "delivered": _of_group(trace)}))
    published = {row["event_id"] for row in trace.published.to_pylist()}
    assert sum(members.values(), Counter()) == Counter(published)
    assert min(map(len, map(dict, members.values()))) > 40, "about 73 each"
    assert {row["share_of"] for row in trace.subscribed.to_pylist()} == {"workers", None}
    if mode == "best-effort":
        assert found["group"].counts["expected"] == found["group"].counts["done"] == len(published)


def _of_group(trace: Trace) -> object:
    import pyarrow.compute as pc

    return trace.delivered.filter(pc.not_equal(trace.delivered["subscriber"], "all"))


@modes
def test_equal_values_go_to_one_member(tmp_path: Path, mode: str) -> None:
    grouped = "".join(worker(f"w{n}", f"b{n}", "group_by = 'x'\n") for n in range(3))
    trace, _ = simulated(tmp_path, head(mode) + grouped)
    value = {row["event_id"]: dict(row["attributes"])["x"] for row in trace.published.to_pylist()}
    members = by_member(trace)
    owned = [{value[event] for event in events} for events in members.values()]
    assert len(owned) > 1 and sum(map(len, owned)) == len(set().union(*owned)) == 10


@modes
@pytest.mark.parametrize(
    "change",
    [
        "",
        fault("crash", "w1", 4.1, 6.0),
        fault("pause", "w1", 4.1, 6.0),
        fault("crash", "b2", 3.0, 12.0),
        fault("pause", "b1", 3.0, 11.0),
        "[[fault]]\nkind = 'partition'\ngroups = [['b0', 'b1'], ['b2']]\nat_s = 3\nuntil_s = 12\n",
    ],
    ids=["none", "client", "paused client", "broker", "paused broker", "partition"],
)
def test_members_come_and_go(tmp_path: Path, mode: str, change: str) -> None:
    text = head(mode) + WORKERS + worker("w3", "b1", "unsubscribe_at_s = 5.0\n")
    trace, _ = simulated(tmp_path, text + worker("w4", "b2", "subscribe_at_s = 8.0\n") + change)
    counts = sum(by_member(trace).values(), Counter())
    published = len({row["event_id"] for row in trace.published.to_pylist()})
    assert len(counts) > published / 2
    last = [event for event in counts if int(event.rpartition(":")[2]) > published - 5]
    assert len(last) == 5 or "12" in change, "the rest goes to whoever is there"


def test_lossy_links(tmp_path: Path) -> None:
    network = "network.loss = { kind = 'bernoulli', rate = 0.2 }\nrecovery.interval_ms = 200\n"
    late = "".join(worker(f"w{n}", f"b{n}") for n in range(3))
    trace, _ = simulated(tmp_path, head("epidemic", network).replace("start_s = 1.0", "start_s = 6.0") + late)
    counts = sum(by_member(trace).values(), Counter())
    published = {row["event_id"] for row in trace.published.to_pylist()}
    assert counts == Counter(published), "gossip repairs, and the choice is the same"


def test_one_run_has_one_trace(tmp_path: Path) -> None:
    text = head("epidemic") + WORKERS + fault("crash", "b2", 3.0, 6.0)
    hashes = {run_scenario(parse_scenario(text), tmp_path / name)["trace_sha256"] for name in ("a", "b")}
    assert len(hashes) == 1
