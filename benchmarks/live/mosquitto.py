"""Mosquitto, QoS 1, with paho-mqtt: its network thread, many messages in flight, a persistent broker."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

from paho.mqtt.client import Client, MQTTMessage
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion

from live.job import Event, Job, packed, unpacked
from live.servers import free_port, server
from live.system import Arrived, Send, Served

IN_FLIGHT_EVENTS = 1000
CONFIRM_TIMEOUT_S = 60.0
CONFIG = """
listener {port} 127.0.0.1
user root
allow_anonymous true
set_tcp_nodelay true
max_inflight_messages {in_flight}
max_queued_messages 0
persistence true
persistence_location {directory}/
"""


class Mosquitto:
    @contextmanager
    def serve(self, directory: Path, brokers: int) -> Iterator[Served]:
        port = free_port()
        config = directory / "mosquitto.conf"
        config.write_text(CONFIG.format(port=port, directory=directory, in_flight=IN_FLIGHT_EVENTS))
        with server(directory, port, "mosquitto", "-c", str(config)) as pid:
            yield Served(str(port), str(port), {"mosquitto": pid})

    @asynccontextmanager
    async def publisher(self, job: Job, number: int) -> AsyncIterator[Send]:
        async with connected(job) as client:

            async def send(events: list[Event]) -> None:
                for event in events:
                    sent = client.publish(job.topic, packed(event), qos=1)
                await asyncio.to_thread(sent.wait_for_publish, CONFIRM_TIMEOUT_S)

            yield send

    async def read(self, job: Job, arrived: Arrived, ready: asyncio.Event) -> None:
        loop = asyncio.get_running_loop()
        async with connected(job) as client:

            def on_message(_client: Client, _data: object, message: MQTTMessage) -> None:
                arrived(unpacked(bytes(message.payload))[1])

            def on_subscribe(*_: Any) -> None:
                loop.call_soon_threadsafe(ready.set)

            client.on_message = on_message
            client.on_subscribe = on_subscribe
            client.subscribe(job.topic, qos=1)
            await asyncio.Event().wait()


@asynccontextmanager
async def connected(job: Job) -> AsyncIterator[Client]:
    loop = asyncio.get_running_loop()
    up = asyncio.Event()
    client = Client(
        CallbackAPIVersion.VERSION2, f"bench-{secrets.token_hex(8)}", protocol=MQTTProtocolVersion.MQTTv311
    )
    client.max_inflight_messages_set(0)  # otherwise each confirmation scans all waiting messages

    def on_connect(*_: Any) -> None:
        loop.call_soon_threadsafe(up.set)

    client.on_connect = on_connect
    client.connect("127.0.0.1", int(job.url))
    client.loop_start()
    try:
        await up.wait()
        yield client
    finally:
        client.disconnect()
        client.loop_stop()
