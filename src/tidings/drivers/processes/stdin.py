"""The lines of stdin for a coroutine, whatever stdin is: a terminal, a pipe or a file."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import AsyncIterator

READ_BYTES = 256 * 1024
MAX_LINE_BYTES = 2 * 1024 * 1024
"""More than an event can carry; what is longer is published in vain and refused there."""


async def stdin_lines() -> AsyncIterator[list[bytes]]:
    """Lists of whole lines, without their ends, as they come; the last line may lack its end."""
    rest = b""
    async for chunk in _chunks(sys.stdin.fileno()):
        *lines, rest = (rest + chunk).split(b"\n")
        if len(rest) > MAX_LINE_BYTES:
            lines, rest = [*lines, rest], b""
        if lines:
            yield [line.removesuffix(b"\r") for line in lines]
    if rest:
        yield [rest]


async def each_line() -> AsyncIterator[bytes]:
    """One by one."""
    async for several in stdin_lines():
        for line in several:
            yield line


async def _chunks(descriptor: int) -> AsyncIterator[bytes]:
    """What can be read, read ahead by one chunk.

    Event loops cannot wait for files, so a thread reads. It is a daemon, and reads below Python's buffers,
    whose locks it would else hold when the interpreter ends while nobody types.
    """
    loop = asyncio.get_running_loop()
    queue: asyncio.Queue[bytes] = asyncio.Queue()
    wanted = threading.Semaphore(2)

    def read() -> None:
        chunk = b"."
        while chunk:
            wanted.acquire()
            chunk = os.read(descriptor, READ_BYTES)
            try:
                loop.call_soon_threadsafe(queue.put_nowait, chunk)
            except RuntimeError:  # the loop is closed: nobody wants it any more
                return

    threading.Thread(target=read, name="stdin", daemon=True).start()
    while chunk := await queue.get():
        yield chunk
        wanted.release()
