"""Standard input, output and error: whoever starts a process may have closed them."""

from __future__ import annotations

import os
import sys

STANDARD = (("stdin", "r"), ("stdout", "w"), ("stderr", "w"))
"""By number."""


def open_closed_descriptors() -> None:
    """Nothing comes from those that are closed, and what goes there goes nowhere.

    Else the next socket would get such a number: prints would go to a peer, and uvloop aborts when it closes one.
    """
    for number, (name, mode) in enumerate(STANDARD):
        try:
            os.fstat(number)
        except OSError:
            # The lowest number that is free, hence this one; processes that we start are to have it, too.
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
        if getattr(sys, name) is None:  # so Python says that it found it closed
            stream = open(number, mode, encoding="utf-8", errors="backslashreplace", closefd=False)  # noqa: SIM115
            setattr(sys, name, stream)
