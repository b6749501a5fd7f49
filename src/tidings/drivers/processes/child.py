"""A child process: started, controlled, paused, killed, and never left behind.

Its stdin is a pipe from us, and it must end when the pipe closes. So it does not survive its parent, even if that is
killed. Only processes started here are ever signalled.
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
    """A child process, which can be started again once it has ended."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.prefix: tuple[str, ...] = ()
        """Put in front of its command, such as the command that enters a network namespace."""
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
        """The last line that it wrote to stderr."""
        return _plain(self._errors[-1]) if self._errors else ""

    @property
    def ending(self) -> str:
        """How it ended, in words: its exit code or signal."""
        code = None if self._process is None else self._process.returncode
        if code is None:
            return "still running"
        return f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"

    async def spawn(self, command: Sequence[str]) -> asyncio.StreamReader:
        """Start it and return its stdout."""
        self._errors.clear()
        self._process = process = await asyncio.create_subprocess_exec(
            *self.prefix,
            *command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env={key: value for key, value in os.environ.items() if not key.startswith("TIDINGS_")},
            start_new_session=True,  # Ctrl-C reaches only us, and we stop the children
        )
        assert process.stdout is not None
        assert process.stderr is not None
        self._reader = asyncio.create_task(self._read_errors(process.stderr))
        return process.stdout

    async def _read_errors(self, stderr: asyncio.StreamReader) -> None:
        async for line in stderr:
            self._errors.append(line.decode(errors="backslashreplace").rstrip())

    def tell(self, line: bytes) -> None:
        """Write one line to its stdin; the line is lost if the process has ended."""
        if self.running:
            assert self._process is not None
            assert self._process.stdin is not None
            self._process.stdin.write(line)

    def close_stdin(self) -> None:
        """Close its stdin, which makes it end."""
        if self.running:
            assert self._process is not None
            assert self._process.stdin is not None
            self._process.stdin.close()

    def kill(self) -> None:
        """Kill it (kill -9)."""
        self._signal(signal.SIGKILL)

    def pause(self) -> None:
        """Suspend it (SIGSTOP) until `resume`."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    async def wait(self) -> None:
        """Wait until it has ended and its stderr has been read."""
        if self._process is not None:
            await self._process.wait()
        if self._reader is not None:
            await self._reader

    async def stop(self) -> None:
        """Send SIGTERM and, if it has not ended some seconds later, SIGKILL."""
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
    """Return the text of a child's error line, without JSON or prefix."""
    try:
        return str(json.loads(line)["error"])
    except (ValueError, TypeError, KeyError):
        return line.removeprefix("tidings: ")
