"""`tidings sequencer`, `tidings up --order`: settings, and real processes that are killed and go on."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from hypothesis import given, settings
from hypothesis import strategies as st

from breadth import examples
from command import process_of_tidings, tidings
from live_network import until
from live_ordering import OrderedUser, Service, played
from tidings.bus.connect import connect
from tidings.bus.no_op_publisher import NoOpPublisher
from tidings.cli.sequencer import tell_no_service
from tidings.cli.shared.broker_options import BrokerOptions
from tidings.cli.shared.broker_settings import broker_settings
from tidings.cli.shared.sequencer_options import SequencerOptions
from tidings.cli.shared.sequencer_settings import sequencer_settings
from tidings.cli.shared.up_options import UpOptions
from tidings.cli.up import make_network
from tidings.core.errors import OrderError, ScenarioError, TidingsError
from tidings.core.events.timestamp import Timestamp
from tidings.core.ordering.layout import Layout, ServerPlacement, single
from tidings.core.ordering.module import PublishNow
from tidings.core.ordering.server.machine import PublishNoOps
from tidings.drivers.address import Address, parse_address
from tidings.drivers.processes.brokers import free_addresses
from tidings.drivers.processes.layout_file import layout_text
from tidings.drivers.processes.sequencers import three_nodes
from tidings.drivers.sockets.broker import BrokerServer

pytestmark = pytest.mark.timeout(180)

PATIENCE_S = 60
FILE = """
order = "total"
service = "tidings://127.0.0.1:7400"
data = "data"

[[server]]
name = "high"
topics = ["/a/**"]
node = "q0"
standby = "q1"
witness = "q2"

[[server]]
name = "low"
topics = ["/b", "/c/*"]
node = "q1"

