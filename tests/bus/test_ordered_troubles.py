"""An order over services that lose, repeat, delay and refuse; slow readers; false timestamps."""

from __future__ import annotations

import asyncio
import logging
from random import Random
from typing import Any

import pytest

import order_checks
import tidings
from ordered_clients import MODES, TIMEOUT_S, numbers, quiet, run, take
from tidings.bus.embedded import Embedded, local_bus
from tidings.bus.receipts import Batch, Receipt
from tidings.bus.sequencing import LocalSequencing
from tidings.core.client import ordered
from tidings.core.events.event import Event, Publication
from tidings.core.events.run import RunMaker, Stretch, stamped
from tidings.core.events.timestamp import Timestamp
from tidings.core.ordering.subscriber import MAX_AHEAD
from tidings.drivers.sockets.guaranteed import DEFAULT_WINDOW
from troubled_service import TroubledService, troubled_client

ENTRIES = ("/a", "/b", "/c")
BATCH = 1_500
PATIENCE = tidings.Patience(events=64, limit_ns=50_000_000)


async def until_nothing_waits(client: tidings.OrderedService) -> None:
    """Until its subscriptions have shown all that came to them."""
    await until_waiting(client, 0)


async def until_waiting(client: tidings.OrderedService, count: int) -> None:
    """Until so many events wait in each of its subscriptions."""
    while True:
        waiting = (await client.status())["ordering"]["subscriptions"].values()
        if all(entry["buffered"] == count for entry in waiting):
            return
        await asyncio.sleep(0.01)


# --- Services that lose events


@pytest.mark.parametrize("seed", range(6))
def test_what_arrives_is_shown_once_and_what_is_not_late_agrees(seed: int) -> None:
    random = Random(seed)

    async def scenario(bus: Embedded) -> None:
        clients = [
            troubled_client(bus, f"b{at}", f"c{at}", seed=100 * seed + at, patience=PATIENCE)
            for at in range(4)
        ]
        for client, service in clients:
            await client.open()
            service.loses, service.repeats, service.delays, service.refuses = 0.1, 0.1, 0.4, 0.05
        streams = []
        for client, _ in clients:
            topics = random.sample(ENTRIES, random.randint(1, 3))
            stream = client.subscribe(*topics, order=random.choice(("total", "causal")))
            await stream.__aenter__()
            streams.append(stream)
        refused = 0
        for n in range(150):
            client, _ = random.choice(clients)
            try:
                await client.publish(random.choice(ENTRIES), {"n": n})
            except tidings.NotConfirmed:
                refused += 1
            if not n % 10:
                await asyncio.sleep(0.005)
        assert refused
        await asyncio.sleep(0.1)  # what is delayed comes; what is lost was waited for
        in_order: dict[str, list[object]] = {}
        for (client, service), stream in zip(clients, streams, strict=True):
            await until_nothing_waits(client)
            events = await take(stream, len(stream))
            ids = [event.id for event in events]
            order_checks.check_complete(ids, set().union(*service.arrived.values()))
            assert len(ids) == len(set(ids)), f"seed {seed}: shown twice"
            in_order[client.inner.inner.connection.name] = [  # type: ignore[attr-defined]
                event.id for event in events if not event.out_of_order
            ]
        order_checks.check_agreement(in_order)
        for client, _ in clients:
            await client.close()

    run(scenario, order_topics=ENTRIES)


def test_an_event_that_comes_after_its_turn_is_marked() -> None:
    async def scenario(bus: Embedded) -> None:
        client, service = troubled_client(bus, "b1", "c", patience=PATIENCE)
        async with client, client.subscribe("/a", order="total") as stream:
            service.withholds = lambda event: event.attributes.get("n") == 1
            for n in range(4):
                await bus.publish("/a", {"n": n})
            early = await take(stream, 3)
            assert numbers(early) == [0, 2, 3]
            service.release()
            [late] = await take(stream, 1)
            assert (late.attributes["n"], late.out_of_order, late.order.number) == (1, True, 2)
            assert not any(event.out_of_order for event in early)

    run(scenario)


def test_how_an_event_came_is_not_how_it_is_shown() -> None:
    """A service may say that an event came late; shown in its turn it is not."""

    def mark(event: Event) -> bool:
        event.__dict__["out_of_order"] = True
        return False

    async def scenario(bus: Embedded) -> None:
        client, service = troubled_client(bus, "b1", "c")
        async with client, client.subscribe("/a", order="total") as stream, client.subscribe("/a") as plain:
            service.withholds = mark
            await bus.publish("/a", {"n": 0})
            assert (await take(plain, 1))[0].out_of_order
            assert not (await take(stream, 1))[0].out_of_order

    run(scenario)


