"""Reads lines in a coroutine, from a terminal, a pipe or a file."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import AsyncIterator

READ_BYTES = 256 * 1024
MAX_LINE_BYTES = 2 * 1024 * 1024
"""More than an event can carry: a longer line is rejected when published."""


def stdin_lines() -> AsyncIterator[list[bytes]]:
    """Yield lists of complete lines, without line ends, as they arrive; the last line may be unterminated."""
    return lines_of(sys.stdin.fileno())


async def lines_of(descriptor: int, max_line_bytes: int = MAX_LINE_BYTES) -> AsyncIterator[list[bytes]]:
    """Yield the lines of a file or pipe as `stdin_lines` does. Of a longer line the beginning is yielded, more than
    `max_line_bytes`, and the rest is skipped."""
    rest = b""
    skipping = False
    async for chunk in _chunks(descriptor):
        *lines, rest = (rest + chunk).split(b"\n")
        if skipping and lines:
            skipping = False
            del lines[0]
        if skipping:
            rest = b""
        elif len(rest) > max_line_bytes:
            lines, rest, skipping = [*lines, rest], b"", True
        if lines:
            yield [line.removesuffix(b"\r") for line in lines]
    if rest:
        yield [rest]


async def each_line() -> AsyncIterator[bytes]:
    """Yield the lines of stdin one by one."""
    async for several in stdin_lines():
        for line in several:
            yield line


async def _chunks(descriptor: int) -> AsyncIterator[bytes]:
    """Yield chunks, read ahead by one.

    Event loops cannot wait for files, so a thread reads. It is a daemon and bypasses Python's buffers, whose locks it
    would otherwise hold if the interpreter ends while it waits for input.
    """
    loop = asyncio.get_running_loop()
    queue: asyncio.Queue[bytes | OSError] = asyncio.Queue()
    wanted = threading.Semaphore(2)

    def read() -> None:
        chunk: bytes | OSError = b"."
        while chunk and isinstance(chunk, bytes):
            wanted.acquire()
            try:
                chunk = os.read(descriptor, READ_BYTES)
            except OSError as error:  # a directory, for example
                chunk = error
            try:
                loop.call_soon_threadsafe(queue.put_nowait, chunk)
            except RuntimeError:  # the loop is closed: nobody reads any more
                return

    threading.Thread(target=read, name="stdin", daemon=True).start()
    while chunk := await queue.get():
        if isinstance(chunk, OSError):
            raise chunk
        yield chunk
        wanted.release()
