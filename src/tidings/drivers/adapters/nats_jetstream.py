"""JetStream over one connection: publications into the stream, and a reader for each subscription."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import msgspec
from nats import errors
from nats.js import JetStreamContext, api
from nats.js.errors import NotFoundError, ServiceUnavailableError

from tidings.core.errors import ConnectionFailed, SubscriptionRefused
from tidings.core.events.event import Publication
from tidings.drivers.adapters.held import HeldIncoming
from tidings.drivers.adapters.incoming import Incoming
from tidings.drivers.adapters.nats_held import JetStreamHeldReader, consumer_name
from tidings.drivers.adapters.nats_pull import describe
from tidings.drivers.adapters.nats_reader import JetStreamReader, StreamPosition
from tidings.drivers.adapters.nats_session import Headers, NatsSession
from tidings.drivers.adapters.session import SessionLost

if TYPE_CHECKING:
    from tidings.drivers.adapters.nats import NatsService

HEADER_BYTES = 64
"""An upper bound of a message's headers without its Nats-Msg-Id."""


class JetStreamSession(NatsSession):
    """Publishes into the stream and has a reader for each subscription."""

    def __init__(self, service: NatsService) -> None:
        super().__init__(service)
        self.streams: JetStreamContext
        self._readers: dict[str, JetStreamReader] = {}
        self._held: dict[str, JetStreamHeldReader] = {}

    async def start(self) -> None:
        await super().start()
        self.streams = self.client.jetstream(timeout=self.service.timeout_s)
        try:
            await self._find_stream()
        except ServiceUnavailableError:
            raise ConnectionFailed(
                f"{self.service.server} does not have JetStream enabled; start it with -js"
            ) from None
        except (errors.Error, OSError) as error:
            raise ConnectionFailed(
                f"{self.service.server}: stream {self.service.stream}: {describe(error)}"
            ) from None

    async def _find_stream(self) -> None:
        service = self.service
        wanted = f"{service.prefix}.>"
        try:
            info = await self.streams.stream_info(service.stream)
        except NotFoundError:
            config = api.StreamConfig(
                name=service.stream,
                subjects=[wanted],
                retention=api.RetentionPolicy.LIMITS,
                discard=api.DiscardPolicy.OLD,
                storage=api.StorageType.FILE,
                max_age=service.max_age_s,
                max_bytes=service.max_bytes,
                duplicate_window=min(120.0, service.max_age_s),
            )
            info = await self.streams.add_stream(config)
        if wanted not in (info.config.subjects or ()):
            found = ", ".join(info.config.subjects or ())
            raise ConnectionFailed(
                f"{service.server}: stream {service.stream} has the subjects {found}, not {wanted}: "
                "use another prefix or stream"
            )

    async def look(self) -> api.StreamInfo:
        try:
            return await self.streams.stream_info(self.service.stream)
        except (errors.Error, OSError) as error:
            raise SessionLost(f"stream {self.service.stream}: {describe(error)}") from None

    async def close(self, *, forget: bool) -> None:
        forget = forget and not self.ended.done()
        with suppress(TimeoutError):
            async with asyncio.timeout(self.service.timeout_s / 2):
                await asyncio.gather(
                    *(reader.stop(forget=forget) for reader in self._readers.values()),
                    *(reader.stop() for reader in self._held.values()),
                )
        await super().close(forget=forget)

    def status(self) -> dict[str, Any]:
        return {**super().status(), "stream": self.service.stream}

    # --- Publications

    async def write(self, batch: Sequence[Publication]) -> None:
        source = quote(self.service.name, safe="")
        for publication in batch:
            message_id = f"{publication.incarnation}.{publication.sequence}.{source}"
            if self.fits(publication, HEADER_BYTES + len(message_id)):
                await self.send(
                    self.subject(publication),
                    bytes(publication.raw),
                    f"{self.inbox}.p{publication.sequence}",
                    {"Nats-Msg-Id": message_id},
                )

    def on_confirmation(self, sequence: int, body: bytes, headers: Headers) -> None:
        if headers and headers.get("Status"):  # nobody listens on the subject: no stream, or not yet
            self.end(f"no stream accepts publications (status {headers.get('Status')})")
            return
        try:
            answer = msgspec.json.decode(body, type=dict[str, Any])
        except msgspec.MsgspecError as error:
            self.service.outgoing.fail(sequence, f"cannot decode the server's answer: {error}")
            return
        refusal = answer.get("error")
        if refusal:
            self.service.outgoing.fail(
                sequence, f"the stream rejected it: {refusal.get('description', refusal)}"
            )
        else:
            self.service.outgoing.confirm(sequence)

    # --- Subscriptions

    async def subscribe(self, incoming: Incoming) -> None:
        if isinstance(incoming, HeldIncoming):
            held = self._held[incoming.subscription.id] = JetStreamHeldReader(self, incoming)
            await held.start()
            return
        info = await self.look()
        position = incoming.position
        if not isinstance(position, StreamPosition):
            end = info.state.last_seq
            incoming.position = position = StreamPosition(end, end, end, info.created)
        elif position.created != info.created or info.state.last_seq < position.delivered:
            # The stream was deleted or lost by the server: whatever it has now was published later.
            self.service.missed(incoming, self.service.stream, position.verified + 1, position.verified + 1)
            position.delivered = position.verified = position.end = 0
            position.created = info.created
        reader = JetStreamReader(self, incoming, position)
        self._readers[incoming.subscription.id] = reader
        await reader.start()

    async def unsubscribe(self, incoming: Incoming) -> None:
        reader = self._readers.pop(incoming.subscription.id, None)
        if reader is not None:
            await reader.stop(forget=True)
        held = self._held.pop(incoming.subscription.id, None)
        if held is not None:
            await held.leave()

    async def cancel_held(self, name: str) -> None:
        stream, consumer = self.service.stream, consumer_name(name)
        try:
            await self.streams.delete_consumer(stream, consumer)
        except NotFoundError:
            raise SubscriptionRefused(
                f"{self.service.server} has no durable subscription or group {name!r}"
            ) from None
        except (errors.Error, OSError) as error:
            raise SessionLost(describe(error)) from None
