"""The partitions paper on real processes: brokers over TCP, killed, stopped and cut off under load.

What the paper promises holds for the recorded trace once the network has settled: every event that was owed came,
once, and in the order of its source. `LIVE_SEEDS="3 4 5"` runs other seeds than the one of every day.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from random import Random

import pytest

from tidings.cli.shared.running import run
from tidings.drivers.address import Address
from tidings.drivers.processes.brokers import BrokerProcess
from tidings.scenarios.file.load import parse_scenario
from tidings.scenarios.live.processes import ProcessFactory
from tidings.scenarios.live.run import run_live
from tidings.scenarios.trace.checkers import exactly_once, fifo, gap_free
from tidings.scenarios.trace.reader import Trace

pytestmark = [pytest.mark.processes, pytest.mark.timeout(240)]

SEEDS = [int(seed) for seed in os.environ.get("LIVE_SEEDS", "1").split()]
BROKERS = 9
DURATION_S = 8.0
FIRST_FAULT_S = 2.0
SETTLE_S = 60.0
TOPICS = ("/a", "/b", "/c")


def faults(random: Random, count: int, kinds: tuple[str, ...]) -> Iterator[str]:
    """Some at a time, anywhere: more than delta in a row as well."""
    names = [f"b{index}" for index in range(BROKERS)]
    for _ in range(count):
        at_s = random.uniform(FIRST_FAULT_S, DURATION_S - 2.0)
        until_s = min(DURATION_S, at_s + random.choice((0.3, 1.5, 4.0)))
        kind = random.choice(kinds)
        yield f'[[fault]]\nkind = "{kind}"\nat_s = {at_s:.3f}\nuntil_s = {until_s:.3f}'
        random.shuffle(names)
        size = random.randrange(1, BROKERS)
        match kind:
            case "crash":
                yield f'nodes = ["{names[0]}"]\nstate = "{random.choice(("kept", "kept", "lost"))}"'
            case "pause":
                yield f'nodes = ["{names[0]}"]'
            case "link":
                yield f'between = ["{names[0]}", "{names[1]}"]'
            case "partition":
                yield f"groups = [{names[:size]}, {names[size:]}]"


def scenario(seed: int, kinds: tuple[str, ...] = ("crash", "crash", "pause", "link", "partition")) -> str:
    random = Random(f"live:{seed}")
    lines = [
        f"seed = {seed}\nduration_s = {DURATION_S}\nsettle_s = {SETTLE_S}",
        '[overlay]\nmode = "guaranteed"\ndelta = 2',
        f'shape = {{ kind = "random", brokers = {BROKERS}, degree = 3 }}',
    ]
    for index in range(4):
        lines.append(f'[[publisher]]\nname = "p{index}"\nat = "b{random.randrange(BROKERS)}"\nrate_hz = 30')
        lines.append(f"topics = {random.sample(TOPICS, 2)}\nattributes.x.kind = 'int'")
    for index in range(5):
        lines.append(f'[[subscriber]]\nname = "s{index}"\nat = "b{random.randrange(BROKERS)}"')
        lines.append(f"topics = {random.sample(TOPICS, 2)}\norder = 'fifo'")
        if random.random() < 0.4:
            lines.append(f"filter = 'x > {random.randrange(8)}'")
        if random.random() < 0.3:
            lines.append(f"subscribe_at_s = {random.uniform(0.5, DURATION_S / 2):.2f}")
    return "\n".join([*lines, *faults(random, 7, kinds)])


def play(text: str, out: Path, stage: ProcessFactory | None = None) -> None:
    """Run it, and hold what was recorded against what was promised."""
    summary = run(run_live(parse_scenario(text), out, lambda share: None, lambda notice: None, stage))
    trace = Trace.read(out)
    for verdict in (exactly_once(trace), fifo(trace), gap_free(trace, strict_end=True)):
        assert verdict.holds, f"{verdict}\n{summary}\n{text}"
    assert summary["published"] > 500
    assert summary["delivered"] > 500
    assert summary["expected"] > 0
    assert summary["given_up"] == 0
    assert trace.published["confirmed_ns"].null_count == 0
    assert trace.subscribed["accepted_ns"].null_count == 0
    assert trace.faults.num_rows == 7


@pytest.mark.parametrize("seed", SEEDS)
def test_nothing_is_lost_repeated_or_out_of_order_whatever_fails(seed: int, tmp_path: Path) -> None:
    play(scenario(seed), tmp_path)


# --- The same with network namespaces: what is cut there is cut in the kernel, under TCP


class Namespaces(ProcessFactory):
    """A namespace for each broker and one for all clients, joined by a bridge in one more.

    Brokers listen on loopback addresses only, so these are given to the ends of the bridge's cables. Who is cut
    off gets a wrong hardware address of its peer: what is sent to it is lost on the wire, without a word.
    """

    reachable = False
    PORT = 7400
    NOWHERE = "02:00:00:00:00:00"

    def __init__(self) -> None:
        self.name = f"tidings{os.getpid()}"
        self._hosts: dict[str, str] = {}
        self._cut: dict[str, frozenset[str]] = {}
        self._made: list[str] = []

    def make(self) -> None:
        self._add(self._space("hub"))
        ip("-n", self._space("hub"), "link", "add", "bridge", "type", "bridge")
        ip("-n", self._space("hub"), "link", "set", "bridge", "up")
        for number, node in enumerate(["clients", *(f"b{index}" for index in range(BROKERS))], start=1):
            self._join(node, number)

    def _space(self, node: str) -> str:
        return f"{self.name}-{node}"

    def _add(self, space: str) -> None:
        ip("netns", "add", space)
        self._made.append(space)

    def _join(self, node: str, number: int) -> None:
        space, hub = self._space(node), self._space("hub")
        self._hosts[node] = f"127.77.0.{number}"
        self._add(space)
        ip("-n", hub, "link", "add", f"to{number}", "type", "veth", "peer", "name", "wire", "netns", space)
        ip("-n", hub, "link", "set", f"to{number}", "master", "bridge", "up")
        allow = "for each in all wire; do echo 1 > /proc/sys/net/ipv4/conf/$each/route_localnet; done"
        ip("netns", "exec", space, "sh", "-c", allow)
        ip("-n", space, "address", "add", f"{self._hosts[node]}/24", "dev", "wire")
        ip("-n", space, "link", "set", "wire", "up")

    def remove(self) -> None:
        for space in self._made:
            subprocess.run(["ip", "netns", "delete", space], check=False, capture_output=True)

    def addresses(self, brokers: Iterable[str]) -> dict[str, Address]:
        return {name: Address(self._hosts[name], self.PORT) for name in brokers}

    def prefix(self, process: str) -> tuple[str, ...]:
        space = self._space(process if process in self._hosts else "clients")
        return ("ip", "netns", "exec", space)

    def cut(self, broker: BrokerProcess, peers: frozenset[str]) -> None:
        space = self._space(broker.name)
        before = self._cut.get(broker.name, frozenset())
        for peer in peers - before:
            wrong = (self._hosts[peer], "lladdr", self.NOWHERE, "dev", "wire", "nud", "permanent")
            ip("-n", space, "neighbour", "replace", *wrong)
        for peer in before - peers:
            ip("-n", space, "neighbour", "delete", self._hosts[peer], "dev", "wire")
        self._cut[broker.name] = peers

    def dial(self, source: str, target: str) -> str:
        """The name of the error that it ends in."""
        dial = f"import socket; socket.create_connection(({self._hosts[target]!r}, {self.PORT}), 2)"
        done = subprocess.run(
            [*self.prefix(source), sys.executable, "-c", dial], capture_output=True, text=True, timeout=20
        )
        return done.stderr.splitlines()[-1].partition(":")[0]


def ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, timeout=20)


@pytest.fixture
def namespaces() -> Iterator[Namespaces]:
    if os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("network namespaces need root and the command ip")
    made = Namespaces()
    try:
        made.make()
    except subprocess.CalledProcessError as error:
        made.remove()
        pytest.skip(f"no network namespaces here: {error.stderr.decode().strip()}")
    yield made
    made.remove()


def test_a_cut_in_the_kernel_is_a_cut(namespaces: Namespaces) -> None:
    """Nobody listens: who is reached refuses, who is cut off does not answer."""
    broker = BrokerProcess("b1", Address())
    assert namespaces.dial("b1", "b2") == "ConnectionRefusedError"
    namespaces.cut(broker, frozenset({"b2"}))
    assert namespaces.dial("b1", "b2") == "TimeoutError"
    assert namespaces.dial("b2", "b1") == "TimeoutError"
    assert namespaces.dial("b1", "b3") == "ConnectionRefusedError"
    namespaces.cut(broker, frozenset())
    assert namespaces.dial("b1", "b2") == "ConnectionRefusedError"


@pytest.mark.parametrize("seed", SEEDS)
def test_what_the_kernel_loses_is_not_lost(seed: int, tmp_path: Path, namespaces: Namespaces) -> None:
    play(scenario(seed, ("crash", "pause", "link", "link", "partition")), tmp_path, namespaces)
