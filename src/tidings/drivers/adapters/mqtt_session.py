"""One connection to an MQTT broker: paho-mqtt on our event loop; mqtt.py documents what it guarantees."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from socket import IPPROTO_TCP, TCP_NODELAY
from socket import socket as Socket  # noqa: N812
from typing import TYPE_CHECKING, Any

from paho.mqtt.client import Client, ConnectFlags, DisconnectFlags, MQTTMessage, MQTTv5
from paho.mqtt.enums import CallbackAPIVersion, MQTTErrorCode
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode
from paho.mqtt.subscribeoptions import SubscribeOptions

from tidings.core.errors import ConnectionFailed, SubscriptionRefused
from tidings.core.events.event import Publication
from tidings.drivers.adapters.held import GroupIncoming
from tidings.drivers.adapters.incoming import Incoming
from tidings.drivers.adapters.mqtt import NAMES, shared_filters, topic_filter
from tidings.drivers.adapters.mqtt_client import LenientClient
from tidings.drivers.adapters.session import AdapterSession, ConnectionRefused, SessionLost

if TYPE_CHECKING:
    from tidings.drivers.adapters.mqtt import MqttService

MAX_IN_FLIGHT = 1_000
"""How many publications may wait for a PUBACK; fewer if the broker says so (Mosquitto: 20)."""
HEADER_BYTES = 16
"""An upper bound of a PUBLISH without its topic and payload."""
HOUSEKEEPING_S = 1.0
REFUSALS = frozenset((0x84, 0x85, 0x86, 0x87, 0x8A, 0x8C))
"""CONNACK reason codes that a retry will not change: version, name, password, permission, banned."""
NO_IDENTIFIERS = "the broker has no subscription identifiers"
SUCCESS = MQTTErrorCode.MQTT_ERR_SUCCESS

log = logging.getLogger("tidings")


class MqttSession(AdapterSession):
    """Drives paho's client from the event loop."""

    def __init__(self, service: MqttService) -> None:
        super().__init__()
        self._service = service
        self._loop = asyncio.get_running_loop()
        self._client = LenientClient(
            CallbackAPIVersion.VERSION2, service.client_id, protocol=MQTTv5, reconnect_on_failure=False
        )
        self._client.connect_timeout = service.timeout_s
        # Unlimited: we count ourselves, because the broker's limit arrives with its CONNACK.
        self._client.max_inflight_messages = 0
        self._connected: asyncio.Future[bool] = self._loop.create_future()
        """Its result: True if the broker has kept the session."""
        self._in_flight: dict[int, int] = {}
        """Message number -> sequence of the publication."""
        self._room = asyncio.Event()
        self._max_in_flight = MAX_IN_FLIGHT
        self._max_packet_bytes = 0
        self._has_identifiers = True
        self._answers: dict[int, asyncio.Future[list[ReasonCode]]] = {}
        self._uses: Counter[str] = Counter()
        """Topic filter -> how many subscriptions need it."""
        self._housekeeping: asyncio.TimerHandle | None = None

    # --- The connection

    async def start(self) -> None:
        service, client = self._service, self._client
        target = service.target
        if target.user is not None:
            client.username_pw_set(target.user, target.password)
        properties = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
        properties.SessionExpiryInterval = service.session_s
        client.on_connect = self._on_connect
        client.on_disconnect = self._on_disconnect
        client.on_publish = self._on_publish
        client.on_subscribe = self._on_subscribe
        client.on_unsubscribe = self._on_unsubscribe
        client.on_message = self._on_message
        host, port = target.address
        keep_alive_s = max(5, round(2 * service.timeout_s))
        try:
            # Never a clean start: Mosquitto (2.0) does not persist a session that began with one, and none is
            # needed, since nobody had this client id before.
            await asyncio.to_thread(
                client.connect, host, port, keep_alive_s, clean_start=False, properties=properties
            )
        except OSError as error:
            raise ConnectionFailed(f"cannot connect to {service.server}: {error}") from None
        self._join_loop()
        kept = await self._connected
        if not kept:
            if service.filters:
                log.warning(
                    "%s did not keep the session: events published while disconnected are lost",
                    service.server,
                )
            service.filters.clear()
        await self._drop_unused()

    def _join_loop(self) -> None:
        socket = self._client.socket()
        if not isinstance(socket, Socket):
            raise ConnectionFailed(f"{self._service.server} closed the connection")
        # Otherwise twenty publications, Mosquitto's limit in flight, would wait 40 ms for their PUBACKs.
        socket.setsockopt(IPPROTO_TCP, TCP_NODELAY, 1)
        self._loop.add_reader(socket.fileno(), self._work, self._client.loop_read)
        self._client.on_socket_register_write = self._on_want_write
        self._client.on_socket_unregister_write = self._on_written
        self._client.on_socket_close = self._on_socket_close
        self._keep_house()

    def _on_want_write(self, client: Client, data: Any, socket: Any) -> None:
        self._loop.add_writer(socket.fileno(), self._work, client.loop_write)

    def _on_written(self, client: Client, data: Any, socket: Any) -> None:
        self._loop.remove_writer(socket.fileno())

    def _on_socket_close(self, client: Client, data: Any, socket: Any) -> None:
        self._leave_loop(socket.fileno())

    def _work(self, work: Callable[[], MQTTErrorCode]) -> None:
        try:
            work()
        except Exception as error:  # otherwise bad data from the broker could raise here again and again
            log.exception("%s: giving up the connection", self._service.server)
            self._lose(f"{type(error).__name__}: {error}")

    def _leave_loop(self, descriptor: int) -> None:
        if descriptor >= 0:
            self._loop.remove_reader(descriptor)
            self._loop.remove_writer(descriptor)

    def _keep_house(self) -> None:
        self._work(self._client.loop_misc)
        if not self.ended.done():
            self._housekeeping = self._loop.call_later(HOUSEKEEPING_S, self._keep_house)

    def _on_connect(
        self,
        client: Client,
        data: Any,
        flags: ConnectFlags,
        reason: ReasonCode,
        properties: Properties | None,
    ) -> None:
        if self._connected.done():
            return
        if reason.is_failure:
            failure = ConnectionRefused if reason.value in REFUSALS else ConnectionFailed
            self._connected.set_exception(failure(f"{self._service.server} refused the connection: {reason}"))
            return
        self._max_in_flight = min(MAX_IN_FLIGHT, getattr(properties, "ReceiveMaximum", MAX_IN_FLIGHT))
        self._max_packet_bytes = getattr(properties, "MaximumPacketSize", 0)
        self._has_identifiers = bool(getattr(properties, "SubscriptionIdentifierAvailable", 1))
        self._connected.set_result(flags.session_present)

    def _on_disconnect(
        self,
        client: Client,
        data: Any,
        flags: DisconnectFlags,
        reason: ReasonCode,
        properties: Properties | None,
    ) -> None:
        self._lose(str(reason))

    def _lose(self, reason: str) -> None:
        self.end(reason)
        if not self._connected.done():
            self._connected.set_exception(
                ConnectionFailed(f"{self._service.server} closed the connection: {reason}")
            )
        for answer in self._answers.values():
            if not answer.done():
                answer.set_exception(SessionLost(reason))
        self._room.set()

    async def close(self, *, forget: bool) -> None:
        client = self._client
        if forget and client.is_connected() and not self.ended.done():
            properties = Properties(PacketTypes.DISCONNECT)  # type: ignore[no-untyped-call]
            properties.SessionExpiryInterval = 0
            client.disconnect(properties=properties)
            with suppress(TimeoutError):  # `ended` is set once the DISCONNECT is sent
                async with asyncio.timeout(1.0):
                    await asyncio.shield(self.ended)
        self._lose("closed")
        self._connected.exception()  # mark it as retrieved
        if self._housekeeping is not None:
            self._housekeeping.cancel()
        socket = client.socket()
        if socket is not None:
            self._leave_loop(socket.fileno())
            socket.close()

    def status(self) -> dict[str, Any]:
        return {"in_flight": len(self._in_flight), "max_in_flight": self._max_in_flight}

    # --- Publications

    async def write(self, batch: Sequence[Publication]) -> None:
        for publication in batch:
            while len(self._in_flight) >= self._max_in_flight and not self.ended.done():
                self._room.clear()
                await self._room.wait()
            topic = NAMES.name(self._service.prefix, publication.topic)
            if not self._fits(publication, topic):
                continue
            sent = self._client.publish(topic, bytes(publication.raw), qos=1)
            if sent.rc != SUCCESS:
                raise SessionLost(f"cannot publish: {sent.rc!r}")
            self._in_flight[sent.mid] = publication.sequence

    def _fits(self, publication: Publication, topic: str) -> bool:
        size_bytes = publication.size_bytes + len(topic.encode()) + HEADER_BYTES
        if not self._max_packet_bytes or size_bytes <= self._max_packet_bytes:
            return True
        problem = f"the message has {size_bytes} bytes; the broker accepts at most {self._max_packet_bytes}"
        self._service.outgoing.fail(publication.sequence, problem)
        return False

    def _on_publish(
        self, client: Client, data: Any, message: int, reason: ReasonCode, properties: Properties
    ) -> None:
        sequence = self._in_flight.pop(message, None)
        self._room.set()
        if sequence is None:
            return
        if reason.is_failure:
            self._service.outgoing.fail(sequence, f"the broker rejected it: {self._client.said or reason}")
        else:
            self._service.outgoing.confirm(sequence)

    # --- Subscriptions

    def _filters(self, incoming: Incoming) -> list[str]:
        if isinstance(incoming, GroupIncoming):
            return shared_filters(self._service.prefix, incoming.durability.name, incoming.interest.topics)
        return [topic_filter(self._service.prefix, pattern) for pattern in incoming.interest.topics]

    async def subscribe(self, incoming: Incoming) -> None:
        properties = self._identify(incoming)
        filters = self._filters(incoming)
        self._uses.update(filters)
        self._service.filters.update(filters)
        # Retained messages were published before this subscription.
        options = SubscribeOptions(qos=1, retainHandling=SubscribeOptions.RETAIN_DO_NOT_SEND)
        done, message = self._client.subscribe([(each, options) for each in filters], properties=properties)
        reasons = await self._answer(done, message)
        refused = [(each, why) for each, why in zip(filters, reasons, strict=False) if why.is_failure]
        if refused:
            which, why = refused[0]
            raise SubscriptionRefused(f"{self._service.server} rejected the subscription to {which!r}: {why}")

    def _identify(self, incoming: Incoming) -> Properties | None:
        """Let the broker mark a group's messages: this client may have other subscriptions that match them."""
        if not isinstance(incoming, GroupIncoming):
            return None
        if not self._has_identifiers:
            raise SubscriptionRefused(f"group= is not available at {self._service.server}: {NO_IDENTIFIERS}")
        others = [each for each in self._service.incoming.values() if each is not incoming]
        name = incoming.durability.name
        if any(isinstance(each, GroupIncoming) and each.durability.name == name for each in others):
            raise SubscriptionRefused(
                f"this client has a member of the group {name!r} already; "
                f"at {self._service.server} a client can have one"
            )
        properties = Properties(PacketTypes.SUBSCRIBE)  # type: ignore[no-untyped-call]
        properties.SubscriptionIdentifier = incoming.identifier
        return properties

    async def unsubscribe(self, incoming: Incoming) -> None:
        self._uses.subtract(self._filters(incoming))
        await self._drop_unused()

    async def _drop_unused(self) -> None:
        """Unsubscribe from filters that the broker's session has and no subscription needs."""
        needed = {each for each, count in self._uses.items() if count > 0}
        for incoming in self._service.incoming.values():
            needed.update(self._filters(incoming))  # they are about to be restored
        unused = sorted(self._service.filters - needed)
        if unused:
            done, message = self._client.unsubscribe(unused)
            await self._answer(done, message)
            self._service.filters.difference_update(unused)

    async def _answer(self, done: MQTTErrorCode, message: int | None) -> list[ReasonCode]:
        if done != SUCCESS or message is None:
            raise SessionLost(f"cannot send a request: {done!r}")
        answer: asyncio.Future[list[ReasonCode]] = self._loop.create_future()
        self._answers[message] = answer
        try:
            return await answer
        finally:
            del self._answers[message]

    def _on_subscribe(
        self,
        client: Client,
        data: Any,
        message: int,
        reasons: list[ReasonCode],
        properties: Properties | None,
    ) -> None:
        answer = self._answers.get(message)
        if answer is not None and not answer.done():
            answer.set_result(reasons)

    _on_unsubscribe = _on_subscribe

    def _on_message(self, client: Client, data: Any, message: MQTTMessage) -> None:
        self._service.receive(bytes(message.payload), self._takers(message))

    def _takers(self, message: MQTTMessage) -> list[Incoming]:
        incomings = self._service.incoming.values()
        identifiers = getattr(message.properties, "SubscriptionIdentifier", ())
        if not identifiers:
            return [each for each in incomings if not isinstance(each, GroupIncoming)]
        return [
            each for each in incomings if isinstance(each, GroupIncoming) and each.identifier in identifiers
        ]
