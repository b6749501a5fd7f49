"""Total and causal order over NATS, JetStream, MQTT and Redis: real servers, and real sequencers with disks."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import tidings
from external_brokers import ExternalBroker, NatsBroker
from external_checks import run
from live_network import until
from live_ordering import OrderedUser, Service
from ordered_adapters import (
    KINDS,
    NODES,
    PATIENT,
    TOPICS,
    WAIT_S,
    Crowd,
    Key,
    Kind,
    Reader,
    Sequencers,
    crash,
    external,
    key,
    make_layout,
)
from tidings.bus.connect import connect
from tidings.bus.host import ApplicationHost
from tidings.bus.positions import Places
from tidings.core.events.event import Event, make_publication
from tidings.core.events.run import stamped
from tidings.core.events.timestamp import Timestamp
from tidings.core.ordering.module import PublishNow
from tidings.core.ordering.subscriber import Patience
from tidings.drivers.address import Address
from tidings.drivers.processes.brokers import free_addresses
from tidings.drivers.processes.layout_file import layout_text

SHORT = Patience(events=4_096, limit_ns=500_000_000)

Kinds = pytest.mark.parametrize("kind", KINDS, ids=str)
Lossless = pytest.mark.parametrize("kind", [kind for kind in KINDS if kind.lossless], ids=str)
Lossy = pytest.mark.parametrize("kind", [kind for kind in KINDS if not kind.lossless], ids=str)


@pytest.fixture
def broker(kind: Kind, tmp_path: Path) -> Iterator[ExternalBroker]:
    with kind.make(tmp_path) as started:
        yield started


# --- Without troubles


@pytest.mark.parametrize(("kind", "causal"), [*((kind, True) for kind in KINDS), (KINDS[1], False)], ids=str)
def test_overlapping_readers_agree_and_miss_nothing(
    kind: Kind, causal: bool, broker: Any, tmp_path: Path
) -> None:
    async def test() -> None:
        async with (
            Sequencers(broker.url, tmp_path, causal=causal) as sequencers,
            Crowd(broker.url, sequencers.texts, None if kind.lossless else PATIENT) as crowd,
        ):
            for who in ("p", "q", "r"):
                await crowd.join(who)
            await read_all(crowd, causal=causal)
            if causal:
                crowd.answer(crowd.readers[1], "r", ("/c", "/b/y"))
            await asyncio.gather(*(publish(crowd, who, at) for at, who in enumerate(("p", "q"))))
            await crowd.shown(crowd.published)
            await crowd.stop()  # all answers are published
            await crowd.shown(crowd.published)
            crowd.check(causal=causal)
            for reader in crowd.readers:
                assert not reader.late
                names = external(reader.bus).incoming
                assert not any(name.endswith("?") for name in names), (
                    "existing brokers have no headers to send"
                )

    run(test)


async def read_all(crowd: Crowd, *, causal: bool) -> None:
    second = "causal" if causal else "total"
    await crowd.read("everything", "/**")
    await crowd.read("some", "/a/**", "/b/x", order=second)
    await crowd.read("others", "/b/x", "/c", "/d")
    await crowd.read("half", "/a/x", "/c", where="even", order=second)


async def publish(crowd: Crowd, who: str, at: int) -> None:
    for step in range(20):
        await crowd.publish(who, TOPICS[(at + step) % len(TOPICS)])
    await crowd.publish_many(who, [TOPICS[(at + step) % len(TOPICS)] for step in range(40)])


def test_orders_that_a_service_cannot_keep_are_refused(tmp_path: Path) -> None:
    async def test() -> None:
        with NatsBroker(tmp_path) as broker:
            async with connect(broker.url) as bus:  # type: ignore[attr-defined]
                with pytest.raises(tidings.SubscriptionRefused, match="this network has none"):
                    await bus.subscribe("/a", order="total").__aenter__()
            with pytest.raises(
                tidings.ConnectionFailed, match=r"cannot reach the sequencer at .*127\.0\.0\.1:1"
            ):
                await connect(broker.url, sequencer="127.0.0.1:1").open()  # type: ignore[attr-defined]
            async with Sequencers(broker.url, tmp_path, causal=False) as sequencers:  # type: ignore[attr-defined]
                async with connect(broker.url, sequencer=sequencers.texts) as bus:  # type: ignore[attr-defined]
                    with pytest.raises(tidings.SubscriptionRefused, match="may lose events"):
                        await bus.subscribe("/a", order="total").__aenter__()
                    with pytest.raises(tidings.SubscriptionRefused, match="not causal order"):
                        await bus.subscribe("/a", order="causal").__aenter__()

    run(test)


# --- The check


def shown_event(who: str, number: int, place: tuple[int, int], *after: int) -> Event:
    """`after`: this number of the other topic comes before."""
    event = Event("s", 0, 1, "/a/x", 0, {"who": who, "n": number}, b"")
    index = (1 - place[0],) if after else ()
    event.__dict__["order"] = Places(Timestamp(*place, index, after), make_layout(), 1).of(1)
    return event


@pytest.mark.parametrize(
    ("shown", "problem"),
    [
        ([[("p", 1, (0, 1)), ("q", 1, (0, 2))], [("q", 1, (0, 2)), ("p", 1, (0, 1))]], "disagree"),
        ([[("p", 1, (0, 1)), ("p", 1, (0, 1))]], "twice"),
        ([[("p", 2, (0, 1)), ("p", 1, (0, 2))]], "before its cause"),
        ([[("p", 1, (0, 2)), ("q", 1, (0, 1))]], "goes back"),
        ([[("p", 1, (0, 1), 1), ("q", 1, (1, 1))]], "goes back"),
        ([[("p", 1, (0, 1))], [("q", 1, (0, 1))]], "a number was used twice"),
    ],
)
def test_the_check_can_fail(shown: list[list[Any]], problem: str) -> None:
    crowd = Crowd("nats://127.0.0.1:1", ["127.0.0.1:1"], None)
    for who in ("p", "p", "q"):
        crowd._next(who, "/a/x")
    for events in shown:
        reader = Reader(f"reader {len(crowd.readers)}", connect("nats://127.0.0.1:1"), "/**")
        reader.shown = [shown_event(*event) for event in events]
        crowd.readers.append(reader)
    with pytest.raises(AssertionError, match=problem):
        crowd.check(causal=True)
    for reader in crowd.readers:
        reader.shown = []
    crowd.check(causal=True)


# --- An event that does not come


class Holding(Service):
    """It takes events with their numbers, and keeps them to itself."""

    def __init__(self) -> None:
        super().__init__()
        self.held: list[PublishNow] = []

    def publish(self, user: OrderedUser, fact: PublishNow) -> None:
        self.held.append(fact)


async def hold(user: OrderedUser, service: Holding) -> None:
    """The user has number 1 of `/c`, and does not use it."""
    user.publish(2, "held")
    await until(lambda: bool(service.held), WAIT_S)


async def publish_held(bus: Any, sequencers: Sequencers, service: Holding) -> None:
    made = make_publication(*bus.inner.reserve(), "/c", {"who": "slow", "n": 1}, b"", 0)
    ordered = stamped(made, sequencers.layout.fingerprint, service.held[0].stamp)
    await (await bus.inner.send(ordered)).confirmed()


@Lossy
def test_a_reader_has_patience_and_marks_what_comes_late(kind: Kind, broker: Any, tmp_path: Path) -> None:
    async def test() -> None:
        service = Holding()
        async with (
            Sequencers(broker.url, tmp_path) as sequencers,
            Crowd(broker.url, sequencers.texts, SHORT) as crowd,
            OrderedUser(sequencers["n1"].address, "slow", service) as slow,
        ):
            bus = await crowd.join("p")
            readers = [await crowd.read(name, "/c", "/d", order="causal") for name in ("one", "other")]
            await hold(slow, service)
            await crowd.publish("p", "/c")
            await crowd.shown(crowd.published)
            await publish_held(bus, sequencers, service)
            await crowd.publish("p", "/d")
            await crowd.shown(crowd.published)
            for reader in readers:
                await until(lambda: bool(reader.late), WAIT_S)  # noqa: B023
                assert [key(event) for event in reader.shown] == [("p", 1), ("p", 2)]
                (late,) = reader.late
                assert (key(late), late.order.topic, late.order.number) == (("slow", 1), "/c", 1)

    run(test)


@Lossless
def test_a_reader_of_a_service_that_loses_nothing_waits(kind: Kind, broker: Any, tmp_path: Path) -> None:
    async def test() -> None:
        service = Holding()
        async with (
            Sequencers(broker.url, tmp_path) as sequencers,
            Crowd(broker.url, sequencers.texts, None) as crowd,
            OrderedUser(sequencers["n1"].address, "slow", service) as slow,
        ):
            bus = await crowd.join("p")
            reader = await crowd.read("one", "/c", "/d")
            await hold(slow, service)
            await crowd.publish("p", "/c")
            await crowd.publish("p", "/d")
            await waiting(reader, 2)
            assert not reader.shown
            await publish_held(bus, sequencers, service)
            await until(lambda: len(reader.shown) == 3, WAIT_S)
            assert [key(event) for event in reader.shown] == [("slow", 1), ("p", 1), ("p", 2)]
            assert not reader.late

    run(test)


async def waiting(reader: Reader, count: int) -> None:
    """Until the reader has so many events that wait for the first of `/c`, and says so."""
    async with asyncio.timeout(WAIT_S):
        expected = {"buffered": count, "waits_for": "event 1 of /c"}
        while expected not in (await reader.bus.status())["ordering"]["subscriptions"].values():  # noqa: ASYNC110
            await asyncio.sleep(0.02)


# --- Everything at once


@Kinds
def test_the_order_holds_when_broker_sequencer_and_publisher_die(
    kind: Kind, broker: ExternalBroker, tmp_path: Path
) -> None:
    """Under load: while the broker is away a publisher dies with numbers that it did not use, and so does the
    sequencer that gave them. Where nothing is lost all is shown; else what is published when all are back."""

    async def test() -> None:
        url: str = broker.url  # type: ignore[attr-defined]
        async with (
            Sequencers(url, tmp_path) as sequencers,
            Crowd(url, sequencers.texts, None if kind.lossless else SHORT) as crowd,
        ):
            for who in ("p", "q", "r", "victim"):
                await crowd.join(who)
            await crowd.watch("unordered")
            await read_all(crowd, causal=True)
            crowd.answer(crowd.readers[1], "r", ("/c", "/b/y"))
            crowd.load("p", "q")
            await crowd.publish("victim", "/a/x")
            await crowd.reach(80)
            # An orderly end keeps the sessions of Mosquitto; for the others it is a crash.
            await asyncio.to_thread(broker.stop if kind.name == "mqtt" else broker.kill)
            await die_with_numbers(crowd, "victim")
            await sequencers.kill("n1")
            known = {*crowd.confirmed}
            await asyncio.to_thread(broker.start)
            await reconnected(crowd, known)
            before = {*crowd.published}
            await crowd.reach(80)
            await until(lambda: bool(crowd.no_ops), WAIT_S, lambda: sequencers.no_ops)
            await sequencers.start("n1")
            await crowd.reach(40)
            await crowd.stop()
            owed = {*crowd.confirmed} - (set() if kind.lossless else before)
            await crowd.shown(owed)
            crowd.check(causal=True)
            assert all("who" in event.attributes for event in crowd.unordered), "a no-op was shown"
            assert {fact.stamp.topic for fact in sequencers.no_ops} == {0}, "only the victim's numbers"
            if kind.lossless:
                assert not any(reader.late for reader in crowd.readers)

    run(test)


async def reconnected(crowd: Crowd, known: set[Key]) -> None:
    """Until all who have something to say or to hear are back: who has not need not have noticed.

    Who waits for a number while the broker is away has an idle connection, which the broker's library may open again
    without a word: what is confirmed since shows that it is back.
    """

    async def is_back(name: str, bus: ApplicationHost) -> bool:
        if any(who == name for who, _ in crowd.confirmed - known):
            return True
        return bool((await bus.status())["reconnections"])

    async with asyncio.timeout(WAIT_S):
        for name, bus in crowd.buses.items():
            while name != "r" and not await is_back(name, bus):  # noqa: ASYNC110
                await asyncio.sleep(0.02)


async def die_with_numbers(crowd: Crowd, who: str) -> None:
    """The broker is away: what is published has its number, and goes nowhere."""
    bus = crowd.buses.pop(who)
    service = external(bus)
    lost = [asyncio.create_task(bus.publish("/a/x", {"who": "nobody", "n": n})) for n in range(5)]
    await until(lambda: len(service.outgoing) == 5, WAIT_S)
    await crash(bus)
    ends = await asyncio.gather(*lost, return_exceptions=True)
    assert all(isinstance(end, tidings.ConnectionFailed) for end in ends), ends


# --- As processes

PUBLISHER = """
import asyncio, sys, tidings

