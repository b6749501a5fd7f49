"""A broker against peers made of bytes: bad frames and bad manners end only their own connection."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import struct
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress

import msgspec
import pytest

from payloads import BAD_ITEMS
from tidings.core.events.event import make_publication
from tidings.core.messages import (
    PROTOCOL_VERSION,
    Confirm,
    Hello,
    Message,
    Ping,
    Pong,
    PublishFailed,
    Refused,
    Status,
    StatusRequest,
    Subscribe,
    Subscribed,
    Welcome,
)
from tidings.core.overlay.messages import Changes, LinkOpen
from tidings.core.wire.codec import decode, encode, encode_publications
from tidings.core.wire.frames import MAX_FRAME_BYTES, FrameReader, frame
from tidings.drivers.address import Address
from tidings.drivers.sockets import session as session_module
from tidings.drivers.sockets.broker import BrokerServer
from tidings.drivers.sockets.client import ClientConnection


class RawPeer:
    """A peer made of a socket and the codec, without any of the driver's code."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self.frames = FrameReader()
        self.waiting: list[Message] = []

    @classmethod
    async def connect(cls, address: Address) -> RawPeer:
        return cls(*await asyncio.open_connection(*address))

    @classmethod
    async def client(cls, address: Address, name: str = "c") -> RawPeer:
        peer = await cls.connect(address)
        peer.say(Hello(PROTOCOL_VERSION, name, "client"))
        assert await peer.hear() == Welcome(PROTOCOL_VERSION, "b", "best-effort")
        return peer

    def say(self, *messages: Message) -> None:
        self.writer.write(b"".join(frame(encode(message)) for message in messages))

    async def hear(self) -> Message | None:
        """The next message, or None at the end of the stream."""
        while not self.waiting:
            data = await asyncio.wait_for(self.reader.read(65536), 5)
            if not data:
                return None
            for body in self.frames.feed(data):
                self.waiting += decode(body)
        return self.waiting.pop(0)

    async def still_works(self) -> bool:
        self.say(Ping(77))
        return await self.hear() == Pong(77)

    async def close(self) -> None:
        self.writer.close()
        with suppress(ConnectionError):
            await self.writer.wait_closed()


def against_broker(play: Callable[[BrokerServer], Awaitable[None]]) -> None:
    async def main() -> None:
        server = BrokerServer("b", neighbours={"b9": Address(port=1)})
        server.identity = server.identity._replace(neighbours=("b9", "a1"))
        await server.start()
        try:
            await play(server)
        finally:
            await server.stop()

    asyncio.run(main())


def sessions_of(server: BrokerServer) -> list[str]:
    return [session.peer for session in server._sessions]


