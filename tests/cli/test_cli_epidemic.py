"""Epidemic brokers from the command line: their flags, their processes, and scenarios in wall time."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import get_args

import msgspec
import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st

from command import process_of_tidings, tidings
from ports import base_port
from tidings.bus.embedded import ALGORITHMS
from tidings.cli.shared.broker_options import BrokerOptions
from tidings.cli.shared.broker_settings import broker_settings
from tidings.cli.shared.event_printer import PayloadForm, Printer
from tidings.cli.shared.loss import parse_loss
from tidings.cli.shared.node_options import Algorithm
from tidings.cli.shared.up_options import UpOptions
from tidings.cli.status import rows_of, show
from tidings.cli.up import make_network
from tidings.core.errors import ScenarioError
from tidings.core.events.event import Event
from tidings.core.overlay.epidemic.settings import RecoverySettings
from tidings.drivers.address import Address
from tidings.drivers.processes.brokers import loss_text
from tidings.drivers.sockets.epidemic import EpidemicSettings
from tidings.scenarios.file.expand import RunPlan, expand
from tidings.scenarios.file.load import parse_scenario
from tidings.scenarios.file.schema import BernoulliLoss, GilbertLoss
from tidings.scenarios.live import facts as words
from tidings.scenarios.live.ledger import RunLedger
from tidings.scenarios.live.run import check_wall_time
from tidings.scenarios.trace.checkers import check_all
from tidings.scenarios.trace.reader import Trace
from tidings.scenarios.trace.writer import TraceWriter

PATIENCE_S = 60
Started = subprocess.Popen[str]
Start = Callable[..., Started]


def flags(**changes: object) -> BrokerOptions:
    given: dict[str, object] = {"mode": "epidemic", "neighbours": {"b1": "127.0.0.1:1"}}
    return BrokerOptions(**(given | changes))  # type: ignore[arg-type]


def where(**changes: object) -> UpOptions:
    return UpOptions(**({"mode": "epidemic"} | changes))  # type: ignore[arg-type]


# --- Loss as it is written


@pytest.mark.parametrize(
    ("text", "loss"),
    [
        ("0", None),
        ("0:5", None),
        ("0.1", BernoulliLoss(rate=0.1)),
        (".5", BernoulliLoss(rate=0.5)),
        ("1e-3", BernoulliLoss(rate=0.001)),
        ("0.1:3", GilbertLoss(rate=0.1, burst=3.0)),
        ("0.5:1", GilbertLoss(rate=0.5, burst=1.0)),
    ],
)
def test_a_loss_is_a_rate_and_perhaps_bursts(text: str, loss: object) -> None:
    assert parse_loss(text) == loss


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("", "RATE:BURST"),
        ("much", "'much'"),
        ("nan", "RATE:BURST"),
        ("inf", "RATE:BURST"),
        ("0.1:", "RATE:BURST"),
        ("0.1:2:3", "RATE:BURST"),
        ("1", "below 1"),
        ("-0.1", "at least 0"),
        ("0.1:0.5", "at least 1"),
        ("0.1:1e10", "burst"),
        ("0.6:1", "at most 0.5"),
    ],
)
def test_a_loss_that_is_none_is_refused(text: str, part: str) -> None:
    with pytest.raises(typer.BadParameter) as caught:
        parse_loss(text)
    assert caught.value.param_hint == "--loss"
    assert part in str(caught.value)


@given(
    st.one_of(
        st.builds(BernoulliLoss, rate=st.floats(1e-9, 0.999)),
        st.builds(GilbertLoss, rate=st.floats(1e-9, 0.5), burst=st.floats(1, 1e9)),
    )
)
def test_a_loss_is_read_back_as_it_was_written(loss: BernoulliLoss | GilbertLoss) -> None:
    assert parse_loss(loss_text(loss)) == loss


# --- Settings of a broker


def test_flags_make_the_settings_of_an_epidemic_broker() -> None:
    found = broker_settings(flags(label="0.1", recovery="combined", loss="0.1:3"), None)
    assert (found.mode, found.transport) == ("epidemic", "tcp")
    assert found.neighbours == {"b1": Address("127.0.0.1", 1)}
    assert found.epidemic == EpidemicSettings(
        RecoverySettings(algorithm="combined"), (0, 1), GilbertLoss(rate=0.1, burst=3)
    )


def test_defaults_of_an_epidemic_broker() -> None:
    assert broker_settings(flags(), None).epidemic == EpidemicSettings()
    assert broker_settings(BrokerOptions(), None).epidemic is None


def test_the_names_of_the_flag_are_the_protocols() -> None:
    assert sorted(get_args(Algorithm)) == sorted(ALGORITHMS)


def test_the_file_has_the_same_keys_and_flags_go_before_it(tmp_path: Path) -> None:
    path = tmp_path / "broker.toml"
    path.write_text('mode = "epidemic"\nlabel = "0.2"\nrecovery = "push"\nloss = 0.25', encoding="utf-8")
    found = broker_settings(BrokerOptions(), path).epidemic
    assert found == EpidemicSettings(RecoverySettings(algorithm="push"), (0, 2), BernoulliLoss(rate=0.25))
    given = BrokerOptions(label="0.3", recovery="none", loss="0")
    assert broker_settings(given, path).epidemic == EpidemicSettings(
        RecoverySettings(algorithm="none"), (0, 3)
    )
    path.write_text('mode = "epidemic"\nloss = "0.25:2"', encoding="utf-8")
    found = broker_settings(BrokerOptions(), path).epidemic
    assert found == EpidemicSettings(loss=GilbertLoss(rate=0.25, burst=2))
    path.write_text('mode = "epidemic"\nrecovery = "pusch"', encoding="utf-8")
    with pytest.raises(ScenarioError, match="did you mean 'push'"):
        broker_settings(BrokerOptions(), path)


def test_all_settings_of_recovery_can_be_handed_over() -> None:
    settings = RecoverySettings(algorithm="push", fanout=9, interval_ns=5, adaptive=True, window=0.5)
    found = broker_settings(flags(), None, msgspec.json.encode(settings).decode()).epidemic
    assert found is not None
    assert found.recovery == settings


@pytest.mark.parametrize(
    ("given", "flag", "part"),
    [
        (flags(transport="udp"), "--transport", "brokers use udp among themselves"),
        (flags(label="1"), "--label", "not a label"),
        (flags(loss="2"), "--loss", "below 1"),
        (flags(delta=1), "--delta", "--mode guaranteed"),
        (flags(data=Path()), "--data", "--mode guaranteed"),
        (flags(join="127.0.0.1:1"), "--join", "--mode guaranteed"),
        (flags(neighbours={"b1": "127.0.0.1:1@0"}), "--neighbour", "port"),
        (BrokerOptions(recovery="push"), "--recovery", "--mode epidemic"),
        (BrokerOptions(loss="0.1"), "--loss", "--mode epidemic"),
        (BrokerOptions(label="0"), "--label", "guaranteed or epidemic"),
        (BrokerOptions(mode="guaranteed", loss="0.1"), "--loss", "--mode epidemic"),
    ],
)
def test_a_flag_that_cannot_be_used_is_named(given: BrokerOptions, flag: str, part: str) -> None:
    with pytest.raises(typer.BadParameter) as caught:
        broker_settings(given, None)
    assert caught.value.param_hint == flag
    assert part in str(caught.value)


@pytest.mark.parametrize(
    ("given", "text", "part"),
    [
        (flags(), "{", ""),
        (flags(), '{"algorithm": "x"}', "'x'"),
        (BrokerOptions(), "{}", "--mode epidemic"),
    ],
)
def test_settings_of_recovery_that_cannot_be_used(given: BrokerOptions, text: str, part: str) -> None:
    with pytest.raises(typer.BadParameter) as caught:
        broker_settings(given, None, text)
    assert caught.value.param_hint == "--recovery-settings"
    assert part in str(caught.value)


def test_a_file_that_names_what_is_of_another_mode(tmp_path: Path) -> None:
    path = tmp_path / "broker.toml"
    path.write_text("loss = 0.25", encoding="utf-8")
    with pytest.raises(typer.BadParameter, match="--mode epidemic"):
        broker_settings(BrokerOptions(), path)


def test_the_environment_is_read_as_the_flags_are() -> None:
    done = process_of_tidings("broker", TIDINGS_BROKER_MODE="epidemic", TIDINGS_BROKER_LOSS="7")
    assert done.returncode == 2
    assert "TIDINGS_BROKER_LOSS: the rate must be" in done.stderr


# --- A network of them


def settings_in(command: list[str]) -> RecoverySettings:
    text = command[command.index("--recovery-settings") + 1]
    return msgspec.json.decode(text, type=RecoverySettings)


def test_up_tells_its_brokers_their_labels_and_what_they_share() -> None:
    network = make_network(where(brokers=3, recovery="combined", loss="0.1:3"))
    command = network["b2"]._command()
    assert command[command.index("--mode") + 1] == "epidemic"
    assert command[command.index("--label") + 1] == "0.1"
    assert command[command.index("--loss") + 1] == "0.1:3"
    assert settings_in(command) == RecoverySettings(algorithm="combined")
    assert f"b0={network['b0'].address}" in command
    assert "--loss" not in make_network(where(brokers=3))["b0"]._command()


def test_a_topology_file_says_how_to_recover(tmp_path: Path) -> None:
    path = tmp_path / "net.toml"
    text = '[overlay]\nmode = "epidemic"\nedges = [["x", "y"]]\n[recovery]\nalgorithm = "push"\nfanout = 7\n'
    path.write_text(text + "[up]\nloss = 0.2\n", encoding="utf-8")
    command = make_network(where(mode=None), path)["x"]._command()
    found = settings_in(command)
    assert (found.algorithm, found.fanout) == ("push", 7)
    assert command[command.index("--loss") + 1] == "0.2"
    given = where(mode=None, recovery="none", loss="0")
    command = make_network(given, path)["x"]._command()
    found = settings_in(command)
    assert (found.algorithm, found.fanout) == ("none", 7)
    assert "--loss" not in command


@pytest.mark.parametrize(
    ("given", "flag"),
    [
        (where(transport="udp"), "--transport"),
        (where(delta=1), "--delta"),
        (where(data=Path()), "--data"),
        (where(loss="x"), "--loss"),
        (where(mode=None, loss="0.1"), "--loss"),
        (where(mode="guaranteed", recovery="push"), "--recovery"),
    ],
)
def test_a_flag_of_up_that_cannot_be_used_is_named(given: UpOptions, flag: str) -> None:
    with pytest.raises(typer.BadParameter) as caught:
        make_network(given)
    assert caught.value.param_hint == flag


# --- What is shown


def test_an_event_shows_how_it_was_recovered() -> None:
    printer = Printer(PayloadForm.TEXT, as_json=True)
    event = Event("p", 0, 1, "/t", 0, {}, b"")
    assert "recovered_by" not in printer.fields(event)
    event.__dict__["recovered_by"] = "push"
    assert printer.fields(event)["recovered_by"] == "push"


def test_status_shows_recovery_line_by_line(capsys: pytest.CaptureFixture[str]) -> None:
    status = {"broker": "b0", "recovery": {"algorithm": "push+pull", "lost_now": 3}}
    assert rows_of("recovery", status["recovery"]) == [
        {"recovery": "algorithm", "value": "push+pull"},
        {"recovery": "lost_now", "value": 3},
    ]
    show("tidings://x", status)
    shown = capsys.readouterr().out
    assert all(word in shown for word in ("recovery", "algorithm", "push+pull", "lost_now"))


# --- Scenarios


EPIDEMIC = """
[overlay]
mode = "epidemic"
shape = { kind = "chain", brokers = 3 }
"""


def plan_of(text: str) -> RunPlan:
    return expand(parse_scenario(text))


@pytest.mark.parametrize(
    "text",
    [
        '[network]\nloss = { kind = "bernoulli", rate = 0.1 }',
        '[network]\nloss = { kind = "gilbert", rate = 0.1, burst = 3 }',
        '[[fault]]\nkind = "link"\nbetween = ["b0", "b1"]\nat_s = 1',
        '[[fault]]\nkind = "crash"\nnodes = ["b0"]\nat_s = 1',
    ],
)
def test_what_wall_time_does_with_epidemic_brokers(text: str) -> None:
    check_wall_time(plan_of(EPIDEMIC + text), lambda notice: None)


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ('[[link]]\nbetween = ["b0", "b1"]\nloss = { kind = "bernoulli", rate = 0.1 }', "link[0].loss"),
        ("[network]\nduplicate = 0.1", "network.duplicate"),
        ('[[fault]]\nkind = "loss"\nat_s = 1', "fault[0].kind"),
        ('[[fault]]\nkind = "slow"\nnodes = ["b0"]\nat_s = 1', "fault[0].kind"),
    ],
)
def test_what_wall_time_cannot_do_is_refused_by_its_key(text: str, key: str) -> None:
    with pytest.raises(ScenarioError) as raised:
        check_wall_time(plan_of(EPIDEMIC + text), lambda notice: None)
    assert str(raised.value).startswith(f"{key}: ")


def test_the_books_say_how_events_came(tmp_path: Path) -> None:
    plan = plan_of(EPIDEMIC + '[[subscriber]]\nname = "s"\nat = "b0"\n')
    with TraceWriter(tmp_path) as writer:
        ledger = RunLedger(writer, plan.subscribers)
        ledger.take(words.Requested("s", "s#0", ("/**",), 1))
        ledger.take(words.Accepted("s", "s#0", 2))
        for sequence, by in ((1, ""), (2, "push")):
            ledger.take(words.PublishedReport("p", sequence, "/a", {}, 0, 3))
            fact = words.DeliveredReport("s", "s#0", "p", sequence, 3, 4, False, by)
            assert words.decode_fact(words.line_of(fact)) == fact
            ledger.take(fact)
    assert Trace.read(tmp_path).delivered["recovered_by"].to_pylist() == [None, "push"]


# --- Real processes


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts commands that run on; each is killed by its pid if a test leaves it, its children follow."""
    started: list[Started] = []

    def start_one(*arguments: object) -> Started:
        process = subprocess.Popen(
            [sys.executable, "-m", "tidings.cli.main", *map(str, arguments)],
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=dict(os.environ),
        )
        started.append(process)
        return process

    yield start_one
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate(timeout=PATIENCE_S)


