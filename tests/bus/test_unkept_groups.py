"""Groups in networks without a guarantee: in virtual time, and embedded."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from typing import Any

import pytest

import tidings
from tidings.bus.bus import Bus
from tidings.bus.durable_stream import DurableStream
from tidings.bus.embedded import Embedded
from tidings.bus.stream import Stream
from tidings.core.errors import ConnectionFailed, NoResponder, NotHeld, RequestFailed, SubscriptionRefused
from tidings.core.overlay.link_watch import SILENT_AFTER_NS
from tidings.testing import TestNetwork, simulate

MODES = ("best-effort", "epidemic")
QUIET_S = 2.0
SILENT_S = SILENT_AFTER_NS / 1e9 + 3

modes = pytest.mark.parametrize("mode", MODES)


def run(mode: str, scenario: Callable[[TestNetwork], Awaitable[None]], brokers: int = 5) -> None:
    simulate(scenario, brokers=brokers, mode=mode)


async def publish(bus: Bus, numbers: Sequence[int], topic: str = "/jobs") -> None:
    await bus.publish_many([(topic, {"n": number, "key": number % 7}, b"") for number in numbers])


async def drain(stream: Stream, quiet_s: float = QUIET_S) -> list[Any]:
    """Return the numbers of all events that come until none does for a while."""
    found = []
    while True:
        try:
            event = await stream.get(quiet_s)
        except TimeoutError:
            return found
        assert event.attempt == 1
        found.append(event.attributes["n"])


async def drain_all(streams: Sequence[Stream]) -> list[list[Any]]:
    return await asyncio.gather(*map(drain, streams))


class Members:
    """Members of group "workers", one for each of these brokers."""

    def __init__(self, net: TestNetwork, brokers: Sequence[str], **options: Any) -> None:
        self.net, self.brokers, self.options = net, brokers, options
        self.buses: list[Bus] = []
        self.streams: list[Stream] = []

    async def __aenter__(self) -> Members:
        self.stack = AsyncExitStack()
        for broker in self.brokers:
            await self.join(broker)
        return self

    async def join(self, broker: str) -> None:
        bus = await self.stack.enter_async_context(self.net.connect(broker))
        stream = bus.subscribe("/jobs", group="workers", **self.options)
        self.buses.append(bus)
        self.streams.append(await self.stack.enter_async_context(stream))

    async def __aexit__(self, *error: Any) -> None:
        await self.stack.aclose()


def each_once(found: Sequence[Sequence[Any]], count: int) -> None:
    assert sorted(number for numbers in found for number in numbers) == list(range(count))


@modes
def test_each_event_goes_to_one_member_through_any_broker(mode: str) -> None:
    async def scenario(net: TestNetwork) -> None:
        async with net.connect("b4") as far, Members(net, ["b0", "b1", "b1", "b3"]) as group:
            await publish(far, range(200))
            found = await drain_all(group.streams)
            each_once(found, 200)
            assert min(map(len, found)) > 25, "about a quarter each"
            for number in range(200, 220):  # one by one, not in a run
                await far.publish("/jobs", {"n": number})
            found = [[*old, *new] for old, new in zip(found, await drain_all(group.streams), strict=True)]
            each_once(found, 220)

    run(mode, scenario)


@modes
def test_whoever_subscribes_without_the_group_gets_everything_as_always(mode: str) -> None:
    async def scenario(net: TestNetwork) -> None:
        async with (
            net.connect("b4") as far,
            net.connect("b2") as other,
            other.subscribe() as everything,
            Members(net, ["b0", "b1", "b3"]) as group,
        ):
            member = group.buses[0]
            async with member.subscribe("/jobs") as own, member.subscribe("/**") as wide:
                await publish(far, range(60))
                found = await drain_all([*group.streams, own, wide, everything])
                each_once(found[:3], 60)
                assert [sorted(numbers) for numbers in found[3:]] == [list(range(60))] * 3

    run(mode, scenario)


@modes
def test_equal_values_go_to_one_member_and_only_those_of_one_who_left_move(mode: str) -> None:
    async def scenario(net: TestNetwork) -> None:
        async with (
            net.connect("b4") as far,
            Members(net, ["b0", "b1", "b3"], group_by="key") as group,
            net.connect("b2") as bus,
        ):
            async with bus.subscribe("/jobs", group="workers", group_by="key") as leaving:
                await publish(far, range(70))
                before = await drain_all([*group.streams, leaving])
                each_once(before, 70)
                owner = {n % 7: member for member, numbers in enumerate(before) for n in numbers}
                assert all({owner[n % 7] for n in numbers} <= {i} for i, numbers in enumerate(before))
            await asyncio.sleep(QUIET_S)
            await publish(far, range(70))
            after = await drain_all(group.streams)
            each_once(after, 70)
            moved = {n % 7 for member, numbers in enumerate(after) for n in numbers if owner[n % 7] != member}
            assert moved == {key for key, member in owner.items() if member == 3}

    run(mode, scenario)


@modes
def test_members_join_and_leave(mode: str) -> None:
    async def scenario(net: TestNetwork) -> None:
        async with net.connect("b4") as far, Members(net, ["b0"]) as group:
            await publish(far, range(40))
            each_once(await drain_all(group.streams), 40)
            await group.join("b3")
            await publish(far, range(40))
            found = await drain_all(group.streams)
            each_once(found, 40)
            assert all(found)
        async with net.connect("b4") as far, net.connect("b1") as bus:
            await asyncio.sleep(QUIET_S)
            async with bus.subscribe("/other", group="workers") as stream:  # nothing is left of the old group
                await publish(far, range(5), "/other")
                each_once([await drain(stream)], 5)

    run(mode, scenario)


@modes
def test_joining_loses_nothing(mode: str) -> None:
    """Those who join get nothing before the network sends them all, so the others keep their shares until then."""

    async def scenario(net: TestNetwork) -> None:
        async with net.connect("b4") as far, Members(net, ["b0"]) as group:

            async def publish_slowly() -> None:
                for number in range(300):
                    await far.publish("/jobs", {"n": number}, wait=False)
                    await asyncio.sleep(0.001)

            publishing = asyncio.create_task(publish_slowly())
            for broker in ("b1", "b2", "b3"):
                await asyncio.sleep(0.03)
                await group.join(broker)
            await publishing
            found = await drain_all(group.streams)
            times = Counter(number for numbers in found for number in numbers)
            assert sorted(times) == list(range(300))
            assert sum(times.values()) <= 350, "twice only while the news of the three changes travels"

    run(mode, scenario)


@modes
@pytest.mark.parametrize(
    "other",
    [{"where": "n > 3"}, {"group_by": "key"}, {"topic": "/jobs/**"}],
    ids=["filter", "group_by", "topics"],
)
def test_members_that_ask_for_something_else_are_refused(mode: str, other: dict[str, str]) -> None:
    async def scenario(net: TestNetwork) -> None:
        async with net.connect("b3") as bus, Members(net, ["b0"]):
            options = dict(other)
            topic = options.pop("topic", "/jobs")
            with pytest.raises(SubscriptionRefused, match="group 'workers' has members with other topics"):
                async with bus.subscribe(topic, group="workers", **options):
                    pass

    run(mode, scenario)


@modes
def test_of_members_that_differ_and_join_at_once_some_are_refused(mode: str) -> None:
    async def scenario(net: TestNetwork) -> None:
        async with net.connect("b0") as one, net.connect("b3") as two, net.connect("b4") as far:
            streams = [
                one.subscribe("/jobs", group="workers"),
                two.subscribe("/jobs", group="workers", where="n > 1000"),
            ]

            async def hold(stream: Stream) -> str:
                try:
                    async with stream:
                        await stream.get(20)
                except SubscriptionRefused as error:
                    return str(error)
                except TimeoutError:
                    return ""
                raise AssertionError("nothing was published")

            reasons = await asyncio.gather(*map(hold, streams))
            assert sorted(map(bool, reasons)) == [False, True], reasons
            assert "must ask for the same" in "".join(reasons)
            del far

    run(mode, scenario)


@modes
def test_a_member_whose_client_is_gone_gets_nothing_more(mode: str) -> None:
    async def scenario(net: TestNetwork) -> None:
        async with net.connect("b4") as far, Members(net, ["b0", "b3"]) as group:
            bus = net.connect("b1")
            await bus.open()
            await bus.subscribe("/jobs", group="workers").__aenter__()
            await bus.connection.close()  # without a word to the broker
            await asyncio.sleep(QUIET_S)
            await publish(far, range(50))
            each_once(await drain_all(group.streams), 50)

    run(mode, scenario)


@modes
def test_a_member_whose_broker_is_gone_gets_nothing_more_and_returns_with_it(mode: str) -> None:
    async def scenario(net: TestNetwork) -> None:
        async with net.connect("b0") as far, Members(net, ["b0", "b1", "b4"]) as group:
            net.crash("b4")
            await asyncio.sleep(SILENT_S)
            await publish(far, range(50))
            each_once(await drain_all(group.streams[:2]), 50)
            net.restart("b4")
            await asyncio.sleep(SILENT_S)
            await publish(far, range(50))
            found = await drain_all(group.streams)
            each_once(found, 50)
            assert all(found), "the client has joined again"

    run(mode, scenario)


@modes
def test_both_sides_of_a_split_network_go_on_with_their_members(mode: str) -> None:
    async def scenario(net: TestNetwork) -> None:
        async with net.connect("b0") as far, Members(net, ["b0", "b4"]) as group:
            net.cut("b1", "b4")
            await asyncio.sleep(SILENT_S)
            await publish(far, range(50))
            each_once([await drain(group.streams[0])], 50)
            net.heal("b1", "b4")
            await asyncio.sleep(SILENT_S)
            await drain_all(group.streams)  # what gossip brings of before
            await publish(far, range(50))
            found = await drain_all(group.streams)
            each_once(found, 50)
            assert all(found)

    run(mode, scenario)


@modes
def test_what_needs_a_guarantee_is_refused_in_one_line(mode: str) -> None:
    async def scenario(net: TestNetwork) -> None:
        async with net.connect("b0") as bus:
            options: dict[str, dict[str, Any]] = {
                "durable=": {"durable": "billing"},
                "ack=": {"group": "workers", "ack": "manual"},
                "keep_for=": {"group": "workers", "keep_for": 60},
                "max_unacked=": {"group": "workers", "max_unacked": 5},
                "max_deliveries=": {"group": "workers", "max_deliveries": 5},
                "max_deliveries= ": {"group": "workers", "max_deliveries": 5, "dead_letter": "/dead"},
                "start='earliest'": {"start": "earliest"},
            }
            for option, given in options.items():
                with pytest.raises(SubscriptionRefused) as refused:
                    async with bus.subscribe("/jobs", **given):
                        pass
                assert str(refused.value).startswith(option.strip())
                assert "mode guaranteed" in str(refused.value) or "--mode guaranteed" in str(refused.value)
                assert "\n" not in str(refused.value)

    run(mode, scenario, brokers=2)


@modes
def test_acknowledging_and_cancelling_say_what_they_need(mode: str) -> None:
    async def scenario(net: TestNetwork) -> None:
        async with net.connect("b0") as bus, bus.subscribe("/jobs", group="workers") as stream:
            await publish(bus, [1, 2])
            event = await stream.get(30)
            assert (event.attempt, event.redelivered) == (1, False)
            with pytest.raises(NotHeld, match="acknowledges by itself"):
                await event.ack()
            with pytest.raises(NotHeld, match="acknowledges by itself"):
                await event.nack()
            for call in (stream.cancel(), bus.cancel_durable("workers"), bus.set_aside("workers")):
                with pytest.raises(SubscriptionRefused, match="mode guaranteed"):
                    await call
            assert (await stream.get(30)).attributes["n"] == 2, "the refused calls changed nothing"

    run(mode, scenario, brokers=2)


@modes
def test_a_slow_member_drops_beyond_its_buffer_and_counts(mode: str) -> None:
    async def scenario(net: TestNetwork) -> None:
        async with net.connect("b0") as bus:
            async with bus.subscribe("/jobs", group="workers", buffer_events=10) as stream:
                for number in range(30):
                    await bus.publish("/jobs", {"n": number})
                await asyncio.sleep(QUIET_S)
                assert isinstance(stream, DurableStream)
                assert (await drain(stream), stream.dropped) == (list(range(10)), 20)

    run(mode, scenario, brokers=1)


@modes
def test_exactly_one_server_of_a_group_answers(mode: str) -> None:
    async def scenario(net: TestNetwork) -> None:
        async with net.connect("b4") as client, net.connect("b0") as one, net.connect("b2") as two:
            answered: Counter[str] = Counter()

            def handler(name: str) -> Callable[[Any], str]:
                def handle(event: Any) -> str:
                    answered[name] += 1
                    if event.attributes.get("fails"):
                        raise ValueError("no")
                    return name

                return handle

            with pytest.raises(NoResponder):
                await client.request("/price", timeout=20)
            async with (
                one.serve("/price", handler("one"), group="pricing"),
                two.serve("/price", handler("two"), group="pricing", concurrency=1),
            ):
                replies = [await client.request("/price", {"n": n}, timeout=20) for n in range(30)]
                with pytest.raises(RequestFailed, match="no"):
                    await client.request("/price", {"fails": True}, timeout=20)
            assert {reply.text for reply in replies} == {"one", "two"}
            assert sum(answered.values()) == 31

    run(mode, scenario)


@modes
def test_topics_that_announce_members_are_reserved(mode: str) -> None:
    async def scenario(net: TestNetwork) -> None:
        async with net.connect("b0") as bus:
            with pytest.raises(SubscriptionRefused, match="reserved"):
                async with bus.subscribe("/~group/workers/x/y"):
                    pass

    run(mode, scenario, brokers=1)


@modes
def test_brokers_count_members(mode: str) -> None:
    async def scenario(net: TestNetwork) -> None:
        async with Members(net, ["b0", "b0", "b3"]) as group:
            status = await group.buses[0].status()
            assert status["groups"] == [{"name": "workers", "members": 3, "members_here": 2}]
        async with net.connect("b1") as bus:
            await asyncio.sleep(QUIET_S)
            assert (await bus.status())["groups"] == []

    run(mode, scenario)


@modes
def test_embedded(mode: Any) -> None:
    async def main() -> None:
        async with asyncio.timeout(60), tidings.embedded(brokers=5, mode=mode) as bus:
            await embedded_jobs(bus)

    asyncio.run(main())


async def embedded_jobs(bus: Embedded) -> None:
    async with (
        bus.connect() as one,
        bus.connect() as two,
        one.subscribe("/jobs", group="workers") as first,
        two.subscribe("/jobs", group="workers") as second,
        bus.subscribe("/**") as everything,
    ):
        await publish(bus, range(100))
        assert sorted([(await everything.get(30)).attributes["n"] for _ in range(100)]) == list(range(100))
        each_once(await asyncio.gather(drain(first, 0.5), drain(second, 0.5)), 100)
        await two.close()
        with pytest.raises(ConnectionFailed):
            await second.get(30)
        await publish(bus, range(20))
        each_once([await drain(first, 0.5)], 20)


def test_events_that_gossip_recovered_have_the_same_member() -> None:
    async def main() -> None:
        async with (
            asyncio.timeout(120),
            tidings.embedded(brokers=5, mode="epidemic", loss=0.1, seed=3) as bus,
        ):
            async with AsyncExitStack() as stack:
                streams = []
                for _ in range(3):
                    member = await stack.enter_async_context(bus.connect())
                    streams.append(
                        await stack.enter_async_context(member.subscribe("/jobs", group="workers"))
                    )
                await publish(bus, range(150))
                found: list[Any] = []
                all_came = asyncio.Event()

                async def collect(stream: Stream) -> None:
                    async for event in stream:
                        found.append(event.attributes["n"])
                        if len(set(found)) == 150:
                            all_came.set()

                tasks = [asyncio.create_task(collect(stream)) for stream in streams]
                await all_came.wait()
                assert sorted(found) == list(range(150))
                for task in tasks:
                    task.cancel()

    asyncio.run(main())