[nodes]
q0 = "127.0.0.1:7500"
q1 = "127.0.0.1"
q2 = "[::1]:7502"
"""


def written(directory: Path, text: str) -> Path:
    path = directory / "layout.toml"
    path.write_text(text, encoding="utf-8")
    return path


# --- Settings


def test_defaults_are_those_of_the_manual() -> None:
    found = sequencer_settings(SequencerOptions())
    assert (found.name, found.listen) == ("s0", Address("127.0.0.1", 7500))
    assert found.layout.text == single("s0", ("/**",), causal=True).text
    assert (found.data, found.service, found.tls, found.token) == (None, None, None, "")


def test_topics_and_order_from_flags() -> None:
    found = sequencer_settings(SequencerOptions(name="q", topics=("/a", "/b/**"), order="total"))
    assert found.layout.text == single("q", ("/a", "/b/**"), causal=False).text


def test_the_layout_file(tmp_path: Path) -> None:
    found = sequencer_settings(SequencerOptions(name="q1", layout=written(tmp_path, FILE)))
    places = [
        ServerPlacement("high", ("/a/**",), "q0", "q1", "q2"),
        ServerPlacement("low", ("/b", "/c/*"), "q1"),
    ]
    assert found.layout.text == Layout(places, causal=False).text
    assert found.listen == Address("127.0.0.1", 7500), "without a port, 7500"
    assert found.addresses["q2"] == Address("::1", 7502)
    assert (found.data, found.service) == (tmp_path / "data", "tidings://127.0.0.1:7400")


def test_flags_go_before_the_file(tmp_path: Path) -> None:
    found = sequencer_settings(
        SequencerOptions(
            name="q0",
            layout=written(tmp_path, FILE),
            listen="127.0.0.1:9",
            order="causal",
            data=Path("elsewhere"),
            service="tidings://127.0.0.1:1",
        )
    )
    assert (found.listen, found.data) == (Address("127.0.0.1", 9), Path("elsewhere"))
    assert found.layout.causal
    assert found.service == "tidings://127.0.0.1:1"


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ('q2 = "[::1]:7502"', "", r'nodes: missing q2 = "HOST:PORT"'),
        ('q2 = "[::1]:7502"', 'q2 = "x:y"', "nodes.q2: 'x:y' is not an address"),
        ('q2 = "[::1]:7502"', 'q2 = "x"\nq7 = "y"', "nodes.q7: no server runs on this node"),
        ('witness = "q2"', "", "standby and witness must be given together"),
        ('witness = "q2"', 'witness = "q1"', "primary, standby and witness must be three different nodes"),
        ('"/c/*"', '"/a/**"', "'/a/\\*\\*' is listed twice: at 'high' and at 'low'"),
        ('"/c/*"', '"c"', "topic pattern 'c' must start with '/'"),
        ('["/a/**"]', "[]", r"server\[0\].*topics"),
        ('order = "total"', 'order = "fifo"', "order"),
        ('name = "low"', 'nmae = "low"', "unknown key 'nmae' in server.*did you mean 'name'"),
    ],
)
def test_a_layout_file_with_a_mistake(tmp_path: Path, old: str, new: str, reason: str) -> None:
    assert old in FILE
    path = written(tmp_path, FILE.replace(old, new))
    with pytest.raises(ScenarioError, match=reason) as caught:
        sequencer_settings(SequencerOptions(name="q0", layout=path))
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        ({"topics": ("x",)}, "must start with '/'"),
        ({"topics": ("/x", "/x")}, "'/x' is listed twice"),
        ({"listen": "a:b"}, "is not an address"),
        ({"service": "ftp://x"}, "is not a broker's URL"),
        ({"name": "a\nb"}, "printable"),
    ],
)
def test_flags_with_a_mistake(flags: dict[str, Any], reason: str) -> None:
    with pytest.raises(typer.BadParameter, match=reason):
        sequencer_settings(SequencerOptions(**flags))


def test_flags_that_do_not_go_with_the_file(tmp_path: Path) -> None:
    path = written(tmp_path, FILE)
    for flags, reason in (
        ({"name": "q0", "topics": ("/x",)}, "not allowed with --layout"),
        ({"name": "q9"}, "'q9' is not a node of the layout; its nodes: q0, q1, q2"),
        ({}, "required, as the layout has several nodes"),
    ):
        with pytest.raises(typer.BadParameter, match=reason):
            sequencer_settings(SequencerOptions(layout=path, **flags))  # type: ignore[arg-type]


LEVELS = st.text(
    st.characters(exclude_characters="/*", exclude_categories=["C", "Z"]), min_size=1, max_size=8
)


@settings(max_examples=examples(40))
@given(st.lists(LEVELS.map(lambda level: f"/{level}"), min_size=1, max_size=5, unique=True), st.booleans())
def test_a_layout_is_the_same_after_it_was_a_file(topics: list[str], causal: bool) -> None:
    try:
        layout = three_nodes(topics, causal=causal)
    except OrderError:
        return
    addresses = {node: Address(port=7000 + number) for number, node in enumerate(layout.nodes)}
    with tempfile.TemporaryDirectory() as directory:
        path = written(Path(directory), layout_text(layout, addresses))
        found = sequencer_settings(SequencerOptions(name="s1", layout=path))
    assert found.layout.text == layout.text
    assert found.addresses == addresses


def test_brokers_are_told_of_sequencers(tmp_path: Path) -> None:
    found = broker_settings(BrokerOptions(sequencers=("127.0.0.1:7500", " [::1]:7501")), None)
    assert found.sequencers == (Address(port=7500), Address("::1", 7501))
    file = written(tmp_path, 'sequencers = ["127.0.0.1:7502"]')
    assert broker_settings(BrokerOptions(), file).sequencers == (Address(port=7502),)
    assert broker_settings(BrokerOptions(sequencers=("127.0.0.1:1",)), file).sequencers == (Address(port=1),)
    for texts, reason in ((("x:y",), "is not an address"), (("x:1",) * 65, "at most 64")):
        with pytest.raises(typer.BadParameter, match=reason):
            broker_settings(BrokerOptions(sequencers=texts), None)


def where(**flags: Any) -> UpOptions:
    return UpOptions(**flags)


def test_up_with_an_order_passes_it_on(tmp_path: Path) -> None:
    network = make_network(where(brokers=2, base_port=9000, order="causal", data=tmp_path))
    assert network.ordering is not None
    assert [str(address) for address in network.ordering.addresses] == [
        f"127.0.0.1:{9002 + n}" for n in range(3)
    ]
    command = network["b1"]._command()
    assert command[command.index("--sequencers") + 1] == "127.0.0.1:9002,127.0.0.1:9003,127.0.0.1:9004"
    assert make_network(where(brokers=2)).ordering is None


def test_up_takes_the_order_of_its_file(tmp_path: Path) -> None:
    text = '[overlay]\nmode = "guaranteed"\nedges = [["x", "y"]]\n[up]\norder = "total"\norder_topics = ["/a", "/b"]\n'
    path = written(tmp_path, text)
    network = make_network(where(data=tmp_path), path)
    assert network.ordering is not None
    assert (network.ordering.layout.topics, network.ordering.layout.causal) == (("/a", "/b"), False)
    flagged = make_network(where(data=tmp_path, order="causal", order_topics=("/c",)), path)
    assert flagged.ordering is not None
    assert (flagged.ordering.layout.topics, flagged.ordering.layout.causal) == (("/c",), True)


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        ({"order": "total"}, "best-effort may lose events"),
        ({"order_topics": ("/a",)}, "requires --order"),
        ({"order": "causal", "order_topics": ("a",)}, "must start with '/'"),
        ({"data": Path("x")}, "requires --mode guaranteed or --order"),
    ],
)
def test_up_with_an_order_that_makes_no_sense(flags: dict[str, Any], reason: str) -> None:
    with pytest.raises(typer.BadParameter, match=reason):
        make_network(where(brokers=2, **flags))


def test_ports_of_sequencers_end_at_the_last_there_is() -> None:
    with pytest.raises(TidingsError, match="3 processes need ports 65535 to 65537"):
        make_network(where(brokers=2, base_port=65_533, order="causal"))


# --- No-ops


@played
async def test_no_ops_wait_for_a_service_that_is_not_there_yet() -> None:
    (address,) = free_addresses(["b0"]).values()
    done: list[tuple[str, int]] = []
    layout = single("s0", ("/a",))
    publisher = NoOpPublisher(
        lambda: connect(f"tidings://{address}").without_order(), layout, lambda *what: done.append(what)
    )
    for number in (1, 2):
        publisher.add(PublishNoOps("s0", number, Timestamp(0, number), 1))
    await asyncio.sleep(0)
    broker = BrokerServer("b0", address)
    await broker.start()
    try:
        await until(lambda: done == [("s0", 1), ("s0", 2)])
    finally:
        await publisher.close()
        await broker.stop()


def test_no_ops_without_a_service_are_told(caplog: pytest.LogCaptureFixture) -> None:
    tell_no_service.cache_clear()
    for _ in range(2):
        tell_no_service()
    assert [record.getMessage() for record in caplog.records] == [
        "a publisher died; subscribers may wait for its events until you restart this sequencer with --service"
    ]


# --- Processes

Started = subprocess.Popen[str]
Start = Callable[..., Started]
ENVIRONMENT = {key: value for key, value in os.environ.items() if key != "PYTHONUNBUFFERED"}


def command(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "tidings.cli.main", *map(str, arguments)]


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts commands that run on; each is killed by its pid if a test leaves it, its children follow."""
    started: list[Started] = []

    def start_one(*arguments: object) -> Started:
        process = subprocess.Popen(
            command(*arguments), text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=ENVIRONMENT
        )
        started.append(process)
        return process

    yield start_one
    for process in started:
        if process.poll() is None:
            process.kill()
        process.wait(timeout=PATIENCE_S)
        for stream in (process.stdout, process.stderr):
            stream.close()  # type: ignore[union-attr]


