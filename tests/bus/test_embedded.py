"""The event service as applications use it, over a whole network in the process."""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

import tidings
from tidings.bus import host as host_module
from tidings.core.events.event import MAX_ATTRIBUTES, MAX_EVENT_BYTES

Scenario = Callable[[Any], Awaitable[None]]


def run(scenario: Scenario, **options: Any) -> None:
    """Runs the scenario with an embedded network; nothing in it may take long."""

    async def main() -> None:
        async with asyncio.timeout(20), tidings.embedded(**options) as bus:
            await scenario(bus)

    asyncio.run(main())


async def drain(stream: tidings.Stream) -> list[tidings.Event]:
    """What has come, once nothing more is on its way."""
    await asyncio.sleep(0.02)
    return [await stream.get() for _ in range(len(stream))]


# --- Publishing and subscribing


@pytest.mark.parametrize("shape", ["tree", "random", "chain", "star"])
def test_an_event_comes_to_those_who_asked_for_it(shape: str) -> None:
    async def scenario(bus: tidings.EventService) -> None:
        async with bus.connect() as other:  # type: ignore[attr-defined]
            async with (
                other.subscribe("/news/**", where="size > 10") as big,
                bus.subscribe("/news/*", where=tidings.col("size") <= 10) as small,
                bus.subscribe() as everything,
            ):
                event_id = await bus.publish("/news/bbc", {"size": 12, "live": True}, b"oil")
                await other.publish("/news/cnn", {"size": 3})
                await other.publish("/news", {"size": 30})
                [first, third] = await drain(big)
                [second] = await drain(small)
                assert (first.id, first.topic, first.payload) == (event_id, "/news/bbc", b"oil")
                assert first.attributes == {"size": 12, "live": True}
                assert not first.out_of_order
                assert (second.topic, third.topic) == ("/news/cnn", "/news")
                assert len(await drain(everything)) == 3

    run(scenario, brokers=6, shape=shape)


def test_filters_may_be_text_or_built_or_ready_made() -> None:
    async def scenario(bus: tidings.EventService) -> None:
        wheres = ["a = 1 AND b LIKE 'x%'", (tidings.col("a") == 1) & tidings.col("b").like("x%")]
        for where in [*wheres, tidings.Filter("a = 1 AND b LIKE 'x%'")]:
            async with bus.subscribe("/t", where=where) as stream:
                await bus.publish("/t", {"a": 1, "b": "xyz"})
                await bus.publish("/t", {"a": 1, "b": "zyx"})
                await bus.publish("/t", {"a": 1})
                assert [event.attributes["b"] for event in await drain(stream)] == ["xyz"]

    run(scenario)


def test_async_for_gives_the_events_in_order_until_the_block_ends() -> None:
    async def scenario(bus: tidings.EventService) -> None:
        seen: list[object] = []

        async def read(stream: tidings.Stream) -> None:
            async for event in stream:
                seen.append(event.attributes["n"])

        async with bus.subscribe("/t", order="fifo") as stream:
            reader = asyncio.create_task(read(stream))
            assert await bus.publish_many(("/t", {"n": number}, b"") for number in range(100)) == 100
            await asyncio.sleep(0.02)
        await reader
        assert seen == list(range(100))

    run(scenario)


def test_what_is_unsubscribed_gets_nothing_more_and_leaves_nothing_behind() -> None:
    async def scenario(bus: Any) -> None:
        async with bus.subscribe("/t") as stream:
            pass
        await bus.publish("/t")
        assert await drain(stream) == []
        assert [bus.network.status(broker)["interests"] for broker in bus.network.brokers] == [0] * 5

    run(scenario)


def test_many_publications_share_the_room_for_unconfirmed_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_module, "MAX_UNCONFIRMED", 8)

    async def scenario(bus: tidings.EventService) -> None:
        async with bus.subscribe("/t") as stream:
            counts = await asyncio.gather(
                bus.publish_many(("/t", {}, b"") for _ in range(50)),
                *(bus.publish("/t") for _ in range(50)),
            )
            assert counts[0] == 50
            events = await drain(stream)
            assert len(events) == len({event.id for event in events}) == 100

    run(scenario)


def test_a_client_may_have_a_name() -> None:
    async def scenario(bus: Any) -> None:
        async with bus.connect("b1", name="me") as me, bus.subscribe() as stream:
            await me.publish("/t")
            assert (await stream.get(1.0)).source == "me"
            with pytest.raises(tidings.ConnectionFailed, match="'me' is already in use"):
                await bus.connect("b2", name="me").open()
        async with bus.connect("b2", name="me"):
            pass

    run(scenario)


# --- Slow readers


