"""Sequencers over real sockets: stamps, take-over, restarts, and who is refused."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest

from live_network import until
from live_ordering import QUICK, REPLICATED, Hosts, OrderedUser, Service, played
from tidings.core.errors import ConnectionFailed, OrderError, StoreError
from tidings.core.facts import Misbehaviour
from tidings.core.messages import PROTOCOL_VERSION, Hello, Message, Refused, Status, StatusRequest, Welcome
from tidings.core.ordering.layout import Layout, ServerPlacement, single
from tidings.core.ordering.messages import (
    Claim,
    Create,
    EventStamps,
    OrderLayout,
    Replicate,
    StatePart,
)
from tidings.core.wire.codec import decode, encode
from tidings.core.wire.frames import FrameReader, frame
from tidings.drivers.address import Address
from tidings.drivers.sockets.broker import BrokerServer
from tidings.drivers.sockets.client import ClientConnection
from tidings.drivers.sockets.handshake import CLIENT, ORDERED, SEQUENCER
from tidings.drivers.sockets.ordering_links import LIMIT_BYTES
from tidings.drivers.sockets.security import Tls
from tidings.drivers.sockets.sequencer import SequencerHost
from tidings.drivers.sockets.sequencing import SequencersRefused, SequencingConnection
from tidings.storage.sequencer_store import sequencer_store_path

pytestmark = pytest.mark.timeout(60)

ONE = single("n1", ("/a", "/b"))
CHAIN = Layout([ServerPlacement("high", ("/a",), node="n1"), ServerPlacement("low", ("/b",), node="n2")])


class Raw:
    """A peer that says what it likes."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self.reader = FrameReader()
        self.received: list[Message] = []

    async def __aenter__(self) -> Raw:
        self.read, self.write = await asyncio.open_connection(*self.address)
        return self

    async def __aexit__(self, *_: object) -> None:
        self.write.transport.abort()
        with suppress(OSError):
            await self.write.wait_closed()

    def send(self, *messages: Message) -> None:
        for message in messages:
            self.write.write(frame(encode(message)))

    async def receive(self, kind: type, seconds: float = 10.0) -> Any:
        """The next message of that kind."""
        async with asyncio.timeout(seconds):
            while True:
                while self.received:
                    message = self.received.pop(0)
                    if isinstance(message, kind):
                        return message
                data = await self.read.read(65_536)
                assert data, f"closed before any {kind.__name__}"
                for body in self.reader.feed(data):
                    self.received.extend(decode(body))

    async def refusal(self) -> str:
        return str((await self.receive(Refused)).reason)


# --- Stamps and order


@played
async def test_stamps_and_order_over_sockets() -> None:
    service = Service()
    async with Hosts(ONE) as hosts:
        address = hosts["n1"].address
        async with OrderedUser(address, "x", service) as x, OrderedUser(address, "y", service) as y:
            assert x.connection.layout.text == ONE.text
            keys = {user: await user.subscribe(0, 1) for user in (x, y)}
            for number in range(50):
                x.publish(number % 2, f"x{number}")
                y.publish(0, f"y{number}")
            await until(lambda: all(len(user.shown(key)) == 100 for user, key in keys.items()))
            assert x.shown(keys[x]) == y.shown(keys[y])
            assert len(set(service.stamps)) == 100
            status = hosts["n1"].status()
            assert status["clients"] == 2
            assert hosts.servers("n1")["n1"]["subscribers"] == 2


@played
async def test_a_chain_of_servers() -> None:
    service = Service()
    async with Hosts(CHAIN) as hosts:
        async with OrderedUser(hosts["n2"].address, "x", service) as x:
            key = await x.subscribe(0, 1)
            for number in range(20):
                x.publish(number % 2, number)
            await until(lambda: len(x.shown(key)) == 20)
            assert x.shown(key) == list(range(20)), "one publisher's events keep their order"
            assert x.connection.nodes == {"n1": True, "n2": True}, "it was told only of one"


