"""A broker's settings: flags over the environment over the file; and the topology file of `up`."""

from __future__ import annotations

from pathlib import Path

import pytest
import typer

from tidings.cli.shared import broker_settings as settings
from tidings.cli.shared.broker_options import BrokerOptions, parse_neighbours
from tidings.cli.shared.broker_settings import broker_settings
from tidings.core.errors import NotYetAvailable, ScenarioError
from tidings.drivers.address import SEQUENCER_PORT, Address
from tidings.drivers.processes.topology_file import Up, addresses, read_topology_file, tree

FILE = """
name = "from-file"
listen = "127.0.0.1:1111"
neighbours = { b1 = "127.0.0.1:2222" }
transport = "udp"
token_file = "token"
"""


def written(directory: Path, text: str, name: str = "broker.toml") -> Path:
    path = directory / name
    path.write_text(text, encoding="utf-8")
    return path


def test_defaults_are_those_of_the_manual() -> None:
    found = broker_settings(BrokerOptions(), None)
    assert (found.name, found.listen, found.neighbours) == ("b0", Address("127.0.0.1", 7400), {})
    assert (found.transport, found.tls, found.token) == ("tcp", None, "")


def test_the_file_is_used_and_its_paths_are_beside_it(tmp_path: Path) -> None:
    written(tmp_path, "secret\n", "token")
    found = broker_settings(BrokerOptions(), written(tmp_path, FILE))
    assert (found.name, found.listen) == ("from-file", Address("127.0.0.1", 1111))
    assert found.neighbours == {"b1": Address("127.0.0.1", 2222)}
    assert (found.transport, found.token) == ("udp", "secret")


def test_flags_go_before_the_file(tmp_path: Path) -> None:
    written(tmp_path, "secret", "token")
    token = written(tmp_path, "other", "token2")
    flags = BrokerOptions(
        name="x",
        listen="127.0.0.1:9",
        neighbours={"c": "[::1]:10"},
        transport="tcp",
        token_file=token,
    )
    found = broker_settings(flags, written(tmp_path, FILE))
    assert (found.name, found.listen, found.transport) == ("x", Address("127.0.0.1", 9), "tcp")
    assert found.neighbours == {"c": Address("::1", 10)}
    assert found.token == "other"


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("neighbors = {}", "unknown key 'neighbors' at the top level; did you mean 'neighbours'?"),
        ("listen = 7400", "listen: must be a string, not 7400"),
        ('transport = "tpc"', "did you mean 'tcp'?"),
        ("name = ", "not valid TOML"),
    ],
)
def test_a_mistake_in_the_file_names_file_and_key(tmp_path: Path, text: str, complaint: str) -> None:
    with pytest.raises(ScenarioError) as caught:
        broker_settings(BrokerOptions(), written(tmp_path, text))
    assert complaint in str(caught.value)
    assert "broker.toml" in str(caught.value)


@pytest.mark.parametrize(
    "flags",
    [
        BrokerOptions(listen="127.0.0.1:port"),
        BrokerOptions(neighbours={"b0": "127.0.0.1:1"}),
        BrokerOptions(neighbours={"b1": "127.0.0.1:99999"}),
        BrokerOptions(name="a\nb"),
        BrokerOptions(name=""),
    ],
)
def test_a_flag_that_cannot_be_used_is_a_usage_error(flags: BrokerOptions) -> None:
    with pytest.raises(typer.BadParameter):
        broker_settings(flags, None)


def test_a_neighbour_has_a_name_and_an_address() -> None:
    assert parse_neighbours(["b1=127.0.0.1:1", "b2=[::1]:2@0.1"]) == {
        "b1": "127.0.0.1:1",
        "b2": "[::1]:2@0.1",
    }
    for text in ("b1", "=127.0.0.1:1", "b1="):
        with pytest.raises(typer.BadParameter, match="expected NAME=HOST:PORT"):
            parse_neighbours([text])


def test_nothing_of_a_file_is_taken_where_a_flag_says_zero(tmp_path: Path) -> None:
    """Zero is a value, not the lack of one."""
    file = written(tmp_path, 'mode = "guaranteed"\ndelta = 3\nlabel = "0"\ndata = "."\n')
    found = broker_settings(BrokerOptions(delta=0), file).guaranteed
    assert found is not None
    assert found.delta == 0


def test_a_token_file_holds_one_line(tmp_path: Path) -> None:
    for content in ("", "two\nlines", "x" * 5000):
        with pytest.raises(typer.BadParameter, match="one line"):
            broker_settings(BrokerOptions(token_file=written(tmp_path, content, "token")), None)


def test_a_topology_file_is_an_overlay_and_where_it_listens(tmp_path: Path) -> None:
    text = """
    [overlay]
    mode = "best-effort"
    edges = [["x", "y"], ["y", "z"]]
    [up]
    base_port = 9000
    transport = "udp"
    """
    topology, overlay, up = read_topology_file(written(tmp_path, text, "net.toml"))
    assert topology.brokers == ("x", "y", "z")
    assert addresses(topology, up)["z"] == Address("127.0.0.1", 9002)
    assert up.transport == "udp"
    assert overlay.mode == "best-effort"


@pytest.mark.parametrize(
    ("overlay", "complaint"),
    [
        ('edges = [["a", "b"], ["b", "c"], ["c", "a"]]', "cyclic topology: 'c' - 'b' - 'a' - 'c'"),
        ('edges = [["a", "b"], ["c", "d"]]', "disconnected topology: no path from 'a' to 'c'"),
        ('edges = [["a", "b"], ["b", "a"]]', "repeated edge 'b' - 'a'"),
        ('edges = [["a", "a"]]', "self-loop at 'a'"),
        ("shape = { kind = 'ring' }", "'ring' is not one of"),
        ("shape = { kind = 'star', brokers = 500 }", "500 brokers are too many processes"),
    ],
)
def test_a_topology_that_is_no_tree_is_refused(tmp_path: Path, overlay: str, complaint: str) -> None:
    path = written(tmp_path, f'[overlay]\nmode = "best-effort"\n{overlay}', "net.toml")
    with pytest.raises(ScenarioError) as caught:
        read_topology_file(path)
    assert complaint in str(caught.value)
    assert "net.toml" in str(caught.value)


def test_a_mode_that_does_not_run_yet_is_said_to_be_so(tmp_path: Path) -> None:
    path = written(tmp_path, '[overlay]\nmode = "peers"\n')
    with pytest.raises(NotYetAvailable, match='"peers" is not yet available'):
        read_topology_file(path)


def test_ports_do_not_run_out_silently() -> None:
    with pytest.raises(ScenarioError, match="10 processes need ports 65530 to 65539"):
        addresses(tree(10), Up(base_port=65_530))


def test_sequencers_without_a_port_are_at_theirs() -> None:
    assert settings._sequencers(["seq.example", "[::1]:9"]) == (
        Address("seq.example", SEQUENCER_PORT),
        Address("::1", 9),
    )