def test_a_slow_reader_loses_its_own_events_and_nobody_elses(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(bus: tidings.EventService) -> None:
        async with bus.subscribe("/t", buffer_events=3) as slow, bus.subscribe("/t") as quick:
            await bus.publish_many(("/t", {"n": number}, b"") for number in range(10))
            assert len(await drain(quick)) == 10
            assert slow.dropped == 7
            assert [event.attributes["n"] for event in await drain(slow)] == [0, 1, 2]
            await bus.publish("/t", {"n": 10})
            assert (await slow.get(1.0)).attributes["n"] == 10
            assert quick.dropped == 0

    with caplog.at_level(logging.WARNING, logger="tidings"):
        run(scenario)
    assert len([record for record in caplog.records if "reader too slow" in record.message]) == 1


# --- Mistakes


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (("news",), tidings.TopicError),
        (("/news/*",), tidings.TopicError),
        (("/t", {"x": [1]}), tidings.AttributeValueError),
        (("/t", {"x": 2**63}), tidings.AttributeValueError),
        (("/t", {"": 1}), tidings.AttributeValueError),
        (("/t", {"topic": "/u"}), tidings.AttributeValueError),
        (("/t", {f"x{number}": 1 for number in range(MAX_ATTRIBUTES + 1)}), tidings.AttributeValueError),
        (("/t", {}, object()), tidings.PayloadError),
        (("/t", {}, bytes(MAX_EVENT_BYTES)), tidings.AttributeValueError),
    ],
)
def test_what_cannot_be_published_is_refused_at_once(
    arguments: tuple[Any, ...], error: type[Exception]
) -> None:
    async def scenario(bus: tidings.EventService) -> None:
        with pytest.raises(error):
            await bus.publish(*arguments)
        with pytest.raises(error):
            await bus.publish_many([(*arguments, *({}, b"")[len(arguments) - 1 :])])
        async with bus.subscribe() as stream:
            await bus.publish("/t", {"x": 1})
            assert [event.attributes for event in await drain(stream)] == [{"x": 1}]

    run(scenario)


@pytest.mark.parametrize(
    ("topics", "options", "error", "words"),
    [
        (("news",), {}, tidings.TopicError, "must start with"),
        (("/a/**/b",), {}, tidings.TopicError, "only be at the end"),
        ((), {"where": "size >"}, tidings.FilterError, "size >"),
        ((), {"where": 7}, tidings.FilterError, "int"),
        ((), {"order": "odd"}, ValueError, "none, fifo, causal, total"),
        ((), {"buffer_events": 0}, ValueError, "buffer_events"),
    ],
)
def test_what_cannot_be_subscribed_shows_where_it_is_written(
    topics: tuple[str, ...], options: dict[str, Any], error: type[Exception], words: str
) -> None:
    async def scenario(bus: tidings.EventService) -> None:
        with pytest.raises(error, match=words.replace("*", r"\*")):
            bus.subscribe(*topics, **options)

    run(scenario, brokers=1)


def test_an_order_that_the_network_does_not_keep_is_refused() -> None:
    async def scenario(bus: tidings.EventService) -> None:
        with pytest.raises(tidings.SubscriptionRefused, match="total order, not causal"):
            async with bus.subscribe("/t", order="causal"):
                pass
        with pytest.raises(tidings.SubscriptionRefused, match=r"/u: .* ordered topics: /t"):
            async with bus.subscribe("/u", order="total"):
                pass

    run(scenario, brokers=1, order_topics=["/t"], causal=False)


def test_a_stream_is_used_once() -> None:
    async def scenario(bus: tidings.EventService) -> None:
        async with bus.subscribe("/t") as stream:
            with pytest.raises(ValueError, match="once"):
                await stream.__aenter__()
            await bus.publish("/t")
            assert len(await drain(stream)) == 1, "the first use goes on"
        with pytest.raises(ValueError, match="once"):
            await stream.__aenter__()

    run(scenario)


@pytest.mark.parametrize("arguments", [{"brokers": 0}, {"shape": "ring"}])
def test_an_impossible_network_is_refused(arguments: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        tidings.embedded(**arguments)


def test_a_service_of_later_says_that_it_is_not_yet_available() -> None:
    with pytest.raises(tidings.NotYetAvailable, match="peers:// is not yet available; available: tidings://"):
        tidings.connect("peers://127.0.0.1")
    with pytest.raises(
        tidings.NotYetAvailable, match='"peers" is not yet available; available: "best-effort"'
    ):
        tidings.embedded(mode="peers")
    with pytest.raises(ValueError, match="mode 'pears' is not one of best-effort"):
        tidings.embedded(mode="pears")  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["SortedSet", "StrongBag", "StrongSet", "WeakBag", "WeakSet"])
def test_a_collection_says_that_it_is_not_yet_available(name: str) -> None:
    assert not hasattr(tidings, name)
    with pytest.raises(AttributeError, match=f"{name}: the collections are not yet available"):
        getattr(tidings, name)
    with pytest.raises(AttributeError, match="has no attribute 'SortedSte'"):
        tidings.SortedSte  # noqa: B018