@pytest.mark.processes
def test_a_lossy_network_of_processes_delivers_everything(start: Start) -> None:
    given = ("--mode", "epidemic", "--loss", "0.1", "--recovery", "auto")
    network = start("up", "--brokers", 4, *given, "--base-port", base_port(4), "--json")
    assert network.stdout is not None
    line = network.stdout.readline()
    assert line, network.communicate(timeout=PATIENCE_S)[1]
    urls = {broker["broker"]: broker["url"] for broker in json.loads(line)["brokers"]}
    readers = [start("sub", urls[at], "/x", "--json", "--count", 100, "--timeout", 40) for at in ("b2", "b3")]
    for reader in readers:
        assert reader.stderr is not None
        assert "subscribed" in reader.stderr.readline()
    published = tidings("pub", urls["b1"], "/x", "event", "--count", 100, "--rate", 200, "--json")
    assert published.returncode == 0, published.stderr
    ids = sorted(json.loads(text)["id"] for text in published.stdout.splitlines())
    recovered = 0
    for reader in readers:
        printed, errors = reader.communicate(timeout=PATIENCE_S)
        assert reader.returncode == 0, (len(printed.splitlines()), errors)
        events = [json.loads(text) for text in printed.splitlines()]
        assert sorted(event["id"] for event in events) == ids
        recovered += sum("recovered_by" in event for event in events)
    assert recovered > 0
    shown = tidings("status", urls["b0"]).stdout
    assert all(word in shown for word in ("epidemic", "recovery", "push+pull", "lost on purpose"))
    network.send_signal(signal.SIGINT)
    assert network.wait(timeout=PATIENCE_S) == 0


