"""How a client reaches the sequencers: the contract of the ordering service, and the sequencers of this process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from tidings.core.ordering.layout import Layout
from tidings.core.ordering.module import OrderingModule


class Sequencing(Protocol):
    """`module` and `layout` are there once it is open; facts of the module go to `emit`."""

    @property
    def module(self) -> OrderingModule: ...

    @property
    def layout(self) -> Layout: ...

    @property
    def wanted(self) -> bool:
        """False: nobody has asked for an order yet, and whoever does is seen here at once."""

    async def open(self, emit: Callable[[object], None]) -> None:
        """ConnectionFailed or OrderError: it cannot be."""

    def want(self) -> None:
        """An ordered subscription begins."""

    async def close(self) -> None: ...

    async def status(self) -> dict[str, Any]: ...


class Sequencers(Protocol):
    """All of a process, in real or virtual time; they start, at the latest, when an order is wanted."""

    layout: Layout
    wanted: bool

    def want(self) -> None: ...
    def attach(self, client: str, emit: Callable[[object], None]) -> OrderingModule: ...
    def detach(self, client: str) -> None: ...
    def status(self) -> dict[str, object]: ...


class LocalSequencing:
    """Of a client within the process of the sequencers."""

    def __init__(self, ordering: Sequencers, name: str) -> None:
        self.layout = ordering.layout
        self._ordering = ordering
        self._name = name
        self._module: OrderingModule | None = None

    @property
    def module(self) -> OrderingModule:
        assert self._module is not None, "it is not open"
        return self._module

    @property
    def wanted(self) -> bool:
        return self._ordering.wanted

    async def open(self, emit: Callable[[object], None]) -> None:
        self._module = self._ordering.attach(self._name, emit)

    def want(self) -> None:
        self._ordering.want()

    async def close(self) -> None:
        self._ordering.detach(self._name)

    async def status(self) -> dict[str, Any]:
        return dict(self._ordering.status())
