"""Answers a request by running a command, for `tidings serve`."""

from __future__ import annotations

import asyncio
import json
import os
import re
from asyncio.subprocess import PIPE, Process
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from tidings.cli.shared.values import attribute_json, attribute_text
from tidings.core.errors import RequestFailed

if TYPE_CHECKING:
    from tidings.core.events.event import Event

MAX_LAST_LINE_CHARACTERS = 1_000
END_S = 2.0
"""How long a command may take to end after SIGTERM, before it is killed."""


class CommandFailed(RequestFailed):
    """The command did not answer; the message says why."""


class CommandHandler:
    """Runs the command for each request: its payload is the command's stdin, stdout is the answer."""

    def __init__(self, command: Sequence[str], timeout_s: float) -> None:
        self._command = command
        self._timeout_s = timeout_s

    async def __call__(self, event: Event) -> bytes:
        try:
            process = await asyncio.create_subprocess_exec(
                *self._command, stdin=PIPE, stdout=PIPE, stderr=PIPE, env=environment(event)
            )
        except OSError as error:
            raise CommandFailed(f"cannot run {self._command[0]!r}: {error.strerror or error}") from None
        try:
            async with asyncio.timeout(self._timeout_s):
                out, errors = await communicate(process, event.payload)
        except TimeoutError:
            raise CommandFailed(f"{self._command[0]!r} took longer than {self._timeout_s:g} s") from None
        finally:
            await end(process)
        if process.returncode:
            raise CommandFailed(failure(self._command[0], process.returncode, errors))
        return out


async def communicate(process: Process, given: bytes) -> tuple[bytes, bytes]:
    """Give the command its input, and return its output and its errors once it has ended."""
    assert process.stdout is not None
    assert process.stderr is not None
    out, errors, _ = await asyncio.gather(process.stdout.read(), process.stderr.read(), feed(process, given))
    await process.wait()
    return out, errors


async def feed(process: Process, given: bytes) -> None:
    """Write the command's input; it may end without having read it."""
    assert process.stdin is not None
    with suppress(OSError, RuntimeError):  # uvloop raises a RuntimeError if the pipe is closed already
        process.stdin.write(given)
        await process.stdin.drain()
    with suppress(OSError, RuntimeError):
        process.stdin.close()


def environment(event: Event) -> dict[str, str]:
    """Return the environment of a command: ours, with the event's topic, id and attributes.

    An attribute's name becomes upper case, and what a variable cannot have becomes an underscore.
    """
    attributes = {name: value for name, value in event.attributes.items() if name != "topic"}
    texts = {
        "TIDINGS_ATTRIBUTE_" + re.sub("[^A-Z0-9_]", "_", name.upper()): value
        if isinstance(value, str)
        else attribute_text(value)
        for name, value in attributes.items()
    }
    described = json.dumps({name: attribute_json(value) for name, value in attributes.items()})
    made = {
        **texts,
        "TIDINGS_TOPIC": event.topic,
        "TIDINGS_EVENT": str(event.id),
        "TIDINGS_ATTRIBUTES": described,
    }
    # The system takes neither a zero byte nor a lone surrogate.
    clean = {name: value.replace("\0", "").encode(errors="replace").decode() for name, value in made.items()}
    return {**os.environ, **clean}


def failure(program: str, code: int, errors: bytes) -> str:
    """Return the last line of stderr or, without any, how the command ended."""
    lines = [line for line in errors.decode(errors="replace").splitlines() if line.strip()]
    if lines:
        return lines[-1].strip()[:MAX_LAST_LINE_CHARACTERS]
    how = f"exited with {code}" if code > 0 else f"was ended by signal {-code}"
    return f"{program!r} {how}"


async def end(process: Process) -> None:
    """End the command if it still runs: politely, then for good."""
    if process.returncode is not None:
        return
    with suppress(ProcessLookupError):
        process.terminate()
    try:
        async with asyncio.timeout(END_S):
            await process.wait()
    except TimeoutError:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()