@pytest.mark.processes
def test_a_lossy_scenario_in_wall_time(tmp_path: Path, start: Start) -> None:
    """With a broker that stands still for a while, and one that is cut off."""
    file, out = tmp_path / "scenario.toml", tmp_path / "out"
    text = f"""
        duration_s = 5
        settle_s = 8
        {EPIDEMIC}
        [network]
        loss = {{ kind = "gilbert", rate = 0.1, burst = 2 }}
        [recovery]
        interval_ms = 100
        [[publisher]]
        name = "p"
        at = "b0"
        rate_hz = 80
        start_s = 3  # subscriptions cross lossy links, too, before anything is expected for them
        [[subscriber]]
        name = "near"
        at = "b1"
        [[subscriber]]
        name = "far"
        at = "b2"
        [[fault]]
        kind = "pause"
        nodes = ["b1"]
        at_s = 3.6
        until_s = 3.8
        [[fault]]
        kind = "partition"
        groups = [["b0", "b1"], ["b2"]]
        at_s = 4.0
        until_s = 4.3
        """.replace("\n        ", "\n")
    file.write_text(text, encoding="utf-8")
    process = start("up", "--scenario", file, "--out", out, "--seed", 5, "--check", "--json")
    printed, errors = process.communicate(timeout=2 * PATIENCE_S)
    assert process.returncode == 0, errors
    summary = json.loads(printed)
    assert (summary["mode"], summary["seed"], summary["duplicates"]) == ("epidemic", 5, 0)
    assert summary["expected"] > 100
    trace = Trace.read(out)
    assert all(verdict.holds for verdict in check_all(trace, ["exactly_once"]))
    ways = trace.delivered["recovered_by"].to_pylist()
    assert set(ways) - {None} <= {"push", "subscriber-pull"}
    assert any(ways)
    assert not all(ways)
    assert summary["delivery_ratio"] > 0.9


