"""A live broker and a reader of everything in a thread of their own, for tests that block: Spark's."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Coroutine
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

import tidings
from tidings.core.events.event import Event
from tidings.core.overlay.guaranteed.broker import GuaranteedBroker
from tidings.drivers.address import Address
from tidings.drivers.sockets.broker import BrokerServer
from tidings.drivers.sockets.guaranteed import GuaranteedSettings
from tidings.drivers.sockets.loop import loop_factory

Result = TypeVar("Result")
SECONDS = 30.0
LAST = "/test/last"


class BrokerThread:
    """`events` are what a reader that stays has been shown.

    Without `data` a guaranteed broker that is started again knows of no subscription until the reader is back.
    """

    def __init__(
        self, mode: str = "guaranteed", data: Path | None = None, *, order: str = "none", **options: Any
    ) -> None:
        self.events: list[Event] = []
        self.address = Address(port=0)
        self._mode = mode
        self._data = data
        self._order = order
        self._options = options
        self._loop = (loop_factory() or asyncio.new_event_loop)()
        self._thread = threading.Thread(target=self._loop.run_forever, name="broker", daemon=True)
        self._broker: BrokerServer | None = None
        self._reader: asyncio.Task[None] | None = None
        self._lasts = 0
        self._last_numbers: list[int] = []

    @property
    def url(self) -> str:
        return f"tidings://{self.address}"

    def run(self, work: Coroutine[Any, Any, Result]) -> Result:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(SECONDS)

    def __enter__(self) -> BrokerThread:
        self._thread.start()
        self.start()
        self.run(self._start_reader())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.run(self._end())
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(SECONDS)
            self._loop.close()

    async def _end(self) -> None:
        if self._reader is not None:
            self._reader.cancel()
            await asyncio.gather(self._reader, return_exceptions=True)
        if self._broker is not None:
            await self._broker.stop()

    # --- The broker

    def start(self) -> None:
        self.run(self._start())

    async def _start(self) -> None:
        guaranteed = None
        if self._mode == "guaranteed":
            guaranteed = GuaranteedSettings((0,), {}, data=self._data, new=True)
        self._broker = BrokerServer(
            "b0", self.address, mode=self._mode, guaranteed=guaranteed, **self._options
        )
        await self._broker.start()
        self.address = self._broker.address

    def stop(self) -> None:
        assert self._broker is not None
        broker, self._broker = self._broker, None
        self.run(broker.stop())

    def restart(self) -> None:
        """What it had in memory is gone."""
        self.stop()
        self.start()

    @property
    def repeated(self) -> int:
        """Publications that came again, and were not taken again."""
        assert self._broker is not None
        node = self._broker._node
        return node.delivery.duplicates if isinstance(node, GuaranteedBroker) else node.tree.duplicates  # type: ignore[attr-defined]

    # --- The reader

    async def _start_reader(self) -> None:
        ready = asyncio.Event()
        self._reader = asyncio.create_task(self._read(ready))
        async with asyncio.timeout(SECONDS):
            await ready.wait()

    async def _read(self, ready: asyncio.Event) -> None:
        async with (
            tidings.connect(self.url, name="reader") as bus,
            bus.subscribe("/**", order=self._order) as stream,
        ):
            ready.set()
            async for event in stream:
                if event.topic == LAST:
                    self._last_numbers.append(event.attributes["number"])
                else:
                    self.events.append(event)

    def settled(self) -> list[Event]:
        """All events up to now: what is published last has come."""
        self._lasts += 1
        number = self._lasts

        async def publish() -> None:
            async with tidings.connect(self.url) as bus:
                await bus.publish(LAST, {"number": number})

        self.run(publish())
        ends_at = time.monotonic() + SECONDS
        while not (self._last_numbers and self._last_numbers[-1] == number):
            assert time.monotonic() < ends_at, f"the last event did not come after {len(self.events)} others"
            time.sleep(0.01)
        return list(self.events)

    def payloads(self) -> list[bytes]:
        return [event.payload for event in self.settled()]