@pytest.mark.parametrize("seed", range(2))
def test_a_network_that_loses_and_repairs_keeps_the_order(seed: int) -> None:
    async def scenario(bus: Embedded) -> None:
        async with bus.connect("b3") as one, bus.connect("b4") as two:
            async with (
                one.subscribe("/a", "/b", order="total") as first,
                two.subscribe("/b", "/a", where="n >= 0", order="causal") as second,
            ):
                for n in range(100):
                    await (bus, one, two)[n % 3].publish("/a" if n % 2 else "/b", {"n": n})
                shown = {"first": await take(first, 100), "second": await take(second, 100)}
                for events in shown.values():
                    assert sorted(numbers(events), key=str) == sorted(range(100), key=str)
                order_checks.check_agreement(
                    {
                        name: [event.id for event in events if not event.out_of_order]
                        for name, events in shown.items()
                    }
                )

    patience = tidings.Patience(events=4_096, limit_ns=1_000_000_000)
    run(scenario, mode="epidemic", loss=0.1, seed=seed, order_topics=("/a", "/b"), order_patience=patience)


# --- Services that lose nothing


def test_an_event_that_is_missing_holds_back_what_follows_and_is_named() -> None:
    async def scenario(bus: Embedded) -> None:
        client, service = troubled_client(bus, "b1", "c", lossless=True)
        async with client, client.subscribe("/a", "/b", order="total") as stream:
            service.withholds = lambda event: event.attributes.get("n") == 1
            for n in range(50):
                await bus.publish("/a" if n < 10 else "/b", {"n": n})
            assert numbers(await take(stream, 1)) == [0]
            assert await quiet(stream)
            ordering = (await client.status())["ordering"]
            assert ordering["subscriptions"][stream.subscription.id] == {
                "buffered": 48,
                "waits_for": "event 2 of /a",
            }
            service.release()
            events = await take(stream, 49)
            assert numbers(events) == list(range(1, 50))
            assert not any(event.out_of_order for event in events)
            ordering = (await client.status())["ordering"]
            assert ordering["subscriptions"][stream.subscription.id]["waits_for"] == ""

    run(scenario, order_topics=("/a", "/b"))


def test_an_order_that_cannot_go_on_ends_with_an_error_that_names_what_is_missing() -> None:
    async def scenario(bus: Embedded) -> None:
        client, service = troubled_client(bus, "b1", "c", lossless=True, max_buffered=300)
        async with client, client.subscribe("/a", order="total") as stream, client.subscribe("/a") as plain:
            service.withholds = lambda event: event.attributes.get("n") == 1
            for n in range(600):
                await bus.publish("/a", {"n": n})
            assert numbers(await take(stream, 1)) == [0]
            with pytest.raises(tidings.OrderError, match=r"\d+ events wait for event 2 of /\*\*"):
                await stream.get(TIMEOUT_S)
            service.release()
            with pytest.raises(tidings.OrderError):  # nothing is shown any more
                await stream.get(TIMEOUT_S)
            assert len(await take(plain, 600)) == 600, "others are not concerned"
            async with client.subscribe("/a", order="total") as again:
                await bus.publish("/a", {"n": 600})
                assert numbers(await take(again, 1)) == [600]

    run(scenario)


@pytest.mark.parametrize("mode", MODES)
def test_a_refused_publication_does_not_hold_up_the_others_under_load(mode: str) -> None:
    """Its number is given back although there is always something else under way."""

    async def scenario(bus: Embedded) -> None:
        client, service = troubled_client(bus, "b1", "c", seed=3, lossless=True)
        async with client, bus.connect() as reader, reader.subscribe("/a", order="total") as stream:
            going_on = True

            async def publish() -> int:
                refused = 0
                while going_on:
                    try:
                        await client.publish("/a")
                    except tidings.NotConfirmed:
                        refused += 1
                return refused

            async with asyncio.TaskGroup() as group:
                publishers = [group.create_task(publish()) for _ in range(20)]
                await take(stream, 20)
                service.refuses, service.lingers_s = 0.05, 0.01
                await take(stream, 500)
                going_on = False
            assert sum(task.result() for task in publishers)

    patience = None if mode == "guaranteed" else tidings.Patience(events=65_536, limit_ns=300_000_000_000)
    run(scenario, mode=mode, order_patience=patience)


class Scripted(TroubledService):
    """Holds up event 0 until told to go on, and refuses event 1."""

    def __init__(self, inner: tidings.EventService) -> None:
        super().__init__(inner, Random(0), lossless=True)
        self.going_on = asyncio.Event()
        self.calls: list[object] = []

    async def send(self, stretch: Stretch) -> Batch:
        assert isinstance(stretch, Publication)
        number = stretch.attributes()["n"]
        self.calls.append(number)
        if number == 1:
            raise tidings.NotConfirmed("refused on purpose")
        if number == 0:
            self.held = Receipt(tidings.EventId("c", 0, 1))
            self.task = asyncio.create_task(self._go_on(stretch))
            return self.held
        return await self.inner.send(stretch)

    async def _go_on(self, stretch: Stretch) -> None:
        await self.going_on.wait()
        await (await self.inner.send(stretch)).confirmed()
        self.held.settle(1, None)