def first_line(process: Started) -> dict[str, Any]:
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line, process.stderr.read() if process.stderr else ""
    found: dict[str, Any] = json.loads(line)
    return found


def base_port(count: int) -> int:
    """The first of `count` ports in a row of which none is in use just now."""
    while True:
        port = random.randrange(15_000, 31_000)
        if all(is_free(number) for number in range(port, port + count)):
            return port


def is_free(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) != 0


def address_of(ready: dict[str, Any]) -> Address:
    return parse_address(str(ready["url"]).removeprefix("tidings://"))


@pytest.mark.processes
def test_a_sequencer_that_is_killed_goes_on_with_its_data(start: Start, tmp_path: Path) -> None:
    (address,) = free_addresses(["s0"]).values()
    arguments = ("sequencer", "--listen", address, "--topic", "/a", "--data", tmp_path, "--json")

    async def publish(count: int, service: Service) -> None:
        async with OrderedUser(address, f"publisher-{count}", service) as user:
            user.publish(0, *range(count))
            await user.published()

    service = Service()
    for life in range(3):
        process = start(*arguments)
        ready = first_line(process)
        assert (ready["sequencer"], ready["pid"]) == ("s0", process.pid)
        asyncio.run(asyncio.wait_for(publish(life + 3, service), PATIENCE_S))
        process.kill()
        process.wait(timeout=PATIENCE_S)
    assert service.stamps == [(0, number) for number in range(1, 13)], "none twice, none left out"