def huge_hello() -> bytes:
    return frame(encode(Hello(PROTOCOL_VERSION, "c", "client")) + bytes(40_000))


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", "a frame of 1195725856 bytes; the limits are 1 to 32768"),
        (struct.pack(">I", 0), "a frame of 0 bytes"),
        (huge_hello(), "a frame of 40"),
        (frame(b"\xc1"), "not a message"),
        (frame(encode(Ping(1))), "expected Hello, got Ping"),
        (
            frame(encode(Hello(9, "c", "client"))),
            "unsupported protocol version 9; this broker speaks 2",
        ),
        # The Hellos of a client and of a broker of version 1.
        (
            b"\x00\x00\x00\x0e\x96\x01\x01\xa1c\xa6client\xa0\xa0",
            "unsupported protocol version 1; this broker speaks 2",
        ),
        (
            b"\x00\x00\x00\x1a\x96\x01\x01\xa2a1\xa6broker\xabbest-effort\xa0",
            "unsupported protocol version 1; this broker speaks 2",
        ),
        (
            frame(encode(Hello(PROTOCOL_VERSION, "b", "broker", "best-effort"))),
            "there are two brokers named b",
        ),
        (frame(encode(Hello(PROTOCOL_VERSION, "b2", "broker", "best-effort"))), "b2 is not a neighbour of b"),
        (
            frame(encode(Hello(PROTOCOL_VERSION, "a1", "broker", "epidemic"))),
            "b runs in mode 'best-effort', not 'epidemic'",
        ),
        (frame(encode(Hello(PROTOCOL_VERSION, "b9", "client"))), "the name 'b9' belongs to a broker"),
    ],
)
def test_a_first_frame_that_is_refused(data: bytes, reason: str) -> None:
    async def play(server: BrokerServer) -> None:
        good = await RawPeer.client(server.address, "good")
        bad = await RawPeer.connect(server.address)
        bad.writer.write(data)
        answer = await bad.hear()
        assert isinstance(answer, Refused)
        assert answer.reason.startswith(reason)
        assert await bad.hear() is None
        assert await good.still_works()
        await bad.close()
        await good.close()

    against_broker(play)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (struct.pack(">I", MAX_FRAME_BYTES + 1) + bytes(100_000), f"a frame of {MAX_FRAME_BYTES + 1} bytes"),
        (frame(b"garbage"), "not a message"),
        (frame(encode_publications([msgspec.Raw(b"\x91\x01")])), "not an event"),
        (frame(encode(Hello(PROTOCOL_VERSION, "c", "client"))), "a second Hello on one connection"),
        (frame(encode(LinkOpen(1, 0, False))), "a client does not send LinkOpen"),
        (frame(encode(Changes(1, 1, 1, ()))), "a client does not send Changes"),
        (frame(encode(Confirm(1, 1, 1))), "a client does not send Confirm"),
    ],
)
def test_a_client_that_misbehaves_is_told_and_cut_off_alone(data: bytes, reason: str) -> None:
    async def play(server: BrokerServer) -> None:
        good = await RawPeer.client(server.address, "good")
        bad = await RawPeer.client(server.address, "bad")
        assert sessions_of(server) == ["good", "bad"]
        bad.writer.write(data)
        answer = await bad.hear()
        assert isinstance(answer, Refused)
        assert answer.reason.startswith(reason)
        assert await bad.hear() is None
        assert await good.still_works()
        assert sessions_of(server) == ["good"]
        await bad.close()
        await good.close()

    against_broker(play)


def test_nothing_behind_a_refused_message_counts() -> None:
    async def play(server: BrokerServer) -> None:
        bad = await RawPeer.client(server.address, "bad")
        bad.say(Confirm(1, 1, 1), Subscribe("s", ("/a",), None, "none"), Confirm(1, 1, 1))
        assert await bad.hear() == Refused("a client does not send Confirm")
        assert await bad.hear() is None
        assert server.status()["clients"] == server.status()["interests"] == 0
        await bad.close()

    against_broker(play)


def test_nothing_behind_a_refused_message_of_a_broker_counts() -> None:
    async def play(server: BrokerServer) -> None:
        hello = Hello(PROTOCOL_VERSION, "b9", "broker", "best-effort")
        bad = await RawPeer.connect(server.address)
        bad.say(hello)
        assert await bad.hear() == Welcome(PROTOCOL_VERSION, "b", "best-effort")
        bad.say(hello, LinkOpen(5, 0, False))
        while (answer := await bad.hear()) is not None:
            assert isinstance(answer, LinkOpen) or answer == Refused("a second Hello on one connection")
        neighbours = server.status()["neighbours"]
        assert isinstance(neighbours, dict)
        assert neighbours["b9"]["present"] is False
        await bad.close()

    against_broker(play)


def test_a_bad_frame_is_one_line_in_the_log_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    async def play(server: BrokerServer) -> None:
        bad = await RawPeer.client(server.address, "bad")
        bad.writer.write(frame(b"garbage") * 50)
        while await bad.hear() is not None:
            pass
        assert server.host.bad_frames == 1
        await bad.close()

    with caplog.at_level(logging.INFO, "tidings.net"):
        against_broker(play)
    assert len([record for record in caplog.records if "not a message" in record.getMessage()]) == 1


def test_a_truncated_frame_is_counted_when_the_stream_ends() -> None:
    async def play(server: BrokerServer) -> None:
        bad = await RawPeer.client(server.address, "bad")
        bad.writer.write(frame(encode(Ping(1)))[:-1])
        bad.writer.write_eof()
        answer = await bad.hear()
        assert isinstance(answer, Refused)
        assert "ended inside a frame" in answer.reason
        assert server.host.bad_frames == 1
        await bad.close()

    against_broker(play)


