"""An order while subscriptions come and go, clients leave, and the whole network is closed."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterable
from random import Random

import pytest

import order_checks
import tidings
from ordered_clients import MODES, TIMEOUT_S, numbers, run, take
from tidings.bus import host
from tidings.bus.bus import Bus
from tidings.bus.embedded import Embedded
from troubled_service import troubled_client

ENTRIES = ("/a", "/b/*", "/c")
TOPICS = ("/a", "/b/1", "/b/2", "/c")

PATIENCE = tidings.Patience(events=65_536, limit_ns=300_000_000_000)
"""As good as none: nothing is lost here."""

Orders = pytest.mark.parametrize(
    ("mode", "causal"), [*((mode, True) for mode in MODES), ("guaranteed", False)]
)


class Traffic:
    """Clients that publish on all topics until told to stop."""

    def __init__(self, clients: Iterable[Bus]) -> None:
        self._clients = list(clients)
        self._tasks: list[asyncio.Task[None]] = []
        self.published = 0

    async def __aenter__(self) -> Traffic:
        self._tasks = [asyncio.create_task(self._publish(client)) for client in self._clients]
        return self

    async def __aexit__(self, *error: object) -> None:
        for task in self._tasks:
            task.cancel()
        results = await asyncio.gather(*self._tasks, return_exceptions=True)
        assert all(isinstance(result, asyncio.CancelledError) for result in results), results

    async def _publish(self, client: Bus) -> None:
        while True:
            for topic in TOPICS:
                self.published += 1
                await client.publish(topic, {"n": self.published})
                await asyncio.sleep(0)


def check_gap_free(events: list[tidings.Event]) -> None:
    """The numbers of each entry follow each other."""
    found: dict[str, list[int]] = defaultdict(list)
    for event in events:
        found[event.order.topic].append(event.order.number)
    for topic, numbers_shown in found.items():
        first = numbers_shown[0]
        expected = list(range(first, first + len(numbers_shown)))
        assert numbers_shown == expected, f"{topic}: {numbers_shown}"


@Orders
def test_streams_come_and_go_while_events_flow(mode: str, causal: bool) -> None:
    random = Random(f"{mode} {causal}")
    shown: dict[str, list[tidings.EventId]] = {}

    async def read(client: Bus, name: str) -> None:
        topics = random.sample(ENTRIES, random.randint(1, 3))
        async with client.subscribe(*topics, order="total") as stream:
            marker = await client.publish(random.choice(topics).replace("*", "9"), {"n": 0})
            events = []
            while marker not in {event.id for event in events[-1:]}:
                events.append(await stream.get(TIMEOUT_S))
            events += [await stream.get(TIMEOUT_S) for _ in range(random.randint(0, 5))]
        check_gap_free(events)
        assert not any(event.out_of_order for event in events)
        shown[name] = [event.id for event in events]

    async def scenario(bus: Embedded) -> None:
        readers = [bus.connect(at) for at in ("b1", "b2", "b4")]
        for client in readers:
            await client.open()
        async with bus.connect("b3") as publisher, bus.subscribe(*ENTRIES, order="total") as every:
            async with Traffic((bus, publisher)):
                for turn in range(6):
                    await asyncio.gather(
                        *(
                            read(client, f"{at}.{turn}.{which}")
                            for at, client in enumerate(readers)
                            for which in range(2)
                        )
                    )
            wanted = set().union(*shown.values())
            reference = []
            while wanted - set(reference):
                reference.append((await every.get(TIMEOUT_S)).id)
            shown["every"] = reference
        order_checks.check_agreement(shown)

    run(scenario, mode=mode, causal=causal, order_topics=ENTRIES)


@pytest.mark.parametrize("mode", MODES)
def test_many_short_lived_streams_leave_nothing_behind(mode: str) -> None:
    async def scenario(bus: Embedded) -> None:
        async with bus.connect() as other, Traffic((other,)):
            for _ in range(60):
                async with bus.subscribe("/a", order="total") as stream:
                    await stream.get(TIMEOUT_S)
            streams = [bus.subscribe("/a", "/c", order="total") for _ in range(20)]
            await asyncio.gather(*(stream.__aenter__() for stream in streams))
            await asyncio.gather(*(stream.__aexit__(None, None, None) for stream in streams))
        assert not bus.streams
        assert not bus._shown and not bus._application.order_status()
        for _ in range(1_000):  # what the sequencers are told in the background
            if not bus._order.module._subscribers:
                break
            await asyncio.sleep(0.01)
        assert not bus._order.module._subscribers

    run(scenario, mode=mode, order_topics=ENTRIES)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("entries", [ENTRIES, ("/**",)])
def test_a_client_that_leaves_in_the_middle_holds_up_nobody(mode: str, entries: tuple[str, ...]) -> None:
    """Where an entry is wider than the subscription its no-ops come as headers."""

    async def scenario(bus: Embedded) -> None:
        async with bus.connect("b1") as reader, bus.connect("b2") as second:
            async with (
                reader.subscribe("/a", "/c", order="total") as stream,
                second.subscribe("/c", "/a", order="total") as other,
            ):
                for life in range(5):
                    leaver, service = troubled_client(bus, "b3", f"leaver{life}", seed=life)
                    await leaver.open()
                    under_way = [
                        asyncio.create_task(leaver.publish("/a" if n % 2 else "/c", {"n": -1}))
                        for n in range(20)
                    ]
                    batch = asyncio.create_task(leaver.publish_many([("/a", {"n": -1}, b"")] * 200))
                    for _ in range(3 * life):
                        await asyncio.sleep(0)
                    service.hangs = True
                    await asyncio.sleep(0.002 * life)
                    await leaver.close()
                    results = await asyncio.gather(*under_way, batch, return_exceptions=True)
                    failed = [result for result in results if isinstance(result, BaseException)]
                    assert all(isinstance(error, tidings.TidingsError) for error in failed), failed
                    await bus.publish("/a", {"n": life})
                    await bus.publish("/c", {"n": 100 + life})
                shown = {"stream": stream, "other": other}
                in_order: dict[str, list[tidings.EventId]] = {}
                for name, reading in shown.items():
                    events: list[tidings.Event] = []
                    while not events or events[-1].attributes["n"] != 104:
                        events.append(await reading.get(TIMEOUT_S))
                    assert [n for n in numbers(events) if n != -1] == [0, 100, 1, 101, 2, 102, 3, 103, 4, 104]
                    in_order[name] = [event.id for event in events if not event.out_of_order]
                order_checks.check_agreement(in_order)

    run(scenario, mode=mode, order_topics=entries, order_patience=PATIENCE if mode != "guaranteed" else None)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("turns", [0, 3, 40])
def test_closing_ends_what_is_under_way(mode: str, turns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "MAX_UNCONFIRMED", 300)  # so that some wait outside

    async def scenario(bus: Embedded) -> None:
        other = bus.connect("b1")
        await other.open()
        reading, slow = bus.subscribe("/a", order="total"), other.subscribe("/a", "/c", order="causal")
        for stream in (reading, slow):
            await stream.__aenter__()
        await bus.publish("/a")
        await take(reading, 1)

        async def subscribe(client: Bus) -> None:
            async with client.subscribe("/c", order="total") as stream:
                await stream.get(TIMEOUT_S)

        endless = (("/a", {"n": n}, b"") for n in range(10**9))
        under_way = [
            asyncio.create_task(work)
            for client in (bus, other)
            for work in (
                *(client.publish("/a", {"n": n}) for n in range(50)),
                client.publish_many([("/c", {}, b""), ("/a", {}, b"")] * 100),
                client.publish_many(endless),
                subscribe(client),
                reading.get(TIMEOUT_S) if client is bus else _read_all(slow),
            )
        ]
        for _ in range(turns):
            await asyncio.sleep(0)
        async with asyncio.timeout(10):
            await bus.close()
            results = await asyncio.gather(*under_way, return_exceptions=True)
        errors = [result for result in results if isinstance(result, BaseException)]
        assert errors
        assert all(isinstance(error, tidings.TidingsError) for error in errors), errors
        for client in (bus, other):
            with pytest.raises(tidings.ConnectionFailed, match="not open"):
                await client.publish("/a")

    run(scenario, mode=mode, order_topics=ENTRIES)


async def _read_all(stream: tidings.Stream) -> None:
    async for _ in stream:
        pass


def test_closing_ends_a_subscription_that_begins() -> None:
    async def begin(bus: Embedded, turns: int) -> None:
        beginning = asyncio.create_task(bus.subscribe("/a", order="total").__aenter__())
        for _ in range(turns):
            await asyncio.sleep(0)
        async with asyncio.timeout(10):  # not as long as sequencers may take
            await bus.close()
            [result] = await asyncio.gather(beginning, return_exceptions=True)
        assert isinstance(result, tidings.Stream | tidings.TidingsError), result

    for turns in range(25):
        run(lambda bus, turns=turns: begin(bus, turns), brokers=1)


def test_a_subscription_that_is_given_up_while_it_begins_is_forgotten() -> None:
    async def scenario(bus: Embedded) -> None:
        for turns in range(12):
            stream = bus.subscribe("/a", order="total")
            opening = asyncio.create_task(stream.__aenter__())
            for _ in range(turns):
                await asyncio.sleep(0)
            opening.cancel()
            await asyncio.gather(opening, return_exceptions=True)
            if not opening.cancelled():
                await stream.__aexit__(None, None, None)
        assert not bus._shown and not bus.streams
        async with bus.subscribe("/a", order="total") as stream:
            await bus.publish("/a", {"n": 1})
            assert numbers(await take(stream, 1)) == [1]

    run(scenario)


def test_publications_that_are_given_up_leave_the_order_whole() -> None:
    async def scenario(bus: Embedded) -> None:
        async with bus.subscribe("/a", order="total") as stream:
            for turns in range(12):
                under_way = asyncio.create_task(bus.publish("/a", {"n": -1}))
                for _ in range(turns):
                    await asyncio.sleep(0)
                under_way.cancel()
                await asyncio.gather(under_way, return_exceptions=True)
            await bus.publish("/a", {"n": 1})
            events = []
            while not events or events[-1].attributes["n"] != 1:
                events.append(await stream.get(TIMEOUT_S))
            check_gap_free(events)

    run(scenario)


def test_publications_that_are_given_up_count_until_they_are_done(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "MAX_UNCONFIRMED", 10)

    async def scenario(bus: Embedded) -> None:
        client, service = troubled_client(bus, "b1", "c")
        async with bus.subscribe("/a", order="total"), client:
            service.hangs = True
            for _ in range(30):
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(client.publish("/a"), 0.001)
            assert client._order.module.unpublished <= 10

    run(scenario)


def test_a_network_opens_again() -> None:
    async def main() -> None:
        network = tidings.embedded(3)
        for _ in range(2):
            async with network, network.subscribe("/a", order="total") as stream:
                await network.publish("/a", {"n": 1})
                assert numbers(await take(stream, 1)) == [1]

    asyncio.run(main())
