"""Durable subscriptions and groups of Redis: a consumer group for each, whose entries are acknowledged one by one.

Redis gives an entry to one consumer of the group, and keeps it for that consumer until it is acknowledged. A holder
resets the idle time of what it has; entries that were idle for `hold_s`, whose holder is dead, are claimed by the
others. What a holder gives back goes to a consumer that nobody is, already idle for that long.

Two keys beside the stream: a hash with the topics and the filter of each group, which all members share, and for a
durable subscription the name of its holder, which expires after `hold_s` without a sign of life.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError, ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError

from tidings.core.errors import SubscriptionRefused
from tidings.drivers.adapters.held import HeldIncoming, Settlement, difference
from tidings.drivers.adapters.held_options import RENEWALS
from tidings.drivers.adapters.held_reader import HeldReader
from tidings.drivers.adapters.redis_feed import FIELD
from tidings.drivers.adapters.session import SessionLost

if TYPE_CHECKING:
    from tidings.drivers.adapters.redis_session import RedisSession

NOBODY = "given-back"
"""The consumer that has what was given back."""
BLOCK_MS = 500
CLAIM_EVERY_S = 0.5
"""How often to look for entries to claim; more often if `hold_s` is short."""
PENDING_PAGE = 1_000
REMOVE_IDLE = """
if #redis.call('XPENDING', KEYS[1], ARGV[1], '-', '+', 1, ARGV[2]) > 0 then return 0 end
redis.call('XGROUP', 'DELCONSUMER', KEYS[1], ARGV[1], ARGV[2])
return 1
"""
"""Removes a consumer that has nothing, in one step: what it still had would go with it."""


def shares_key(key: str) -> str:
    return f"{key}:groups"


def holder_key(key: str, name: str) -> str:
    return f"{key}:holder:{name}"


class RedisHeldReader(HeldReader):
    """Reads the stream as a consumer of the group."""

    def __init__(self, session: RedisSession, incoming: HeldIncoming) -> None:
        service = session.service
        super().__init__(session, incoming, service.hold_s)
        self._session = session
        self._redis: Any = session.redis
        self._key = service.key
        self._name = incoming.durability.name
        self._consumer = f"{service.name}-{service.outgoing.incarnation}-{incoming.subscription.id}"
        """New for each life of a client: what an earlier life holds is claimed when it has been idle for long."""
        self._hold_ms = int(self._hold_s * 1000)

    # --- Attaching

    async def attach(self) -> None:
        try:
            await self._compare()
            if not self.incoming.durability.group:
                await self._claim_name()
            await self._find_group()
            # Entries may be ours that never arrived here, if the connection broke. The only holder takes all.
            everything = not self.incoming.durability.group
            limit = self.incoming.durability.max_unacked
            await self._claim(0, limit, None if everything else self._consumer)
        except (RedisConnectionError, RedisTimeoutError, OSError) as error:
            raise SessionLost(str(error)) from None
        except RedisError as error:
            raise SubscriptionRefused(
                f"{self._session.service.server} rejected the subscription: {error}"
            ) from None

    async def _compare(self) -> None:
        """All members must select the same; the first one says what."""
        subscription = self.incoming.subscription
        mine = {
            "kind": "group" if self.incoming.durability.group else "durable subscription",
            "topics": " ".join(sorted(subscription.topics)),
            "filter": subscription.filter or "",
        }
        await self._redis.hsetnx(shares_key(self._key), self._name, msgspec.json.encode(mine))
        theirs = msgspec.json.decode(await self._redis.hget(shares_key(self._key), self._name) or b"{}")
        for key, value in mine.items():
            if theirs.get(key) != value:
                raise SubscriptionRefused(difference(self._name, key, theirs.get(key), value))

    async def _claim_name(self) -> None:
        key = holder_key(self._key, self._name)
        if await self._redis.set(key, self._consumer, nx=True, px=self._hold_ms):
            return
        holder = (await self._redis.get(key) or b"somebody").decode("utf-8", "replace")
        if holder != self._consumer:
            raise SubscriptionRefused(
                f"{self._name!r} is held by {holder}; it must leave first, or be silent for {self._hold_s:g} s"
            )

    async def _find_group(self) -> None:
        if self.incoming.accepted:
            return
        try:
            await self._redis.xgroup_create(self._key, self._name, id="$", mkstream=True)
        except ResponseError as error:
            if "BUSYGROUP" not in str(error):
                raise

    # --- Reading

    async def read(self) -> None:
        loop = asyncio.get_running_loop()
        claim_at = 0.0
        every_s = min(CLAIM_EVERY_S, self._hold_s / RENEWALS)
        while not self.incoming.ended:
            room = await self.incoming.room()
            try:
                if loop.time() >= claim_at:
                    room -= await self._claim(self._hold_ms, room)
                    claim_at = loop.time() + every_s
                if room > 0:
                    await self._read_new(room, min(BLOCK_MS, int(every_s * 1000)))
            except (RedisError, OSError) as error:
                if isinstance(error, ResponseError) and "NOGROUP" in str(error):
                    self._session.service.detach_held(self.incoming, f"{self._name!r} was cancelled")
                    return
                raise SessionLost(str(error)) from None

    async def _read_new(self, room: int, block_ms: int) -> None:
        found = await self._redis.xreadgroup(
            self._name, self._consumer, {self._key: ">"}, count=room, block=block_ms
        )
        for _, entries in found or ():
            for entry, fields in entries:
                self._receive(entry, fields, 1)

    def _receive(self, entry: bytes, fields: dict[bytes, bytes] | None, attempt: int) -> None:
        body = (fields or {}).get(FIELD, b"")
        self._session.service.receive_held(body, self.incoming, entry, attempt)

    async def _claim(self, idle_ms: int, room: int, consumer: str | None = None) -> int:
        """Take entries over that were idle for so long; return how many."""
        mine = {*self.incoming.held_handles(), *(each.handle for each in self.incoming.outbox)}
        pending = await self._pending(consumer, idle_ms)
        counts = {each["message_id"]: each["times_delivered"] for each in pending}
        wanted = [entry for entry in counts if entry not in mine][:room]
        if not wanted:
            return 0
        claimed = await self._redis.xclaim(self._key, self._name, self._consumer, idle_ms, wanted)
        for entry, fields in claimed:
            self._receive(entry, fields, counts[entry] + 1)
        return len(claimed)

    async def _pending(self, consumer: str | None, idle_ms: int = 0) -> list[dict[str, Any]]:
        """Return what is not acknowledged, oldest first: enough to include more than everything that we hold."""
        count = PENDING_PAGE + len(self.incoming.held_handles()) + len(self.incoming.outbox)
        found: list[dict[str, Any]] = await self._redis.xpending_range(
            self._key,
            self._name,
            min="-",
            max="+",
            count=count,
            consumername=consumer,
            idle=idle_ms or None,
        )
        return found

    async def stop_reading(self) -> None:
        """Nothing is left to stop: a read that was under way went with its connection."""

    # --- Settling

    async def settle(self, settlements: Sequence[Settlement]) -> None:
        done = [each.handle for each in settlements if each.done]
        pipeline = self._redis.pipeline(transaction=False)
        if done:
            pipeline.xack(self._key, self._name, *done)
        for each in settlements:
            if not each.done:
                self._give_back(pipeline, each)
        try:
            await pipeline.execute(raise_on_error=False)
        except (RedisError, OSError) as error:
            raise SessionLost(str(error)) from None

    def _give_back(self, pipeline: Any, settlement: Settlement) -> None:
        pipeline.xclaim(
            self._key,
            self._name,
            NOBODY,
            0,
            [settlement.handle],
            idle=self._hold_ms,
            retrycount=settlement.attempts,
            justid=True,
        )

    async def renew(self, handles: Sequence[Any]) -> None:
        """Reset the idle time of what is ours; what is not any more, another one has."""
        try:
            if not self.incoming.durability.group:
                await self._renew_name()
            if not handles:
                return
            ours = {each["message_id"] for each in await self._pending(self._consumer)}
            kept = [handle for handle in handles if handle in ours]
            if kept:
                await self._redis.xclaim(self._key, self._name, self._consumer, 0, kept, justid=True)
            self.incoming.lose(handle for handle in handles if handle not in ours)
        except ResponseError:  # the group is gone: the reading loop finds out
            return
        except (RedisError, OSError) as error:
            raise SessionLost(str(error)) from None

    async def _renew_name(self) -> None:
        key = holder_key(self._key, self._name)
        holder = await self._redis.get(key)
        if holder is None or holder.decode("utf-8", "replace") == self._consumer:
            await self._redis.set(key, self._consumer, px=self._hold_ms)
        else:
            who = holder.decode("utf-8", "replace")
            reason = f"{self._name!r} was silent for {self._hold_s:g} s, and is held by {who} now"
            self._session.service.detach_held(self.incoming, reason)

    async def detach(self) -> None:
        """Give back what arrived too late to be known here, and remove the consumer and its name."""
        try:
            while not await self._redis.eval(REMOVE_IDLE, 1, self._key, self._name, self._consumer):
                pending = await self._pending(self._consumer)
                unseen = [(each["message_id"], each["times_delivered"] - 1) for each in pending]
                await self.settle([Settlement(entry, False, attempts=count) for entry, count in unseen])
            if not self.incoming.durability.group:
                await self._redis.delete(holder_key(self._key, self._name))
        except ResponseError:  # the group is gone
            return
        except (RedisError, OSError) as error:
            raise SessionLost(str(error)) from None
