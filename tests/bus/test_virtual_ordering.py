"""Total and causal order in `tidings.testing`: sequencers beside brokers, under faults, in virtual time."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from typing import Any

import pytest

import order_checks
import tidings
from tidings.core.events.event import Event
from tidings.core.events.subscription import Subscription
from tidings.testing import TestNetwork, simulate

MODES = ("best-effort", "guaranteed", "epidemic")
ENTRIES = ("/a", "/b/*", "/**")
TOPICS = ("/a", "/b/1", "/b/2", "/c")


async def take(stream: tidings.Stream, count: int) -> list[tidings.Event]:
    return [await stream.get(600) for _ in range(count)]


def numbers(events: list[tidings.Event]) -> list[Any]:
    return [event.attributes["n"] for event in events]


async def publish_all(net: TestNetwork, *, count: int = 60, pause_s: float = 0.05) -> dict[str, list[Any]]:
    """Three clients publish, three read overlapping topics; returns what each was shown, after the checks."""
    async with (
        net.connect("b0", name="p0") as p0,
        net.connect("b3", name="p1") as p1,
        net.connect("b4", name="p2") as p2,
    ):
        async with (
            p0.subscribe("/a", "/b/*", order="total") as one,
            p1.subscribe("/b/*", "/c", order="total") as two,
            p2.subscribe("/**", order="total") as every,
        ):

            async def publish(at: int, client: tidings.EventService) -> None:
                for step in range(count // 3):
                    await client.publish(TOPICS[(at + step) % 4], {"n": 3 * step + at})
                    await asyncio.sleep(pause_s)

            await asyncio.gather(*(publish(at, client) for at, client in enumerate((p0, p1, p2))))
            topic_of = {
                3 * step + at: TOPICS[(at + step) % 4] for at in range(3) for step in range(count // 3)
            }
            wanted = {
                "one": [n for n, topic in topic_of.items() if topic != "/c"],
                "two": [n for n, topic in topic_of.items() if topic != "/a"],
                "every": list(topic_of),
            }
            shown = {}
            for name, stream in (("one", one), ("two", two), ("every", every)):
                events = await take(stream, len(wanted[name]))
                assert not any(event.out_of_order for event in events)
                shown[name] = numbers(events)
                order_checks.check_complete(shown[name], wanted[name])
            order_checks.check_agreement(shown)
            return shown


@pytest.mark.parametrize(("mode", "causal"), [*((mode, True) for mode in MODES), ("guaranteed", False)])
@pytest.mark.parametrize("seed", range(3))
def test_subscribers_agree_over_links_with_delay(mode: Any, causal: bool, seed: int) -> None:
    simulate(publish_all, seed=seed, mode=mode, causal=causal, order_topics=ENTRIES, delay_ms=30)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("mode", ["guaranteed", "epidemic"])
def test_losses_and_repetitions_between_sequencers_do_no_harm(mode: Any, seed: int) -> None:
    """The links of the ordering lose and repeat as those between brokers do, which repair it."""
    patience = None if mode == "guaranteed" else tidings.Patience(events=4_096, limit_ns=60_000_000_000)
    simulate(
        publish_all,
        seed=seed,
        mode=mode,
        order_topics=ENTRIES,
        loss=0.15,
        duplicate=0.15,
        order_patience=patience,
    )


def test_a_seed_gives_one_run() -> None:
    options: dict[str, Any] = {"mode": "guaranteed", "order_topics": ENTRIES, "loss": 0.1, "duplicate": 0.1}
    runs = [simulate(publish_all, seed=seed, **options) for seed in (5, 5, 6)]
    assert runs[0] == runs[1]
    assert runs[0] != runs[2]


def test_a_seed_gives_one_run_whatever_the_hashes() -> None:
    script = (
        "import sys; sys.path[:0] = sys.argv[1:]\n"
        "from importlib.util import module_from_spec, spec_from_file_location\n"
        "spec = spec_from_file_location('virtual', sys.argv[3])\n"
        "virtual = module_from_spec(spec); spec.loader.exec_module(virtual)\n"
        "shown = virtual.simulate(virtual.publish_all, seed=5, mode='guaranteed', loss=0.1)\n"
        "print(shown)\n"
    )
    arguments = [sys.path[0], str(order_checks.__file__).rpartition("/")[0], __file__]
    outputs = {
        subprocess.run(
            [sys.executable, "-c", script, *arguments],
            capture_output=True,
            text=True,
            timeout=120,
            check=True,
            env={"PYTHONHASHSEED": hash_seed},
        ).stdout
        for hash_seed in ("1", "2")
    }
    assert len(outputs) == 1
    assert "every" in outputs.pop()


def test_an_answer_comes_after_its_question() -> None:
    async def scenario(net: TestNetwork) -> None:
        async with net.connect("b1") as asks, net.connect("b3") as answers, net.connect("b4") as reads:
            async with (
                answers.subscribe("/question", order="causal") as questions,
                reads.subscribe("/answer", "/question", order="causal") as stream,
            ):

                async def answer() -> None:
                    for _ in range(20):
                        event = await questions.get(60)
                        await answers.publish("/answer", {"n": event.attributes["n"]})

                answering = asyncio.create_task(answer())
                for n in range(20):
                    await asks.publish("/question", {"n": n})
                    await asyncio.sleep(0.01)
                await answering
                shown = [(event.topic, event.attributes["n"]) for event in await take(stream, 40)]
                causes = {("/answer", n): [("/question", n)] for n in range(20)}
                order_checks.check_causes({"stream": shown}, causes)

    simulate(scenario, mode="guaranteed", order_topics=("/answer", "/question"), delay_ms=40)


# --- Faults


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("keep_state", [True, False])
def test_the_standby_goes_on_when_the_sequencer_crashes(keep_state: bool, seed: int) -> None:
    async def scenario(net: TestNetwork) -> None:
        async with net.connect("b3", name="p") as publisher, net.connect("b4", name="s") as reader:
            async with reader.subscribe("/a", "/c", order="total") as stream:
                publishing = asyncio.create_task(_publish_steadily(publisher, 200))
                await asyncio.sleep(2.0 + seed / 7)
                assert role(net, "order:b0") == "active"
                net.crash("b0", keep_state=keep_state)
                await asyncio.sleep(5.0)
                assert role(net, "order:b1") == "active"
                net.restart("b0")
                await publishing
                assert numbers(await take(stream, 200)) == list(range(200))
                await asyncio.sleep(30)
                assert {role(net, "order:b0"), role(net, "order:b1")} == {"active", "standby"}
                async with publisher.subscribe("/a", order="total") as late:  # with whoever speaks now
                    await reader.publish("/a", {"n": 200})
                    assert numbers(await take(late, 1)) == [200]

    simulate(scenario, seed=seed, mode="guaranteed", order_topics=ENTRIES, loss=0.05)


async def _publish_steadily(client: tidings.EventService, count: int) -> None:
    for n in range(count):
        await client.publish("/a" if n % 2 else "/c", {"n": n})
        await asyncio.sleep(0.1)


def role(net: TestNetwork, node: str) -> str:
    status: Any = net._ordering.status()[node]
    return "down" if status == "down" else status["order:b0"]["role"]


def test_a_sequencer_without_a_standby_goes_on_after_its_restart() -> None:
    async def scenario(net: TestNetwork) -> None:
        async with net.connect("b1", name="p") as publisher:
            async with publisher.subscribe("/a", order="total") as stream:
                await publisher.publish("/a", {"n": 0})
                net.crash("b0")
                waiting = asyncio.create_task(publisher.publish("/a", {"n": 1}))
                await asyncio.sleep(60)
                assert not waiting.done()
                net.restart("b0")
                await waiting
                await publisher.publish("/a", {"n": 2})
                events = await take(stream, 3)
                assert [(event.attributes["n"], event.order.number) for event in events] == [
                    (0, 1),
                    (1, 2),
                    (2, 3),
                ]

    simulate(scenario, brokers=2, mode="guaranteed")


def test_a_pause_of_the_sequencer_is_a_pause_of_the_order() -> None:
    async def scenario(net: TestNetwork) -> None:
        async with net.connect("b1", name="p") as publisher:
            async with publisher.subscribe("/a", order="total") as stream, publisher.subscribe("/x"):
                net.pause("b0")
                waiting = asyncio.create_task(publisher.publish("/a", {"n": 0}))
                await asyncio.sleep(1)
                assert not waiting.done()
                net.resume("b0")
                await waiting
                assert numbers(await take(stream, 1)) == [0]

    simulate(scenario, brokers=2)


def test_an_order_wanted_while_the_sequencer_is_down_begins_when_it_is_back() -> None:
    async def scenario(net: TestNetwork) -> None:
        async with net.connect("b1") as client:
            net.crash("b0")
            stream = client.subscribe("/a", order="total")
            with pytest.raises(tidings.SubscriptionRefused, match="within 30 s"):
                await stream.__aenter__()
            net.restart("b0")
            async with client.subscribe("/a", order="total") as again:
                await client.publish("/a", {"n": 1})
                assert numbers(await take(again, 1)) == [1]

    simulate(scenario, brokers=2)


def test_an_order_does_not_begin_before_the_whole_network_knows() -> None:
    """Else it would wait for ever for what is published where its subscription is not known."""

    async def scenario(net: TestNetwork) -> None:
        async with net.connect("b0") as publisher, net.connect("b4") as cut_off:
            net.cut("b1", "b4")
            async with cut_off.subscribe("/a") as plain:
                assert plain.uncovered, "the test means a broker that cannot be reached"
            with pytest.raises(tidings.SubscriptionRefused, match=r"the whole network .* 30 s: 0 and below"):
                async with cut_off.subscribe("/a", order="total"):
                    pass
            beginning = asyncio.create_task(cut_off.subscribe("/a", order="total").__aenter__())
            await asyncio.sleep(10)
            await publisher.publish("/a", {"n": 0})
            assert not beginning.done()
            net.heal("b1", "b4")
            stream = await beginning
            for n in range(1, 4):
                await publisher.publish("/a", {"n": n})
            assert numbers(await take(stream, 3)) == [1, 2, 3]
            await stream.__aexit__(None, None, None)

    simulate(scenario, brokers=5, mode="guaranteed", delta=0)


@pytest.mark.parametrize("mode", MODES)
def test_the_numbers_of_a_client_that_left_become_no_ops(mode: Any) -> None:
    async def scenario(net: TestNetwork) -> None:
        async with net.connect("b1", name="s") as reader, net.connect("b2", name="p") as publisher:
            async with reader.subscribe("/a", order="total") as stream, reader.subscribe("/**") as plain:
                leaver = net.connect("b4", name="leaver")
                await leaver.open()
                under_way = [asyncio.create_task(leaver.publish("/a", {"n": -1})) for _ in range(5)]
                await asyncio.sleep(0.05)  # stamped, and the answer is not here yet
                await leaver.close()
                results = await asyncio.gather(*under_way, return_exceptions=True)
                assert all(isinstance(result, tidings.ConnectionFailed) for result in results), results
                await publisher.publish("/a", {"n": 1})
                [event] = await take(stream, 1)
                assert (event.attributes["n"], event.order.number) == (1, 6)
                assert numbers(await take(plain, 1)) == [1]
                await asyncio.sleep(60)
                assert not len(plain) and not len(stream)

    simulate(scenario, mode=mode, delay_ms=40, order_patience=None)


# --- Cost


def test_hours_pass_quickly_and_nothing_is_numbered_unless_wanted() -> None:
    async def scenario(net: TestNetwork) -> None:
        async with net.connect("b0") as client:
            plain: list[Event] = []
            await client.add_subscription(Subscription("plain", ("/a",)), plain.append)
            await asyncio.sleep(24 * 3_600)
            await client.publish("/a", {"n": 0})
            assert not [name for name in net._network.nodes if name.startswith("order:")]
            async with client.subscribe("/a", order="total") as stream:
                await client.publish("/a", {"n": 1})
                await asyncio.sleep(1_800)
                await client.publish("/a", {"n": 2})
                assert numbers(await take(stream, 2)) == [1, 2]
            assert [event.carrier.stamp is None for event in plain] == [True, False, False]

    simulate(scenario, brokers=3)


def test_what_cannot_be_is_refused() -> None:
    async def scenario(net: TestNetwork) -> None:
        async with net.connect("b0", name="n") as client:
            with pytest.raises(tidings.SubscriptionRefused, match="ordered topics: /a"):
                async with client.subscribe("/b", order="total"):
                    pass
            with pytest.raises(tidings.SubscriptionRefused, match="not causal"):
                async with client.subscribe("/a", order="causal"):
                    pass
            with pytest.raises(tidings.ConnectionFailed, match="taken"):
                await net.connect("b1", name="n").open()
            assert (await client.status())["ordering"]["sequencers"] == {}

    simulate(scenario, order_topics=("/a",), causal=False, mode="guaranteed")
    with pytest.raises(tidings.OrderError, match="listed twice"):
        simulate(scenario, order_topics=("/a", "/a"))