@played
async def test_a_batch_of_large_messages_goes_over_one_connection() -> None:
    """A layout larger than what a stranger may send first."""
    layout = single("n1", [f"/{'topic' * 20}/{number}" for number in range(1000)])
    assert len(layout.text) > 64 * 1024
    service = Service()
    async with Hosts(layout) as hosts:
        async with OrderedUser(hosts["n1"].address, "x", service, layout=layout) as x:
            key = await x.subscribe(*range(1000))
            x.publish(999, "event")
            await until(lambda: x.shown(key) == ["event"])


# --- Take-over and restarts


@played
async def test_the_standby_takes_over_and_the_old_one_comes_back(tmp_path: Path) -> None:
    service = Service()
    async with Hosts(REPLICATED, tmp_path) as hosts:
        await hosts.in_step()
        async with OrderedUser(hosts["n3"].address, "x", service) as x:
            key = await x.subscribe(0, 1)
            x.publish(0, *range(100))
            await x.published()
            await hosts.kill("n1")
            x.publish(0, *range(100, 200))
            x.publish(1, *range(200, 210))
            await until(lambda: hosts.role("n2") == "active")
            await until(lambda: len(x.shown(key)) == 210)
            await hosts.start("n1")
            await hosts.in_step()
            assert hosts.role("n1") == "standby"
            await hosts.kill("n2")
            x.publish(0, *range(210, 220))
            await until(lambda: len(x.shown(key)) == 220)
            assert hosts.role("n1") == "active"
            assert x.shown(key) == list(range(220))
            assert sorted(service.stamps) == sorted(set(service.stamps)), "no number twice"
            assert not x.broken


@played
async def test_a_lost_disk_is_filled_from_the_other_replica(tmp_path: Path) -> None:
    """The state has one lineage wherever it is."""
    service = Service()
    async with Hosts(REPLICATED, tmp_path) as hosts:
        await hosts.in_step()
        async with OrderedUser(hosts["n2"].address, "x", service) as x:
            key = await x.subscribe(0)
            x.publish(0, *range(10))
            await x.published()
            await hosts.kill("n1")
            await until(lambda: hosts.role("n2") == "active")
            _remove(tmp_path)
            await hosts.start("n1")
            await hosts.in_step()
            await hosts.kill("n2")
            x.publish(0, *range(10, 20))
            await until(lambda: x.shown(key) == list(range(20)))
            assert not x.broken


@played
async def test_a_restart_with_data_goes_on(tmp_path: Path) -> None:
    service = Service()
    async with Hosts(ONE, tmp_path) as hosts:
        async with OrderedUser(hosts["n1"].address, "x", service) as x:
            key = await x.subscribe(0)
            for life in range(3):
                x.publish(0, *range(10 * life, 10 * life + 10))
                await x.published()
                await hosts.kill("n1")
                x.publish(0, f"while away {life}")
                await hosts.start("n1")
            await x.published()
            await until(lambda: len(x.shown(key)) == 33)
            assert sorted(service.stamps) == [(0, number) for number in range(1, 34)], (
                "none twice, none left out"
            )
            assert not x.broken


@played
async def test_a_restart_without_data_begins_anew_and_says_so() -> None:
    service = Service()
    async with Hosts(ONE) as hosts:
        async with OrderedUser(hosts["n1"].address, "x", service) as x:
            old = await x.subscribe(0)
            x.publish(0, *range(5))
            await until(lambda: len(x.shown(old)) == 5)
            await hosts.kill("n1")
            await hosts.start("n1")
            await until(lambda: bool(x.broken))
            assert x.broken == ["sequencer server n1 lost its state"]
            service.stamps.clear()
            new = await x.subscribe(0)
            x.publish(0, "first again")
            await until(lambda: x.shown(new) == ["first again"])
            assert service.stamps == [(0, 1)], "numbers of another lineage"


@played
async def test_a_publisher_without_a_subscription_survives_a_lost_state() -> None:
    service = Service()
    async with Hosts(ONE) as hosts:
        async with OrderedUser(hosts["n1"].address, "x", service) as x:
            x.publish(0, *range(5))
            await x.published()
            await hosts.kill("n1")
            x.publish(0, *range(5))
            await hosts.start("n1")
            await x.published()
            assert service.stamps == [(0, number) for number in (1, 2, 3, 4, 5)] * 2


