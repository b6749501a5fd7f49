"""Keeps what arrived early over links that reorder, up to a limit, until what is missing has arrived."""

from __future__ import annotations

from collections.abc import Container
from typing import Generic, TypeVar

from tidings.core.ordering.messages import Create, Identity

EARLY_LIMIT = 256
"""How many items of one sender are kept; beyond, they are dropped, and the sender retries."""
MAX_EARLY_PUBLISHERS = 1024
"""How many publishers may have early requests here."""

Item = TypeVar("Item")


class EarlyItems(Generic[Item]):
    def __init__(self) -> None:
        self._items: dict[int, Item] = {}

    def keep(self, number: int, item: Item) -> None:
        """Keep the items with the lowest numbers: those far ahead must not displace those that are next."""
        items = self._items
        items[number] = item
        if len(items) > EARLY_LIMIT:
            del items[max(items)]

    def pop(self, number: int) -> Item | None:
        return self._items.pop(number, None)

    def has_any_from(self, number: int) -> bool:
        return bool(self._items) and max(self._items) >= number

    def clear(self) -> None:
        self._items.clear()


class EarlyRequests:
    def __init__(self) -> None:
        self._of: dict[Identity, EarlyItems[Create]] = {}

    def keep(self, request: Create) -> None:
        early = self._of.get(request.publisher)
        if early is None and len(self._of) < MAX_EARLY_PUBLISHERS:
            early = self._of[request.publisher] = EarlyItems()
        if early is not None:
            early.keep(request.request, request)

    def after(self, request: Create) -> list[Create]:
        """Remove and return the requests that directly follow that one."""
        early = self._of.get(request.publisher)
        if early is None:
            return []
        found = []
        number = request.request + 1
        while (following := early.pop(number)) is not None:
            found.append(following)
            number += 1
        if not early.has_any_from(number):
            del self._of[request.publisher]
        return found

    def keep_only(self, known: Container[Identity]) -> None:
        """Drop the requests of other publishers; those still alive retry."""
        for publisher in [publisher for publisher in self._of if publisher not in known]:
            del self._of[publisher]

    def clear(self) -> None:
        self._of.clear()
