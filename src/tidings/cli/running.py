"""Runs a command's coroutine so that SIGINT and SIGTERM end it through its own clean-up."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, TypeVar

Result = TypeVar("Result")


class Stopped(Exception):  # noqa: N818 - the user's wish, not a failure
    """A signal cut the command short; its clean-up has run."""

    def __init__(self, number: int) -> None:
        super().__init__(f"stopped by {signal.Signals(number).name}")
        self.number = number


def run(work: Coroutine[Any, Any, Result]) -> Result:
    """The result of `work`; Stopped if SIGINT or SIGTERM came first."""
    from tidings.net.loop import run as run_loop

    return run_loop(_until_signal(work))


async def _until_signal(work: Coroutine[Any, Any, Result]) -> Result:
    loop = asyncio.get_running_loop()
    task = loop.create_task(work)
    received: list[int] = []

    def stop(number: int) -> None:
        # Only the first: a second would cancel the clean-up, which is bounded in time.
        if not received:
            received.append(number)
            task.cancel()

    for number in (signal.SIGINT, signal.SIGTERM):
        with suppress(NotImplementedError):  # no such handlers on this platform: asyncio's own apply
            loop.add_signal_handler(number, stop, number)
    try:
        return await task
    except asyncio.CancelledError:
        if received:
            raise Stopped(received[0]) from None
        raise
