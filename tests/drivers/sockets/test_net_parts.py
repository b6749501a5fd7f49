"""The small parts of the driver: addresses, who may connect, back-off, clock and timers."""

from __future__ import annotations

import asyncio
import random
import socket
import ssl
import time
from collections.abc import Callable
from typing import Any

import pytest

from tidings.core.errors import ConnectionFailed
from tidings.core.kernel import TimerName
from tidings.core.messages import PROTOCOL_VERSION, Hello, Message, Ping, Welcome
from tidings.drivers.address import Address, Transport, parse_address, url
from tidings.drivers.port import AsyncPort
from tidings.drivers.sockets import dialling
from tidings.drivers.sockets.dialling import backoff_seconds, explain, keep_open
from tidings.drivers.sockets.handshake import HandshakeRules, hello_refusal, same_token, welcome_refusal
from tidings.drivers.sockets.loop import loop_factory
from tidings.drivers.sockets.security import (
    Tls,
    check_dialling,
    check_listening,
    client_context,
    server_context,
)
from tidings.drivers.sockets.session import End

US = HandshakeRules("b3", "best-effort", ("b1", "b2"), "")


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("localhost", Address("localhost", 7400)),
        ("10.0.0.1:80", Address("10.0.0.1", 80)),
        ("[::1]", Address("::1", 7400)),
        ("[::1]:0", Address("::1", 0)),
        ("::1", Address("::1", 7400)),
    ],
)
def test_addresses_parse(text: str, address: Address) -> None:
    assert parse_address(text) == address


@pytest.mark.parametrize("text", ["", ":80", "host:x", "host:65536", "host:-1", "[::1", "[::1]80", "host:٣"])
def test_bad_addresses_are_named(text: str) -> None:
    with pytest.raises(ConnectionFailed, match="is not an address"):
        parse_address(text)


def test_addresses_print_as_they_are_written() -> None:
    assert str(Address("::1", 1)) == "[::1]:1"
    assert url(Address("h", 1)) == "tidings://h:1"
    assert url(Address("h", 1), "udp") == "tidings+udp://h:1"
    assert url(Address("h", 1), tls=True) == "tidings+tls://h:1"


@pytest.mark.parametrize(
    ("host", "loopback"),
    [
        ("127.0.0.1", True),
        ("127.9.9.9", True),
        ("::1", True),
        ("localhost", True),
        ("0.0.0.0", False),
        ("::", False),
        ("10.1.1.1", False),
        ("localhost.example.org", False),
        ("", False),
    ],
)
def test_loopback_is_what_surely_stays_here(host: str, loopback: bool) -> None:
    assert Address(host).is_loopback is loopback


@pytest.mark.parametrize(
    ("hello", "reason"),
    [
        (Hello(PROTOCOL_VERSION, "c", "client"), None),
        (Hello(PROTOCOL_VERSION, "b1", "broker", "best-effort"), None),
        (Hello(9, "c", "client"), "unsupported protocol version 9; this broker speaks 2"),
        (Hello(PROTOCOL_VERSION, "b3", "broker", "best-effort"), "there are two brokers named b3"),
        (Hello(PROTOCOL_VERSION, "b9", "broker", "best-effort"), "b9 is not a neighbour of b3"),
        (
            Hello(PROTOCOL_VERSION, "b1", "broker", "guaranteed"),
            "b3 runs in mode 'best-effort', not 'guaranteed'",
        ),
        (Hello(PROTOCOL_VERSION, "b1", "client"), "the name 'b1' belongs to a broker"),
        (Hello(PROTOCOL_VERSION, "b3", "client"), "the name 'b3' belongs to a broker"),
        (Hello(PROTOCOL_VERSION, "c", "king"), "unknown role 'king'"),
    ],
)
def test_who_is_welcome(hello: Hello, reason: str | None) -> None:
    assert hello_refusal(hello, US) == reason


@pytest.mark.parametrize(
    ("given", "wanted", "same"),
    [
        ("", "", True),
        ("x", "", True),
        ("x", "x", True),
        ("", "x", False),
        ("X", "x", False),
        ("é", "é", True),
    ],
)
def test_tokens(given: str, wanted: str, same: bool) -> None:
    assert same_token(given, wanted) is same
    hello = Hello(PROTOCOL_VERSION, "c", "client", token=given)
    expected = None if same else "wrong or missing token"
    assert hello_refusal(hello, US._replace(token=wanted)) == expected


