"""One connection to a NATS server, through nats-py, and core NATS over it; nats.py documents what it guarantees."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from nats import errors
from nats.aio.client import Client
from nats.aio.subscription import Subscription

from tidings.core.errors import ConnectionFailed, SubscriptionRefused
from tidings.core.events.event import Publication
from tidings.drivers.adapters.held import GroupIncoming
from tidings.drivers.adapters.incoming import Incoming
from tidings.drivers.adapters.nats import NAMES, disjoint_subjects, subjects
from tidings.drivers.adapters.session import AdapterSession, ConnectionRefused, SessionLost

if TYPE_CHECKING:
    from tidings.drivers.adapters.nats import NatsService

WATCH_S = 0.1
NO_RESPONDERS = "503"
"""The status with which the server answers a message that has a reply subject, and no subscriber."""

log = logging.getLogger("tidings")

Headers = dict[str, str] | None
Handler = Callable[[str, str, bytes, Headers], None]
"""Called with subject, reply, body and headers."""

_REFUSED = re.compile("authori|authenti|credentials|user", re.IGNORECASE)
_DENIED = re.compile(
    r'permissions violation for (publish|subscription) (?:to|using) "([^"]*)"', re.IGNORECASE
)


class DirectClient(Client):
    """Passes messages to their handlers as they arrive.

    The library gives each subscription its own queue and task, so messages on several subjects would be seen in a
    different order than they arrived.
    """

    def __init__(self) -> None:
        super().__init__()
        self._handlers: dict[int, Handler] = {}

    async def listen(self, subject: str, handler: Handler, queue: str = "") -> Subscription:
        # The next id is the one that `subscribe` will use. Set it first: no message may arrive before.
        self._handlers[self._sid + 1] = handler
        return await self.subscribe(subject, queue)

    async def unlisten(self, subscription: Subscription) -> None:
        self._handlers.pop(subscription._id, None)
        with suppress(errors.Error):
            await subscription.unsubscribe()

    def dispose(self) -> None:
        """Clean up what `close` leaves behind if the connection broke while there was something to send."""
        for subscription in self._subs.values():
            subscription._stop_processing()
        if self._transport is not None:
            self._transport.close()  # type: ignore[no-untyped-call]

    def _build_message(self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: Headers) -> Any:
        handler = self._handlers.get(sid)
        if handler is None:
            return super()._build_message(sid, subject, reply, data, headers)
        handler(subject.decode("utf-8", "replace"), reply.decode("utf-8", "replace"), data, headers)
        return None


class NatsSession(AdapterSession):
    """The connection, and what core NATS and JetStream share."""

    def __init__(self, service: NatsService) -> None:
        super().__init__()
        self.service = service
        self.client = DirectClient()
        self.inbox = ""
        self._problem = ""
        self._denied = ""
        self._barrier_number = 0
        self._barriers: dict[str, asyncio.Future[None]] = {}
        self._asking = asyncio.Lock()
        self._watcher: asyncio.TimerHandle | None = None

    # --- The connection

    async def start(self) -> None:
        target = self.service.target
        try:
            await self.client.connect(
                f"nats://{target.address}",
                user=target.user,
                password=target.password or "",
                token=target.user if target.password is None else None,
                name=self.service.name,
                allow_reconnect=False,
                max_reconnect_attempts=1,
                reconnect_time_wait=0,
                connect_timeout=self.service.timeout_s,  # type: ignore[arg-type]
                ping_interval=max(1.0, self.service.timeout_s),  # type: ignore[arg-type]
                error_cb=self._on_error,
            )
        except (errors.Error, OSError) as error:
            raise self._failure(error) from None
        self._watch()
        self.inbox = self.client.new_inbox()
        try:
            await self.client.listen(f"{self.inbox}.*", self._on_answer)
            await self.barrier()
        except (errors.Error, OSError, SessionLost) as error:
            raise self._failure(error) from None

    def _failure(self, error: Exception) -> ConnectionFailed:
        """Return the error to raise. The library's last error says only that it found no server; an earlier one, in
        `_problem`, says why."""
        problem = self._problem or str(error) or type(error).__name__
        if isinstance(error, errors.Error) and _REFUSED.search(str(error)):
            return ConnectionRefused(f"{self.service.server} refused the connection: {problem}")
        return ConnectionFailed(f"cannot connect to {self.service.server}: {problem}")

    async def _on_error(self, error: Exception) -> None:
        self._problem = str(error) or type(error).__name__
        log.debug("%s: %s", self.service.server, self._problem)
        denied = _DENIED.search(self._problem)
        if denied is None:
            return
        if denied[1].lower() == "publish":
            self._on_publish_denied(denied[2])
        else:
            self._denied = self._problem

    def _on_publish_denied(self, subject: str) -> None:
        """Fail the publications to this subject, which the library has put into lower case."""
        for publication in self.service.outgoing.unconfirmed():
            if self.subject(publication).lower() == subject.lower():
                self.service.outgoing.fail(publication.sequence, f"the server rejected it: {self._problem}")

    def _watch(self) -> None:
        """Poll for a lost connection: the library does not report one that breaks while it has something to send."""
        if not self.client.is_connected:
            self.end(self._problem or "the server closed the connection")
        elif not self.ended.done():
            self._watcher = asyncio.get_running_loop().call_later(WATCH_S, self._watch)

    async def close(self, *, forget: bool) -> None:
        self.end("closed")
        for barrier in self._barriers.values():
            barrier.cancel()
        if self._watcher is not None:
            self._watcher.cancel()
        if not self.client.is_closed:
            with suppress(errors.Error, OSError, AssertionError):  # AssertionError: it never began to connect
                await self.client.close()
        self.client.dispose()

    def status(self) -> dict[str, Any]:
        return {"server_version": self.client._server_info.get("version", "")}

    # --- Answers

    async def barrier(self) -> None:
        """Wait until the server has processed everything sent before."""
        await self.ask("", b"")

    async def ask(self, subject: str, body: bytes) -> None:
        """Send a message and wait for the answer; without a subject, the message is the answer."""
        self._barrier_number += 1
        token = f"b{self._barrier_number}"
        came = self._barriers[token] = asyncio.get_running_loop().create_future()
        answer = f"{self.inbox}.{token}"
        try:
            await self.send(subject or answer, body, answer if subject else "")
            await asyncio.wait((came, self.ended), return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._barriers.pop(token, None)
        if not came.done():
            raise SessionLost(self.ended.result().reason)

    async def send(self, subject: str, body: bytes, reply: str = "", headers: Headers = None) -> None:
        try:
            await self.client.publish(subject, body, reply, headers)
        except (errors.Error, OSError) as error:
            raise SessionLost(str(error)) from None

    def _on_answer(self, subject: str, reply: str, body: bytes, headers: Headers) -> None:
        token = subject.rpartition(".")[2]
        barrier = self._barriers.get(token)
        if barrier is not None:
            if not barrier.done():
                barrier.set_result(None)
        elif token[0] == "r" and token[1:].isdecimal():
            if headers is not None and headers.get("Status") == NO_RESPONDERS:
                self.service.requests.nobody(int(token[1:]))
        elif token[0] in "cp" and token[1:].isdecimal():
            self.on_confirmation(int(token[1:]), body, headers)

    def on_confirmation(self, sequence: int, body: bytes, headers: Headers) -> None:
        """Handle the answer to a publication."""
        raise NotImplementedError

    # --- Publications

    def subject(self, publication: Publication) -> str:
        return NAMES.name(self.service.prefix, publication.topic)

    def fits(self, publication: Publication, more_bytes: int = 0) -> bool:
        """Return True if the server accepts a message of this size; otherwise fail the publication."""
        size_bytes = publication.size_bytes + more_bytes
        if size_bytes <= self.client.max_payload:
            return True
        problem = f"the message has {size_bytes} bytes; the server accepts at most {self.client.max_payload}"
        self.service.outgoing.fail(publication.sequence, problem)
        return False


class CoreSession(NatsSession):
    """Core NATS: best effort."""

    def __init__(self, service: NatsService) -> None:
        super().__init__(service)
        self._listening: dict[str, list[Subscription]] = {}

    async def write(self, batch: Sequence[Publication]) -> None:
        asking = self.service.asking
        for publication in batch:
            number = asking.pop(publication.sequence, None) if asking else None
            if self.fits(publication):
                reply = "" if number is None else f"{self.inbox}.r{number}"
                await self.send(self.subject(publication), bytes(publication.raw), reply)
        await self.send(f"{self.inbox}.c{batch[-1].sequence}", b"")

    def on_confirmation(self, sequence: int, body: bytes, headers: Headers) -> None:
        self.service.outgoing.confirm_up_to(sequence)

    async def subscribe(self, incoming: Incoming) -> None:
        async with self._asking:
            self._denied = ""
            listening = self._listening[incoming.subscription.id] = []
            takers = (incoming,)

            def handle(subject: str, reply: str, body: bytes, headers: Headers) -> None:
                self.service.receive(body, takers)

            try:
                group = incoming.durability.name if isinstance(incoming, GroupIncoming) else ""
                for subject in self._subjects(incoming):
                    listening.append(await self.client.listen(subject, handle, group))
            except (errors.Error, OSError) as error:
                raise SessionLost(str(error)) from None
            await self.barrier()
            if self._denied:  # the server reports this before it answers the barrier
                raise SubscriptionRefused(f"{self.service.server} rejected the subscription: {self._denied}")

    def _subjects(self, incoming: Incoming) -> list[str]:
        """Return what to listen to. A group's subjects do not overlap: the server would choose a member for each."""
        prefix, patterns = self.service.prefix, incoming.interest.topics
        if isinstance(incoming, GroupIncoming):
            return disjoint_subjects(prefix, patterns)
        return [subject for pattern in patterns for subject in subjects(prefix, pattern)]

    async def unsubscribe(self, incoming: Incoming) -> None:
        for subscription in self._listening.pop(incoming.subscription.id, ()):
            await self.client.unlisten(subscription)