def test_after_a_refusal_nothing_goes_out_until_its_number_can_be_given_back() -> None:
    async def scenario(bus: Embedded) -> None:
        ordering = bus.ordering
        assert ordering is not None
        service = Scripted(local_bus(bus.network, "b1", "c"))
        client = tidings.OrderedService(service, lambda: LocalSequencing(ordering, "c"))
        async with client, client.subscribe("/a", order="total") as stream:
            publishing = [asyncio.create_task(client.publish("/a", {"n": n})) for n in range(2)]
            with pytest.raises(tidings.NotConfirmed, match="on purpose"):
                await publishing[1]
            publishing += [asyncio.create_task(client.publish("/a", {"n": n})) for n in (2, 3)]
            assert await quiet(stream)
            assert service.calls == [0, 1]
            service.going_on.set()
            await asyncio.gather(publishing[0], *publishing[2:])
            events = await take(stream, 3)
            assert numbers(events) == [0, 2, 3]
            assert not any(event.out_of_order for event in events)

    run(scenario)


# --- Slow readers


def test_a_reader_that_takes_nothing_bounds_what_is_here_and_loses_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    unread = 200
    monkeypatch.setattr(ordered, "SLOW_READER_EVENTS", unread)
    count = 2 * (unread + 2 * DEFAULT_WINDOW) + 500

    async def scenario(bus: Embedded) -> None:
        async with bus.connect("b1") as slow, bus.connect("b2") as quick:
            async with (
                slow.subscribe("/a", order="total") as held,
                quick.subscribe("/a", order="total") as free,
            ):
                for first in range(0, count, BATCH):
                    batch = [("/a", {"n": n}, b"") for n in range(first, min(first + BATCH, count))]
                    await bus.publish_many(batch)
                    assert len(await take(free, len(batch))) == len(batch)
                # Room is granted for whole runs, and what came with the last one may fill the window.
                assert unread <= len(held) <= unread + 2 * DEFAULT_WINDOW
                status = (await slow.status())["ordering"]["subscriptions"][held.subscription.id]
                assert status["buffered"] == 0
                assert numbers(await take(held, count)) == list(range(count))

    run(scenario, mode="guaranteed")


def test_what_waits_for_its_predecessor_does_not_keep_that_from_coming() -> None:
    count = 2 * DEFAULT_WINDOW + ordered.SLOW_READER_EVENTS

    async def scenario(bus: Embedded) -> None:
        client, service = troubled_client(bus, "b1", "c")
        async with client, client.subscribe("/a", order="total") as stream:
            service.withholds = lambda event: event.attributes.get("n") == 0
            await bus.publish_many([("/a", {"n": n}, b"") for n in range(count)])
            await until_waiting(client, count - 1)
            assert not len(stream)
            service.release()
            assert numbers(await take(stream, count)) == list(range(count))

    run(scenario, mode="guaranteed")


# --- False timestamps


async def forge(bus: Any, layout: int, stamp: Timestamp, *, count: int) -> None:
    maker, sequences = RunMaker(*bus.reserve()[:2]), [bus.reserve().sequence for _ in range(count)]
    for sequence in sequences:
        maker.add(sequence, "/a", {"n": -1}, b"", 0)
    (made,) = maker.take_all()
    await (await bus.send(stamped(made, layout, stamp))).confirmed()


def test_false_timestamps_are_left_out_with_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(bus: Embedded) -> None:
        assert bus.ordering is not None
        layout = bus.ordering.layout.fingerprint
        forged = [
            (layout + 1, Timestamp(0, 1)),
            (layout, Timestamp(9, 1)),
            (layout, Timestamp(0, 0)),
            (layout, Timestamp(0, -5)),
            (layout, Timestamp(0, 2**62)),
            (layout, Timestamp(0, 2**61)),
            (layout, Timestamp(0, MAX_AHEAD + 1_000)),
            (layout, Timestamp(0, 1, (1,), (1, 2))),
            (layout, Timestamp(0, 1, (0,), (1,))),
            (layout, Timestamp(0, 1, (1,), (-1,))),
            (layout, Timestamp(1, 1)),  # of another topic
        ]
        async with (
            bus.connect() as other,
            bus.connect(name="forger") as forger,
            other.subscribe("/a", "/b", order="total") as stream,
        ):
            for n, (fingerprint, stamp) in enumerate(forged * 2):
                await forge(forger, fingerprint, stamp, count=1 + n % 3)
                await bus.publish("/a" if n % 2 else "/b", {"n": n})
            assert numbers(await take(stream, 2 * len(forged))) == list(range(2 * len(forged)))
            assert await quiet(stream)

    with caplog.at_level(logging.WARNING, "tidings"):
        run(scenario, order_topics=("/a", "/b"))
    warnings = [record.message for record in caplog.records]
    assert sum("was dropped: a timestamp of another layout" in warning for warning in warnings) == 1, warnings
    assert sum("is too far ahead" in warning for warning in warnings) == 1, warnings
    assert len(warnings) == 2