@played
async def test_a_server_that_lost_its_state_is_refused_by_its_neighbours() -> None:
    async with Hosts(CHAIN) as hosts:
        await until(lambda: bool(hosts["n1"].status()["nodes"]["n2"]["up"]))  # type: ignore[index]
        await hosts.kill("n2")
        await hosts.start("n2")
        await until(lambda: hosts["n1"].host.refusals > 0)
        assert not hosts["n1"].status()["nodes"]["n2"]["up"]  # type: ignore[index]


@played
async def test_no_ops_of_a_publisher_that_is_gone() -> None:
    async with Hosts(ONE) as hosts:
        async with Raw(hosts["n1"].address) as raw:
            await _enter(raw, "p", ORDERED, OrderLayout(""))
            raw.send(Create(("p", 1), 1, 0, 3, 0))
            stamps = await raw.receive(EventStamps)
            assert (stamps.base, stamps.count) == (0, 3)
        await until(lambda: len(hosts.no_ops) == 1)
        (fact,) = hosts.no_ops
        assert (fact.server, fact.stamp.topic, fact.stamp.number, fact.count) == ("n1", 0, 1, 3)
        assert hosts.servers("n1")["n1"]["no_ops"] == 1
        hosts["n1"].no_ops_published(fact.server, fact.number)
        await until(lambda: hosts.servers("n1")["n1"]["no_ops"] == 0)


# --- Connections


@played
async def test_clients_connect_again_and_learn_a_new_address(tmp_path: Path) -> None:
    """A node that comes back elsewhere tells the others, and they tell clients."""
    service = Service()
    async with Hosts(REPLICATED, tmp_path) as hosts:
        await hosts.in_step()
        async with OrderedUser(hosts["n3"].address, "x", service) as x:
            await until(lambda: all(x.connection.nodes.values()))
            await hosts.kill("n1")
            hosts.addresses.pop("n1")
            await hosts.start("n1")
            await until(lambda: all(x.connection.nodes.values()), what=lambda: x.connection.nodes)
            assert x.connection._addresses["n1"] == hosts["n1"].address


@played
async def test_the_first_address_that_answers_will_do() -> None:
    service = Service()
    async with Hosts(ONE) as hosts:
        nobody = await _closed_port()
        async with OrderedUser([nobody, hosts["n1"].address], "x", service) as x:
            assert x.connection.nodes == {"n1": True}


@played
async def test_nobody_there() -> None:
    nobody = await _closed_port()
    connection = SequencingConnection(nobody, "x", emit=lambda fact: None)
    with pytest.raises(ConnectionFailed, match=rf"sequencer at tidings://{nobody}: connection refused"):
        await connection.open(10.0)
    with pytest.raises(ConnectionFailed, match="not connected"):
        _ = connection.module
    with pytest.raises(ConnectionFailed, match="no sequencer is known"):
        await SequencingConnection((), "x", emit=lambda fact: None).open(1.0)


@played
async def test_who_never_answers_is_not_waited_for() -> None:
    writers: list[asyncio.StreamWriter] = []
    server = await asyncio.start_server(lambda reader, writer: writers.append(writer), "127.0.0.1", 0)
    async with server:
        address = Address("127.0.0.1", server.sockets[0].getsockname()[1])
        with pytest.raises(ConnectionFailed, match=r"no answer within 0\.2 seconds"):
            await SequencingConnection(address, "x", emit=lambda fact: None).open(0.2)
        for writer in writers:
            writer.transport.abort()
            with suppress(OSError):
                await writer.wait_closed()


@played
async def test_a_broker_is_no_sequencer_and_a_sequencer_no_broker() -> None:
    broker = BrokerServer("b0")
    await broker.start()
    try:
        with pytest.raises(ConnectionFailed, match="unknown role 'ordered'"):
            await SequencingConnection(broker.address, "x", emit=lambda fact: None).open(10.0)
    finally:
        await broker.stop()
    async with Hosts(ONE) as hosts, Raw(hosts["n1"].address) as raw:
        raw.send(Hello(PROTOCOL_VERSION, "b1", "broker"))
        assert await raw.refusal() == "unknown role 'broker': n1 is a sequencer"