@pytest.mark.parametrize(
    ("welcome", "reason"),
    [
        (Welcome(PROTOCOL_VERSION, "b4", "best-effort"), None),
        (Welcome(1, "b4", "best-effort"), "b4 speaks protocol version 1, b3 speaks 2"),
        (Welcome(PROTOCOL_VERSION, "b5", "best-effort"), "b5 answered where b4 was expected"),
        (Welcome(PROTOCOL_VERSION, "b4", "guaranteed"), "b3 runs in mode 'best-effort', not 'guaranteed'"),
    ],
)
def test_who_may_answer(welcome: Welcome, reason: str | None) -> None:
    assert welcome_refusal(welcome, US, "b4") == reason


@pytest.mark.parametrize(
    ("host", "transport", "tls", "token", "allowed"),
    [
        ("127.0.0.1", "tcp", None, "", True),
        ("127.0.0.1", "udp", None, "", True),
        ("0.0.0.0", "tcp", None, "", False),
        ("0.0.0.0", "tcp", None, "secret", False),
        ("0.0.0.0", "tcp", Tls("c", "k"), "", False),
        ("0.0.0.0", "tcp", Tls("c"), "secret", False),
        ("0.0.0.0", "tcp", Tls("c", "k"), "secret", True),
        ("0.0.0.0", "udp", None, "secret", False),
        ("127.0.0.1", "udp", Tls("c", "k"), "secret", False),
    ],
)
def test_what_may_listen(host: str, transport: Transport, tls: Tls | None, token: str, allowed: bool) -> None:
    if allowed:
        check_listening(Address(host), transport, tls, token)
        return
    with pytest.raises(ConnectionFailed):
        check_listening(Address(host), transport, tls, token)


def test_nothing_goes_out_in_the_clear() -> None:
    check_dialling(Address(), "tcp", None)
    check_dialling(Address("broker.example.org"), "tcp", Tls())
    for transport in ("tcp", "udp"):
        with pytest.raises(ConnectionFailed, match=r"broker.example.org:7400: beyond loopback"):
            check_dialling(Address("broker.example.org"), transport, None)
    with pytest.raises(ConnectionFailed, match="TLS requires TCP"):
        check_dialling(Address(), "udp", Tls())


def test_missing_files_are_named() -> None:
    with pytest.raises(ConnectionFailed, match=r"no-such\.pem"):
        server_context(Tls("no-such.pem", "no-such.key"))
    with pytest.raises(ConnectionFailed, match="both a certificate and a key"):
        server_context(Tls("no-such.pem"))
    with pytest.raises(ConnectionFailed, match=r"no-such-ca\.pem"):
        client_context(Tls(authority="no-such-ca.pem"))


@pytest.mark.parametrize(
    ("attempt", "jitter", "seconds"),
    [(0, 0.0, 0.05), (0, 1.0, 0.1), (1, 1.0, 0.2), (5, 1.0, 3.2), (6, 1.0, 5.0), (10_000, 0.0, 2.5)],
)
def test_backoff_doubles_and_is_bounded(attempt: int, jitter: float, seconds: float) -> None:
    assert backoff_seconds(attempt, jitter) == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("error", "phrase"),
    [
        (ConnectionRefusedError(111, "x"), "connection refused"),
        (TimeoutError(), "no answer in time"),
        (OSError(98, "Address already in use"), "the port is in use"),
        (OSError(99, "x"), "not an address of this machine"),
        (OSError(13, "x"), "permission denied"),
        (OSError(113, "No route to host"), "No route to host"),
        (socket.gaierror(-2, "x"), "unknown host"),
        (ssl.SSLError(1, "bad thing"), "TLS failed: bad thing"),
    ],
)
def test_errors_are_explained(error: OSError, phrase: str) -> None:
    assert explain(error) == phrase


def test_a_link_is_opened_again_with_growing_waits_until_it_lasted(monkeypatch: pytest.MonkeyPatch) -> None:
    attempts: list[int] = []
    monkeypatch.setattr(dialling, "backoff_seconds", lambda attempt, *_: attempts.append(attempt) or 0.0)

    class Ended:
        """A session that is over already and stood for so long."""

        def __init__(self, seconds: float, end: End) -> None:
            loop = asyncio.get_running_loop()
            self.up_at = loop.time() - seconds if seconds else 0.0
            self.ended = loop.create_future()
            self.ended.set_result(end)

    async def main() -> None:
        lost = End("lost", refused=False)
        outcomes = [
            OSError(113, "x"),
            OSError(113, "x"),
            Ended(0, lost),
            Ended(dialling.STABLE_SECONDS / 2, lost),
            Ended(dialling.STABLE_SECONDS, lost),
            OSError(113, "x"),
            Ended(0, End("go away", refused=True)),
        ]

        async def open_session() -> Any:
            outcome = outcomes.pop(0)
            if isinstance(outcome, OSError):
                raise outcome
            return outcome

        end = await keep_open(open_session, random.Random(1))
        assert end.reason == "go away"
        assert attempts == [0, 1, 2, 3, 0, 1]

    asyncio.run(main())


