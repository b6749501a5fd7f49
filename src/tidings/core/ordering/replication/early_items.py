"""What came before its turn, over links that reorder: kept, up to a limit, until what is missing has come."""

from __future__ import annotations

from collections.abc import Container
from typing import Generic, TypeVar

from tidings.core.ordering.messages import Create, Identity

EARLY_LIMIT = 256
"""Kept of one sender; what comes beyond is dropped, and repeated by whoever sent it."""
MAX_EARLY_PUBLISHERS = 1024
"""Publishers of whom something is kept."""

Item = TypeVar("Item")


class EarlyItems(Generic[Item]):
    def __init__(self) -> None:
        self._items: dict[int, Item] = {}

    def keep(self, number: int, item: Item) -> None:
        """Those whose turn comes first: full of what is far ahead it would be of no use to what is next."""
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
        """Those whose turn it is when that one is done; they are not kept any more."""
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
        """Who is still there repeats what it wants."""
        for publisher in [publisher for publisher in self._of if publisher not in known]:
            del self._of[publisher]

    def clear(self) -> None:
        self._of.clear()
