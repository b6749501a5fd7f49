"""`tidings up --scenario`: the same files as `tidings sim`, in wall time, and nobody left behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from command import tidings
from tidings.core.errors import ScenarioError
from tidings.core.events.text import attribute_text
from tidings.scenarios.file.arrivals import arrivals
from tidings.scenarios.file.expand import RunPlan, expand
from tidings.scenarios.file.load import parse_scenario
from tidings.scenarios.live import facts as words
from tidings.scenarios.live.ledger import RunLedger
from tidings.scenarios.live.processes import MAX_CLIENT_PROCESSES, client_groups
from tidings.scenarios.live.run import check_wall_time
from tidings.scenarios.simulate import run_scenario
from tidings.scenarios.trace.checkers import check_all, gap_free
from tidings.scenarios.trace.reader import Trace
from tidings.scenarios.trace.writer import TraceWriter

PATIENCE_S = 60
BEST_EFFORT = """
[overlay]
mode = "best-effort"
shape = { kind = "chain", brokers = 3 }
"""
GUARANTEED = BEST_EFFORT.replace("best-effort", "guaranteed")
CLIENTS = """
[[publisher]]
name = "p"
at = "b0"
topics = ["/a", "/b"]
rate_hz = 60.0
attributes = { x = { kind = "int" }, y = { kind = "float" }, z = { kind = "choice", values = ["u", "v"] } }
[[subscriber]]
name = "s"
at = "b2"
filter = "x > 3"
order = "fifo"
"""
PLAIN = CLIENTS.replace('filter = "x > 3"', "")
"""Without a filter brokers have nothing to load first, and subscriptions are accepted at once."""


def plan_of(text: str) -> RunPlan:
    return expand(parse_scenario(text))


# --- The parts


@pytest.mark.parametrize("arrival", ["poisson", "periodic"])
def test_publishers_publish_what_they_do_in_the_simulator(tmp_path: Path, arrival: str) -> None:
    text = f"duration_s = 5\nsettle_s = 0\n{BEST_EFFORT}{CLIENTS}".replace(
        "rate_hz", f'arrival = "{arrival}"\nrate_hz'
    )
    scenario = parse_scenario(text)
    run_scenario(scenario, tmp_path)
    simulated = [
        (row["at_ns"], row["topic"], dict(row["attributes"]))
        for row in Trace.read(tmp_path).published.to_pylist()
    ]
    drawn = []
    for arrived in arrivals(scenario.publishers[0], scenario.seed, 5_000_000_000):
        texts = {name: attribute_text(value) for name, value in arrived.attributes.items()}
        drawn.append((arrived.due_ns, arrived.topic, texts))
    assert drawn == simulated
    assert len(drawn) > 200


def test_a_count_ends_the_arrivals() -> None:
    (publisher,) = plan_of(BEST_EFFORT + CLIENTS.replace("rate_hz", "count = 3\nrate_hz")).publishers
    assert len(list(arrivals(publisher, 1, 10**18))) == 3


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ('[network]\nloss = { kind = "bernoulli", rate = 0.1 }', "network.loss"),
        ("[network]\nduplicate = 0.1", "network.duplicate"),
        ("[network]\nreorder = 0.1", "network.reorder"),
        ("[network]\nbandwidth_mbps = 1.0", "network.bandwidth_mbps"),
        ('[[link]]\nbetween = ["b0", "b1"]\nreorder = 0.5', "link[0].reorder"),
        ('[[fault]]\nkind = "slow"\nnodes = ["b0"]\nat_s = 1', "fault[0].kind"),
        ('[[fault]]\nkind = "loss"\nat_s = 1', "fault[0].kind"),
        (
            '[[fault]]\nkind = "link"\nbetween = ["b0", "b1"]\ndirection = "forward"\nat_s = 1',
            "fault[0].direction",
        ),
    ],
)
def test_what_wall_time_cannot_do_is_refused_by_its_key(text: str, key: str) -> None:
    with pytest.raises(ScenarioError) as raised:
        check_wall_time(plan_of(BEST_EFFORT + text), lambda notice: None)
    assert str(raised.value).startswith(f"{key}: ")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", 0),
        ('[network]\ndelay_ms = { kind = "constant", value = 50 }', 1),
        ('[[link]]\nbetween = ["b0", "b1"]\ndelay_ms = { kind = "constant", value = 50 }', 1),
    ],
)
def test_a_delay_is_ignored_and_that_is_told(text: str, told: int) -> None:
    notices: list[str] = []
    check_wall_time(plan_of(BEST_EFFORT + text), notices.append)
    assert len(notices) == told
    assert all("delay_ms" in notice for notice in notices)


def test_clients_share_processes_but_for_those_that_faults_strike() -> None:
    workload = "[workload]\npublishers = 30\nsubscribers = 40\n"
    groups = client_groups(plan_of(BEST_EFFORT + workload))
    assert len(groups) == MAX_CLIENT_PROCESSES
    assert len({name for group in groups for name in group}) == sum(map(len, groups)) == 70
    fault = '[[fault]]\nkind = "crash"\nnodes = ["s"]\nat_s = 1\n'
    assert client_groups(plan_of(BEST_EFFORT + CLIENTS + fault)) == [("s",), ("p",)]
    assert client_groups(plan_of(BEST_EFFORT)) == []


class Books:
    """A ledger of two subscribers, and facts in short."""

    def __init__(self, directory: Path) -> None:
        second = '[[subscriber]]\nname = "all"\nat = "b1"\n'
        self.writer = TraceWriter(directory)
        self.ledger = RunLedger(self.writer, plan_of(BEST_EFFORT + CLIENTS + second).subscribers)

    def publish(self, sequence: int, at_ns: int, x: int = 9) -> None:
        self.ledger.take(words.PublishedReport("p", sequence, "/a", {"x": x}, 0, at_ns))
        self.ledger.take(words.Confirmed("p", sequence, sequence, at_ns))

    def subscribe(self, subscriber: str, at_ns: int) -> str:
        subscription = f"{subscriber}#0"
        self.ledger.take(words.Requested(subscriber, subscription, ("/**",), at_ns))
        self.ledger.take(words.Accepted(subscriber, subscription, at_ns + 1))
        return subscription

    def deliver(self, subscriber: str, sequence: int, at_ns: int) -> None:
        self.ledger.take(
            words.DeliveredReport(subscriber, f"{subscriber}#0", "p", sequence, at_ns, at_ns + 1, False)
        )


@pytest.fixture
def books(tmp_path: Path) -> Iterator[Books]:
    made = Books(tmp_path / "trace")
    yield made
    made.writer.discard()


def test_a_publication_is_under_way_until_it_is_confirmed_and_delivered(books: Books) -> None:
    assert not books.ledger.under_way
    books.ledger.take(words.PublishedReport("p", 1, "/a", {"x": 9}, 0, 10))
    assert books.ledger.under_way
    books.ledger.take(words.Confirmed("p", 1, 1, 11))
    assert not books.ledger.under_way  # nobody wants it
    books.subscribe("s", 20)
    books.subscribe("all", 20)
    books.publish(2, 30)
    assert books.ledger.under_way
    books.deliver("s", 2, 30)
    assert books.ledger.under_way
    books.deliver("all", 2, 30)
    assert not books.ledger.under_way


def test_only_what_is_owed_is_waited_for(books: Books) -> None:
    books.publish(1, 10)
    books.subscribe("s", 20)
    books.publish(2, 15)  # reported late, published before
    books.publish(3, 30, x=1)  # the filter wants none of it
    assert not books.ledger.under_way
    books.publish(4, 40)
    books.deliver("s", 2, 15)
    assert books.ledger.under_way
    books.ledger.take(words.Cancelled("s", "s#0", 50))
    books.publish(5, 50)
    assert books.ledger.under_way
    books.ledger.take(words.Ended("s", "s#0"))
    assert not books.ledger.under_way


def test_a_repeated_event_does_not_stand_for_a_missing_one(books: Books) -> None:
    books.subscribe("all", 0)
    for sequence in (1, 2):
        books.publish(sequence, 10)
    books.deliver("all", 1, 10)
    books.deliver("all", 1, 10)
    assert books.ledger.under_way


def test_a_subscriber_that_crashed_goes_on_where_it_was(books: Books) -> None:
    subscription = books.subscribe("s", 0)
    books.ledger.take(words.StepTaken("s"))
    books.deliver("s", 7, 10)
    work = books.ledger.subscribers["s"].work(keep_resume_points=True)
    assert (work.done, work.made) == (1, 1)
    assert work.resume_points == {subscription: {"p": 7}}
    assert [(held.subscription, held.accepted, held.cancelled_ns) for held in work.held] == [
        (subscription, True, None)
    ]
    assert not books.ledger.subscribers["s"].work(keep_resume_points=False).resume_points


def test_words_survive_the_pipe(books: Books) -> None:
    work = books.ledger.subscribers["s"].work(keep_resume_points=True)
    sent = words.ClientWork(7, 5, {}, (), (work,), words.Go(1, 2))
    assert words.decode_work(words.line_of(sent)) == sent
    fact = words.DeliveredReport("s", "s#0", "p", 1, 2, 3, True)
    assert words.decode_fact(words.line_of(fact)) == fact


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--scenario", "x.toml"), "--out"),
        (("--out", "trace"), "--out"),
        (("--seed", "3"), "--seed"),
        (("--scenario", "x.toml", "--out", "trace", "--brokers", "3"), "--brokers"),
        (("net.toml", "--scenario", "x.toml", "--out", "trace"), "TOPOLOGY"),
    ],
)
def test_flags_that_do_not_go_together_are_told(arguments: tuple[str, ...], message: str) -> None:
    done = tidings("up", *arguments)
    assert done.returncode == 2
    assert message in done.stderr


# --- Real processes


def alive(pid: int) -> bool:
    """False for a zombie, too: it has ended, and only waits for its parent."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    except (FileNotFoundError, ProcessLookupError):
        return False
    return status.rpartition(")")[2].split()[0] != "Z"