@pytest.fixture
def lossy_kernel() -> Iterator[str]:
    """A network namespace whose own loopback loses a tenth of all packets."""
    if os.geteuid() != 0 or shutil.which("ip") is None or shutil.which("tc") is None:
        pytest.skip("network namespaces that lose need root and the commands ip and tc")
    space = f"tidings-lossy-{os.getpid()}"
    steps = (
        ["ip", "netns", "add", space],
        ["ip", "-n", space, "link", "set", "lo", "up"],
        ["tc", "-n", space, "qdisc", "add", "dev", "lo", "root", "netem", "loss", "10%"],
    )
    try:
        for step in steps:
            subprocess.run(step, check=True, capture_output=True, timeout=20)
        yield space
    except subprocess.CalledProcessError as error:
        pytest.skip(f"this kernel loses nothing on purpose: {error.stderr.decode().strip()}")
    finally:
        subprocess.run(["ip", "netns", "delete", space], check=False, capture_output=True, timeout=20)


@pytest.mark.processes
def test_what_the_kernel_loses_is_recovered(tmp_path: Path, lossy_kernel: str) -> None:
    """The same over datagrams that netem drops; what clients send over TCP, the kernel repairs itself."""
    delivered, ways = run_in(("ip", "netns", "exec", lossy_kernel), tmp_path)
    assert delivered == 1.0
    assert any(ways)


