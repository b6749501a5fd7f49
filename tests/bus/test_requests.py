"""Requests and their answers, in virtual time, on networks of every mode."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any

import msgspec
import pytest

from tidings.bus import requests
from tidings.bus.bus import Bus
from tidings.bus.embedded import embedded
from tidings.bus.serving import ERROR_TYPE, MAX_ERROR_CHARACTERS
from tidings.core.client.session import ClientSession
from tidings.core.errors import (
    ConnectionFailed,
    NoResponder,
    RequestFailed,
    TopicError,
)
from tidings.core.events.event import Event
from tidings.core.events.payload import TypedPayload
from tidings.core.overlay.guaranteed.held_share import HeldShare
from tidings.scenarios.file.schema import Mode
from tidings.testing import TestNetwork, simulate

MODES: Sequence[Mode] = ("best-effort", "guaranteed", "epidemic")
each_mode = pytest.mark.parametrize("mode", MODES)
PRICES = {"ABB": 12.5, "IBM": 200}


def run(scenario: Callable[[TestNetwork], Any], mode: Mode = "best-effort", brokers: int = 3) -> None:
    simulate(scenario, brokers=brokers, mode=mode)


def price(event: Event) -> tuple[dict[str, Any], bytes]:
    symbol = event.attributes["symbol"]
    return {"price": PRICES[symbol]}, f"{symbol} {event.payload.decode()}".encode()


async def price_later(event: Event) -> tuple[dict[str, Any], bytes]:
    await asyncio.sleep(0.1)
    return price(event)


@each_mode
@pytest.mark.parametrize("handler", [price, price_later])
def test_a_request_is_answered(mode: Mode, handler: Callable[[Event], Any]) -> None:
    async def scenario(net: TestNetwork) -> None:
        async with net.connect("b0") as asker, net.connect("b2") as bus:
            async with bus.serve("/price", handler) as server:
                for symbol in ("ABB", "IBM"):
                    reply = await asker.request("/price", {"symbol": symbol}, b"now", timeout=2)
                    assert reply.attributes["price"] == PRICES[symbol]
                    assert reply.payload == f"{symbol} now".encode()
            assert (server.answered, server.failed, len(asker.requests)) == (2, 0, 0)

    run(scenario, mode)


@each_mode
def test_nobody_subscribed_is_known_at_once(mode: Mode) -> None:
    async def scenario(net: TestNetwork) -> None:
        async with net.connect("b0") as asker, net.connect("b2") as bus:
            for _ in range(2):
                began_at = net.now_s
                with pytest.raises(NoResponder, match="/price"):
                    await asker.request("/price", {"symbol": "ABB"}, timeout=1_000)
                assert net.now_s - began_at < 30
            async with bus.serve("/price", price, where="symbol = 'ABB'"):
                assert await asker.request("/price", {"symbol": "ABB"})
                with pytest.raises(NoResponder):
                    await asker.request("/price", {"symbol": "IBM"}, timeout=1_000)
            await asyncio.sleep(5)
            with pytest.raises(NoResponder):
                await asker.request("/price", {"symbol": "ABB"}, timeout=1_000)

    run(scenario, mode)


@pytest.mark.parametrize("at", ["b0", "b1", "b2"])
def test_an_archive_anywhere_is_nobody(at: str) -> None:
    async def scenario(net: TestNetwork) -> None:
        await net.keep_archive(at)
        async with net.connect("b0") as asker, net.connect("b2") as bus:
            began_at = net.now_s
            with pytest.raises(NoResponder):
                await asker.request("/price", timeout=1_000)
            assert net.now_s - began_at < 30
            async with bus.serve("/price", price):
                assert await asker.request("/price", {"symbol": "ABB"})

    run(scenario, "guaranteed")


@each_mode
def test_where_somebody_answers_nobody_is_asked_about_and_still_missed_at_once(
    mode: Mode, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    ask = ClientSession.ask_for_responders

    def count(self: ClientSession, number: int, topic: str, attributes: Any) -> None:
        asked.append(number)
        ask(self, number, topic, attributes)

    monkeypatch.setattr(ClientSession, "ask_for_responders", count)

    async def scenario(net: TestNetwork) -> None:
        async with net.connect("b0") as asker, net.connect("b0") as bus:
            async with bus.serve("/price", price):
                for _ in range(10):
                    await asker.request("/price", {"symbol": "ABB"})
                assert len(asked) == 1
            began_at = net.now_s
            with pytest.raises(NoResponder):
                await asker.request("/price", {"symbol": "ABB"}, timeout=1_000)
            assert (len(asked), net.now_s - began_at < 0.1) == (2, True)

    run(scenario, mode, brokers=1)


@each_mode
def test_an_exception_reaches_the_caller_with_its_text(mode: Mode) -> None:
    async def later(event: Event) -> None:
        raise LookupError

    async def scenario(net: TestNetwork) -> None:
        async with net.connect("b0") as asker, net.connect("b2") as bus:
            async with bus.serve("/price", price) as server, bus.serve("/later", later):
                with pytest.raises(RequestFailed, match=r"^KeyError: 'XYZ'$"):
                    await asker.request("/price", {"symbol": "XYZ"})
                with pytest.raises(RequestFailed, match=r"^LookupError$"):
                    await asker.request("/later")
                assert await asker.request("/price", {"symbol": "ABB"}), "the server goes on"
            assert (server.answered, server.failed) == (1, 1)

    run(scenario, mode)


def test_a_handler_may_say_exactly_what_the_caller_hears() -> None:
    def handler(event: Event) -> None:
        raise RequestFailed("closed on Sundays" if event.payload else "x" * 10_000)

    async def scenario(net: TestNetwork) -> None:
        async with net.connect("b0") as bus, bus.serve("/price", handler):
            with pytest.raises(RequestFailed, match=r"^closed on Sundays$"):
                await bus.request("/price", payload=b"?")
            with pytest.raises(RequestFailed) as failed:
                await bus.request("/price")
            assert str(failed.value) == "x" * MAX_ERROR_CHARACTERS

    run(scenario)


@each_mode
def test_no_answer_in_time_is_a_timeout_and_costs_a_slot_only(mode: Mode) -> None:
    async def handler(event: Event) -> bytes:
        if not event.payload:
            await asyncio.Event().wait()
        return event.payload

    async def scenario(net: TestNetwork) -> None:
        async with net.connect("b0") as asker, net.connect("b2") as bus:
            async with bus.serve("/price", handler, concurrency=2):
                began_at = net.now_s
                with pytest.raises(TimeoutError, match="no answer to the request on /price within 2 s"):
                    await asker.request("/price", timeout=timedelta(seconds=2))
                assert net.now_s - began_at == pytest.approx(2)
                assert (await asker.request("/price", payload=b"still", timeout=2)).payload == b"still"
                with pytest.raises(TimeoutError):
                    await asker.request("/price", timeout=1)
                with pytest.raises(TimeoutError):
                    await asker.request("/price", payload=b"no slot is left", timeout=1)
            assert not len(asker.requests)

    run(scenario, mode)


class Quote(msgspec.Struct):
    symbol: str
    price: float


@pytest.mark.parametrize(
    ("answer", "payload", "content_type"),
    [
        (None, b"", ""),
        (b"bytes", b"bytes", ""),
        ("text", b"text", "text/plain; charset=utf-8"),
        ({"a": 1}, b'{"a":1}', "application/json"),
        (Quote("ABB", 1.5), b'{"symbol":"ABB","price":1.5}', "application/json"),
        (({}, None), b"", ""),
        ((1, 2), b"[1,2]", "application/json"),
    ],
)
def test_what_a_handler_may_return(answer: object, payload: bytes, content_type: str) -> None:
    async def scenario(net: TestNetwork) -> None:
        async with net.connect("b0") as bus, bus.serve("/price", lambda event: answer):
            reply = await bus.request("/price")
            assert (reply.payload, reply.content_type) == (payload, content_type)

    run(scenario)


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        (object(), "cannot be encoded"),
        (({"a": object()}, b""), "unknown type object"),
        (({"topic": 1}, b""), "reserved"),
        (bytes(2**21), "bytes; at most"),
    ],
)
def test_an_answer_that_cannot_be_published_is_a_failure(answer: object, problem: str) -> None:
    async def scenario(net: TestNetwork) -> None:
        async with net.connect("b0") as bus, bus.serve("/price", lambda event: answer) as server:
            with pytest.raises(RequestFailed, match=problem):
                await bus.request("/price")
            assert (server.answered, server.failed) == (0, 1)

    run(scenario)


@each_mode
def test_plain_events_are_handled_and_their_answers_dropped(mode: Mode) -> None:
    async def scenario(net: TestNetwork) -> None:
        seen: list[bytes] = []
        async with net.connect("b0") as bus, bus.subscribe("/~reply/**") as replies:
            async with bus.serve("/price", lambda event: seen.append(event.payload)) as server:
                await bus.publish("/price", payload=b"plain")
                await bus.request("/price", payload=b"asked")
            assert sorted(seen) == [b"asked", b"plain"]
            assert server.answered == 1
            await asyncio.sleep(1)
            assert len(replies) == 1

    run(scenario, mode)


def test_a_plain_subscriber_counts_as_somebody() -> None:
    async def scenario(net: TestNetwork) -> None:
        async with net.connect("b0") as asker, net.connect("b2") as bus, bus.subscribe("/**"):
            with pytest.raises(TimeoutError):
                await asker.request("/price", timeout=1)

    run(scenario)


def test_the_first_of_several_answers_counts() -> None:
    def handler(name: str, delay_s: float) -> Callable[[Event], Any]:
        async def handle(event: Event) -> str:
            await asyncio.sleep(delay_s)
            return name

        return handle

    async def scenario(net: TestNetwork) -> None:
        async with net.connect("b0") as asker, net.connect("b2") as bus:
            async with bus.serve("/price", handler("slow", 1)), bus.serve("/price", handler("fast", 0.1)):
                assert (await asker.request("/price")).payload == b"fast"
                await asyncio.sleep(5)
                assert (await asker.request("/price")).payload == b"fast"

    run(scenario)


def test_late_duplicate_and_unknown_answers_are_ignored() -> None:
    async def scenario(net: TestNetwork) -> None:
        async with net.connect("b0") as asker, net.connect("b2") as bus, bus.subscribe("/price") as stream:
            for _ in range(2):
                asking = asyncio.create_task(asker.request("/price", timeout=2))
                question = await stream.get(5)
                assert question.reply_to.startswith("/~reply/")
                for request in ("unknown", "", question.request, question.request):
                    await bus.publish(question.reply_to, {}, TypedPayload(request.encode(), request=request))
                error = TypedPayload(b"late", ERROR_TYPE, request=question.request)
                await bus.publish(question.reply_to, {}, error)
                assert (await asking).payload == question.request.encode()
            late = asyncio.create_task(asker.request("/price", timeout=1))
            question = await stream.get(5)
            await asyncio.sleep(2)
            await bus.publish(question.reply_to, {}, TypedPayload(b"", request=question.request))
            with pytest.raises(TimeoutError):
                await late
            await asyncio.sleep(1)

    run(scenario)


@each_mode
def test_a_request_expires_with_its_timeout(mode: Mode) -> None:
    async def scenario(net: TestNetwork) -> None:
        seen: list[bytes] = []
        free = asyncio.Event()

        async def handler(event: Event) -> None:
            assert event.expires_at == pytest.approx(event.published_at + 3e9, abs=1e9)
            seen.append(event.payload)
            await free.wait()

        async with net.connect("b0") as asker, net.connect("b2") as bus:
            async with bus.serve("/price", handler, concurrency=1):
                for payload in (b"taken", b"waits for its turn"):
                    with pytest.raises(TimeoutError):
                        await asker.request("/price", payload=payload, timeout=3)
                await asyncio.sleep(0.1)
                free.set()
                await asker.request("/price", payload=b"in time", timeout=3)
        assert seen == [b"taken", b"in time"]

    run(scenario, mode)


@pytest.mark.parametrize("where", ["b0", "b1", "b2"])
def test_a_server_that_comes_late_does_not_work_for_nobody(where: str) -> None:
    async def scenario(net: TestNetwork) -> None:
        seen: list[bytes] = []
        async with net.connect("b0") as asker, net.connect(where) as bus:
            async with bus.subscribe("/price", group="pricing"):
                pass  # the group is there, and nobody in it
            with pytest.raises(NoResponder):
                await asker.request("/price", payload=b"late", timeout=3)
            assert (await bus.durable_subscriptions())[0]["waiting"] == 1
            await asyncio.sleep(4)
            async with bus.serve(
                "/price", lambda event: seen.append(event.payload), group="pricing"
            ) as server:
                await asker.request("/price", payload=b"in time")
                assert server._stream.expired == 1
                await asyncio.sleep(1)
            [row] = await bus.durable_subscriptions()
            assert (row["waiting"], row["expired"]) == (0, 1)
        assert seen == [b"in time"]

    run(scenario, "guaranteed")


def test_many_requests_at_once_get_their_own_answers() -> None:
    async def handler(event: Event) -> bytes:
        await asyncio.sleep(int(event.payload) % 7 / 10)
        return event.payload

    async def scenario(net: TestNetwork) -> None:
        async with net.connect("b0") as asker, net.connect("b2") as bus, bus.serve("/price", handler):
            asked = [str(number).encode() for number in range(500)]
            replies = await asyncio.gather(
                *(asker.request("/price", payload=one, timeout=60) for one in asked)
            )
            assert [reply.payload for reply in replies] == asked

    run(scenario)


def test_the_number_of_waiting_requests_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "MAX_PENDING", 3)

    async def scenario(net: TestNetwork) -> None:
        async with net.connect("b0") as asker, net.connect("b2") as bus, bus.subscribe("/price"):
            waiting = [asyncio.create_task(asker.request("/price", timeout=2)) for _ in range(3)]
            await asyncio.sleep(1)
            with pytest.raises(RequestFailed, match="3 requests of this client are waiting"):
                await asker.request("/price")
            await asyncio.gather(*waiting, return_exceptions=True)
            with pytest.raises(TimeoutError):
                await asker.request("/price", timeout=1)

    run(scenario)


def test_a_cancelled_request_is_forgotten() -> None:
    async def scenario(net: TestNetwork) -> None:
        async with net.connect("b0") as asker, net.connect("b2") as bus, bus.subscribe("/price"):
            asking = asyncio.create_task(asker.request("/price", timeout=100))
            await asyncio.sleep(1)
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)
            assert asking.cancelled()
            assert not len(asker.requests)

    run(scenario)


def test_closing_the_bus_ends_its_requests_and_its_servers() -> None:
    async def scenario(net: TestNetwork) -> None:
        bus = net.connect("b0")
        await bus.open()
        async with bus.subscribe("/price"):
            asking = asyncio.create_task(bus.request("/price", timeout=100))
            server = await bus.serve("/other", price).__aenter__()
            await asyncio.sleep(1)
            await bus.close()
            for waiting in (asking, server.wait()):
                with pytest.raises(ConnectionFailed):
                    await waiting
            with pytest.raises(ConnectionFailed):
                await bus.request("/price")
            await server.__aexit__(None, None, None)

    run(scenario)


def test_a_client_that_returns_under_its_name_ignores_answers_for_its_earlier_life() -> None:
    async def scenario() -> None:
        async with embedded(2, mode="guaranteed") as bus, bus.subscribe("/price") as stream:
            async with bus.connect(name="asker") as asker:
                asking = asyncio.create_task(asker.request("/price", timeout=20))
                old = await stream.get(20)
                asking.cancel()
            async with bus.connect(name="asker") as asker:
                asking = asyncio.create_task(asker.request("/price", timeout=20))
                new = await stream.get(20)
                assert (new.reply_to, new.request != old.request) == (old.reply_to, True)
                for question in (old, new):
                    answer = TypedPayload(question.request.encode(), request=question.request)
                    await bus.publish(question.reply_to, {}, answer)
                assert (await asking).payload == new.request.encode()

    asyncio.run(scenario())


@pytest.mark.parametrize("name", ["a/b", "*", "ü#+.>", "x" * 200])
def test_any_name_of_a_client_makes_a_topic(name: str) -> None:
    async def scenario(net: TestNetwork) -> None:
        async with net.connect("b0", name=name) as bus, bus.serve("/price", lambda event: b"!"):
            assert (await bus.request("/price")).payload == b"!"

    run(scenario)


@pytest.mark.parametrize("mode", ["best-effort", "guaranteed"])
def test_requests_and_answers_have_their_places_in_an_order(mode: Mode) -> None:
    async def scenario(net: TestNetwork) -> None:
        async with (
            net.connect("b0") as asker,
            net.connect("b2") as bus,
            bus.subscribe("/**", order="total") as ordered,
            bus.serve("/price", price),
        ):
            for _ in range(3):
                await asker.request("/price", {"symbol": "ABB"}, timeout=60)
            topics = [(await ordered.get(60)).topic for _ in range(6)]
            assert topics == ["/price", "/~reply/client-1"] * 3

    run(scenario, mode)


# --- Groups


def test_each_request_goes_to_one_member_of_a_group() -> None:
    async def scenario(net: TestNetwork) -> None:
        seen: dict[str, int] = {"one": 0, "two": 0}

        def handler(name: str) -> Callable[[Event], str]:
            def handle(event: Event) -> str:
                seen[name] += 1
                return name

            return handle

        async with net.connect("b0") as asker, net.connect("b1") as one, net.connect("b2") as two:
            async with (
                one.serve("/price", handler("one"), group="pricing"),
                two.serve("/price", handler("two"), group="pricing"),
            ):
                for _ in range(10):
                    await asker.request("/price", timeout=10)
                await asyncio.sleep(10)
        assert sum(seen.values()) == 10

    run(scenario, "guaranteed")


def test_another_member_answers_for_one_that_goes() -> None:
    async def scenario(net: TestNetwork) -> None:
        taken = asyncio.Event()

        async def never(event: Event) -> None:
            taken.set()
            await asyncio.Event().wait()

        async with net.connect("b0") as asker, net.connect("b2") as one, net.connect("b2") as two:
            async with one.serve("/price", never, group="pricing"):
                asking = asyncio.create_task(asker.request("/price", timeout=60))
                await taken.wait()
            async with two.serve("/price", lambda event: str(event.attempt), group="pricing"):
                assert (await asking).payload == b"2"
                assert (await asker.request("/price")).payload == b"1", "the other one was acknowledged"

    run(scenario, "guaranteed")


def test_a_member_that_leaves_after_its_answer_is_done_with_the_request() -> None:
    async def scenario(net: TestNetwork) -> None:
        handled: list[int] = []

        def note(event: Event) -> str:
            handled.append(event.attributes["n"])  # type: ignore[arg-type]
            return "done"

        async with net.connect("b0") as asker, net.connect("b1") as one, net.connect("b2") as two:
            for number in range(3):
                async with one.serve("/price", note, group="pricing"):
                    await asker.request("/price", {"n": number}, timeout=60)
                await asyncio.sleep(1)
            async with two.serve("/price", note, group="pricing"):
                await asyncio.sleep(10)
            assert handled == [0, 1, 2]

            begun = asyncio.Event()

            async def never(event: Event) -> None:
                begun.set()
                await asyncio.sleep(3600)

            async with two.serve("/price", never, group="pricing"):
                answer = asyncio.create_task(asker.request("/price", {"n": 3}, timeout=60))
                await begun.wait()
            async with one.serve("/price", note, group="pricing"):
                assert (await answer).text == "done"

    simulate(scenario, brokers=3, mode="guaranteed")


async def ask_nobody(net: TestNetwork, asker: Bus) -> None:
    """Ask, and hear at once that nobody is there."""
    began_at = net.now_s
    with pytest.raises(NoResponder, match="/price"):
        await asker.request("/price", timeout=1_000)
    assert net.now_s - began_at < 0.5


async def ask_in_vain(asker: Bus, timeout_s: float = 3) -> None:
    with pytest.raises(TimeoutError, match="no answer"):
        await asker.request("/price", timeout=timeout_s)


KINDS = ({"group": "pricing"}, {"durable": "pricing"}, {"durable": "pricing", "order": "fifo"})
each_home = pytest.mark.parametrize("where", ["b0", "b2"])


@each_home
@pytest.mark.parametrize("options", KINDS, ids=["group", "durable", "fifo"])
def test_what_waits_for_nobody_is_nobody(where: str, options: dict[str, Any]) -> None:
    async def scenario(net: TestNetwork) -> None:
        async with net.connect("b0") as asker, net.connect(where, name="holder") as bus:
            async with bus.subscribe("/price", **options):
                await ask_in_vain(asker)  # somebody is there, whether it answers or not
            await ask_nobody(net, asker)
            async with bus.subscribe("/price", **options):
                await ask_in_vain(asker)
            await ask_nobody(net, asker)
            async with bus.subscribe("/price"):
                await ask_in_vain(asker)

    run(scenario, "guaranteed")


@each_home
def test_a_holder_that_dies_is_nobody(where: str) -> None:
    async def scenario(net: TestNetwork) -> None:
        async with net.connect("b0") as asker:
            bus = net.connect(where)
            await bus.open()
            server = bus.serve("/price", price_later, group="pricing")
            await server.__aenter__()
            assert (await asker.request("/price", {"symbol": "ABB"}, timeout=5)).attributes["price"] == 12.5
            await bus.connection.close()
            await asyncio.sleep(1)
            await ask_nobody(net, asker)
            with suppress(ConnectionFailed):
                await server.__aexit__(None, None, None)

    run(scenario, "guaranteed")


def test_all_that_select_a_request_must_be_without_holders() -> None:
    async def scenario(net: TestNetwork) -> None:
        async with net.connect("b0") as asker, net.connect("b1") as one, net.connect("b2") as two:
            async with one.subscribe("/price", group="one"), two.subscribe("/*", durable="two"):
                pass
            async with asker.subscribe("/price", durable="three"):
                pass
            await ask_nobody(net, asker)
            async with one.subscribe("/price", group="one"):
                await ask_in_vain(asker)
            await ask_nobody(net, asker)
            async with asker.subscribe("/price", durable="three"):
                await ask_in_vain(asker)
            async with two.serve("/price", price, group="two-too"):
                assert await asker.request("/price", {"symbol": "ABB"})
            await ask_nobody(net, asker)

    run(scenario, "guaranteed")


def cut_off(net: TestNetwork) -> None:
    net.cut("b0", "b2")
    net.cut("b1", "b2")


def join_again(net: TestNetwork) -> None:
    net.heal("b0", "b2")
    net.heal("b1", "b2")


@pytest.mark.parametrize("since_s", [0.0, 5.0, 60.0])
@pytest.mark.parametrize("is_down", [False, True], ids=["cut off", "down"])
def test_a_home_that_cannot_be_reached_may_have_holders(since_s: float, is_down: bool) -> None:
    async def scenario(net: TestNetwork) -> None:
        async with net.connect("b0") as asker:
            async with net.connect("b2") as bus, bus.subscribe("/price", group="pricing"):
                pass
            await ask_nobody(net, asker)
            net.crash("b2") if is_down else cut_off(net)
            await asyncio.sleep(since_s)
            await ask_in_vain(asker, 30)
            net.restart("b2") if is_down else join_again(net)
            await asyncio.sleep(20)
            await ask_nobody(net, asker)

    run(scenario, "guaranteed")


@each_home
def test_after_a_restart_of_the_home_its_holders_may_return(where: str) -> None:
    async def scenario(net: TestNetwork) -> None:
        async with net.connect("b0" if where == "b2" else "b1") as asker:
            async with net.connect(where) as bus, bus.subscribe("/price", group="pricing"):
                pass
            net.crash(where)
            await asyncio.sleep(5)
            net.restart(where)
            await asyncio.sleep(5)
            await ask_in_vain(asker, 2)
            await asyncio.sleep(5)
            await ask_nobody(net, asker)

    run(scenario, "guaranteed")


def test_a_durable_subscription_that_moves_counts_where_it_is() -> None:
    async def scenario(net: TestNetwork) -> None:
        async with net.connect("b0") as asker, net.connect("b2", name="two") as bus:
            async with asker.subscribe("/price", durable="pricing"):
                pass
            async with bus.subscribe("/price", durable="pricing"):
                for _ in range(10):
                    await ask_in_vain(asker, 2)
                [row] = await bus.durable_subscriptions()
                assert row["broker"] == "b2"
            await ask_nobody(net, asker)  # also the former home, b0, gets the request

    run(scenario, "guaranteed")


def test_many_questions_about_a_group_elsewhere_are_few() -> None:
    async def scenario(net: TestNetwork) -> None:
        asked: list[object] = []

        async with net.connect("b0") as asker, net.connect("b2") as bus:
            async with bus.subscribe("/price", group="pricing"):
                pass
            answer = HeldShare._answer_aside

            def count(self: HeldShare, *arguments: Any) -> None:
                asked.append(arguments)
                answer(self, *arguments)

            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(HeldShare, "_answer_aside", count)
                await asyncio.gather(*(ask_nobody(net, asker) for _ in range(500)))
            assert 1 <= len(asked) <= 3

    run(scenario, "guaranteed")


def test_who_asks_after_a_member_attached_knows_it() -> None:
    """Its question is not answered with the answer to an earlier one, which is still on its way."""

    async def scenario(net: TestNetwork) -> None:
        async with net.connect("b0") as asker, net.connect("b2") as bus:
            async with bus.subscribe("/price", group="pricing"):
                pass
            for wait_ms in range(0, 60, 3):
                await asyncio.sleep(3)  # until the topic is not trusted any more
                asking = asyncio.create_task(ask_nobody(net, asker))
                await asyncio.sleep(wait_ms / 1_000)
                async with bus.serve("/price", price, group="pricing"):
                    assert await asker.request("/price", {"symbol": "ABB"}, timeout=5)
                    with suppress(RequestFailed):
                        await asking

    simulate(scenario, brokers=3, mode="guaranteed", delay_ms=10)


# --- Bad input


@pytest.mark.parametrize("timeout", [0, -1, float("nan"), float("inf"), "2", None, timedelta(0)])
def test_a_timeout_that_is_none(timeout: Any) -> None:
    async def scenario(net: TestNetwork) -> None:
        async with net.connect("b0") as bus:
            with pytest.raises(ValueError, match="timeout must be a positive number of seconds"):
                await bus.request("/price", timeout=timeout)

    run(scenario)


def test_topics_and_handlers_that_are_none() -> None:
    async def scenario(net: TestNetwork) -> None:
        async with net.connect("b0") as bus:
            for topic in ("price", "/a/*", ""):
                with pytest.raises(TopicError):
                    await bus.request(topic)
            with pytest.raises(TopicError):
                bus.serve("price", price)
            with pytest.raises(ValueError, match="handler must be a function"):
                bus.serve("/price", "price")  # type: ignore[arg-type]
            for concurrency in (0, -1, 1.5, 10**9):
                with pytest.raises(ValueError, match="concurrency must be between"):
                    bus.serve("/price", price, concurrency=concurrency)  # type: ignore[arg-type]
            with pytest.raises(ValueError, match="inside its 'async with'"):
                await bus.serve("/price", price).wait()

    run(scenario)


def test_a_bus_that_is_not_open() -> None:
    async def scenario(net: TestNetwork) -> None:
        bus: Bus = net.connect("b0")
        with pytest.raises(ConnectionFailed):
            await bus.request("/price")

    run(scenario)