@pytest.mark.processes
def test_a_sequencer_ends_at_a_signal_and_says_why_it_cannot_start(start: Start, tmp_path: Path) -> None:
    process = start("sequencer", "--listen", "127.0.0.1:0", "--data", tmp_path, "--json")
    address = address_of(first_line(process))
    taken = process_of_tidings("sequencer", "--listen", address)
    assert (taken.returncode, taken.stderr) == (
        4,
        f"tidings: cannot listen on {address}: the port is in use\n",
    )
    in_use = process_of_tidings("sequencer", "--listen", "127.0.0.1:0", "--data", tmp_path, "--json")
    assert in_use.returncode == 2
    assert "s0.order is in use by another process" in json.loads(in_use.stderr)["error"]
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=PATIENCE_S) == 0
    other = process_of_tidings(
        "sequencer", "--listen", "127.0.0.1:0", "--data", tmp_path, "--topic", "/other"
    )
    assert other.returncode == 2
    assert "is for other topics or another order" in other.stderr
    assert len(other.stderr.splitlines()) == 1
    public = process_of_tidings("sequencer", TIDINGS_SEQUENCER_LISTEN="192.0.2.1:7500")
    assert public.returncode == 4
    assert "beyond loopback, a TLS certificate, its key and a token are required" in public.stderr


class Silent(Service):
    """It takes events and loses them."""

    def publish(self, user: OrderedUser, fact: PublishNow) -> None:
        pass


@pytest.mark.processes
def test_numbers_of_a_publisher_that_left_are_replaced_in_the_service(start: Start) -> None:
    """A subscriber waits for event 1, whose publisher is gone: the sequencer's process publishes a no-op."""
    broker_address, address = free_addresses(["b0", "s0"]).values()
    url = f"tidings://{broker_address}"
    first_line(start("sequencer", "--listen", address, "--topic", "/a", "--service", url, "--json"))

    async def main() -> None:
        broker = BrokerServer("b0", broker_address, sequencers=[address])
        await broker.start()
        async with connect(url) as bus, bus.subscribe("/a", order="total") as stream:
            async with OrderedUser(address, "lost", Silent()) as lost:
                lost.publish(0, "never published")
                await until(lambda: any(isinstance(fact, PublishNow) for fact in lost.facts))
                await bus.publish("/a", {"number": 2})
                lost.module.leave()
                event = await stream.get()
                assert event.attributes["number"] == 2
                assert event.order is not None
                assert event.order.number == 2
        await broker.stop()

    asyncio.run(asyncio.wait_for(main(), PATIENCE_S))