def test_silence_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_module, "HANDSHAKE_SECONDS", 0.05)

    async def play(server: BrokerServer) -> None:
        silent = await RawPeer.connect(server.address)
        assert await silent.hear() is None
        assert sessions_of(server) == []
        await silent.close()

    against_broker(play)


def test_many_messages_in_one_write_and_one_message_in_many() -> None:
    async def play(server: BrokerServer) -> None:
        peer = await RawPeer.client(server.address)
        peer.say(*[Ping(number) for number in range(100)])
        assert [await peer.hear() for _ in range(100)] == [Pong(number) for number in range(100)]
        for byte in frame(encode(Ping(7))):
            peer.writer.write(bytes((byte,)))
            await asyncio.sleep(0)
        assert await peer.hear() == Pong(7)
        await peer.close()

    against_broker(play)


def bad_publications() -> list[tuple[bytes, str]]:
    fields = ["c", 0, 5, "/a", 0, {}, b""]

    def changed(index: int, value: object) -> bytes:
        return msgspec.msgpack.encode([*fields[:index], value, *fields[index + 1 :]])

    return [
        (changed(3, "/a/*"), "wildcard"),
        (changed(3, "no slash"), "must start with"),
        (changed(5, {"topic": 1}), "reserved"),
        (changed(5, {"": 1}), "non-empty"),
        (changed(5, {"x": [1]}), "list"),
        (changed(5, {"x": 2**63}), "64 bits"),
        (changed(5, [1]), "Expected `object`"),
        (changed(6, "text"), "its payload does not decode"),
        (changed(0, "other"), "may not publish as"),
    ]


def run_of_three(**lies: object) -> bytes:
    events = [("c", 0, number, "/a", 0, {"x": number}, b"") for number in (1, 2, 3)]
    told = {"source": "c", "incarnation": 0, "first": 1, "count": 3, "topic": "/a"}
    fields = (told | {"body": msgspec.msgpack.encode(events)} | lies).values()
    return msgspec.msgpack.encode(tuple(fields))


@pytest.mark.parametrize(
    ("lies", "reason"),
    [
        ({"count": 2}, "the run 1 to 2 of c has 3 events, not 2"),
        ({"first": 5}, "the run 5 to 7 of c has events with other sequences"),
        ({"topic": "/b"}, "the run 1 to 3 of c says that all its events are on '/b'"),
        ({"body": bytes(50_000)}, "the run 1 to 3 of c has 50000 bytes of events, the limit is 49152"),
        ({"body": b"\xdc\x00\x03\x97"}, "the run 1 to 3 of c: its events do not decode"),
        ({"count": 1}, "the run 1 to 1 of c has 1 events"),
        ({"layout": 9, "stamp": [0, 1], "kind": 7}, "the run 1 to 3 of c has 3 events"),
        ({"layout": 9, "stamp": [0, "1"], "kind": 0}, "not a run of events"),
    ],
)
def test_a_run_that_lies_ends_its_session(lies: dict[str, object], reason: str) -> None:
    async def play(server: BrokerServer) -> None:
        good, bad = await RawPeer.client(server.address, "good"), await RawPeer.client(server.address, "c")
        bad.writer.write(frame(encode_publications([msgspec.Raw(run_of_three(**lies))])))
        answer = await bad.hear()
        assert isinstance(answer, Refused)
        assert answer.reason.startswith(reason)
        assert await bad.hear() is None
        assert await good.still_works()
        await bad.close()
        await good.close()

    against_broker(play)


def test_an_event_of_a_run_that_does_not_decode_fails_by_number_and_the_others_pass() -> None:
    async def play(server: BrokerServer) -> None:
        peer = await RawPeer.client(server.address, "c")
        events = [("c", 0, number, "/a", 0, {"x": [] if number == 2 else 1}, b"") for number in (1, 2, 3, 4)]
        body = msgspec.msgpack.encode(events)
        peer.writer.write(
            frame(
                encode_publications(
                    [msgspec.Raw(run_of_three(count=4, body=body)), msgspec.Raw(run_of_three())]
                )
            )
        )
        answer = await peer.hear()
        assert isinstance(answer, PublishFailed)
        assert answer.sequence == 2
        assert "list" in answer.reason
        assert [await peer.hear(), await peer.hear()] == [Confirm(0, 1, 1), Confirm(0, 3, 4)]
        assert await peer.hear() == Confirm(0, 1, 3)
        await peer.close()

    against_broker(play)


def test_bad_payloads_of_a_run_fail_by_number_and_the_others_pass() -> None:
    """Every second event is one that no publisher may send."""

    async def play(server: BrokerServer) -> None:
        peer = await RawPeer.client(server.address, "c")
        payloads = [payload for bad, _ in BAD_ITEMS for payload in (bad, (b"{}", "application/json"))]
        events = [("c", 0, number, "/a", 0, {}, payload) for number, payload in enumerate(payloads, 1)]
        body = msgspec.msgpack.encode(events)
        run = run_of_three(count=len(events), body=body)
        alone = msgspec.msgpack.encode(("c", 0, 99, "/a", 0, {}, BAD_ITEMS[0][0]))
        peer.writer.write(frame(encode_publications([msgspec.Raw(run), msgspec.Raw(alone)])))
        for place, (_, reason) in enumerate(BAD_ITEMS):
            answer = await peer.hear()
            assert isinstance(answer, PublishFailed)
            assert answer.sequence == 2 * place + 1
            assert answer.reason.startswith(f"event c:{answer.sequence}: ") and reason in answer.reason
            assert "\n" not in answer.reason
        confirmed = [await peer.hear() for _ in BAD_ITEMS]
        assert confirmed == [Confirm(0, number, number) for number in range(2, len(events) + 1, 2)]
        answer = await peer.hear()
        assert isinstance(answer, PublishFailed) and answer.sequence == 99
        assert await peer.still_works()
        await peer.close()

    against_broker(play)


@pytest.mark.parametrize(
    ("stamp", "reason"),
    [
        ([0, 0], "numbers from 0 on"),
        ([0, 2**62 - 1], "numbers from"),
        ([-1, 1], "for topic -1"),
        ([0, 1, [1], []], "make no sense"),
        ([0, 1, [0], [1]], "make no sense"),
        ([0, 1, [2, 1], [1, 1]], "not ascending"),
    ],
)
def test_a_forged_stamp_fails_each_event_by_number_and_the_session_goes_on(
    stamp: list[object], reason: str
) -> None:
    async def play(server: BrokerServer) -> None:
        peer = await RawPeer.client(server.address, "c")
        forged = run_of_three(layout=9, stamp=stamp, kind=0)
        honest = run_of_three(layout=9, stamp=[0, 5, [1], [2]], kind=0)
        peer.writer.write(frame(encode_publications([msgspec.Raw(forged), msgspec.Raw(honest)])))
        for sequence in (1, 2, 3):
            answer = await peer.hear()
            assert isinstance(answer, PublishFailed)
            assert answer.sequence == sequence
            assert reason in answer.reason
        assert await peer.hear() == Confirm(0, 1, 3)
        await peer.close()

    against_broker(play)


@pytest.mark.parametrize(
    ("raw", "reason"), bad_publications(), ids=[reason for _, reason in bad_publications()]
)
def test_a_bad_publication_fails_by_number_and_the_session_goes_on(raw: bytes, reason: str) -> None:
    async def play(server: BrokerServer) -> None:
        peer = await RawPeer.client(server.address, "c")
        good = make_publication("c", 0, 6, "/a", {"x": 1}, b"", 0)
        peer.writer.write(frame(encode_publications([msgspec.Raw(raw), good.raw])))
        answer = await peer.hear()
        assert isinstance(answer, PublishFailed)
        assert answer.sequence == 5
        assert reason in answer.reason
        assert await peer.hear() == Confirm(0, 6, 6)
        await peer.close()

    against_broker(play)


def test_confirmations_of_one_read_are_one_range() -> None:
    async def play(server: BrokerServer) -> None:
        peer = await RawPeer.client(server.address, "c")
        peer.say(*[make_publication("c", 4, number, "/a", {}, b"", 0) for number in range(1, 101)])
        assert await peer.hear() == Confirm(4, 1, 100)
        await peer.close()

    against_broker(play)


def test_status_tells_of_protocol_and_sockets() -> None:
    async def play(server: BrokerServer) -> None:
        peer = await RawPeer.client(server.address, "c")
        peer.say(Subscribe("s", ("/a",), None, "none"), StatusRequest())
        answer = await peer.hear()  # b9 is away, and so the subscription is not accepted yet
        assert isinstance(answer, Status)
        status = json.loads(answer.json)
        assert status["broker"] == "b"
        assert status["subscriptions"] == status["subscriptions_not_yet_accepted"] == 1
        assert status["address"] == str(server.address)
        assert [session["peer"] for session in status["sessions"]] == ["c"]
        assert status["bad_frames"] == status["sessions"][0]["dropped"] == 0
        await peer.close()

    against_broker(play)


def test_a_status_with_too_many_sessions_counts_them() -> None:
    async def play(server: BrokerServer) -> None:
        peers = [await RawPeer.client(server.address, f"{number:0250d}") for number in range(200)]
        peers[0].say(StatusRequest())
        answer = await peers[0].hear()
        assert isinstance(answer, Status)
        assert json.loads(answer.json)["sessions"] == 200
        for peer in peers:
            await peer.close()

    against_broker(play)


def test_a_second_connection_takes_the_name_and_the_first_is_told() -> None:
    async def play(server: BrokerServer) -> None:
        first = await RawPeer.client(server.address, "c")
        second = await RawPeer.client(server.address, "c")
        assert await first.hear() == Refused("another connection took the name")
        assert await first.hear() is None
        second.say(Subscribe("s", ("/a",), None, "none"))
        assert await second.still_works()
        assert server.status()["clients"] == 1
        await first.close()
        await asyncio.sleep(0.05)
        assert await second.still_works()
        assert sessions_of(server) == ["c"]
        await second.close()

    against_broker(play)


def test_a_client_that_leaves_is_forgotten() -> None:
    async def play(server: BrokerServer) -> None:
        peer = await RawPeer.client(server.address, "c")
        peer.say(Subscribe("s", ("/a",), None, "none"))
        await peer.still_works()
        await peer.close()
        for _ in range(100):
            await asyncio.sleep(0.01)
            if not server.status()["sessions"]:
                break
        assert server.status()["clients"] == 0
        assert server.status()["interests"] == 0

    against_broker(play)


def test_subscriptions_without_neighbours_are_accepted_at_once() -> None:
    async def main() -> None:
        server = BrokerServer("b")
        await server.start()
        peer = await RawPeer.client(server.address, "c")
        peer.say(Subscribe("s", ("/a/**",), None, "none"))
        assert await peer.hear() == Subscribed("s")
        await peer.close()
        await server.stop()

    asyncio.run(main())


def test_a_client_whose_peer_ends_and_resets_at_once_connects_again() -> None:
    """FIN and RST in one go: closing our half then fails, and the session must end all the same."""

    async def main() -> None:
        listener = socket.create_server(("127.0.0.1", 0))
        listener.settimeout(15)
        address = Address(*listener.getsockname())
        accepted: list[int] = []

        def serve() -> None:
            while len(accepted) < 2:
                connection, _ = listener.accept()
                connection.recv(65536)  # the Hello; what follows it stays unread, so closing resets
                connection.sendall(frame(encode(Welcome(PROTOCOL_VERSION, "b", "best-effort"))))
                time.sleep(0.2)
                connection.shutdown(socket.SHUT_WR)
                connection.close()
                accepted.append(1)

        server = asyncio.ensure_future(asyncio.to_thread(serve))
        client = ClientConnection(address, "c", emit=lambda fact: None)
        await client.open()
        client.client.publish("/a", {}, bytes(100), 0)
        await asyncio.wait_for(server, 20)
        await client.close()
        listener.close()
        assert len(accepted) == 2

    asyncio.run(main())