async def main(url, *sequencers):
    async with tidings.connect(url, name="victim", sequencer=sequencers) as bus:
        n = 0
        while True:
            batch = [(topic, {"who": "victim", "n": (n := n + 1)}, b"") for topic in ("/a/x", "/c") * 50]
            await bus.publish_many(batch)
            print(n, flush=True)

asyncio.run(main(*sys.argv[1:]))
"""

Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def start() -> Iterator[Start]:
    started: list[subprocess.Popen[str]] = []

    def start_one(*arguments: object) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, *map(str, arguments)],
            stdout=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
            text=True,
        )
        started.append(process)
        return process

    yield start_one
    for process in started:
        process.kill()
        process.wait(timeout=WAIT_S)
        assert process.stdout is not None
        process.stdout.close()


def read_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line, "it ended"
    return line


@pytest.mark.processes
def test_processes_that_are_killed_leave_one_order(start: Start, tmp_path: Path) -> None:
    """A publisher and the sequencer that gave it numbers are killed; the other sequencer fills them with no-ops,
    through the service of its --service."""
    addresses = free_addresses(NODES)
    file = tmp_path / "layout.toml"
    file.write_text(layout_text(make_layout(), addresses))
    with NatsBroker(tmp_path, jetstream=True) as broker:
        assert isinstance(broker, NatsBroker)
        sequencers = {
            node: start(
                *("-m", "tidings.cli.main", "sequencer", "--name", node, "--layout", file, "--json"),
                *("--data", tmp_path / node, "--service", broker.url),
            )
            for node in NODES
        }
        for node, process in sequencers.items():
            assert json.loads(read_line(process))["sequencer"] == node
        victim = start("-c", PUBLISHER, broker.url, *addresses.values())

        async def test() -> None:
            service = Holding()
            texts = [str(address) for address in addresses.values()]
            async with Crowd(broker.url, texts, None) as crowd:
                await crowd.join("p")
                await crowd.watch("unordered")
                await read_all(crowd, causal=True)
                await in_step(addresses["n1"])
                await publish(crowd, "p", 0)
                for _ in range(3):
                    await asyncio.to_thread(read_line, victim)
                async with OrderedUser(addresses["n1"], "slow", service) as slow:
                    slow.publish(0, "held")
                    await until(lambda: bool(service.held), WAIT_S)
                os.kill(victim.pid, signal.SIGKILL)
                os.kill(sequencers["n1"].pid, signal.SIGKILL)
                await publish(crowd, "p", 1)
                await crowd.shown(crowd.confirmed)
                assert crowd.no_ops
                for reader in crowd.readers:
                    assert not reader.late
                    for event in reader.shown:
                        crowd.published.setdefault(key(event), event.topic)
                crowd.check(causal=True)
                assert all("who" in event.attributes for event in crowd.unordered), "a no-op was shown"

        run(test)


async def in_step(address: Address) -> None:
    """Until the standby of the first server has all that its primary has."""
    async with connect(f"tidings://{address}").without_order() as service:
        while True:
            if (await service.status())["servers"]["n1"].get("standby") == "in step":
                return
            await asyncio.sleep(0.05)
