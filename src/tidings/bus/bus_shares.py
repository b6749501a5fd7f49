"""The bus's side of durable subscriptions and groups: calls to the client's part, and its facts to the streams."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import Any

from msgspec import Raw, json

from tidings.bus.durable_stream import MAX_UNACKED, Durability, DurableStream
from tidings.bus.positions import Places
from tidings.bus.service import SetAside
from tidings.bus.stream import Stream
from tidings.core.client.group_member import NEEDS_GUARANTEE, GroupMember
from tidings.core.client.share_holder import ShareHolder
from tidings.core.errors import ConnectionFailed, SubscriptionRefused
from tidings.core.events.event import INT_MAX, decode_event
from tidings.core.events.run import Stretch
from tidings.core.events.subscription import ORDERED, Subscription
from tidings.core.facts import (
    ShareAsideShown,
    ShareAttached,
    ShareCancelled,
    ShareDelivered,
    ShareDetached,
    ShareDropped,
    ShareFinished,
    SharesListed,
)
from tidings.core.overlay.guaranteed.share_messages import NEW_START, ShareAttach
from tidings.core.structures.ranges import Ranges

ANSWER_TIMEOUT_S = 30.0
ABOUT_TIMEOUT_S = 3.0
"""How long to wait for what another broker says of its shares."""

log = logging.getLogger("tidings")


class BusShares:
    """Attaches streams to durable subscriptions and groups. `holder` returns the client's part; `places` the positions
    of events in their order, if they are known."""

    def __init__(
        self,
        holder: Callable[[], ShareHolder | GroupMember],
        streams: dict[str, Stream],
        places: Callable[[Stretch], Places | None],
    ) -> None:
        self._find_holder = holder
        self._places = places
        self._streams = streams
        self._waiting: dict[tuple[str, str], asyncio.Future[str]] = {}
        """(what is asked, of what) -> the reason of a refusal, or empty."""
        self.uncovered: dict[str, tuple[str, ...]] = {}
        self._aside: dict[str, ShareAsideShown] = {}
        self._listing = asyncio.Lock()
        self._page: SharesListed | None = None
        """What was listed last."""

    @property
    def _holder(self) -> ShareHolder | GroupMember:
        return self._find_holder()

    async def attach(self, subscription: Subscription, durability: Durability) -> None:
        holder = self._holder
        if isinstance(holder, GroupMember):
            stream = self._streams[subscription.id]
            assert isinstance(stream, DurableStream)
            stream.durability = durability = _without_guarantee(durability)
        request = ShareAttach(
            subscription.id,
            durability.name,
            subscription.topics,
            subscription.filter,
            durability.group,
            durability.group_by,
            subscription.order.value,
            durability.max_unacked,
            durability.keep_for_ns,
            durability.takeover,
            start=durability.start,
        )
        try:
            reason = await self._ask(("attach", subscription.id), lambda: holder.attach(request))
        except BaseException:
            holder.leave(subscription.id)
            raise
        if reason:
            raise SubscriptionRefused(reason)

    def finish(
        self, subscription_id: str, numbers: Ranges, *, at_once: bool = False, expired: bool = False
    ) -> None:
        holder = self._holder
        for first, last in numbers:
            holder.finish(subscription_id, first, last, expired=expired, reports=at_once)
        if at_once:
            holder.report()

    def give_back(self, subscription_id: str, number: int, after_ns: int, *, aside: bool) -> None:
        self._holder.give_back(subscription_id, number, after_ns, aside=aside)

    async def leave(self, subscription_id: str, unseen: Ranges) -> None:
        holder = self._holder
        self.uncovered.pop(subscription_id, None)
        try:
            await self._ask(
                ("leave", subscription_id), lambda: holder.leave(subscription_id, unseen), timeout_s=2.0
            )
        except SubscriptionRefused:
            log.info("subscription %s: the broker will notice that its holder has left", subscription_id)

    async def cancel(self, name: str) -> None:
        holder = self._holder
        reason = await self._ask(("cancel", name), lambda: holder.end(name))
        if reason:
            raise SubscriptionRefused(reason)

    async def aside(self, name: str) -> list[SetAside]:
        """Return what the share has set aside, the oldest first."""
        found: list[SetAside] = []
        more = True
        while more:
            shown = await self._ask_aside(name, after=found[-1].number if found else 0)
            found += [
                SetAside(number, attempts, decode_event(Raw(raw))) for number, attempts, raw in shown.events
            ]
            more = shown.more and bool(shown.events)
        return found

    async def listed(self) -> list[dict[str, Any]]:
        """Return all shares of the network, by name."""
        holder = self._holder
        if isinstance(holder, GroupMember):
            return []
        found: list[dict[str, Any]] = []
        async with self._listing:
            more = True
            while more:
                after = found[-1]["name"] if found else ""
                await self._ask(("list", ""), partial(holder.ask_list, after))
                assert self._page is not None
                rows, more = json.decode(self._page.rows), self._page.more
                more = more and bool(rows)
                found += await asyncio.gather(*map(self._detailed, rows))
        return found

    async def _detailed(self, row: dict[str, Any]) -> dict[str, Any]:
        return row if "kind" in row else await self.about(row)

    async def about(self, row: dict[str, Any]) -> dict[str, Any]:
        """Return what the broker of a share says of it, or, if it cannot be reached, what is known without it."""
        try:
            shown = await self._ask_aside(row["name"], after=INT_MAX, timeout_s=ABOUT_TIMEOUT_S)
        except SubscriptionRefused:
            return row
        found: dict[str, Any] = json.decode(shown.status)
        return found

    async def change_aside(self, name: str, release: Ranges = (), drop: Ranges = ()) -> int:
        """Release or drop events that were set aside; return how many."""
        return (await self._ask_aside(name, release=release, drop=drop)).changed

    async def _ask_aside(
        self,
        name: str,
        after: int = 0,
        release: Ranges = (),
        drop: Ranges = (),
        timeout_s: float = ANSWER_TIMEOUT_S,
    ) -> ShareAsideShown:
        holder = self._holder
        if ("aside", name) in self._waiting:
            raise SubscriptionRefused(f"another question about {name!r} is not answered yet")
        reason = await self._ask(
            ("aside", name), lambda: holder.ask_aside(name, after, release, drop), timeout_s
        )
        shown = self._aside.pop(name)
        if reason:
            raise SubscriptionRefused(reason)
        return shown

    async def _ask(
        self, what: tuple[str, str], ask: Callable[[], None], timeout_s: float = ANSWER_TIMEOUT_S
    ) -> str:
        answer: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._waiting[what] = answer
        try:
            ask()
            async with asyncio.timeout(timeout_s):
                return await answer
        except TimeoutError:
            raise SubscriptionRefused(f"the broker did not answer within {timeout_s:.0f} s") from None
        finally:
            self._waiting.pop(what, None)

    def _answer(self, what: tuple[str, str], reason: str) -> bool:
        answer = self._waiting.get(what)
        if answer is None or answer.done():
            return False
        answer.set_result(reason)
        return True

    def fail(self, reason: str) -> None:
        """The connection is over for good."""
        for answer in self._waiting.values():
            if not answer.done():
                answer.set_exception(ConnectionFailed(reason))

    def on_fact(self, fact: object) -> bool:
        """Handle a fact of the client's part; return False if it is none."""
        handle = _HANDLERS.get(fact.__class__)
        if handle is None:
            return False
        handle(self, fact)
        return True

    def _on_attached(self, fact: ShareAttached) -> None:
        self.uncovered[fact.subscription] = fact.uncovered
        self._answer(("attach", fact.subscription), "")

    def _on_finished(self, fact: ShareFinished) -> None:
        stream = self._streams.get(fact.subscription)
        if isinstance(stream, DurableStream):
            stream.finished(fact.done, fact.refused, fact.reason)

    def _on_dropped(self, fact: ShareDropped) -> None:
        stream = self._streams.get(fact.subscription)
        if isinstance(stream, DurableStream):
            stream.drop_held(fact.numbers, fact.reason)

    def _on_aside(self, fact: ShareAsideShown) -> None:
        self._aside[fact.name] = fact
        self._answer(("aside", fact.name), fact.reason)

    def _on_listed(self, fact: SharesListed) -> None:
        self._page = fact
        self._answer(("list", ""), "")

    def _on_cancelled(self, fact: ShareCancelled) -> None:
        self._answer(("cancel", fact.name), fact.reason)

    def _deliver(self, fact: ShareDelivered) -> None:
        stream = self._streams.get(fact.subscription)
        if not isinstance(stream, DurableStream):
            return
        if isinstance(self._holder, GroupMember):
            stream.push_held_or_drop(fact.stretch, fact.first, fact.recovered_by)
        else:
            places = self._places(fact.stretch) if stream.subscription.order in ORDERED else None
            late, before = fact.out_of_order, fact.before
            stream.push_held(
                fact.stretch, fact.first, fact.attempt, before=before, out_of_order=late, places=places
            )

    def _on_detached(self, fact: ShareDetached) -> None:
        name, reason = fact.subscription, fact.reason
        self.uncovered.pop(name, None)
        if self._answer(("attach", name), reason) or self._answer(("leave", name), ""):
            return
        stream = self._streams.get(name)
        if isinstance(stream, DurableStream):
            stream.detached(reason)


_HANDLERS: dict[type, Callable[[BusShares, Any], None]] = {
    ShareDelivered: BusShares._deliver,
    ShareAttached: BusShares._on_attached,
    ShareFinished: BusShares._on_finished,
    ShareDropped: BusShares._on_dropped,
    ShareDetached: BusShares._on_detached,
    ShareAsideShown: BusShares._on_aside,
    SharesListed: BusShares._on_listed,
    ShareCancelled: BusShares._on_cancelled,
}
"""Class of fact -> handler. A table, because every fact of the client is looked up here first."""


def _without_guarantee(durability: Durability) -> Durability:
    """Return what a group has in a network without a guarantee; raise SubscriptionRefused for what it has not."""
    durability = durability.unacknowledged()
    missing = {
        "durable=": not durability.group,
        "start=": durability.start != NEW_START,
        "ack=": durability.ack != "auto",
        "keep_for=": durability.keep_for_ns != 0,
        "max_unacked=": durability.max_unacked != MAX_UNACKED,
        "max_deliveries=": durability.max_deliveries is not None,
    }
    for option, is_missing in missing.items():
        if is_missing:
            raise SubscriptionRefused(f"{option} needs a guaranteed network: {NEEDS_GUARANTEE}")
    return durability