@pytest.mark.processes
def test_up_with_total_order_survives_the_end_of_a_sequencer(start: Start) -> None:
    base = base_port(5)
    network = start(
        "up", "--brokers", 2, "--base-port", base, "--mode", "guaranteed", "--order", "total", "--json"
    )
    ready = first_line(network)
    urls = [broker["url"] for broker in ready["brokers"]]
    sequencers = {found["sequencer"]: found for found in ready["sequencers"]}
    assert list(sequencers) == ["s0", "s1", "s2"]
    told = json.loads(tidings("status", urls[0], "--json").stdout)["sequencers"]
    assert told == [found["url"].removeprefix("tidings://") for found in sequencers.values()]

    subscribers = [start("sub", url, "/x/**", "--order", "total", "--count", 6) for url in urls]
    for subscriber in subscribers:
        assert subscriber.stderr is not None
        assert subscriber.stderr.readline() == "subscribed\n"
    assert tidings("pub", urls[0], "/x/a", "before", "--count", 3).returncode == 0

    asyncio.run(asyncio.wait_for(in_step(sequencers["s0"]["url"]), PATIENCE_S))
    os.kill(sequencers["s0"]["pid"], signal.SIGKILL)
    assert network.stdout is not None
    ended = json.loads(network.stdout.readline())
    assert (ended["event"], ended["sequencer"], ended["how"]) == ("ended", "s0", "killed by SIGKILL")
    assert tidings("pub", urls[1], "/x/b", "after", "--count", 3).returncode == 0
    lines = [subscriber.communicate(timeout=PATIENCE_S)[0].splitlines() for subscriber in subscribers]
    assert lines[0] == lines[1] == ["/x/a | before"] * 3 + ["/x/b | after"] * 3

    shown = tidings("status", sequencers["s1"]["url"])
    assert shown.returncode == 0, shown.stderr
    assert "active" in shown.stdout
    network.send_signal(signal.SIGINT)
    assert network.wait(timeout=PATIENCE_S) == 0


@pytest.mark.processes
def test_a_durable_subscription_of_such_a_network_has_its_order(start: Start) -> None:
    network = start(
        "up",
        "--brokers",
        2,
        "--base-port",
        base_port(5),
        "--mode",
        "guaranteed",
        "--order",
        "total",
        "--json",
    )
    urls = [broker["url"] for broker in first_line(network)["brokers"]]
    flags = ["/x/**", "--durable", "billing", "--order", "total", "--raw"]
    assert tidings("sub", urls[1], *flags, "--timeout", 0).returncode == 3
    plain = start("sub", urls[0], "/x/**", "--order", "total", "--raw", "--count", 4)
    assert plain.stderr is not None
    assert plain.stderr.readline() == "subscribed\n"
    publishers = [
        start("pub", url, f"/x/{text}", text, "--count", 2) for url, text in zip(urls, "ab", strict=True)
    ]
    assert [publisher.wait(timeout=PATIENCE_S) for publisher in publishers] == [0, 0]
    seen = plain.communicate(timeout=PATIENCE_S)[0].splitlines()
    read = [tidings("sub", url, *flags, "--count", 2, "--timeout", 20).stdout.splitlines() for url in urls]
    assert read[0] + read[1] == seen
    shown = tidings("subscriptions", urls[1])
    assert "billing" in shown.stdout and "total" in shown.stdout
    refused = tidings("sub", urls[0], "/x/**", "--durable", "billing", "--order", "causal", "--timeout", 0)
    assert refused.returncode == 4
    assert "provides total order, not causal order" in refused.stderr
    network.send_signal(signal.SIGINT)
    assert network.wait(timeout=PATIENCE_S) == 0


async def in_step(url: str) -> None:
    """Until the standby has all that the active one has."""
    async with connect(url).without_order() as service:
        while True:
            (server,) = (await service.status())["servers"].values()
            if server["standby"] == "in step":
                return
            await asyncio.sleep(0.05)
