"""Guaranteed brokers from the command line: their flags, their processes, what they keep and what they show."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from pathlib import Path

import pytest
import typer

import tidings as api
from command import process_of_tidings, tidings
from tidings.cli.shared.broker_options import BrokerOptions
from tidings.cli.shared.broker_settings import broker_settings
from tidings.cli.shared.up_options import UpOptions
from tidings.cli.status import rows_of, show
from tidings.cli.up import make_network
from tidings.core.errors import ConnectionFailed, ScenarioError
from tidings.drivers.address import Address
from tidings.drivers.processes.brokers import BrokerNetwork, BrokerProcess, free_addresses
from tidings.drivers.processes.topology_file import read_topology_file, tree
from tidings.drivers.sockets.guaranteed import GuaranteedSettings, store_path
from tidings.scenarios.file.schema import Overlay

PATIENCE_S = 90


def flags(**changes: object) -> BrokerOptions:
    given: dict[str, object] = {
        "name": "b1",
        "mode": "guaranteed",
        "label": "0.0",
        "neighbours": {"b0": "127.0.0.1:1@0", "b2": "127.0.0.1:2@0.0.0"},
        "data": Path("here"),
    }
    return BrokerOptions(**(given | changes))  # type: ignore[arg-type]


# --- Settings


def test_flags_make_the_settings_of_a_guaranteed_broker() -> None:
    found = broker_settings(flags(delta=1, window=7, new=True, recover=True), None)
    assert found.mode == "guaranteed"
    assert found.neighbours == {"b0": Address("127.0.0.1", 1), "b2": Address("127.0.0.1", 2)}
    assert found.guaranteed == GuaranteedSettings(
        (0, 0), {"b0": (0,), "b2": (0, 0, 0)}, 1, 7, Path("here"), new=True, recover=True
    )


def test_defaults_of_a_guaranteed_broker() -> None:
    found = broker_settings(flags(), None).guaranteed
    assert found is not None
    assert (found.delta, found.window, found.new, found.recover) == (2, 1024, False, False)
    plain = broker_settings(BrokerOptions(), None)
    assert (plain.mode, plain.guaranteed) == ("best-effort", None)


def test_the_file_has_the_same_keys_and_flags_go_before_it(tmp_path: Path) -> None:
    path = tmp_path / "broker.toml"
    path.write_text(
        """
        name = "b1"
        mode = "guaranteed"
        delta = 0
        label = "0.0"
        window = 5
        data = "state"
        new = true
        recover = true
        neighbours = { b0 = "127.0.0.1:1@0" }
        """,
        encoding="utf-8",
    )
    found = broker_settings(BrokerOptions(), path).guaranteed
    assert found == GuaranteedSettings((0, 0), {"b0": (0,)}, 0, 5, tmp_path / "state", new=True, recover=True)
    found = broker_settings(BrokerOptions(delta=1, window=6, data=Path("there")), path).guaranteed
    assert found is not None
    assert (found.delta, found.window, found.data) == (1, 6, Path("there"))


@pytest.mark.parametrize(
    ("given", "flag", "words"),
    [
        (flags(label=None), "--neighbour", "learns its neighbours"),
        (flags(label=None, neighbours={}), "--label", "required with --mode guaranteed, or give --join"),
        (flags(join="127.0.0.1:1"), "--join", "not allowed with --label"),
        (flags(label=None, neighbours={}, join="nowhere:x"), "--join", "port"),
        (flags(label="1"), "--label", "not a label"),
        (flags(data=None), "--data", "required with --mode guaranteed"),
        (flags(neighbours={"b0": "127.0.0.1:1"}), "--neighbour", "NAME=HOST:PORT@LABEL"),
        (flags(neighbours={"b0": "127.0.0.1:1@x"}), "--neighbour", "not a label"),
        (flags(neighbours={"b0": "127.0.0.1:x@0"}), "--neighbour", "port"),
        (flags(neighbours={"b1": "127.0.0.1:1@0"}), "--neighbour", "own name"),
        (flags(neighbours={"b0": "127.0.0.1:1@0.0"}), "--neighbour", "own label"),
        (flags(neighbours={"a": "127.0.0.1:1@0", "b": "127.0.0.1:2@0"}), "--neighbour", "taken by 'a'"),
        (flags(neighbours={"b0": "127.0.0.1:1@0"}, label="0.1.2.3", delta=1), "--neighbour", "reach"),
        (
            flags(neighbours={"b3": "127.0.0.1:1@0.1"}),
            "--neighbour",
            "broker 0, between b1 and b3, is missing",
        ),
        (flags(transport="udp"), "--transport", "tcp"),
        (BrokerOptions(delta=1), "--delta", "--mode guaranteed"),
        (BrokerOptions(label="0"), "--label", "--mode guaranteed"),
        (BrokerOptions(data=Path()), "--data", "--mode guaranteed"),
        (BrokerOptions(recover=True), "--recover", "--mode guaranteed"),
    ],
)
def test_a_flag_that_cannot_be_used_is_named(given: BrokerOptions, flag: str, words: str) -> None:
    with pytest.raises(typer.BadParameter) as caught:
        broker_settings(given, None)
    assert caught.value.param_hint == flag
    assert words in str(caught.value)


def where(**changes: object) -> UpOptions:
    return UpOptions(**changes)  # type: ignore[arg-type]


def test_a_topology_file_says_the_mode(tmp_path: Path) -> None:
    path = tmp_path / "net.toml"
    path.write_text('[overlay]\ndelta = 1\nwindow = 9\nedges = [["x", "y"], ["y", "z"]]', encoding="utf-8")
    _, overlay, _ = read_topology_file(path)
    assert (overlay.mode, overlay.delta, overlay.window) == ("guaranteed", 1, 9)
    network = make_network(where(data=tmp_path / "data"), path)
    spec = network["x"].spec
    assert (spec.mode, spec.label, list(spec.neighbours)) == ("guaranteed", (0,), ["y", "z"])
    command = network["z"]._command()
    assert command[command.index("--window") + 1] == "9"
    assert f"x={network['x'].address}@0" in command
    assert "--new" in command
    assert list(network["x"].around) == ["y"]
    network = make_network(where(mode="best-effort"), path)
    assert network["x"].spec.mode == "best-effort"


def test_a_network_is_new_where_there_is_no_state(tmp_path: Path) -> None:
    assert make_network(where(mode="guaranteed", data=tmp_path))["b0"].new
    store_path(tmp_path, "b1").write_bytes(b"")
    network = make_network(where(mode="guaranteed", data=tmp_path))
    assert "--new" not in network["b0"]._command()


@pytest.mark.parametrize(
    ("given", "flag"),
    [
        (where(delta=1), "--delta"),
        (where(data=Path()), "--data"),
        (where(mode="guaranteed", transport="udp"), "--transport"),
    ],
)
def test_a_flag_of_up_that_cannot_be_used_is_named(given: UpOptions, flag: str) -> None:
    with pytest.raises(typer.BadParameter) as caught:
        make_network(given)
    assert caught.value.param_hint == flag


def test_a_mistake_in_the_topology_names_the_key(tmp_path: Path) -> None:
    path = tmp_path / "net.toml"
    path.write_text('[overlay]\nmode = "guaranteed"\ndelta = -1', encoding="utf-8")
    with pytest.raises(ScenarioError, match=r"overlay\.delta"):
        read_topology_file(path)


# --- What is shown


def test_a_status_is_shown_whatever_it_holds(capsys: pytest.CaptureFixture[str]) -> None:
    show(
        "tidings://h:1",
        {
            "broker": "b0",
            "incarnation": 1_234_567,
            "partitions": [{"unreachable": ["b1", "b2"], "islands": {"b3": 1}}],
            "waiting_for": ["b1", "c"],
            "neighbours": {"b1": {"present": True}, "b2": {"present": False, "through": "b1"}},
            "empty": [],
        },
    )
    text = capsys.readouterr().out
    for words in ("1234567", "b1, b2", "b3: 1", "waiting", "through", "neighbour"):
        assert words in text
    assert "empty" not in text


@pytest.mark.parametrize(
    ("value", "rows"),
    [
        ({}, []),
        ([], []),
        (3, []),
        ([1, "x"], [{"value": 1}, {"value": "x"}]),
        ({"b1": 3}, [{"thing": "b1", "value": 3}]),
        ({"b1": {"x": []}}, [{"thing": "b1", "x": None}]),
        ([{"x": [{"y": 1, "z": [2, 3]}]}], [{"x": "y: 1, z: 2, 3"}]),
    ],
)
def test_collections_become_rows(value: object, rows: list[dict[str, object]]) -> None:
    assert rows_of("things", value) == rows


# --- Processes


@pytest.mark.processes
@pytest.mark.timeout(180)
def test_processes_that_are_killed_and_started_again_lose_nothing(tmp_path: Path) -> None:
    async def main() -> None:
        topology = tree(3)
        overlay = Overlay(delta=1)
        async with BrokerNetwork(
            topology, free_addresses(topology.brokers), overlay, data=tmp_path
        ) as network:
            async with (
                api.connect(network["b1"].url) as near,
                api.connect(network["b2"].url) as far,
                far.subscribe("/t") as stream,
            ):
                await stream.completed()
                for round_number, name in enumerate(("b0", "b1", "b2")):
                    events = [("/t", {"n": 100 * round_number + n}, b"") for n in range(100)]
                    publishing = asyncio.create_task(near.publish_many(events))
                    await network.kill(name)
                    await network.restart(name)
                    assert await publishing == 100
                found = [(await stream.get(60.0)).attributes["n"] for _ in range(300)]
                assert found == list(range(300))
                assert (await near.status())["mode"] == "guaranteed"

    asyncio.run(asyncio.wait_for(main(), PATIENCE_S))
    assert sorted(path.name for path in tmp_path.glob("*.db")) == ["b0.db", "b1.db", "b2.db"]


@pytest.mark.processes
@pytest.mark.timeout(180)
def test_state_that_nobody_asked_for_goes_with_the_network() -> None:
    async def main() -> None:
        topology = tree(2)
        network = BrokerNetwork(topology, free_addresses(topology.brokers), Overlay(delta=0))
        data = network["b0"].data
        assert data is not None
        async with network, api.connect(network["b1"].url) as bus:
            await bus.publish("/t")
            assert "b1.db" in os.listdir(data)
        assert not data.exists()

    asyncio.run(asyncio.wait_for(main(), PATIENCE_S))


@pytest.mark.processes
@pytest.mark.timeout(180)
def test_a_damaged_store_is_one_line_and_an_exit_code_and_recover_mends_it(tmp_path: Path) -> None:
    store_path(tmp_path, "b0").write_bytes(b"not a store at all" * 100)
    arguments = (
        "broker",
        "--listen",
        "127.0.0.1:0",
        "--mode",
        "guaranteed",
        "--label",
        "0",
        "--data",
        tmp_path,
    )
    done = process_of_tidings(*arguments)
    assert done.returncode == 2
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 1
    assert "b0.db" in done.stderr
    assert "--recover" in done.stderr

    class Recovering(BrokerProcess):
        def _command(self) -> list[str]:
            flags = [*map(str, arguments), "--json", "--stop-on-eof", "--recover"]
            return [*super()._command()[:4], *flags]

    async def main() -> None:
        broker = Recovering("b0", Address(port=0))
        await broker.start()
        async with api.connect(broker.url) as bus:
            assert (await bus.status())["broker"] == "b0"
        await broker.stop()

    asyncio.run(asyncio.wait_for(main(), PATIENCE_S))
    assert (tmp_path / "b0.db.damaged-1").exists()


@pytest.mark.processes
@pytest.mark.timeout(180)
def test_one_directory_serves_one_broker_of_a_name(tmp_path: Path) -> None:
    async def main() -> None:
        topology = tree(1)
        async with BrokerNetwork(topology, free_addresses(topology.brokers), Overlay(), data=tmp_path):
            other = BrokerNetwork(topology, free_addresses(topology.brokers), Overlay(), data=tmp_path)
            with pytest.raises(ConnectionFailed, match="in use by another broker"):
                await other.start()

    asyncio.run(asyncio.wait_for(main(), PATIENCE_S))


@pytest.mark.processes
@pytest.mark.timeout(180)
def test_up_runs_a_guaranteed_network_and_status_shows_it(tmp_path: Path) -> None:
    import subprocess
    import sys

    addresses = free_addresses(["first"])
    command = [sys.executable, "-m", "tidings.cli.main", "up", "--brokers", "2", "--mode", "guaranteed"]
    command += [
        "--delta",
        "1",
        "--data",
        str(tmp_path),
        "--base-port",
        str(addresses["first"].port),
        "--json",
    ]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, process.stderr.read() if process.stderr else ""
        brokers = {broker["broker"]: broker for broker in json.loads(line)["brokers"]}
        assert brokers["b1"]["neighbours"] == ["b0"]
        assert tidings("pub", brokers["b1"]["url"], "/x", "hello").returncode == 0
        shown = tidings("status", brokers["b0"]["url"])
        assert shown.returncode == 0
        assert "guaranteed" in shown.stdout
    finally:
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=PATIENCE_S) == 0
        for stream in (process.stdout, process.stderr):
            assert stream is not None
            stream.close()
    assert {"b0.db", "b1.db"} <= {path.name for path in tmp_path.iterdir()}