@played
async def test_a_second_connection_takes_the_name() -> None:
    service = Service()
    async with Hosts(ONE) as hosts:
        async with OrderedUser(hosts["n1"].address, "x", service) as first:
            await first.subscribe(0)
            async with OrderedUser(hosts["n1"].address, "x", service) as second:
                reason = "sequencer n1 refused the connection: another connection took the name"
                await until(lambda: first.connection.refused == reason)
                assert first.broken == [reason]
                assert SequencersRefused(reason) in first.facts
                assert second.connection.nodes == {"n1": True}


# --- Who is refused


@played
async def test_another_layout_is_refused_with_the_difference() -> None:
    other = single("n1", ("/a", "/c"))
    async with Hosts(ONE) as hosts:
        connection = SequencingConnection(hosts["n1"].address, "x", emit=lambda fact: None, layout=other)
        with pytest.raises(
            ConnectionFailed, match="refused the connection: the layouts of topics differ"
        ) as caught:
            await connection.open(10.0)
        assert "(here: at n1): only here: /b; only there: /c" in str(caught.value)
        assert hosts["n1"].host.refusals == 1


@played
async def test_nodes_with_different_layouts_do_not_mix(caplog: pytest.LogCaptureFixture) -> None:
    reordered = Layout(
        [ServerPlacement("high", ("/a",), node="n1"), ServerPlacement("low", ("/b",), node="n2")],
        causal=False,
    )
    hosts = Hosts(CHAIN)
    with caplog.at_level(logging.WARNING, "tidings.net"):
        await hosts.start("n2")
        await hosts.start("n1", layout=reordered)
        try:
            difference = "order is causal here and total there"
            await until(lambda: difference in caplog.text)
            assert not hosts["n2"].status()["nodes"]["n1"]["up"]  # type: ignore[index]
        finally:
            await hosts.__aexit__()


@played
async def test_a_changed_layout_breaks_the_streams_of_old_clients() -> None:
    service = Service()
    hosts = Hosts(ONE)
    await hosts.start("n1")
    try:
        async with OrderedUser(hosts["n1"].address, "x", service) as x:
            await x.subscribe(0)
            await hosts.kill("n1")
            await hosts.start("n1", layout=single("n1", ("/a", "/c")))
            await until(lambda: bool(x.broken))
            assert "the layouts of topics differ" in x.broken[0]
    finally:
        await hosts.__aexit__()


@played
async def test_wrong_token() -> None:
    async with Hosts(ONE, token="secret") as hosts:
        address = hosts["n1"].address
        for token in ("", "wrong"):
            with pytest.raises(ConnectionFailed, match="it refused the connection: wrong or missing token"):
                await SequencingConnection(address, "x", emit=lambda fact: None, token=token).open(10.0)
        async with OrderedUser(address, "x", Service(), token="secret") as x:
            await x.subscribe(0)


@pytest.mark.parametrize(
    ("hello", "reason"),
    [
        (Hello(99, "x", ORDERED), "unsupported protocol version 99; n1 speaks 2"),
        (Hello(PROTOCOL_VERSION, "n1", ORDERED), "the name 'n1' belongs to a sequencer"),
        (Hello(PROTOCOL_VERSION, "n1", CLIENT), "the name 'n1' belongs to a sequencer"),
        (Hello(PROTOCOL_VERSION, "n1", SEQUENCER), "two sequencers are named n1"),
        (Hello(PROTOCOL_VERSION, "n9", SEQUENCER), "n9 is not a node of this layout"),
    ],
)
@played
async def test_hellos_that_are_refused(hello: Hello, reason: str) -> None:
    async with Hosts(ONE) as hosts, Raw(hosts["n1"].address) as raw:
        raw.send(hello)
        assert await raw.refusal() == reason


@pytest.mark.parametrize(
    ("role", "message", "reason"),
    [
        (CLIENT, Create(("x", 1), 1, 0, 1, 0), "who asks a sequencer for its status does not send Create"),
        (
            ORDERED,
            Create(("x", 1), 1, 0, 1, 0),
            "who has not named its layout of topics does not send Create",
        ),
        (ORDERED, OrderLayout("{}"), "not a valid layout: Object missing required field `servers`"),
        (ORDERED, OrderLayout('{"servers":[],"causal":true}'), "0 sequencer servers; expected 1 to 256"),
        (ORDERED, StatusRequest(), "who has not named its layout of topics does not send StatusRequest"),
    ],
)
@played
async def test_first_words_that_are_refused(role: str, message: Message, reason: str) -> None:
    async with Hosts(ONE) as hosts, Raw(hosts["n1"].address) as raw:
        raw.send(Hello(PROTOCOL_VERSION, "x", role))
        await raw.receive(Welcome)
        raw.send(message)
        assert await raw.refusal() == reason


