"""Lets SIGINT and SIGTERM end a command through its own clean-up, with or without an event loop."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Awaitable, Coroutine
from contextlib import suppress
from pathlib import Path
from threading import Timer, main_thread
from typing import Any, TypeVar

from tidings.cli.shared.exits import ExitCode

Result = TypeVar("Result")
RAISE_AGAIN_S = 0.01
SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Stopped(Exception):  # noqa: N818 - the user's wish, not a failure
    """Raised when a signal has ended the command, after its clean-up."""

    def __init__(self, number: int, to_continue: str = "") -> None:
        """Keep the signal; `to_continue` tells the user how to continue."""
        then = f"; to continue, {to_continue}" if to_continue else ""
        super().__init__(f"stopped by {signal.Signals(number).name}{then}")
        self.number = number
        self.to_continue = to_continue

    @property
    def by_user(self) -> bool:
        return self.number == signal.SIGINT


class Terminated(SystemExit):
    """Raised by SIGTERM outside an event loop. Like KeyboardInterrupt, it passes through `except Exception`."""

    def __init__(self) -> None:
        super().__init__(ExitCode.SIGNAL_BASE + signal.SIGTERM)


def raise_on_signals() -> None:
    """Make SIGTERM raise Terminated in the main thread, and SIGINT KeyboardInterrupt."""

    def terminate(number: int, frame: object) -> None:
        # Only the first signal counts: a second one (`timeout` sends two) would cut the clean-up short.
        signal.signal(number, lambda number, frame: None)
        raise Terminated

    signal.signal(signal.SIGTERM, terminate)
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:  # shells ignore SIGINT for background jobs
        signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.unraisablehook = _raise_again


def _raise_again(unraisable: sys.UnraisableHookArgs) -> None:
    """Raise a signal again that arrived where Python cannot raise, such as in a destructor, and would only print it."""
    error = unraisable.exc_value
    if not isinstance(error, KeyboardInterrupt | Terminated):
        sys.__unraisablehook__(unraisable)
        return
    number = signal.SIGINT if isinstance(error, KeyboardInterrupt) else signal.SIGTERM
    raise_on_signals()
    # Not from here, where raising fails as well, but in the main thread, whose wait it must interrupt.
    Timer(RAISE_AGAIN_S, signal.pthread_kill, (main_thread().ident, number)).start()


def end_children() -> None:
    """End child processes that are still running, if the system can list them.

    If pyspark is interrupted while it starts its JVM, it forgets the JVM, which would stay for ever.
    """
    for listed in Path("/proc/self/task").glob("*/children"):
        with suppress(OSError):  # threads and processes that have ended
            for child in listed.read_text().split():
                os.kill(int(child), signal.SIGTERM)


async def first_of(*lives: Awaitable[object]) -> None:
    """Wait until one of them ends, cancel the others, and raise its error if it failed."""
    tasks = [asyncio.ensure_future(life) for life in lives]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def run(work: Coroutine[Any, Any, Result]) -> Result:
    """Return the result of `work`; raise Stopped if SIGINT or SIGTERM came first."""
    from tidings.drivers.sockets.loop import run as run_loop

    before = {number: signal.getsignal(number) for number in SIGNALS}
    watched = _until_signal(work)
    try:
        return run_loop(watched)
    finally:
        for coroutine in (watched, work):  # a signal may arrive before they start; then they never do
            coroutine.close()
        # The command may continue without the loop, whose handlers no longer do anything.
        for number, handler in before.items():
            if handler is not None:  # None if it was not set by Python
                signal.signal(number, handler)


async def _until_signal(work: Coroutine[Any, Any, Result]) -> Result:
    loop = asyncio.get_running_loop()
    task = loop.create_task(work)
    received: list[int] = []

    def stop(number: int) -> None:
        # Only the first signal counts: a second would cancel the clean-up, which is bounded in time.
        if not received:
            received.append(number)
            task.cancel()

    for number in SIGNALS:
        with suppress(NotImplementedError):  # the platform has no such handlers; asyncio's own apply
            loop.add_signal_handler(number, stop, number)
    try:
        return await task
    except asyncio.CancelledError:
        if received:
            raise Stopped(received[0]) from None
        raise
