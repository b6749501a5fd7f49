"""`tidings.testing.simulate`: an application's own code under faults, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

import tidings
from tidings.testing import TestNetwork, simulate


def test_time_is_virtual_and_passes_only_while_all_wait() -> None:
    async def scenario(net: TestNetwork) -> tuple[float, float]:
        loop = asyncio.get_running_loop()
        before, before_s = loop.time(), net.now_s
        await asyncio.sleep(3_600)
        return loop.time() - before, net.now_s - before_s

    assert simulate(scenario) == (pytest.approx(3_600), pytest.approx(3_600))


def test_events_take_the_delay_of_the_links_they_pass() -> None:
    async def scenario(net: TestNetwork) -> float:
        async with net.connect("b0") as near, net.connect("b4") as far, far.subscribe("/t") as stream:
            before = net.now_s
            await near.publish("/t", {"x": 1})
            assert net.now_s == before, "the broker beside a client confirms at once"
            await stream.get()
            return net.now_s - before

    assert simulate(scenario, brokers=5, delay_ms=50) == pytest.approx(0.1)


def test_a_crashed_broker_loses_what_passes_and_routes_again_when_it_is_back() -> None:
    async def scenario(net: TestNetwork) -> list[object]:
        async with net.connect("b0") as near, net.connect("b4") as far, far.subscribe("/t") as stream:
            for number in range(30):
                if number == 10:
                    net.crash("b1", keep_state=False)
                if number == 20:
                    net.restart("b1")
                await near.publish("/t", {"n": number})
                await asyncio.sleep(1.0)
            return [(await stream.get()).attributes["n"] for _ in range(len(stream))]

    assert simulate(scenario, brokers=5) == [*range(10), *range(21, 30)]


def test_cut_and_heal_a_link() -> None:
    async def scenario(net: TestNetwork) -> list[object]:
        async with net.connect("b0") as near, net.connect("b1") as far, far.subscribe("/t") as stream:
            net.cut("b1", "b0")
            net.cut("b0", "b1")
            await near.publish("/t", {"n": 0})
            await asyncio.sleep(1)
            net.heal("b0", "b1")
            net.heal("b0", "b1")
            await near.publish("/t", {"n": 1})
            await asyncio.sleep(1)
            return [(await stream.get()).attributes["n"] for _ in range(len(stream))]

    assert simulate(scenario, brokers=2) == [1]


def test_a_paused_broker_goes_on_where_it_stopped() -> None:
    async def scenario(net: TestNetwork) -> float:
        async with net.connect("b0") as near, net.connect("b1") as far, far.subscribe("/t") as stream:
            net.pause("b1")
            await near.publish("/t")
            await asyncio.sleep(10)
            assert len(stream) == 0
            net.resume("b1")
            return (await stream.get(1.0)).published_at / 1e9 - net.now_s

    assert simulate(scenario, brokers=2) == pytest.approx(-10.0)


def test_a_subscription_waits_until_the_whole_network_routes_to_it() -> None:
    async def scenario(net: TestNetwork) -> None:
        await asyncio.sleep(10)
        net.crash("b1")
        async with net.connect("b0") as bus:
            before = net.now_s
            with pytest.raises(tidings.SubscriptionRefused, match="30 s"):
                async with bus.subscribe("/t"):
                    pass
            assert net.now_s - before == pytest.approx(30)
            net.restart("b1")
            async with bus.subscribe("/t"):
                assert (await bus.status())["subscriptions"] == 1

    simulate(scenario, brokers=2)


def test_who_publishes_at_a_broker_that_is_down_is_told_so() -> None:
    async def scenario(net: TestNetwork) -> None:
        async with net.connect("b1") as bus, bus.subscribe("/t") as stream:
            publishing = asyncio.create_task(bus.publish("/t"))
            await asyncio.sleep(0)
            net.crash("b1")
            with pytest.raises(tidings.NotConfirmed, match="lost"):
                await publishing
            with pytest.raises(tidings.NotConfirmed, match="no connection"):
                await bus.publish("/t")
            with pytest.raises(tidings.NotConfirmed, match="2 of 2"):
                await bus.publish_many([("/t", {}, b"")] * 2)
            with pytest.raises(tidings.ConnectionFailed, match="down"):
                await net.connect("b1").open()
            net.restart("b1")
            await asyncio.sleep(5)
            await bus.publish("/t", {"n": 1})
            assert (await stream.get(1.0)).attributes == {"n": 1}

    simulate(scenario, brokers=3)


def chatter(loss: float, seed: int) -> list[tuple[float, object]]:
    async def scenario(net: TestNetwork) -> list[tuple[float, object]]:
        async with net.connect("b0") as near, net.connect("b4") as far, far.subscribe("/t") as stream:
            for number in range(40):
                await near.publish("/t", {"n": number})
                await asyncio.sleep(0.1)
            return [(net.now_s, (await stream.get()).attributes["n"]) for _ in range(len(stream))]

    return simulate(scenario, seed=seed, loss=loss, duplicate=0.1)


def test_one_seed_is_one_run() -> None:
    first = chatter(0.2, 7)
    assert first == chatter(0.2, 7)
    assert first != chatter(0.2, 8)
    assert 10 < len(first) < 40
    assert len(chatter(0.0, 7)) == 40


@pytest.mark.parametrize("crash_first", [False, True])
def test_a_test_that_would_never_end_says_so(crash_first: bool) -> None:
    """Also when brokers go on trying to reach one that is down."""

    async def scenario(net: TestNetwork) -> None:
        async with net.connect("b0") as bus, bus.subscribe("/t") as stream:
            if crash_first:
                net.crash("b1")
                asking = asyncio.create_task(bus.subscribe("/u").__aenter__())
                await asyncio.sleep(1)
                assert not asking.done()
                await asyncio.wait([asking])
                assert isinstance(asking.exception(), tidings.SubscriptionRefused)
            await stream.get()

    with pytest.raises(RuntimeError, match="deadlock"):
        simulate(scenario, brokers=2)


@pytest.mark.parametrize(
    ("mistake", "words"),
    [
        (lambda net: net.crash("b9"), "no broker 'b9'"),
        (lambda net: net.cut("b0", "b9"), "no broker 'b9'"),
        (lambda net: net.restart("b0"), "'b0' is up"),
        (lambda net: net.resume("b0"), "not paused"),
        (lambda net: [net.crash("b0"), net.crash("b0")], "'b0' is down"),
        (lambda net: [net.pause("b0"), net.pause("b0")], "is paused"),
    ],
)
def test_a_mistake_of_the_test_shows_where_it_is_made(
    mistake: Callable[[TestNetwork], Any], words: str
) -> None:
    async def scenario(net: TestNetwork) -> None:
        mistake(net)

    with pytest.raises(ValueError, match=words):
        simulate(scenario, brokers=2)


@pytest.mark.parametrize("order", ["none", "total"])
@pytest.mark.parametrize("mode", ["best-effort", "guaranteed", "epidemic"])
def test_a_name_is_free_again_when_its_client_has_left_or_crashed(mode: Any, order: Any) -> None:
    async def scenario(net: TestNetwork) -> None:
        sources = set()
        async with net.connect("b2") as reader, reader.subscribe("/t", order=order) as seen:
            for number, broker in enumerate(("b0", "b1", "b0")):
                async with net.connect(broker, name="me") as client:
                    async with client.subscribe("/t", order=order) as own:
                        event_id = await client.publish("/t", {"n": number})
                        assert (await own.get(30)).attributes["n"] == number
                        if number:
                            net.crash("me")
                assert (await seen.get(30)).id == event_id
                sources.add(event_id)
        assert len(sources) == 3

    simulate(scenario, brokers=3, mode=mode)


@pytest.mark.parametrize("mode", ["best-effort", "guaranteed"])
def test_a_client_that_crashes_ends_what_waits_for_it(mode: Any) -> None:
    async def scenario(net: TestNetwork) -> None:
        async with net.connect("b1", name="me") as client, client.subscribe("/t") as stream:
            reading = asyncio.create_task(stream.get())
            await asyncio.sleep(1)
            net.crash("me")
            with pytest.raises(tidings.ConnectionFailed, match="client 'me' crashed"):
                await reading
            error = tidings.ConnectionFailed if mode == "guaranteed" else tidings.NotConfirmed
            with pytest.raises(error):
                await client.publish("/t")
            with pytest.raises(tidings.ConnectionFailed, match="client 'me' crashed"):
                async with client.subscribe("/t"):
                    pass
            with pytest.raises(ValueError, match="client 'me' is not connected"):
                net.crash("me")
            async with net.connect("b0", name="me") as again, again.subscribe("/t") as stream:
                await again.publish("/t")
                await stream.get(1)

    simulate(scenario, brokers=3, mode=mode)


def test_clients_need_a_broker_and_a_name_of_their_own() -> None:
    async def scenario(net: TestNetwork) -> None:
        with pytest.raises(tidings.ConnectionFailed, match="'b9'"):
            net.connect("b9")
        async with net.connect("b0", name="me"):
            with pytest.raises(tidings.ConnectionFailed, match="'me' is already in use"):
                await net.connect("b1", name="me").open()

    simulate(scenario, brokers=2)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"brokers": 0}, "brokers must be a whole number from 1"),
        ({"brokers": 2.5}, "brokers must be a whole number from 1"),
        ({"delta": -1}, "delta must be a whole number of at least 0, not -1"),
        ({"delay_ms": -1}, "delay_ms must be a number from 0"),
        ({"delay_ms": float("nan")}, "delay_ms must be a number from 0 to 86,400,000, not nan"),
        ({"delay_ms": "10"}, "delay_ms must be a number from 0"),
        ({"duplicate": 5}, "duplicate must be a number from 0 to 1, not 5"),
        ({"duplicate": -1}, "duplicate must be a number"),
        ({"loss": 1.0}, "loss must be a number"),
        ({"mode": "pears"}, "mode 'pears' is not one of best-effort"),
    ],
    ids=str,
)
def test_an_impossible_network_is_refused(arguments: dict[str, Any], words: str) -> None:
    async def scenario(net: TestNetwork) -> None: ...

    with pytest.raises(ValueError, match=words):
        simulate(scenario, **arguments)


def test_a_mode_of_later_says_so() -> None:
    async def scenario(net: TestNetwork) -> None: ...

    with pytest.raises(
        tidings.NotYetAvailable, match='mode: "peers" is not yet available; available: "best-'
    ):
        simulate(scenario, mode="peers")


def test_where_a_loop_runs_it_is_for_a_thread() -> None:
    async def scenario(net: TestNetwork) -> int:
        return len(net.brokers)

    async def main() -> int:
        with pytest.raises(RuntimeError, match=r"asyncio\.to_thread"):
            simulate(scenario)
        return await asyncio.to_thread(simulate, scenario, brokers=2)

    assert asyncio.run(main()) == 2


def test_what_the_scenario_raises_comes_out() -> None:
    async def scenario(net: TestNetwork) -> None:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        simulate(scenario)


def test_a_client_that_closed_is_forgotten_by_its_broker() -> None:
    async def scenario(net: TestNetwork) -> object:
        async with net.connect("b0") as watcher:
            bus = net.connect("b0")
            await bus.open()
            await bus.subscribe("/t").__aenter__()
            await bus.close()
            return (await watcher.status())["interests"]

    assert simulate(scenario, brokers=2) == 0
