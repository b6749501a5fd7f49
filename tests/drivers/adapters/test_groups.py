"""Groups and durable subscriptions at existing brokers, against the real servers."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import tidings
from command import process_of_tidings
from external_brokers import ExternalBroker, NatsBroker, RedisBroker
from external_checks import WAIT_S, Make, run
from external_groups import KEEPING, PASSING, Worker, all_servers, die, maker, publish, read
from live_network import until

ALL = (*KEEPING, *PASSING)


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, ExternalBroker]]:
    with all_servers(tmp_path_factory.mktemp("groups")) as found:
        yield found


@pytest.fixture
def make(request: pytest.FixtureRequest, kind: str, servers: dict[str, ExternalBroker]) -> Make:
    return maker(kind, servers[kind], request.node.name)


every = pytest.mark.parametrize("kind", ALL)
keeping = pytest.mark.parametrize("kind", KEEPING)
passing = pytest.mark.parametrize("kind", PASSING)


# --- Every service: one of n


@every
def test_each_event_goes_to_one_member(make: Make) -> None:
    async def test() -> None:
        async with (
            make() as source,
            make() as left,
            make() as right,
            left.subscribe("/jobs/**", "/jobs/*", where="n >= 0", group="workers") as one,
            right.subscribe("/jobs/**", "/jobs/*", where="n >= 0", group="workers") as two,
            left.subscribe("/jobs/**") as everything,
        ):
            workers = [Worker(one), Worker(two)]
            await source.publish_many(("/jobs/a", {"n": n}, b"") for n in range(-5, 200))
            await until(lambda: sum(len(each.seen) for each in workers) >= 200, WAIT_S)
            seen = [pair for each in workers for pair in each.seen]
            assert sorted(seen) == [(n, 1) for n in range(200)]
            assert all(each.seen for each in workers), "both had work"
            assert len([await everything.get(WAIT_S) for _ in range(205)]) == 205, "others see everything"
            for each in workers:
                await each.stop()

    run(test)


@every
def test_two_groups_each_get_everything(make: Make) -> None:
    async def test() -> None:
        async with (
            make() as bus,
            bus.subscribe("/jobs", group="one") as one,
            bus.subscribe("/jobs", group="two") as two,
        ):
            await publish(bus, 1, 2)
            assert await read(one, 2) == await read(two, 2) == [(1, 1), (2, 1)]

    run(test)


@every
def test_through_connect(kind: str, servers: dict[str, ExternalBroker]) -> None:
    """The public entrance puts an order on top; groups go past it."""

    async def test() -> None:
        url: str = servers[kind].url  # type: ignore[attr-defined]
        async with tidings.connect(url) as bus:
            async with bus.subscribe("/connected", group="connected") as stream:
                await bus.publish("/connected", {"n": 1})
                assert (await stream.get(WAIT_S)).attempt == 1
            if kind in KEEPING:
                await bus.cancel_durable("connected")
            with pytest.raises(tidings.SubscriptionRefused):
                await bus.cancel_durable("connected")

    run(test)


@every
@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"group": "g", "group_by": "n"}, "group_by= is not available"),
        ({"durable": "d", "takeover": True}, "(takeover|durable)= is not available"),
        ({"durable": "d", "order": "fifo"}, "(order=.fifo. with |)durable= is not available"),
        ({"group": "g", "max_deliveries": 3}, "max_deliveries="),
    ],
)
def test_what_no_existing_broker_has(make: Make, options: dict[str, Any], problem: str) -> None:
    async def test() -> None:
        async with make() as bus:
            with pytest.raises(tidings.SubscriptionRefused, match=problem):
                async with bus.subscribe("/jobs", **options):
                    pass
            assert not bus.incoming and not bus.streams

    run(test)


# --- Services that keep nothing


@passing
def test_the_command_line_reads_from_groups_and_serves_in_them(make: Make) -> None:
    """It acknowledges where it can, and does without where it cannot."""

    async def test() -> None:
        async with make() as bus:
            await asyncio.to_thread(read_and_serve, bus.server)

    def read_and_serve(url: str) -> None:
        reader = start("sub", url, "/cli", "--group", "g", "--count", "2", "--timeout", "20")
        server = start("serve", url, "/price", "--group", "p", "--exec", "cat")
        try:
            for process, word in ((reader, "subscribed\n"), (server, "serving\n")):
                assert process.stderr is not None
                assert process.stderr.readline() == word
            done = process_of_tidings("request", url, "/price", "ABB")
            assert (done.returncode, done.stdout) == (0, "ABB"), done
            assert process_of_tidings("pub", url, "/cli", "x", "--count", "2").returncode == 0
            assert reader.communicate(timeout=30) == ("/cli | x\n/cli | x\n", "")
        finally:
            for process in (reader, server):
                process.terminate()
                process.communicate(timeout=20)

    run(test)


def start(*arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tidings.cli.main", *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@passing
@pytest.mark.parametrize(
    "options",
    [
        {"durable": "d"},
        {"group": "g", "ack": "manual"},
        {"group": "g", "max_deliveries": 3, "dead_letter": "/dead"},
        {"group": "g", "max_unacked": 1},
        {"group": "g", "keep_for": 60},
    ],
)
def test_what_a_broker_without_acknowledgement_refuses(make: Make, options: dict[str, Any]) -> None:
    async def test() -> None:
        async with make() as bus:
            with pytest.raises(tidings.SubscriptionRefused, match=f"is not available at {bus.server}.*do"):
                async with bus.subscribe("/jobs", **options):
                    pass

    run(test)


@passing
def test_a_slow_member_is_counted(make: Make) -> None:
    async def test() -> None:
        async with make() as bus, bus.subscribe("/jobs", group="g", buffer_events=10) as stream:
            await bus.publish_many(("/jobs", {"n": n}, b"") for n in range(50))
            await until(lambda: len(stream) + stream.dropped == 50, WAIT_S)
            assert await read(stream, 10) == [(n, 1) for n in range(10)]
            assert stream.dropped == 40

    run(test)


@pytest.mark.parametrize("kind", ["mqtt"])
def test_one_member_for_each_client_of_mqtt(make: Make) -> None:
    async def test() -> None:
        async with make() as bus, bus.subscribe("/jobs", group="g") as stream:
            with pytest.raises(tidings.SubscriptionRefused, match="has a member of the group 'g' already"):
                async with bus.subscribe("/jobs", group="g"):
                    pass
            await publish(bus, 1)
            assert await read(stream, 1) == [(1, 1)]

    run(test)


# --- Services that keep what is not acknowledged


@keeping
def test_a_durable_subscription_goes_on_where_it_stopped(make: Make) -> None:
    async def test() -> None:
        async with make() as source:
            async with make() as bus:
                async with bus.subscribe("/jobs", durable="a.b") as stream:
                    await publish(source, 1, 2)
                    assert await read(stream, 2) == [(1, 1), (2, 1)]
                await publish(source, 3, 4)
            async with make() as bus, bus.subscribe("/jobs", durable="a.b") as stream:
                await publish(source, 5)
                assert await read(stream, 3) == [(3, 1), (4, 1), (5, 1)]

    run(test)


@keeping
def test_a_group_without_members_keeps_events(make: Make) -> None:
    async def test() -> None:
        async with make() as bus:
            async with bus.subscribe("/jobs", group="g"):
                pass
            await publish(bus, 1, 2)
            async with bus.subscribe("/jobs", group="g") as stream:
                assert await read(stream, 2) == [(1, 1), (2, 1)]

    run(test)


@keeping
def test_what_a_dead_member_held_goes_to_another_marked(make: Make) -> None:
    async def test() -> None:
        async with make() as source, make() as dead, make() as alive:
            async with dead.subscribe("/jobs", group="g", ack="manual") as stream:
                await publish(source, 1, 2, 3)
                events = [await stream.get(WAIT_S) for _ in range(3)]
                await events[0].ack()
                await die(dead)
                async with alive.subscribe("/jobs", group="g") as other:
                    assert sorted(await read(other, 2)) == [(2, 2), (3, 2)]
                    await publish(source, 4)
                    assert await read(other, 1) == [(4, 1)]

    run(test)


@keeping
def test_a_dead_holder_is_followed_by_another(make: Make) -> None:
    async def test() -> None:
        async with make() as source, make() as dead, make() as alive:
            async with dead.subscribe("/jobs", durable="d") as stream:
                await publish(source, 1, 2)
                assert await read(stream, 2) == [(1, 1), (2, 1)]
                await dead.incoming[stream.subscription.id].settled()  # type: ignore[attr-defined]
                await die(dead)
                await publish(source, 3)
                while True:
                    try:
                        async with alive.subscribe("/jobs", durable="d") as other:
                            repeated, later = sorted(await read(other, 2))
                            assert repeated == (2, 2)
                            # A server that has not noticed the end yet sends to the dead holder first.
                            assert later in [(3, 1), (3, 2)]
                        break
                    except tidings.SubscriptionRefused:  # at Redis, its name is free after a while
                        await asyncio.sleep(0.1)

    run(test)


@keeping
def test_a_server_that_restarts_loses_nothing(kind: str, tmp_path: Path) -> None:
    starters = {"jetstream": NatsBroker(tmp_path, jetstream=True), "redis": RedisBroker(tmp_path)}
    with starters[kind] as server:
        make = maker(kind, server, "restart")

        async def test() -> None:
            async with (
                make() as source,
                make() as left,
                make() as right,
                left.subscribe("/jobs", group="g") as one,
                right.subscribe("/jobs", group="g") as two,
            ):
                workers = [Worker(one), Worker(two)]
                publishing = asyncio.create_task(publish(source, *range(300)))
                await until(lambda: sum(len(each.seen) for each in workers) > 100, WAIT_S)
                await asyncio.to_thread(server.stop)
                await asyncio.to_thread(server.start)
                await publishing
                everything = set(range(300))
                await until(lambda: {*workers[0].numbers, *workers[1].numbers} == everything, WAIT_S)
                first = [n for each in workers for n, attempt in each.seen if attempt == 1]
                assert kind == "redis" or len(first) == len(set(first)), "a repetition is marked"
                for each in workers:
                    await each.stop()

        run(test)


@keeping
def test_what_a_member_leaves_goes_to_another_at_once(make: Make) -> None:
    async def test() -> None:
        async with make() as bus, make(hold_s=3600) as first:
            stays = bus.subscribe("/jobs", group="g")
            async with first.subscribe("/jobs", group="g") as leaves:
                await publish(bus, *range(10))
                assert await read(leaves, 2) == [(0, 1), (1, 1)]
            async with stays as stream:
                assert [n for n, _ in sorted(await read(stream, 8))] == list(range(2, 10))

    run(test)


@keeping
def test_an_exception_leaves_its_event_undone(make: Make) -> None:
    async def test() -> None:
        async with make() as bus:
            with suppress(RuntimeError):
                async with bus.subscribe("/jobs", durable="d") as stream:
                    await publish(bus, 1)
                    await stream.get(WAIT_S)
                    raise RuntimeError
            async with bus.subscribe("/jobs", durable="d") as stream:
                assert await read(stream, 1) == [(1, 2)]

    run(test)


@keeping
def test_work_that_takes_longer_than_the_hold_is_not_given_to_another(make: Make) -> None:
    async def test() -> None:
        async with (
            make() as bus,
            make() as other,
            bus.subscribe("/jobs", group="g", ack="manual") as one,
            other.subscribe("/jobs", group="g", ack="manual") as two,
        ):
            await publish(bus, 1)
            done, waiting = await asyncio.wait(
                [asyncio.create_task(each.get(WAIT_S)) for each in (one, two)],
                return_when=asyncio.FIRST_COMPLETED,
            )
            await asyncio.sleep(2.0)
            assert not any(each.done() for each in waiting)
            for each in done:
                await each.result().ack()
            for each in waiting:
                each.cancel()

    run(test)


@keeping
def test_an_event_that_is_given_back_comes_again_after_its_delay(make: Make) -> None:
    async def test() -> None:
        async with make() as bus, bus.subscribe("/jobs", group="g", ack="manual") as stream:
            await publish(bus, 1, 2)
            first = await stream.get(WAIT_S)
            await first.nack(after=0.3)
            second = await stream.get(WAIT_S)
            again = await stream.get(WAIT_S)
            assert (second.attributes["n"], second.attempt) == (2, 1)
            assert (again.attributes["n"], again.attempt, again.redelivered) == (1, 2, True)
            await again.ack()
            await second.ack()
            with pytest.raises(tidings.TidingsError, match="acknowledged before"):
                await again.ack()

    run(test)


@keeping
def test_no_more_than_max_unacked_are_out(make: Make) -> None:
    async def test() -> None:
        async with make() as bus, bus.subscribe("/jobs", group="g", ack="manual", max_unacked=3) as stream:
            await publish(bus, *range(10))
            held = [await stream.get(WAIT_S) for _ in range(3)]
            with pytest.raises(TimeoutError):
                await stream.get(0.3)
            seen = []
            while len(seen) < 10:
                event = held.pop(0)
                await event.ack()
                seen.append(event.attributes["n"])
                if len(seen) + len(held) < 10:
                    held.append(await stream.get(WAIT_S))
            assert seen == list(range(10))

    run(test)


@keeping
def test_an_event_that_is_delivered_too_often_becomes_a_dead_letter(make: Make) -> None:
    async def test() -> None:
        async with (
            make() as bus,
            bus.subscribe("/dead") as dead,
            bus.subscribe("/jobs", group="g", ack="manual", max_deliveries=2, dead_letter="/dead") as stream,
        ):
            await publish(bus, 1)
            for attempt in (1, 2):
                event = await stream.get(WAIT_S)
                assert event.attempt == attempt
                await event.nack()
            await publish(bus, 2)
            assert await read(stream, 1) == [(2, 1)]
            with pytest.raises(TimeoutError):  # it is read on, so the first one is found to be dead
                await stream.get(2)
            letter = await dead.get(WAIT_S)
            assert (letter.attributes["n"], letter.attributes["dead_topic"]) == (1, "/jobs")

    run(test)


@keeping
def test_a_durable_subscription_has_one_holder(make: Make) -> None:
    async def test() -> None:
        async with make(name="first") as first, make() as second:
            async with first.subscribe("/jobs", durable="d"):
                with pytest.raises(tidings.SubscriptionRefused, match="'d' is held by first"):
                    async with second.subscribe("/jobs", durable="d"):
                        pass
            async with second.subscribe("/jobs", durable="d") as stream:
                await publish(second, 1)
                assert await read(stream, 1) == [(1, 1)]

    run(test)


@keeping
@pytest.mark.parametrize(
    ("topic", "options", "problem"),
    [
        ("/jobs", {"group": "g", "where": "n > 1"}, "'g' has no filter, not the filter n > 1"),
        ("/other", {"group": "g"}, "'g' has topics /jobs, not /other"),
        ("/jobs", {"durable": "g"}, "'g' is a group, not a durable subscription"),
    ],
)
def test_members_must_select_the_same(make: Make, topic: str, options: dict[str, Any], problem: str) -> None:
    async def test() -> None:
        async with make() as bus, bus.subscribe("/jobs", group="g"):
            with pytest.raises(tidings.SubscriptionRefused, match=problem):
                async with bus.subscribe(topic, **options):
                    pass

    run(test)


@keeping
def test_a_cancelled_group_ends_for_all_members(make: Make) -> None:
    async def test() -> None:
        async with make() as bus, make() as other, other.subscribe("/jobs", group="g") as member:
            with pytest.raises(tidings.SubscriptionRefused, match="has no durable subscription or group"):
                await bus.cancel_durable("unknown")
            with pytest.raises(tidings.SubscriptionRefused, match="cannot be listed at "):
                await bus.durable_subscriptions()
            with pytest.raises(tidings.SubscriptionRefused, match="no events are set aside at "):
                await bus.set_aside("g")
            async with bus.subscribe("/jobs", group="g") as stream:
                await stream.cancel()  # type: ignore[attr-defined]
            with pytest.raises(tidings.SubscriptionRefused, match=r"'g' (is gone|was cancelled)"):
                await member.get(WAIT_S)
            await publish(bus, 1)
            async with bus.subscribe("/jobs", group="g") as stream:
                await publish(bus, 2)
                assert await read(stream, 1) == [(2, 1)]

    run(test)


@keeping
def test_a_lost_connection_loses_no_acknowledgement(make: Make) -> None:
    async def test() -> None:
        async with make() as bus, make() as source:
            async with bus.subscribe("/jobs", durable="d", ack="manual") as stream:
                await publish(source, 1, 2, 3)
                events = [await stream.get(WAIT_S) for _ in range(3)]
                session: Any = bus.keeper.session
                session.end("cut")
                await asyncio.gather(events[0].ack(), events[1].ack())
                await until(lambda: bus.reconnections == 1, WAIT_S)
                await publish(source, 4)
                assert await read(stream, 1) == [(4, 1)]
            async with source.subscribe("/jobs", durable="d") as stream:
                assert sorted(n for n, _ in await read(stream, 2)) == [3, 4]
                with pytest.raises(TimeoutError):
                    await stream.get(0.5)

    run(test)


@keeping
def test_an_acknowledgement_that_nobody_answers_ends_with_the_service(kind: str, tmp_path: Path) -> None:
    starters = {"jetstream": NatsBroker(tmp_path, jetstream=True), "redis": RedisBroker(tmp_path)}
    with starters[kind] as server:
        bus = maker(kind, server, "unanswered")()

        async def test() -> None:
            async with bus, bus.subscribe("/jobs", group="g", ack="manual") as stream:
                await publish(bus, 1)
                event = await stream.get(WAIT_S)
                await asyncio.to_thread(server.kill)
                acknowledging = asyncio.create_task(event.ack())
                await asyncio.sleep(0.2)
                assert not acknowledging.done()
                await bus.close()
                with pytest.raises(tidings.TidingsError, match="does not count"):
                    await acknowledging

        run(test)


@keeping
def test_garbage_in_a_group_is_done(make: Make, kind: str) -> None:
    async def test() -> None:
        async with make() as bus, bus.subscribe("/jobs", group="g") as stream:
            service, session = bus, bus.keeper.session
            if kind == "redis":
                await session.redis.xadd(service.key, {"e": b"hello"})  # type: ignore
                await session.redis.xadd(service.key, {"other": b"field"})  # type: ignore
            else:
                for body in (b"hello", b""):
                    await session.send(f"{service.prefix}.jobs", body)  # type: ignore
            await publish(bus, 1)
            assert await read(stream, 1) == [(1, 1)]
            await bus.incoming[stream.subscription.id].settled()  # type: ignore
            assert (await bus.status())["garbage"] == 2

    run(test)