def children_of(pid: int) -> list[int]:
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text(encoding="utf-8").rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(fields[1]) == pid:
            found.append(int(path.parent.name))
    return found


def stopped(pid: int) -> bool:
    status = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    return status.rpartition(")")[2].split()[0] == "T"


def until(condition: Callable[[], bool], seconds: float = PATIENCE_S) -> None:
    ends_at = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < ends_at, "it did not come to pass in time"
        time.sleep(0.02)


Started = subprocess.Popen[str]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Started]]:
    """Starts `tidings up` with a scenario; it is killed by its pid if a test leaves it."""
    started: list[Started] = []

    def start_one(text: str, *flags: object) -> Started:
        file = tmp_path / "scenario.toml"
        file.write_text(text, encoding="utf-8")
        command = [sys.executable, "-m", "tidings.cli.main", "up", "--scenario", str(file)]
        process = subprocess.Popen(
            [*command, "--out", str(tmp_path / "out"), *map(str, flags)],
            env={**os.environ, "TMPDIR": str(tmp_path)},
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        started.append(process)
        return process

    yield start_one
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate(timeout=PATIENCE_S)


PAUSED = f"""
duration_s = 60
settle_s = 0
{BEST_EFFORT}{CLIENTS}
[[fault]]
kind = "pause"
nodes = ["b1", "s"]
at_s = 0.2
"""


def paused_children(process: Started) -> list[int]:
    """All children of a run that has come to its pause."""
    until(lambda: process.poll() is not None or sum(map(stopped, children_of(process.pid))) == 2)
    assert process.poll() is None, process.communicate()
    return children_of(process.pid)


@pytest.mark.processes
def test_a_scenario_in_wall_time_writes_what_the_simulator_writes(
    tmp_path: Path, start: Callable[..., Started]
) -> None:
    """Everything fails, the clients as well, and b2 is cut off towards the end.

    What was killed has ten seconds to start again, which a loaded machine may need.
    """
    text = f"""
        duration_s = 14
        settle_s = 10
        {GUARANTEED}{CLIENTS}
        changes = [ {{ at_s = 3.0, remove = ["/**"], add = ["/a"] }} ]
        [[publisher]]
        name = "crashing"
        at = "b1"
        rate_hz = 50
        [[subscriber]]
        name = "crashing too"
        at = "b2"
        [[fault]]
        kind = "crash"
        nodes = ["b1"]
        at_s = 1.0
        until_s = 1.5
        [[fault]]
        kind = "crash"
        nodes = ["crashing", "crashing too"]
        at_s = 1.5
        until_s = 2.0
        [[fault]]
        kind = "pause"
        nodes = ["b2"]
        at_s = 2.0
        until_s = 2.2
        [[fault]]
        kind = "partition"
        groups = [["b0", "b1"], ["b2"]]
        at_s = 12.0
        """.replace("\n        ", "\n")
    process, out = start(text, "--seed", 3, "--json", "--check"), tmp_path / "out"
    printed, errors = process.communicate(timeout=2 * PATIENCE_S)
    assert process.returncode == 0, errors
    assert all(json.loads(line)["holds"] for line in errors.splitlines())
    summary = json.loads(printed)
    assert printed == (out / "summary.json").read_text(encoding="utf-8")
    simulated = run_scenario(parse_scenario(text), tmp_path / "simulated")
    assert set(simulated) - {"steps"} <= set(summary)
    assert (summary["seed"], summary["mode"], summary["brokers"]) == (3, "guaranteed", 3)
    trace = Trace.read(out)
    assert summary["published"] == trace.published.num_rows > 100
    assert summary["delivered"] == trace.delivered.num_rows > 20
    assert set(trace.published["source"].to_pylist()) == {"p", "crashing", "crashing~1"}
    assert [row["node"] for row in trace.nodes.to_pylist()] == [
        *("b0", "b1", "b2", "p", "crashing", "s", "crashing too")
    ]
    faults = sorted(trace.faults.to_pylist(), key=lambda row: str(row["target"]))
    assert [(row["kind"], row["target"]) for row in faults] == [
        ("partition", "b0,b1|b2"),
        ("crash", "b1"),
        ("pause", "b2"),
        ("crash", "crashing,crashing too"),
    ]
    assert all(row["until_ns"] > row["at_ns"] > 0 for row in faults)
    subscriptions = {row["subscription"]: row for row in trace.subscribed.to_pylist()}
    assert list(subscriptions["s#1"]["topics"]) == ["/a"]
    assert subscriptions["s#0"]["cancelled_ns"] >= 3_000_000_000
    verdicts = [*check_all(trace, ["exactly_once", "fifo"]), gap_free(trace, confirmed_only=True)]
    assert all(verdict.holds for verdict in verdicts), verdicts
    published_ns = {row["event_id"]: row["at_ns"] for row in trace.published.to_pylist()}
    crossed = [
        row
        for row in trace.delivered.to_pylist()
        if published_ns[row["event_id"]] > 12_500_000_000 and row["at_ns"] < 14_000_000_000
    ]
    assert not crossed, "events crossed the partition"


@pytest.mark.processes
def test_nobody_waits_for_events_that_expired(tmp_path: Path, start: Callable[..., Started]) -> None:
    """They live for a microsecond, which no event needs to cross three brokers."""
    short = PLAIN.replace("rate_hz", "expires_ms = 0.001\nrate_hz")
    process = start(f"duration_s = 3\nsettle_s = 50\n{GUARANTEED}{short}", "--json")
    printed, errors = process.communicate(timeout=2 * PATIENCE_S)
    assert process.returncode == 0, errors
    summary = json.loads(printed)
    assert 2 <= summary["settled_s"] < 50
    assert (summary["expected"], summary["delivered"], summary["delivery_ratio"]) == (0, 0, 1)
    assert summary["expired"] > 0
    trace = Trace.read(tmp_path / "out")
    assert not [str(verdict) for verdict in check_all(trace) if not verdict.holds]
    assert trace.published["expires_ns"].null_count == 0


@pytest.mark.processes
def test_a_run_in_which_all_arrives_ends_early(tmp_path: Path, start: Callable[..., Started]) -> None:
    process = start(f"duration_s = 3\nsettle_s = 50\n{BEST_EFFORT}{PLAIN}", "--json")
    printed, errors = process.communicate(timeout=2 * PATIENCE_S)
    assert process.returncode == 0, errors
    summary = json.loads(printed)
    assert 2 <= summary["settled_s"] < 50
    assert summary["delivery_ratio"] == 1
    assert summary["expected"] > 0
    published = Trace.read(tmp_path / "out").published
    assert published["confirmed_ns"].null_count == 0


@pytest.mark.processes
def test_ctrl_c_ends_a_run_and_all_its_processes_even_those_that_stand_still(
    tmp_path: Path, start: Callable[..., Started]
) -> None:
    process = start(PAUSED)
    children = paused_children(process)
    assert len(children) == 5
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 128 + signal.SIGINT, errors
    assert not any(map(alive, children))
    assert not list((tmp_path / "out").iterdir())


@pytest.mark.processes
@pytest.mark.skipif(
    sys.platform != "linux", reason="only Linux wakes the children of a process that is killed"
)
def test_kill_9_leaves_no_process_behind_either(start: Callable[..., Started]) -> None:
    process = start(PAUSED)
    children = paused_children(process)
    process.kill()
    process.wait(timeout=PATIENCE_S)
    until(lambda: not any(map(alive, children)))


@pytest.mark.processes
def test_a_broker_that_ends_by_itself_ends_the_run(tmp_path: Path, start: Callable[..., Started]) -> None:
    process = start(PAUSED)
    children = paused_children(process)
    victim = next(
        pid
        for pid in children
        if b"broker\0" in Path(f"/proc/{pid}/cmdline").read_bytes() and not stopped(pid)
    )
    os.kill(victim, signal.SIGKILL)
    _, errors = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 4
    assert "ended unexpectedly (killed by SIGKILL)" in errors
    assert not any(map(alive, children))
    assert not list((tmp_path / "out").iterdir())
