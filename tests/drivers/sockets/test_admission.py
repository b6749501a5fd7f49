"""Who is let in and who is not: tokens, names, modes, ports, silence, and TLS, over real sockets."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

import pytest

from live_network import TRANSPORTS, EpidemicBrokers, User, until
from tidings.core.errors import ConnectionFailed
from tidings.core.overlay.epidemic.settings import RecoverySettings
from tidings.drivers.address import Address, Transport
from tidings.drivers.sockets.broker import BrokerServer
from tidings.drivers.sockets.security import Tls

pytestmark = pytest.mark.timeout(60)


def sessions(server: BrokerServer) -> list[str]:
    found = server.status()["sessions"]
    assert isinstance(found, list)
    return sorted(session["peer"] for session in found)


def play(main: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        await asyncio.wait_for(main(), 50)

    asyncio.run(bounded())


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_the_token_is_asked_for(transport: Transport) -> None:
    async def main() -> None:
        server = BrokerServer("b", token="secret", transport=transport)
        await server.start()
        for token in ("", "Secret"):
            with pytest.raises(ConnectionFailed, match="refused the connection: wrong or missing token"):
                await User(server.address, "c", transport, token=token).connection.open()
        async with User(server.address, "c", transport, token="secret") as user:
            user.publish(1)
            await until(lambda: user.confirmed == 1)
        await server.stop()

    play(main)


def test_the_name_goes_to_the_later_client_and_the_first_stays_away() -> None:
    async def main() -> None:
        server = BrokerServer("b")
        await server.start()
        async with User(server.address, "c") as first, User(server.address, "c") as second:
            await until(lambda: first.connection.closed)
            assert first.links[-1] == (False, "another connection took the name")
            await asyncio.sleep(0.3)
            assert second.links == [(True, "")]
        await server.stop()

    play(main)


@pytest.mark.parametrize(("field", "value"), [("mode", "peers"), ("token", "x"), ("name", "b7")])
def test_brokers_that_do_not_belong_together_stay_apart(field: str, value: str) -> None:
    async def main() -> None:
        b2 = BrokerServer("b2", neighbours={"b1": Address(port=1)}, token="t")
        await b2.start()
        options: dict[str, str] = {"name": "b1", "mode": "best-effort", "token": "t", field: value}
        if field == "name":
            options["name"] = "a7"
        b1 = BrokerServer(options.pop("name"), neighbours={"b2": b2.address}, **options)  # type: ignore[arg-type]
        await b1.start()
        await until(lambda: b2.host.refusals >= 2)  # it goes on trying
        assert sessions(b1) == sessions(b2) == []
        await b1.stop()
        await b2.stop()

    play(main)


def test_a_port_in_use_is_named() -> None:
    async def main() -> None:
        server = BrokerServer("b")
        await server.start()
        with pytest.raises(ConnectionFailed) as caught:
            await BrokerServer("c", server.address).start()
        assert str(caught.value) == f"cannot listen on {server.address}: the port is in use"
        await server.stop()

    play(main)


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_nobody_there_is_said(transport: Transport) -> None:
    async def main() -> None:
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            address = Address(*taken.getsockname())
            scheme = "tidings" if transport == "tcp" else "tidings+udp"
            with pytest.raises(ConnectionFailed) as caught:
                await User(address, "c", transport).connection.open()
            assert str(caught.value) == f"cannot reach {scheme}://{address}: connection refused"

    play(main)


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_peer_that_says_nothing_is_given_up(transport: Transport) -> None:
    async def main() -> None:
        kind = socket.SOCK_STREAM if transport == "tcp" else socket.SOCK_DGRAM
        with socket.socket(type=kind) as silent:
            silent.bind(("127.0.0.1", 0))
            if transport == "tcp":
                silent.listen()
            address = Address(*silent.getsockname())
            user = User(address, "c", transport, connect_timeout_seconds=0.3)
            with pytest.raises(ConnectionFailed, match="no answer in time"):
                await user.connection.open()
            await user.connection.close()

    play(main)


# --- TLS


def self_signed(folder: Path, host: str = "127.0.0.1") -> Tls:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "tidings test")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address(host))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    folder.mkdir(exist_ok=True)
    (folder / "cert.pem").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    secret = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    (folder / "key.pem").write_bytes(secret)
    return Tls(folder / "cert.pem", folder / "key.pem", folder / "cert.pem")


def test_clients_of_epidemic_brokers_over_tls(tmp_path: Path) -> None:
    tls = self_signed(tmp_path / "ours")

    async def main() -> None:
        trusting = Tls(authority=tls.authority)
        async with EpidemicBrokers((None, 0), RecoverySettings(), tls=tls, token="t") as brokers:
            async with (
                User(brokers[1].address, "reader", tls=trusting, token="t") as reader,
                User(brokers[0].address, "writer", tls=trusting, token="t") as writer,
            ):
                await reader.subscribe("all", "/a/**")
                for number in range(50):
                    writer.publish(number)
                await until(lambda: sorted(reader.numbers) == list(range(50)))
            with pytest.raises(ConnectionFailed, match=r"refused the connection: wrong or missing token"):
                await User(brokers[0].address, "c", tls=trusting).connection.open()

    play(main)


def test_brokers_and_clients_over_tls(tmp_path: Path) -> None:
    tls = self_signed(tmp_path / "ours")
    other = self_signed(tmp_path / "other")

    async def main() -> None:
        b2 = BrokerServer("b2", neighbours={"b1": Address(port=1)}, tls=tls, token="t")
        await b2.start()
        b1 = BrokerServer("b1", neighbours={"b2": b2.address}, tls=tls, token="t")
        await b1.start()
        trusting = Tls(authority=tls.authority)
        async with (
            User(b2.address, "reader", tls=trusting, token="t") as reader,
            User(b1.address, "writer", tls=trusting, token="t") as writer,
        ):
            await reader.subscribe("all", "/a/**")
            for number in range(200):
                writer.publish(number, size_bytes=10_000)
            await until(lambda: reader.numbers == list(range(200)))
        with pytest.raises(ConnectionFailed, match="its certificate is not trusted"):
            await User(b1.address, "c", tls=Tls(authority=other.authority)).connection.open()
        with pytest.raises(
            ConnectionFailed, match=r"tidings\+tls://.*refused the connection: wrong or missing token"
        ):
            await User(b1.address, "c", tls=trusting).connection.open()
        with pytest.raises(ConnectionFailed):
            await User(b1.address, "c", connect_timeout_seconds=1).connection.open()
        assert b1.status()["transport"] == "tls"
        await b1.stop()
        await b2.stop()

    play(main)


def test_beyond_loopback_nothing_opens_without_tls_and_a_token(tmp_path: Path) -> None:
    async def main() -> None:
        with pytest.raises(ConnectionFailed, match="beyond loopback, a TLS certificate"):
            await BrokerServer("b", Address("0.0.0.0", 0), token="t").start()
        with pytest.raises(ConnectionFailed, match="beyond loopback, TLS is required"):
            await BrokerServer("b", neighbours={"c": Address("10.0.0.1")}).start()
        with pytest.raises(ConnectionFailed, match="beyond loopback, TLS is required"):
            await User(Address("10.0.0.1"), "c").connection.open()
        guarded = BrokerServer("b", Address("0.0.0.0", 0), tls=self_signed(tmp_path), token="t")
        await guarded.start()
        await guarded.stop()

    play(main)