@played
async def test_a_client_may_not_speak_as_a_sequencer() -> None:
    forged = (Replicate("main", 1, 1), Claim("main", 0, True, 1), StatePart("main", 9, 1, 0, 1, b""))
    async with Hosts(REPLICATED) as hosts:
        await hosts.in_step()
        before = hosts.servers("n1")
        for message in forged:
            async with Raw(hosts["n1"].address) as raw:
                await _enter(raw, "x", ORDERED, OrderLayout(""))
                raw.send(message)
                name = type(message).__name__
                assert await raw.refusal() == f"a client of a sequencer does not send {name}"
        assert hosts.servers("n1")["main"]["role"] == before["main"]["role"]


@played
async def test_nobody_asks_in_the_name_of_another() -> None:
    facts: list[object] = []
    async with Hosts(ONE, emit=facts.append) as hosts, Raw(hosts["n1"].address) as raw:
        await _enter(raw, "x", ORDERED, OrderLayout(""))
        raw.send(Create(("y", 1), 1, 0, 1, 0), Create(("x", 1), 1, 0, 1, 0))
        stamps = await raw.receive(EventStamps)
        assert (stamps.publisher, stamps.base) == (("x", 1), 0)
        assert any(isinstance(fact, Misbehaviour) for fact in facts)


@played
async def test_bad_frames_end_one_session_alone() -> None:
    service = Service()
    async with Hosts(ONE) as hosts:
        async with OrderedUser(hosts["n1"].address, "x", service) as x:
            key = await x.subscribe(0)
            for number, junk in enumerate(
                (frame(b"\xc1"), frame(msgspec.msgpack.encode([128, 7])), b"\xff" * 8), 1
            ):
                async with Raw(hosts["n1"].address) as raw:
                    await _enter(raw, "bad", ORDERED, OrderLayout(""))
                    raw.write.write(junk)
                    assert await raw.refusal()
                assert hosts["n1"].host.bad_frames == number
            x.publish(0, "event")
            await until(lambda: x.shown(key) == ["event"])


@played
async def test_a_client_that_does_not_read_misses_answers_and_blocks_nobody() -> None:
    """One that asks for the same answer again and again, and takes none."""
    service = Service()
    wide = single("n1", [f"/{number}" for number in range(1500)])
    async with Hosts(wide) as hosts:
        async with OrderedUser(hosts["n1"].address, "x", service) as x:
            await x.subscribe(*range(1500))
            async with Raw(hosts["n1"].address) as raw:
                raw.write.transport.pause_reading()  # type: ignore[attr-defined]
                raw.send(Hello(PROTOCOL_VERSION, "slow", ORDERED), OrderLayout(""))
                link = None
                for number in range(1, 30_000):
                    raw.send(Create(("slow", 1), number, 0, 1, number - 1))
                    if number % 200 == 0:
                        await raw.write.drain()
                        await asyncio.sleep(0)
                        link = hosts["n1"]._links.get("slow")
                        if link is not None and link.left_out:
                            break
                assert link is not None and link.left_out, "it was never too much"
                assert link.session.outbox.size_bytes < 2 * LIMIT_BYTES
                x.publish(1, "event")
                await x.published()


# --- Status, disks, addresses


@played
async def test_status_for_a_plain_client() -> None:
    async with Hosts(REPLICATED) as hosts:
        await hosts.in_step()
        async with Raw(hosts["n3"].address) as raw:
            raw.send(Hello(PROTOCOL_VERSION, "me", CLIENT))
            welcome = await raw.receive(Welcome)
            assert (welcome.node, welcome.mode) == ("n3", "sequencer")
            raw.send(StatusRequest())
            status = msgspec.json.decode((await raw.receive(Status)).json)
        assert status["sequencer"] == "n3"
        assert status["witness_of"] == ["main"]
        assert {node: found["up"] for node, found in status["nodes"].items()} == dict.fromkeys(
            ("n1", "n2", "n3"), True
        )
        assert hosts.servers("n1")["main"]["role"] == "active"