def make_port(fired: list[tuple[TimerName, int]]) -> AsyncPort:
    port = AsyncPort(
        "n", on_timer=lambda name: fired.append((name, port.now)), emit=lambda fact: None, seed=1
    )
    return port


def test_timers_fire_once_in_order_and_never_early() -> None:
    async def main() -> None:
        fired: list[tuple[TimerName, int]] = []
        port = make_port(fired)
        due = {("b",): port.now + 20_000_000, ("a",): port.now + 5_000_000, ("late",): port.now - 1}
        for name, at in due.items():
            port.set_timer(name, at)
        port.set_timer(("gone",), port.now + 1_000_000)
        port.cancel_timer(("gone",))
        port.cancel_timer(("never set",))
        port.set_timer(("again",), port.now + 1_000_000)
        port.set_timer(("again",), port.now + 30_000_000)
        await asyncio.sleep(0.15)
        assert [name for name, _ in fired] == [("late",), ("a",), ("b",), ("again",)]
        assert all(at >= due.get(name, 0) for name, at in fired)

    asyncio.run(main())


def test_a_loop_that_fires_too_early_is_not_believed() -> None:
    async def main() -> None:
        fired: list[tuple[TimerName, int]] = []
        port = make_port(fired)
        loop = asyncio.get_running_loop()
        call_later = loop.call_later
        loop.call_later = lambda delay, *rest: call_later(delay / 2, *rest)  # type: ignore[method-assign]
        at = port.now + 30_000_000
        port.set_timer(("x",), at)
        await asyncio.sleep(0.1)
        assert len(fired) == 1
        assert fired[0][1] >= at

    asyncio.run(main())


def test_a_timer_may_be_set_again_when_it_fires_and_none_outlives_the_port() -> None:
    async def main() -> None:
        fired = 0
        closed = asyncio.Event()

        def on_timer(name: TimerName) -> None:
            nonlocal fired
            fired += 1
            if fired < 3:
                port.set_timer(name, port.now + 1_000_000)
            elif fired == 3:
                port.set_timer(name, port.now + 10_000_000)
                port.close()
                closed.set()

        port = AsyncPort("n", on_timer=on_timer, emit=lambda fact: None)
        port.set_timer(("x",), port.now)
        await closed.wait()
        await asyncio.sleep(0.03)
        assert fired == 3

    asyncio.run(main())


@pytest.mark.parametrize("factory", [None, loop_factory()])
def test_a_timer_that_is_due_comes_before_what_is_scheduled_after_it(
    factory: Callable[[], asyncio.AbstractEventLoop] | None,
) -> None:
    async def main() -> None:
        order: list[str] = []
        port = AsyncPort("n", on_timer=lambda name: order.append("timer"), emit=lambda fact: None)
        loop = asyncio.get_running_loop()
        loop.call_soon(order.append, "before")
        port.set_timer(("x",), port.now)
        loop.call_soon(order.append, "after")
        await asyncio.sleep(0.001)
        assert order == ["before", "timer", "after"]

    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(main())


def test_messages_without_a_session_are_counted() -> None:
    async def main() -> None:
        sent: list[Message] = []
        unsent: list[tuple[str, Message]] = []

        class Sink:
            def send(self, message: Message) -> None:
                sent.append(message)

        port = AsyncPort(
            "n", on_timer=print, emit=print, on_unsent=lambda to, message: unsent.append((to, message))
        )
        port.sessions["there"] = Sink()
        port.send("there", Ping(1))
        send = port.sender("nowhere")
        send(Ping(2))
        assert (sent, unsent, port.unsent) == ([Ping(1)], [("nowhere", Ping(2))], 1)
        port.sessions["nowhere"] = Sink()
        send(Ping(3))
        assert (sent, port.unsent) == ([Ping(1), Ping(3)], 1)

    asyncio.run(main())


def test_the_clock_is_wall_time_and_a_seed_repeats() -> None:
    async def main() -> None:
        first, second = make_port([]), make_port([])
        assert abs(first.now - time.time_ns()) < 1_000_000_000
        assert first.now <= first.now
        assert first.random.random() == second.random.random()

    asyncio.run(main())


def test_uvloop_is_used_where_it_is() -> None:
    factory = loop_factory()
    pytest.importorskip("uvloop")
    assert factory is not None
    loop = factory()
    try:
        assert type(loop).__module__.startswith("uvloop")
    finally:
        loop.close()
