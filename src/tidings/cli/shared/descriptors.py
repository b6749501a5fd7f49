"""Reopens standard input, output and error that the parent process has closed, and an output without a buffer."""

from __future__ import annotations

import io
import os
import sys

STANDARD = (("stdin", "r"), ("stdout", "w"), ("stderr", "w"))
"""Streams by file descriptor."""


def open_closed_descriptors() -> None:
    """Connect closed standard descriptors to /dev/null.

    Otherwise the next socket would get such a number: prints would go to a peer, and uvloop aborts when it closes one.
    """
    for number, (name, mode) in enumerate(STANDARD):
        try:
            os.fstat(number)
        except OSError:
            # `open` returns the lowest free number, which is this one. Child processes inherit it.
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
        if getattr(sys, name) is None:  # Python found it closed at start-up
            stream = open(number, mode, encoding="utf-8", errors="backslashreplace", closefd=False)  # noqa: SIM115
            setattr(sys, name, stream)


def buffer_output() -> None:
    """Give stdout the buffer that PYTHONUNBUFFERED takes away.

    Without one Python drops the rest of a write that a signal interrupts, and says nothing. Then events would count as
    printed, and be acknowledged. We flush after each batch of lines.
    """
    stdout = sys.stdout
    if isinstance(getattr(stdout, "buffer", None), io.RawIOBase):
        sys.stdout = open(  # noqa: SIM115
            stdout.fileno(), "w", buffering=1, encoding=stdout.encoding, errors=stdout.errors, closefd=False
        )
