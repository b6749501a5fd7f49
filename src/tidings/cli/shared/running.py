"""SIGINT and SIGTERM end a command through its own clean-up, whether it runs in an event loop or without one."""

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
    """A signal cut the command short; its clean-up has run."""

    def __init__(self, number: int, to_continue: str = "") -> None:
        """`to_continue` is what the user may want to know."""
        then = f"; to continue, {to_continue}" if to_continue else ""
        super().__init__(f"stopped by {signal.Signals(number).name}{then}")
        self.number = number
        self.to_continue = to_continue

    @property
    def by_user(self) -> bool:
        return self.number == signal.SIGINT


class Terminated(SystemExit):
    """SIGTERM where no event loop runs. Like KeyboardInterrupt, it is nothing that `except Exception` holds up."""

    def __init__(self) -> None:
        super().__init__(ExitCode.SIGNAL_BASE + signal.SIGTERM)


def raise_on_signals() -> None:
    """From now on SIGTERM raises Terminated in the main thread, and SIGINT KeyboardInterrupt."""

    def terminate(number: int, frame: object) -> None:
        # Only the first: a second (`timeout` sends two) would cut the clean-up short.
        signal.signal(number, lambda number, frame: None)
        raise Terminated

    signal.signal(signal.SIGTERM, terminate)
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:  # a shell ignores it for us in the background
        signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.unraisablehook = _raise_again


def _raise_again(unraisable: sys.UnraisableHookArgs) -> None:
    """A signal that came where Python cannot raise, as in a destructor: Python would print it and forget it."""
    error = unraisable.exc_value
    if not isinstance(error, KeyboardInterrupt | Terminated):
        sys.__unraisablehook__(unraisable)
        return
    number = signal.SIGINT if isinstance(error, KeyboardInterrupt) else signal.SIGTERM
    raise_on_signals()
    # Not here, for this is no better place; and to the main thread, whose wait it is to interrupt.
    Timer(RAISE_AGAIN_S, signal.pthread_kill, (main_thread().ident, number)).start()


def end_children() -> None:
    """Whoever this process started and did not wait for ends, too, where the system tells who that is.

    When pyspark is cut short while it starts its JVM, it forgets it, and the JVM would stay for ever.
    """
    for listed in Path("/proc/self/task").glob("*/children"):
        with suppress(OSError):  # threads and processes that ended by themselves
            for child in listed.read_text().split():
                os.kill(int(child), signal.SIGTERM)


async def first_of(*lives: Awaitable[object]) -> None:
    """Until one of them ends, which ends the others; its error is raised."""
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
    """The result of `work`; Stopped if SIGINT or SIGTERM came first."""
    from tidings.drivers.sockets.loop import run as run_loop

    before = {number: signal.getsignal(number) for number in SIGNALS}
    watched = _until_signal(work)
    try:
        return run_loop(watched)
    finally:
        for coroutine in (watched, work):  # a signal may come before they begin: then they never do
            coroutine.close()
        # The command may go on without a loop, whose own handlers do nothing from then on.
        for number, handler in before.items():
            if handler is not None:  # else it was not Python that set it
                signal.signal(number, handler)


async def _until_signal(work: Coroutine[Any, Any, Result]) -> Result:
    loop = asyncio.get_running_loop()
    task = loop.create_task(work)
    received: list[int] = []

    def stop(number: int) -> None:
        # Only the first: a second would cancel the clean-up, which is bounded in time.
        if not received:
            received.append(number)
            task.cancel()

    for number in SIGNALS:
        with suppress(NotImplementedError):  # no such handlers on this platform: asyncio's own apply
            loop.add_signal_handler(number, stop, number)
    try:
        return await task
    except asyncio.CancelledError:
        if received:
            raise Stopped(received[0]) from None
        raise