@played
async def test_a_stalled_subscriber_is_shown_with_what_it_lacks() -> None:
    service = Service()
    async with Hosts(ONE) as hosts:
        async with OrderedUser(hosts["n1"].address, "x", service) as x:
            await x.subscribe(0)
            keys, x.keys = x.keys, []  # the service loses the first event
            x.publish(0, "lost")
            await x.published()
            x.keys = keys
            x.publish(0, "waits")
            await until(lambda: bool(hosts.servers("n1")["n1"]["stalled"]))
            (stalled,) = hosts.servers("n1")["n1"]["stalled"]  # type: ignore[misc]
            assert stalled["subscriber"] == "x"  # type: ignore[index]
            assert stalled["lacks"] == "event 1 of /a"  # type: ignore[index]
            assert stalled["waiting"] == 1  # type: ignore[index]


@played
async def test_the_data_of_another_layout_are_not_used(tmp_path: Path) -> None:
    async with Hosts(ONE, tmp_path):
        pass
    host = SequencerHost("n1", Address(port=0), single("n1", ("/a", "/c")), data=tmp_path)
    with pytest.raises(OrderError, match="is for other topics or another order"):
        await host.start()


@played
async def test_damaged_and_shared_data(tmp_path: Path) -> None:
    async with Hosts(ONE, tmp_path):
        host = SequencerHost("n1", Address(port=0), ONE, data=tmp_path)
        with pytest.raises(StoreError, match=r"n1\.order is in use by another process"):
            await host.start()
    sequencer_store_path(tmp_path, "n1").write_bytes(b"no store")
    with pytest.raises(StoreError, match="move it away: a replica gets its state from the other one"):
        await SequencerHost("n1", Address(port=0), ONE, data=tmp_path).start()


@played
async def test_mistakes_of_who_starts_it() -> None:
    with pytest.raises(OrderError, match="'n9' is not a node of the layout; its nodes: n1"):
        await SequencerHost("n9", Address(port=0), ONE).start()
    with pytest.raises(OrderError, match="n1 has no address for n2"):
        await SequencerHost("n1", Address(port=0), CHAIN).start()
    with pytest.raises(
        ConnectionFailed, match="beyond loopback, a TLS certificate, its key and a token are required"
    ):
        await SequencerHost("n1", Address("0.0.0.0", 0), ONE, tls=Tls(), token="x").start()
    with pytest.raises(ConnectionFailed, match="beyond loopback, TLS is required"):
        await SequencerHost("n1", Address(port=0), CHAIN, {"n2": Address("192.0.2.1", 1)}).start()
    async with Hosts(ONE) as hosts:
        with pytest.raises(ConnectionFailed, match="the port is in use"):
            await SequencerHost("n1", hosts["n1"].address, ONE, times=QUICK).start()


@played
async def test_brokers_tell_where_the_sequencers_are() -> None:
    addresses = (Address(port=7500), Address("::1", 7501))
    broker = BrokerServer("b0", sequencers=addresses)
    await broker.start()
    try:
        assert broker.status()["sequencers"] == ["127.0.0.1:7500", "[::1]:7501"]
        connection = ClientConnection(broker.address, "x", emit=lambda fact: None)
        await connection.open()
        assert connection.sequencers == ("127.0.0.1:7500", "[::1]:7501")
        await connection.close()
    finally:
        await broker.stop()


async def _enter(raw: Raw, name: str, role: str, layout: OrderLayout) -> None:
    raw.send(Hello(PROTOCOL_VERSION, name, role))
    await raw.receive(Welcome)
    raw.send(layout)
    await raw.receive(OrderLayout)


def _remove(data: Path) -> None:
    for file in data.glob("n1.order*"):
        file.unlink()


async def _closed_port() -> Address:
    server = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0)
    address = Address("127.0.0.1", server.sockets[0].getsockname()[1])
    server.close()
    await server.wait_closed()
    return address
