"""RabbitMQ with aio-pika: a durable queue, persistent messages with publisher confirms, prefetch, an ack for each.

The server is Debian's package rabbitmq-server, run with its data in a directory of ours. Erlang's name server (epmd),
which it needs, is run beside it and ends with it.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager
from importlib.util import find_spec
from pathlib import Path
from unittest.mock import patch

from compared import compared
from live.servers import find_server, free_port, running, server

from work.job import Job
from work.system import Handle, Send

QUEUE = "jobs"
SCRIPTS = "/usr/lib/rabbitmq/bin"
"""The scripts themselves: Debian's wrappers in the path change the user."""
CONNECT_TIMEOUT_S = 30.0


class Queue:
    @contextmanager
    def serve(self, directory: Path) -> Iterator[str]:
        port, distribution_port, names_port = free_port(), free_port(), free_port()
        settings = {
            "HOME": str(directory),
            "ERL_EPMD_PORT": str(names_port),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODENAME": f"bench{port}@localhost",
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODE_PORT": str(port),
            "RABBITMQ_DIST_PORT": str(distribution_port),
            "RABBITMQ_MNESIA_BASE": str(directory),
            "RABBITMQ_LOG_BASE": str(directory),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(directory / "plugins"),
            "RABBITMQ_CONFIG_FILE": str(directory / "none"),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1}",
        }
        path = os.pathsep.join([SCRIPTS, os.environ.get("PATH", "")])
        names = ["epmd", "-port", str(names_port), "-address", "127.0.0.1"]
        with patch.dict(os.environ, {**settings, "PATH": path}), ExitStack() as stack:
            script = find_rabbitmq()
            stack.enter_context(running(names, directory, directory / "epmd.log"))
            try:
                stack.enter_context(server(directory, port, script))
            except ChildProcessError:
                raise FileNotFoundError("rabbitmq-server did not start") from None
            yield f"amqp://guest:guest@127.0.0.1:{port}/"

    async def prepare(self, url: str) -> None:
        async with await connected(url) as connection:
            channel = await connection.channel()
            await channel.declare_queue(QUEUE, durable=True)

    @asynccontextmanager
    async def publisher(self, url: str) -> AsyncIterator[Send]:
        aio_pika = compared("aio_pika")
        async with await connected(url) as connection:
            channel = await connection.channel(publisher_confirms=True)

            async def send(bodies: Sequence[bytes]) -> None:
                messages = [
                    aio_pika.Message(body, delivery_mode=aio_pika.DeliveryMode.PERSISTENT) for body in bodies
                ]
                await asyncio.gather(
                    *(channel.default_exchange.publish(message, routing_key=QUEUE) for message in messages)
                )

            yield send

    async def work(self, job: Job, handle: Handle, ready: asyncio.Event) -> None:
        async with await connected(job.url) as connection:
            channel = await connection.channel()
            await channel.set_qos(prefetch_count=job.ahead + 1)
            queue = await channel.declare_queue(QUEUE, durable=True)
            async with queue.iterator() as messages:
                ready.set()
                async for message in messages:
                    await handle(message.body)
                    await message.ack()


async def connected(url: str):  # type: ignore[no-untyped-def]
    """Connect; the port is open before the server accepts anybody."""
    aio_pika = compared("aio_pika")
    ends_at = asyncio.get_running_loop().time() + CONNECT_TIMEOUT_S
    while True:
        try:
            return await aio_pika.connect(url)
        except (OSError, aio_pika.exceptions.AMQPError):
            if asyncio.get_running_loop().time() > ends_at:
                raise
            await asyncio.sleep(0.2)


def find_rabbitmq() -> str:
    if find_spec("aio_pika") is None:
        raise FileNotFoundError("aio-pika is not installed: pip install -r benchmarks/requirements.txt")
    script = Path(SCRIPTS) / "rabbitmq-server"
    try:
        found = str(script) if script.exists() else find_server("rabbitmq-server")
        subprocess.run(["epmd", "-help"], capture_output=True, check=False)
    except FileNotFoundError:
        raise FileNotFoundError("rabbitmq-server is not installed: apt install rabbitmq-server") from None
    return found