def run_in(prefix: tuple[str, ...], directory: Path) -> tuple[float, list[str | None]]:
    """A small network of processes, started by that command: the delivered share, and what recovered each event."""
    file, out = directory / "scenario.toml", directory / "out"
    file.write_text(
        "duration_s = 3\nsettle_s = 12\n"
        f"{EPIDEMIC}\n[recovery]\ninterval_ms = 100\n"
        '[[publisher]]\nname = "p"\nat = "b0"\nrate_hz = 60\nstart_s = 1\n'
        '[[subscriber]]\nname = "near"\nat = "b1"\n[[subscriber]]\nname = "far"\nat = "b2"\n',
        encoding="utf-8",
    )
    command = [*prefix, sys.executable, "-m", "tidings.cli.main", "up", "--scenario", str(file), "--json"]
    done = subprocess.run(
        [*command, "--out", str(out), "--check"], capture_output=True, text=True, timeout=2 * PATIENCE_S
    )
    assert done.returncode == 0, done.stderr
    ways = Trace.read(out).delivered["recovered_by"].to_pylist()
    return float(json.loads(done.stdout)["delivery_ratio"]), ways


@pytest.mark.processes
def test_what_nobody_loses_comes_by_itself_or_is_pushed(tmp_path: Path) -> None:
    """Without loss, the run of the test above, which not every kernel can play."""
    delivered, ways = run_in((), tmp_path)
    assert delivered == 1.0
    assert set(ways) <= {None, "push"}
