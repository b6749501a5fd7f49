"""The event loop of a process: uvloop if it is installed, and a garbage collector that runs rarely."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

Result = TypeVar("Result")

# A broker makes several objects per event and frees them within the turn. At the default of 700 the collector would run
# every hundred events and find nothing.
YOUNGEST_GENERATION_OBJECTS = 50_000


def run(main: Coroutine[Any, Any, Result]) -> Result:
    """Run a process's main coroutine to its end. Call it once, at the process's entry."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNGEST_GENERATION_OBJECTS, 20, 20)
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        return runner.run(main)


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return uvloop's factory if it can be imported; otherwise None, which means asyncio's own loop."""
    try:
        import uvloop
    except ImportError:
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory
