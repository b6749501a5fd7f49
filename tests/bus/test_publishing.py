"""Publishing without waiting, many at once, and taking events in batches."""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tidings
import tidings.sync
import tidings.testing
from tidings.bus import host as host_module
from tidings.bus.embedded import local_bus
from tidings.bus.receipts import Batch, PendingPublications
from tidings.bus.stream import Stream
from tidings.core.events.run import Run, RunMaker

MODES = ("best-effort", "guaranteed", "epidemic")


def play(scenario: Callable[[Any], Awaitable[None]], **options: Any) -> None:
    async def main() -> None:
        async with asyncio.timeout(20), tidings.embedded(**{"brokers": 3, **options}) as bus:
            await scenario(bus)

    asyncio.run(main())


def numbered(count: int) -> Iterator[tuple[str, dict[str, Any], bytes]]:
    return (("/t", {"n": number}, b"") for number in range(count))


async def numbers(stream: tidings.Stream, count: int) -> list[Any]:
    return [(await stream.get(5.0)).attributes["n"] for _ in range(count)]


@pytest.mark.parametrize("mode", MODES)
def test_receipts_are_awaited_later_again_or_never(mode: str, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(bus: tidings.EventService) -> None:
        async with bus.subscribe("/t") as stream:
            receipts = [await bus.publish("/t", {"n": number}, wait=False) for number in range(5)]
            assert not any(receipt.done for receipt in receipts)
            first = await receipts[0]
            assert await receipts[0] == first
            assert [receipt.id.sequence for receipt in receipts if receipt.id] == list(range(1, 6))
            assert await numbers(stream, 5) == list(range(5))
            assert await asyncio.gather(*receipts) == [receipt.id for receipt in receipts]

    with caplog.at_level(logging.DEBUG):
        play(scenario, mode=mode)
        gc.collect()
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


def test_a_receipt_of_what_was_not_confirmed_raises_and_nobody_need_hear(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scenario(net: tidings.testing.TestNetwork) -> None:
        async with net.connect("b0") as bus:
            await bus.publish("/t")
            net.crash("b0")
            heard = await bus.publish("/t", wait=False)
            unheard = await bus.publish("/t", wait=False)
            with pytest.raises(tidings.NotConfirmed):
                await heard
            assert unheard.done
            del unheard
            gc.collect()
            with pytest.raises(tidings.NotConfirmed, match="10 of 10 publications"):
                await bus.publish_many(numbered(10))

    tidings.testing.simulate(scenario)
    assert "never retrieved" not in caplog.text


def test_a_receipt_in_an_order() -> None:
    async def scenario(bus: tidings.EventService) -> None:
        async with bus.subscribe("/t", order="total") as stream:
            receipt = await bus.publish("/t", {"n": 1}, wait=False)
            assert (await stream.get(5.0)).id == await receipt

    play(scenario, mode="guaranteed")


@pytest.mark.parametrize("mode", MODES)
def test_many_from_an_async_iterable(mode: str) -> None:
    async def source() -> AsyncIterator[tuple[str, dict[str, Any], bytes]]:
        for number, event in enumerate(numbered(50)):
            if number % 7 == 0:
                await asyncio.sleep(0)
            yield event

    async def scenario(bus: tidings.EventService) -> None:
        async with bus.subscribe("/t", order="fifo") as stream:
            assert await bus.publish_many(source()) == 50
            assert await numbers(stream, 50) == list(range(50))

    play(scenario, mode=mode)


def test_no_more_is_taken_from_the_source_than_may_be_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_module, "MAX_UNCONFIRMED", 8)

    async def scenario(net: tidings.testing.TestNetwork) -> None:
        async with net.connect("b0") as bus:
            await bus.publish("/t")
            net.pause("b0")  # it confirms nothing
            taken: list[int] = []

            def source() -> Iterator[tuple[str, dict[str, Any], bytes]]:
                for number, event in enumerate(numbered(50)):
                    taken.append(number)
                    yield event

            publishing = asyncio.create_task(bus.publish_many(source()))
            await asyncio.sleep(60)
            assert len(taken) == 8
            net.resume("b0")
            assert await publishing == 50

    tidings.testing.simulate(scenario)


def test_calls_of_one_turn_share_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    runs: list[int] = []
    push_run = Stream.push_run

    def spy(self: Stream, run: Run, **how: Any) -> None:
        runs.append(run.count)
        push_run(self, run, **how)

    monkeypatch.setattr(Stream, "push_run", spy)

    async def scenario(bus: tidings.EventService) -> None:
        async with bus.subscribe("/t") as stream:
            await asyncio.gather(*(bus.publish("/t", {"n": number}) for number in range(20)))
            assert await numbers(stream, 20) == list(range(20))
            await bus.publish("/t", {"n": 20})
            assert await numbers(stream, 1) == [20]

    play(scenario)
    assert runs == [20]


def test_a_mistake_in_the_middle_leaves_the_events_before_it() -> None:
    async def scenario(bus: tidings.EventService) -> None:
        async with bus.subscribe("/t") as stream:
            events: list[Any] = [*numbered(3), ("/t", {"n": object()}, b"")]
            with pytest.raises(tidings.AttributeValueError):
                await bus.publish_many(events)
            assert await numbers(stream, 3) == [0, 1, 2]
            assert await bus.publish_many(numbered(3)) == 3

    play(scenario)


# --- Batches


def test_batches_have_what_is_there() -> None:
    async def scenario(bus: tidings.EventService) -> None:
        async with bus.subscribe("/t") as stream:
            await bus.publish_many(numbered(25))
            while len(stream) < 25:  # noqa: ASYNC110 - a few turns
                await asyncio.sleep(0)
            batches = stream.batches(10)
            sizes = [len(await anext(batches)) for _ in range(3)]
            assert sizes == [10, 10, 5]
            waiting = asyncio.create_task(anext(stream.batches(2, 30.0)))
            await bus.publish("/t", {"n": 1})
            await bus.publish("/t", {"n": 2})
            assert [event.attributes["n"] for event in await waiting] == [1, 2]
            for arguments in ((0,), (1, -1)):
                with pytest.raises(ValueError, match="max_events"):
                    await anext(stream.batches(*arguments))
        assert [batch async for batch in stream.batches()] == []

    play(scenario)


def test_a_batch_that_is_not_full_waits_so_long_and_ends_with_the_stream() -> None:
    async def scenario(net: tidings.testing.TestNetwork) -> None:
        async with net.connect("b0") as bus, net.connect("b1") as other:
            async with bus.subscribe("/t") as stream:
                publishing = asyncio.create_task(publish_slowly(other))
                batch = await anext(stream.batches(10, 1.0))
                assert [event.attributes["n"] for event in batch] == [1, 2]
                await publishing
                last = asyncio.create_task(anext(stream.batches(10, 3_600.0)))
                await other.publish("/t", {"n": 3})
                await asyncio.sleep(1)
            assert [event.attributes["n"] for event in await last] == [3]

    async def publish_slowly(bus: tidings.EventService) -> None:
        await bus.publish("/t", {"n": 1})
        await asyncio.sleep(0.5)
        await bus.publish("/t", {"n": 2})

    tidings.testing.simulate(scenario)


def test_without_async() -> None:
    with tidings.sync.embedded(brokers=1) as bus, bus.subscribe("/t") as stream:
        receipts = [bus.publish("/t", {"n": number}, wait=False) for number in range(3)]
        assert [receipt.result(5.0).sequence for receipt in receipts] == [1, 2, 3]
        assert all(receipt.done for receipt in receipts)
        shown: list[Any] = []
        for batch in stream.batches(2, 5.0):
            shown += [event.attributes["n"] for event in batch]
            if len(shown) >= 2:
                break
        assert shown == [0, 1]


# --- A stream's buffer, whole and event by event


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(1, 9), max_size=8), st.integers(1, 20), st.lists(st.integers(0, 9), max_size=8))
def test_a_buffer_takes_runs_as_their_events_one_by_one(
    sizes: list[int], limit: int, reads: list[int]
) -> None:
    async def main() -> None:
        bus = tidings.embedded(brokers=1)
        whole, apart = (bus.subscribe("/t", buffer_events=limit) for _ in range(2))
        maker, sequence = RunMaker("p", 0), 1
        for size, read in zip(sizes, [*reads, *[0] * len(sizes)], strict=False):
            for _ in range(size):
                maker.add(sequence, "/t", {"n": sequence}, b"", 0)
                sequence += 1
            for stretch in maker.take_all():
                if isinstance(stretch, Run):
                    whole.push_run(stretch)
                    for event in stretch.events(print):
                        apart.push(event)
                else:
                    whole.push(stretch.event())
                    apart.push(stretch.event())
            assert (len(whole), whole.dropped) == (len(apart), apart.dropped)
            for _ in range(min(read, len(whole))):
                assert await whole.get() == await apart.get()

    asyncio.run(main())


