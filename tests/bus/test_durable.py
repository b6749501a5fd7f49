"""Durable subscriptions and groups, in virtual time, on a guaranteed network of three brokers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest

from tidings.bus.bus import Bus
from tidings.bus.stream import Stream
from tidings.core.errors import (
    ConnectionFailed,
    DeliveriesExhausted,
    NoResponder,
    NotHeld,
    SubscriptionRefused,
    TopicError,
)
from tidings.testing import TestNetwork, simulate

Scenario = Callable[[TestNetwork], Awaitable[None]]


def run(scenario: Callable[[TestNetwork], Any]) -> None:
    simulate(scenario, brokers=3, mode="guaranteed")


async def publish(bus: Bus, *numbers: int, topic: str = "/jobs") -> None:
    for number in numbers:
        await bus.publish(topic, {"n": number, "key": number % 3})


async def read(stream: Stream, count: int) -> list[tuple[int, int]]:
    """Return the number and the attempt of the next events."""
    events = [await stream.get(30) for _ in range(count)]
    return [(event.attributes["n"], event.attempt) for event in events]


def test_a_stream_that_is_left_goes_on_where_it_stopped() -> None:
    async def scenario(net: TestNetwork) -> None:
        async with net.connect("b0") as far, net.connect("b2", name="one") as bus:
            async with bus.subscribe("/jobs", durable="billing") as stream:
                await publish(far, 1, 2, 3)
                assert await read(stream, 2) == [(1, 1), (2, 1)]
            await publish(far, 4)
        async with net.connect("b0") as far, net.connect("b2", name="two") as bus:
            await publish(far, 5)
            async with bus.subscribe("/jobs", durable="billing") as stream:
                assert await read(stream, 3) == [(3, 1), (4, 1), (5, 1)]

    run(scenario)


def test_an_exception_in_the_loop_leaves_its_event_undone() -> None:
    async def scenario(net: TestNetwork) -> None:
        async with net.connect("b2") as bus:
            with suppress(RuntimeError):
                async with bus.subscribe("/jobs", durable="billing") as stream:
                    await publish(bus, 1, 2)
                    await stream.get(30)
                    raise RuntimeError
            async with bus.subscribe("/jobs", durable="billing") as stream:
                assert await read(stream, 2) == [(1, 2), (2, 1)]

    run(scenario)


def test_what_a_client_had_in_hand_when_it_died_comes_again_marked() -> None:
    async def scenario(net: TestNetwork) -> None:
        async with net.connect("b0") as far:
            async with net.connect("b2", name="worker") as bus:
                with suppress(ConnectionFailed):
                    async with bus.subscribe("/jobs", durable="billing", max_unacked=1) as stream:
                        await publish(far, 1, 2)
                        async for _ in stream:
                            net.crash("worker")
            async with net.connect("b1", name="worker") as bus:
                async with bus.subscribe("/jobs", durable="billing") as stream:
                    assert await read(stream, 2) == [(1, 2), (2, 1)]

    run(scenario)


def test_a_reader_that_never_waits_reports_before_its_window_is_used_up() -> None:
    async def scenario(net: TestNetwork) -> None:
        async with (
            net.connect("b2") as bus,
            bus.subscribe("/jobs", durable="billing", max_unacked=8) as stream,
        ):
            await publish(bus, *range(12))
            await asyncio.sleep(0.5)
            assert len(stream) == 8
            for _ in range(3):
                await anext(stream)
            assert len(stream) == 5
            await asyncio.sleep(0.5)
            assert len(stream) == 7  # two are done, one is in the reader's hands
            turns = 0

            async def others() -> None:
                nonlocal turns
                while True:
                    turns += 1
                    await asyncio.sleep(0)

            other = asyncio.create_task(others())
            for _ in range(7):
                await anext(stream)
            other.cancel()
            assert turns >= 2

    run(scenario)


def test_a_crash_of_the_broker_loses_nothing_and_its_holder_goes_on() -> None:
    async def scenario(net: TestNetwork) -> None:
        async with net.connect("b0") as far, net.connect("b2") as bus:
            async with bus.subscribe("/jobs", durable="billing", ack="manual") as stream:
                await publish(far, 1, 2, 3)
                first = await stream.get(30)
                second = await stream.get(30)
                await second.ack()
                net.crash("b2")
                net.restart("b2")
                await publish(far, 4)
                assert await read(stream, 2) == [(3, 1), (4, 1)]
                await first.ack()
            async with bus.subscribe("/jobs", durable="billing") as stream:
                assert await read(stream, 2) == [(3, 2), (4, 2)]

    run(scenario)


def test_a_held_name_is_refused_or_taken_over() -> None:
    async def scenario(net: TestNetwork) -> None:
        async with net.connect("b1", name="one") as one, net.connect("b1", name="two") as two:
            async with one.subscribe("/jobs", durable="billing", ack="manual") as held:
                with pytest.raises(SubscriptionRefused, match="held by client one"):
                    await two.subscribe("/jobs", durable="billing").__aenter__()
                await publish(two, 1)
                event = await held.get(30)
                async with two.subscribe("/jobs", durable="billing", takeover=True) as taken:
                    assert await read(taken, 1) == [(1, 2)]
                    with pytest.raises(SubscriptionRefused, match="took over"):
                        await held.get(30)
                    with pytest.raises(NotHeld):
                        await event.ack()

    run(scenario)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"durable": "billing", "where": "n > 1"}, "filter"),
        ({"group": "billing"}, "is a durable"),
        ({"durable": "billing", "order": "fifo"}, "order"),
    ],
)
def test_whoever_attaches_must_want_the_same(options: dict[str, Any], why: str) -> None:
    async def scenario(net: TestNetwork) -> None:
        async with net.connect("b1") as bus:
            async with bus.subscribe("/jobs", durable="billing"):
                pass
            with pytest.raises(SubscriptionRefused, match=why):
                await bus.subscribe("/jobs", **options).__aenter__()

    run(scenario)


@pytest.mark.parametrize(
    ("topics", "options", "why"),
    [
        (
            ("/jobs",),
            {"where": "n > 2"},
            "'workers' has the filter n > 1; all members of a group select the same",
        ),
        (("/jobs",), {}, "has the filter n > 1"),
        (("/jobs", "/more"), {"where": "n > 1"}, "has topics /jobs; all members"),
        (
            ("/jobs",),
            {"where": "n > 1", "group_by": "key"},
            "is grouped by no attribute; all members do the same",
        ),
    ],
)
def test_members_of_a_group_want_the_same(topics: tuple[str, ...], options: Any, why: str) -> None:
    async def scenario(net: TestNetwork) -> None:
        async with net.connect("b1") as one, net.connect("b2") as two:
            async with one.subscribe("/jobs", group="workers", where="n > 1"):
                with pytest.raises(SubscriptionRefused, match=why):
                    await two.subscribe(*topics, group="workers", **options).__aenter__()

    run(scenario)


def test_a_durable_subscription_is_attached_to_through_any_broker() -> None:
    async def scenario(net: TestNetwork) -> None:
        async with net.connect("b0", name="one") as here, net.connect("b2", name="two") as there:
            async with here.subscribe("/jobs", durable="billing", ack="manual") as stream:
                with pytest.raises(SubscriptionRefused, match="held by client one"):
                    await there.subscribe("/jobs", durable="billing").__aenter__()
                await publish(there, 1, 2, 3)
                first, second = await stream.get(30), await stream.get(30)
                await first.ack()
                async with there.subscribe("/jobs", durable="billing", takeover=True) as far:
                    with pytest.raises(NotHeld):
                        await second.ack()
                    await publish(here, 4)
                    assert await read(far, 3) == [(2, 2), (3, 2), (4, 1)]
            async with there.subscribe("/jobs", durable="billing") as far:
                await publish(here, 5)
                assert await read(far, 1) == [(5, 1)]
            await there.cancel_durable("billing")
            with pytest.raises(SubscriptionRefused, match="exists"):
                await here.cancel_durable("billing")

    run(scenario)


def test_a_far_holder_goes_on_after_crashes_of_either_broker() -> None:
    async def scenario(net: TestNetwork) -> None:
        async with net.connect("b0") as here, net.connect("b2") as there, net.connect("b1") as middle:
            async with here.subscribe("/jobs", durable="billing"):
                pass
            async with there.subscribe("/jobs", durable="billing", ack="manual") as stream:
                await publish(middle, 1, 2)
                first = await stream.get(30)
                for broker in ("b0", "b2"):
                    net.crash(broker)
                    net.restart(broker)
                await first.ack()
                await publish(middle, 3)
                second = await stream.get(30)
                assert second.attributes["n"] == 2
                await second.ack()
                third = await stream.get(30)
                assert third.attributes["n"] == 3
                await third.ack()
            async with here.subscribe("/jobs", durable="billing") as stream:
                await publish(middle, 4)
                assert await read(stream, 1) == [(4, 1)]

    run(scenario)


def test_cancelling_drops_what_waits() -> None:
    async def scenario(net: TestNetwork) -> None:
        async with net.connect("b1") as bus:
            async with bus.subscribe("/jobs", durable="billing", ack="manual") as stream:
                await publish(bus, 1, 2)
                event = await stream.get(30)
                await stream.cancel()
                with pytest.raises(NotHeld, match=r"cannot be given back: .* cancelled"):
                    await event.nack()
            assert (await bus.status())["durable"] == []
            async with bus.subscribe("/jobs", durable="billing") as stream:
                await publish(bus, 3)
                assert await read(stream, 1) == [(3, 1)]

    run(scenario)


def test_the_loop_that_cancels_ends() -> None:
    async def scenario(net: TestNetwork) -> None:
        async with net.connect("b1") as bus, bus.subscribe("/jobs", durable="billing") as stream:
            await publish(bus, 1, 2)
            seen = []
            async for event in stream:
                seen.append(event.attributes["n"])
                await stream.cancel()
            assert seen == [1]
            with pytest.raises(ConnectionFailed, match="closed"):
                await stream.get(5)
            with pytest.raises(SubscriptionRefused, match="cancelled before"):
                await stream.cancel()

    run(scenario)


def test_who_lost_the_name_does_not_cancel_it() -> None:
    async def scenario(net: TestNetwork) -> None:
        async with net.connect("b1", name="old") as bus, net.connect("b2", name="new") as other:
            async with bus.subscribe("/jobs", durable="billing") as stream:
                async with other.subscribe("/jobs", durable="billing", takeover=True) as successor:
                    with pytest.raises(SubscriptionRefused, match="client new at broker b2 took over"):
                        await stream.get(30)
                    with pytest.raises(
                        SubscriptionRefused, match=r"'billing' is not cancelled, .* new .* took over"
                    ):
                        await stream.cancel()
                    await publish(bus, 1)
                    assert await read(successor, 1) == [(1, 1)]

    run(scenario)


def test_acknowledging_by_hand() -> None:
    async def scenario(net: TestNetwork) -> None:
        async with net.connect("b1") as bus:
            async with bus.subscribe("/jobs", durable="billing", ack="manual", max_unacked=2) as stream:
                await publish(bus, 1, 2, 3)
                one, two = await stream.get(30), await stream.get(30)
                with pytest.raises(TimeoutError):
                    await stream.get(1)
                await one.ack()
                with pytest.raises(NotHeld, match="cannot be acknowledged: it was acknowledged before"):
                    await one.ack()
                with pytest.raises(NotHeld, match="cannot be given back: it was acknowledged before"):
                    await one.nack()
                await two.nack(after=5)
                with pytest.raises(NotHeld, match="cannot be acknowledged: it was given back before"):
                    await two.ack()
                assert await read(stream, 2) == [(3, 1), (2, 2)]

    run(scenario)


def test_an_event_of_an_earlier_life_cannot_be_acknowledged() -> None:
    async def scenario(net: TestNetwork) -> None:
        async with net.connect("b1") as bus, net.connect("b2") as other:
            async with bus.subscribe("/jobs", durable="billing", ack="manual") as stream:
                await publish(bus, 1)
                before = await stream.get(30)
            for client in (bus, other):
                async with client.subscribe("/jobs", durable="billing", ack="manual") as stream:
                    again = await stream.get(30)
                    assert again.redelivered
                    with pytest.raises(NotHeld, match="cannot be acknowledged: the stream was left"):
                        await before.ack()
                    with pytest.raises(NotHeld, match="cannot be given back: the stream was left"):
                        await before.nack()
                    before = again
            async with bus.subscribe("/jobs", durable="billing", ack="manual") as stream:
                assert await read(stream, 1) == [(1, 4)]

    run(scenario)


@pytest.mark.parametrize("by_another", [False, True])
@pytest.mark.parametrize("order", ["none", "fifo"])
def test_nothing_is_given_back_after_the_cancellation(by_another: bool, order: Any) -> None:
    async def scenario(net: TestNetwork) -> None:
        async with net.connect("b1") as bus, net.connect("b2") as other:
            options: dict[str, Any] = {"durable": "billing", "ack": "manual", "order": order}
            async with bus.subscribe("/jobs", **options) as stream:
                await publish(bus, 1, 2)
                one, two = await stream.get(30), await stream.get(30)
                if by_another:
                    await other.cancel_durable("billing")
                else:
                    await stream.cancel()
                with pytest.raises(NotHeld, match="cannot be given back: ") as nack:
                    await one.nack(after=1)
                with pytest.raises(NotHeld, match="cannot be acknowledged: "):
                    await two.ack()
                assert "\n" not in str(nack.value)
                with suppress(SubscriptionRefused, ConnectionFailed):
                    await stream.get(5)
            async with bus.subscribe("/jobs", **options) as stream:
                await publish(other, 3)
                assert await read(stream, 1) == [(3, 1)], "the name began anew"

    run(scenario)


@pytest.mark.parametrize("after", [-1, float("nan"), float("inf"), 1e30, 10**400, "5", timedelta(days=-1)])
def test_a_delay_that_is_none(after: Any) -> None:
    async def scenario(net: TestNetwork) -> None:
        async with (
            net.connect("b1") as bus,
            bus.subscribe("/jobs", durable="billing", ack="manual") as stream,
        ):
            await publish(bus, 1)
            event = await stream.get(30)
            with pytest.raises(ValueError, match="after must be") as refused:
                await event.nack(after=after)
            assert "\n" not in str(refused.value)
            await event.ack()

    run(scenario)


def test_fifo_holds_across_a_refusal() -> None:
    async def scenario(net: TestNetwork) -> None:
        async with net.connect("b1") as bus:
            async with bus.subscribe("/jobs", durable="billing", ack="manual", order="fifo") as stream:
                await publish(bus, 1, 2, 3)
                event = await stream.get(30)
                await event.nack(after=1)
                assert [number for number, _ in await read(stream, 3)] == [1, 2, 3]

    run(scenario)


def test_an_event_that_is_delivered_too_often_becomes_a_dead_letter() -> None:
    async def scenario(net: TestNetwork) -> None:
        async with net.connect("b1") as bus, bus.subscribe("/dead") as dead:
            options = {"durable": "billing", "ack": "manual", "max_deliveries": 2, "dead_letter": "/dead"}
            async with bus.subscribe("/jobs", **options) as stream:  # type: ignore[arg-type]
                await publish(bus, 1)
                for _ in range(2):
                    await (await stream.get(30)).nack()
                with pytest.raises(TimeoutError):
                    await stream.get(1)
                letter = await dead.get(30)
                assert letter.attributes["n"] == 1
                assert letter.attributes["dead_topic"] == "/jobs"
                assert letter.attributes["dead_deliveries"] == 2

    run(scenario)


def test_an_event_given_back_after_its_last_delivery_is_given_up_at_once() -> None:
    """Whether the reader asks for another one, or leaves."""

    async def scenario(net: TestNetwork) -> None:
        async with net.connect("b1") as bus, bus.subscribe("/dead") as dead:
            options: dict[str, Any] = {"ack": "manual", "max_deliveries": 2}
            async with bus.subscribe("/jobs", durable="letters", dead_letter="/dead", **options) as stream:
                await publish(bus, 1)
                for after in (0, 3600):
                    event = await stream.get(30)
                    await event.nack(after=after)
                assert (await dead.get(1)).attributes["n"] == 1
                with pytest.raises(NotHeld, match="published as a dead letter"):
                    await event.ack()
            async with bus.subscribe("/jobs", durable="aside", **options) as stream:
                await publish(bus, 2)
                for _ in range(2):
                    await (await stream.get(30)).nack()
                (aside,) = await bus.set_aside("aside")
                assert (aside.attempts, aside.event.attributes["n"]) == (2, 2)
                assert await bus.release("aside", [aside.number]) == 1
                again = await stream.get(30)
                assert (again.attempt, again.redelivered) == (3, True)

    run(scenario)


@pytest.mark.parametrize("order", ["none", "fifo"])
@pytest.mark.parametrize("ack", ["auto", "manual"])
def test_an_event_left_undone_after_its_last_delivery_is_given_up_at_once(ack: Any, order: Any) -> None:
    async def scenario(net: TestNetwork) -> None:
        async with net.connect("b1") as bus, bus.subscribe("/dead") as dead:
            options: dict[str, Any] = {
                "max_deliveries": 2,
                "dead_letter": "/dead",
                "ack": ack,
                "order": order,
            }
            for attempt in (1, 2):
                with suppress(KeyError):
                    async with bus.subscribe("/jobs", durable="billing", **options) as stream:
                        if attempt == 1:
                            await publish(bus, 1, 2)
                        async for event in stream:
                            assert (event.attributes["n"], event.attempt) == (1, attempt)
                            raise KeyError
            letter = await dead.get(1)
            assert (letter.attributes["n"], letter.attributes["dead_deliveries"]) == (1, 2)
            async with bus.subscribe("/jobs", durable="billing", **options) as stream:
                assert await read(stream, 1) == [(2, 1)]

    run(scenario)


def test_what_cannot_be_published_as_a_dead_letter_comes_again() -> None:
    """Its broker is away when the reader leaves, so that the next reader gives it up."""

    async def scenario(net: TestNetwork) -> None:
        options: dict[str, Any] = {"max_deliveries": 1, "dead_letter": "/dead"}
        async with net.connect("b0") as other, other.subscribe("/dead") as dead:
            async with net.connect("b1") as bus:
                with suppress(KeyError):
                    async with bus.subscribe("/jobs", durable="billing", **options) as stream:
                        await publish(bus, 1)
                        async for _ in stream:
                            net.crash("b1")
                            raise KeyError
            net.restart("b1")
            await publish(other, 2)
            async with net.connect("b1") as bus:
                async with bus.subscribe("/jobs", durable="billing", **options) as stream:
                    assert await read(stream, 1) == [(2, 1)]
            assert (await dead.get(30)).attributes["n"] == 1

    run(scenario)


def test_a_batch_has_nothing_that_was_delivered_too_often() -> None:
    async def scenario(net: TestNetwork) -> None:
        async with net.connect("b1") as bus, bus.subscribe("/dead") as dead:
            options = {"durable": "billing", "ack": "manual", "max_deliveries": 1, "dead_letter": "/dead"}
            async with bus.subscribe("/jobs", **options) as stream:  # type: ignore[arg-type]
                await publish(bus, 1, 2, 3)
                await asyncio.sleep(1)
                await (await stream.get(30)).nack()
                await asyncio.sleep(1)  # it waits behind the others now
                async for batch in stream.batches(10, 0.5):
                    assert [event.attributes["n"] for event in batch] == [2, 3]
                    break
                assert (await dead.get(30)).attributes["n"] == 1

    run(scenario)


@pytest.mark.parametrize("order", ["none", "fifo"])
def test_without_a_dead_letter_it_is_set_aside_or_ends_the_order(order: Any) -> None:
    async def scenario(net: TestNetwork) -> None:
        async with net.connect("b1") as bus:
            options = {"durable": "billing", "ack": "manual", "max_deliveries": 1, "order": order}
            async with bus.subscribe("/jobs", **options) as stream:
                await publish(bus, 1)
                await (await stream.get(30)).nack()
                if order == "fifo":
                    with pytest.raises(
                        DeliveriesExhausted, match="'billing' was delivered once and never ack"
                    ):
                        await stream.get(5)
                    await stream.cancel()  # as the error says
                    return
                with pytest.raises(TimeoutError):
                    await stream.get(5)
                (share,) = (await bus.status())["durable"]
                assert share["set_aside"] == stream.set_aside == 1
                (aside,) = await bus.set_aside("billing")
                assert (aside.attempts, aside.event.attributes["n"]) == (1, 1)
                assert await bus.release("billing", [aside.number]) == 1
                again = await stream.get(30)
                assert (again.attempt, again.redelivered) == (2, True)
                await again.nack()
                with pytest.raises(TimeoutError):
                    await stream.get(5)
                (aside,) = await bus.set_aside("billing")
                assert aside.attempts == 2
                assert await bus.drop_aside("billing", [aside.number]) == 1
                assert await bus.set_aside("billing") == []

    run(scenario)


def test_a_released_event_is_marked_and_its_deliveries_are_limited_anew() -> None:
    """Whether its home restarts, its client is far away, or it moves there while the client has the event."""

    async def scenario(net: TestNetwork) -> None:
        options: dict[str, Any] = {"durable": "billing", "ack": "manual", "max_deliveries": 2}
        attempts = 0
        for broker in ("b1", "b1", "b2", "b0"):
            async with net.connect(broker) as bus:
                async with bus.subscribe("/jobs", **options) as stream:
                    if not attempts:
                        await publish(bus, 1)
                    for wait_s in (10, 0):
                        event = await stream.get(30)
                        attempts += 1
                        assert (event.attempt, event.redelivered) == (attempts, attempts > 1)
                        await asyncio.sleep(wait_s)
                        await event.nack()
                    with pytest.raises(TimeoutError):
                        await stream.get(5)
                (share,) = await bus.durable_subscriptions()
                assert share["broker"] == broker
                (aside,) = await bus.set_aside("billing")
                assert aside.attempts == attempts
                assert await bus.release("billing", [aside.number]) == 1
            if broker == "b1":
                net.crash("b1")
                net.restart("b1")

    run(scenario)


def test_a_lease_ends_a_subscription_that_nobody_holds() -> None:
    async def scenario(net: TestNetwork) -> None:
        async with net.connect("b1") as bus:
            async with bus.subscribe("/jobs", durable="billing", keep_for=60):
                await asyncio.sleep(100)
            await asyncio.sleep(50)
            assert len((await bus.status())["durable"]) == 1
            await asyncio.sleep(20)
            assert (await bus.status())["durable"] == []

    run(scenario)


def test_a_lease_counts_anew_after_a_restart_and_leaves_time_to_return() -> None:
    async def scenario(net: TestNetwork) -> None:
        async with net.connect("b1") as bus:
            async with bus.subscribe("/jobs", durable="billing", keep_for=2):
                net.crash("b1")
                await asyncio.sleep(20)
                net.restart("b1")
                await asyncio.sleep(8)
                assert [row["attached"] != [] for row in await bus.durable_subscriptions()] == [True]
            net.crash("b1")
            net.restart("b1")
            await asyncio.sleep(8)
            (row,) = await bus.durable_subscriptions()
            assert 0 < float(row["lease_left_s"]) < 3, "ten seconds"
            await asyncio.sleep(5)
            assert await bus.durable_subscriptions() == []

    run(scenario)


def test_whoever_attaches_may_change_the_lease() -> None:
    async def scenario(net: TestNetwork) -> None:
        async def lease_left_s() -> float:
            (row,) = await bus.durable_subscriptions()
            return float(row["lease_left_s"])

        async with net.connect("b1") as bus:
            async with bus.subscribe("/jobs", durable="billing", keep_for=3_600):
                pass
            async with bus.subscribe("/jobs", durable="billing"):
                assert await lease_left_s() == 3_600
            async with bus.subscribe("/jobs", durable="billing", keep_for=60):
                assert await lease_left_s() == 60
            net.crash("b1")
            net.restart("b1")
            await asyncio.sleep(1)
            assert 50 < await lease_left_s() <= 60
            await asyncio.sleep(70)
            assert await bus.durable_subscriptions() == []

    run(scenario)


def test_many_subscriptions_are_all_listed() -> None:
    """In pages, each of them with as much as its broker knows."""

    async def scenario(net: TestNetwork) -> None:
        async with net.connect("b0") as one, net.connect("b2") as two:
            for number in range(260):
                bus = two if number % 2 else one
                async with bus.subscribe("/jobs", durable=f"d{number:03}", where=f"x > {number}"):
                    pass
            rows, again = await asyncio.gather(two.durable_subscriptions(), two.durable_subscriptions())
            assert [row["name"] for row in rows] == [f"d{number:03}" for number in range(260)]
            assert [row["broker"] for row in rows] == ["b0", "b2"] * 130
            assert [row["filter"] for row in rows] == [f"x > {number}" for number in range(260)]
            assert [row["name"] for row in again] == [row["name"] for row in rows]
            status = await one.status()
            assert (status["durable_count"], len(status["durable"])) == (130, 100)

    run(scenario)


def test_a_page_of_large_filters_is_shorter() -> None:
    async def scenario(net: TestNetwork) -> None:
        async with net.connect("b0") as bus:
            for number in range(30):
                where = f"x = '{number}{'a' * 15_000}'"
                async with bus.subscribe("/jobs", durable=f"d{number:02}", where=where):
                    pass
            rows = await bus.durable_subscriptions()
            assert [row["name"] for row in rows] == [f"d{number:02}" for number in range(30)]

    run(scenario)


def test_all_subscriptions_of_the_network_are_listed_at_every_broker() -> None:
    async def scenario(net: TestNetwork) -> None:
        async with net.connect("b0") as one, net.connect("b2") as two, net.connect("b1") as other:
            async with one.subscribe("/jobs", durable="billing"), two.subscribe("/jobs", group="workers"):
                pass
            await publish(other, 1, 2)
            await asyncio.sleep(1)
            for bus in (one, two, other):
                rows = await bus.durable_subscriptions()
                assert [(row["name"], row["broker"], row["waiting"]) for row in rows] == [
                    ("billing", "b0", 2),
                    ("workers", "b2", 2),
                ]
            net.crash("b2")
            await asyncio.sleep(10)
            near, far = await other.durable_subscriptions()
            assert near["waiting"] == 2
            assert far == {"name": "workers", "broker": "b2"}

    run(scenario)


def test_each_event_of_a_group_goes_to_one_member() -> None:
    async def scenario(net: TestNetwork) -> None:
        async with net.connect("b0") as far, net.connect("b1") as one, net.connect("b1") as two:
            async with (
                one.subscribe("/jobs", group="workers", ack="manual") as first,
                two.subscribe("/jobs", group="workers", ack="manual") as second,
            ):
                await publish(far, *range(10))
                mine = [await first.get(30) for _ in range(len(first))]
                others = [await second.get(30) for _ in range(10 - len(mine))]
                assert mine and others
                seen = sorted(event.attributes["n"] for event in (*mine, *others))
                assert seen == list(range(10))
                await others[0].ack()
                await two.close()  # what it held goes to the other
                again = await read(first, len(others) - 1)
                assert [number for number, _ in again] == [event.attributes["n"] for event in others[1:]]
                assert {attempt for _, attempt in again} == {2}

    run(scenario)


def test_a_group_has_members_at_several_brokers() -> None:
    async def scenario(net: TestNetwork) -> None:
        async with (
            net.connect("b1") as source,
            net.connect("b0") as one,
            net.connect("b2") as two,
            net.connect("b2") as three,
        ):
            members: list[Any] = []
            for bus in (one, two, three):
                members.append(await bus.subscribe("/jobs", group="workers", ack="manual").__aenter__())
            await publish(source, *range(12))
            got = [[await stream.get(30) for _ in range(4)] for stream in members]
            assert sorted(event.attributes["n"] for events in got for event in events) == list(range(12))
            for event in got[1]:
                await event.ack()
            net.crash("b2")  # its members go with it; what they held goes to the other
            again = await read(members[0], 4)
            assert sorted(number for number, _ in again) == sorted(event.attributes["n"] for event in got[2])
            assert {attempt for _, attempt in again} == {2}
            net.restart("b2")
            with pytest.raises(NotHeld):
                await got[2][0].ack()

    run(scenario)


def test_a_home_that_cannot_be_reached_is_named_as_uncovered() -> None:
    async def scenario(net: TestNetwork) -> None:
        async with net.connect("b0") as here, net.connect("b2") as there:
            async with here.subscribe("/jobs", durable="billing"):
                pass
            await publish(there, 1)
            net.crash("b0")
            async with there.subscribe("/jobs", durable="billing") as stream:
                assert stream.uncovered == ("b0",)
                net.restart("b0")
                assert await read(stream, 1) == [(1, 1)]
                assert stream.uncovered == ()

    run(scenario)


@pytest.mark.parametrize("topics", [(), ("/**",), ("/*/**", "/jobs"), ("/*/*", "/*")])
def test_who_takes_everything_shares_it_too(topics: tuple[str, ...]) -> None:
    """The name of a group is among its topics: a wildcard must not take its place."""

    async def scenario(net: TestNetwork) -> None:
        async with net.connect("b1") as one, net.connect("b2") as two:
            async with (
                one.subscribe(*topics, group="all") as first,
                two.subscribe(*topics, group="all") as second,
            ):
                await publish(one, *range(10), topic="/jobs/all")
                await asyncio.sleep(1)
                assert len(first) + len(second) == 10
            async with one.subscribe(*topics, durable="audit"):
                with pytest.raises(SubscriptionRefused, match="'audit' is held by client"):
                    await two.subscribe(*topics, durable="audit").__aenter__()
            assert [each["name"] for each in await two.durable_subscriptions()] == ["all", "audit"]
            with pytest.raises(NoResponder):
                await one.request("/price", timeout=5)

    run(scenario)


def test_a_group_keeps_equal_values_together_and_waits_without_members() -> None:
    async def scenario(net: TestNetwork) -> None:
        async with net.connect("b1") as one, net.connect("b1") as two:
            async with one.subscribe("/jobs", group="workers", group_by="key"):
                pass
            await publish(one, *range(12))
            async with (
                one.subscribe("/jobs", group="workers", group_by="key", ack="manual") as first,
                two.subscribe("/jobs", group="workers", group_by="key", ack="manual") as second,
            ):
                await publish(one, *range(12, 24))
                seen: list[list[int]] = []
                for stream in (first, second):
                    seen.append([(await stream.get(30)).attributes["n"] for _ in range(len(stream))])
                assert sorted(seen[0] + seen[1]) == list(range(24))
                assert {number % 3 for number in seen[0]}.isdisjoint({number % 3 for number in seen[1]})
                assert all(numbers == sorted(numbers) for numbers in seen)

    run(scenario)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"durable": "a", "group": "b"}, "durable or a member of a group"),
        ({"durable": "no spaces"}, "name 'no spaces' must have"),
        ({"durable": "a", "keep_for": 0}, "keep_for must be a positive duration .* not 0"),
        ({"durable": "a", "keep_for": timedelta(0)}, "keep_for must be"),
        ({"durable": "a", "keep_for": -1}, "keep_for must be"),
        ({"durable": "a", "keep_for": 1e10}, "keep_for must be"),
        ({"durable": "a", "keep_for": float("nan")}, "keep_for must be"),
        ({"durable": "a", "keep_for": True}, "keep_for must be"),
        ({"durable": "a", "max_unacked": True}, "max_unacked must be"),
        ({"durable": "a", "max_deliveries": True}, "max_deliveries must be"),
        ({"keep_for": 0}, "keep_for needs durable= or group="),
        ({"max_unacked": 5}, "max_unacked needs durable= or group="),
        ({"max_deliveries": 0}, "max_deliveries needs durable= or group="),
        ({"group_by": ""}, "group_by needs group="),
        ({"group": "a", "group_by": ""}, "group_by must be the name of an attribute, not ''"),
        ({"group": "a", "group_by": 7}, "group_by must be the name of an attribute, not 7"),
        ({"takeover": True}, "takeover needs durable="),
        ({"group": "a", "takeover": True}, "takeover needs durable="),
        ({"durable": "a", "max_unacked": 0}, "max_unacked must be"),
        ({"durable": "a", "max_unacked": 10**18}, "max_unacked must be between 1 and 1,000,000, not 10000"),
        ({"group": "a", "group_by": "x" * 257}, "group_by must have at most 256 characters, not 257"),
        ({"group": "a", "group_by": "\ud800"}, "group_by must be a text that can be sent"),
        ({"durable": "x" * 65}, "name 'xxx.* must have"),
        ({"durable": "a", "start": 10**30}, "is not one of an archive: they start at 0"),
        ({"durable": "a", "start": -1}, "is not one of an archive: they start at 0"),
        ({"durable": "a", "max_deliveries": 3, "dead_letter": "/jobs"}, "'/jobs' is among .* own topics"),
        ({"durable": "a", "dead_letter": "/dead"}, "dead_letter needs max_deliveries"),
        ({"group": "a", "order": "total"}, "order 'total' is not available for a group"),
        ({"ack": "manual"}, "ack needs durable= or group="),
        ({"durable": "a", "ack": "never"}, 'ack must be "auto" or "manual"'),
        ({"durable": "a", "group_by": "key"}, "group_by needs group="),
    ],
)
def test_options_that_do_not_fit_are_refused(options: dict[str, Any], told: str) -> None:
    async def scenario(net: TestNetwork) -> None:
        async with net.connect("b1") as bus:
            with pytest.raises(ValueError, match=told):
                bus.subscribe("/jobs", **options)
            with pytest.raises(TopicError, match=r"dead_letter: topic '/d/\*' has a wildcard"):
                bus.subscribe("/jobs", durable="a", max_deliveries=3, dead_letter="/d/*")

    run(scenario)


def test_other_networks_refuse_durable_subscriptions() -> None:
    async def scenario(net: TestNetwork) -> None:
        async with net.connect("b0") as bus, bus.subscribe("/jobs") as plain:
            with pytest.raises(SubscriptionRefused, match="guaranteed"):
                await bus.subscribe("/jobs", durable="billing").__aenter__()
            await publish(bus, 1)
            with pytest.raises(NotHeld, match="durable"):
                await (await plain.get(30)).ack()

    simulate(scenario, brokers=1)


def test_what_was_held_of_a_lost_group_does_not_count_for_its_successor() -> None:
    """The home loses its disk, and the new group gives the old numbers out again, while a member hears of nothing."""

    async def scenario(net: TestNetwork) -> None:
        async with (
            net.connect("b0") as here,
            net.connect("b2", name="far") as there,
            net.connect("b1") as source,
        ):
            async with here.subscribe("/jobs", group="workers"):
                pass
            async with there.subscribe("/jobs", group="workers", ack="manual") as stream:
                await publish(source, 1)
                old = await stream.get(30)
                net._network.pause("far")
                net.crash("b0", keep_state=False)
                net.restart("b0")
                with suppress(RuntimeError):
                    async with here.subscribe("/jobs", group="workers") as other:
                        await publish(source, 2)
                        assert await read(other, 1) == [(2, 1)]
                        raise RuntimeError
                net._network.resume("far")
                (new,) = await read(stream, 1)
                assert new == (2, 2)
                with pytest.raises(NotHeld, match="lost"):
                    await old.ack()
            async with here.subscribe("/jobs", group="workers") as other:
                assert await read(other, 1) == [(2, 3)]

    run(scenario)


def test_an_acknowledgement_that_a_lost_subscription_never_heard_of_is_refused() -> None:
    async def scenario(net: TestNetwork) -> None:
        async with net.connect("b0") as reader, net.connect("b2") as source:
            async with reader.subscribe("/jobs", durable="billing", ack="manual") as stream:
                await publish(source, 1)
                old = await stream.get(30)
                net.crash("b0", keep_state=False)
                acknowledged = asyncio.ensure_future(old.ack())
                await asyncio.sleep(1)
                net.restart("b0")
                with pytest.raises(NotHeld, match="lost"):
                    await acknowledged
                await publish(source, 2)
                assert await read(stream, 1) == [(2, 1)]

    run(scenario)
