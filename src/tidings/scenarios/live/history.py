"""Reads the history of a live scenario's subscriber from the archive of its broker, as a `HistoryStream` does."""

from __future__ import annotations

import asyncio

from tidings.bus.history_reader import HistoryReader
from tidings.core.errors import BrokerAway, SubscriptionRefused, TidingsError
from tidings.core.events.event import Event, Publication, make_publication
from tidings.core.events.subscription import Subscription
from tidings.scenarios.file.archives import EARLIEST
from tidings.scenarios.history_actor import HistoryActor
from tidings.scenarios.live import facts as words
from tidings.scenarios.live.link import LiveLink, report

RETRY_S = 0.1


async def read_history(link: LiveLink, actor: HistoryActor, subscription: Subscription) -> None:
    """Show the actor its history, or let it start again; an error that no retry mends ends the run."""
    reading, connections, generation = actor.reading, link.connections, link.session.generation
    reader = HistoryReader(link.connection.archive_opener(), EARLIEST, subscription, actor.seam)
    try:
        await reader.open()
        await reader.settle(link.name, subscription.id, None)
        if link.connections != connections or not link.session.is_connected:
            # What waited for the archive may arrive there again, after its end as we know it.
            raise SubscriptionRefused("lost the connection")
        if actor.reading == reading:
            actor.settled()
        while actor.reading == reading and (events := await _read(reader)) is not None:
            if link.session.generation != generation:
                raise SubscriptionRefused("the broker lost what waited for the subscription")
            if actor.reading == reading:
                actor.show_history(map(_publication, events))
        if actor.reading == reading:
            actor.go_live()
    except (BrokerAway, SubscriptionRefused):
        await _start_again(link, actor, reading)
    except TidingsError as error:
        report(words.FailedReport(f"subscriber {link.name!r}: {error}"))
    finally:
        reader.close()


async def _read(reader: HistoryReader) -> list[Event] | None:
    """Read on; wait for the broker while it is away."""
    while True:
        try:
            return await reader.read()
        except BrokerAway:
            await asyncio.sleep(RETRY_S)


def _publication(event: Event) -> Publication:
    return make_publication(*event.id, event.topic, event.attributes, event.payload_item, event.published_at)


async def _start_again(link: LiveLink, actor: HistoryActor, reading: int) -> None:
    await asyncio.sleep(RETRY_S)
    while not link.session.is_connected:  # noqa: ASYNC110 - the protocol has no asyncio.Event
        await asyncio.sleep(RETRY_S)
    if actor.reading == reading:
        actor.start_again()