# --- The ledger


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(1, 6), min_size=1, max_size=6), st.data())
def test_a_ledger_settles_ranges_as_their_sequences_one_by_one(sizes: list[int], data: st.DataObject) -> None:
    ledger, batches, owner_of = PendingPublications(), [], {}
    first = 1
    for size in sizes:
        batch = Batch()
        batch.published = size
        batches.append(batch)
        ledger.add(first, first + size - 1, batch)
        owner_of |= dict.fromkeys(range(first, first + size), batch)
        first += size
    left, failed = dict(owner_of), dict.fromkeys(batches, 0)
    for _ in range(data.draw(st.integers(0, 8))):
        start = data.draw(st.integers(0, first))
        end = data.draw(st.integers(start, first + 2))
        error = data.draw(st.sampled_from([None, tidings.NotConfirmed("no")]))
        for sequence in range(start, end + 1):
            owner = left.pop(sequence, None)
            if owner is not None and error is not None:
                failed[owner] += 1
        ledger.settle(start, end, error)
        assert ledger.under_way == len(left)
        assert [batch.done for batch in batches] == [batch not in left.values() for batch in batches]
        assert [batch.failed for batch in batches] == list(failed.values())
    ledger.fail_all("closed")
    assert all(batch.done for batch in batches)
    assert ledger.under_way == 0


def test_calls_that_publish_many_at_once_keep_their_order() -> None:
    """Each fills several runs, and gives others a turn of the loop between them."""

    async def scenario(bus: tidings.EventService) -> None:
        async with bus.subscribe("/a") as stream:
            calls = [
                asyncio.create_task(
                    bus.publish_many(("/a", {"n": n}, bytes(200)) for n in range(first, first + 1_000))
                )
                for first in range(0, 5_000, 1_000)
            ]
            assert [(await stream.get(30)).attributes["n"] for _ in range(5_000)] == list(range(5_000))
            assert await asyncio.gather(*calls) == [1_000] * 5

    async def main() -> None:
        async with tidings.embedded(brokers=1) as network, local_bus(network.network, "b0", "c") as bus:
            await scenario(bus)

    asyncio.run(main())
