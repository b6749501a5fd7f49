"""Random courses of requests: servers come, go and die, handlers answer, fail or never end. Every request ends once,
with its own answer, its own failure, a timeout, or the news that nobody is there, and that only if it may be true."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from math import inf
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from breadth import examples
from tidings.bus.bus import Bus
from tidings.bus.requests import PendingRequests
from tidings.core.errors import ConnectionFailed, NoResponder, RequestFailed
from tidings.core.events.event import Event
from tidings.core.overlay.routing import RoutingTable
from tidings.testing import TestNetwork, simulate

REQUESTS = 40
LASTS_S = 30.0
SLACK_S = 0.2
KNOWN_S = 2.0
"""How long the whole network takes at most to know that a server has come or gone in order."""


class Course:
    """One random course; `is_group` needs a guaranteed network."""

    def __init__(self, net: TestNetwork, random: Random, *, is_group: bool) -> None:
        self.net = net
        self.random = random
        self.group = "pricing" if is_group else None
        self.serving: list[list[float]] = []
        """When servers served, from acceptance to their end in order or by death."""
        self.outcomes: list[str] = []

    async def run(self) -> None:
        servers = [self.serve(number) for number in range(self.random.randrange(4))]
        async with self.net.connect("b0") as asker:
            await asyncio.gather(*servers, *(self.ask(asker, number) for number in range(REQUESTS)))
            assert not len(asker.requests)
        assert len(self.outcomes) == REQUESTS

    # --- Servers

    async def serve(self, number: int) -> None:
        random = self.random
        await asyncio.sleep(random.uniform(0, LASTS_S / 2))
        bus = self.net.connect(f"b{number % 3}", name=f"server-{number}")
        await bus.open()
        server = bus.serve("/price", self.handle, group=self.group, concurrency=random.choice((1, 4, 16)))
        await server.__aenter__()
        served = [self.net.now_s, inf]
        self.serving.append(served)
        await asyncio.sleep(random.uniform(0, LASTS_S))
        served[1] = self.net.now_s
        if random.random() < 0.5:
            await bus.connection.close()  # without a word, as a process dies
        with suppress(ConnectionFailed):
            await server.__aexit__(None, None, None)
            await bus.close()

    async def handle(self, event: Event) -> bytes:
        kind = self.random.random()
        await asyncio.sleep(self.random.choice((0.0, 0.0, 0.05, 1.0)))
        if kind < 0.1:
            await asyncio.sleep(LASTS_S)
        if kind < 0.3:
            raise ValueError(event.payload.decode())
        return event.payload

    # --- Requests

    async def ask(self, asker: Bus, number: int) -> None:
        await asyncio.sleep(self.random.uniform(0, LASTS_S * 1.5))
        timeout_s = self.random.choice((0.01, 0.5, 5.0))
        own = f"request {number}"
        began_at = self.net.now_s
        said = ""
        try:
            reply = await asker.request("/price", {"n": number}, own.encode(), timeout=timeout_s)
            outcome = "answer"
            said = reply.text
        except RequestFailed as failed:
            outcome = "failure"
            said = str(failed).removeprefix("ValueError: ")
        except NoResponder:
            outcome = "nobody"
        except TimeoutError:
            outcome = "timeout"
        ended_at = self.net.now_s
        assert said == (own if outcome in ("answer", "failure") else "")
        self.outcomes.append(outcome)
        self.check(outcome, timeout_s, began_at, ended_at)

    def check(self, outcome: str, timeout_s: float, began_at: float, ended_at: float) -> None:
        assert ended_at - began_at <= timeout_s + SLACK_S
        if outcome == "nobody":
            assert not any(begin + KNOWN_S <= began_at and ended_at <= end for begin, end in self.serving), (
                "somebody served all the time"
            )
        if outcome == "timeout":
            assert ended_at - began_at >= timeout_s - SLACK_S


def course(seed: int, kind: str) -> None:
    """Run the course with this seed in that mode, or with a group."""
    mode = "guaranteed" if kind == "group" else kind

    async def scenario(net: TestNetwork) -> None:
        await Course(net, Random(seed), is_group=kind == "group").run()

    simulate(scenario, seed=seed, brokers=3, mode=mode)  # type: ignore[arg-type]


@given(st.integers(0, 100_000), st.sampled_from(("best-effort", "epidemic", "guaranteed", "group")))
@settings(max_examples=examples(40), deadline=None)
def test_every_request_ends_once_and_rightly(seed: int, kind: str) -> None:
    course(seed, kind)


@given(st.integers(0, 100_000), st.sampled_from(("best-effort", "epidemic", "guaranteed")))
@settings(max_examples=examples(20), deadline=None)
def test_with_losses_between_brokers_every_request_still_ends(seed: int, mode: str) -> None:
    async def scenario(net: TestNetwork) -> None:
        await Course(net, Random(seed), is_group=False).run()

    simulate(scenario, seed=seed, brokers=3, mode=mode, loss=0.05, delay_ms=5)  # type: ignore[arg-type]


# --- Planted bugs are found


def some_course_fails(seeds: range = range(20)) -> bool:
    for seed in seeds:
        try:
            course(seed, "best-effort")
        except AssertionError:
            return True
    return False


def test_an_answer_for_somebody_else_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def take_any(self: PendingRequests, event: Event) -> None:
        for waiting in self._pending.values():
            if not waiting.answer.done():
                waiting.answer.set_result(event)
                return

    assert not some_course_fails()
    monkeypatch.setattr(PendingRequests, "_on_answer", take_any)
    assert some_course_fails()


def test_a_broker_that_sees_nobody_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RoutingTable, "leads_anywhere", lambda self, selection: False)
    assert some_course_fails()


def test_a_request_that_outlives_its_timeout_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    ask = PendingRequests.ask

    async def ask_longer(self: PendingRequests, *request: Any) -> Event:
        return await ask(self, *request[:-1], request[-1] + 1)

    monkeypatch.setattr(PendingRequests, "ask", ask_longer)
    assert some_course_fails()
