"""How a client reaches the sequencers: the interface, and its implementation for sequencers in this process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from tidings.core.ordering.layout import Layout
from tidings.core.ordering.module import OrderingModule


class Sequencing(Protocol):
    """One client's access to the sequencers. `module` and `layout` exist once it is open."""

    @property
    def module(self) -> OrderingModule: ...

    @property
    def layout(self) -> Layout: ...

    @property
    def wanted(self) -> bool:
        """False while nobody has asked for an order, if this side would notice at once when somebody does."""

    async def open(self, emit: Callable[[object], None]) -> None:
        """Connect; the module's facts go to `emit`. Raises ConnectionFailed or OrderError."""

    def want(self) -> None:
        """Note that an ordered subscription begins."""

    async def close(self) -> None: ...

    async def status(self) -> dict[str, Any]: ...


class Sequencers(Protocol):
    """All sequencers of a process, in real or virtual time. They start when an order is wanted, if not before."""

    layout: Layout
    wanted: bool

    def want(self) -> None: ...
    def attach(self, client: str, emit: Callable[[object], None]) -> OrderingModule: ...
    def detach(self, client: str) -> None: ...
    def status(self) -> dict[str, object]: ...


class LocalSequencing:
    """Access for a client in the same process as the sequencers."""

    def __init__(self, ordering: Sequencers, name: str) -> None:
        self.layout = ordering.layout
        self._ordering = ordering
        self._name = name
        self._module: OrderingModule | None = None
        self._attached = False

    @property
    def module(self) -> OrderingModule:
        assert self._module is not None, "not open"
        return self._module

    @property
    def wanted(self) -> bool:
        return self._ordering.wanted

    async def open(self, emit: Callable[[object], None]) -> None:
        self._module = self._ordering.attach(self._name, emit)
        self._attached = True

    def want(self) -> None:
        self._ordering.want()

    async def close(self) -> None:
        self.detach()

    def detach(self) -> None:
        if self._attached:
            self._attached = False
            self._ordering.detach(self._name)

    async def status(self) -> dict[str, Any]:
        return dict(self._ordering.status())