@pytest.mark.parametrize("url", ["", "127.0.0.1:7400", "http://127.0.0.1", "://x"])
def test_what_is_no_broker_is_refused(url: str) -> None:
    with pytest.raises(tidings.ConnectionFailed, match="tidings://"):
        tidings.connect(url)


def test_an_unknown_broker_is_named_with_the_known_ones() -> None:
    async def scenario(bus: Any) -> None:
        with pytest.raises(tidings.ConnectionFailed, match="'b9'; the brokers are b0, b1"):
            bus.connect("b9")

    run(scenario, brokers=2)


# --- Opening and closing


def test_a_bus_that_is_not_open_says_so() -> None:
    async def main() -> None:
        network = tidings.embedded()
        other = network.connect()
        for bus in (network, other):
            with pytest.raises(tidings.ConnectionFailed, match="not open"):
                await bus.publish("/t")
            with pytest.raises(tidings.ConnectionFailed, match="not open"):
                await bus.publish_many([])
            with pytest.raises(tidings.ConnectionFailed, match="not open"):
                await bus.status()
            with pytest.raises(tidings.ConnectionFailed, match="not open"):
                async with bus.subscribe("/t"):
                    pass
        with pytest.raises(tidings.ConnectionFailed, match="not open"):
            await other.open()
        async with network:
            with pytest.raises(tidings.ConnectionFailed, match="already open"):
                await network.open()
        await network.close()

    asyncio.run(main())


def test_a_network_can_be_opened_again() -> None:
    async def main() -> None:
        network = tidings.embedded(brokers=2)
        for _ in range(2):
            async with network, network.subscribe("/t") as stream:
                await network.publish("/t")
                assert len(await drain(stream)) == 1

    asyncio.run(main())


def test_who_waits_when_the_bus_is_closed_is_told() -> None:
    async def main() -> None:
        async with asyncio.timeout(10):
            network = tidings.embedded(brokers=2)
            await network.open()
            stream = network.subscribe("/t")
            await stream.__aenter__()
            readers = [asyncio.create_task(stream.get()), asyncio.create_task(anext(network.subscribe("/t")))]
            readers.pop().cancel()
            await asyncio.sleep(0.01)
            await network.close()
            with pytest.raises(tidings.ConnectionFailed, match="closed"):
                await readers[0]

    asyncio.run(main())


def test_an_event_that_waits_is_still_given_after_the_bus_is_closed() -> None:
    async def main() -> None:
        async with asyncio.timeout(10):
            network = tidings.embedded(brokers=2)
            await network.open()
            stream = network.subscribe("/t")
            await stream.__aenter__()
            await network.publish("/t")
            await asyncio.sleep(0.01)
            await network.close()
            assert (await stream.get()).topic == "/t"
            with pytest.raises(tidings.ConnectionFailed):
                await stream.get()
            await stream.__aexit__(None, None, None)

    asyncio.run(main())


def test_publications_that_are_not_confirmed_when_the_bus_closes_fail() -> None:
    async def main() -> None:
        async with asyncio.timeout(10):
            network = tidings.embedded(brokers=2)
            await network.open()
            publishing = [asyncio.create_task(network.publish("/t")) for _ in range(3)]
            await asyncio.sleep(0)
            await network.close()
            results = await asyncio.gather(*publishing, return_exceptions=True)
            assert [type(result) for result in results] == [tidings.NotConfirmed] * 3

    asyncio.run(main())


def test_a_subscription_given_up_while_it_is_asked_for_leaves_nothing_at_the_broker() -> None:
    async def scenario(bus: Any) -> None:
        asking = asyncio.create_task(bus.subscribe("/t").__aenter__())
        await asyncio.sleep(0)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        await asyncio.sleep(0.02)
        assert (await bus.status())["subscriptions"] == 0

    run(scenario)


def test_get_waits_no_longer_than_asked() -> None:
    async def scenario(bus: tidings.EventService) -> None:
        async with bus.subscribe("/t") as stream:
            with pytest.raises(TimeoutError):
                await stream.get(0.01)
            await bus.publish("/t")
            assert (await stream.get(1.0)).topic == "/t"

    run(scenario, brokers=1)


def test_the_status_of_the_broker() -> None:
    async def scenario(bus: tidings.EventService) -> None:
        async with bus.subscribe("/t"), bus.subscribe("/u"):
            first, second = await asyncio.gather(bus.status(), bus.status())
            assert first == second
            assert (first["broker"], first["mode"], first["subscriptions"]) == ("b0", "best-effort", 2)
            assert first["neighbours"].keys() == {"b1"}

    run(scenario, brokers=2)


def test_the_embedded_network_needs_no_data_libraries() -> None:
    code = "import sys, tidings; tidings.embedded(); print(*sorted(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert not {"pyspark", "pyarrow", "numpy", "scipy"} & set(done.stdout.split())
