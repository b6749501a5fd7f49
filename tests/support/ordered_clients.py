"""Clients of an embedded network with an order, and what they were shown."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Awaitable, Callable
from typing import Any

import tidings
from tidings.bus.embedded import Embedded

MODES = ("best-effort", "guaranteed", "epidemic")
TIMEOUT_S = 60.0

Scenario = Callable[[Embedded], Awaitable[None]]


def run(scenario: Scenario, **options: Any) -> None:
    """The scenario in an embedded network; no task and no error that nobody heard of may be left behind."""
    asyncio.run(run_in_network(scenario, **options))


async def run_in_network(scenario: Scenario, **options: Any) -> None:
    problems: list[str] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: problems.append(str(context)))
    async with asyncio.timeout(TIMEOUT_S):
        network = tidings.embedded(**options)
        async with network:
            await scenario(network)
        await asyncio.sleep(0)  # tasks that are done by now have this turn to go
        left = asyncio.all_tasks() - {asyncio.current_task()}
        assert not left, f"left behind: {left}"
    del network
    gc.collect()  # what was never retrieved is said when it is collected
    await asyncio.sleep(0)
    assert not problems, problems


async def take(stream: tidings.Stream, count: int) -> list[tidings.Event]:
    return [await stream.get(TIMEOUT_S) for _ in range(count)]


async def quiet(stream: tidings.Stream) -> bool:
    """Whether nothing more comes in a while."""
    await asyncio.sleep(0.02)
    return not len(stream)


def numbers(events: list[tidings.Event]) -> list[object]:
    return [event.attributes["n"] for event in events]
