"""A process of ours: started, told things, stopped and continued, killed, and never left behind.

It holds the other end of a pipe to us, its stdin, and is to end when that closes: so none survives its parent,
even one that is killed. Only processes that were started here are ever signalled.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections import deque
from collections.abc import Sequence
from contextlib import suppress

STOP_TIMEOUT_S = 5.0
KEPT_ERROR_LINES = 20


class ChildProcess:
    """May be started again once it has ended."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.prefix: tuple[str, ...] = ()
        """What its command is run with, such as the entry of a network namespace."""
        self._process: asyncio.subprocess.Process | None = None
        self._reader: asyncio.Task[None] | None = None
        self._errors: deque[str] = deque(maxlen=KEPT_ERROR_LINES)

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.returncode is None

    @property
    def last_error_line(self) -> str:
        """The last thing that it said on stderr."""
        return _plain(self._errors[-1]) if self._errors else ""

    @property
    def ending(self) -> str:
        """How it ended, in words."""
        code = None if self._process is None else self._process.returncode
        if code is None:
            return "still running"
        return f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"

    async def spawn(self, command: Sequence[str]) -> asyncio.StreamReader:
        """Start it; what is returned is its stdout."""
        self._errors.clear()
        self._process = process = await asyncio.create_subprocess_exec(
            *self.prefix,
            *command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env={key: value for key, value in os.environ.items() if not key.startswith("TIDINGS_")},
            start_new_session=True,  # Ctrl-C is for us; we tell them
        )
        assert process.stdout is not None
        assert process.stderr is not None
        self._reader = asyncio.create_task(self._read_errors(process.stderr))
        return process.stdout

    async def _read_errors(self, stderr: asyncio.StreamReader) -> None:
        async for line in stderr:
            self._errors.append(line.decode(errors="backslashreplace").rstrip())

    def tell(self, line: bytes) -> None:
        """One line on its stdin; lost if it is ending."""
        if self.running:
            assert self._process is not None
            assert self._process.stdin is not None
            self._process.stdin.write(line)

    def close_stdin(self) -> None:
        """Which is to end it."""
        if self.running:
            assert self._process is not None
            assert self._process.stdin is not None
            self._process.stdin.close()

    def kill(self) -> None:
        """kill -9: no goodbye."""
        self._signal(signal.SIGKILL)

    def pause(self) -> None:
        """It stands still until `resume`."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    async def wait(self) -> None:
        """Until it has ended and all that it said has been read."""
        if self._process is not None:
            await self._process.wait()
        if self._reader is not None:
            await self._reader

    async def stop(self) -> None:
        """SIGTERM, and SIGKILL to who has not ended some seconds later."""
        self._signal(signal.SIGTERM)
        self._signal(signal.SIGCONT)
        try:
            async with asyncio.timeout(STOP_TIMEOUT_S):
                await self.wait()
        except TimeoutError:
            self.kill()
            await self.wait()

    def _signal(self, number: signal.Signals) -> None:
        if self._process is not None and self._process.returncode is None:
            with suppress(ProcessLookupError):
                self._process.send_signal(number)


def _plain(line: str) -> str:
    """What an error line of a child says, without its wrapping."""
    try:
        return str(json.loads(line)["error"])
    except (ValueError, TypeError, KeyError):
        return line.removeprefix("tidings: ")
